//! The rings of flows, and whose flow each is.
//!
//! The stack may use a slot again before its owner has read what the last flow of the slot has left. So rings belong to a flow's id;
//! those of a flow whose slot has the next one are kept aside until the end of the flow is told.

use crate::handle::Handle;
use tcp::api::{FlowId, Rings};
use tcp::seq::Seq;
use tcp::stack::{Buffers, copy_in, copy_out};

/// Pairs of rings that are kept for the next flows.
const SPARE_MAX: usize = 1024;

/// The rings of a flow.
#[derive(Debug)]
pub struct Pair {
    /// Received bytes.
    pub receive: Box<[u8]>,
    /// Bytes to be sent.
    pub transmit: Box<[u8]>,
}

/// The owner and the rings of a flow.
#[derive(Debug, Default)]
struct Entry {
    generation: u32,
    handle: Option<Handle>,
    pair: Option<Pair>,
}

/// The rings of all flows.
#[derive(Debug)]
pub struct FlowTable {
    sizes: Rings,
    entries: Vec<Entry>,
    /// Flows whose slot has the next one already.
    aside: Vec<(u32, Entry)>,
    spare: Vec<Pair>,
}

impl FlowTable {
    /// No rings yet, of flows in so many slots.
    pub fn new(sizes: Rings, flows_max: u32) -> Self {
        Self {
            sizes,
            entries: (0..flows_max).map(|_| Entry::default()).collect(),
            aside: Vec::new(),
            spare: Vec::new(),
        }
    }

    /// The entry of a flow, made anew if its slot had another one.
    #[inline]
    fn entry(&mut self, flow: FlowId) -> &mut Entry {
        let index = flow.index as usize;
        if self.entries[index].generation == flow.generation {
            return &mut self.entries[index];
        }
        self.other_entry(flow)
    }

    #[cold]
    fn other_entry(&mut self, flow: FlowId) -> &mut Entry {
        let is_it =
            |(index, entry): &(u32, Entry)| (*index, entry.generation) == (flow.index, flow.generation);
        if let Some(at) = self.aside.iter().position(is_it) {
            return &mut self.aside[at].1;
        }
        let new = Entry {
            generation: flow.generation,
            ..Entry::default()
        };
        let old = std::mem::replace(&mut self.entries[flow.index as usize], new);
        if old.pair.is_some() || old.handle.is_some() {
            self.aside.push((flow.index, old));
        }
        &mut self.entries[flow.index as usize]
    }

    /// Says whose flow it is.
    pub fn bind(&mut self, flow: FlowId, handle: Option<Handle>) {
        self.entry(flow).handle = handle;
    }

    /// Whose flow it is.
    #[inline]
    pub fn owner(&mut self, flow: FlowId) -> Option<Handle> {
        self.entry(flow).handle
    }

    /// A flow's rings.
    #[inline]
    pub fn pair(&mut self, flow: FlowId) -> &mut Pair {
        let index = flow.index as usize;
        let entry = &self.entries[index];
        if entry.generation == flow.generation && entry.pair.is_some() {
            return self.entries[index].pair.as_mut().expect("it was looked at");
        }
        self.other_pair(flow)
    }

    #[cold]
    fn other_pair(&mut self, flow: FlowId) -> &mut Pair {
        if self.entry(flow).pair.is_none() {
            let pair = self.make();
            self.entry(flow).pair = Some(pair);
        }
        self.entry(flow).pair.as_mut().expect("it was made")
    }

    fn make(&mut self) -> Pair {
        let sizes = self.sizes;
        self.spare.pop().unwrap_or_else(|| Pair {
            receive: vec![0; 1 << sizes.receive].into(),
            transmit: vec![0; 1 << sizes.transmit].into(),
        })
    }

    /// Takes a flow out that is over, with its rings.
    pub fn take(&mut self, flow: FlowId) -> Option<Pair> {
        let entry = self.entry(flow);
        entry.handle = None;
        let pair = entry.pair.take();
        let is_it =
            |(index, entry): &(u32, Entry)| (*index, entry.generation) == (flow.index, flow.generation);
        self.aside.retain(|entry| !is_it(entry));
        pair
    }

    /// Keeps rings for another flow.
    pub fn recycle(&mut self, pair: Pair) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(pair);
        }
    }
}

impl Buffers for FlowTable {
    #[inline]
    fn place(&mut self, flow: FlowId, at: Seq, bytes: &[u8]) {
        copy_in(&mut self.pair(flow).receive, at, bytes);
    }

    #[inline]
    fn fetch(&mut self, flow: FlowId, at: Seq, bytes: &mut [u8]) {
        copy_out(&self.pair(flow).transmit, at, bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rings_of_a_flow_outlive_the_next_flow_of_its_slot() {
        let sizes = Rings {
            receive: 10,
            transmit: 10,
        };
        let mut table = FlowTable::new(sizes, 2);
        let flow = |generation| FlowId { index: 1, generation };
        table.place(flow(0), Seq(5), b"old");
        table.place(flow(1), Seq(5), b"new");
        assert_eq!(&table.pair(flow(0)).receive[5..8], b"old");
        assert_eq!(&table.pair(flow(1)).receive[5..8], b"new");
        let old = table.take(flow(0)).expect("it had rings");
        assert_eq!(&old.receive[5..8], b"old");
        assert_eq!(&table.pair(flow(1)).receive[5..8], b"new");
        assert!(table.aside.is_empty());
    }
}
