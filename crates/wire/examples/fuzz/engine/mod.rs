//! The fuzzing engine: makes valid input, mutates it, runs it, and has the outcome checked.
//!
//! Everything follows from a seed. A third of the executions goes to each of the rack header, the NBD session and the
//! NVMe/TCP session.

mod nvme;
#[path = "../../../tests/nvme_support/offer.rs"]
mod offer;
mod oracle;
mod rack;
mod rival;
#[path = "../../../tests/support/mod.rs"]
mod support;

use base::limits::PAGE_BYTES;
use base::{BlockError, BlockOp, BlockReply, BlockRequest, Extent, Instant, Page, Pages, Pool, Rng};
use support::{extended, info_data, meta_data, option, request};
use wire::nbd::Session;
use wire::nbd::proto::{command, command_flags, info, option as opt};
use wire::{Export, Limits, Opening, Outgoing, Session as _};

/// Bytes of the fuzzed disk.
const DISK_BYTES: u64 = 1 << 20;
/// Pages of the pool: enough for a few large requests, few enough to run out.
const POOL_PAGES: usize = 24;

/// Counts of the executions: all of these grow in a useful run.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    /// Mutated rack headers that were refused.
    pub headers_refused: u64,
    /// Mutated rack headers that still parse.
    pub headers_parsed: u64,
    /// Conversations that never reached the transmission phase.
    pub handshakes: u64,
    /// Conversations that did.
    pub transmissions: u64,
    /// Requests answered with success.
    pub served: u64,
    /// Requests answered with an error.
    pub refused: u64,
    /// Connections cut by the server.
    pub cut: u64,
    /// Times the session pushed back.
    pub blocked: u64,
    /// NVMe commands that ended with success.
    pub nvme_ended: u64,
    /// NVMe commands that were refused, or failed.
    pub nvme_refused: u64,
    /// NVMe connections closed by the target.
    pub nvme_cut: u64,
    /// Times an NVMe session held commands back, or its host.
    pub nvme_held_back: u64,
    /// NVMe commands that another host's reservation barred, or that it aborted.
    pub nvme_barred: u64,
}

/// A run's state.
pub struct Fuzzer {
    pool: Pool,
    exports: Vec<Export>,
    input: Vec<u8>,
    output: Vec<u8>,
    payload: Vec<u8>,
    nvme: nvme::Nvme,
    /// Executions of this format only, if set: 0 for rack headers, 1 for NBD, 2 for NVMe/TCP.
    pub focus: Option<u64>,
    /// Counts so far.
    pub tally: Tally,
}

impl Default for Fuzzer {
    fn default() -> Self {
        Self {
            pool: Pool::new(POOL_PAGES, 512),
            exports: support::exports(DISK_BYTES).into_iter().take(2).collect(),
            input: Vec::new(),
            output: Vec::new(),
            payload: Vec::new(),
            nvme: nvme::Nvme::default(),
            focus: None,
            tally: Tally::default(),
        }
    }
}

/// One conversation's gateway: requests that wait, and what was asked of it.
#[derive(Default)]
struct Gateway {
    held: Vec<BlockRequest>,
    /// Offset, length and CRC32C of every write, in order.
    writes: Vec<(u64, u32, u32)>,
}

/// Says which execution a panic belongs to.
struct Blame(u64);

impl Drop for Blame {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("execution {0} failed: fuzz --only {0}", self.0);
        }
    }
}

impl Fuzzer {
    /// Runs the executions of `seed` with these numbers.
    pub fn run(&mut self, seed: u64, executions: core::ops::Range<u64>) {
        let mut rng = Rng::new(seed ^ executions.start.rotate_left(32));
        for _ in executions {
            let seed = rng.next_u64();
            self.execute(match self.focus {
                Some(format) => (seed >> 2) * 3 + format,
                None => seed,
            });
        }
    }

