//! The transmission phase: requests, their checks, and their answers (proto.md "Transmission phase").

use core::ops::Range;

use base::limits::{PAGE_BYTES, REQUEST_BYTES_MAX};
use base::{BadRange, BlockError, BlockOp, BlockReply, BlockRequest, Page, Pages, Pool, SectorRange};

use super::input::{Asked, CloseReason, Flow, Form, Gather, Opened};
use super::output::{Output, Place, Reply};
use super::proto::{EXTENDED_REQUEST_BYTES, Errno, RequestHeader, command, command_flags as flag};
use crate::ledger::Ledger;
use crate::segment::{copy_in, visit_places};
use crate::session::Limits;

/// A request under way.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    asked: Asked,
    kind: Kind,
    /// The client's range; of trims and zeroes, the part that the volume has not been asked about.
    range: SectorRange,
    fua: bool,
    /// It is a part of [`Transmission::parted`].
    is_part: bool,
}

/// A read or a write that is done in parts. No other request is taken meanwhile.
#[derive(Debug)]
struct Parted {
    asked: Asked,
    kind: Kind,
    fua: bool,
    /// Bytes of which no part has begun.
    rest: SectorRange,
    /// There was no share for a longer part.
    is_short: bool,
    /// Parts under way.
    parts: u32,
    /// The first part of a read is answered.
    is_answering: bool,
    /// A part failed: no more are begun.
    errno: Option<Errno>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Read,
    Write,
    Flush,
    Trim,
    WriteZeroes,
    Status {
        /// One extent was asked for.
        one: bool,
    },
}

/// A write whose payload is being received.
#[derive(Debug)]
struct WritePayload {
    request: BlockRequest,
    filled: usize,
}

impl Kind {
    const fn op(self) -> BlockOp {
        match self {
            Self::Read => BlockOp::Read,
            Self::Write => BlockOp::Write,
            Self::Flush => BlockOp::Flush,
            Self::Trim => BlockOp::Trim,
            Self::WriteZeroes => BlockOp::WriteZeroes,
            Self::Status { .. } => BlockOp::Status,
        }
    }

    const fn has_payload(self) -> bool {
        matches!(self, Self::Read | Self::Write)
    }

    /// Memory that a request for a range holds while it is under way: whole pages, since a page holds one request's data. A
    /// status holds a page for its answer.
    const fn payload_bytes(self, range: &SectorRange) -> u64 {
        match self {
            Self::Read | Self::Write => range.footprint_bytes(),
            Self::Status { .. } => PAGE_BYTES as u64,
            _ => 0,
        }
    }

    /// True if a volume is asked for it part by part.
    const fn is_parted(self) -> bool {
        matches!(self, Self::Trim | Self::WriteZeroes)
    }

    const fn changes_data(self) -> bool {
        matches!(self, Self::Write | Self::Trim | Self::WriteZeroes)
    }
}

/// Meaning of the client's next bytes.
#[derive(Clone, Copy, Debug)]
enum Phase {
    Header,
    /// Payload of `Transmission::write`.
    Payload,
    /// Payload of a request that is already refused.
    Skip {
        asked: Asked,
        errno: Errno,
        left: u32,
    },
}

/// State that moves to another core with its session.
#[derive(Clone, Debug)]
pub(super) struct Terms {
    limits: Limits,
    pool_pages: usize,
    /// Largest request accepted, as announced.
    pub request_bytes_max: u32,
    phase: Phase,
    header: Gather<EXTENDED_REQUEST_BYTES>,
    pub opened: Option<Opened>,
    /// The server stops.
    pub stopping: bool,
}

/// Pages of a longer write are taken as its payload arrives, so much at a time.
const WRITE_PART_BYTES: u64 = 1 << 20;

impl Terms {
    /// The longest part of a write whose pages are taken at once.
    fn write_part_bytes(&self) -> u64 {
        WRITE_PART_BYTES.max(self.limits.part_bytes)
    }

