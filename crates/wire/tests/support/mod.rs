//! The client's side of NBD for tests and for the fuzzer: builders of what a client says, a parser of what it hears,
//! and a server made of a session and a disk in memory.
#![allow(dead_code, reason = "each user of this module needs a part of it")]

use base::limits::PAGE_BYTES;
use base::{BlockError, BlockOp, BlockReply, BlockRequest, Extent, Instant, Pages, Pool, VolumeId};
use wire::nbd::Session;
use wire::nbd::proto::{self, RequestHeader};
use wire::{Export, Limits, Opening, Outgoing, Session as _};

/// Handshake flags that every client of today sends.
pub const MODERN: u32 = proto::handshake_flags::ALL as u32;
/// Bytes of the server's greeting.
pub const GREETING_BYTES: usize = 18;

/// An option with its data.
pub fn option(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = proto::OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(option.to_be_bytes());
    bytes.extend((data.len() as u32).to_be_bytes());
    bytes.extend(data);
    bytes
}

/// Data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
pub fn info_data(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut bytes = counted(name);
    bytes.extend((wanted.len() as u16).to_be_bytes());
    bytes.extend(wanted.iter().flat_map(|kind| kind.to_be_bytes()));
    bytes
}

/// Data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
pub fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut bytes = counted(name);
    bytes.extend((queries.len() as u32).to_be_bytes());
    bytes.extend(queries.iter().flat_map(|query| counted(query)));
    bytes
}

fn counted(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

/// A request without its payload.
pub fn request(flags: u16, command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    header(false, flags, command, cookie, offset, u64::from(length))
}

/// The same with an extended header.
pub fn extended(flags: u16, command: u16, cookie: u64, offset: u64, length: u64) -> Vec<u8> {
    header(true, flags, command, cookie, offset, length)
}

fn header(extended: bool, flags: u16, command: u16, cookie: u64, offset: u64, length: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    let header = RequestHeader {
        flags,
        command,
        cookie,
        offset,
        length,
        has_payload: command == proto::command::WRITE,
    };
    header.emit(extended, &mut bytes);
    bytes
}

/// A write with its payload.
pub fn write(flags: u16, cookie: u64, offset: u64, data: &[u8]) -> Vec<u8> {
    let mut bytes = request(flags, proto::command::WRITE, cookie, offset, data.len() as u32);
    bytes.extend(data);
    bytes
}

/// One reply to an option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OptionReply {
    pub option: u32,
    pub kind: u32,
    pub data: Vec<u8>,
}

/// One reply, or chunk of a reply, to a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    Simple {
        cookie: u64,
        error: u32,
    },
    Chunk {
        cookie: u64,
        flags: u16,
        kind: u16,
        data: Vec<u8>,
    },
    /// A chunk with an extended header.
    Extended {
        cookie: u64,
        offset: u64,
        flags: u16,
        kind: u16,
        data: Vec<u8>,
    },
}

fn take<'a>(bytes: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    bytes.split_off(..count)
}

fn number(bytes: &mut &[u8], count: usize) -> Option<u64> {
    Some(
        take(bytes, count)?
            .iter()
            .fold(0, |sum, &byte| sum << 8 | u64::from(byte)),
    )
}

/// Takes a reply to an option off the front; `None` if it is not whole or not one.
pub fn parse_option_reply(bytes: &mut &[u8]) -> Option<OptionReply> {
    let mut rest = *bytes;
    if number(&mut rest, 8)? != proto::OPTION_REPLY_MAGIC {
        return None;
    }
    let (option, kind) = (number(&mut rest, 4)? as u32, number(&mut rest, 4)? as u32);
    let length = number(&mut rest, 4)? as usize;
    let data = take(&mut rest, length)?.to_vec();
    *bytes = rest;
    Some(OptionReply { option, kind, data })
}