    /// One execution.
    pub fn execute(&mut self, seed: u64) -> Tally {
        let blame = Blame(seed);
        let mut rng = Rng::new(seed);
        match seed % 3 {
            0 => match rack::execute(&mut rng, &mut self.input) {
                true => self.tally.headers_parsed += 1,
                false => self.tally.headers_refused += 1,
            },
            1 => self.converse(&mut rng),
            _ => self.nvme.execute(&mut rng, &self.pool, &mut self.tally),
        }
        drop(blame);
        self.tally
    }

    /// One conversation with an NBD session.
    fn converse(&mut self, rng: &mut Rng) {
        self.compose(rng);
        if !rng.chance(0.15) {
            mutate(rng, &mut self.input);
        }
        let limits = Limits {
            requests_max: rng.between(1, 6) as usize,
            queue_entries: 0,
            bytes_max: rng.between(1, 8) * PAGE_BYTES as u64,
            part_bytes: rng.between(1, 2) * PAGE_BYTES as u64,
            pages_reserve: rng.below(4) as usize,
        };
        let mut session = Session::new(Opening {
            client: 5,
            pool: self.pool.clone(),
            limits,
            via: None,
            now: Instant::ZERO,
            exports: self.exports.clone(),
        });
        let mut gateway = Gateway::default();
        self.output.clear();
        self.drive(rng, &mut session, &mut gateway, &limits);
        let view = oracle::View {
            input: &self.input,
            output: &self.output,
            exports: &self.exports,
            request_bytes_max: session.request_bytes_max(),
            closed: session.closed(),
            writes: &gateway.writes,
        };
        oracle::check(&view, &mut self.tally);
        drop(session);
        drop(gateway);
        assert_eq!(self.pool.available(), POOL_PAGES, "every page comes back");
    }

    /// A valid conversation, in `input`.
    fn compose(&mut self, rng: &mut Rng) {
        let input = &mut self.input;
        input.clear();
        let flags = if rng.chance(0.9) {
            support::MODERN
        } else {
            rng.below(4) as u32
        };
        input.extend(flags.to_be_bytes());
        let is_extended = rng.chance(0.3);
        if is_extended {
            input.extend(option(opt::EXTENDED_HEADERS, &[]));
        }
        if rng.chance(0.7) {
            input.extend(option(opt::STRUCTURED_REPLY, &[]));
        }
        let name = ["disk", "view", ""][rng.below(3) as usize];
        for _ in 0..rng.below(3) {
            input.extend(match rng.below(6) {
                0 => option(opt::LIST, &[]),
                1 => option(opt::INFO, &info_data(name, &[info::NAME, info::DESCRIPTION])),
                2 => option(opt::LIST_META_CONTEXT, &meta_data(name, &["base:"])),
                3 => option(rng.below(20) as u32, &[0; 7]),
                _ => option(opt::SET_META_CONTEXT, &meta_data(name, &["base:allocation"])),
            });
        }
        if rng.chance(0.9) {
            input.extend(option(opt::GO, &info_data(name, &[info::BLOCK_SIZE])));
        } else {
            input.extend(option(opt::EXPORT_NAME, name.as_bytes()));
        }
        for _ in 0..rng.below(10) {
            compose_request(rng, input, &mut self.payload, is_extended);
        }
        if rng.chance(0.5) {
            input.extend(header(is_extended, 0, command::DISC, 0, 0, 0));
        }
    }