    /// # Panics
    /// If the limits do not admit a single request of one page.
    pub fn new(limits: Limits, pool_pages: usize) -> Self {
        assert!(limits.requests_max > 0 && u32::try_from(limits.requests_max).is_ok());
        let pages = pool_pages.saturating_sub(limits.pages_reserve) as u64;
        // An unaligned request touches one page more than its length says.
        let pool_bytes = pages.saturating_sub(1) * PAGE_BYTES as u64;
        let bytes = pool_bytes.min(limits.bytes_max).min(u64::from(REQUEST_BYTES_MAX));
        let request_bytes_max = bytes as u32 / PAGE_BYTES as u32 * PAGE_BYTES as u32;
        assert!(request_bytes_max > 0, "the limits admit a request of one page");
        Self {
            limits,
            pool_pages,
            request_bytes_max,
            phase: Phase::Header,
            header: Gather::new(),
            opened: None,
            stopping: false,
        }
    }

    fn opened(&self) -> &Opened {
        let opened = self.opened.as_ref();
        opened.expect("the transmission phase starts with an export")
    }
}

/// The requests of a connection.
pub(super) struct Transmission {
    pub terms: Terms,
    pub ledger: Ledger<Work>,
    /// The write whose payload is being received.
    write: Option<WritePayload>,
    parted: Option<Parted>,
    /// A part was answered since the last step.
    may_go_on: bool,
}

impl Transmission {
    /// # Panics
    /// If the pool is not as large as the terms say.
    pub fn new(terms: Terms, client: u32, pool: Pool) -> Self {
        assert_eq!(pool.capacity(), terms.pool_pages, "pools are of one size");
        Self {
            ledger: Ledger::new(client, pool, terms.limits.requests_max),
            terms,
            write: None,
            parted: None,
            may_go_on: false,
        }
    }

    pub fn requests_max(&self) -> usize {
        self.terms.limits.requests_max
    }

    /// True while the payload of an accepted write is being received: its pages are taken already, so holding the
    /// client back would only keep them longer.
    pub fn is_receiving(&self) -> bool {
        matches!(self.terms.phase, Phase::Payload)
    }

    /// True while a request is done in parts: it ends before anything else begins.
    pub fn is_parted(&self) -> bool {
        self.parted.is_some()
    }

    /// True if the rest of such a request would be done in longer parts with a larger share.
    pub fn is_short(&self) -> bool {
        let parted = self.parted.as_ref();
        parted.is_some_and(|parted| parted.is_short && !parted.rest.is_empty())
    }

    /// True if a step without new bytes may get on with such a request.
    pub fn may_go_on(&self) -> bool {
        self.may_go_on
    }

    /// One step with the bytes at hand: how many it took and how to go on.
    pub fn step(&mut self, bytes: &[u8], output: &mut Output) -> (usize, Flow) {
        self.may_go_on = false;
        match self.terms.phase {
            Phase::Header if self.parted.is_some() => (0, self.go_on(output)),
            Phase::Header => {
                let header_bytes = RequestHeader::bytes(self.terms.opened().form == Form::Extended);
                // A header that is there as a whole is looked at in place.
                if self.terms.header.is_empty()
                    && let Some(header) = bytes.get(..header_bytes)
                {
                    let flow = self.request(header, output);
                    if matches!(flow, Flow::Blocked) {
                        self.terms.header.fill(header, header_bytes);
                    }
                    return (header_bytes, flow);
                }
                let (step, header) = self.terms.header.fill(bytes, header_bytes);
                let Some(header) = header else {
                    return (step, Flow::Starved);
                };
                let flow = self.request(&header, output);
                if !matches!(flow, Flow::Blocked) {
                    self.terms.header.clear();
                }
                (step, flow)
            }
            Phase::Payload => self.payload(bytes),
            Phase::Skip { asked, errno, left } => {
                let step = bytes.len().min(left as usize);
                let left = left - step as u32;
                if left > 0 {
                    self.terms.phase = Phase::Skip { asked, errno, left };
                    return (step, Flow::Starved);
                }
                self.terms.phase = Phase::Header;
                if self.parted.is_none() {
                    output.push(Reply::error(asked, errno, false));
                }
                (step, Flow::Again)
            }
        }
    }

