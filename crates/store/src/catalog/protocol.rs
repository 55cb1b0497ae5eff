//! Messages between programs and the server of a catalog of areas (docs/format/areas.md, "Socket"): one packet each.
//!
//! Names, sizes and modes are the catalog's to judge; here a message is whole, or it is malformed.

pub use base::{Rate, Readers};
use thiserror::Error;

/// Longest message.
pub const MESSAGE_BYTES_MAX: usize = 4096;
/// Stands for the client's own user or group.
pub const OWN: u32 = u32::MAX;

const MAGIC: &[u8; 4] = b"SWYA";
const VERSION: u8 = 1;
const HEADER_BYTES: usize = 8;

/// It is no message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum MessageError {
    /// Not of this protocol, or cut.
    #[error("the message is malformed")]
    Malformed,
    /// Of another version.
    #[error("the message has version {0}, which this version does not know")]
    OtherVersion(u8),
}

/// An area to make.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of docs/format/areas.md")]
pub struct NewArea {
    pub name: String,
    pub bytes: u64,
    pub owner: u32,
    pub group: u32,
    pub mode: u16,
    pub rate: Rate,
}

/// A request of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of docs/format/areas.md")]
pub enum Request {
    Create(NewArea),
    Open {
        name: String,
        write: bool,
    },
    Resize {
        name: String,
        bytes: u64,
    },
    Delete {
        name: String,
        force: bool,
    },
    Export {
        name: String,
        area: String,
        readers: Readers,
        path: String,
    },
    Withdraw {
        name: String,
    },
    /// Areas with numbers above this.
    Areas {
        after: u64,
    },
    /// Exports with names above this.
    Exports {
        after: String,
    },
    Limit {
        name: String,
        rate: Rate,
    },
}

/// An area in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of docs/format/areas.md")]
pub struct AreaEntry {
    pub number: u64,
    pub bytes: u64,
    pub owner: u32,
    pub group: u32,
    pub mode: u16,
    /// 1 making, 2 ready, 3 growing, 4 leaving.
    pub state: u8,
    /// Somebody has it open for writing.
    pub is_open: bool,
    pub rate: Rate,
    pub name: String,
}

/// An export in a list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of docs/format/areas.md")]
pub struct ExportEntry {
    pub readers: Readers,
    pub name: String,
    pub area: String,
    pub path: String,
}

/// Why a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
#[allow(missing_docs, reason = "the codes are those of docs/format/areas.md")]
pub enum Code {
    Malformed = 1,
    Unknown = 2,
    Exists = 3,
    NotPermitted = 4,
    Invalid = 5,
    Quota = 6,
    NoRoom = 7,
    InUse = 8,
    Failed = 9,
    Busy = 10,
}

impl Code {
    const ALL: [Self; 10] = [
        Self::Malformed,
        Self::Unknown,
        Self::Exists,
        Self::NotPermitted,
        Self::Invalid,
        Self::Quota,
        Self::NoRoom,
        Self::InUse,
        Self::Failed,
        Self::Busy,
    ];
}

/// An answer of the server.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of docs/format/areas.md")]
pub enum Answer {
    Done,
    /// Comes with a descriptor.
    Opened {
        number: u64,
        bytes: u64,
        is_writable: bool,
        is_mapped: bool,
    },
    /// The owner's socket.
    Elsewhere(String),
    Refused {
        code: Code,
        text: String,
    },
    Areas {
        entries: Vec<AreaEntry>,
        more: bool,
    },
    Exports {
        entries: Vec<ExportEntry>,
        more: bool,
    },
}

