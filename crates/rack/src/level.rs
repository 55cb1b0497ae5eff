//! The rack's *level*: which features its parts may use with each other, so that two versions serve beside each other while a rack is
//! upgraded part by part.
//!
//! A level is a small number. Each build knows a range of levels, and each part tells its range. A node tells it in its status,
//! a ToR in its answer to a question, and a gateway in its record of the registry. A part that tells none is older than this module, and knows
//! [`FIRST`] alone. The registry says the rack's level. The gateway that leads the rack raises the level when every part knows the
//! higher one ([`Rise`]); nobody ever lowers it.
//!
//! Invariants:
//! - a part whose range does not have the rack's level does not serve: a node or a ToR keeps silent, and a gateway does not start;
//! - what an older part would misread is sent or stored only at the level that brought it (`docs/format/rack-packet.md`, Levels).
//!
//! Assumption: a gateway that was silent for [`Rules::gone_after`] does not come back in an older version. If it does, it cannot
//! read the registry, and says so.

use base::{Addr, Duration, Instant, NodeId};
use core::fmt;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use thiserror::Error;

/// The level of racks whose parts tell none.
pub const FIRST: u8 = 1;
/// The newest level that this build knows. Level 2 brings version 2 of the registry's format, which older gateways refuse.
pub const NEWEST: u8 = 2;

/// The levels that a part knows, both ends included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Levels {
    /// The lowest.
    pub min: u8,
    /// The highest.
    pub max: u8,
}

impl Levels {
    /// Those of this build.
    pub const BUILD: Self = Self {
        min: FIRST,
        max: NEWEST,
    };
    /// Those of a part that tells none.
    pub const UNTOLD: Self = Self {
        min: FIRST,
        max: FIRST,
    };

    /// Those of this build up to `max`; `None` if that is no level of it.
    pub fn up_to(max: u8) -> Option<Self> {
        Self::BUILD.has(max).then_some(Self { max, ..Self::BUILD })
    }

    /// True if a level is one of them.
    pub const fn has(self, level: u8) -> bool {
        self.min <= level && level <= self.max
    }
}

impl fmt::Display for Levels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.min == self.max {
            true => write!(f, "level {}", self.max),
            false => write!(f, "levels {} to {}", self.min, self.max),
        }
    }
}

/// The program of a part.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Software {
    /// The program's version; empty if the part does not tell it.
    pub version: String,
    /// The levels that the part knows.
    pub levels: Levels,
}

impl Software {
    /// This build, held to these levels.
    pub fn own(levels: Levels) -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            levels,
        }
    }

    /// Of a part that tells nothing.
    pub fn untold() -> Self {
        Self {
            version: String::new(),
            levels: Levels::UNTOLD,
        }
    }
}

impl fmt::Display for Software {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.version.is_empty() {
            true => write!(f, "an earlier version, which knows {}", self.levels),
            false => write!(f, "version {}, which knows {}", self.version, self.levels),
        }
    }
}

/// The version that brought a level, for people.
pub const fn brought_by(level: u8) -> &'static str {
    match level {
        0..=1 => "any version",
        2 => "version 0.1.0 or newer",
        _ => "a newer version",
    }
}

/// A part does not know the rack's level.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "the rack is at level {level}, and this is {software}: start {}{}", brought_by(*.level), cap(software, *.level)
)]
pub struct Mismatch {
    /// The rack's level.
    pub level: u8,
    /// The part's program.
    pub software: Software,
}

/// The other remedy, if the part is held back.
fn cap(software: &Software, level: u8) -> &'static str {
    match software.version == env!("CARGO_PKG_VERSION") && Levels::BUILD.has(level) {
        true => ", without --level-max",
        false => "",
    }
}

impl Mismatch {
    /// Checks that a part knows the rack's level.
    pub fn check(level: u8, software: &Software) -> Result<(), Self> {
        match software.levels.has(level) {
            true => Ok(()),
            false => Err(Self {
                level,
                software: software.clone(),
            }),
        }
    }
}

/// A part of the rack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// A storage server.
    Node(NodeId),
    /// A switch.
    Tor(Addr),
    /// A gateway.
    Gateway(Addr),
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => write!(f, "node {}", node.0),
            Self::Tor(tor) => write!(f, "ToR {tor}"),
            Self::Gateway(gateway) => write!(f, "gateway {gateway}"),
        }
    }
}

