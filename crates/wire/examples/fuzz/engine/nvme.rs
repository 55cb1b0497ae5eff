//! NVMe/TCP conversations: the project's own host makes them, and what it says is damaged on the way.
//!
//! Undamaged conversations are checked to the last byte: every command ends with the status that it deserves, reads
//! bring the stamps of the fuzzed disk. Of damaged ones the session's invariants are checked, that what it says is well
//! framed up to its end, and that every page and every controller comes back.

use super::offer::Offer;
use std::sync::Arc;

use base::limits::{PAGE_BYTES, REQUEST_BYTES_MAX};
use base::{BlockError, BlockOp, BlockReply, BlockRequest, Instant, Page, Pages, Pool, Rng, VolumeId};
use wire::nvme::host::{Data, Host, HostOptions, Sink};
use wire::nvme::proto::{
    Common, Cqe, DISCOVERY_NQN, Fatal, Sqe, Status, admin, cns, feature, log, pdu, property,
};
use wire::nvme::{CloseReason, Session, SessionLimits, Subsystem, Target, TargetOptions};
use wire::{Outgoing, Session as _};

use super::rival::{Rival, reservation};
use super::{DISK_BYTES, POOL_PAGES, Tally, stamp};

/// The fuzzed volume.
const NQN: &str = "nqn.2026-11.io.switchyard:disk";
/// The client number of the fuzzed session.
const CLIENT: u32 = 5;
/// Most commands of a conversation.
const COMMANDS_MAX: u64 = 10;
/// Host's side limit of entries: more than any fuzzed queue has.
const ENTRIES_MAX: usize = 8;

/// State that stays the same between executions.
pub struct Nvme {
    disk: Subsystem,
    host: HostOptions,
    chunk: Vec<u8>,
    /// Everything the session said.
    output: Vec<u8>,
}

impl Default for Nvme {
    fn default() -> Self {
        let disk = Subsystem {
            reservable: true,
            ..Subsystem::new("disk", VolumeId(7), DISK_BYTES, [7; 16])
        };
        Self {
            host: HostOptions::admin(&disk.nqn, "nqn.2026-11.io.switchyard:fuzz"),
            disk,
            chunk: Vec::new(),
            output: Vec::new(),
        }
    }
}

/// A command that the host has under way.
#[derive(Clone, Copy)]
struct Asked {
    /// The status it has to end with.
    expected: Status,
    offset: u64,
    /// Its data is that of the disk.
    stamped: bool,
}

/// The host's data, and what it expects.
struct Mail {
    /// Nothing was damaged: expectations hold.
    strict: bool,
    /// Another host reserves the volume, too.
    rivalled: bool,
    asked: [Option<Asked>; ENTRIES_MAX],
    /// The command that is being submitted.
    fresh: Option<Asked>,
    ended: u64,
    failed: u64,
    /// Of them, for another host's reservation.
    barred: u64,
}

impl Sink for Mail {
    fn data(&mut self, cid: u16, offset: u32, bytes: &[u8]) {
        let Some(asked) = self.asked[usize::from(cid)].filter(|asked| self.strict && asked.stamped) else {
            return;
        };
        for (at, &byte) in bytes.iter().enumerate() {
            let place = asked.offset + u64::from(offset) + at as u64;
            if place % 512 < 8 {
                assert_eq!(byte, stamp(place / 512 * 512)[(place % 512) as usize]);
            }
        }
    }

    fn fill(&mut self, cid: u16, offset: u32, target: &mut [u8]) {
        let asked = self.fresh.or(self.asked[usize::from(cid)]);
        target.fill(0);
        let Some(asked) = asked.filter(|asked| asked.stamped) else {
            return;
        };
        for (index, sector) in target.chunks_exact_mut(512).enumerate() {
            let place = asked.offset + u64::from(offset) + 512 * index as u64;
            sector[..8].copy_from_slice(&stamp(place));
        }
    }