    /// Feeds the input in random pieces, answers in random order and sends random amounts, until nothing moves.
    fn drive(&mut self, rng: &mut Rng, session: &mut Session, gateway: &mut Gateway, limits: &Limits) {
        let piece_max = [1, 7, 40, 600, 1 << 20][rng.below(5) as usize].max(self.input.len() as u64 / 200);
        let mut at = 0;
        let mut idle = 0;
        loop {
            if idle > 0 {
                session.set_share(u64::MAX);
            } else if rng.chance(0.1) {
                session.set_share(rng.between(1, 8) * PAGE_BYTES as u64);
            }
            let end = self.input.len().min(at + rng.between(1, piece_max) as usize);
            let taken = session.receive(Instant::ZERO, &self.input[at..end]);
            assert!(
                taken == end - at || session.state().is_blocked,
                "what is not taken waits for room"
            );
            at += taken;
            while let Some(request) = session.asks().requests.pop_front() {
                gateway.take(request, &self.exports, session.request_bytes_max());
            }
            assert!(session.state().in_flight <= limits.requests_max);
            // The largest request may begin inside a page.
            assert!(session.state().in_flight_bytes <= limits.bytes_max + PAGE_BYTES as u64);
            let stuck = session.state().is_blocked;
            self.tally.blocked += u64::from(stuck);
            let finished = at == self.input.len();
            let waiting = gateway.held.len();
            while !gateway.held.is_empty() && (stuck || finished || rng.chance(0.5)) {
                let request = gateway
                    .held
                    .swap_remove(rng.below(gateway.held.len() as u64) as usize);
                answer(rng, session, &self.pool, request);
            }
            let answered = gateway.held.len() < waiting;
            let bytes_max = if stuck || finished || rng.chance(0.3) {
                u64::MAX
            } else {
                rng.below(100)
            };
            let sent = self.send(session, bytes_max as usize);
            if finished && sent == 0 && gateway.held.is_empty() && !session.state().is_blocked {
                return;
            }
            let moved = taken > 0 || answered || sent > 0;
            idle = if moved { 0 } else { idle + 1 };
            assert!(
                idle < 2,
                "a blocked session goes on once everything is answered and sent"
            );
        }
    }

    fn send(&mut self, session: &mut Session, bytes_max: usize) -> usize {
        let mut outgoing = Outgoing::copy(&mut self.output, bytes_max);
        session.transmit(&mut outgoing);
        let sent = outgoing.bytes();
        session.sent(sent);
        sent
    }
}

/// The header of a request, in the form that is agreed on.
fn header(is_extended: bool, flags: u16, command: u16, cookie: u64, offset: u64, length: u32) -> Vec<u8> {
    if is_extended {
        extended(flags, command, cookie, offset, u64::from(length))
    } else {
        request(flags, command, cookie, offset, length)
    }
}

/// Adds a request, mostly a valid one.
fn compose_request(rng: &mut Rng, input: &mut Vec<u8>, payload: &mut Vec<u8>, is_extended: bool) {
    let request =
        |flags, command, cookie, offset, length| header(is_extended, flags, command, cookie, offset, length);
    let cookie = rng.next_u64();
    let sectors = if rng.chance(0.8) {
        rng.between(1, 3)
    } else {
        rng.between(1, 24)
    };
    let offset = rng.below(DISK_BYTES / 512 + 1 - sectors) * 512;
    let length = sectors as u32 * 512;
    let fua = if rng.chance(0.1) { command_flags::FUA } else { 0 };
    match rng.below(8) {
        0 | 1 => {
            payload.clear();
            payload.resize(length as usize, cookie as u8);
            input.extend(request(fua, command::WRITE, cookie, offset, length));
            input.extend_from_slice(payload);
        }
        2 => input.extend(request(0, command::FLUSH, cookie, 0, 0)),
        3 => input.extend(request(fua, command::TRIM, cookie, offset, length)),
        4 => input.extend(request(
            rng.below(32) as u16,
            command::WRITE_ZEROES,
            cookie,
            offset,
            length,
        )),
        5 => input.extend(request(
            rng.below(2) as u16 * 8,
            command::BLOCK_STATUS,
            cookie,
            offset,
            length,
        )),
        _ => input.extend(request(
            rng.below(2) as u16 * 4,
            command::READ,
            cookie,
            offset,
            length,
        )),
    }
}

