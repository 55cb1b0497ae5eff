//! The reply to a command that several shards carry out, from its parts.

use crate::command::Command;
use crate::info::{self, About, Counters};
use crate::number;
use crate::reply::{self, Protocol};

/// What is told at the end, beside the parts.
#[derive(Clone, Copy, Debug)]
pub struct Context<'a> {
    /// For INFO.
    pub about: &'a About,
    /// Unix time.
    pub now_ms: u64,
}

#[derive(Debug)]
enum Kind {
    /// Numbers are added.
    Sum(i64),
    /// Replies in a row.
    Row(Vec<Vec<u8>>),
    /// OK, unless one says otherwise.
    Ok(Option<Vec<u8>>),
    /// Lists, joined: how many, and replies.
    List(usize, Vec<u8>),
    /// Counters are added; the sections of INFO that are wanted.
    Info(Counters, Vec<Vec<u8>>),
}

/// Parts that have come, and how many have not.
#[derive(Debug)]
pub struct Gather {
    kind: Kind,
    left: u32,
    /// The batch that its parts of this shard need.
    pub needs: u64,
}

impl Gather {
    /// Of a command that so many calls make up; `words` are those of INFO.
    pub fn new<'a>(command: Command, parts: usize, words: impl Iterator<Item = &'a [u8]>) -> Self {
        let kind = match command {
            Command::MGet => Kind::Row(vec![Vec::new(); parts]),
            Command::MSet | Command::FlushAll | Command::FlushDb => Kind::Ok(None),
            Command::Keys => Kind::List(0, Vec::new()),
            Command::Info => Kind::Info(Counters::default(), words.map(<[u8]>::to_vec).collect()),
            _ => Kind::Sum(0),
        };
        Self {
            kind,
            left: parts as u32,
            needs: 0,
        }
    }

    /// A part has come.
    pub fn add(&mut self, part: u32, bytes: &[u8]) {
        self.left -= 1;
        match &mut self.kind {
            Kind::Sum(sum) => {
                let digits = bytes
                    .strip_prefix(b":")
                    .and_then(|rest| rest.strip_suffix(b"\r\n"));
                *sum += digits.and_then(number::parse).unwrap_or(0);
            }
            Kind::Row(row) => row[part as usize] = bytes.to_vec(),
            Kind::Ok(failed) => {
                if bytes != reply::OK && failed.is_none() {
                    *failed = Some(bytes.to_vec());
                }
            }
            Kind::List(count, list) => {
                let (head, rest) = bytes.split_first_chunk().expect("a list has its count");
                *count += u32::from_le_bytes(*head) as usize;
                list.extend_from_slice(rest);
            }
            Kind::Info(counters, _) => counters.add(bytes),
        }
    }

    /// True if all have come.
    pub fn is_whole(&self) -> bool {
        self.left == 0
    }

    /// Appends the reply.
    pub fn finish(&self, context: Context<'_>, protocol: Protocol, out: &mut Vec<u8>) {
        match &self.kind {
            Kind::Sum(sum) => reply::integer(out, *sum),
            Kind::Row(row) => {
                reply::array(out, row.len());
                row.iter().for_each(|part| out.extend_from_slice(part));
            }
            Kind::Ok(failed) => out.extend_from_slice(failed.as_deref().unwrap_or(reply::OK)),
            Kind::List(count, list) => {
                reply::array(out, *count);
                out.extend_from_slice(list);
            }
            Kind::Info(counters, wanted) => {
                let text = info::text(counters, context.about, context.now_ms, wanted);
                reply::text(out, text.as_bytes(), protocol);
            }
        }
    }
}
