//! Messages between a process that has a log and the daemon that digests it (docs/format/fs-session.md): one packet each.
//!
//! Here a message is whole, or it is malformed. What it asks for is the daemon's to judge.

use crate::client::Budget;
use crate::errno::Errno;
use crate::format::Kind;
use crate::lease::{Given, Mode, WANTS_MAX};
use core::ops::Range;
use thiserror::Error as ErrorOf;

/// The version of all messages.
pub const VERSION: u32 = 3;
/// Bytes of a lease.
const LEASE_BYTES: usize = 16;
/// Bytes of a message, at most.
pub const MESSAGE_BYTES_MAX: usize = 40 << 10;
/// Blocks that are asked for at once, at most.
pub const BLOCKS_MAX: u64 = 8;
/// Bytes of records in an answer, at most; what is left is asked for anew.
pub const RECORDS_BYTES_MAX: usize = 32 << 10;

const MAGIC: [u8; 4] = *b"SWFS";

/// It is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ErrorOf)]
#[error("the message is malformed, or of another version")]
pub struct Malformed;

/// What a process says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// It wants a log.
    Hello,
    /// It wants leases, all together.
    Ask {
        /// Its name for the request.
        request: u64,
        /// Inodes, and what of.
        wants: Vec<(u64, Mode)>,
        /// It can make the call by the mount: it may be told that an inode is crowded.
        has_mount: bool,
    },
    /// It gives a lease back.
    Give(Given),
    /// It has closed an inode that it had open when it gave the lease back.
    Shut(u64),
    /// It wants records of an inode of which it has a lease.
    Records {
        /// Its name for the request.
        request: u64,
        /// The inode.
        inode: u64,
        /// The kind of their keys.
        kind: Kind,
        /// The numbers of their keys.
        numbers: Range<u64>,
    },
    /// It wants blocks of a file of which it has a lease.
    Blocks {
        /// Its name for the request.
        request: u64,
        /// The file.
        inode: u64,
        /// The first one.
        first: u64,
        /// How many.
        count: u64,
    },
    /// The log has little room: it is to be digested up to its end.
    Digest,
    /// It wants a descriptor of the mount for a file or directory that it may open so.
    Descriptor {
        /// Its name for the request.
        request: u64,
        /// The inode.
        inode: u64,
        /// How, as the machine's `open` has it: the access mode, and flags.
        flags: u32,
    },
}

/// What a process is given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Welcome {
    /// The mark of the file system.
    pub mark: u64,
    /// The log's number.
    pub log: u64,
    /// What its frames carry.
    pub nonce: u64,
    /// Bytes of its ring: the window has [`WINDOW_HEAD_BYTES`] more, in front of it.
    pub ring_bytes: u64,
    /// Its frames begin at multiples of so many bytes.
    pub sector: u32,
    /// Numbers for new inodes.
    pub numbers: Range<u64>,
    /// Emulated time of a durable write, in ns.
    pub latency_ns: u64,
    /// Bytes a second of emulated memory; 0: none is emulated.
    pub bandwidth: u64,
}

/// Bytes in front of a window's ring.
pub const WINDOW_HEAD_BYTES: u64 = 4096;
/// The word of a window that says, if it is not 0, that the log is closed (u64).
pub const CLOSED_AT: u64 = 0;
/// Where a window says up to which position the log is durable (u64).
pub const DURABLE_AT: u64 = 8;
/// The word by which the process says which part of the room it has heard of last: the part's root (u64), as of [`Budget::generation`]. The process has
/// promised what it logged before that of older parts.
pub const HEARD_AT: u64 = 16;
/// Where it says that it is one: [`WINDOW_MAGIC`], and the log's number (u64). The daemon writes both.
pub const MAGIC_AT: u64 = 64;
/// What a window has there.
pub const WINDOW_MAGIC: [u8; 8] = *b"FSWINDOW";

/// What the tree has of a log, and what room there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digested {
    /// The newest root has positions below.
    pub tree: u64,
    /// Both roots have positions below: their room may be used anew.
    pub both: u64,
    /// Operations that were refused since the last message: what the process knows of its own calls is not what the tree has.
    pub refused: u64,
    /// The room of the log's calls.
    pub budget: Budget,
    /// Blocks of all devices, and free ones.
    pub blocks: (u64, u64),
}

