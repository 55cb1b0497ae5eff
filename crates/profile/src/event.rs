//! Decoded events of the tracepoints.

use crate::tracefs::format::{Field, Format};

/// An event of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// CLOCK_MONOTONIC, ns.
    pub time_ns: u64,
    /// The thread in whose context it happened; 0 if the CPU was idle. Of completions that is anybody.
    pub thread: u32,
    /// The event.
    pub what: What,
}

/// A block device: the kernel's `dev_t` (major in the upper 12 bits, minor in the lower 20).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Dev(pub u32);

impl Dev {
    /// From its two numbers.
    pub fn new(major: u32, minor: u32) -> Self {
        Self(major << 20 | minor)
    }

    /// The number of its driver.
    pub fn major(self) -> u32 {
        self.0 >> 20
    }

    /// Its number among those of its driver.
    pub fn minor(self) -> u32 {
        self.0 & 0xf_ffff
    }
}

/// Sectors of 512 bytes on a device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Span {
    /// The device.
    pub dev: Dev,
    /// First sector.
    pub sector: u64,
    /// Sectors; 0 for a flush.
    pub sectors: u32,
}

impl Span {
    /// The sector behind the last.
    pub fn end(&self) -> u64 {
        self.sector + u64::from(self.sectors)
    }
}

/// The action of a bio or a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// Reads.
    Read,
    /// Writes.
    Write,
    /// Discards or erases.
    Discard,
    /// Only flushes the device's cache.
    Flush,
    /// Anything else.
    #[default]
    Other,
}

/// The kernel's `rwbs` string (`blk_fill_rwbs`): what is done, and how.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rw {
    /// The action.
    pub action: Action,
    /// The device's cache is flushed first.
    pub preflush: bool,
    /// Durable when done.
    pub fua: bool,
    /// Somebody waits for it.
    pub sync: bool,
    /// Read ahead of need.
    pub ahead: bool,
    /// Metadata.
    pub meta: bool,
}

impl Rw {
    /// Parses the string: `[F](R|W|D|E|F|N)[F][A][S][M]`.
    pub fn parse(rwbs: &[u8]) -> Self {
        let text = rwbs.split(|byte| *byte == 0).next().unwrap_or(&[]);
        let (preflush, text) = match text {
            [b'F', rest @ ..] if !rest.is_empty() => (true, rest),
            text => (false, text),
        };
        let Some((first, flags)) = text.split_first() else {
            return Self::default();
        };
        let action = match first {
            b'R' => Action::Read,
            b'W' => Action::Write,
            b'D' | b'E' => Action::Discard,
            b'F' => Action::Flush,
            _ => Action::Other,
        };
        Self {
            action,
            preflush,
            fua: flags.contains(&b'F'),
            sync: flags.contains(&b'S'),
            ahead: flags.contains(&b'A'),
            meta: flags.contains(&b'M'),
        }
    }
}

/// A thread's name.
pub type Comm = [u8; 16];

/// The event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A thread starts another, of its process or of a new one.
    NewThread {
        /// The new one.
        thread: u32,
    },
    /// A system call begins.
    Enter {
        /// Its number.
        number: u32,
    },
    /// It returns.
    Exit {
        /// Its number.
        number: u32,
        /// Its result: bytes or a negated errno.
        result: i64,
    },
    /// Direct I/O of a file begins below the file system.
    DirectBegin {
        /// Bytes.
        bytes: u64,
        /// Nobody waits in the system call.
        asynchronous: bool,
        /// It goes on with what was begun before, as not all of the memory was there.
        continues: bool,
    },
    /// A file system begins to make a file durable.
    SyncBegin {
        /// The device that the file system is mounted from; some file systems have a number of their own.
        dev: Dev,
    },
    /// io_uring takes a request.
    Submit {
        /// Its identity.
        request: u64,
        /// `IORING_OP_*`.
        opcode: u8,
    },
    /// It goes on in a worker thread.
    Punt {
        /// Its identity.
        request: u64,
    },
    /// Its completion is posted.
    Complete {
        /// Its identity.
        request: u64,
        /// Bytes or a negated errno.
        result: i64,
    },
    /// Q: a bio enters the block layer.
    BioQueue {
        /// Where.
        span: Span,
        /// Read or write.
        rw: Rw,
        /// The thread: it tells the file system's journal from others.
        comm: Comm,
    },
    /// A bio is cut in two at `at`; the rest is submitted by itself.
    BioSplit {
        /// The device.
        dev: Dev,
        /// Start of the bio.
        sector: u64,
        /// Start of the rest.
        at: u64,
    },
    /// A bio joins a request.
    BioMerge(Span),
    /// G: a request is made for a bio.
    GetRequest(Span),
    /// I: a request enters the scheduler.
    Insert(Span, Rw),
    /// D: a request goes to the driver.
    Issue(Span, Rw),
    /// C: (a part of) a request is done.
    Done(Span, Rw),
    /// The driver gave a request back.
    Requeue(Span, Rw),
    /// A bio is done that never became a request: its driver takes bios, or refused it.
    BioDone(Span, Rw),
    /// Of the events until now some are lost.
    Gap,
}