impl Request {
    /// The packet.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Writer::new(match self {
            Self::Create(_) => 1,
            Self::Open { .. } => 2,
            Self::Resize { .. } => 3,
            Self::Delete { .. } => 4,
            Self::Export { .. } => 5,
            Self::Withdraw { .. } => 6,
            Self::Areas { .. } => 7,
            Self::Exports { .. } => 8,
            Self::Limit { .. } => 9,
        });
        match self {
            Self::Create(area) => {
                out.u64(area.bytes).u32(area.owner).u32(area.group).u16(area.mode);
                out.rate(area.rate).text(&area.name)
            }
            Self::Open { name, write } => out.u8(u8::from(*write)).text(name),
            Self::Resize { name, bytes } => out.u64(*bytes).text(name),
            Self::Delete { name, force } => out.u8(u8::from(*force)).text(name),
            Self::Export {
                name,
                area,
                readers,
                path,
            } => out.readers(*readers).text(area).text(name).text(path),
            Self::Withdraw { name } => out.text(name),
            Self::Areas { after } => out.u64(*after),
            Self::Exports { after } => out.text(after),
            Self::Limit { name, rate } => out.rate(*rate).text(name),
        };
        out.0
    }

    /// Reads a packet.
    pub fn parse(packet: &[u8]) -> Result<Self, MessageError> {
        let (kind, mut from) = Reader::new(packet)?;
        let request = match kind {
            1 => {
                let (bytes, owner, group, mode) = (from.u64()?, from.u32()?, from.u32()?, from.u16()?);
                Self::Create(NewArea {
                    rate: from.rate()?,
                    name: from.text()?,
                    bytes,
                    owner,
                    group,
                    mode,
                })
            }
            2 => {
                let write = from.flag()?;
                let name = from.text()?;
                Self::Open { name, write }
            }
            3 => {
                let bytes = from.u64()?;
                let name = from.text()?;
                Self::Resize { name, bytes }
            }
            4 => {
                let force = from.flag()?;
                let name = from.text()?;
                Self::Delete { name, force }
            }
            5 => {
                let (readers, area, name) = (from.readers()?, from.text()?, from.text()?);
                Self::Export {
                    name,
                    area,
                    readers,
                    path: from.text()?,
                }
            }
            6 => Self::Withdraw { name: from.text()? },
            7 => Self::Areas { after: from.u64()? },
            8 => Self::Exports { after: from.text()? },
            9 => Self::Limit {
                rate: from.rate()?,
                name: from.text()?,
            },
            _ => return Err(MessageError::Malformed),
        };
        from.end()?;
        Ok(request)
    }
}

impl Answer {
    /// The packet. Of a list, as many entries as it has room for; `more` is true then.
    pub fn emit(&self) -> Vec<u8> {
        match self {
            Self::Done => Writer::new(129).0,
            Self::Opened {
                number,
                bytes,
                is_writable,
                is_mapped,
            } => {
                let flags = u8::from(*is_writable) | u8::from(*is_mapped) << 1;
                let mut out = Writer::new(130);
                out.u64(*number).u64(*bytes).u8(flags);
                out.0
            }
            Self::Elsewhere(path) => {
                let mut out = Writer::new(131);
                out.text(path);
                out.0
            }
            Self::Refused { code, text } => {
                let mut out = Writer::new(132);
                out.u16(*code as u16).text(text);
                out.0
            }
            Self::Areas { entries, more } => list(133, entries, *more, |out, entry| {
                out.u64(entry.number)
                    .u64(entry.bytes)
                    .u32(entry.owner)
                    .u32(entry.group);
                out.u16(entry.mode).u8(entry.state).u8(u8::from(entry.is_open));
                out.rate(entry.rate).text(&entry.name);
            }),
            Self::Exports { entries, more } => list(134, entries, *more, |out, entry| {
                out.readers(entry.readers)
                    .text(&entry.name)
                    .text(&entry.area)
                    .text(&entry.path);
            }),
        }
    }

    /// Reads a packet.
    pub fn parse(packet: &[u8]) -> Result<Self, MessageError> {
        let (kind, mut from) = Reader::new(packet)?;
        let answer = match kind {
            129 => Self::Done,
            130 => {
                let (number, bytes, flags) = (from.u64()?, from.u64()?, from.u8()?);
                if flags > 3 {
                    return Err(MessageError::Malformed);
                }
                Self::Opened {
                    number,
                    bytes,
                    is_writable: flags & 1 != 0,
                    is_mapped: flags & 2 != 0,
                }
            }
            131 => Self::Elsewhere(from.text()?),
            132 => {
                let code = from.u16()?;
                let code = Code::ALL.into_iter().find(|it| *it as u16 == code);
                Self::Refused {
                    code: code.ok_or(MessageError::Malformed)?,
                    text: from.text()?,
                }
            }
            133 => {
                let (more, mut entries) = (from.flag()?, Vec::new());
                while !from.0.is_empty() {
                    entries.push(from.area()?);
                }
                Self::Areas { entries, more }
            }
            134 => {
                let (more, mut entries) = (from.flag()?, Vec::new());
                while !from.0.is_empty() {
                    entries.push(ExportEntry {
                        readers: from.readers()?,
                        name: from.text()?,
                        area: from.text()?,
                        path: from.text()?,
                    });
                }
                Self::Exports { entries, more }
            }
            _ => return Err(MessageError::Malformed),
        };
        from.end()?;
        Ok(answer)
    }
}

