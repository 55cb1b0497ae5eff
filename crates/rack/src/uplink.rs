//! Which ToR a part of a rack sends by, where the rack has two.
//!
//! Any packet may go by either ToR: both know the vSSDs. So each part chooses for itself, by what it hears:
//! - an answer goes back by the ToR by which its request came ([`flags::SECOND`] says which);
//! - a request goes by the ToR that is used: the preferred one, unless it is silent;
//! - a request that is sent again goes by the other ToR, if that one is not silent;
//! - a message to another server goes by the ToR that the server uses itself, as it may be cut off from ours. Its requests for
//!   leases (`rack::lease`) say which one that is, in their field `floor`.
//!
//! If nothing comes by a ToR for [`SUSPECT_AFTER`] after something that wants an answer went out by it, the part asks both ToRs
//! themselves whether they are there ([`Op::Status`]). A ToR that leaves [`PROBES_MIN`] such questions unanswered, one after the
//! other, while something comes by the other ToR, is silent. So neither a slow server nor a part that was itself stopped for a
//! while makes a ToR silent. A ToR that has just started knows no vSSDs yet, says so, and counts as silent. A silent ToR is used
//! again when it has answered for [`BACK_AFTER`].
//!
//! With one ToR nothing of this happens. A part that hears nothing for a second asks its only ToR whether it is there, and tells after
//! three seconds more that it is not.

mod hearing;

use base::event::Kind;
use base::time::earliest;
use base::{Addr, Duration, Instant};
use hearing::{Hearing, Look};
use std::collections::VecDeque;
use wire::rack::{Code, Header, Op, flags};

/// ToRs of a rack.
pub const TORS_MAX: usize = 2;
/// A ToR by which nothing came for so long since something went out by it is asked whether it is there.
const SUSPECT_AFTER: Duration = Duration::from_millis(10);
/// Unanswered questions after which it is silent: 30 ms after the request. A gateway sends a read again, by the other ToR, after 20 ms,
/// and a server sends a write again to its replica after 40 ms.
const PROBES_MIN: u32 = 2;
/// A ToR that does not answer is asked more and more rarely, down to this.
const ASK_RARELY: Duration = Duration::from_millis(250);
/// A ToR by which nothing else comes is asked this often.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// A silent ToR is used again when it has answered for so long.
pub const BACK_AFTER: Duration = Duration::from_secs(3);
/// Servers whose ToR is remembered. A rack has no more.
const PEERS_MAX: usize = 256;

/// The next thing that an uplink wants done.
#[derive(Debug, PartialEq, Eq)]
pub enum Act {
    /// Ask this ToR whether it is there.
    Ask(Addr, Header),
    /// Tell of this.
    Tell(Kind),
}

/// A ToR as a part of the rack sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The ToR.
    pub tor: Addr,
    /// It is not silent.
    pub answers: bool,
    /// Requests go by it.
    pub used: bool,
}

#[derive(Clone, Copy, Debug)]
struct Path {
    tor: Addr,
    answers: bool,
    /// It has answered as one that knows the vSSDs.
    known: bool,
    heard_at: Instant,
    /// The first request that went out since something was heard.
    asked_at: Option<Instant>,
    /// Unanswered questions to the ToR itself, and the last one.
    probes: u32,
    probed_at: Instant,
    /// When it fell silent, and since when it answers again.
    silent_at: Instant,
    well_since: Option<Instant>,
}

impl Path {
    fn new(tor: Addr) -> Self {
        Self {
            tor,
            answers: true,
            known: false,
            heard_at: Instant::ZERO,
            asked_at: None,
            probes: 0,
            probed_at: Instant::ZERO,
            silent_at: Instant::ZERO,
            well_since: None,
        }
    }

    /// When the ToR is asked next.
    fn due(&self) -> Instant {
        let pause = match (self.asked_at, self.probes) {
            (Some(asked), 0) => return asked + SUSPECT_AFTER,
            (_, 0) if self.answers => ASK_EVERY,
            (_, 0) => ASK_RARELY,
            (_, probes) => {
                let slower = probes.saturating_sub(PROBES_MIN).min(8);
                return self.probed_at + SUSPECT_AFTER.saturating_mul(1 << slower).min(ASK_RARELY);
            }
        };
        self.heard_at.max(self.probed_at) + pause
    }
}

/// The ToRs of one part of a rack.
#[derive(Debug)]
pub struct Uplink {
    me: Addr,
    /// The only ToR, if there is one only.
    alone: Option<Addr>,
    /// In the order of their addresses, which is the same for all parts of the rack.
    paths: Vec<Path>,
    /// The preferred one.
    first: usize,
    used: usize,
    /// The ToRs that other servers use.
    peers: Vec<(Addr, usize)>,
    hearing: Hearing,
    acts: VecDeque<Act>,
}

