//! Crash exploration as ACE and CrashMonkey (OSDI'18) do it: all sequences of up to two calls of their kinds on their few names, and what a
//! call needs before it. Each is cut at every write of the log, of the digest's commit, and of the recovery.
//!
//! After a cut the acknowledged calls are there, and of what follows no more than the call that was being logged. The check is clean.

use crate::ace;
use crate::ace::{CALLS, Call, Script};
use crate::common::{Disks, assert_clean, cuts};
use crate::process::{Rig, assert_files, digest_log, frames, record, write_at};
use crate::program;
use base::Rng;
use fs::check::{Depth, check_to};
use fs::files::Files;
use fs::grants::{Grants, Rights};
use fs::log::Frame;
use fs::op::Op;
use fs::tree::Tree;

/// What was tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Counts {
    sequences: u64,
    calls: u64,
    images: u64,
    /// Images in which a call that was not acknowledged is not there.
    short: u64,
    /// Cuts of a recovery.
    again: u64,
}

/// A sequence that runs, and the models after each of its calls.
struct Run {
    rig: Rig,
    /// The files after so many frames.
    models: Vec<Files>,
    /// Where each frame ends.
    ends: Vec<u64>,
    rng: Rng,
    counts: Counts,
}

/// The rights to all that a log speaks of: one process is alone.
fn grants_of(tree: &mut Tree, disks: &Disks) -> Grants {
    let mut grants = Grants::default();
    grants.inodes = 2..u64::MAX;
    let (_, frames) = frames(tree, disks);
    for op in frames.iter().flat_map(Frame::ops).flatten() {
        let inodes = ace::inodes_of(&op).into_iter();
        grants.leases.extend(inodes.map(|inode| (inode, Rights::ALL)));
    }
    grants
}

/// Opens a file system as after a cut: its log goes into the tree.
fn recover(disks: &mut Disks, rig: &Rig) -> Tree {
    let mut tree = Tree::open(disks, &rig.volume, 1 << 20).expect("a root counts");
    let mut grants = grants_of(&mut tree, disks);
    let report = digest_log(&mut tree, disks, &mut grants).expect("it is the next batch");
    assert_eq!(report.refused, []);
    tree.commit(disks).expect("there is room");
    tree
}

impl Run {
    fn new(seed: u64) -> Self {
        let models = vec![program::new()];
        Self {
            rig: Rig::new(),
            models,
            ends: Vec::new(),
            rng: Rng::new(seed),
            counts: Counts::default(),
        }
    }

    /// The image after a cut at which so many calls were acknowledged, and the next one was being logged or not.
    fn look(&mut self, mut disks: Disks, acknowledged: usize, may_next: bool, what: &str) {
        self.counts.images += 1;
        let mut tree = recover(&mut disks, &self.rig);
        let digested = record(&mut tree, &disks).digested;
        let there = self.ends.iter().filter(|end| **end <= digested).count();
        let is_right = there == acknowledged || (may_next && there == acknowledged + 1);
        assert!(is_right, "{what}: {there} calls after {acknowledged}");
        self.counts.short += u64::from(there == acknowledged && may_next);
        assert_files(&mut tree, &disks, &self.models[there], what);
        assert_clean(&check_to(&disks, Depth::Data));
    }

    /// A call is logged, and cut at that.
    fn log(&mut self, op: &Op<'static>, what: &str) {
        let mut model = self.models.last().expect("there is one").clone();
        let done = model.apply(op, &program::block);
        done.unwrap_or_else(|error| panic!("{what}: {op:?}: {error}"));
        self.models.push(model);
        self.rig
            .writer
            .add(std::slice::from_ref(op))
            .expect("there is room");
        let write = self.rig.writer.next_write().expect("there is a record");
        let acknowledged = self.ends.len();
        let before = self.rig.disks.clone();
        // Nothing, all but a sector, some sectors.
        let lost = 1 << self.rng.below(8);
        let torn = [0, !lost, self.rng.next_u64() & !lost];
        for (offset, bytes) in write.pieces() {
            write_at(&mut self.rig.disks, offset, bytes);
        }
        self.rig.writer.written(write, Ok(()));
        self.ends.push(self.rig.writer.durable_position());
        let after = self.rig.disks.clone();
        for chosen in torn {
            let mut disks = before.clone();
            for (place, block) in &after.data {
                if before.data.get(place) != Some(block) {
                    disks.put(*place, block, |sector| chosen >> sector & 1 == 1);
                }
            }
            self.look(disks, acknowledged, true, what);
        }
        self.look(after, acknowledged + 1, false, what);
        self.counts.calls += 1;
    }