    fn done(&mut self, cid: u16, completion: &Cqe) {
        self.ended += 1;
        self.failed += u64::from(!completion.status.is_success());
        let asked = self.asked[usize::from(cid)].take();
        let status = completion.status.code();
        let is_barred = matches!(status, Status::RESERVATION_CONFLICT | Status::PREEMPTED);
        self.barred += u64::from(is_barred);
        if self.strict {
            let asked = asked.expect("a command under way ends");
            assert!(asked.expected == ANY || status == asked.expected || is_barred && self.rivalled);
        }
    }
}

/// One conversation.
struct Talk<'f> {
    target: Arc<Offer>,
    pool: &'f Pool,
    host: Host,
    session: Session,
    limits: SessionLimits,
    mail: Mail,
    held: Vec<BlockRequest>,
    commands_left: u64,
    rival: Option<Rival>,
    /// Commands are those of an I/O queue.
    io: bool,
    /// What the session says is damaged as well.
    deaf: bool,
}

impl Nvme {
    /// One execution.
    pub fn execute(&mut self, rng: &mut Rng, pool: &Pool, tally: &mut Tally) {
        let limits = SessionLimits {
            in_flight_max: rng.between(2, ENTRIES_MAX as u64) as usize,
            in_flight_bytes_max: rng.between(40, 72) << 10,
            part_bytes: rng.between(1, 2) * PAGE_BYTES as u64,
            pages_reserve: rng.below(4) as usize,
            ..SessionLimits::default()
        };
        let mut target = Target::new(TargetOptions::default());
        target.add(self.disk.clone()).expect("the first volume");
        let target = Offer::new(target);
        let io = rng.chance(0.7);
        let mut options = HostOptions {
            entries: limits.in_flight_max as u16,
            header_digest: rng.chance(0.3),
            data_digest: rng.chance(0.3),
            sq_flow: rng.chance(0.5),
            alignment: if rng.chance(0.9) { 0 } else { rng.below(32) as u8 },
            in_capsule_bytes: [0, 512, 8192][rng.below(3) as usize],
            ..self.host.clone()
        };
        if !io && rng.chance(0.2) {
            options.subsystem_nqn = DISCOVERY_NQN.to_string();
        }
        let mut first = io.then(|| {
            let (session, cntlid) = enable(&target, pool, &limits, &self.host);
            options = options.io(cntlid, 1, limits.in_flight_max as u16);
            session
        });
        let rival = (io && rng.chance(0.3)).then(|| Rival::new(&target, pool, &limits, &self.host));
        let session = Session::new(CLIENT, pool.clone(), limits, target.clone());
        let mut talk = Talk {
            target,
            pool,
            host: Host::new(options),
            session,
            limits,
            mail: Mail {
                strict: rng.chance(0.2),
                rivalled: rival.is_some(),
                asked: [None; ENTRIES_MAX],
                fresh: None,
                ended: 0,
                failed: 0,
                barred: 0,
            },
            held: Vec::new(),
            commands_left: rng.below(COMMANDS_MAX + 1),
            rival,
            io,
            deaf: rng.chance(0.1),
        };
        self.output.clear();
        talk.drive(rng, &mut self.chunk, &mut self.output, tally);
        talk.finish(&self.output, tally);
        if let Some(session) = &mut first {
            session.detach();
        }
        assert_eq!(
            talk.target.borrow().controllers().count(),
            0,
            "no controller is left"
        );
        drop((talk, first));
        assert_eq!(pool.available(), POOL_PAGES, "every page comes back");
    }
}

/// An admin queue with an enabled controller, and the controller's id.
pub(super) fn enable(
    target: &Arc<Offer>,
    pool: &Pool,
    limits: &SessionLimits,
    options: &HostOptions,
) -> (Session, u16) {
    let mut session = Session::new(1, pool.clone(), *limits, target.clone());
    let mut host = Host::new(HostOptions {
        entries: 2,
        ..options.clone()
    });
    let mut mail = Mail {
        strict: false,
        rivalled: false,
        asked: [None; ENTRIES_MAX],
        fresh: None,
        ended: 0,
        failed: 0,
        barred: 0,
    };
    let mut said = Vec::new();
    for round in 0..3 {
        if round == 2 {
            let (sqe, data) = Sqe::set_property(property::CC, 6 << 16 | 4 << 20 | 1);
            host.submit(sqe, data, &mut mail).expect("the host is connected");
        }
        let count = host.outgoing().len();
        assert_eq!(session.receive(Instant::ZERO, host.outgoing()), count);
        host.sent(count);
        said.clear();
        session.transmit(&mut Outgoing::copy(&mut said, usize::MAX));
        session.sent(said.len());
        host.receive(&said, &mut mail);
    }
    assert_eq!((mail.ended, mail.failed), (1, 0));
    (session, host.cntlid())
}

