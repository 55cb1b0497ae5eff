//! What a process sees is what it did, whatever of its log is in the tree.

use crate::common;
use crate::process::{Rig, assert_attributes};
use crate::program::Program;
use base::Rng;
use fs::check::{Depth, check_to};
use fs::files::{Body, Files};
use fs::log::Ticket;
use fs::overlay::{Below, Listed, Overlay, ReadError};
use fs::tree::View;
use std::collections::BTreeMap;

struct Reader {
    rig: Rig,
    overlay: Overlay,
    view: View,
    rng: Rng,
}

impl Reader {
    fn new(seed: u64) -> Self {
        let rig = Rig::new();
        Self {
            overlay: Overlay::new(rig.volume.mark),
            rig,
            view: View::Pending,
            rng: Rng::new(seed),
        }
    }

    fn below(&mut self) -> (&Overlay, Below<'_>) {
        let below = Below::new(&mut self.rig.tree, &self.rig.disks, self.view);
        (&self.overlay, below)
    }

    /// Digests a part of the log.
    fn digest(&mut self) {
        if self.rng.chance(0.7) {
            self.rig.write_log();
        }
        let count = self.rng.below(6) as usize;
        assert_eq!(self.rig.digest_some(count).refused, []);
        self.overlay.digested(self.rig.digested.0);
        if self.rng.chance(0.5) {
            self.rig.commit_twice();
        }
    }

    /// All entries of a directory, a few at a time. Digests may come in between.
    fn list(&mut self, parent: u64) -> BTreeMap<Vec<u8>, u64> {
        let (mut found, mut cookie) = (BTreeMap::new(), 0);
        loop {
            let count = self.rng.between(1, 4) as usize;
            let (overlay, mut below) = self.below();
            let listed = overlay
                .list(&mut below, (parent, cookie), count)
                .expect("it is whole");
            let is_last = listed.len() < count;
            for Listed {
                cookie: next,
                inode,
                name,
                ..
            } in listed
            {
                assert!(next > cookie, "cookies rise");
                cookie = next;
                assert_eq!(found.insert(name, inode), None, "an entry comes once");
            }
            if is_last {
                return found;
            }
            if self.rng.chance(0.05) {
                self.digest();
            }
        }
    }

    fn verify(&mut self, files: &Files, next_inode: u64, what: &str) {
        for (number, model) in files.inodes() {
            let what = format!("{what}, inode {number}");
            let (overlay, mut below) = self.below();
            let inode = overlay.inode(&mut below, number).expect("it is whole");
            let inode = inode.expect("it is there");
            assert_attributes(&inode, model, &what);
            let names = overlay.attributes(&mut below, number).expect("it is whole");
            let of_model: Vec<_> = model.attributes.keys().cloned().collect();
            assert_eq!(names, of_model, "{what}");
            for name in [&b"user.a"[..], b"user.b", b"trusted.c"] {
                let value = overlay.attribute(&mut below, number, name).expect("it is whole");
                assert_eq!(value.as_ref(), model.attributes.get(name), "{what}");
            }
            match &model.body {
                Body::Directory { parent, entries } => {
                    assert_eq!((inode.parent, inode.entries), (*parent, entries.len() as u64));
                    for name in [&b"a"[..], b"b", b"c", b"d", b"e", b"none"] {
                        let found = overlay.lookup(&mut below, number, name).expect("it is whole");
                        assert_eq!(found, entries.get(name).copied(), "{what}");
                    }
                    assert_eq!(self.list(number), *entries, "{what}");
                }
                Body::Link(target) => {
                    assert_eq!(overlay.target(&mut below, number).as_ref(), Ok(target), "{what}");
                }
                Body::File(content) => {
                    let (written, reserved) = content.map();
                    let mut in_model: Vec<u64> = written
                        .into_iter()
                        .chain(reserved.into_iter().flatten())
                        .collect();
                    in_model.sort_unstable();
                    assert_eq!(inode.blocks, in_model.len() as u64, "{what}");
                    let blocks = overlay
                        .blocks(&mut below, number, 0..1 << 40)
                        .expect("it is whole");
                    let blocks: Vec<u64> = blocks.into_iter().flatten().collect();
                    assert_eq!(blocks, in_model, "{what}");
                    for _ in 0..3 {
                        self.read(files, number, &what);
                    }
                }
                Body::Special => {
                    let mut bytes = [0; 4];
                    let read = overlay.read(&mut below, (number, 0), &mut bytes);
                    assert!(matches!(read, Err(ReadError::Posix(_))));
                }
            }
        }
        for number in (2..next_inode + 2).filter(|number| files.inode(*number).is_none()) {
            let (overlay, mut below) = self.below();
            assert_eq!(
                overlay.inode(&mut below, number),
                Ok(None),
                "{what}, inode {number}"
            );
        }
    }

