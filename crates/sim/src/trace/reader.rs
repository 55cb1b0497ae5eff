//! A whole trace, line by line.

use super::line::{is_header, parse};
use super::{Format, LineError, Record};
use core::cell::Cell;
use std::io::{self, BufRead};
use std::rc::Rc;
use thiserror::Error;

/// Bytes of a line at most: several times what any format needs. Of a longer one the rest is read past.
const LINE_BYTES_MAX: usize = 1024;

/// A trace cannot be read on.
#[derive(Debug, Error)]
pub enum TraceError {
    /// A line is no request.
    #[error("{name}:{line}: {what}{}", hint.map(|format| format!("; it would be one of --format {}", format.name())).unwrap_or_default())]
    Line {
        /// The trace's name.
        name: String,
        /// The line, from 1.
        line: u64,
        /// What is wrong with it.
        what: LineError,
        /// Another format, in which it is right, if this is the first request.
        hint: Option<Format>,
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
}

/// What was read so far.
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
}

enum Line {
    /// It is empty, a remark, or names the columns.
    Nothing,
    WithoutOperation,
    Request(Record),
}

/// Reads a trace. Empty lines, lines that begin with `#`, and a first line that names the columns are passed over.
#[derive(Debug)]
pub struct TraceReader<R> {
    source: R,
    name: String,
    format: Format,
    skip_bad: bool,
    counts: Counts,
    told: Rc<Cell<Counts>>,
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
            buffer: Vec::with_capacity(LINE_BYTES_MAX),
            ended: false,
        }
    }

    /// Where it tells what was read so far, also after it was given away.
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

    /// What the buffer holds.
    fn line(&self) -> Result<Line, LineError> {
        if self.buffer.len() > LINE_BYTES_MAX {
            return Err(LineError::TooLong(LINE_BYTES_MAX));
        }
        let line = self.buffer.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&self.buffer);
        let line = line.trim_ascii();
        let first = self.counts.lines == 1;
        if line.is_empty() || line[0] == b'#' || (first && is_header(self.format, line)) {
            return Ok(Line::Nothing);
        }
        Ok(parse(self.format, line)?.map_or(Line::WithoutOperation, Line::Request))
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
        let right = |format: &Format| matches!(parse(*format, &self.buffer), Ok(Some(_)));
        let first = self.counts.requests == 0 && self.counts.bad == 0;
        TraceError::Line {
            name: self.name.clone(),
            line: self.counts.lines,
            what,
            hint: Format::ALL.into_iter().find(right).filter(|_| first),
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
            bad: 0,
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