/// What the daemon says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The process has a log. The packet carries the window's descriptor.
    Welcome(Welcome),
    /// A request is granted.
    Granted {
        /// The process's name for it.
        request: u64,
        /// The number of the grant.
        grant: u64,
        /// What the process has of each inode now. An inode that it asked for and that is not here is not there.
        leases: Vec<(u64, Mode)>,
        /// Inodes of these, and their records: what a process reads first of each.
        inodes: Vec<(u64, Vec<u8>)>,
    },
    /// A request is refused.
    Refused {
        /// The process's name for it.
        request: u64,
        /// Why, as Linux calls it.
        errno: i32,
    },
    /// A lease is to be given back.
    Revoke {
        /// The inode.
        inode: u64,
        /// A shared lease may be kept.
        may_share: bool,
    },
    /// Records that were asked for.
    Records {
        /// The process's name for the request.
        request: u64,
        /// All there are of numbers below.
        until: u64,
        /// Numbers, and values.
        records: Vec<(u64, Vec<u8>)>,
    },
    /// Blocks that were asked for.
    Blocks {
        /// The process's name for the request.
        request: u64,
        /// What they have.
        data: Vec<u8>,
    },
    /// The log was digested, or the room is another.
    Digested(Digested),
    /// The log is closed.
    Closed(Closed),
    /// A descriptor that was asked for. The packet carries it.
    Descriptor {
        /// The process's name for the request.
        request: u64,
    },
    /// A request is refused, as many want this inode: the call is to be made by the mount.
    Crowded {
        /// The process's name for the request.
        request: u64,
        /// The inode.
        inode: u64,
    },
}

/// Why a log is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Closed {
    /// The daemon ends.
    Ends = 1,
    /// A lease was not given back in time.
    Silent = 2,
    /// The log is not what the process has said.
    Lied = 3,
    /// There is no room for one more process.
    Full = 4,
    /// The files can be read only, or the devices cannot have logs of processes.
    Unable = 5,
}

struct Emit(Vec<u8>);

impl Emit {
    fn new(kind: u8) -> Self {
        Self(vec![kind, 0, 0, 0])
    }

    fn u64s(mut self, values: &[u64]) -> Self {
        values.iter().for_each(|value| self.0.extend(value.to_le_bytes()));
        self
    }

    fn leases(mut self, leases: &[(u64, Mode)]) -> Self {
        for (inode, mode) in leases {
            self.0.extend(inode.to_le_bytes());
            self.0.extend(u64::from(*mode == Mode::Exclusive).to_le_bytes());
        }
        self
    }

    fn records(mut self, records: &[(u64, Vec<u8>)]) -> Self {
        for (number, value) in records {
            self = self.u64s(&[*number, value.len() as u64]);
            self.0.extend(value);
        }
        self
    }
}

struct Parse<'a>(&'a [u8]);

impl<'a> Parse<'a> {
    fn new(packet: &'a [u8]) -> Result<(u8, Self), Malformed> {
        match packet {
            [kind, 0, 0, 0, rest @ ..] => Ok((*kind, Self(rest))),
            _ => Err(Malformed),
        }
    }

    fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (front, rest) = self.0.split_at_checked(count).ok_or(Malformed)?;
        self.0 = rest;
        Ok(front)
    }

    fn u64(&mut self) -> Result<u64, Malformed> {
        let bytes = self.bytes(8)?.try_into().expect("there are eight");
        Ok(u64::from_le_bytes(bytes))
    }

    fn range(&mut self) -> Result<Range<u64>, Malformed> {
        let (start, end) = (self.u64()?, self.u64()?);
        (start <= end).then_some(start..end).ok_or(Malformed)
    }

    fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u64()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed),
        }
    }

    fn leases(&mut self) -> Result<Vec<(u64, Mode)>, Malformed> {
        let mut leases = Vec::new();
        while !self.0.is_empty() {
            let (inode, exclusive) = (self.u64()?, self.flag()?);
            let mode = if exclusive { Mode::Exclusive } else { Mode::Shared };
            leases.push((inode, mode));
        }
        (leases.len() <= WANTS_MAX).then_some(leases).ok_or(Malformed)
    }

    /// Up to the end.
    fn records(&mut self) -> Result<Vec<(u64, Vec<u8>)>, Malformed> {
        let mut records = Vec::new();
        while !self.0.is_empty() {
            let (number, bytes) = (self.u64()?, self.u64()?);
            let value = self.bytes(usize::try_from(bytes).map_err(|_| Malformed)?)?;
            records.push((number, value.to_vec()));
        }
        Ok(records)
    }

    fn end<T>(self, value: T) -> Result<T, Malformed> {
        self.0.is_empty().then_some(value).ok_or(Malformed)
    }
}

