//! What a digest keeps of a batch does the same as the batch.

use crate::program::{Program, block};
use base::Rng;
use fs::coalesce::coalesce;
use fs::files::Body;
use fs::format::ROOT_INODE;
use fs::inode::Time;
use fs::op::{Action, Entry, Op};
use std::borrow::Cow;

#[test]
fn what_is_kept_of_a_batch_does_the_same_as_the_batch() {
    let (mut all, mut kept, mut unused) = (0, 0, 0);
    for seed in 0..4000 {
        let mut batch = Program::new(seed);
        let before = batch.rng.below(40) as usize;
        batch.run(before);
        let state = batch.files.clone();
        let length = [2, 4, 8, 20, 60][seed as usize % 5];
        let ops = batch.run(length);
        let placed: u64 = ops.iter().map(blocks).sum();
        let coalesced = coalesce(ops.clone());
        let mut again = state.clone();
        for op in &coalesced.ops {
            op.check().expect("what is kept could be logged");
            if let Err(error) = again.apply(op, &block) {
                panic!("seed {seed}: {error}: {op:?}\nof {ops:#?}");
            }
        }
        if again != batch.files {
            for (number, inode) in batch.files.inodes() {
                assert_eq!(
                    again.inode(number).map(short),
                    Some(short(inode)),
                    "inode {number}, seed {seed}: {ops:#?}"
                );
            }
            panic!("seed {seed}: there is more");
        }
        let given: u64 = coalesced.unused.iter().map(|run| run.blocks).sum();
        assert_eq!(
            given + coalesced.ops.iter().map(blocks).sum::<u64>(),
            placed,
            "each block is used or not"
        );
        (all, kept, unused) = (all + ops.len(), kept + coalesced.ops.len(), unused + given);
    }
    assert!(
        kept * 10 < all * 9 && unused > 1000,
        "{kept} of {all} operations are kept, {unused} blocks unused"
    );
}

fn blocks(op: &Op<'_>) -> u64 {
    match &op.action {
        Action::Place { sums, .. } => sums.len() as u64,
        _ => 0,
    }
}

/// An inode without its content, which would fill pages.
fn short(inode: &fs::files::Inode) -> String {
    let blocks = match &inode.body {
        Body::File(content) => content.blocks(),
        _ => 0,
    };
    let text = format!(
        "{:?}",
        fs::files::Inode {
            body: Body::Special,
            ..inode.clone()
        }
    );
    format!(
        "{text} {blocks} blocks, {:08x}",
        crc32c::crc32c(format!("{:?}", inode.body).as_bytes())
    )
}

/// Mail comes and goes: a random file is deleted, and a new one is written, `deletions` times in a batch over so many files. The share of
/// data that is not digested, 1 − (1 − e⁻ˣ)/x with x deletions for each file, is what Strata found for varmail: 86 % at x = 7.
fn varmail(deletions: usize, files: usize) -> f64 {
    let mut rng = Rng::new(7);
    let time = Time { seconds: 1, ns: 0 };
    let mut there: Vec<u64> = (0..files as u64).map(|index| 100 + index).collect();
    let name = |inode: u64| Entry::new(ROOT_INODE, inode.to_string().into_bytes());
    let mut ops = Vec::new();
    for next in (100 + files as u64..).take(deletions) {
        let slot = rng.below(files as u64) as usize;
        let gone = core::mem::replace(&mut there[slot], next);
        let fate = fs::op::Fate::Deleted;
        let unlink = Action::Unlink {
            entry: name(gone),
            is_directory: false,
            fate,
        };
        let target = Cow::Borrowed(&b""[..]);
        let create = Action::Create {
            entry: name(next),
            mode: 0o100_600,
            uid: 0,
            gid: 0,
            device: 0,
            target,
        };
        ops.push(Op {
            inode: gone,
            time,
            action: unlink,
        });
        ops.push(Op {
            inode: next,
            time,
            action: create,
        });
        for part in 0..4 {
            let write = Action::Write {
                offset: part * 1000,
                data: vec![next as u8; 1000].into(),
            };
            ops.push(Op {
                inode: next,
                time,
                action: write,
            });
        }
    }
    let bytes = |ops: &[Op<'_>]| -> usize {
        let data = ops.iter().map(|op| {
            if let Action::Write { data, .. } = &op.action {
                data.len()
            } else {
                0
            }
        });
        data.sum()
    };
    let all = bytes(&ops);
    1.0 - bytes(&coalesce(ops).ops) as f64 / all as f64
}

#[test]
fn a_mail_server_saves_the_share_of_data_that_strata_tells() {
    for (deletions, files) in [(500, 1000), (1000, 1000), (3000, 1000), (7000, 1000)] {
        let x = deletions as f64 / files as f64;
        let expected = 1.0 - (1.0 - (-x).exp()) / x;
        let saved = varmail(deletions, files);
        println!(
            "x = {x}: {:.1} % saved, {:.1} % expected",
            100.0 * saved,
            100.0 * expected
        );
        assert!(
            (saved - expected).abs() < 0.03,
            "x = {x}: {saved} saved, {expected} expected"
        );
    }
}
