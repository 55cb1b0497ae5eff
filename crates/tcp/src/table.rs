//! The flows of a core: their slots, and a hash table from both ends to the slot.
//!
//! The table is open addressing with linear probing, at most half full. Its hash depends on a seed, so that nobody outside
//! can choose connections that collide. All memory is reserved at start.

use crate::addr::Tuple;
use crate::api::FlowId;
use crate::cold::{Cold, Stage};
use crate::flow::Flow;
use crate::paths::Paths;

/// The flows.
#[derive(Debug)]
pub struct Table {
    flows: Vec<Flow>,
    cold: Vec<Option<Cold>>,
    generations: Vec<u32>,
    free: Vec<u32>,
    /// Hash and slot + 1; 0 is empty.
    buckets: Vec<Bucket>,
    seed: u64,
    /// The ways that flows go.
    pub paths: Paths,
}

#[derive(Clone, Copy, Debug, Default)]
struct Bucket {
    hash: u32,
    slot: u32,
}

impl Table {
    /// Room for `flows_max` flows.
    pub fn new(flows_max: u32, seed: u64, paths: Paths) -> Self {
        let flows = flows_max as usize;
        Self {
            flows: vec![Flow::default(); flows],
            cold: vec![None; flows],
            generations: vec![0; flows],
            free: (0..flows_max).rev().collect(),
            buckets: vec![Bucket::default(); (2 * flows).next_power_of_two()],
            seed,
            paths,
        }
    }

    /// The state of a slot for the fast path.
    #[inline]
    pub fn flow(&mut self, slot: u32) -> &mut Flow {
        &mut self.flows[slot as usize]
    }

    /// The slow path's state of a slot that has a flow.
    pub fn cold(&mut self, slot: u32) -> &mut Cold {
        self.cold[slot as usize].as_mut().expect("the slot has a flow")
    }

    /// Both states of a slot that has a flow.
    pub fn both(&mut self, slot: u32) -> (&mut Flow, &mut Cold) {
        let cold = self.cold[slot as usize].as_mut().expect("the slot has a flow");
        (&mut self.flows[slot as usize], cold)
    }

    /// How far the flow of a slot is.
    pub fn stage(&self, slot: u32) -> Stage {
        self.cold[slot as usize]
            .as_ref()
            .map_or(Stage::Free, |cold| cold.stage)
    }

    /// The slot of an application's flow, if there is that flow.
    pub fn of_app(&self, app: u16, id: FlowId) -> Option<u32> {
        let slot = self.open_of_app(app, id)?;
        (self.stage(slot) != Stage::Free).then_some(slot)
    }

    /// The slot of an application's flow if that is open; otherwise perhaps a slot whose marks say that it is not.
    #[inline]
    pub fn open_of_app(&self, app: u16, id: FlowId) -> Option<u32> {
        let generation = *self.generations.get(id.index as usize)?;
        let is_it = generation == id.generation && self.flows[id.index as usize].app == app;
        is_it.then_some(id.index)
    }

    /// The id of a slot's flow.
    #[inline]
    pub fn id(&self, slot: u32) -> FlowId {
        FlowId {
            index: slot,
            generation: self.generations[slot as usize],
        }
    }

    /// Slots that have a flow, in order.
    pub fn used(&self) -> impl Iterator<Item = u32> {
        let slots = self.cold.iter().enumerate();
        slots
            .filter(|(_, cold)| cold.is_some())
            .map(|(slot, _)| slot as u32)
    }

    /// Whether there is room for another flow.
    pub fn has_room(&self) -> bool {
        !self.free.is_empty()
    }

    /// The slot of a connection.
    #[inline]
    pub fn find(&self, tuple: &Tuple) -> Option<u32> {
        let hash = self.hash(tuple);
        let mask = self.buckets.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let bucket = self.buckets[at];
            if bucket.slot == 0 {
                return None;
            }
            if bucket.hash == hash && self.is_of(bucket.slot - 1, tuple) {
                return Some(bucket.slot - 1);
            }
            at = (at + 1) & mask;
        }
    }

    #[inline]
    fn is_of(&self, slot: u32, tuple: &Tuple) -> bool {
        let flow = &self.flows[slot as usize];
        let path = self.paths.path(flow.path);
        flow.remote_port == tuple.remote.port
            && flow.local_port == tuple.local.port
            && path.remote == tuple.remote.ip
            && path.local == tuple.local.ip
    }

    /// Puts a flow that is not there yet into a free slot.
    pub fn insert(&mut self, mut flow: Flow, cold: Cold) -> Option<u32> {
        let tuple = cold.tuple;
        assert!(self.find(&tuple).is_none(), "one flow for one pair of ends");
        let slot = self.free.pop()?;
        (flow.local_port, flow.remote_port) = (tuple.local.port, tuple.remote.port);
        self.flows[slot as usize] = flow;
        self.cold[slot as usize] = Some(cold);
        let hash = self.hash(&tuple);
        let mask = self.buckets.len() - 1;
        let mut at = hash as usize & mask;
        while self.buckets[at].slot != 0 {
            at = (at + 1) & mask;
        }
        self.buckets[at] = Bucket { hash, slot: slot + 1 };
        Some(slot)
    }

    /// Takes the flow of a slot away, and answers it.
    pub fn remove(&mut self, slot: u32) -> (Flow, Cold) {
        let cold = self.cold[slot as usize].take().expect("the slot has a flow");
        let mask = self.buckets.len() - 1;
        let mut at = self.hash(&cold.tuple) as usize & mask;
        while self.buckets[at].slot != slot + 1 {
            at = (at + 1) & mask;
        }
        // What was pushed on by this bucket moves back, so that no probe ends too early.
        let mut next = (at + 1) & mask;
        while self.buckets[next].slot != 0 {
            let home = self.buckets[next].hash as usize & mask;
            if next.wrapping_sub(home) & mask >= next.wrapping_sub(at) & mask {
                self.buckets[at] = self.buckets[next];
                at = next;
            }
            next = (next + 1) & mask;
        }
        self.buckets[at] = Bucket::default();
        let generation = &mut self.generations[slot as usize];
        *generation = generation.wrapping_add(1);
        self.free.push(slot);
        (core::mem::take(&mut self.flows[slot as usize]), cold)
    }

    /// Multiply and fold, as `base::map::Mix`, from the seed.
    #[inline]
    fn hash(&self, tuple: &Tuple) -> u32 {
        let fold = |a: u64, b: u64| {
            let wide = u128::from(a) * u128::from(b);
            (wide >> 64) as u64 ^ wide as u64
        };
        let ports = u64::from(tuple.local.port) << 16 | u64::from(tuple.remote.port);
        let [remote0, remote1] = tuple.remote.ip.halves();
        let [local0, local1] = tuple.local.ip.halves();
        let remote = fold(remote0 ^ self.seed, remote1 ^ 0x9e37_79b9_7f4a_7c15);
        let local = fold(local0 ^ remote, local1 ^ 0xd6e8_feb8_6659_fd93);
        fold(ports ^ local, self.seed | 1) as u32
    }
}