fn kind_from(number: u64) -> Result<Kind, Malformed> {
    let kinds = [
        Kind::Inode,
        Kind::Entry,
        Kind::Target,
        Kind::Attribute,
        Kind::Extent,
    ];
    let found = kinds.into_iter().find(|kind| *kind as u64 == number);
    found.ok_or(Malformed)
}

impl Request {
    /// The packet.
    pub fn emit(&self) -> Vec<u8> {
        let emit = match self {
            Self::Hello => {
                let [a, b, c, d] = MAGIC;
                let magic = u32::from_le_bytes([a, b, c, d]);
                Emit::new(1).u64s(&[u64::from(magic) | u64::from(VERSION) << 32])
            }
            Self::Ask {
                request,
                wants,
                has_mount,
            } => Emit::new(2)
                .u64s(&[*request, u64::from(*has_mount)])
                .leases(wants),
            Self::Give(given) => Emit::new(3).u64s(&[
                given.inode,
                given.position,
                given.grant,
                u64::from(given.keeps_shared) | u64::from(given.is_open) << 1,
            ]),
            Self::Shut(inode) => Emit::new(4).u64s(&[*inode]),
            Self::Records {
                request,
                inode,
                kind,
                numbers,
            } => Emit::new(5).u64s(&[*request, *inode, *kind as u64, numbers.start, numbers.end]),
            Self::Blocks {
                request,
                inode,
                first,
                count,
            } => Emit::new(6).u64s(&[*request, *inode, *first, *count]),
            Self::Digest => Emit::new(7),
            Self::Descriptor {
                request,
                inode,
                flags,
            } => Emit::new(8).u64s(&[*request, *inode, u64::from(*flags)]),
        };
        emit.0
    }

    fn parse_ask(mut parse: Parse<'_>) -> Result<Self, Malformed> {
        let request = parse.u64()?;
        let has_mount = match parse.u64()? {
            flag @ 0..=1 => flag == 1,
            _ => return Err(Malformed),
        };
        let wants = parse.leases()?;
        parse.end(Self::Ask {
            request,
            wants,
            has_mount,
        })
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(packet: &[u8]) -> Result<Self, Malformed> {
        let (kind, mut parse) = Parse::new(packet)?;
        match kind {
            1 => {
                let is_known = Self::Hello.emit() == packet;
                is_known.then_some(Self::Hello).ok_or(Malformed)
            }
            2 => Self::parse_ask(parse),
            3 => {
                let (inode, position, grant) = (parse.u64()?, parse.u64()?, parse.u64()?);
                let flags = parse.u64().and_then(|flags| match flags {
                    0..=3 => Ok(flags),
                    _ => Err(Malformed),
                })?;
                let given = Given {
                    inode,
                    keeps_shared: flags & 1 != 0,
                    position,
                    is_open: flags & 2 != 0,
                    grant,
                };
                parse.end(Self::Give(given))
            }
            4 => {
                let inode = parse.u64()?;
                parse.end(Self::Shut(inode))
            }
            5 => {
                let (request, inode) = (parse.u64()?, parse.u64()?);
                let kind = kind_from(parse.u64()?)?;
                let numbers = parse.range()?;
                parse.end(Self::Records {
                    request,
                    inode,
                    kind,
                    numbers,
                })
            }
            6 => {
                let (request, inode) = (parse.u64()?, parse.u64()?);
                let (first, count) = (parse.u64()?, parse.u64()?);
                let is_sound = (1..=BLOCKS_MAX).contains(&count) && first < u64::MAX - BLOCKS_MAX;
                let blocks = Self::Blocks {
                    request,
                    inode,
                    first,
                    count,
                };
                parse.end(is_sound.then_some(blocks).ok_or(Malformed)?)
            }
            7 => parse.end(Self::Digest),
            8 => {
                let (request, inode) = (parse.u64()?, parse.u64()?);
                let flags = u32::try_from(parse.u64()?).map_err(|_| Malformed)?;
                parse.end(Self::Descriptor {
                    request,
                    inode,
                    flags,
                })
            }
            _ => Err(Malformed),
        }
    }
}

impl Answer {
    /// The packet.
    pub fn emit(&self) -> Vec<u8> {
        let emit = match self {
            Self::Welcome(welcome) => Emit::new(1).u64s(&[
                u64::from(VERSION),
                welcome.mark,
                welcome.log,
                welcome.nonce,
                welcome.ring_bytes,
                u64::from(welcome.sector),
                welcome.numbers.start,
                welcome.numbers.end,
                welcome.latency_ns,
                welcome.bandwidth,
            ]),
            Self::Granted {
                request,
                grant,
                leases,
                inodes,
            } => {
                let count = leases.len() as u64;
                let emit = Emit::new(2).u64s(&[*request, *grant, count]);
                emit.leases(leases).records(inodes)
            }
            Self::Refused { request, errno } => Emit::new(3).u64s(&[*request, *errno as u64]),
            Self::Revoke { inode, may_share } => Emit::new(4).u64s(&[*inode, u64::from(*may_share)]),
            Self::Records {
                request,
                until,
                records,
            } => Emit::new(5).u64s(&[*request, *until]).records(records),
            Self::Blocks { request, data } => {
                let mut emit = Emit::new(6).u64s(&[*request]);
                emit.0.extend(data);
                emit
            }
            Self::Digested(digested) => {
                let budget = digested.budget;
                Emit::new(7).u64s(&[
                    digested.tree,
                    digested.both,
                    digested.refused,
                    digested.blocks.0,
                    digested.blocks.1,
                    budget.growth,
                    budget.deletion,
                    budget.data,
                    u64::from(budget.is_shared),
                    budget.key,
                    budget.held,
                    budget.nodes,
                    budget.generation,
                ])
            }
            Self::Closed(why) => Emit::new(8).u64s(&[*why as u64]),
            Self::Descriptor { request } => Emit::new(9).u64s(&[*request]),
            Self::Crowded { request, inode } => Emit::new(10).u64s(&[*request, *inode]),
        };
        emit.0
    }