/// The events that this program understands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Kind {
    NewThread,
    SysEnter,
    SysExit,
    DirectBegin,
    SyncBegin,
    UringSubmit,
    UringPunt,
    UringComplete,
    BioQueue,
    BioSplit,
    BackMerge,
    FrontMerge,
    GetRequest,
    Insert,
    Issue,
    Done,
    Requeue,
    BioDone,
}

/// System calls, by the kernel's name.
pub const CALL_EVENTS: &[(Kind, &str)] = &[
    (Kind::SysEnter, "raw_syscalls/sys_enter"),
    (Kind::SysExit, "raw_syscalls/sys_exit"),
];
/// Events of threads between their calls and the devices.
pub const SOFTWARE_EVENTS: &[(Kind, &str)] = &[
    (Kind::NewThread, "task/task_newtask"),
    (Kind::DirectBegin, "iomap/iomap_dio_rw_begin"),
    (Kind::SyncBegin, "ext4/ext4_sync_file_enter"),
    (Kind::SyncBegin, "xfs/xfs_file_fsync"),
    (Kind::UringSubmit, "io_uring/io_uring_submit_req"),
    (Kind::UringPunt, "io_uring/io_uring_queue_async_work"),
    (Kind::UringComplete, "io_uring/io_uring_complete"),
];
/// Events of devices, which happen in anybody's context.
pub const BLOCK_EVENTS: &[(Kind, &str)] = &[
    (Kind::BioQueue, "block/block_bio_queue"),
    (Kind::BioSplit, "block/block_split"),
    (Kind::BackMerge, "block/block_bio_backmerge"),
    (Kind::FrontMerge, "block/block_bio_frontmerge"),
    (Kind::GetRequest, "block/block_getrq"),
    (Kind::Insert, "block/block_rq_insert"),
    (Kind::Issue, "block/block_rq_issue"),
    (Kind::Done, "block/block_rq_complete"),
    (Kind::Requeue, "block/block_rq_requeue"),
    (Kind::BioDone, "block/block_bio_complete"),
];

/// Decodes the records of one kind of event.
#[derive(Clone, Debug)]
pub struct Decoder {
    kind: Kind,
    thread: Field,
    fields: Vec<Field>,
}

