//! One line of a trace.

use super::{Format, Record};
use thiserror::Error;

/// Bytes of a request at most; a longer one is taken for damage.
pub const LENGTH_MAX: u64 = 1 << 30;
/// Last byte that a request may touch, for the same reason: 8 EiB.
const END_MAX: u64 = 1 << 63;
/// Bytes of a field that an error repeats.
const SHOWN_BYTES: usize = 40;
/// Most fields of a format, and one to see that there are too many.
const FIELDS_MAX: usize = 8;
const SECTOR_BYTES: u64 = 512;

/// Why a line is no request.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LineError {
    /// It has too few or too many fields.
    #[error("the line has {found} fields, expected {}: {}", expected.fields(), expected.form())]
    Fields {
        /// How many; more than eight count as eight.
        found: usize,
        /// Its expected form.
        expected: Format,
    },
    /// A field does not hold what it should.
    #[error("the {field} is \"{value}\", expected {expected}")]
    Value {
        /// Which.
        field: &'static str,
        /// Its content, cut.
        value: String,
        /// Its expected content.
        expected: &'static str,
    },
    /// Its time is too far from that of the request before it.
    #[error("the timestamp is \"{stamp}\", {} that of the request before it: damage, or a long pause", apart(*far_ns, *back))]
    Jump {
        /// Its time as the line has it, the beginning of it.
        stamp: String,
        /// How far, in ns.
        far_ns: u64,
        /// It lies before; else behind.
        back: bool,
    },
    /// It is too long to be a request.
    #[error("the line is longer than {0} bytes, expected a request of this format")]
    TooLong(usize),
}

/// A distance in time in words.
fn apart(far_ns: u64, back: bool) -> String {
    let days = far_ns as f64 / 86_400e9;
    let far = match days < 730.0 {
        true => format!("{days:.1} days"),
        false => format!("{:.0} years", days / 365.25),
    };
    format!("{far} {}", if back { "before" } else { "after" })
}

/// The beginning of a field, as an error repeats it.
fn shown(value: &[u8]) -> String {
    let shown = &value[..value.len().min(SHOWN_BYTES)];
    let mut text: String = String::from_utf8_lossy(shown).escape_debug().collect();
    if shown.len() == SHOWN_BYTES {
        text.push('…');
    }
    text
}

fn wrong(field: &'static str, value: &[u8], expected: &'static str) -> LineError {
    LineError::Value {
        field,
        value: shown(value),
        expected,
    }
}

/// Unit of a trace's stamps, if its format leaves the unit open: MQSim writes whole nanoseconds, DiskSim, in the
/// same columns, milliseconds with a decimal point. The first stamp decides for all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Clock {
    /// Nobody knows yet: there was no stamp but zero.
    #[default]
    Open,
    /// Whole nanoseconds.
    Nanoseconds,
    /// Milliseconds.
    Milliseconds,
}

impl Clock {
    /// The unit after this stamp.
    fn after(self, stamp: &[u8]) -> Self {
        match self {
            Self::Open if stamp.contains(&b'.') => Self::Milliseconds,
            Self::Open if stamp.iter().any(|&byte| byte != b'0') => Self::Nanoseconds,
            known => known,
        }
    }

    /// The unit's name, if it is known.
    pub fn unit(self) -> Option<&'static str> {
        match self {
            Self::Open => None,
            Self::Nanoseconds => Some("ns"),
            Self::Milliseconds => Some("ms"),
        }
    }

    fn time(self, stamp: &[u8]) -> Result<u64, LineError> {
        match self {
            Self::Milliseconds => time(stamp, 1_000_000, "a number of milliseconds, as those before it"),
            Self::Open | Self::Nanoseconds if stamp.contains(&b'.') => Err(wrong(
                "timestamp",
                stamp,
                "whole nanoseconds, as those before it: milliseconds have a decimal point from the first on",
            )),
            Self::Open | Self::Nanoseconds => {
                time(stamp, 1, "nanoseconds, or milliseconds with a decimal point")
            }
        }
    }
}

/// A line's fields, without the blanks around them.
struct Fields<'a> {
    at: [&'a [u8]; FIELDS_MAX],
    count: usize,
}

impl<'a> Fields<'a> {
    fn of(format: Format, line: &'a [u8]) -> Self {
        let mut fields = Self {
            at: [&[]; FIELDS_MAX],
            count: 0,
        };
        let mut push = |field: &'a [u8]| {
            if fields.count < FIELDS_MAX {
                fields.at[fields.count] = field.trim_ascii();
                fields.count += 1;
            }
        };
        match format {
            Format::Mqsim => line
                .split(u8::is_ascii_whitespace)
                .filter(|f| !f.is_empty())
                .for_each(&mut push),
            _ => line.split(|&byte| byte == b',').for_each(&mut push),
        }
        fields
    }
}