    /// Reads a packet.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(packet: &[u8]) -> Result<Self, Malformed> {
        let (kind, mut parse) = Parse::new(packet)?;
        match kind {
            1 => {
                let welcome = Self::welcome(&mut parse)?;
                parse.end(Self::Welcome(welcome))
            }
            2 => {
                let (request, grant, count) = (parse.u64()?, parse.u64()?, parse.u64()?);
                if count > WANTS_MAX as u64 {
                    return Err(Malformed);
                }
                Ok(Self::Granted {
                    request,
                    grant,
                    leases: Parse(parse.bytes(count as usize * LEASE_BYTES)?).leases()?,
                    inodes: parse.records()?,
                })
            }
            3 => {
                let (request, errno) = (parse.u64()?, parse.u64()? as i32);
                parse.end(Self::Refused { request, errno })
            }
            4 => {
                let (inode, may_share) = (parse.u64()?, parse.flag()?);
                parse.end(Self::Revoke { inode, may_share })
            }
            5 => {
                let (request, until) = (parse.u64()?, parse.u64()?);
                Ok(Self::Records {
                    request,
                    until,
                    records: parse.records()?,
                })
            }
            6 => {
                let request = parse.u64()?;
                let data = parse.0.to_vec();
                Ok(Self::Blocks { request, data })
            }
            7 => {
                let digested = Self::digested(&mut parse)?;
                parse.end(Self::Digested(digested))
            }
            8 => {
                let all = [
                    Closed::Ends,
                    Closed::Silent,
                    Closed::Lied,
                    Closed::Full,
                    Closed::Unable,
                ];
                let why = parse.u64()?;
                let why = all.into_iter().find(|one| *one as u64 == why);
                parse.end(Self::Closed(why.ok_or(Malformed)?))
            }
            9 => {
                let request = parse.u64()?;
                parse.end(Self::Descriptor { request })
            }
            10 => {
                let (request, inode) = (parse.u64()?, parse.u64()?);
                parse.end(Self::Crowded { request, inode })
            }
            _ => Err(Malformed),
        }
    }

    fn welcome(parse: &mut Parse<'_>) -> Result<Welcome, Malformed> {
        if parse.u64()? != u64::from(VERSION) {
            return Err(Malformed);
        }
        Ok(Welcome {
            mark: parse.u64()?,
            log: parse.u64()?,
            nonce: parse.u64()?,
            ring_bytes: parse.u64()?,
            sector: u32::try_from(parse.u64()?).map_err(|_| Malformed)?,
            numbers: parse.range()?,
            latency_ns: parse.u64()?,
            bandwidth: parse.u64()?,
        })
    }

