//! A device of a file system on the command line.

use crate::size::Size;
use fs::format::Tier;
use mount::media::{DeviceSpec, Source};
use os::NvmTiming;
use std::path::PathBuf;
use std::str::FromStr;

/// What a device may be.
const FORMS: &str = "nvm:PATH, ssd:PATH, hdd:PATH, each with :SIZE to create a missing file, or mem:SIZE";

/// A device, and the size of a file that is to be made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceArg {
    /// The device.
    pub spec: DeviceSpec,
    /// Bytes of a missing file.
    pub bytes: Option<u64>,
    /// As it was given.
    pub text: String,
}

impl FromStr for DeviceArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let unknown = || format!("`{text}` is no device: write {FORMS}");
        let (kind, rest) = text.split_once(':').ok_or_else(unknown)?;
        let (place, timing) = match kind {
            "mem" | "nvm" => timing_of(rest)?,
            _ => (rest, None),
        };
        if place.is_empty() {
            return Err(unknown());
        }
        let (source, bytes) = match kind {
            "mem" => {
                let size: Size = place
                    .parse()
                    .map_err(|error: crate::size::SizeError| error.to_string())?;
                (Source::Memory(size.0), None)
            }
            _ => {
                // A path may have colons of its own: only what reads as a size is one.
                let sized = place
                    .rsplit_once(':')
                    .and_then(|(path, size)| Some((path, size.parse::<Size>().ok()?.0)));
                match sized {
                    Some((path, bytes)) => (Source::File(PathBuf::from(path)), Some(bytes)),
                    None => (Source::File(PathBuf::from(place)), None),
                }
            }
        };
        let tier = match kind {
            "mem" | "nvm" => Tier::Memory,
            "ssd" => Tier::Flash,
            "hdd" => Tier::Disk,
            _ => return Err(unknown()),
        };
        Ok(Self {
            spec: DeviceSpec { source, tier, timing },
            bytes,
            text: text.to_owned(),
        })
    }
}

/// Takes `latency=` and `rate=` from the end of a device.
fn timing_of(text: &str) -> Result<(&str, Option<NvmTiming>), String> {
    let mut rest = text;
    let (mut latency_ns, mut bandwidth) = (None, None);
    while let Some((front, option)) = rest.rsplit_once(',') {
        match option.split_once('=') {
            Some(("latency", value)) => latency_ns = Some(nanoseconds(value)?),
            Some(("rate", value)) => {
                let size = value.strip_suffix("/s").unwrap_or(value).parse::<Size>();
                let size = size.map_err(|error| format!("rate={value}: {error}, such as 20GB/s"))?;
                bandwidth = Some(size.0);
            }
            _ => break,
        }
        rest = front;
    }
    let timing = (latency_ns.is_some() || bandwidth.is_some()).then(|| NvmTiming {
        latency_ns: latency_ns.unwrap_or(0),
        bandwidth: bandwidth.unwrap_or(u64::MAX),
    });
    Ok((rest, timing))
}

fn nanoseconds(text: &str) -> Result<u64, String> {
    let units = [("ns", 1), ("us", 1000), ("µs", 1000), ("ms", 1_000_000)];
    let found = units.iter().find_map(|(unit, factor)| {
        let number: u64 = text.strip_suffix(unit)?.trim().parse().ok()?;
        number.checked_mul(*factor)
    });
    found.ok_or_else(|| format!("latency={text}: write for example 500ns or 2us"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(text: &str) -> DeviceArg {
        text.parse().expect("it is a device")
    }

    #[test]
    fn devices_are_read_as_they_are_written() {
        let file = |path: &str| Source::File(path.into());
        let nvm = device("nvm:/dev/pmem0");
        assert_eq!(
            (nvm.spec.source, nvm.spec.tier),
            (file("/dev/pmem0"), Tier::Memory)
        );
        let ssd = device("ssd:/srv/a:b:10GiB");
        assert_eq!((ssd.spec.source, ssd.bytes), (file("/srv/a:b"), Some(10 << 30)));
        let hdd = device("hdd:./x:y");
        assert_eq!((hdd.spec.source, hdd.bytes), (file("./x:y"), None));
        let memory = device("mem:1GiB,latency=500ns,rate=20GB/s");
        let timing = NvmTiming {
            latency_ns: 500,
            bandwidth: 20_000_000_000,
        };
        assert_eq!(
            (memory.spec.source, memory.spec.timing),
            (Source::Memory(1 << 30), Some(timing))
        );
    }

    #[test]
    fn what_is_no_device_is_refused_with_what_is_one() {
        for text in [
            "",
            "/dev/sdb",
            "nvm:",
            "tape:/x",
            "mem:lots",
            "mem:1GiB,latency=5",
        ] {
            let error = text.parse::<DeviceArg>().expect_err(text);
            assert!(error.contains("write"), "{error}");
        }
    }
}