/// A part as the rack's lead knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The part.
    pub part: Part,
    /// The levels that it knows; `None` while it does not answer.
    pub levels: Option<Levels>,
    /// When it was heard last.
    pub heard: Option<Instant>,
}

impl Seen {
    fn knows(&self, level: u8) -> bool {
        self.levels.is_some_and(|levels| levels.has(level))
    }
}

/// The level that all parts know, if it is above the rack's.
fn agreed(level: u8, parts: &[Seen]) -> Option<u8> {
    let max = parts
        .iter()
        .map(|seen| seen.levels.map_or(0, |levels| levels.max));
    let next = max.min()?;
    (next > level && parts.iter().all(|seen| seen.knows(next))).then_some(next)
}

/// The parts for which the next level waits, if this build knows it.
pub fn holding_back(level: u8, parts: &[Seen]) -> impl Iterator<Item = Part> {
    let next = level + 1;
    let waits = move |seen: &&Seen| next <= NEWEST && !seen.knows(next);
    parts.iter().filter(waits).map(|seen| seen.part)
}

/// When a level is raised.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// All parts have known the higher level for so long: a part that is just being replaced has time to show its new version.
    pub steady_for: Duration,
    /// A gateway whose version is not known, and that was silent for so long, does not count. The registry never forgets gateways.
    pub gone_after: Duration,
}

impl Default for Rules {
    fn default() -> Self {
        Self {
            steady_for: Duration::from_secs(3),
            gone_after: Duration::from_secs(600),
        }
    }
}

/// Decides when the rack's level rises, beside the gateway that leads the rack.
#[derive(Clone, Debug)]
pub struct Rise {
    rules: Rules,
    /// The level that all parts know, and since when.
    steady: Option<(u8, Instant)>,
    /// When gateways that tell no version were heard, or seen first.
    heard: BTreeMap<Addr, Instant>,
}

impl Rise {
    /// Begins when its gateway begins to lead.
    pub fn new(rules: Rules) -> Self {
        Self {
            rules,
            steady: None,
            heard: BTreeMap::new(),
        }
    }

    /// Leaves out gateways that are gone for good: the registry forgets none, and one that comes back is asked what it knows. Those that tell
    /// nothing count as parts that know [`FIRST`] alone.
    pub fn counted(&mut self, now: Instant, parts: &mut Vec<Seen>) {
        let gone_after = self.rules.gone_after;
        let is_named = |addr: &Addr, parts: &[Seen]| {
            let part = Part::Gateway(*addr);
            parts.iter().any(|seen| seen.part == part)
        };
        self.heard.retain(|addr, _| is_named(addr, parts));
        parts.retain_mut(|seen| {
            let Part::Gateway(addr) = seen.part else {
                return true;
            };
            seen.levels.get_or_insert(Levels::UNTOLD);
            let heard = self.heard.entry(addr).or_insert(now);
            *heard = seen.heard.map_or(*heard, |at| at.max(*heard));
            now.since(*heard) < gone_after
        });
    }