/// A list of as many entries as fit.
fn list<T>(kind: u8, entries: &[T], more: bool, emit: impl Fn(&mut Writer, &T)) -> Vec<u8> {
    let mut out = Writer::new(kind);
    out.u8(u8::from(more));
    for entry in entries {
        let length = out.0.len();
        emit(&mut out, entry);
        if out.0.len() > MESSAGE_BYTES_MAX {
            out.0.truncate(length);
            out.0[HEADER_BYTES] = 1;
            break;
        }
    }
    out.0
}

struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u8) -> Self {
        let mut bytes = MAGIC.to_vec();
        bytes.extend([VERSION, kind, 0, 0]);
        Self(bytes)
    }
    fn u8(&mut self, value: u8) -> &mut Self {
        self.0.push(value);
        self
    }
    fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend(value.to_le_bytes());
        self
    }
    /// Cut to what a message can hold: names and paths are shorter, and longer ones are refused anyway.
    fn text(&mut self, text: &str) -> &mut Self {
        let end = (0..=text.len().min(1000))
            .rev()
            .find(|&end| text.is_char_boundary(end));
        let text = &text[..end.expect("0 is a boundary")];
        self.u16(text.len() as u16);
        self.0.extend(text.as_bytes());
        self
    }
    fn rate(&mut self, rate: Rate) -> &mut Self {
        self.u32(rate.operations).u64(rate.bytes)
    }
    fn readers(&mut self, readers: Readers) -> &mut Self {
        match readers {
            Readers::All => self.u8(0).u32(0),
            Readers::User(user) => self.u8(1).u32(user),
            Readers::Group(group) => self.u8(2).u32(group),
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    /// The kind of a message, and what reads its fields.
    fn new(packet: &'a [u8]) -> Result<(u8, Self), MessageError> {
        let (header, fields) = packet
            .split_at_checked(HEADER_BYTES)
            .ok_or(MessageError::Malformed)?;
        if &header[..4] != MAGIC || header[6..] != [0, 0] || packet.len() > MESSAGE_BYTES_MAX {
            return Err(MessageError::Malformed);
        }
        if header[4] != VERSION {
            return Err(MessageError::OtherVersion(header[4]));
        }
        Ok((header[5], Self(fields)))
    }
    fn take(&mut self, length: usize) -> Result<&'a [u8], MessageError> {
        let (taken, rest) = self.0.split_at_checked(length).ok_or(MessageError::Malformed)?;
        self.0 = rest;
        Ok(taken)
    }
    fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let taken = self.take(N)?;
        Ok(taken.try_into().expect("as many were taken"))
    }
    fn u8(&mut self) -> Result<u8, MessageError> {
        self.array().map(u8::from_le_bytes)
    }
    fn u16(&mut self) -> Result<u16, MessageError> {
        self.array().map(u16::from_le_bytes)
    }
    fn u32(&mut self) -> Result<u32, MessageError> {
        self.array().map(u32::from_le_bytes)
    }
    fn u64(&mut self) -> Result<u64, MessageError> {
        self.array().map(u64::from_le_bytes)
    }
    fn flag(&mut self) -> Result<bool, MessageError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(MessageError::Malformed),
        }
    }
    fn text(&mut self) -> Result<String, MessageError> {
        let length = self.u16()?;
        let bytes = self.take(usize::from(length))?;
        let text = std::str::from_utf8(bytes).map_err(|_| MessageError::Malformed)?;
        Ok(text.to_owned())
    }
    fn rate(&mut self) -> Result<Rate, MessageError> {
        Ok(Rate {
            operations: self.u32()?,
            bytes: self.u64()?,
        })
    }
    fn readers(&mut self) -> Result<Readers, MessageError> {
        match (self.u8()?, self.u32()?) {
            (0, 0) => Ok(Readers::All),
            (1, user) => Ok(Readers::User(user)),
            (2, group) => Ok(Readers::Group(group)),
            _ => Err(MessageError::Malformed),
        }
    }
    fn area(&mut self) -> Result<AreaEntry, MessageError> {
        let (number, bytes, owner, group) = (self.u64()?, self.u64()?, self.u32()?, self.u32()?);
        let (mode, state, is_open) = (self.u16()?, self.u8()?, self.flag()?);
        Ok(AreaEntry {
            number,
            bytes,
            owner,
            group,
            mode,
            state,
            is_open,
            rate: self.rate()?,
            name: self.text()?,
        })
    }
    fn end(&self) -> Result<(), MessageError> {
        match self.0 {
            [] => Ok(()),
            _ => Err(MessageError::Malformed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;

    fn requests() -> Vec<Request> {
        let name = || "db".to_owned();
        vec![
            Request::Create(NewArea {
                name: name(),
                bytes: 8 << 20,
                owner: OWN,
                group: 7,
                mode: 0o640,
                rate: Rate {
                    operations: 0,
                    bytes: 1 << 40,
                },
            }),
            Request::Open {
                name: name(),
                write: true,
            },
            Request::Resize {
                name: name(),
                bytes: u64::MAX,
            },
            Request::Delete {
                name: name(),
                force: false,
            },
            Request::Export {
                name: name(),
                area: "log".into(),
                readers: Readers::Group(4),
                path: "/run/é".into(),
            },
            Request::Withdraw { name: name() },
            Request::Areas { after: 3 },
            Request::Exports { after: String::new() },
            Request::Limit {
                name: name(),
                rate: Rate {
                    operations: 100,
                    bytes: 0,
                },
            },
        ]
    }

    fn answers() -> Vec<Answer> {
        let area = AreaEntry {
            number: 4,
            bytes: 8 << 20,
            owner: 1,
            group: 2,
            mode: 0o600,
            state: 2,
            is_open: true,
            rate: Rate {
                operations: 7,
                bytes: 8,
            },
            name: "db".into(),
        };
        let export = ExportEntry {
            readers: Readers::User(9),
            name: "public".into(),
            area: "db".into(),
            path: String::new(),
        };
        vec![
            Answer::Done,
            Answer::Opened {
                number: 1,
                bytes: 2,
                is_writable: true,
                is_mapped: false,
            },
            Answer::Elsewhere("/run/db.sock".into()),
            Answer::Refused {
                code: Code::Quota,
                text: "no".into(),
            },
            Answer::Areas {
                entries: vec![area.clone(), area],
                more: false,
            },
            Answer::Exports {
                entries: vec![export],
                more: true,
            },
        ]
    }

    #[test]
    fn messages_come_back_and_none_that_is_cut_or_longer_does() {
        let check = |packet: &[u8], parse: &dyn Fn(&[u8]) -> bool| {
            assert!(parse(packet));
            for end in 0..packet.len() {
                let is_list = end > HEADER_BYTES && packet[5] >= 133;
                assert!(is_list || !parse(&packet[..end]), "{end} of {packet:?}");
            }
            let longer = [packet, &[0]].concat();
            assert!(!parse(&longer));
        };
        for request in requests() {
            assert_eq!(Request::parse(&request.emit()), Ok(request.clone()));
            check(&request.emit(), &|packet| Request::parse(packet).is_ok());
        }
        for answer in answers() {
            assert_eq!(Answer::parse(&answer.emit()), Ok(answer.clone()));
            check(&answer.emit(), &|packet| Answer::parse(packet).is_ok());
        }
        let mut newer = Request::Areas { after: 0 }.emit();
        newer[4] = 2;
        assert_eq!(Request::parse(&newer), Err(MessageError::OtherVersion(2)));
    }

    #[test]
    fn what_is_read_from_mutated_messages_says_what_it_was_read_from() {
        let packets: Vec<_> = requests()
            .iter()
            .map(Request::emit)
            .chain(answers().iter().map(Answer::emit))
            .collect();
        let mut rng = Rng::new(1);
        let mut read = 0;
        for _ in 0..200_000 {
            let mut packet = packets[rng.below(packets.len() as u64) as usize].clone();
            for _ in 0..rng.below(4) {
                let at = rng.below(packet.len() as u64) as usize;
                match rng.below(3) {
                    0 => packet[at] = rng.next_u64() as u8,
                    1 => packet.truncate(at.max(1)),
                    _ => packet.insert(at, rng.next_u64() as u8),
                }
            }
            if let Ok(request) = Request::parse(&packet) {
                assert_eq!(request.emit(), packet);
                read += 1;
            }
            if let Ok(answer) = Answer::parse(&packet) {
                assert_eq!(answer.emit(), packet);
                read += 1;
            }
        }
        assert!(read > 10_000, "{read} were messages");
    }

    #[test]
    fn a_list_that_is_too_long_is_cut_and_says_so() {
        let Answer::Areas { entries, .. } = &answers()[4] else {
            unreachable!("the fifth one");
        };
        let long = Answer::Areas {
            entries: vec![entries[0].clone(); 500],
            more: false,
        };
        let packet = long.emit();
        assert!(packet.len() <= MESSAGE_BYTES_MAX);
        let Ok(Answer::Areas { entries, more }) = Answer::parse(&packet) else {
            panic!("it is a list");
        };
        // Of 44 bytes each.
        assert!(more && entries.len() == 92, "{}", entries.len());
    }
}
