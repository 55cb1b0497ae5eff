//! A tree that follows another one's commits reads each root, also after its places were used anew; and what has no name after a cut goes.

use crate::common;
use crate::common::{assert_clean, contents};
use crate::process;
use fs::check::{Depth, check_to};
use fs::digest::delete_orphan;
use fs::format::ROOT_INODE;
use fs::inode::{TYPE_FILE, Time};
use fs::op::{Action, Entry, Fate, Op};
use fs::tree::{Tree, View};

#[test]
fn a_tree_that_follows_reads_each_root_until_the_next() {
    for seed in 0..6 {
        let mut rig = common::Rig::new(&[4000], seed);
        rig.disks.records = false;
        let mut reader = Tree::open(&rig.disks, &rig.volume, 1 << 16).expect("it is whole");
        for _ in 0..60 {
            for _ in 0..40 {
                if !rig.change() {
                    break;
                }
            }
            let plan = rig.tree.plan(&rig.disks).expect("there is room");
            plan.carry_out(&mut rig.disks).expect("the medium works");
            rig.tree.finish();
            reader.follow(&plan);
            let of_writer = contents(&mut rig.tree, &rig.disks, View::Pending);
            // The writer goes on: what the reader reads stays.
            rig.change();
            let of_reader = contents(&mut reader, &rig.disks, View::Pending);
            assert_eq!(of_reader.expect("it is whole"), of_writer.expect("it is whole"));
            assert_eq!(reader.committed(), rig.tree.committed());
        }
        assert!(reader.refuses().is_some(), "a reader takes no changes");
    }
}

fn op(inode: u64, action: Action<'static>) -> Op<'static> {
    let time = Time::default();
    Op { inode, time, action }
}

#[test]
fn files_that_lost_their_last_name_while_they_were_open_are_deleted_one_by_one() {
    let mut rig = process::Rig::new();
    for inode in [10, 11, 12] {
        let name = format!("f{inode}").into_bytes();
        rig.log(&op(
            inode,
            Action::Create {
                entry: Entry::new(ROOT_INODE, name.clone()),
                mode: TYPE_FILE | 0o644,
                uid: 0,
                gid: 0,
                device: 0,
                target: Vec::new().into(),
            },
        ));
        let data = vec![7; 10_000].into();
        rig.log(&op(inode, Action::Write { offset: 0, data }));
        if inode != 11 {
            let (entry, is_directory, fate) = (Entry::new(ROOT_INODE, name), false, Fate::Orphaned);
            rig.log(&op(
                inode,
                Action::Unlink {
                    entry,
                    is_directory,
                    fate,
                },
            ));
        }
    }
    assert_eq!(rig.digest().refused, []);
    rig.commit_twice();
    let mut tree = Tree::open(&rig.disks, &rig.volume, 1 << 20).expect("it is whole");
    let free = tree.free(0);
    let mut deleted = Vec::new();
    while let Some(inode) = delete_orphan(&mut tree, &mut rig.disks).expect("there is room") {
        deleted.push(inode);
    }
    assert_eq!(deleted, [10, 12]);
    tree.commit(&mut rig.disks).expect("there is room");
    assert!(tree.free(0) >= free + 6, "their blocks are free");
    assert_clean(&check_to(&rig.disks, Depth::Data));
}