    fn read(&mut self, files: &Files, number: u64, what: &str) {
        let (offset, count) = (self.rng.below(30_000), self.rng.below(30_000) as usize);
        let offset = if self.rng.chance(0.4) { 0 } else { offset };
        let mut bytes = vec![9; count];
        let (overlay, mut below) = self.below();
        let read = overlay
            .read(&mut below, (number, offset), &mut bytes)
            .expect("it is whole");
        let expected = files.read(number, offset, count).expect("it is a file");
        assert_eq!(read, expected.len(), "{what}");
        assert!(bytes[..read] == expected, "{what}: another content at {offset}");
    }
}

#[test]
fn a_process_sees_what_it_did_whatever_is_digested() {
    let (mut verified, mut behind) = (0, 0);
    for seed in 0..150 {
        let mut reader = Reader::new(seed);
        let mut program = Program::new(9000 + seed);
        for step in 0..120 {
            for op in program.run(1) {
                let Ticket(ticket) = reader.rig.log(&op);
                reader.overlay.digested(reader.rig.digested.0);
                let mut below = Below::new(&mut reader.rig.tree, &reader.rig.disks, View::Pending);
                let taken = reader.overlay.apply(&mut below, &op, ticket);
                assert_eq!(taken, Ok(()), "seed {seed}, step {step}: {op:?}");
            }
            if reader.rng.chance(0.15) {
                reader.digest();
            }
            if reader.rng.chance(0.2) {
                reader.rig.write_log();
            }
            if reader.rng.chance(0.15) {
                behind += usize::from(!reader.overlay.is_empty());
                verified += 1;
                let what = format!("seed {seed}, step {step}");
                reader.verify(&program.files, program.next_inode, &what);
            }
        }
        reader.rig.digest();
        reader.overlay.digested(reader.rig.digested.0);
        assert!(reader.overlay.is_empty(), "all is in the tree");
        reader.rig.commit_twice();
        reader.verify(&program.files, program.next_inode, "at the end");
        common::assert_clean(&check_to(&reader.rig.disks, Depth::Data));
    }
    assert!(verified > 1000 && behind > 500, "{verified} {behind}");
}

/// A digest frees blocks of an older root, and commits reuse what nobody reads any more: not what a reader of that root needs.
#[test]
fn a_reader_of_an_older_root_sees_its_files_whatever_is_digested() {
    for seed in 0..30 {
        let mut reader = Reader::new(seed);
        let mut program = Program::new(7000 + seed);
        for op in program.run(60) {
            reader.rig.log(&op);
        }
        reader.rig.digest();
        reader.rig.commit_twice();
        let (then, next_inode) = (program.files.clone(), program.next_inode);
        let root = *reader.rig.tree.committed();
        reader.rig.tree.set_oldest(Some(root.generation));
        for _ in 0..8 {
            for op in program.run(20) {
                reader.rig.log(&op);
            }
            reader.rig.digest();
            reader.rig.commit_twice();
        }
        reader.view = View::Root(root);
        reader.verify(&then, next_inode, "the older root");
        reader.view = View::Pending;
        reader.verify(&program.files, program.next_inode, "now");
    }
}
