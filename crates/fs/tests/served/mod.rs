//! A client with its log, and the file system that digests it: what a server of FUSE does, in memory.
#![allow(
    dead_code,
    reason = "shared by several test programs, each of which uses a part"
)]

use crate::process::Rig;
use base::Rng;
use fs::client::{Budget, Call, Caller, Client, Failure, Options, Where};
use fs::errno::Errno;
use fs::format::{BLOCK_BYTES, Block};
use fs::inode::{Inode, Time};
use fs::log::Ticket;
use fs::media::Media;
use fs::op::Op;
use fs::overlay::Below;
use fs::tree::View;

/// Numbers and blocks that are granted at once.
const GRANTED: u64 = 64;

pub struct Served {
    pub rig: Rig,
    pub client: Client,
    pub now: Time,
    pub rng: Rng,
    /// How often a frame is written, and the log digested, after a call.
    pub writes: f64,
    pub digests: f64,
    /// Times that a call had to wait for a digest.
    pub waited: usize,
    /// Where blocks for large data are.
    large: u8,
    next_inode: u64,
}

pub const ROOT: Caller<'static> = Caller {
    pid: 1,
    uid: 0,
    gid: 0,
    groups: Some(&[]),
    umask: 0,
};

impl Served {
    pub fn new(seed: u64, options: Options) -> Self {
        Self::of(Rig::new(), seed, options)
    }

    pub fn of(rig: Rig, seed: u64, options: Options) -> Self {
        let mut served = Self {
            client: Client::new(rig.volume.mark, options),
            large: rig.disks.blocks.len() as u8 - 1,
            rig,
            now: Time { seconds: 1, ns: 0 },
            rng: Rng::new(seed),
            writes: 0.3,
            digests: 0.05,
            waited: 0,
            next_inode: 1 << 20,
        };
        served.set_budget();
        served
    }

    pub fn set_budget(&mut self) {
        let budget = Budget::of(&self.rig.tree, &self.rig.devices);
        self.client.set_budget(budget);
    }

    /// All of the log is in the tree, and in both roots. Nothing of it is refused.
    pub fn digest(&mut self) {
        let report = self.rig.digest();
        assert_eq!(report.refused, [], "what was acknowledged is in the tree");
        self.rig.commit_twice();
        self.client.digested(self.rig.digested);
        self.set_budget();
    }

    /// A part of it is in the tree.
    pub fn digest_some(&mut self, frames: usize) {
        let report = self.rig.digest_some(frames);
        assert_eq!(report.refused, [], "what was acknowledged is in the tree");
        self.client.digested(self.rig.digested);
        self.set_budget();
    }

