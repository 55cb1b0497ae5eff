//! The transmission phase: requests, their checks, and their answers (proto.md "Transmission phase").

use base::limits::{PAGE_BYTES, REQUEST_BYTES_MAX, SECTOR_BYTES};
use base::{BlockError, BlockOp, BlockReply, BlockRequest, Page, Pages};
use core::ops::Range;

use super::handshake::CONTEXT_ID;
use super::output::{EXTENTS_MAX, Reply};
use super::proto::{Errno, RequestHeader, command, command_flags as flag};
use crate::segment::visit_places;

use super::{CloseReason, Event, Extent, Flow, Opened, Phase, Session, StatusRequest};

/// A place for one request under way.
#[derive(Debug, Default)]
pub(super) struct Slot {
    /// Counts the requests that were here, so that no tag is used twice in a row.
    generation: u32,
    work: Option<Work>,
}

/// A request under way.
#[derive(Clone, Copy, Debug)]
struct Work {
    cookie: u64,
    kind: Kind,
    /// First byte that the gateway has not been asked about; for reads, the first byte of the range.
    offset: u64,
    /// Bytes from there on; long trims and zeroes shrink part by part.
    length: u32,
    fua: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Flush,
    Trim,
    WriteZeroes,
    Status { extents_max: usize },
}

/// A write whose payload is being received.
#[derive(Debug)]
pub(super) struct WritePayload {
    request: BlockRequest,
    filled: u32,
}

impl Kind {
    const fn op(self) -> BlockOp {
        match self {
            Self::Read => BlockOp::Read,
            Self::Write => BlockOp::Write,
            Self::Flush => BlockOp::Flush,
            Self::Trim => BlockOp::Trim,
            Self::WriteZeroes => BlockOp::WriteZeroes,
            Self::Status { .. } => panic!("a status request is not a block request"),
        }
    }

    /// Payload bytes that a request of `length` bytes holds while it is under way.
    const fn payload_bytes(self, length: u32) -> u32 {
        match self {
            Self::Read | Self::Write => length,
            _ => 0,
        }
    }

    const fn changes_data(self) -> bool {
        matches!(self, Self::Write | Self::Trim | Self::WriteZeroes)
    }
}

impl Session {
    /// A whole request header is in `scratch`.
    pub(super) fn request(&mut self) -> Flow {
        if self.in_flight() >= self.limits.in_flight_max {
            return Flow::Blocked;
        }
        let Some(header) = RequestHeader::parse(&self.scratch) else {
            self.close(CloseReason::Magic);
            return Flow::Again;
        };
        let opened = self.opened.expect("the transmission phase starts with an export");
        if header.command == command::DISC {
            self.close(CloseReason::Disconnected);
            return Flow::Again;
        }
        match self.judge(&header, &opened) {
            Ok(kind) => self.accept(&header, kind, &opened),
            Err(errno) if header.command == command::WRITE => {
                self.phase = Phase::PayloadSkip {
                    cookie: header.cookie,
                    errno,
                    left: header.length,
                };
                Flow::Again
            }
            Err(errno) => {
                let needs_chunk = matches!(header.command, command::READ | command::BLOCK_STATUS);
                self.refuse(header.cookie, errno, needs_chunk);
                Flow::Again
            }
        }
    }

