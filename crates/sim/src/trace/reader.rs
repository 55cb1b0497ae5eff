//! A whole trace, line by line.

use super::line::{Clock, is_header, jump, parse};
use super::{Format, LineError, Record};
use core::cell::Cell;
use std::io::{self, BufRead};
use std::rc::Rc;
use thiserror::Error;

/// Bytes of a line at most: several times what any format needs. Of a longer one the rest is read past.
const LINE_BYTES_MAX: usize = 1024;

/// Requests in a row whose times are farther apart are taken for damage: a rack shows nothing in a longer pause, and the
/// years behind a damaged stamp would have to be simulated.
pub const GAP_NS_MAX: u64 = 86_400_000_000_000;

/// A trace cannot be read on.
#[derive(Debug, Error)]
pub enum TraceError {
    /// A line is no request.
    #[error("{name}:{line}: {what}{}{}", other_format(*hint), remedy(what, *is_cut))]
    Line {
        /// The trace's name.
        name: String,
        /// The line, from 1.
        line: u64,
        /// Its mistake.
        what: LineError,
        /// Another format, in which it is right, if this is the first request.
        hint: Option<Format>,
        /// The source ends within it.
        is_cut: bool,
    },
    /// The source fails.
    #[error("{name}:{line}: cannot be read: {what}")]
    Read {
        /// The trace's name.
        name: String,
        /// The line, from 1, before which it fails.
        line: u64,
        /// Why.
        what: io::Error,
    },
    /// It would take longer than [`super::SPAN_NS_MAX`] at the speed of the replay.
    #[error(
        "the replay comes to more than a year of simulated time at request {0}: choose a higher --speed, or fewer --requests"
    )]
    TooSlow(u64),
}

fn other_format(hint: Option<Format>) -> String {
    hint.map(|format| format!("; it would be one of --format {}", format.name()))
        .unwrap_or_default()
}

fn remedy(what: &LineError, is_cut: bool) -> &'static str {
    match what {
        _ if is_cut => "; the file ends within this line: if it was cut, --skip-bad passes over it",
        LineError::Jump { .. } => {
            "; --skip-bad passes over such a line, and over the pause if the next line bears it out"
        }
        _ => "",
    }
}

/// Lines and requests read so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Lines, all of them.
    pub lines: u64,
    /// Requests.
    pub requests: u64,
    /// Lines that name no operation.
    pub without_operation: u64,
    /// Lines that are no request and were skipped.
    pub bad: u64,
    /// Gaps of more than [`GAP_NS_MAX`] that were cut out.
    pub gaps: u64,
    /// Unit of the stamps, if the format leaves the unit open.
    pub clock: Clock,
    /// The last line has no end: if the source was cut there, what it says may be wrong.
    pub is_cut: bool,
}

/// The clock of a trace, of which nobody knows that it is right.
#[derive(Clone, Copy, Debug, Default)]
struct Times {
    /// Of the request before: its stamp in ns, and the time that it was given.
    latest: Option<(u64, u64)>,
    /// The stamp that was refused just before.
    refused_ns: Option<u64>,
}

impl Times {
    /// The time of a request, or how far its stamp is from that before, and whether it lies before.
    fn accept(&mut self, stamp_ns: u64) -> Result<u64, (u64, bool)> {
        let Some((before_ns, time_ns)) = self.latest else {
            self.latest = Some((stamp_ns, stamp_ns));
            return Ok(stamp_ns);
        };
        let far_ns = stamp_ns.abs_diff(before_ns);
        let back = stamp_ns < before_ns;
        if far_ns > GAP_NS_MAX {
            self.refused_ns = Some(stamp_ns);
            return Err((far_ns, back));
        }
        let time_ns = match back {
            true => time_ns.saturating_sub(far_ns),
            false => time_ns.saturating_add(far_ns),
        };
        (self.latest, self.refused_ns) = (Some((stamp_ns, time_ns)), None);
        Ok(time_ns)
    }

    /// True if the stamp that was refused just before bears this one out. It comes with the request before then.
    fn resume(&mut self, stamp_ns: u64) -> bool {
        let near = |refused_ns: u64| stamp_ns.abs_diff(refused_ns) <= GAP_NS_MAX;
        let resumes = self.refused_ns.is_some_and(near);
        if let (true, Some((before_ns, _))) = (resumes, &mut self.latest) {
            *before_ns = stamp_ns;
            self.refused_ns = None;
        }
        resumes
    }
}