    pub fn read<T>(&mut self, f: impl FnOnce(&Client, &mut Below<'_>) -> T) -> T {
        let mut below = Below::new(&mut self.rig.tree, &self.rig.disks, View::Pending);
        f(&self.client, &mut below)
    }

    pub fn stat(&mut self, inode: u64) -> Result<Inode, Failure> {
        self.read(|client, below| client.stat(below, inode))
    }

    /// A call, and what becomes of the log then.
    pub fn call<T>(
        &mut self,
        caller: Caller<'_>,
        mut f: impl FnMut(&mut Client, &mut Call<'_, '_>) -> Result<T, Failure>,
    ) -> Result<T, Errno> {
        let result = loop {
            match self.try_once(caller, &mut f) {
                Ok(done) => break Ok(done),
                Err(Failure::Posix(errno)) => break Err(errno),
                Err(Failure::Busy) => self.rig.write_log(),
                Err(Failure::Digest) => {
                    self.waited += 1;
                    self.digest();
                }
                Err(Failure::Inodes) => {
                    let first = self.next_inode;
                    self.next_inode += GRANTED;
                    self.client.grant_inodes(first..self.next_inode);
                }
                Err(Failure::Blocks(wanted)) => match self.grant_blocks(wanted) {
                    true => {}
                    false => break Err(Errno::NoSpace),
                },
                Err(failure) => panic!("{failure}"),
            }
        };
        if self.rng.chance(self.writes) {
            self.rig.write_log();
        }
        if self.rng.chance(self.digests) {
            let frames = self.rng.below(6) as usize;
            self.digest_some(frames);
            if self.rng.chance(0.5) {
                self.rig.commit_twice();
                self.set_budget();
            }
        }
        result
    }

    fn try_once<T>(
        &mut self,
        caller: Caller<'_>,
        f: &mut impl FnMut(&mut Client, &mut Call<'_, '_>) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let mut below = Below::new(&mut self.rig.tree, &self.rig.disks, View::Pending);
        let writer = &mut self.rig.writer;
        let mut sink = |ops: &[Op<'_>]| -> Result<Ticket, _> { writer.add(ops) };
        let mut call = Call {
            caller,
            now: self.now,
            below: &mut below,
            sink: &mut sink,
        };
        f(&mut self.client, &mut call)
    }

    /// Reserves blocks for large data. False if there are none.
    fn grant_blocks(&mut self, wanted: u64) -> bool {
        let (first, others) = self.client.blocks_unpromised();
        let left = match self.large {
            0 => first,
            large if self.rig.devices.contains(&large) => others,
            _ => u64::MAX,
        };
        let want = wanted.max(GRANTED).min(left);
        if want == 0 {
            return false;
        }
        let Ok(run) = self.rig.tree.reserve(&self.rig.disks, self.large, want, None) else {
            return false;
        };
        self.rig.grants.grant(run);
        self.client.grant_blocks(run);
        self.set_budget();
        true
    }

    /// Writes all of the data, the large way where it is one. How much that was.
    pub fn write(&mut self, caller: Caller<'_>, inode: u64, at: Where, data: &[u8]) -> Result<usize, Errno> {
        let mut done = 0;
        while done < data.len() {
            let at = match at {
                Where::At(offset) => Where::At(offset + done as u64),
                Where::End => Where::End,
            };
            let rest = &data[done..];
            let plan = self.call(caller, |client, call| client.plan(call, (inode, at), rest.len()));
            let result = match plan {
                Ok(Some(plan)) => {
                    for (run, range) in plan.runs() {
                        let mut at = range.start;
                        for block in 0..run.blocks {
                            let mut bytes: Block = [0; BLOCK_BYTES];
                            let count = (range.end - at).min(BLOCK_BYTES);
                            bytes[..count].copy_from_slice(&rest[at..at + count]);
                            let place = run.place.plus(block);
                            self.rig.disks.write(place, &bytes).expect("the medium works");
                            at += count;
                        }
                    }
                    let sums = plan.sums(rest);
                    let placed = self.call(caller, |client, call| {
                        client.place(call, &plan, (rest, &sums), false)
                    });
                    if placed.is_err() {
                        self.client.abandon(plan);
                    }
                    placed
                }
                Ok(None) => self.call(caller, |client, call| {
                    client.write(call, (inode, at), rest, false)
                }),
                Err(errno) => Err(errno),
            };
            match result {
                Ok(written) => done += written.bytes,
                Err(_) if done > 0 => break,
                Err(errno) => return Err(errno),
            }
        }
        Ok(done)
    }

    /// Somebody lets go of an inode.
    pub fn forget(&mut self, inode: u64) {
        let mut below = Below::new(&mut self.rig.tree, &self.rig.disks, View::Pending);
        self.client
            .forget(&mut below, inode, 1)
            .expect("the tree can be read");
        while self
            .call(ROOT, |client, call| client.release_lost(call))
            .expect("an orphan can go")
            .is_some()
        {}
    }

    pub fn content(&mut self, inode: u64) -> Vec<u8> {
        let size = self.stat(inode).expect("it is there").size as usize;
        let mut bytes = vec![9; size + 1];
        let read = self.read(|client, below| client.read(below, (inode, 0), &mut bytes));
        assert_eq!(read, Ok(size));
        bytes.truncate(size);
        bytes
    }
}