impl Talk<'_> {
    /// Moves bytes in random pieces, answers in random order, until nothing moves.
    fn drive(&mut self, rng: &mut Rng, chunk: &mut Vec<u8>, output: &mut Vec<u8>, tally: &mut Tally) {
        let piece_max = [7, 80, 600, 1 << 20][rng.below(4) as usize];
        let mut now = Instant::from_nanos(1);
        let mut idle = 0;
        let mut rounds = 0;
        chunk.clear();
        while idle < 2 {
            self.speak(rng, idle > 0);
            let before = chunk.len();
            chunk.extend_from_slice(self.host.outgoing());
            self.host.sent(chunk.len() - before);
            if !self.mail.strict && chunk.len() > before && rng.chance(if rounds < 2 { 0.1 } else { 0.3 }) {
                let mut fresh = chunk.split_off(before);
                damage(rng, &mut fresh);
                chunk.append(&mut fresh);
            }
            rounds += 1;
            if idle > 0 {
                // A compare is not done in parts.
                self.session.set_share(u64::MAX);
            } else if rng.chance(0.1) {
                self.session.set_share(rng.between(1, 12) * PAGE_BYTES as u64);
            }
            let piece = chunk.len().min(piece_max.max(chunk.len() / 20));
            let taken = self.session.receive(now, &chunk[..piece]);
            assert!(
                taken == piece || self.session.state().is_blocked,
                "what is not taken waits for room"
            );
            chunk.drain(..taken);
            let asked = self.take_requests();
            self.check_limits();
            let stuck = self.session.state().is_blocked || self.session.state().is_waiting;
            tally.nvme_held_back += u64::from(stuck);
            let calm = stuck || (chunk.is_empty() && self.host.outgoing().is_empty());
            let answered = self.answer_some(rng, calm);
            let said = self.listen(rng, calm, output);
            if let Some(rival) = &mut self.rival {
                rival.act(rng, now);
            }
            if rng.chance(0.01) {
                self.target
                    .borrow_mut()
                    .resize(NQN, DISK_BYTES)
                    .expect("the volume is there");
            }
            if rng.chance(0.02) {
                now = self.session.deadline().unwrap_or(now).max(now);
                self.session.tick(now);
                self.mail.strict &= self.session.closed().is_none();
            }
            let unsaid = self.session.state().pending_bytes > 0 && self.session.closed().is_none();
            let moved = taken > 0 || asked || answered || said || unsaid;
            idle = if moved { 0 } else { idle + 1 };
        }
        let starved = !self.session.state().is_blocked || self.session.closed().is_some();
        assert!(
            starved,
            "a blocked session goes on once everything is answered and sent"
        );
    }

    /// Submits commands, as long as there is room for them.
    fn speak(&mut self, rng: &mut Rng, sure: bool) {
        while self.commands_left > 0 && self.host.has_room() && (sure || rng.chance(0.7)) {
            self.commands_left -= 1;
            let ((sqe, data), asked) = if self.io {
                io_command(rng, self.session.request_bytes_max())
            } else {
                admin_command(rng)
            };
            self.mail.fresh = Some(asked);
            let cid = self.host.submit(sqe, data, &mut self.mail);
            self.mail.fresh = None;
            self.mail.asked[usize::from(cid.expect("there is room"))] = Some(asked);
        }
    }

    fn take_requests(&mut self) -> bool {
        let mut any = false;
        while let Some(request) = self.session.asks().requests.pop_front() {
            check_request(&request, self.session.request_bytes_max());
            self.held.push(request);
            any = true;
        }
        any
    }

    fn check_limits(&self) {
        assert!(self.session.state().in_flight <= self.limits.in_flight_max);
        assert!(self.session.state().in_flight_bytes <= self.limits.in_flight_bytes_max);
    }

    /// Answers requests in random order, all of them if it is `calm`; true if there was one.
    fn answer_some(&mut self, rng: &mut Rng, calm: bool) -> bool {
        let mut any = false;
        while !self.held.is_empty() && (calm || rng.chance(0.5)) {
            let index = rng.below(self.held.len() as u64) as usize;
            let request = self.held.swap_remove(index);
            let fails = !self.mail.strict && rng.chance(0.05);
            let pages = match request.op {
                BlockOp::Read => stamped(self.pool, &request),
                _ => Some(Pages::new()),
            };
            let (client, tag) = (request.client, request.tag);
            drop(request);
            // Without a page for a read the disk cannot answer well: the strict host knows.
            self.mail.strict &= pages.is_some();
            let result = pages.filter(|_| !fails).ok_or(BlockError::Io);
            self.session.complete(BlockReply { client, tag, result });
            any = true;
            self.check_limits();
        }
        any
    }

    /// Takes what the session says to the host; true if it was something.
    fn listen(&mut self, rng: &mut Rng, calm: bool, output: &mut Vec<u8>) -> bool {
        let bytes_max = if calm || rng.chance(0.3) {
            usize::MAX
        } else {
            rng.below(200) as usize
        };
        let start = output.len();
        self.session.transmit(&mut Outgoing::copy(output, bytes_max));
        let count = output.len() - start;
        self.session.sent(count);
        if self.deaf && !self.mail.strict && rng.chance(0.2) {
            let mut noise = output[start..].to_vec();
            damage(rng, &mut noise);
            self.host.receive(&noise, &mut self.mail);
        } else {
            self.host.receive(&output[start..], &mut self.mail);
        }
        count > 0
    }

    /// Nothing moves any more: is everything as it has to be?
    fn finish(&mut self, output: &[u8], tally: &mut Tally) {
        let closed = self.session.closed();
        tally.nvme_ended += self.mail.ended - self.mail.failed;
        tally.nvme_refused += self.mail.failed;
        tally.nvme_barred += self.mail.barred;
        tally.nvme_cut += u64::from(closed.is_some());
        if self.mail.strict {
            assert_eq!((closed, self.host.failed()), (None, None));
            // Event requests may fill the queue.
            let full = !self.host.has_room();
            assert!(full || self.commands_left == 0, "every command was submitted");
            assert_eq!(
                self.host.in_flight(),
                self.waiting_for_events(),
                "every command has ended"
            );
            assert_eq!(
                (
                    self.session.state().in_flight,
                    self.session.state().in_flight_bytes
                ),
                (0, 0)
            );
        }
        let whole = matches!(
            closed,
            None | Some(CloseReason::Fatal(_) | CloseReason::QueueOverrun | CloseReason::Disconnected)
        );
        check_output(output, whole);
        let late = self.session.detach();
        let all = late.is_none_or(|mut late| late.settle(self.held.len()));
        assert!(all, "what the volume has is what is late");
        if let Some(rival) = &mut self.rival {
            rival.end();
        }
    }

    /// Commands that need not end: event requests.
    fn waiting_for_events(&self) -> usize {
        self.mail.asked.iter().flatten().count()
    }
}