    fn digested(parse: &mut Parse<'_>) -> Result<Digested, Malformed> {
        Ok(Digested {
            tree: parse.u64()?,
            both: parse.u64()?,
            refused: parse.u64()?,
            blocks: (parse.u64()?, parse.u64()?),
            budget: Budget {
                growth: parse.u64()?,
                deletion: parse.u64()?,
                data: parse.u64()?,
                is_shared: parse.flag()?,
                key: parse.u64()?,
                held: parse.u64()?,
                nodes: parse.u64()?,
                generation: parse.u64()?,
            },
        })
    }

    /// A refusal.
    pub fn refused(request: u64, errno: Errno) -> Self {
        let errno = errno.code();
        Self::Refused { request, errno }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;

    fn requests() -> Vec<Request> {
        let given = Given {
            inode: 7,
            keeps_shared: true,
            position: 4096,
            is_open: true,
            grant: 9,
        };
        vec![
            Request::Hello,
            Request::Ask {
                request: 5,
                wants: vec![(1, Mode::Shared), (7, Mode::Exclusive)],
                has_mount: true,
            },
            Request::Give(given),
            Request::Shut(7),
            Request::Records {
                request: 6,
                inode: 7,
                kind: Kind::Entry,
                numbers: 256..257,
            },
            Request::Blocks {
                request: 8,
                inode: 7,
                first: 3,
                count: 2,
            },
            Request::Digest,
            Request::Descriptor {
                request: 9,
                inode: 7,
                flags: 0o2001,
            },
        ]
    }

    fn answers() -> Vec<Answer> {
        let welcome = Welcome {
            mark: 1,
            log: 2,
            nonce: 3,
            ring_bytes: 1 << 20,
            sector: 64,
            numbers: 100..200,
            latency_ns: 500,
            bandwidth: 20_000_000_000,
        };
        let budget = Budget {
            growth: 1,
            deletion: 2,
            data: 3,
            is_shared: true,
            key: 4,
            held: 5,
            nodes: 6,
            generation: 7,
        };
        vec![
            Answer::Welcome(welcome),
            Answer::Granted {
                request: 5,
                grant: 9,
                leases: vec![(7, Mode::Exclusive)],
                inodes: vec![(7, vec![1, 2, 3])],
            },
            Answer::refused(5, Errno::Access),
            Answer::Revoke {
                inode: 7,
                may_share: true,
            },
            Answer::Records {
                request: 6,
                until: 257,
                records: vec![(256, vec![1, 2, 3])],
            },
            Answer::Blocks {
                request: 8,
                data: vec![4; 8],
            },
            Answer::Digested(Digested {
                tree: 128,
                both: 64,
                refused: 1,
                budget,
                blocks: (10, 9),
            }),
            Answer::Closed(Closed::Silent),
            Answer::Descriptor { request: 9 },
            Answer::Crowded {
                request: 10,
                inode: 7,
            },
        ]
    }

    #[test]
    fn messages_are_the_golden_ones() {
        let mut text = String::new();
        for packet in requests()
            .iter()
            .map(Request::emit)
            .chain(answers().iter().map(Answer::emit))
        {
            let hex: Vec<String> = packet.iter().map(|byte| format!("{byte:02x}")).collect();
            text.push_str(&hex.concat());
            text.push('\n');
        }
        assert_eq!(text, include_str!("../tests/golden/session-v3.txt"));
    }

    #[test]
    fn messages_are_read_as_they_were_written_and_nothing_else_is() {
        for request in requests() {
            let packet = request.emit();
            assert_eq!(Request::parse(&packet), Ok(request));
            assert_eq!(Request::parse(&packet[..packet.len() - 1]), Err(Malformed));
            let mut long = packet.clone();
            long.push(0);
            assert_eq!(Request::parse(&long), Err(Malformed));
        }
        for answer in answers() {
            assert_eq!(Answer::parse(&answer.emit()), Ok(answer));
        }
    }

    #[test]
    fn no_bytes_make_parsing_panic() {
        let mut rng = Rng::new(4);
        let packets: Vec<Vec<u8>> = requests().iter().map(Request::emit).collect();
        for _ in 0..50_000 {
            let mut packet = packets[rng.below(packets.len() as u64) as usize].clone();
            for _ in 0..1 + rng.below(4) {
                let at = rng.below(packet.len() as u64) as usize;
                packet[at] = rng.below(256) as u8;
            }
            packet.truncate(1 + rng.below(packet.len() as u64) as usize);
            if let Ok(request) = Request::parse(&packet) {
                assert_eq!(request.emit(), packet);
            }
            let _ = Answer::parse(&packet);
        }
    }
}