enum Line {
    /// It is empty, a remark, or names the columns.
    Nothing,
    WithoutOperation,
    Request(Record),
}

/// Reads a trace. Empty lines, lines that begin with `#`, and a first line that names the columns are passed over.
///
/// A request whose stamp is more than [`GAP_NS_MAX`] from that of the request before is bad. Where bad lines are skipped
/// and two in a row agree with each other, it was the ones before that were damaged, or the trace has a gap: the second
/// is then taken, at the time of the request before, and those that follow from there on.
#[derive(Debug)]
pub struct TraceReader<R> {
    source: R,
    name: String,
    format: Format,
    skip_bad: bool,
    counts: Counts,
    told: Rc<Cell<Counts>>,
    times: Times,
    buffer: Vec<u8>,
    ended: bool,
}

impl<R: BufRead> TraceReader<R> {
    /// Reads `source`, which errors call `name`. With `skip_bad`, lines that are no request are counted and passed over;
    /// without, the first one ends the trace.
    pub fn new(source: R, name: &str, format: Format, skip_bad: bool) -> Self {
        Self {
            source,
            name: name.to_owned(),
            format,
            skip_bad,
            counts: Counts::default(),
            told: Rc::default(),
            times: Times::default(),
            buffer: Vec::with_capacity(LINE_BYTES_MAX),
            ended: false,
        }
    }

    /// Handle to the counts so far, valid after the reader was given away.
    pub fn counts(&self) -> Rc<Cell<Counts>> {
        Rc::clone(&self.told)
    }

    /// Reads the next line into the buffer; false at the end. A line that is too long is cut one byte beyond.
    fn read_line(&mut self) -> io::Result<bool> {
        self.buffer.clear();
        let mut any = false;
        loop {
            let bytes = match self.source.fill_buf() {
                Ok(bytes) => bytes,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if bytes.is_empty() {
                self.counts.is_cut |= any;
                return Ok(any);
            }
            any = true;
            let end = bytes.iter().position(|&byte| byte == b'\n');
            let part = &bytes[..end.unwrap_or(bytes.len())];
            let room = (LINE_BYTES_MAX + 1).saturating_sub(self.buffer.len());
            self.buffer.extend_from_slice(&part[..part.len().min(room)]);
            let used = end.map_or(bytes.len(), |end| end + 1);
            self.source.consume(used);
            if end.is_some() {
                return Ok(true);
            }
        }
    }

    /// Unread bytes of the buffer.
    fn line(&mut self) -> Result<Line, LineError> {
        if self.buffer.len() > LINE_BYTES_MAX {
            return Err(LineError::TooLong(LINE_BYTES_MAX));
        }
        let line = self.buffer.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.buffer);
        let line = line.trim_ascii();
        let first = self.counts.lines == 1;
        if line.is_empty() || line[0] == b'#' || (first && is_header(self.format, line)) {
            return Ok(Line::Nothing);
        }
        let Some(mut record) = parse(self.format, &mut self.counts.clock, line)? else {
            return Ok(Line::WithoutOperation);
        };
        let resumes = self.skip_bad && self.times.resume(record.time_ns);
        self.counts.gaps += u64::from(resumes);
        record.time_ns = (self.times.accept(record.time_ns))
            .map_err(|(far_ns, back)| jump(self.format, line, far_ns, back))?;
        Ok(Line::Request(record))
    }

    /// The next request, or why there is none.
    fn advance(&mut self) -> Option<Result<Record, TraceError>> {
        while !self.ended {
            match self.read_line() {
                Ok(true) => self.counts.lines += 1,
                Ok(false) => break,
                Err(what) => {
                    self.ended = true;
                    let (name, line) = (self.name.clone(), self.counts.lines + 1);
                    return Some(Err(TraceError::Read { name, line, what }));
                }
            }
            match self.line() {
                Ok(Line::Request(record)) => {
                    self.counts.requests += 1;
                    return Some(Ok(record));
                }
                Ok(Line::WithoutOperation) => self.counts.without_operation += 1,
                Ok(Line::Nothing) => {}
                Err(_) if self.skip_bad => self.counts.bad += 1,
                Err(what) => {
                    self.ended = true;
                    return Some(Err(self.line_error(what)));
                }
            }
        }
        self.ended = true;
        None
    }

    fn line_error(&self, what: LineError) -> TraceError {
        let right = |format: &Format| matches!(parse(*format, &mut Clock::Open, &self.buffer), Ok(Some(_)));
        let first = self.counts.requests == 0 && self.counts.bad == 0;
        TraceError::Line {
            name: self.name.clone(),
            line: self.counts.lines,
            what,
            hint: Format::ALL.into_iter().find(right).filter(|_| first),
            is_cut: self.counts.is_cut && !first,
        }
    }
}

