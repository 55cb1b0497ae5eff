//! A connection: its protocol, and its replies in the order of its requests.
//!
//! A reply goes out when all replies before it have gone, its bytes are there, and the batch that it needs is complete.

use crate::gather::{Context, Gather};
use crate::parse::{Parser, RequestLimits};
use crate::reply::Protocol;
use std::collections::VecDeque;

/// Replies that wait. Beyond, requests of the connection are left where they are.
const WAITING_MAX: usize = 1024;
/// Bytes of replies that have not gone, the same.
const REPLY_BYTES_MAX: usize = 1 << 20;
/// Buffers that have become larger are given back when they are empty.
const KEPT_BYTES_MAX: usize = 1 << 16;

#[derive(Debug)]
enum Slot {
    /// So many bytes of `held` that need a batch.
    Held {
        bytes: usize,
        needs: u64,
    },
    /// Another shard's reply, for a key with this hash.
    Remote {
        hash: u64,
        reply: Option<Vec<u8>>,
    },
    Parts(Box<Gather>),
}

/// A connection.
#[derive(Debug)]
pub struct Session {
    /// Its number among all connections of the process.
    pub id: u64,
    /// What tells it from others in the same place.
    pub generation: u32,
    /// As it has chosen.
    pub protocol: Protocol,
    /// Of its requests.
    pub parser: Parser,
    /// As it calls itself.
    pub name: Vec<u8>,
    /// It ends when its replies have gone.
    pub is_closing: bool,
    /// It is among those that are told to the driver.
    pub is_ready: bool,
    /// It is among those that wait for a batch.
    pub is_listed: bool,
    /// Replies that may go.
    pub out: Vec<u8>,
    slots: VecDeque<Slot>,
    /// Number of the first slot.
    first: u64,
    held: Vec<u8>,
    /// Bytes of `held` that have gone.
    taken: usize,
}

impl Session {
    /// A new connection.
    pub fn new(id: u64, generation: u32, limits: RequestLimits) -> Self {
        Self {
            id,
            generation,
            protocol: Protocol::Two,
            parser: Parser::new(limits),
            name: Vec::new(),
            is_closing: false,
            is_ready: false,
            is_listed: false,
            out: Vec::new(),
            slots: VecDeque::new(),
            first: 0,
            held: Vec::new(),
            taken: 0,
        }
    }

    /// True if no more requests are to be looked at for now.
    pub fn is_full(&self) -> bool {
        self.slots.len() >= WAITING_MAX || self.out.len() + self.held.len() - self.taken >= REPLY_BYTES_MAX
    }

    /// True if every reply may go, or has gone.
    pub fn is_told(&self) -> bool {
        self.slots.is_empty()
    }

    /// True if a reply of another shard for a key with this hash, or for several keys, has not come.
    pub fn awaits(&self, hash: u64) -> bool {
        self.slots.iter().any(|slot| match slot {
            Slot::Held { .. } => false,
            Slot::Remote { hash: of, .. } => *of == hash,
            Slot::Parts(_) => true,
        })
    }

    /// A reply that needs the batch `needs`.
    pub fn reply(&mut self, bytes: &[u8], needs: u64, complete: u64) {
        if self.slots.is_empty() && needs <= complete {
            self.out.extend_from_slice(bytes);
            return;
        }
        if self.taken > KEPT_BYTES_MAX {
            self.held.drain(..std::mem::take(&mut self.taken));
        }
        self.held.extend_from_slice(bytes);
        if let Some(Slot::Held {
            bytes: before,
            needs: of,
        }) = self.slots.back_mut()
        {
            *before += bytes.len();
            *of = needs.max(*of);
            return;
        }
        self.slots.push_back(Slot::Held {
            bytes: bytes.len(),
            needs,
        });
    }

    fn push(&mut self, slot: Slot) -> u64 {
        self.slots.push_back(slot);
        self.first + self.slots.len() as u64 - 1
    }

    /// The number of a reply that another shard gives.
    pub fn await_reply(&mut self, hash: u64) -> u64 {
        self.push(Slot::Remote { hash, reply: None })
    }

    /// The number of a reply that has parts.
    pub fn await_parts(&mut self, gather: Gather) -> u64 {
        self.push(Slot::Parts(Box::new(gather)))
    }

    /// A reply has come, or a part of one, that needs a batch of this shard.
    pub fn fill(&mut self, number: u64, part: u32, bytes: &[u8], needs: u64) {
        let slot = number
            .checked_sub(self.first)
            .and_then(|at| self.slots.get_mut(at as usize));
        match slot.expect("a reply has its slot until it comes") {
            Slot::Remote { reply, .. } => *reply = Some(bytes.to_vec()),
            Slot::Parts(gather) => {
                gather.needs = gather.needs.max(needs);
                gather.add(part, bytes);
            }
            Slot::Held { .. } => unreachable!("it has come before"),
        }
    }

    /// Lets all replies go that may. Answers the batch that the first of the others needs, if that is what it waits for.
    pub fn advance(&mut self, complete: u64, context: Context<'_>) -> Option<u64> {
        while let Some(slot) = self.slots.front() {
            match slot {
                Slot::Held { needs, .. } if *needs > complete => return Some(*needs),
                Slot::Held { bytes, .. } => {
                    let end = self.taken + bytes;
                    self.out.extend_from_slice(&self.held[self.taken..end]);
                    self.taken = end;
                }
                Slot::Remote { reply: None, .. } => return None,
                Slot::Remote {
                    reply: Some(reply), ..
                } => self.out.extend_from_slice(reply),
                Slot::Parts(gather) if !gather.is_whole() => return None,
                Slot::Parts(gather) if gather.needs > complete => return Some(gather.needs),
                Slot::Parts(gather) => gather.finish(context, self.protocol, &mut self.out),
            }
            self.slots.pop_front();
            self.first += 1;
        }
        self.held.clear();
        self.taken = 0;
        if self.held.capacity() > KEPT_BYTES_MAX {
            self.held = Vec::new();
        }
        None
    }

    /// So many bytes of `out` have gone.
    pub fn sent(&mut self, bytes: usize) {
        if bytes < self.out.len() {
            self.out.drain(..bytes);
        } else if self.out.capacity() > KEPT_BYTES_MAX {
            self.out = Vec::new();
        } else {
            self.out.clear();
        }
    }
}
