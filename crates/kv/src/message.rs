//! What shards of a process tell each other. It goes through memory of the process, so bytes that are no message are a bug.

use crate::command::Command;
use crate::parse::Words;
use crate::reply::Protocol;

/// The reply that a message asks for, or brings: of a session, which of its replies, and which part of this.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// The session.
    pub session: u64,
    /// Its reply.
    pub number: u64,
    /// The part.
    pub part: u32,
}

/// A message.
#[derive(Clone, Copy, Debug)]
pub enum Message<'a> {
    /// Carry a command out.
    Call {
        /// For this reply.
        place: Place,
        /// Which command.
        command: Command,
        /// The sender's.
        protocol: Protocol,
        /// The hash of the first word.
        hash: u64,
        /// Its words.
        words: Words<'a>,
    },
    /// A command's reply.
    Reply {
        /// Its place.
        place: Place,
        /// RESP, or for a part what [`crate::gather`] expects.
        bytes: &'a [u8],
    },
    /// A copy of a hot key.
    Copy {
        /// Of the key.
        hash: u64,
        /// The key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// A key has changed: its copy is out of date.
    Forget {
        /// The change's.
        batch: u64,
        /// Of the key.
        hash: u64,
    },
    /// The copy is gone.
    Forgotten {
        /// As it was asked.
        batch: u64,
        /// Of the key.
        hash: u64,
        /// How often it was read.
        reads: u64,
    },
}

const CALL: u8 = 1;
const REPLY: u8 = 2;
const COPY: u8 = 3;
const FORGET: u8 = 4;
const FORGOTTEN: u8 = 5;

fn bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
    out.extend_from_slice(bytes);
}

fn place(out: &mut Vec<u8>, place: &Place) {
    out.extend_from_slice(&place.session.to_le_bytes());
    out.extend_from_slice(&place.number.to_le_bytes());
    out.extend_from_slice(&place.part.to_le_bytes());
}

impl Message<'_> {
    /// Appends it.
    pub fn put(&self, out: &mut Vec<u8>) {
        match self {
            Self::Call {
                place: at,
                command,
                protocol,
                hash,
                words,
            } => {
                out.extend_from_slice(&[CALL, *command as u8, u8::from(*protocol == Protocol::Three)]);
                place(out, at);
                out.extend_from_slice(&hash.to_le_bytes());
                out.extend_from_slice(&(words.count() as u32).to_le_bytes());
                words.from(0).for_each(|word| bytes(out, word));
            }
            Self::Reply { place: at, bytes: of } => {
                out.push(REPLY);
                place(out, at);
                bytes(out, of);
            }
            Self::Copy { hash, key, value } => {
                out.push(COPY);
                out.extend_from_slice(&hash.to_le_bytes());
                bytes(out, key);
                bytes(out, value);
            }
            Self::Forget { batch, hash } => {
                out.push(FORGET);
                [batch, hash]
                    .iter()
                    .for_each(|it| out.extend_from_slice(&it.to_le_bytes()));
            }
            Self::Forgotten { batch, hash, reads } => {
                out.push(FORGOTTEN);
                [batch, hash, reads]
                    .iter()
                    .for_each(|it| out.extend_from_slice(&it.to_le_bytes()));
            }
        }
    }
}

/// Reads messages one after the other.
#[derive(Debug)]
pub struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

const WHOLE: &str = "a shard writes whole messages";

impl<'a> Reader<'a> {
    /// Those in `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    fn take<const N: usize>(&mut self) -> [u8; N] {
        let taken = self.bytes[self.at..].first_chunk().expect(WHOLE);
        self.at += N;
        *taken
    }

    fn number(&mut self) -> u64 {
        u64::from_le_bytes(self.take())
    }

    /// Where the next bytes with a length begin and end.
    fn span(&mut self) -> (u32, u32) {
        let length = u32::from_le_bytes(self.take());
        let begin = self.at as u32;
        self.at += length as usize;
        (begin, begin + length)
    }

    fn part(&mut self) -> &'a [u8] {
        let (begin, end) = self.span();
        &self.bytes[begin as usize..end as usize]
    }

    fn place(&mut self) -> Place {
        Place {
            session: self.number(),
            number: self.number(),
            part: u32::from_le_bytes(self.take()),
        }
    }

    /// The next one; `spans` gets the places of its words.
    pub fn next<'s>(&mut self, spans: &'s mut Vec<(u32, u32)>) -> Option<Message<'s>>
    where
        'a: 's,
    {
        if self.at == self.bytes.len() {
            return None;
        }
        let [kind] = self.take();
        Some(match kind {
            CALL => {
                let [command, protocol] = self.take();
                let (place, hash) = (self.place(), self.number());
                let count = u32::from_le_bytes(self.take());
                spans.clear();
                (0..count).for_each(|_| spans.push(self.span()));
                let protocol = if protocol == 1 {
                    Protocol::Three
                } else {
                    Protocol::Two
                };
                Message::Call {
                    place,
                    command: Command::of_number(command),
                    protocol,
                    hash,
                    words: Words::new(self.bytes, spans),
                }
            }
            REPLY => Message::Reply {
                place: self.place(),
                bytes: self.part(),
            },
            COPY => Message::Copy {
                hash: self.number(),
                key: self.part(),
                value: self.part(),
            },
            FORGET => Message::Forget {
                batch: self.number(),
                hash: self.number(),
            },
            FORGOTTEN => Message::Forgotten {
                batch: self.number(),
                hash: self.number(),
                reads: self.number(),
            },
            other => unreachable!("{WHOLE}, and none of kind {other}"),
        })
    }
}