    /// The level to store, if it is time. The parts are those of [`counted`](Rise::counted).
    pub fn look(&mut self, now: Instant, level: u8, parts: &[Seen]) -> Option<u8> {
        let Some(next) = agreed(level, parts) else {
            self.steady = None;
            return None;
        };
        let (_, since) = *self.steady.insert(match self.steady {
            Some((known, since)) if known == next => (known, since),
            _ => (next, now),
        });
        (now.since(since) >= self.rules.steady_for).then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;

    const OLD: Levels = Levels::UNTOLD;
    const NEW: Levels = Levels::BUILD;

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn node(id: u8, levels: Option<Levels>) -> Seen {
        Seen {
            part: Part::Node(NodeId(id)),
            levels,
            heard: None,
        }
    }

    fn gateway(end: u8, levels: Option<Levels>, heard: Option<Instant>) -> Seen {
        Seen {
            part: Part::Gateway(Addr::new([10, 0, 0, end], 1)),
            levels,
            heard,
        }
    }

    fn rise() -> Rise {
        Rise::new(Rules::default())
    }

    #[test]
    fn a_level_rises_when_all_parts_have_known_it_for_a_while() {
        let mut rise = rise();
        let all = [node(1, Some(NEW)), node(2, Some(NEW))];
        assert_eq!(rise.look(at(10), 1, &all), None);
        assert_eq!(rise.look(at(12), 1, &all), None);
        assert_eq!(rise.look(at(13), 1, &all), Some(2));
        assert_eq!(rise.look(at(14), 2, &all), None, "it is there");
    }

    #[test]
    fn a_part_that_is_old_or_silent_holds_the_level_back_and_the_wait_begins_anew() {
        for other in [node(2, Some(OLD)), node(2, None)] {
            let mut rise = rise();
            let (all, mixed) = ([node(1, Some(NEW)); 2], [node(1, Some(NEW)), other]);
            rise.look(at(10), 1, &all);
            assert_eq!(rise.look(at(20), 1, &mixed), None);
            assert_eq!(rise.look(at(21), 1, &all), None);
            assert_eq!(rise.look(at(24), 1, &all), Some(2));
            let waits: Vec<Part> = holding_back(1, &mixed).collect();
            assert_eq!(waits, [Part::Node(NodeId(2))]);
        }
        assert_eq!(holding_back(NEWEST, &[node(2, Some(OLD))]).count(), 0);
    }

    #[test]
    fn a_gateway_counts_until_it_was_silent_for_long() {
        let mut rise = rise();
        let mut counted = |seconds, heard| {
            let mut parts = vec![node(1, Some(NEW)), gateway(2, None, heard)];
            rise.counted(at(seconds), &mut parts);
            parts
        };
        assert_eq!(counted(0, None)[1].levels, Some(OLD));
        assert_eq!(counted(599, None).len(), 2);
        assert_eq!(counted(600, Some(at(500))).len(), 2, "it was heard since");
        assert_eq!(counted(1_099, None).len(), 2);
        assert_eq!(counted(1_100, None).len(), 1);
        // bug: one that had told that it knows an earlier level held the rack back for ever. fix: it counts for as long as one that tells nothing.
        for levels in [OLD, NEW] {
            let mut counted = |seconds| {
                let mut parts = vec![gateway(3, Some(levels), None)];
                rise.counted(at(seconds), &mut parts);
                parts.len()
            };
            assert_eq!((counted(2_000), counted(2_599), counted(2_600)), (1, 1, 0));
            rise.counted(at(3_000), &mut Vec::new());
        }
    }

    #[test]
    fn a_mismatch_names_both_versions_and_the_remedy() {
        let text = |software: Software| Mismatch::check(2, &software).unwrap_err().to_string();
        let capped = text(Software::own(OLD));
        for part in [
            "level 2",
            env!("CARGO_PKG_VERSION"),
            "knows level 1",
            "--level-max",
        ] {
            assert!(capped.contains(part), "{capped}");
        }
        let old = text(Software::untold());
        assert!(
            old.contains("an earlier version") && old.contains("0.1.0 or newer"),
            "{old}"
        );
        assert!(!old.contains("--level-max"), "{old}");
        let future = Mismatch::check(NEWEST + 1, &Software::own(NEW))
            .unwrap_err()
            .to_string();
        assert!(
            future.contains("a newer version") && !future.contains("--level-max"),
            "{future}"
        );
        assert_eq!(Mismatch::check(2, &Software::own(NEW)), Ok(()));
        assert_eq!(Levels::up_to(1), Some(OLD));
        assert_eq!((Levels::up_to(0), Levels::up_to(NEWEST + 1)), (None, None));
    }

    #[test]
    fn a_level_never_falls_and_never_excludes_a_part() {
        let mut risen = 0;
        for seed in 0..2_000 {
            let mut rng = Rng::new(seed);
            let (mut rise, mut level, mut now) = (rise(), 1 + rng.below(3) as u8, 0);
            for _ in 0..20 {
                now += rng.below(5);
                let mut levels = || {
                    let min = rng.below(3) as u8;
                    let max = min + rng.below(4) as u8;
                    (!rng.chance(0.05)).then_some(Levels { min, max })
                };
                let parts = [node(1, levels()), node(2, levels())];
                if let Some(next) = rise.look(at(now), level, &parts) {
                    assert!(next > level, "seed {seed}");
                    assert!(parts.iter().all(|seen| seen.knows(next)), "seed {seed}");
                    (level, risen) = (next, risen + 1);
                }
            }
        }
        assert!(risen > 100, "{risen}");
    }
}