/// A command of an I/O queue: mostly valid, and what has to become of it.
fn io_command(rng: &mut Rng, request_bytes_max: u32) -> ((Sqe, Data), Asked) {
    let blocks = if rng.chance(0.5) {
        rng.between(1, 8)
    } else {
        rng.between(1, u64::from(request_bytes_max) / 512)
    };
    let first = rng.below(DISK_BYTES / 512 + 1 - blocks);
    let (offset, length) = (first * 512, blocks as u32 * 512);
    let mut asked = Asked {
        expected: Status::SUCCESS,
        offset,
        stamped: true,
    };
    let (mut sqe, data) = match rng.below(13) {
        0..4 => Sqe::read(offset, length),
        4..7 => Sqe::write(offset, length, rng.chance(0.1)),
        7 => {
            if rng.chance(0.5) {
                asked.stamped = false;
                asked.expected = Status::COMPARE_FAILURE;
            }
            Sqe::compare(offset, length)
        }
        8 => Sqe::flush(),
        9 => Sqe::write_zeroes(offset, length, rng.chance(0.5)),
        10 => {
            asked.stamped = false;
            Sqe::deallocate(rng.between(1, 40) as u8)
        }
        11 => {
            (asked.stamped, asked.expected) = (false, ANY);
            reservation(rng)
        }
        _ => {
            asked.expected = Status::INVALID_FIELD;
            Sqe::read(0, request_bytes_max + 512)
        }
    };
    match rng.below(20) {
        0 => {
            sqe.set_dword(1, 2);
            asked.expected = if asked.expected == ANY {
                ANY
            } else {
                Status::INVALID_NAMESPACE
            };
        }
        1 => {
            sqe.0[0] = 0x84;
            asked.expected = Status::INVALID_OPCODE;
        }
        2 if matches!(sqe.0[0], 1 | 2 | 5 | 8) => {
            sqe.set_qword(10, DISK_BYTES / 512);
            asked.expected = Status::LBA_RANGE;
        }
        _ => {}
    }
    ((sqe, data), asked)
}