    /// A checked request, or the exact error for it (proto.md "Error values"). In this order: shutdown, unknown
    /// command or flag, read-only export, length and alignment, range.
    fn judge(&self, header: &RequestHeader, opened: &Opened) -> Result<Kind, Errno> {
        if self.stopping {
            return Err(Errno::Shutdown);
        }
        let (kind, flags) = match header.command {
            command::READ => (Kind::Read, if self.structured { flag::DF } else { 0 }),
            command::WRITE => (Kind::Write, 0),
            command::FLUSH => (Kind::Flush, 0),
            command::TRIM => (Kind::Trim, 0),
            command::WRITE_ZEROES => (Kind::WriteZeroes, flag::NO_HOLE | flag::FAST_ZERO),
            command::BLOCK_STATUS if opened.status => {
                let one = header.flags & flag::REQ_ONE != 0;
                (
                    Kind::Status {
                        extents_max: if one { 1 } else { EXTENTS_MAX },
                    },
                    flag::REQ_ONE,
                )
            }
            _ => return Err(Errno::Inval),
        };
        if header.flags & !(flags | flag::FUA) != 0 {
            return Err(Errno::Inval);
        }
        if kind.changes_data() && opened.read_only {
            return Err(Errno::Perm);
        }
        if kind == Kind::Flush {
            let bare = header.offset == 0 && header.length == 0;
            return if bare { Ok(kind) } else { Err(Errno::Inval) };
        }
        let sector = SECTOR_BYTES as u64;
        let aligned = header.offset.is_multiple_of(sector) && u64::from(header.length).is_multiple_of(sector);
        let too_long = kind.payload_bytes(header.length) > self.request_bytes_max;
        if header.length == 0 || !aligned || too_long {
            return Err(Errno::Inval);
        }
        if header
            .offset
            .checked_add(u64::from(header.length))
            .is_none_or(|end| end > opened.size_bytes)
        {
            let past_the_end = matches!(kind, Kind::Write | Kind::WriteZeroes);
            return Err(if past_the_end {
                Errno::NoSpace
            } else {
                Errno::Inval
            });
        }
        // Zeroing whole pages costs no payload; a part of a page is read, changed and written.
        let page = PAGE_BYTES as u64;
        let whole = header.offset.is_multiple_of(page) && u64::from(header.length).is_multiple_of(page);
        if header.flags & flag::FAST_ZERO != 0 && !whole {
            return Err(Errno::NotSup);
        }
        Ok(kind)
    }

    /// Takes a valid request, if there is room for its payload.
    fn accept(&mut self, header: &RequestHeader, kind: Kind, opened: &Opened) -> Flow {
        let payload_bytes = u64::from(kind.payload_bytes(header.length));
        let wanted = self.bytes_in_flight + payload_bytes;
        // What has no payload needs no share.
        let is_over = payload_bytes > 0 && wanted > self.share_bytes;
        self.share_wanted = if is_over { wanted } else { 0 };
        if is_over || wanted > self.limits.in_flight_bytes_max {
            return Flow::Blocked;
        }
        let pages = match kind {
            Kind::Write => match self.take_pages(header.offset, header.length) {
                Some(pages) => pages,
                None => return Flow::Blocked,
            },
            _ => Pages::new(),
        };
        if matches!(kind, Kind::Status { .. }) && !self.limits.host_extents {
            let extent = Extent {
                length: header.length,
                flags: 0,
            };
            self.output
                .push(Reply::extents(header.cookie, CONTEXT_ID, &[extent]));
            return Flow::Again;
        }
        self.bytes_in_flight += payload_bytes;
        let tag = self.occupy(Work {
            cookie: header.cookie,
            kind,
            offset: header.offset,
            length: header.length,
            fua: header.flags & flag::FUA != 0 && kind.changes_data(),
        });
        match kind {
            Kind::Write => {
                let request = BlockRequest {
                    client: self.client,
                    tag,
                    volume: opened.volume,
                    op: BlockOp::Write,
                    offset: header.offset,
                    length: header.length,
                    fua: header.flags & flag::FUA != 0,
                    pages,
                };
                self.phase = Phase::Payload;
                self.write = Some(WritePayload { request, filled: 0 });
            }
            Kind::Status { extents_max } => self.events.push_back(Event::Status(StatusRequest {
                client: self.client,
                tag,
                volume: opened.volume,
                offset: header.offset,
                length: header.length,
                extents_max,
            })),
            _ => self.ask(tag),
        }
        Flow::Again
    }

    /// Every page that a write touches, or none.
    fn take_pages(&self, offset: u64, length: u32) -> Option<Pages> {
        let skip = (offset % PAGE_BYTES as u64) as usize;
        let count = (skip + length as usize).div_ceil(PAGE_BYTES);
        if self.pool.available() < count + self.limits.pages_reserve {
            return None;
        }
        let mut pages = Pages::with_capacity(count);
        pages.extend((0..count).map(|_| self.pool.alloc().expect("enough pages are available")));
        Some(pages)
    }