    /// A whole request header.
    fn request(&mut self, header: &[u8], output: &mut Output) -> Flow {
        if self.ledger.len() + output.replies() >= self.terms.limits.requests_max {
            return Flow::Blocked;
        }
        let opened = self.terms.opened();
        let Some(header) = RequestHeader::parse(header, opened.form == Form::Extended) else {
            return Flow::Close(CloseReason::Magic);
        };
        if header.command == command::DISC {
            return Flow::Close(CloseReason::Disconnected);
        }
        let Ok(payload_bytes) = u32::try_from(header.payload_bytes()) else {
            return Flow::Close(CloseReason::Payload);
        };
        let asked = Asked {
            cookie: header.cookie,
            offset: header.offset,
            form: opened.form,
        };
        match self.judge(&header, opened) {
            Ok((kind, range)) => return self.accept(&header, asked, kind, range, output),
            Err(errno) if payload_bytes > 0 => {
                let left = payload_bytes;
                self.terms.phase = Phase::Skip { asked, errno, left };
            }
            Err(errno) => {
                let has_data = matches!(header.command, command::READ | command::BLOCK_STATUS);
                output.push(Reply::error(asked, errno, has_data));
            }
        }
        Flow::Again
    }

    /// A checked request, or the exact error for it (proto.md "Error values"). In this order: shutdown, unknown
    /// command or flag, read-only export, length and alignment, range.
    fn judge(&self, header: &RequestHeader, opened: &Opened) -> Result<(Kind, SectorRange), Errno> {
        if self.terms.stopping {
            return Err(Errno::Shutdown);
        }
        let (kind, flags) = match header.command {
            command::READ => (Kind::Read, if opened.form == Form::Simple { 0 } else { flag::DF }),
            command::WRITE => (Kind::Write, 0),
            command::FLUSH => (Kind::Flush, 0),
            command::TRIM => (Kind::Trim, 0),
            command::WRITE_ZEROES => (Kind::WriteZeroes, flag::NO_HOLE | flag::FAST_ZERO),
            command::BLOCK_STATUS if opened.status => {
                let one = header.flags & flag::REQ_ONE != 0;
                (Kind::Status { one }, flag::REQ_ONE)
            }
            _ => return Err(Errno::Inval),
        };
        let is_write = header.command == command::WRITE;
        if header.flags & !(flags | flag::FUA) != 0 || header.has_payload != is_write {
            return Err(Errno::Inval);
        }
        if kind.changes_data() && opened.read_only {
            return Err(Errno::Perm);
        }
        if kind == Kind::Flush {
            let bare = header.offset == 0 && header.length == 0;
            return bare.then_some((kind, SectorRange::EMPTY)).ok_or(Errno::Inval);
        }
        let length = header.length;
        if kind.has_payload() && length > u64::from(self.terms.request_bytes_max) {
            return Err(Errno::Inval);
        }
        let range = SectorRange::new(header.offset, length, opened.size_bytes);
        let range = range.map_err(|bad| match (bad, kind) {
            (BadRange::Outside, Kind::Write | Kind::WriteZeroes) => Errno::NoSpace,
            _ => Errno::Inval,
        })?;
        // Zeroing whole pages costs no payload; a part of a page is read, changed and written.
        let page = PAGE_BYTES as u64;
        let whole = header.offset.is_multiple_of(page) && length.is_multiple_of(page);
        if header.flags & flag::FAST_ZERO != 0 && !whole {
            return Err(Errno::NotSup);
        }
        Ok((kind, range))
    }

    /// Takes a valid request, if there is room for its payload.
    fn accept(
        &mut self,
        header: &RequestHeader,
        asked: Asked,
        kind: Kind,
        range: SectorRange,
        output: &mut Output,
    ) -> Flow {
        let payload_bytes = kind.payload_bytes(&range);
        let limits = &self.terms.limits;
        let fua = header.flags & flag::FUA != 0 && kind.changes_data();
        let is_long = kind == Kind::Write && range.length() > self.terms.write_part_bytes();
        let is_admitted = self.ledger.admits(payload_bytes, limits.bytes_max, false);
        if is_long || !is_admitted && self.ledger.share_wanted() > 0 && self.can_part(header, kind, range) {
            self.parted = Some(Parted {
                asked,
                kind,
                fua,
                rest: range,
                is_short: false,
                parts: 0,
                is_answering: false,
                errno: None,
            });
            return match self.go_on(output) {
                // The header is taken: what waits for room is the first part.
                Flow::Blocked => Flow::Again,
                flow => flow,
            };
        }
        if !is_admitted {
            return Flow::Blocked;
        }
        let work = Work {
            asked,
            kind,
            range,
            fua,
            is_part: false,
        };
        if kind == Kind::Write {
            let Some(pages) = self.ledger.take_pages(range, limits.pages_reserve) else {
                return Flow::Blocked;
            };
            let request = self.part(work, pages);
            self.terms.phase = Phase::Payload;
            self.write = Some(WritePayload { request, filled: 0 });
        } else if matches!(kind, Kind::Status { .. }) {
            let Some(page) = self.ledger.take_page(limits.pages_reserve) else {
                return Flow::Blocked;
            };
            let request = self.part(work, Pages::from_buf([page]));
            self.ledger.requests.push_back(request);
        } else {
            let request = self.part(work, Pages::new());
            self.ledger.requests.push_back(request);
        }
        self.ledger.bytes += payload_bytes;
        Flow::Again
    }