impl Uplink {
    /// Of the part at `me`, which knows these ToRs: the first is the preferred one.
    ///
    /// # Panics
    /// If there are none or too many.
    pub fn new(me: Addr, tors: &[Addr]) -> Self {
        assert!((1..=TORS_MAX).contains(&tors.len()), "a rack has one ToR or two");
        let mut paths: Vec<Path> = tors.iter().map(|&tor| Path::new(tor)).collect();
        paths.sort_unstable_by_key(|path| path.tor);
        let first = paths.iter().position(|path| path.tor == tors[0]);
        let first = first.expect("it is one of them");
        Self {
            me,
            alone: (tors.len() == 1).then_some(tors[0]),
            paths,
            first,
            used: first,
            peers: Vec::with_capacity(if tors.len() > 1 { PEERS_MAX } else { 0 }),
            hearing: Hearing::default(),
            acts: VecDeque::with_capacity(4),
        }
    }

    /// The ToRs, in the order that is the same for all parts of the rack.
    pub fn tors(&self) -> impl Iterator<Item = Addr> {
        self.paths.iter().map(|path| path.tor)
    }

    /// How the ToRs are.
    pub fn seen(&self) -> impl Iterator<Item = Seen> {
        self.paths.iter().enumerate().map(|(nth, path)| Seen {
            tor: path.tor,
            answers: path.answers && !self.hearing.is_silent(),
            used: nth == self.used,
        })
    }

    /// True if something comes by a ToR, as far as is known.
    pub fn hears(&self) -> bool {
        self.hearing.hears()
    }

    /// The ToR that is to decide about soft requests, by its place: one that is the same for all parts that see the same, whichever
    /// they prefer.
    pub fn decider(&self) -> usize {
        usize::from(!self.paths[0].answers)
    }

    /// A packet leaves by the ToR that is returned.
    #[inline]
    pub fn send(&mut self, now: Instant, header: &mut Header) -> Addr {
        match self.alone {
            Some(tor) => tor,
            None => self.choose_by(now, header),
        }
    }

    fn choose_by(&mut self, now: Instant, header: &mut Header) -> Addr {
        let nth = self.path_of(header);
        if (header.op, header.has(flags::REPLY)) == (Op::Lease, false) {
            header.floor = 1 + self.used as u32;
        }
        self.depart(now, nth, header)
    }

    /// A request leaves for the `attempts`-th time after the first: each time by the other ToR, if that one answers.
    #[inline]
    pub fn send_again(&mut self, now: Instant, attempts: u32, header: &mut Header) -> Addr {
        match self.alone {
            Some(tor) => tor,
            None => self.turn_by(now, attempts, header),
        }
    }

    fn turn_by(&mut self, now: Instant, attempts: u32, header: &mut Header) -> Addr {
        let other = 1 - self.used;
        let turns = attempts % 2 == 1 && self.paths[other].answers;
        let nth = if turns { other } else { self.used };
        self.depart(now, nth, header)
    }

    /// True if a packet has come by the ToR that is not used.
    #[inline]
    pub fn is_detour(&self, header: &Header) -> bool {
        self.alone.is_none() && usize::from(header.has(flags::SECOND)) != self.used
    }

    /// A packet leaves by this very ToR.
    #[inline]
    pub fn send_by(&mut self, now: Instant, tor: Addr, header: &mut Header) {
        if self.alone.is_none()
            && let Some(nth) = self.paths.iter().position(|path| path.tor == tor)
        {
            self.depart(now, nth, header);
        }
    }

    fn path_of(&self, header: &Header) -> usize {
        let replies = header.has(flags::REPLY);
        match header.op {
            Op::Inv | Op::Ack | Op::Val | Op::Held | Op::Hello | Op::Digest | Op::Pull | Op::Lease => {
                let peer = self.peers.iter().find(|peer| peer.0 == header.target);
                peer.map_or(
                    self.used,
                    |&(_, nth)| if self.paths[nth].answers { nth } else { self.used },
                )
            }
            _ if replies => usize::from(header.has(flags::SECOND)),
            _ => self.used,
        }
    }

    fn depart(&mut self, now: Instant, nth: usize, header: &mut Header) -> Addr {
        header.flags &= !flags::SECOND;
        header.flags |= if nth == 1 { flags::SECOND } else { 0 };
        let path = &mut self.paths[nth];
        let is_answered = !header.has(flags::REPLY) && !matches!(header.op, Op::Ack | Op::Val | Op::Held);
        if is_answered && path.asked_at.is_none() {
            path.asked_at = Some(now);
        }
        path.tor
    }

    /// A packet has come.
    #[inline]
    pub fn heard(&mut self, now: Instant, header: &Header) {
        if let Some(away) = self.hearing.heard(now) {
            let tor = self.paths[self.used].tor;
            self.acts.push_back(Act::Tell(Kind::TorBack { tor, away }));
        }
        if self.alone.is_none() {
            self.note_heard(now, header);
        }
    }

