//! Sizes as people write them: `4096`, `512MiB`, `1GiB`, `10G`, `0.5TiB`. `K`, `M`, `G`, `T` alone mean the binary
//! unit, as in fio and qemu-img; `KB`, `MB`, `GB`, `TB` mean powers of ten.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

/// It is not a size.
#[derive(Debug, Error)]
#[error("`{0}` is not a size: write for example 4096, 512MiB, 1GiB or 10G")]
pub struct SizeError(String);

const UNITS: [(&str, u64); 17] = [
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
    ("pib", 1 << 50),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("k", 1 << 10),
    ("m", 1 << 20),
    ("g", 1 << 30),
    ("t", 1 << 40),
    ("p", 1 << 50),
    ("bytes", 1),
    ("b", 1),
    ("", 1),
];

impl FromStr for Size {
    type Err = SizeError;

    fn from_str(text: &str) -> Result<Self, SizeError> {
        let error = || SizeError(text.to_owned());
        let lower = text.trim().to_ascii_lowercase();
        let digits = lower
            .find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_')
            .unwrap_or(lower.len());
        let (number, unit) = lower.split_at(digits);
        let number = number.replace('_', "");
        let factor = UNITS
            .iter()
            .find(|(name, _)| *name == unit.trim())
            .map(|(_, factor)| *factor)
            .ok_or_else(error)?;
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(factor).map(Size).ok_or_else(error);
        }
        let fraction: f64 = number.parse().map_err(|_| error())?;
        let bytes = fraction * factor as f64;
        if !(0.0..9e18).contains(&bytes) {
            return Err(error());
        }
        Ok(Size(bytes as u64))
    }
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, shift) in [("TiB", 40), ("GiB", 30), ("MiB", 20), ("KiB", 10)] {
            if self.0 >= 1 << shift {
                let tenths = (u128::from(self.0) * 10) >> shift;
                return match tenths % 10 {
                    0 => write!(f, "{} {unit}", tenths / 10),
                    rest => write!(f, "{}.{rest} {unit}", tenths / 10),
                };
            }
        }
        write!(f, "{} bytes", self.0)
    }
}

impl<'de> Deserialize<'de> for Size {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Text {
            Number(u64),
            Words(String),
        }
        match Text::deserialize(deserializer)? {
            Text::Number(bytes) => Ok(Self(bytes)),
            Text::Words(text) => text.parse().map_err(serde::de::Error::custom),
        }
    }
}

impl Serialize for Size {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("4096", 4096),
            ("512MiB", 512 << 20),
            ("1GiB", 1 << 30),
            ("10G", 10 << 30),
            ("10g", 10 << 30),
            ("1 GB", 1_000_000_000),
            ("0.5GiB", 512 << 20),
            ("4_096", 4096),
        ] {
            assert_eq!(text.parse::<Size>().unwrap(), Size(bytes), "{text}");
        }
        for text in ["", "x", "1XiB", "-1", "1e9", "99999999999TiB", "1.2.3G"] {
            assert!(text.parse::<Size>().is_err(), "{text}");
        }
    }

    #[test]
    fn sizes_are_shown_in_the_largest_unit() {
        assert_eq!(Size(1 << 30).to_string(), "1 GiB");
        assert_eq!(Size(3 << 29).to_string(), "1.5 GiB");
        assert_eq!(Size(512).to_string(), "512 bytes");
    }
}
