//! Random programs: operations that the model of files does.
#![allow(
    dead_code,
    reason = "shared by several test programs, each of which uses a part"
)]

use base::Rng;
use fs::files::{Body, Files, Limits};
use fs::format::{Block, Place, ROOT_INODE};
use fs::inode::Time;
use fs::op::{Action, Allocation, Changes, Entry, Op, Target};
use std::borrow::Cow;

/// What is in a block that somebody has written: it depends on its place alone. Every tenth is short: zeros from 100 on.
pub fn block(place: Place) -> Box<Block> {
    let mut block = Box::new([place.number() as u8 | 1; 4096]);
    if place.number().is_multiple_of(10) {
        block[100..].fill(0);
    }
    block
}

pub fn new() -> Files {
    Files::new(Limits::default(), 0o755, (0, 0), Time::default())
}

/// Random operations that succeed.
pub struct Program {
    pub rng: Rng,
    pub files: Files,
    /// Inodes that are open.
    open: Vec<u64>,
    pub next_inode: u64,
    pub next_block: u64,
    now: i64,
}

impl Program {
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            files: new(),
            open: Vec::new(),
            next_inode: 10,
            next_block: 10,
            now: 0,
        }
    }

    /// A random element.
    fn pick(&mut self, from: &[u64]) -> u64 {
        from[self.rng.below(from.len() as u64) as usize]
    }

    fn inode(&mut self) -> u64 {
        let all: Vec<u64> = self.files.inodes().map(|(number, _)| number).collect();
        self.pick(&all)
    }

    fn entry(&mut self) -> Entry<'static> {
        let directories: Vec<u64> = self
            .files
            .inodes()
            .filter(|(_, inode)| inode.is_directory())
            .map(|(number, _)| number)
            .collect();
        let name = [b'a' + self.rng.below(5) as u8];
        Entry::new(self.pick(&directories), name.to_vec())
    }

    fn data(&mut self) -> (u64, Action<'static>) {
        let inode = self.inode();
        let offset = self.rng.below(4) * 4096 + self.rng.below(2) * self.rng.below(4096);
        let bytes = [self.rng.between(1, 9000), 4096 * self.rng.between(1, 3)][self.rng.below(2) as usize];
        let what = [Allocation::Reserve, Allocation::Hole, Allocation::Zeros][self.rng.below(3) as usize];
        let keeps_size = what == Allocation::Hole || self.rng.chance(0.5);
        let action = match self.rng.below(8) {
            0 => Action::Truncate { size: offset },
            1 => Action::Allocate {
                offset,
                bytes,
                what,
                keeps_size,
            },
            2 => {
                let blocks = self.rng.between(1, 4);
                let first = self.next_block;
                self.next_block += blocks;
                let sums = (first..first + blocks)
                    .map(|at| crc32c::crc32c(&block(Place::new(1, at))[..]))
                    .collect();
                let is_short = (first + blocks - 1).is_multiple_of(10);
                let bytes = (blocks * 4096) as u32 - if is_short { 3996 } else { 0 };
                Action::Place {
                    offset: offset / 4096 * 4096,
                    bytes,
                    place: Place::new(1, first),
                    sums: Cow::Owned(sums),
                }
            }
            _ => Action::Write {
                offset,
                data: vec![self.rng.next_u64() as u8; bytes as usize].into(),
            },
        };
        (inode, action)
    }

    fn rename(&mut self) -> (u64, Action<'static>) {
        let (from, to) = (self.entry(), self.entry());
        let source = self.files.lookup(from.parent, &from.name).unwrap_or(1);
        let target = match self.files.lookup(to.parent, &to.name) {
            Ok(inode) if self.rng.chance(0.3) => Target::Exchanged { inode },
            Ok(inode) => Target::Replaced {
                inode,
                fate: self.files.fate(inode, self.open.contains(&inode)),
            },
            Err(_) => Target::Free,
        };
        (source, Action::Rename { from, to, target })
    }

    fn change(&mut self) -> (u64, Action<'static>) {
        let inode = self.inode();
        let some = |rng: &mut Rng| rng.chance(0.4).then(|| rng.below(100) as u32);
        let time = |rng: &mut Rng| {
            rng.chance(0.4).then(|| Time {
                seconds: rng.below(1000) as i64,
                ns: 1,
            })
        };
        let rng = &mut self.rng;
        match rng.below(5) {
            0 | 1 => {
                let value = rng
                    .chance(0.6)
                    .then(|| Cow::Owned(vec![1; rng.below(9) as usize]));
                let name = [&b"user.a"[..], b"user.b", b"trusted.c"][rng.below(3) as usize];
                (
                    inode,
                    Action::Attribute {
                        name: Cow::Borrowed(name),
                        value,
                    },
                )
            }
            2 => {
                let atime = Some(Time {
                    seconds: self.now,
                    ns: 3,
                });
                (
                    inode,
                    Action::Set(Changes {
                        atime,
                        keeps_ctime: true,
                        ..Changes::default()
                    }),
                )
            }
            _ => {
                let (mode, uid, gid) = (some(rng), some(rng), some(rng));
                let flags = rng.chance(0.2).then(|| rng.next_u64());
                let tier = rng.chance(0.2).then(|| rng.below(4) as u8);
                let (atime, mtime) = (time(rng), time(rng));
                (
                    inode,
                    Action::Set(Changes {
                        mode,
                        uid,
                        gid,
                        atime,
                        mtime,
                        flags,
                        tier,
                        keeps_ctime: false,
                    }),
                )
            }
        }
    }

    fn next(&mut self) -> Op<'static> {
        self.now += 1;
        let (inode, action) = match self.rng.below(20) {
            0..4 => {
                self.next_inode += 1;
                let mode = [0o100_644, 0o100_644, 0o040_755, 0o010_644][self.rng.below(4) as usize];
                let mut entry = self.entry();
                if mode == 0o100_644 && self.rng.chance(0.1) {
                    entry.name = Cow::Borrowed(&[]);
                }
                let target = Cow::Borrowed(&b""[..]);
                (
                    self.next_inode,
                    Action::Create {
                        entry,
                        mode,
                        uid: 1,
                        gid: 2,
                        device: 0,
                        target,
                    },
                )
            }
            4 => (self.inode(), Action::Link { entry: self.entry() }),
            5..8 => {
                let entry = self.entry();
                let inode = self.files.lookup(entry.parent, &entry.name).unwrap_or(1);
                let is_directory = self.files.inode(inode).is_some_and(|inode| inode.is_directory());
                let fate = self.files.fate(inode, self.open.contains(&inode));
                (
                    inode,
                    Action::Unlink {
                        entry,
                        is_directory,
                        fate,
                    },
                )
            }
            8..12 => self.rename(),
            12..14 => self.change(),
            14 => {
                let inode = self.inode();
                let is_file = matches!(self.files.inode(inode).expect("it is there").body, Body::File(_));
                if self.rng.chance(0.5) && inode != ROOT_INODE && is_file {
                    self.open.push(inode);
                }
                (self.inode(), Action::Release)
            }
            _ => self.data(),
        };
        Op {
            inode,
            time: Time {
                seconds: self.now,
                ns: 0,
            },
            action,
        }
    }

    /// So many operations that succeed.
    pub fn run(&mut self, count: usize) -> Vec<Op<'static>> {
        let mut done = Vec::new();
        while done.len() < count {
            let op = self.next();
            if op.check().is_ok() && self.files.apply(&op, &block).is_ok() {
                done.push(op);
            }
            let files = &self.files;
            self.open.retain(|inode| files.inode(*inode).is_some());
        }
        done
    }
}