impl<R: BufRead> Iterator for TraceReader<R> {
    type Item = Result<Record, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.advance();
        self.told.set(self.counts);
        item
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(format: Format, skip_bad: bool, text: &[u8]) -> (Vec<Record>, Option<String>, Counts) {
        let mut reader = TraceReader::new(text, "t.csv", format, skip_bad);
        let mut records = Vec::new();
        let mut error = None;
        for item in reader.by_ref() {
            match item {
                Ok(record) => records.push(record),
                Err(what) => error = Some(what.to_string()),
            }
        }
        (records, error, reader.counts().get())
    }

    #[test]
    fn headers_remarks_blank_lines_carriage_returns_and_a_missing_last_end_are_passed_over() {
        let text = b"\xef\xbb\xbfTimestamp,Response,IOType,LUN,Offset,Size\r\n# made up\r\n\r\n10.5,0.1,R,1,0,4096\r\n\
            10.6,,,1,4096,512\r\n10.7,,W,1,4096,512";
        let (records, error, counts) = read(Format::Systor, false, text);
        assert_eq!((records.len(), error), (2, None));
        assert!(!records[0].write && records[1].write && records[1].time_ns == 10_700_000_000);
        let expected = Counts {
            lines: 6,
            requests: 2,
            without_operation: 1,
            is_cut: true,
            ..Counts::default()
        };
        assert_eq!(counts, expected);
    }

    #[test]
    fn the_first_bad_line_ends_it_with_file_and_line_unless_it_is_to_be_skipped() {
        let text = b"1,R,0,512,10\n1,R,zero,512,11\n1,R,0,512\n1,W,512,512,12\n";
        let (records, error, _) = read(Format::Alibaba, false, text);
        assert_eq!(records.len(), 1);
        assert_eq!(
            error.as_deref(),
            Some("t.csv:2: the offset is \"zero\", expected a number of bytes")
        );
        let (records, error, counts) = read(Format::Alibaba, true, text);
        assert_eq!((records.len(), error, counts.bad, counts.lines), (2, None, 2, 4));
    }

    #[test]
    fn a_header_is_not_taken_further_down_nor_with_other_columns() {
        let header = "device_id,opcode,offset,length,timestamp\n";
        let line = "1,R,0,512,10\n";
        let (_, error, _) = read(Format::Alibaba, false, format!("{line}{header}").as_bytes());
        assert!(error.is_some_and(|error| error.starts_with("t.csv:2: the operation is \"opcode\"")));
        let (_, error, _) = read(Format::Alibaba, false, b"device_id,opcode\n");
        assert!(error.is_some_and(|error| error.starts_with("t.csv:1: the line has 2 fields, expected 5")));
    }

    #[test]
    fn a_trace_in_another_format_is_recognised() {
        let (_, error, _) = read(Format::Msr, false, b"1538323200,12910952,128,0,1063\n");
        let error = error.expect("it is no line of MSR");
        assert!(
            error.ends_with("; it would be one of --format tencent"),
            "{error}"
        );
    }

    #[test]
    fn an_endless_line_takes_no_memory_and_the_next_is_read() {
        let mut text = vec![b'7'; 1 << 20];
        text.extend_from_slice(b"\n1,R,0,512,10\n");
        let (_, error, _) = read(Format::Alibaba, false, &text);
        assert_eq!(
            error.as_deref(),
            Some("t.csv:1: the line is longer than 1024 bytes, expected a request of this format")
        );
        let mut reader = TraceReader::new(&text[..], "t.csv", Format::Alibaba, true);
        assert!(reader.next().is_some_and(|item| item.is_ok()));
        assert!(reader.buffer.capacity() <= 2 * LINE_BYTES_MAX && reader.counts().get().bad == 1);
    }

    /// A damaged stamp was believed, and the replay simulated the years up to it.
    #[test]
    fn a_stamp_years_away_is_a_bad_line() {
        let text = b"1,R,0,512,1577808000000000\n1,R,0,512,9577808000000050\n1,R,0,512,1577808000000100\n\
            1,R,0,512,77808000000150\n1,R,0,512,1577808000000200\n";
        let (records, error, _) = read(Format::Alibaba, false, text);
        assert_eq!(records.len(), 1);
        let error = error.expect("it is years away");
        assert!(
            error.starts_with(
                "t.csv:2: the timestamp is \"9577808000000050\", 254 years after that of the request before"
            ) && error.contains("--skip-bad"),
            "{error}"
        );
        let (records, error, counts) = read(Format::Alibaba, true, text);
        let since: Vec<_> = records.iter().map(|r| r.time_ns - records[0].time_ns).collect();
        assert_eq!((since, error), (vec![0, 100_000, 200_000], None));
        assert_eq!((counts.bad, counts.gaps), (2, 0));
    }