    /// Queues the next part of a request for the gateway. Trims and zeroes may be longer than the gateway takes: they
    /// are asked for part by part, each ending on a multiple of the largest request.
    fn ask(&mut self, tag: u64) {
        let volume = self.opened.expect("a request belongs to an export").volume;
        let client = self.client;
        let work = self.work_mut(tag);
        let (offset, length) = (work.offset, work.length);
        let (op, fua) = (work.kind.op(), work.fua);
        let part_max = u64::from(REQUEST_BYTES_MAX) - offset % u64::from(REQUEST_BYTES_MAX);
        let part = match op {
            BlockOp::Trim | BlockOp::WriteZeroes => u64::from(length).min(part_max) as u32,
            _ => length,
        };
        if matches!(op, BlockOp::Trim | BlockOp::WriteZeroes) {
            work.offset += u64::from(part);
            work.length -= part;
        }
        let pages = Pages::new();
        let request = BlockRequest {
            client,
            tag,
            volume,
            op,
            offset,
            length: part,
            fua,
            pages,
        };
        self.events.push_back(Event::Request(request));
    }

    /// Copies payload into the pages of the write under way; hands it over when it is whole.
    pub(super) fn payload(&mut self, bytes: &[u8]) -> (usize, Flow) {
        let write = self
            .write
            .as_mut()
            .expect("payload is received in its phase only");
        let request = &mut write.request;
        let step = bytes.len().min((request.length - write.filled) as usize);
        let skip = (request.offset % PAGE_BYTES as u64) as usize;
        let mut from = &bytes[..step];
        while !from.is_empty() {
            let at = skip + write.filled as usize;
            let place = at % PAGE_BYTES;
            let count = from.len().min(PAGE_BYTES - place);
            let (head, rest) = from.split_at(count);
            request.pages[at / PAGE_BYTES].with_mut(|page| page[place..place + count].copy_from_slice(head));
            write.filled += count as u32;
            from = rest;
        }
        if write.filled < request.length {
            return (step, Flow::Starved);
        }
        self.phase = Phase::RequestHeader;
        let write = self.write.take().map(|write| Event::Request(write.request));
        self.events.extend(write);
        (step, Flow::Again)
    }

    /// Shows where the next bytes of the stream go, in order, to `visitor` until it returns false: places in pages that
    /// nobody else holds, for a world that reads its socket straight into them. Nothing is shown unless the payload of a
    /// write comes next, and nothing beyond it.
    pub fn payload_room(&self, visitor: &mut dyn FnMut(&Page, Range<usize>) -> bool) {
        if let Some(WritePayload { request, filled }) = &self.write {
            let skip = (request.offset % PAGE_BYTES as u64) as usize;
            let range = skip + *filled as usize..skip + request.length as usize;
            visit_places(&request.pages, range, visitor);
        }
    }

    /// The next `bytes` bytes of the stream are where [`Session::payload_room`] said. Call [`Session::receive`] after it,
    /// with what came behind them, or with nothing.
    ///
    /// # Panics
    /// If there was less room.
    pub fn payload_filled(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let write = self.write.as_mut().expect("there was room for payload");
        let left = (write.request.length - write.filled) as usize;
        assert!(bytes <= left, "no more is filled than there was room for");
        write.filled += bytes as u32;
    }

    /// Drains the payload of a refused write; the error is sent when it is gone.
    pub(super) fn payload_skip(
        &mut self,
        bytes: &[u8],
        cookie: u64,
        errno: Errno,
        left: u32,
    ) -> (usize, Flow) {
        let step = bytes.len().min(left as usize);
        if step < left as usize {
            self.phase = Phase::PayloadSkip {
                cookie,
                errno,
                left: left - step as u32,
            };
            return (step, Flow::Starved);
        }
        self.phase = Phase::RequestHeader;
        self.refuse(cookie, errno, false);
        (step, Flow::Again)
    }

