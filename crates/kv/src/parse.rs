//! Requests of RESP2 and RESP3 in a stream of bytes: arrays of bulk strings, and commands as lines of text.
//!
//! The parser keeps where it stopped, so each byte of a long request is looked at once. It copies nothing of an array; the words of
//! a line are copied, as quotes and escapes change them.

use thiserror::Error;

/// Bytes of a line without an end: Redis' `PROTO_INLINE_MAX_SIZE`.
const LINE_BYTES_MAX: usize = 64 << 10;

/// What a request may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Words of a request. Beyond, the connection ends.
    pub words_max: u32,
    /// Bytes of a word. Beyond, the connection ends.
    pub word_bytes_max: u32,
}

impl Default for RequestLimits {
    /// A million words, as with Redis, and words of 64 MiB (Redis has 512 MiB).
    fn default() -> Self {
        Self {
            words_max: 1 << 20,
            word_bytes_max: 64 << 20,
        }
    }
}

/// What makes a stream unreadable: the connection is told, with Redis' words, and ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum ProtocolError {
    /// A line without an end.
    #[error("too big inline request")]
    LongLine,
    /// The same where a count of words is expected.
    #[error("too big mbulk count string")]
    LongCount,
    /// The same where a length is expected.
    #[error("too big bulk count string")]
    LongLength,
    /// No count, or too large a count.
    #[error("invalid multibulk length")]
    Count,
    /// No length, or too large a length.
    #[error("invalid bulk length")]
    Length,
    /// A word begins with this instead of `$`.
    #[error("expected '$', got '{}'", char::from(*.0))]
    NoWord(u8),
    /// A line's quotes do not match.
    #[error("unbalanced quotes in request")]
    Quotes,
}

/// The outcome of a look at the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Parsed {
    /// A whole request of so many bytes: [`Parser::words`] has it.
    Request(usize),
    /// So many bytes that ask for nothing.
    Nothing(usize),
    /// The request goes on behind the bytes. The next look begins with the same bytes, and has more.
    Partial,
}

/// The words of a request.
#[derive(Clone, Copy, Debug)]
pub struct Words<'a> {
    bytes: &'a [u8],
    spans: &'a [(u32, u32)],
}

impl<'a> Words<'a> {
    /// Words that lie in `bytes` at `spans` (begin and end).
    pub fn new(bytes: &'a [u8], spans: &'a [(u32, u32)]) -> Self {
        Self { bytes, spans }
    }
    /// How many.
    pub fn count(&self) -> usize {
        self.spans.len()
    }
    /// One of them. The caller knows that it is there.
    pub fn word(&self, index: usize) -> &'a [u8] {
        let (begin, end) = self.spans[index];
        &self.bytes[begin as usize..end as usize]
    }
    /// All from the `first` on.
    pub fn from(&self, first: usize) -> impl ExactSizeIterator<Item = &'a [u8]> + Clone + use<'a> {
        let (bytes, spans) = (self.bytes, &self.spans[first.min(self.spans.len())..]);
        spans
            .iter()
            .map(move |&(begin, end)| &bytes[begin as usize..end as usize])
    }
    /// So many of them from the `first` on.
    pub fn part(&self, first: usize, count: usize) -> Words<'a> {
        Words {
            bytes: self.bytes,
            spans: &self.spans[first..first + count],
        }
    }
    /// The same words without those before `first`.
    pub fn behind(&self, first: usize) -> Words<'a> {
        Words {
            bytes: self.bytes,
            spans: &self.spans[first..],
        }
    }
}

/// The state between two looks.
#[derive(Clone, Debug, Default)]
pub struct Parser {
    limits: RequestLimits,
    spans: Vec<(u32, u32)>,
    /// Words of a line.
    text: Vec<u8>,
    is_line: bool,
    /// Words of an array that are to come, once its count is known.
    left: Option<u32>,
    /// Length of the word at `at`, once it is known.
    length: Option<u32>,
    /// Everything before is done.
    at: usize,
}

impl Parser {
    /// A parser at the begin of a stream.
    pub fn new(limits: RequestLimits) -> Self {
        Self {
            limits,
            ..Self::default()
        }
    }

    /// Looks for the request at the begin of `bytes`.
    ///
    /// # Errors
    /// The bytes are no request: the stream cannot be read on.
    pub fn parse(&mut self, bytes: &[u8]) -> Result<Parsed, ProtocolError> {
        let Some(&first) = bytes.first() else {
            return Ok(Parsed::Partial);
        };
        let parsed = match first {
            b'*' => self.array(bytes),
            _ => self.line(bytes),
        };
        if !matches!(parsed, Ok(Parsed::Partial)) {
            (self.at, self.left, self.length) = (0, None, None);
        }
        parsed
    }

    /// The words of the request that was found last in `bytes`.
    pub fn words<'a>(&'a self, bytes: &'a [u8]) -> Words<'a> {
        let bytes = if self.is_line { &self.text } else { bytes };
        Words::new(bytes, &self.spans)
    }