/// True if a line names the columns of its format: as many fields, each of which begins with a letter.
pub fn is_header(format: Format, line: &[u8]) -> bool {
    let fields = Fields::of(format, line);
    let named = |field: &&[u8]| field.first().is_some_and(u8::is_ascii_alphabetic);
    fields.count == format.fields() && fields.at[..fields.count].iter().all(named)
}

/// A line's time, as it is written.
fn stamp<'a>(format: Format, fields: &Fields<'a>) -> &'a [u8] {
    match format {
        Format::Alibaba => fields.at[4],
        _ => fields.at[0],
    }
}

/// The error of a line whose time lies `far_ns` from that of the request before it.
pub fn jump(format: Format, line: &[u8], far_ns: u64, back: bool) -> LineError {
    LineError::Jump {
        stamp: shown(stamp(format, &Fields::of(format, line))),
        far_ns,
        back,
    }
}

/// Reads one line, without its end. `None` if it names no operation, which Systor'17 has. `clock` is what the lines before
/// have shown, and is learned from this one.
///
/// # Errors
/// The first field, from the left, that is not as the format has it.
pub fn parse(format: Format, clock: &mut Clock, line: &[u8]) -> Result<Option<Record>, LineError> {
    let fields = Fields::of(format, line);
    if fields.count != format.fields() {
        return Err(LineError::Fields {
            found: fields.count,
            expected: format,
        });
    }
    let f = &fields.at;
    let at = stamp(format, &fields);
    match format {
        Format::Msr => {
            let time_ns = time(at, 100, "a number of 100 ns")?;
            let write = operation(f[3], b"Read", b"Write", "`Read` or `Write`")?;
            number(f[6], "response time", "a number of 100 ns")?;
            let device = hash(f[1]) ^ number(f[2], "disk", "a number")?;
            record(time_ns, write, (f[4], f[5], 1), device).map(Some)
        }
        Format::Alibaba => {
            let device = hash(f[0]);
            let write = operation(f[1], b"R", b"W", "`R` or `W`")?;
            let time_ns = time(at, 1_000, "a number of microseconds")?;
            record(time_ns, write, (f[2], f[3], 1), device).map(Some)
        }
        Format::Tencent => {
            let time_ns = time(at, 1_000_000_000, "a number of seconds")?;
            let write = operation(f[3], b"0", b"1", "0 to read or 1 to write")?;
            record(time_ns, write, (f[1], f[2], SECTOR_BYTES), hash(f[4])).map(Some)
        }
        Format::Systor => {
            let time_ns = time(at, 1_000_000_000, "a number of seconds")?;
            if f[2].is_empty() {
                return Ok(None);
            }
            let write = operation(f[2], b"R", b"W", "`R`, `W` or nothing")?;
            record(time_ns, write, (f[4], f[5], 1), hash(f[3])).map(Some)
        }
        Format::Mqsim => {
            let after = clock.after(at);
            let time_ns = after.time(at)?;
            let write = !operation(f[4], b"0", b"1", "0 to write or 1 to read")?;
            let record = record(time_ns, write, (f[2], f[3], SECTOR_BYTES), hash(f[1]))?;
            *clock = after;
            Ok(Some(record))
        }
    }
}

fn record(
    time_ns: u64,
    write: bool,
    (offset, length, unit): (&[u8], &[u8], u64),
    device: u64,
) -> Result<Record, LineError> {
    let (a_place, a_length) = match unit {
        1 => ("a number of bytes", "1 byte to 1 GiB, in bytes"),
        _ => (
            "a number of 512-byte sectors",
            "1 sector to 1 GiB, in 512-byte sectors",
        ),
    };
    let first = number(offset, "offset", a_place)?
        .checked_mul(unit)
        .filter(|&first| first < END_MAX - LENGTH_MAX);
    let first = first.ok_or_else(|| wrong("offset", offset, "an offset below 8 EiB"))?;
    let bytes = number(length, "size", a_length)?
        .checked_mul(unit)
        .filter(|bytes| (1..=LENGTH_MAX).contains(bytes));
    let bytes = bytes.ok_or_else(|| wrong("size", length, a_length))?;
    Ok(Record {
        time_ns,
        write,
        offset: first,
        length: bytes,
        device,
    })
}