    /// The gateway's answer to a request of this session.
    ///
    /// # Panics
    /// If the tag is not one of a block request under way, or a read's pages are not those of its range.
    pub fn complete(&mut self, reply: BlockReply) {
        assert_eq!(reply.client, self.client, "a reply goes to its own connection");
        let work = *self.work_mut(reply.tag);
        let parted = matches!(work.kind, Kind::Trim | Kind::WriteZeroes) && work.length > 0;
        if parted && reply.result.is_ok() && !self.is_cut() {
            return self.ask(reply.tag);
        }
        self.vacate(reply.tag);
        if self.is_cut() {
            return;
        }
        let payload_bytes = u64::from(work.kind.payload_bytes(work.length));
        match (work.kind, reply.result) {
            (Kind::Status { .. }, _) => panic!("a status request is answered by complete_status"),
            // Its bytes count until they are sent.
            (Kind::Read, Ok(pages)) => {
                let reply = Reply::data(work.cookie, work.offset, work.length, pages, self.structured);
                self.output.push(reply);
            }
            (kind, Err(error)) => {
                self.bytes_in_flight -= payload_bytes;
                self.refuse(work.cookie, error.into(), kind == Kind::Read);
            }
            (_, Ok(_)) => {
                self.bytes_in_flight -= payload_bytes;
                self.output.push(Reply::simple(work.cookie, None));
            }
        }
    }

    /// The gateway's answer to a [`StatusRequest`]: consecutive extents from the request's offset on. Those beyond
    /// the range or beyond what one reply holds are not sent.
    ///
    /// # Panics
    /// If the tag is not one of a status request under way, or no extent is given.
    pub fn complete_status(&mut self, tag: u64, result: Result<&[Extent], BlockError>) {
        let work = *self.work_mut(tag);
        let Kind::Status { extents_max } = work.kind else {
            panic!("a block request is answered by complete");
        };
        self.vacate(tag);
        if self.is_cut() {
            return;
        }
        match result {
            Ok(extents) => {
                let mut kept = [Extent { length: 0, flags: 0 }; EXTENTS_MAX];
                let mut count = 0;
                let mut left = work.length;
                for extent in extents
                    .iter()
                    .take(extents_max)
                    .take_while(|extent| extent.length > 0)
                {
                    if left == 0 {
                        break;
                    }
                    kept[count] = Extent {
                        length: extent.length.min(left),
                        flags: extent.flags,
                    };
                    left -= kept[count].length;
                    count += 1;
                }
                self.output
                    .push(Reply::extents(work.cookie, CONTEXT_ID, &kept[..count]));
            }
            Err(error) => self.refuse(work.cookie, error.into(), true),
        }
    }

    /// An error reply: a chunk where the protocol wants one and structured replies were agreed, else a simple one.
    fn refuse(&mut self, cookie: u64, errno: Errno, needs_chunk: bool) {
        self.output.push(if needs_chunk && self.structured {
            Reply::error_chunk(cookie, errno)
        } else {
            Reply::simple(cookie, Some(errno))
        });
    }

    /// True if the connection ended in disorder: nothing more is sent.
    fn is_cut(&self) -> bool {
        matches!(self.phase, Phase::Closing(reason) if !reason.is_orderly())
    }

    fn occupy(&mut self, work: Work) -> u64 {
        let index = self
            .free
            .pop()
            .expect("requests under way are counted before one is taken");
        let slot = &mut self.slots[index as usize];
        slot.work = Some(work);
        u64::from(slot.generation) << 32 | u64::from(index)
    }

    fn work_mut(&mut self, tag: u64) -> &mut Work {
        let slot = &mut self.slots[tag as u32 as usize];
        assert_eq!(
            u64::from(slot.generation),
            tag >> 32,
            "a request is answered once"
        );
        slot.work
            .as_mut()
            .expect("a reply belongs to a request under way")
    }

    fn vacate(&mut self, tag: u64) {
        let slot = &mut self.slots[tag as u32 as usize];
        slot.work = None;
        slot.generation = slot.generation.wrapping_add(1);
        self.free.push(tag as u32);
    }
}