/// A command of an admin queue, enabled or not.
fn admin_command(rng: &mut Rng) -> ((Sqe, Data), Asked) {
    let command = match rng.below(12) {
        0 => Sqe::identify(cns::CONTROLLER, 0),
        1 => Sqe::identify(rng.below(32) as u8, rng.below(3) as u32),
        2 => {
            let page = [rng.below(16) as u8, log::RESERVATION][rng.below(2) as usize];
            Sqe::log_page(page, 0, 512, rng.chance(0.5))
        }
        3 => Sqe::log_page(log::DISCOVERY, 0, 2048, rng.chance(0.5)),
        4 => of_namespace(Sqe::get_feature(feature_id(rng))),
        5 => of_namespace(Sqe::set_feature(feature_id(rng), rng.next_u64() as u32)),
        6 => Sqe::set_feature(feature::ASYNC_EVENTS, 1 << 8),
        7 => (Sqe::new(admin::ASYNC_EVENT), Data::None),
        8 => (Sqe::new(admin::KEEP_ALIVE), Data::None),
        9 => Sqe::get_property(property::CAP),
        _ => Sqe::set_property(property::CC, 6 << 16 | 4 << 20 | u32::from(rng.chance(0.9))),
    };
    // Which of these succeed depends on the ones before: their statuses are what the unit tests are for.
    let asked = Asked {
        expected: ANY,
        offset: 0,
        stamped: false,
    };
    (command, asked)
}

/// A feature that there is or not, those of reservations among them.
fn feature_id(rng: &mut Rng) -> u8 {
    let reservations = rng.between(0x80, 0x84) as u8;
    [rng.below(20) as u8, reservations][usize::from(rng.chance(0.2))]
}

fn of_namespace((mut sqe, data): (Sqe, Data)) -> (Sqe, Data) {
    sqe.set_dword(1, 1);
    (sqe, data)
}

/// Not checked.
const ANY: Status = Status(0x7ff);

/// Breaks bytes in one to three ways.
fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    const LIES: [u32; 8] = [0, 1, 71, 72, 4096, 8265, 0x7fff_ffff, u32::MAX];
    for _ in 0..rng.between(1, 3) {
        if bytes.len() < 8 {
            return;
        }
        let count = bytes.len() as u64;
        // Headers are dense at the start; most hits go there.
        let reach = if rng.chance(0.7) { count.min(100) } else { count };
        let at = rng.below(reach - 4) as usize;
        match rng.below(8) {
            0..3 => bytes[at] ^= 1 << rng.below(8),
            3 => bytes[at] = rng.next_u64() as u8,
            4 => bytes[at..at + 4].copy_from_slice(&LIES[rng.below(8) as usize].to_le_bytes()),
            5 => bytes.truncate(at),
            6 => drop(bytes.drain(at..(at + rng.between(1, 60) as usize).min(count as usize))),
            _ => {
                let end = (at + rng.between(1, 200) as usize).min(count as usize);
                let splice = bytes[at..end].to_vec();
                bytes.splice(at..at, splice);
            }
        }
    }
}