    fn note_heard(&mut self, now: Instant, header: &Header) {
        let nth = usize::from(header.has(flags::SECOND));
        let path = &mut self.paths[nth];
        (path.heard_at, path.asked_at, path.probes) = (now, None, 0);
        match (header.op, header.has(flags::REPLY)) {
            (Op::Status, true) if header.source == path.tor => self.answered(now, nth, header.code),
            (Op::Lease, false) => self.note_peer(header.source, header.floor),
            _ => {}
        }
        if !self.paths[nth].answers && header.code != Code::Busy {
            self.is_well(now, nth);
        }
    }

    /// A ToR has answered for itself.
    #[cold]
    fn answered(&mut self, now: Instant, nth: usize, code: Code) {
        let (path, other) = (self.paths[nth], self.paths[1 - nth]);
        if code == Code::Busy {
            self.paths[nth].well_since = None;
            if path.answers && other.answers && other.known {
                self.fall_silent(now, nth);
            }
            return;
        }
        self.paths[nth].known = true;
    }

    /// Another server uses the first ToR (1) or the second (2); it may not say.
    fn note_peer(&mut self, peer: Addr, tor: u32) {
        let nth = match tor {
            1 | 2 => tor as usize - 1,
            _ => return,
        };
        if let Some(known) = self.peers.iter_mut().find(|known| known.0 == peer) {
            known.1 = nth;
        } else if self.peers.len() < PEERS_MAX {
            self.peers.push((peer, nth));
        }
    }

    #[cold]
    fn fall_silent(&mut self, now: Instant, nth: usize) {
        let path = &mut self.paths[nth];
        (path.answers, path.silent_at, path.well_since) = (false, now, None);
        let (tor, silent) = (path.tor, now.since(path.asked_at.unwrap_or(now)));
        self.acts.push_back(Act::Tell(Kind::TorSilent { tor, silent }));
        if !self.paths[1 - nth].answers {
            self.come_back(now, 1 - nth);
        }
        self.choose();
    }

    #[cold]
    fn is_well(&mut self, now: Instant, nth: usize) {
        let since = *self.paths[nth].well_since.get_or_insert(now);
        if now.since(since) >= BACK_AFTER {
            self.come_back(now, nth);
            self.choose();
        }
    }

    fn come_back(&mut self, now: Instant, nth: usize) {
        let path = &mut self.paths[nth];
        path.answers = true;
        let (tor, away) = (path.tor, now.since(path.silent_at));
        self.acts.push_back(Act::Tell(Kind::TorBack { tor, away }));
    }

    fn choose(&mut self) {
        let preferred = self.paths[self.first].answers;
        self.used = if preferred { self.first } else { 1 - self.first };
    }

    /// The next thing to do.
    #[inline]
    pub fn poll(&mut self) -> Option<Act> {
        self.acts.pop_front()
    }

    /// When to [`tick`](Uplink::tick).
    #[inline]
    pub fn deadline(&self) -> Option<Instant> {
        let paths = self.paths.iter().filter(|_| self.alone.is_none());
        earliest(paths.map(Path::due).min(), Some(self.hearing.deadline()))
    }

    /// Lets time pass: asks ToRs whether they are there, and says which one is not.
    #[inline]
    pub fn tick(&mut self, now: Instant) {
        if now >= self.hearing.deadline() {
            self.listen(now);
        }
        if self.alone.is_none() {
            for nth in 0..self.paths.len() {
                if now >= self.paths[nth].due() {
                    self.look(now, nth);
                }
            }
        }
    }

    /// Takes note of what was heard, by whichever ToR.
    #[cold]
    fn listen(&mut self, now: Instant) {
        let look = self.hearing.look(now);
        if let Look::FellSilent(silent) = look {
            let tor = self.paths[self.used].tor;
            self.acts.push_back(Act::Tell(Kind::TorSilent { tor, silent }));
        }
        if look != Look::Well && self.alone.is_some() {
            self.probe(now, self.used);
        }
    }

    #[cold]
    fn look(&mut self, now: Instant, nth: usize) {
        let (path, other) = (self.paths[nth], self.paths[1 - nth]);
        if let Some(asked) = path.asked_at {
            let is_silent = path.probes >= PROBES_MIN;
            if is_silent && path.answers && other.heard_at > asked {
                self.fall_silent(now, nth);
            }
            if is_silent && !path.answers {
                self.paths[nth].well_since = None;
            }
            // Silence counts only if the other ToR is heard meanwhile.
            if other.heard_at <= asked && other.asked_at.is_none() {
                self.probe(now, 1 - nth);
            }
        }
        self.probe(now, nth);
    }

    fn probe(&mut self, now: Instant, nth: usize) {
        let mut header = Header {
            source: self.me,
            ..Header::new(Op::Status, base::VssdId(0))
        };
        let tor = self.depart(now, nth, &mut header);
        let path = &mut self.paths[nth];
        (path.probes, path.probed_at) = (path.probes + 1, now);
        self.acts.push_back(Act::Ask(tor, header));
    }
}

#[cfg(test)]
mod tests;