    /// The log is digested, and cut at each write of that. One of the images is recovered, and cut at each write of the recovery.
    fn digest(&mut self, what: &str) {
        let begin = self.rig.disks.clone();
        self.rig.disks.records = true;
        self.rig.disks.events.clear();
        self.rig.grants = grants_of(&mut self.rig.tree, &self.rig.disks);
        assert_eq!(self.rig.digest().refused, [], "{what}");
        self.rig.commit_twice();
        self.rig.disks.records = false;
        let events = core::mem::take(&mut self.rig.disks.events);
        let acknowledged = self.ends.len();
        let mut images = cuts(&begin, &events, &mut self.rng);
        let chosen = self.rng.below(images.len() as u64) as usize;
        let again = images.swap_remove(chosen);
        for disks in images {
            self.look(disks, acknowledged, false, what);
        }
        let mut recovered = again.clone();
        (recovered.records, recovered.events) = (true, Vec::new());
        recover(&mut recovered, &self.rig);
        for disks in cuts(&again, &recovered.events, &mut self.rng) {
            self.counts.again += 1;
            self.look(disks, acknowledged, false, what);
        }
    }
}

/// Runs some calls, with what they need before. There is a digest between two of them, or not.
fn run(calls: &[Call], is_digested_between: bool, seed: u64) -> Counts {
    let mut run = Run::new(seed);
    let mut script = Script::default();
    for (index, call) in calls.iter().enumerate() {
        let what = format!("{calls:?} at {call:?}, {is_digested_between}");
        let files = run.models.last().expect("there is one").clone();
        for op in script.ops(call, files) {
            run.log(&op, &what);
        }
        if is_digested_between || index + 1 == calls.len() {
            run.digest(&what);
        }
    }
    run.counts.sequences += 1;
    run.counts
}

/// All sequences of up to two calls, every `step`th from `first` on.
fn explore(first: usize, step: usize) -> Counts {
    let ones = CALLS.iter().map(|call| vec![*call]);
    let twos = CALLS
        .iter()
        .flat_map(|call| CALLS.iter().map(|next| vec![*call, *next]));
    let mut all = Counts::default();
    for (index, calls) in ones.chain(twos).enumerate().skip(first).step_by(step) {
        for is_digested_between in [false, true] {
            if calls.len() == 1 && is_digested_between {
                continue;
            }
            let counts = run(&calls, is_digested_between, index as u64);
            all.sequences += counts.sequences;
            all.calls += counts.calls;
            all.images += counts.images;
            all.short += counts.short;
            all.again += counts.again;
        }
    }
    println!("{all:?}");
    all
}

#[test]
fn a_sample_of_the_sequences_of_two_calls_survives_each_cut() {
    let counts = explore(0, 97);
    assert!(counts.images > 2000 && counts.short > 300, "{counts:?}");
}

#[test]
#[ignore = "minutes"]
fn all_sequences_of_up_to_two_calls_survive_each_cut() {
    let counts = explore(0, 1);
    let count = CALLS.len() as u64;
    assert_eq!(counts.sequences, count + 2 * count * count);
}

/// The canary: an acknowledged call whose frame the medium loses is missed.
#[test]
#[should_panic(expected = "calls after")]
fn a_call_that_is_lost_is_noticed() {
    let mut run = Run::new(1);
    let op = Script::default().ops(&CALLS[0], program::new()).remove(0);
    let before = run.rig.disks.clone();
    run.log(&op, "one call");
    run.look(before, 1, false, "one call");
}
