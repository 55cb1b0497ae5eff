//! The programs of the rack's ToRs: the gateway asks each once a second, and tells it the rack's level.

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
}

/// The ToRs of a gateway.
#[derive(Debug)]
pub(super) struct Tors {
    known: Vec<TorAnswer>,
    ask_at: Instant,
}

impl Tors {
    pub fn new(tors: &[Addr]) -> Self {
        let unheard = |&addr: &Addr| TorAnswer { addr, last: None };
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

    /// Takes an answer. A ToR that is older than levels are tells nothing of its program.
    pub fn answered(&mut self, now: Instant, packet: &Packet) {
        let told = match packet.payload_is_intact() {
            true => serde_json::from_slice(packet.record()).ok(),
            false => return,
        };
        let source = packet.header.source;
        if let Some(tor) = self.known.iter_mut().find(|tor| tor.addr == source) {
            tor.last = Some((now, told.unwrap_or_else(Software::untold)));
        }
    }

    /// The ToRs.
    pub fn known(&self) -> &[TorAnswer] {
        &self.known
    }
}