    fn array(&mut self, bytes: &[u8]) -> Result<Parsed, ProtocolError> {
        let mut left = match self.left {
            Some(left) => left,
            None => {
                let Some((count, next)) = number(bytes, 1, ProtocolError::LongCount)? else {
                    return Ok(Parsed::Partial);
                };
                let count = count.ok_or(ProtocolError::Count)?;
                if count > i64::from(self.limits.words_max) {
                    return Err(ProtocolError::Count);
                }
                if count <= 0 {
                    return Ok(Parsed::Nothing(next));
                }
                self.spans.clear();
                self.is_line = false;
                self.at = next;
                count as u32
            }
        };
        while left > 0 {
            self.left = Some(left);
            if self.length.is_none() {
                match bytes.get(self.at) {
                    None => return Ok(Parsed::Partial),
                    Some(b'$') => {}
                    Some(&other) => return Err(ProtocolError::NoWord(other)),
                }
                let Some((length, next)) = number(bytes, self.at + 1, ProtocolError::LongLength)? else {
                    return Ok(Parsed::Partial);
                };
                let fits = |length: &i64| (0..=i64::from(self.limits.word_bytes_max)).contains(length);
                self.length = Some(length.filter(fits).ok_or(ProtocolError::Length)? as u32);
                self.at = next;
            }
            let length = self.length.expect("it was just found") as usize;
            if bytes.len() < self.at + length + 2 {
                return Ok(Parsed::Partial);
            }
            self.spans.push((self.at as u32, (self.at + length) as u32));
            self.at += length + 2;
            self.length = None;
            left -= 1;
        }
        Ok(Parsed::Request(self.at))
    }

    fn line(&mut self, bytes: &[u8]) -> Result<Parsed, ProtocolError> {
        let Some(end) = bytes[self.at..].iter().position(|byte| *byte == b'\n') else {
            self.at = bytes.len();
            return match bytes.len() > LINE_BYTES_MAX {
                true => Err(ProtocolError::LongLine),
                false => Ok(Parsed::Partial),
            };
        };
        let end = self.at + end;
        let line = &bytes[..end];
        self.spans.clear();
        self.text.clear();
        self.is_line = true;
        split(
            line.strip_suffix(b"\r").unwrap_or(line),
            &mut self.text,
            &mut self.spans,
        )?;
        Ok(match self.spans.is_empty() {
            true => Parsed::Nothing(end + 1),
            false => Parsed::Request(end + 1),
        })
    }

    /// Bytes that the words of lines and their places keep; a session without a request may give them back.
    pub fn shrink(&mut self) {
        if self.left.is_none() && self.spans.capacity() > 1024 {
            self.spans = Vec::new();
        }
    }

    /// Bytes that the request at hand has at least, as far as it is known.
    pub fn bytes_wanted(&self) -> usize {
        self.at + self.length.map_or(0, |length| length as usize + 2)
    }
}

/// The number of a line that begins at `at`, and where the next line begins. The number is none if the line has none.
#[allow(clippy::type_complexity, reason = "a number, perhaps wrong, and a place")]
fn number(
    bytes: &[u8],
    at: usize,
    too_long: ProtocolError,
) -> Result<Option<(Option<i64>, usize)>, ProtocolError> {
    let rest = &bytes[at..];
    let Some(end) = rest.iter().position(|byte| *byte == b'\r') else {
        return match rest.len() > LINE_BYTES_MAX {
            true => Err(too_long),
            false => Ok(None),
        };
    };
    if end + 1 >= rest.len() {
        return Ok(None);
    }
    Ok(Some((crate::number::parse(&rest[..end]), at + end + 2)))
}

/// The words of a line: between blanks, or in quotes (Redis' `sdssplitargs`).
fn split(line: &[u8], text: &mut Vec<u8>, spans: &mut Vec<(u32, u32)>) -> Result<(), ProtocolError> {
    let mut at = 0;
    loop {
        while line.get(at).is_some_and(|byte| is_blank(*byte)) {
            at += 1;
        }
        if at >= line.len() {
            return Ok(());
        }
        let begin = text.len() as u32;
        while let Some(&byte) = line.get(at).filter(|byte| !is_blank(**byte)) {
            match byte {
                b'"' | b'\'' => {
                    at = quoted(line, at, text)?;
                    // A quote ends its word.
                    if line.get(at).is_some_and(|byte| !is_blank(*byte)) {
                        return Err(ProtocolError::Quotes);
                    }
                }
                byte => {
                    text.push(byte);
                    at += 1;
                }
            }
        }
        spans.push((begin, text.len() as u32));
    }
}

fn is_blank(byte: u8) -> bool {
    // As C's isspace, and the zero that ends Redis' strings.
    matches!(byte, b' ' | b'\t' | b'\n' | 0x0b | 0x0c | b'\r' | 0)
}

/// Copies what is in the quotes at `at`; answers the place behind them.
fn quoted(line: &[u8], mut at: usize, text: &mut Vec<u8>) -> Result<usize, ProtocolError> {
    let quote = line[at];
    at += 1;
    loop {
        let byte = *line.get(at).ok_or(ProtocolError::Quotes)?;
        if byte == quote {
            return Ok(at + 1);
        }
        let next = line.get(at + 1).copied();
        match (byte, next) {
            (b'\\', Some(b'\'')) if quote == b'\'' => {
                text.push(b'\'');
                at += 2;
            }
            (b'\\', Some(next)) if quote == b'"' => {
                let hex = line.get(at + 2..at + 4).filter(|_| next == b'x').and_then(hex);
                text.push(hex.unwrap_or(match next {
                    b'n' => b'\n',
                    b'r' => b'\r',
                    b't' => b'\t',
                    b'b' => 8,
                    b'a' => 7,
                    other => other,
                }));
                at += if hex.is_some() { 4 } else { 2 };
            }
            _ => {
                text.push(byte);
                at += 1;
            }
        }
    }
}

fn hex(digits: &[u8]) -> Option<u8> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    Some((digit(digits[0])? * 16 + digit(digits[1])?) as u8)
}