/// True for the second of two words, in any case.
fn operation(field: &[u8], no: &[u8], yes: &[u8], expected: &'static str) -> Result<bool, LineError> {
    if field.eq_ignore_ascii_case(yes) {
        return Ok(true);
    }
    match field.eq_ignore_ascii_case(no) {
        true => Ok(false),
        false => Err(wrong("operation", field, expected)),
    }
}

fn digits(field: &[u8]) -> Option<u64> {
    let add = |sum: u64, &byte: &u8| {
        let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
        sum.checked_mul(10)?.checked_add(digit)
    };
    if field.is_empty() {
        return None;
    }
    field.iter().try_fold(0, add)
}

fn number(field: &[u8], name: &'static str, expected: &'static str) -> Result<u64, LineError> {
    digits(field).ok_or_else(|| wrong(name, field, expected))
}

/// A time in units of `unit_ns`, whole or with a decimal fraction; what is below a nanosecond is dropped.
fn time(field: &[u8], unit_ns: u64, expected: &'static str) -> Result<u64, LineError> {
    let point = field.iter().position(|&byte| byte == b'.');
    let (whole, fraction) = field.split_at(point.unwrap_or(field.len()));
    let exact = || {
        let whole = digits(whole)?.checked_mul(unit_ns)?;
        let Some(fraction) = fraction.get(1..) else {
            return Some(whole);
        };
        let kept = &fraction[..fraction.len().min(9)];
        fraction.iter().all(u8::is_ascii_digit).then_some(())?;
        let scale = 10u64.pow(kept.len() as u32);
        let part = u128::from(digits(kept)?) * u128::from(unit_ns) / u128::from(scale);
        whole.checked_add(part as u64)
    };
    exact().ok_or_else(|| wrong("timestamp", field, expected))
}