impl Decoder {
    /// A decoder for the records that `format` describes, or the name of the field that it lacks.
    pub fn new(kind: Kind, format: &Format) -> Result<Self, &'static str> {
        let names: &[&'static str] = match kind {
            Kind::NewThread => &["pid"],
            Kind::SysEnter => &["id"],
            Kind::SysExit => &["id", "ret"],
            Kind::DirectBegin => &["count", "aio", "done_before"],
            Kind::SyncBegin => &["dev"],
            Kind::UringSubmit => &["req", "opcode"],
            Kind::UringPunt => &["req"],
            Kind::UringComplete => &["req", "res"],
            Kind::BioQueue => &["dev", "sector", "nr_sector", "rwbs", "comm"],
            Kind::BioSplit => &["dev", "sector", "new_sector"],
            Kind::BackMerge | Kind::FrontMerge | Kind::GetRequest => &["dev", "sector", "nr_sector"],
            Kind::Insert | Kind::Issue | Kind::Done | Kind::Requeue | Kind::BioDone => {
                &["dev", "sector", "nr_sector", "rwbs"]
            }
        };
        let field = |name| format.field(name).ok_or(name);
        // Kernels before 5.17 do not tell it.
        let is_needed = |name: &&&str| **name != "done_before" || format.field(name).is_some();
        let names = names.iter().filter(is_needed);
        Ok(Self {
            kind,
            thread: field("common_pid")?,
            fields: names.map(|name| field(name)).collect::<Result<_, _>>()?,
        })
    }

    /// Decodes a record. `None` if it is too short.
    pub fn decode(&self, time_ns: u64, record: &[u8]) -> Option<Event> {
        let number = |index: usize| self.fields[index].read(record);
        let bytes = |index: usize| self.fields[index].bytes(record);
        let span = || {
            Some(Span {
                dev: Dev(number(0)? as u32),
                sector: number(1)?,
                sectors: number(2)? as u32,
            })
        };
        let rw = || Some(Rw::parse(bytes(3)?));
        let what = match self.kind {
            Kind::NewThread => What::NewThread {
                thread: number(0)? as u32,
            },
            Kind::SysEnter => What::Enter {
                number: number(0)? as u32,
            },
            Kind::SysExit => What::Exit {
                number: number(0)? as u32,
                result: number(1)? as i64,
            },
            Kind::DirectBegin => What::DirectBegin {
                bytes: number(0)?,
                asynchronous: number(1)? != 0,
                continues: match self.fields.get(2) {
                    Some(field) => field.read(record)? != 0,
                    None => false,
                },
            },
            Kind::SyncBegin => What::SyncBegin {
                dev: Dev(number(0)? as u32),
            },
            Kind::UringSubmit => What::Submit {
                request: number(0)?,
                opcode: number(1)? as u8,
            },
            Kind::UringPunt => What::Punt { request: number(0)? },
            Kind::UringComplete => What::Complete {
                request: number(0)?,
                result: i64::from(number(1)? as i32),
            },
            Kind::BioQueue => What::BioQueue {
                span: span()?,
                rw: rw()?,
                comm: bytes(4)?.try_into().ok()?,
            },
            Kind::BioSplit => What::BioSplit {
                dev: Dev(number(0)? as u32),
                sector: number(1)?,
                at: number(2)?,
            },
            Kind::BackMerge | Kind::FrontMerge => What::BioMerge(span()?),
            Kind::GetRequest => What::GetRequest(span()?),
            Kind::Insert => What::Insert(span()?, rw()?),
            Kind::Issue => What::Issue(span()?, rw()?),
            Kind::Done => What::Done(span()?, rw()?),
            Kind::Requeue => What::Requeue(span()?, rw()?),
            Kind::BioDone => What::BioDone(span()?, rw()?),
        };
        Some(Event {
            time_ns,
            thread: self.thread.read(record)? as u32,
            what,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rwbs_is_parsed_as_the_kernel_fills_it() {
        let read = Rw::parse(b"RA\0\0\0\0\0\0\0\0");
        assert_eq!((read.action, read.ahead, read.sync), (Action::Read, true, false));
        let flush = Rw::parse(b"FF\0");
        assert_eq!((flush.action, flush.preflush), (Action::Flush, true));
        let commit = Rw::parse(b"FWFSM\0");
        assert_eq!(
            (
                commit.action,
                commit.preflush,
                commit.fua,
                commit.sync,
                commit.meta
            ),
            (Action::Write, true, true, true, true)
        );
        assert!(!Rw::parse(b"WS").fua);
        assert!(Rw::parse(b"WFS").fua);
        assert_eq!(Rw::parse(b"\0").action, Action::Other);
        assert_eq!(Rw::parse(b"F\0").action, Action::Flush);
    }

    #[test]
    fn devices_have_two_numbers() {
        let dev = Dev::new(254, 3);
        assert_eq!((dev.major(), dev.minor(), dev.0), (254, 3, 0x0fe0_0003));
    }
}