/// Breaks the input in one to four ways.
fn mutate(rng: &mut Rng, input: &mut Vec<u8>) {
    const LIES: [u32; 8] = [0, 1, 511, 513, 4096, 16_385, 0x7fff_ffff, u32::MAX];
    for _ in 0..rng.between(1, 4) {
        if input.len() < 8 {
            return;
        }
        let count = input.len() as u64;
        // Headers are dense at the start and small everywhere; half of the hits go there.
        let reach = if rng.chance(0.5) { count.min(200) } else { count };
        let at = rng.below(reach - 4) as usize;
        match rng.below(8) {
            0 | 1 => input[at] ^= 1 << rng.below(8),
            2 => input[at] = rng.next_u64() as u8,
            3 => input[at..at + 4].copy_from_slice(&LIES[rng.below(8) as usize].to_be_bytes()),
            4 => input.truncate(at),
            5 => drop(input.drain(at..(at + rng.between(1, 60) as usize).min(count as usize))),
            6 => {
                let end = (at + rng.between(1, 600) as usize).min(count as usize);
                let splice = input[at..end].to_vec();
                let to = rng.below(count) as usize;
                input.splice(to..to, splice);
            }
            _ => {
                let noise: Vec<u8> = (0..rng.between(1, 40)).map(|_| rng.next_u64() as u8).collect();
                input.splice(at..at, noise);
            }
        }
    }
}

impl Gateway {
    /// Takes a request, which must be valid.
    fn take(&mut self, request: BlockRequest, exports: &[Export], request_bytes_max: u32) {
        check_request(&request, exports, request_bytes_max);
        if request.op == BlockOp::Write {
            let crc = written_crc(&request);
            self.writes
                .push((request.range.offset(), request.range.length() as u32, crc));
        }
        self.held.push(request);
    }
}

fn check_request(request: &BlockRequest, exports: &[Export], request_bytes_max: u32) {
    let length = request.range.length();
    let payload = matches!(request.op, BlockOp::Read | BlockOp::Write);
    assert!(request.client == 5 && request.volume == exports[0].volume);
    assert!(request.range.offset().is_multiple_of(512) && length.is_multiple_of(512));
    assert!(
        request.range.offset() + length <= DISK_BYTES,
        "nothing outside the volume is asked for"
    );
    assert!((length == 0) == (request.op == BlockOp::Flush));
    assert!(!payload || length <= u64::from(request_bytes_max));
    let pages = (request.range.skip() + request.range.length() as usize).div_ceil(PAGE_BYTES);
    let due = match request.op {
        BlockOp::Write => pages,
        BlockOp::Status => 1,
        _ => 0,
    };
    assert_eq!(request.pages.len(), due);
    assert!(request.pages.iter().all(Page::is_unique));
}

fn written_crc(request: &BlockRequest) -> u32 {
    let mut at = request.range.skip();
    let mut left = request.range.length() as usize;
    let mut crc = 0;
    for page in &request.pages {
        let count = left.min(PAGE_BYTES - at);
        crc = page.with(|bytes| crc32c::crc32c_append(crc, &bytes[at..at + count]));
        left -= count;
        at = 0;
    }
    crc
}

/// First bytes of every sector of the fuzzed disk.
fn stamp(offset: u64) -> [u8; 8] {
    (offset ^ 0x5a5a_0000_0000_a5a5).to_be_bytes()
}

/// Answers a request: mostly with success, sometimes with an error.
fn answer(rng: &mut Rng, session: &mut Session, pool: &Pool, request: BlockRequest) {
    let fails = rng.chance(0.05);
    let (client, tag) = (request.client, request.tag);
    let pages = match request.op {
        BlockOp::Read => read(pool, &request),
        BlockOp::Status => Some(status(rng, &request)),
        _ => Some(Pages::new()),
    };
    drop(request);
    let result = pages.filter(|_| !fails).ok_or(BlockError::Io);
    session.complete(BlockReply { client, tag, result });
}

/// Extents of any lengths, some of which end before the range does.
fn status(rng: &mut Rng, request: &BlockRequest) -> Pages {
    Extent::fill(&request.pages[0], request.range, |at, left| {
        let is_over = at > request.range.offset() && rng.chance(0.1);
        (!is_over).then(|| Extent {
            length: rng.between(1, left / 512) * 512,
            is_hole: rng.chance(0.5),
        })
    });
    request.pages.clone()
}

/// Stamped pages, `None` when the pool is empty.
fn read(pool: &Pool, request: &BlockRequest) -> Option<Pages> {
    let first = request.range.offset() / PAGE_BYTES as u64;
    let last = request.range.end().div_ceil(PAGE_BYTES as u64);
    let mut pages = Pages::new();
    for page in first..last {
        let target = pool.alloc()?;
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