/// A request that reaches the volume is valid.
fn check_request(request: &BlockRequest, request_bytes_max: u32) {
    let length = request.range.length();
    let payload = matches!(request.op, BlockOp::Read | BlockOp::Write);
    assert!(request.client == CLIENT && request.volume == VolumeId(7));
    assert!(request.range.offset().is_multiple_of(512) && length.is_multiple_of(512));
    assert!(
        request.range.offset() + length <= DISK_BYTES,
        "nothing outside the volume is asked for"
    );
    assert!((length == 0) == (request.op == BlockOp::Flush));
    assert!(
        length
            <= u64::from(if payload {
                request_bytes_max
            } else {
                REQUEST_BYTES_MAX
            })
    );
    let pages = (request.range.skip() + request.range.length() as usize).div_ceil(PAGE_BYTES);
    let expected = if request.op == BlockOp::Write { pages } else { 0 };
    assert_eq!(request.pages.len(), expected);
    assert!(request.pages.iter().all(Page::is_unique));
}

/// Zeros with stamps, `None` when the pool is empty.
fn stamped(pool: &Pool, request: &BlockRequest) -> Option<Pages> {
    let first = request.range.offset() / PAGE_BYTES as u64;
    let last = request.range.end().div_ceil(PAGE_BYTES as u64);
    let mut pages = Pages::new();
    for page in first..last {
        let target = pool.alloc_zeroed()?;
        target.with_mut(|bytes| {
            for sector in 0..8 {
                let offset = page * PAGE_BYTES as u64 + sector * 512;
                bytes[sector as usize * 512..][..8].copy_from_slice(&stamp(offset));
            }
        });
        pages.push(target);
    }
    Some(pages)
}

/// What a session said is a sequence of its PDUs with right digests; a termination request ends it. It ends with a
/// whole PDU if it has to.
fn check_output(output: &[u8], whole: bool) {
    let mut rest = output;
    let mut digests = (false, false);
    let mut ended = false;
    while rest.len() >= 8 {
        assert!(!ended, "nothing is said after a termination");
        let common = Common::parse(rest);
        let total = common.total_bytes as usize;
        if rest.len() < total {
            break;
        }
        let (this, next) = rest.split_at(total);
        rest = next;
        let header_bytes = usize::from(common.header_bytes);
        let mut lead = header_bytes;
        match common.kind {
            pdu::IC_RESP => {
                assert_eq!(total, 128);
                digests = (this[11] & 1 != 0, this[11] & 2 != 0);
                continue;
            }
            pdu::C2H_TERM => {
                assert!((24..=152).contains(&total) && common.flags == 0);
                let status = u16::from_le_bytes([this[8], this[9]]);
                assert!(Fatal::from_u16(status).is_some());
                ended = true;
                continue;
            }
            pdu::RESPONSE | pdu::R2T | pdu::C2H_DATA => assert_eq!(header_bytes, 24),
            kind => panic!("a target does not say {kind}"),
        }
        assert_eq!(common.flags & 1 != 0, digests.0);
        if digests.0 {
            let crc = crc32c::crc32c(&this[..header_bytes]).to_le_bytes();
            assert_eq!(this[header_bytes..header_bytes + 4], crc);
            lead += 4;
        }
        if common.kind != pdu::C2H_DATA {
            assert_eq!(total, lead);
            continue;
        }
        let place = usize::from(common.data_offset);
        let end = total - if digests.1 { 4 } else { 0 };
        assert!(place >= lead && place < end);
        let length = u32::from_le_bytes([this[16], this[17], this[18], this[19]]);
        assert_eq!(length as usize, end - place);
        if digests.1 {
            assert_eq!(this[end..], crc32c::crc32c(&this[place..end]).to_le_bytes());
        }
    }
    assert!(rest.is_empty() || !whole, "the last PDU is whole");
}
