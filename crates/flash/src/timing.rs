//! Timing of flash: how long a read, a program, an erase and a transfer take.
//!
//! A timing is a TOML table, so that users add their own drives:
//!
//! ```toml
//! name = "my-drive"
//! read_lower_us = 48
//! read_upper_us = 64
//! program_lower_us = 850
//! program_upper_us = 2300
//! erase_us = 3000
//! transfer_us = 52.4
//! ```
//!
//! Lower pages of a multi-level cell are the even pages of a block here, upper pages the odd ones.

use serde::Deserialize;
use thiserror::Error;

/// The longest time a timing may state, in µs: ten seconds.
const TIME_US_MAX: f64 = 1e7;

/// How long the flash takes, in nanoseconds. All zero: no timing at all, no timers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The name that users write.
    pub name: String,
    /// Array to page register, lower page.
    pub read_lower_ns: u64,
    /// Array to page register, upper page.
    pub read_upper_ns: u64,
    /// Page register to array, lower page.
    pub program_lower_ns: u64,
    /// Page register to array, upper page.
    pub program_upper_ns: u64,
    /// Erase of a block.
    pub erase_ns: u64,
    /// Page over the channel.
    pub transfer_ns: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Text {
    name: String,
    read_lower_us: f64,
    read_upper_us: f64,
    program_lower_us: f64,
    program_upper_us: f64,
    erase_us: f64,
    transfer_us: f64,
}

/// Why a timing's text is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum TimingError {
    /// Not TOML, a key is missing or unknown. Carries the parser's message, which points at the line.
    #[error("not a flash timing: {0}")]
    Syntax(String),
    /// A time is negative, not finite, or above ten seconds.
    #[error("{0} is not between 0 and ten seconds")]
    Time(&'static str),
}

impl Timing {
    /// Names of the built-in timings.
    pub const BUILT_IN: &'static [&'static str] = &["p-ssd", "intel-dc", "optane", "none"];

    /// A built-in timing by name.
    ///
    /// - `p-ssd`: RackBlox's programmable SSD, figures that FEMU gives its MLC flash.
    /// - `intel-dc`: fitted so that a lone 4 KiB read takes the 77.9 µs measured on a P3700.
    /// - `optane`: fitted so that a lone 4 KiB read takes the 8.9 µs measured on a P4800X; needs no erase.
    /// - `none`: no timing.
    pub fn built_in(name: &str) -> Option<Self> {
        let us = |name: &str, reads: [f64; 2], programs: [f64; 2], erase, transfer| Self {
            name: name.to_owned(),
            read_lower_ns: nanos(reads[0]),
            read_upper_ns: nanos(reads[1]),
            program_lower_ns: nanos(programs[0]),
            program_upper_ns: nanos(programs[1]),
            erase_ns: nanos(erase),
            transfer_ns: nanos(transfer),
        };
        match name {
            "p-ssd" => Some(us(name, [48.0, 64.0], [850.0, 2300.0], 3000.0, 52.4)),
            "intel-dc" => Some(us(name, [65.9, 69.9], [300.0, 900.0], 2500.0, 10.0)),
            "optane" => Some(us(name, [6.9, 6.9], [8.0, 8.0], 0.0, 2.0)),
            "none" => Some(Self::none()),
            _ => None,
        }
    }

    /// No timing: an operation is done when the medium is.
    pub fn none() -> Self {
        Self {
            name: "none".to_owned(),
            read_lower_ns: 0,
            read_upper_ns: 0,
            program_lower_ns: 0,
            program_upper_ns: 0,
            erase_ns: 0,
            transfer_ns: 0,
        }
    }

    /// Parses a user's timing.
    pub fn parse(text: &str) -> Result<Self, TimingError> {
        let t: Text = toml::from_str(text).map_err(|e| TimingError::Syntax(e.to_string()))?;
        let times = [
            ("read_lower_us", t.read_lower_us),
            ("read_upper_us", t.read_upper_us),
            ("program_lower_us", t.program_lower_us),
            ("program_upper_us", t.program_upper_us),
            ("erase_us", t.erase_us),
            ("transfer_us", t.transfer_us),
        ];
        for (key, value) in times {
            if !(0.0..=TIME_US_MAX).contains(&value) {
                return Err(TimingError::Time(key));
            }
        }
        Ok(Self {
            name: t.name,
            read_lower_ns: nanos(t.read_lower_us),
            read_upper_ns: nanos(t.read_upper_us),
            program_lower_ns: nanos(t.program_lower_us),
            program_upper_ns: nanos(t.program_upper_us),
            erase_ns: nanos(t.erase_us),
            transfer_ns: nanos(t.transfer_us),
        })
    }

    /// True when nothing takes time.
    pub fn is_none(&self) -> bool {
        self.read_lower_ns == 0
            && self.read_upper_ns == 0
            && self.program_lower_ns == 0
            && self.program_upper_ns == 0
            && self.erase_ns == 0
            && self.transfer_ns == 0
    }

    /// Array read of page `index` of a block.
    pub fn read_ns(&self, index: u32) -> u64 {
        if index.is_multiple_of(2) {
            self.read_lower_ns
        } else {
            self.read_upper_ns
        }
    }

    /// Array program of page `index` of a block.
    pub fn program_ns(&self, index: u32) -> u64 {
        if index.is_multiple_of(2) {
            self.program_lower_ns
        } else {
            self.program_upper_ns
        }
    }
}

fn nanos(us: f64) -> u64 {
    (us * 1000.0).round() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_name_has_a_profile() {
        for name in Timing::BUILT_IN {
            let timing = Timing::built_in(name).expect("listed");
            assert_eq!(timing.is_none(), *name == "none");
        }
        assert_eq!(Timing::built_in("unheard-of"), None);
    }

    #[test]
    fn a_lone_read_takes_what_was_measured() {
        let mean = |name: &str| {
            let p = Timing::built_in(name).expect("listed");
            (p.read_lower_ns + p.read_upper_ns) / 2 + p.transfer_ns
        };
        assert_eq!(mean("intel-dc"), 77_900);
        assert_eq!(mean("optane"), 8_900);
    }

    #[test]
    fn text_is_parsed_and_nonsense_refused() {
        let text = "name='x'\nread_lower_us=1\nread_upper_us=2\nprogram_lower_us=3\nprogram_upper_us=4\n\
                    erase_us=5\ntransfer_us=0.5\n";
        let timing = Timing::parse(text).expect("valid");
        assert_eq!((timing.read_ns(0), timing.read_ns(1)), (1000, 2000));
        assert_eq!((timing.program_ns(2), timing.program_ns(3)), (3000, 4000));
        assert_eq!((timing.erase_ns, timing.transfer_ns), (5000, 500));
        assert!(matches!(Timing::parse("name='x'"), Err(TimingError::Syntax(_))));
        let negative = text.replace("erase_us=5", "erase_us=-1");
        assert_eq!(Timing::parse(&negative), Err(TimingError::Time("erase_us")));
        let unknown = format!("{text}colour=1");
        assert!(matches!(Timing::parse(&unknown), Err(TimingError::Syntax(_))));
    }
}