    /// True if a request without room for its whole payload may be done in parts. An answer that may not be cut cannot; nor
    /// can a simple reply while others may come between its parts.
    fn can_part(&self, header: &RequestHeader, kind: Kind, range: SectorRange) -> bool {
        let is_longer = range.footprint_bytes() > self.terms.limits.part_bytes;
        is_longer
            && match kind {
                Kind::Write => true,
                Kind::Read if self.terms.opened().form != Form::Simple => header.flags & flag::DF == 0,
                Kind::Read => self.ledger.len() == 0,
                _ => false,
            }
    }

    /// Gets on with the request that is done in parts.
    fn go_on(&mut self, output: &mut Output) -> Flow {
        let (limits, ledger) = (self.terms.limits, &mut self.ledger);
        let parted = self.parted.as_mut().expect("a request is done in parts");
        if let Some(errno) = parted.errno {
            if parted.kind == Kind::Read {
                return Flow::Close(CloseReason::ReadFailed);
            }
            if !parted.rest.is_empty() {
                self.terms.phase = Phase::Skip {
                    asked: parted.asked,
                    errno,
                    left: parted.rest.length() as u32,
                };
                parted.rest = SectorRange::EMPTY;
                return Flow::Again;
            }
        }
        if parted.rest.is_empty() {
            if parted.parts > 0 {
                return Flow::Blocked;
            }
            let (asked, errno) = (parted.asked, parted.errno);
            output.push(errno.map_or_else(|| Reply::done(asked), |errno| Reply::error(asked, errno, false)));
            self.parted = None;
            return Flow::Again;
        }
        // The parts of a read are answered in order.
        let is_busy = parted.kind == Kind::Read && parted.parts > 0;
        if is_busy || ledger.len() + output.replies() >= limits.requests_max {
            return Flow::Blocked;
        }
        let longest = match parted.kind {
            Kind::Write => self.terms.write_part_bytes(),
            _ => u64::MAX,
        };
        let mut rest = parted.rest;
        let mut range = rest.take_front(longest);
        parted.is_short = !ledger.admits(range.footprint_bytes(), limits.bytes_max, false);
        if parted.is_short {
            rest = parted.rest;
            range = rest.take_front(limits.part_bytes);
            if !ledger.admits(range.footprint_bytes(), limits.bytes_max, false) {
                return Flow::Blocked;
            }
        }
        let work = Work {
            asked: parted.asked,
            kind: parted.kind,
            range,
            fua: parted.fua,
            is_part: true,
        };
        let mut pages = Pages::new();
        if parted.kind == Kind::Write {
            let Some(taken) = ledger.take_pages(range, limits.pages_reserve) else {
                return Flow::Blocked;
            };
            pages = taken;
        }
        (parted.rest, parted.parts) = (rest, parted.parts + 1);
        let request = self.part(work, pages);
        self.ledger.bytes += range.footprint_bytes();
        if work.kind == Kind::Write {
            self.terms.phase = Phase::Payload;
            self.write = Some(WritePayload { request, filled: 0 });
            return Flow::Again;
        }
        self.ledger.requests.push_back(request);
        Flow::Blocked
    }