/// Takes a reply off the front, without the data of a simple one; `None` if it is not whole or not one.
pub fn parse_reply(bytes: &mut &[u8]) -> Option<Reply> {
    let mut rest = *bytes;
    let reply = match number(&mut rest, 4)? as u32 {
        proto::SIMPLE_REPLY_MAGIC => {
            let error = number(&mut rest, 4)? as u32;
            Reply::Simple {
                error,
                cookie: number(&mut rest, 8)?,
            }
        }
        proto::STRUCTURED_REPLY_MAGIC => {
            let (flags, kind) = (number(&mut rest, 2)? as u16, number(&mut rest, 2)? as u16);
            let cookie = number(&mut rest, 8)?;
            let length = number(&mut rest, 4)? as usize;
            Reply::Chunk {
                cookie,
                flags,
                kind,
                data: take(&mut rest, length)?.to_vec(),
            }
        }
        proto::EXTENDED_REPLY_MAGIC => {
            let (flags, kind) = (number(&mut rest, 2)? as u16, number(&mut rest, 2)? as u16);
            let (cookie, offset) = (number(&mut rest, 8)?, number(&mut rest, 8)?);
            let length = number(&mut rest, 8)? as usize;
            Reply::Extended {
                cookie,
                offset,
                flags,
                kind,
                data: take(&mut rest, length)?.to_vec(),
            }
        }
        _ => return None,
    };
    *bytes = rest;
    Some(reply)
}

/// A session with a disk in memory behind it.
pub struct Server {
    pub session: Session,
    pub pool: Pool,
    pub disk: Vec<u8>,
    /// Everything sent so far.
    pub out: Vec<u8>,
    /// Requests that wait for [`Server::answer`], if `hold` is set.
    pub held: Vec<BlockRequest>,
    pub hold: bool,
    /// Answer every request with this.
    pub fail: Option<BlockError>,
    /// Requests seen: operation, offset, length, fua.
    pub seen: Vec<(BlockOp, u64, u32, bool)>,
}

/// Exports of the tests: a disk, a read-only view of it, and a huge one that nothing reads.
pub fn exports(disk_bytes: u64) -> Vec<Export> {
    let export = |name: &str, size_bytes, read_only| Export {
        name: name.to_string(),
        description: format!("the volume {name}"),
        volume: VolumeId(if name == "huge" { 9 } else { 7 }),
        size_bytes,
        read_only,
    };
    vec![
        export("disk", disk_bytes, false),
        export("view", disk_bytes, true),
        export("huge", 1 << 40, false),
    ]
}

impl Server {
    pub fn new(limits: Limits) -> Self {
        let pool = Pool::new(64, 512);
        let disk: Vec<u8> = (0..1u32 << 17).map(|at| (at / 512 * 7 + at) as u8).collect();
        Self {
            session: Session::new(Opening {
                client: 3,
                pool: pool.clone(),
                limits,
                via: None,
                now: Instant::ZERO,
                exports: exports(disk.len() as u64),
            }),
            pool,
            disk,
            out: Vec::new(),
            held: Vec::new(),
            hold: false,
            fail: None,
            seen: Vec::new(),
        }
    }