    #[test]
    fn where_a_first_stamp_was_damaged_or_a_trace_pauses_it_goes_on_with_the_second_line_after() {
        let text = b"1,R,0,512,99577808000000\n1,R,0,512,10\n1,R,0,512,20\n1,R,0,512,35\n";
        let (records, error, counts) = read(Format::Alibaba, true, text);
        let since: Vec<_> = records.iter().map(|r| r.time_ns - records[0].time_ns).collect();
        assert_eq!((since, error), (vec![0, 0, 15_000], None));
        assert_eq!((counts.bad, counts.gaps), (1, 1));
        let day = format!("1,R,0,512,0\n1,R,0,512,{}\n", GAP_NS_MAX / 1000);
        assert_eq!(read(Format::Alibaba, false, day.as_bytes()).0.len(), 2);
    }

    /// Whether MQSim's stamps were ns or ms was decided anew in every line.
    #[test]
    fn the_first_stamp_that_is_not_zero_decides_what_all_of_a_trace_count() {
        let times = |text: &[u8]| {
            let (records, error, counts) = read(Format::Mqsim, false, text);
            let times: Vec<_> = records.iter().map(|record| record.time_ns).collect();
            (times, error, counts.clock)
        };
        let (ms, error, clock) = times(b"0 0 0 8 1\n0.5 0 0 8 1\n2 0 0 8 1\n");
        assert_eq!(
            (ms, error, clock),
            (vec![0, 500_000, 2_000_000], None, Clock::Milliseconds)
        );
        let (ns, error, clock) = times(b"0 0 0 8 1\n500 0 0 8 1\n2.5 0 0 8 1\n");
        assert_eq!((ns, clock), (vec![0, 500], Clock::Nanoseconds));
        let error = error.expect("it is no whole number");
        assert!(
            error.starts_with("t.csv:3: the timestamp is \"2.5\", expected whole nanoseconds"),
            "{error}"
        );
    }

    #[test]
    fn a_source_that_ends_within_a_line_is_told() {
        let (records, error, counts) = read(Format::Tencent, false, b"1,2,8,1,5\n2,2,8,1,5");
        assert_eq!((records.len(), error, counts.is_cut), (2, None, true));
        assert!(!read(Format::Tencent, false, b"1,2,8,1,5\n2,2,8,1,5\n").2.is_cut);
        let (_, error, _) = read(Format::Tencent, false, b"1,2,8,1,5\n2,2,8");
        let error = error.expect("it is half a line");
        assert!(
            error.contains("the line has 3 fields") && error.contains("the file ends within this line"),
            "{error}"
        );
    }

    #[test]
    fn a_source_that_fails_says_where() {
        struct Torn(bool);
        impl io::Read for Torn {
            fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
                if self.0 {
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "torn"));
                }
                self.0 = true;
                let line = b"1,R,0,512,10\n1,R";
                into[..line.len()].copy_from_slice(line);
                Ok(line.len())
            }
        }
        let source = io::BufReader::new(Torn(false));
        let mut reader = TraceReader::new(source, "t.csv", Format::Alibaba, true);
        assert!(reader.next().is_some_and(|item| item.is_ok()));
        let error = reader.next().and_then(Result::err).expect("it failed");
        assert_eq!(error.to_string(), "t.csv:2: cannot be read: torn");
        assert!(reader.next().is_none());
    }

    proptest! {
        #[test]
        fn random_bytes_end_in_records_or_errors(index in 0usize..5, text in proptest::collection::vec(any::<u8>(), 0..2000)) {
            let format = Format::ALL[index];
            let (records, error, counts) = read(format, true, &text);
            prop_assert!(error.is_none());
            prop_assert_eq!(records.len() as u64, counts.requests);
            prop_assert!(counts.requests + counts.bad + counts.without_operation <= counts.lines);
            let (first, error, _) = read(format, false, &text);
            prop_assert_eq!(error.is_some(), counts.bad > 0);
            prop_assert!(first.len() <= records.len());
        }
    }
}