    /// A part is answered.
    fn complete_part(&mut self, work: Work, result: Result<Pages, BlockError>, output: &mut Output) {
        let parted = self.parted.as_mut().expect("a request is done in parts");
        self.may_go_on = true;
        parted.parts -= 1;
        match (work.kind, result) {
            (Kind::Read, Ok(pages)) => {
                // Its bytes count until they are sent.
                let is_last = parted.rest.is_empty();
                let place = Place {
                    is_first: !parted.is_answering,
                    is_last,
                };
                parted.is_answering = true;
                output.push(Reply::part(work.asked, work.range, pages, place));
                if is_last {
                    self.parted = None;
                }
                return;
            }
            (Kind::Read, Err(error)) if work.asked.form != Form::Simple || !parted.is_answering => {
                output.push(Reply::error(work.asked, error.into(), true));
                self.parted = None;
            }
            (_, Err(error)) => {
                parted.errno.get_or_insert(error.into());
            }
            (_, Ok(_)) => {}
        }
        self.ledger.bytes -= work.range.footprint_bytes();
    }

    /// The next part of a request for the volume, of which the rest is under way from here on. Trims and zeroes may be longer
    /// than a volume takes: each of their parts ends on a multiple of the largest request.
    #[inline]
    fn part(&mut self, mut work: Work, pages: Pages) -> BlockRequest {
        let (op, fua) = (work.kind.op(), work.fua);
        let range = match work.kind.is_parted() {
            true => work.range.take_part(),
            false => work.range,
        };
        BlockRequest {
            client: self.ledger.client,
            tag: self.ledger.insert(work),
            volume: self.terms.opened().volume,
            op,
            range,
            fua,
            bulk: false,
            pages,
        }
    }

    /// Copies payload into the pages of the write under way; hands it over when it is whole.
    fn payload(&mut self, bytes: &[u8]) -> (usize, Flow) {
        let write = self
            .write
            .as_mut()
            .expect("payload is received in its phase only");
        let request = &mut write.request;
        let length = request.range.length() as usize;
        let step = bytes.len().min(length - write.filled);
        copy_in(
            &mut request.pages,
            request.range.skip() + write.filled,
            &bytes[..step],
        );
        write.filled += step;
        if write.filled < length {
            return (step, Flow::Starved);
        }
        self.terms.phase = Phase::Header;
        if let Some(write) = self.write.take() {
            self.ledger.requests.push_back(write.request);
        }
        (step, Flow::Again)
    }

    /// See [`crate::Session::payload_room`].
    pub fn payload_room(&self, visitor: &mut dyn FnMut(&Page, Range<usize>) -> bool) {
        if let Some(WritePayload { request, filled }) = &self.write {
            let skip = request.range.skip();
            let places = skip + filled..skip + request.range.length() as usize;
            visit_places(&request.pages, places, visitor);
        }
    }

    /// See [`crate::Session::payload_filled`].
    pub fn payload_filled(&mut self, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let write = self.write.as_mut().expect("there was room for payload");
        let left = write.request.range.length() as usize - write.filled;
        assert!(bytes <= left, "no more is filled than there was room for");
        write.filled += bytes;
    }

    /// The volume's answer to a request. If the connection `is_cut`, nothing is sent or asked any more.
    pub fn complete(&mut self, reply: BlockReply, is_cut: bool, output: &mut Output) {
        assert_eq!(
            reply.client, self.ledger.client,
            "a reply goes to its own connection"
        );
        let work = self.ledger.remove(reply.tag);
        if is_cut {
            return;
        }
        if work.is_part {
            return self.complete_part(work, reply.result, output);
        }
        if work.kind.is_parted() && !work.range.is_empty() && reply.result.is_ok() {
            let request = self.part(work, Pages::new());
            return self.ledger.requests.push_back(request);
        }
        let payload_bytes = work.kind.payload_bytes(&work.range);
        output.push(match (work.kind, reply.result) {
            // Its bytes count until they are sent.
            (Kind::Read, Ok(pages)) => Reply::data(work.asked, work.range, pages),
            (Kind::Status { one }, Ok(pages)) => Reply::extents(work.asked, work.range, pages, one),
            (kind, Err(error)) => {
                self.ledger.bytes -= payload_bytes;
                let has_data = matches!(kind, Kind::Read | Kind::Status { .. });
                Reply::error(work.asked, error.into(), has_data)
            }
            (_, Ok(_)) => {
                self.ledger.bytes -= payload_bytes;
                Reply::done(work.asked)
            }
        });
    }
}