/// FNV-1a 64.
fn hash(field: &[u8]) -> u64 {
    let mix = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
    field.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn one(format: Format, line: &str) -> Record {
        parse(format, &mut Clock::Open, line.as_bytes())
            .expect("it is right")
            .expect("it names an operation")
    }

    #[test]
    fn a_published_line_of_each_format_is_read() {
        let msr = one(Format::Msr, "128166372003061629,hm,1,Read,383496192,32768,413");
        assert_eq!(
            (msr.time_ns, msr.write, msr.offset, msr.length),
            (12_816_637_200_306_162_900, false, 383_496_192, 32_768)
        );
        let alibaba = one(Format::Alibaba, "419,W,8792731648,16384,1577808000000046");
        assert_eq!(
            (alibaba.time_ns, alibaba.write, alibaba.offset, alibaba.length),
            (1_577_808_000_000_046_000, true, 8_792_731_648, 16_384)
        );
        let tencent = one(Format::Tencent, "1538323200,12910952,128,0,1063");
        assert_eq!(
            (tencent.time_ns, tencent.write, tencent.offset, tencent.length),
            (1_538_323_200_000_000_000, false, 12_910_952 * 512, 65_536)
        );
        let systor = one(Format::Systor, "1455592102.000037,0.00114,W,4,231424,4096");
        assert_eq!(
            (systor.time_ns, systor.write, systor.offset, systor.length),
            (1_455_592_102_000_037_000, true, 231_424, 4_096)
        );
        let mqsim = one(Format::Mqsim, "48513000 1 6303480 8 0");
        assert_eq!(
            (mqsim.time_ns, mqsim.write, mqsim.offset, mqsim.length),
            (48_513_000, true, 6_303_480 * 512, 4_096)
        );
        let disksim = one(Format::Mqsim, "  0.006700\t0 1234  16 1");
        assert_eq!((disksim.time_ns, disksim.write), (6_700, false));
    }

    #[test]
    fn devices_differ_and_a_missing_operation_is_none() {
        let on = |host, disk| one(Format::Msr, &format!("1,{host},{disk},write,0,512,1")).device;
        assert!(on("hm", 0) != on("hm", 1) && on("hm", 0) != on("prn", 0));
        assert_eq!(
            parse(Format::Systor, &mut Clock::Open, b"1455592102.1,,,4,0,4096"),
            Ok(None)
        );
        assert!(is_header(
            Format::Systor,
            b"Timestamp,Response,IOType,LUN,Offset,Size"
        ));
        assert!(!is_header(Format::Systor, b"Timestamp,Response,IOType"));
        assert!(!is_header(Format::Msr, b"128166372003061629,hm,1,Read,0,512,413"));
    }

    #[test]
    fn what_is_wrong_is_named_with_what_is_expected() {
        let message = |format, line: &str| {
            parse(format, &mut Clock::Open, line.as_bytes())
                .expect_err("it is wrong")
                .to_string()
        };
        let cases = [
            (
                Format::Alibaba,
                "419,W,x1,16384,1",
                "the offset is \"x1\", expected a number of bytes",
            ),
            (
                Format::Alibaba,
                "419,T,0,16384,1",
                "the operation is \"T\", expected `R` or `W`",
            ),
            (
                Format::Alibaba,
                "419,W,0,0,1",
                "the size is \"0\", expected 1 byte to 1 GiB, in bytes",
            ),
            (
                Format::Alibaba,
                "419,W,0,512,",
                "the timestamp is \"\", expected a number of microseconds",
            ),
            (
                Format::Tencent,
                "1,2,3,4,5",
                "the operation is \"4\", expected 0 to read or 1 to write",
            ),
            (
                Format::Tencent,
                "1,2,2097153,1,5",
                "the size is \"2097153\", expected 1 sector to 1 GiB, in 512-byte sectors",
            ),
            (
                Format::Systor,
                "1.x,,R,4,0,1",
                "the timestamp is \"1.x\", expected a number of seconds",
            ),
            (
                Format::Mqsim,
                "-1 0 0 8 1",
                "the timestamp is \"-1\", expected nanoseconds, or milliseconds with a decimal point",
            ),
            (
                Format::Msr,
                "99999999999999999999,hm,1,Read,0,1,1",
                "the timestamp is \"99999999999999999999\", expected a number of 100 ns",
            ),
            (
                Format::Msr,
                "1,hm,1,Read,9223372036854775807,1,1",
                "the offset is \"9223372036854775807\", expected an offset below 8 EiB",
            ),
        ];
        for (format, line, expected) in cases {
            assert_eq!(message(format, line), expected);
        }
        assert_eq!(
            message(Format::Alibaba, "a b"),
            "the line has 1 fields, expected 5: device, R|W, offset (bytes), length (bytes), timestamp (µs)"
        );
    }

    /// Writes a record as its format has it.
    fn write(format: Format, record: &Record, device: u64) -> String {
        let (offset, length) = (record.offset, record.length);
        let (sector, sectors) = (offset / SECTOR_BYTES, length / SECTOR_BYTES);
        let name = |read, write| if record.write { write } else { read };
        let (s, ns) = (record.time_ns / 1_000_000_000, record.time_ns % 1_000_000_000);
        match format {
            Format::Msr => format!(
                "{},h{device},3,{},{offset},{length},9",
                record.time_ns / 100,
                name("Read", "Write")
            ),
            Format::Alibaba => format!(
                "{device},{},{offset},{length},{}",
                name("R", "W"),
                record.time_ns / 1_000
            ),
            Format::Tencent => format!("{s},{sector},{sectors},{},{device}", name("0", "1")),
            Format::Systor => format!("{s}.{ns:09},0.1,{},{device},{offset},{length}", name("R", "W")),
            Format::Mqsim => format!(
                "{} {device} {sector} {sectors} {}",
                record.time_ns,
                name("1", "0")
            ),
        }
    }

    proptest! {
        #[test]
        fn generated_lines_come_back(
            index in 0usize..5, seconds in 0u64..1 << 32, write_it: bool, sector in 0u64..1 << 50, sectors in 1u64..2_097_152,
            device: u64, blanks in "[ \t]{0,3}",
        ) {
            let format = Format::ALL[index];
            let record = Record {
                time_ns: seconds * 1_000_000_000,
                write: write_it,
                offset: sector * SECTOR_BYTES,
                length: sectors * SECTOR_BYTES,
                device: 0,
            };
            let separator = if format == Format::Mqsim { " " } else { "," };
            let line = write(format, &record, device).replace(separator, &format!("{blanks}{separator}{blanks}"));
            let read = one(format, &format!("{blanks}{line}{blanks}"));
            prop_assert_eq!(Record { device: 0, ..read }, record);
            prop_assert_eq!(read.device, one(format, &write(format, &record, device)).device);
        }

        #[test]
        fn no_bytes_make_it_panic(index in 0usize..5, line in proptest::collection::vec(any::<u8>(), 0..80)) {
            let _ = parse(Format::ALL[index], &mut Clock::Open, &line);
        }

        /// Lines that are nearly right get deeper.
        #[test]
        fn no_near_line_makes_it_panic(index in 0usize..5, line in "([0-9.RWrw,:-]{0,22}[, ]){4,6}[0-9.]{0,22}") {
            if let Ok(Some(record)) = parse(Format::ALL[index], &mut Clock::Open, line.as_bytes()) {
                prop_assert!(record.length >= 1 && record.length <= LENGTH_MAX);
                prop_assert!(record.offset < END_MAX - LENGTH_MAX);
            }
        }
    }
}