    /// Feeds bytes, lets the disk answer and sends everything, until nothing moves; returns what was not taken.
    pub fn feed<'b>(&mut self, bytes: &'b [u8]) -> &'b [u8] {
        let mut rest = bytes;
        loop {
            let taken = self.session.receive(Instant::ZERO, rest);
            rest = &rest[taken..];
            let moved = self.serve() | self.send(usize::MAX);
            if taken == 0 && !moved {
                return rest;
            }
        }
    }

    /// Takes every event; true if there was one.
    fn serve(&mut self) -> bool {
        let mut any = false;
        while let Some(request) = self.session.asks().requests.pop_front() {
            any = true;
            self.seen.push((
                request.op,
                request.range.offset(),
                request.range.length() as u32,
                request.fua,
            ));
            if self.hold {
                self.held.push(request);
            } else {
                self.answer(request);
            }
        }
        any
    }

    /// Carries a request out on the disk and completes it.
    pub fn answer(&mut self, request: BlockRequest) {
        let result = match self.fail {
            Some(error) => Err(error),
            None => Ok(self.carry_out(&request)),
        };
        let (client, tag) = (request.client, request.tag);
        drop(request);
        self.session.complete(BlockReply { client, tag, result });
    }

    fn carry_out(&mut self, request: &BlockRequest) -> Pages {
        let (start, length) = (request.range.offset() as usize, request.range.length() as usize);
        let first = start / PAGE_BYTES;
        let mut pages = Pages::new();
        match request.op {
            BlockOp::Read => {
                for page in first..(start + length).div_ceil(PAGE_BYTES) {
                    let target = self.pool.alloc_zeroed().expect("the pool is large enough");
                    target.with_mut(|bytes| {
                        bytes.copy_from_slice(&self.disk[page * PAGE_BYTES..][..PAGE_BYTES])
                    });
                    pages.push(target);
                }
            }
            BlockOp::Write => {
                for at in (start..start + length).step_by(512) {
                    let page = &request.pages[at / PAGE_BYTES - first];
                    page.with(|bytes| {
                        self.disk[at..at + 512].copy_from_slice(&bytes[at % PAGE_BYTES..][..512])
                    });
                }
            }
            BlockOp::Trim | BlockOp::WriteZeroes => {
                if request.volume == VolumeId(7) {
                    self.disk[start..start + length].fill(0);
                }
            }
            BlockOp::Status => {
                let sectors = |at: u64, left: u64| {
                    let zero = |at: u64| self.disk[at as usize..][..512].iter().all(|&byte| byte == 0);
                    let is_hole = zero(at);
                    let same = (at..at + left).step_by(512).take_while(|&at| zero(at) == is_hole);
                    let length = same.count() as u64 * 512;
                    Some(Extent { length, is_hole })
                };
                let huge = |_, left| Some(Extent::hole(left));
                if request.volume == VolumeId(7) {
                    Extent::fill(&request.pages[0], request.range, sectors);
                } else {
                    Extent::fill(&request.pages[0], request.range, huge);
                }
                pages = request.pages.clone();
            }
            BlockOp::Flush => {}
        }
        pages
    }

    /// Sends at most `bytes_max` bytes; true if something was sent.
    pub fn send(&mut self, bytes_max: usize) -> bool {
        let mut bytes = Vec::new();
        self.session.transmit(&mut Outgoing::copy(&mut bytes, bytes_max));
        self.session.sent(bytes.len());
        self.out.extend(&bytes);
        !bytes.is_empty()
    }

    /// Bytes sent since the last call.
    pub fn heard(&mut self) -> Vec<u8> {
        core::mem::take(&mut self.out)
    }

    /// Feeds an option and returns the replies to it.
    pub fn ask(&mut self, number: u32, data: &[u8]) -> Vec<OptionReply> {
        assert!(self.feed(&option(number, data)).is_empty());
        let heard = self.heard();
        let mut rest = &heard[..];
        let replies: Vec<_> = core::iter::from_fn(|| parse_option_reply(&mut rest)).collect();
        assert!(rest.is_empty() && replies.iter().all(|reply| reply.option == number));
        replies
    }

    /// Feeds bytes and returns the replies, none of which is a simple reply with data.
    pub fn tell(&mut self, bytes: &[u8]) -> Vec<Reply> {
        assert!(self.feed(bytes).is_empty());
        self.replies()
    }

    /// The replies sent since the last call.
    pub fn replies(&mut self) -> Vec<Reply> {
        let heard = self.heard();
        let mut rest = &heard[..];
        let replies = core::iter::from_fn(|| parse_reply(&mut rest)).collect();
        assert!(rest.is_empty());
        replies
    }

    /// Past the flags of a client of today.
    pub fn greeted(limits: Limits) -> Self {
        let mut server = Self::new(limits);
        server.feed(&MODERN.to_be_bytes());
        assert_eq!(server.heard().len(), GREETING_BYTES);
        server
    }

    /// In the transmission phase on `name`, with structured replies and `base:allocation` if asked for.
    pub fn started(name: &str, structured: bool) -> Self {
        Self::started_after(name, structured.then_some(proto::option::STRUCTURED_REPLY))
    }

    /// In the transmission phase on `name`, with `base:allocation` if an option for longer replies was agreed on.
    pub fn started_after(name: &str, form: Option<u32>) -> Self {
        let mut server = Self::greeted(limits());
        if let Some(form) = form {
            server.ask(form, &[]);
            server.ask(
                proto::option::SET_META_CONTEXT,
                &meta_data(name, &["base:allocation"]),
            );
        }
        let replies = server.ask(proto::option::GO, &info_data(name, &[]));
        assert_eq!(
            replies.last().map(|reply| reply.kind),
            Some(proto::option_reply::ACK)
        );
        server
    }
}

/// Limits of the tests: 16 requests, 64 KiB, one page left to others.
pub fn limits() -> Limits {
    Limits {
        requests_max: 16,
        queue_entries: 16,
        bytes_max: 64 << 10,
        part_bytes: 4 << 10,
        pages_reserve: 1,
    }
}
