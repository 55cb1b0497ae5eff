//! The programs of the rack's ToRs: the gateway asks each once a second, and tells it the rack's level.

use base::event::Kind;
use base::{Addr, Duration, Instant};
use rack::level::Software;
use wire::rack::{Header, Op, Packet};

/// Between two questions. A ToR does not change its program oftener.
const ASK_EVERY: Duration = Duration::from_secs(1);

/// A ToR, and what it has told.
#[derive(Clone, Debug)]
pub struct TorAnswer {
    /// The ToR.
    pub addr: Addr,
    /// Its program, and when it told it last.
    pub last: Option<(Instant, Software)>,
    /// It does not know the rack's level.
    pub is_refused: bool,
}

/// The ToRs of a gateway.
#[derive(Debug)]
pub(super) struct Tors {
    known: Vec<TorAnswer>,
    ask_at: Instant,
}

impl Tors {
    pub fn new(tors: &[Addr]) -> Self {
        let unheard = |&addr: &Addr| TorAnswer {
            addr,
            last: None,
            is_refused: false,
        };
        Self {
            known: tors.iter().map(unheard).collect(),
            ask_at: Instant::ZERO,
        }
    }

    /// The questions that are due, in a rack of this level.
    pub fn due(&mut self, now: Instant, level: u8) -> impl Iterator<Item = (Addr, Header)> {
        let is_due = now >= self.ask_at;
        if is_due {
            self.ask_at = now + ASK_EVERY;
        }
        let header = Header {
            lba: level.into(),
            ..Header::new(Op::Status, base::VssdId(0))
        };
        let known = self.known.iter().filter(move |_| is_due);
        known.map(move |tor| (tor.addr, header))
    }

    /// Takes an answer, in a rack of this level; the event of a ToR that does not know the level. A ToR that is older than
    /// levels are tells nothing of its program.
    pub fn answered(&mut self, now: Instant, packet: &Packet, level: u8) -> Option<Kind> {
        if !packet.payload_is_intact() {
            return None;
        }
        let source = packet.header.source;
        let tor = self.known.iter_mut().find(|tor| tor.addr == source)?;
        let software: Option<Software> = serde_json::from_slice(packet.record()).ok();
        let software = software.unwrap_or_else(Software::untold);
        let is_refused = level > 0 && !software.levels.has(level);
        let is_news = is_refused && !tor.is_refused;
        let told = is_news.then_some(Kind::TorRefused {
            tor: source,
            knows_to: software.levels.max.into(),
            rack_level: level.into(),
        });
        tor.is_refused = is_refused;
        tor.last = Some((now, software));
        told
    }

    /// The ToRs.
    pub fn known(&self) -> &[TorAnswer] {
        &self.known
    }
}
