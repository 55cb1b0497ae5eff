//! The flows of a core: their slots, and a hash table from both ends to the slot.
//!
//! The table is open addressing with linear probing, at most half full. Its hash depends on a seed, so that nobody outside
//! can choose connections that collide. All memory is reserved at start.

use crate::addr::{Ip, Tuple};
use crate::api::FlowId;
use crate::cold::{Cold, Stage};
use crate::flow::Flow;
use crate::paths::{Path, Paths};

/// The flows.
#[derive(Debug)]
pub struct Table {
    flows: Vec<Flow>,
    cold: Vec<Option<Cold>>,
    generations: Vec<u32>,
    free: Vec<u32>,
    /// Hash and slot + 1; 0 is empty.
    buckets: Vec<Bucket>,
    last: Last,
    seed: u64,
    /// The ways that flows go.
    pub paths: Paths,
}

/// The ends of an IPv4 connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ends4 {
    /// The peer's address, as a number in network order.
    pub remote: u32,
    /// This host's address.
    pub local: u32,
    /// The peer's port.
    pub remote_port: u16,
    /// This host's port.
    pub local_port: u16,
}

impl Ends4 {
    fn hosts(&self) -> u64 {
        u64::from(self.remote) << 32 | u64::from(self.local)
    }

    fn ports(&self) -> u64 {
        u64::from(self.local_port) << 16 | u64::from(self.remote_port)
    }
}

/// The connection that was found last, and its slot + 1; 0 is none.
#[derive(Clone, Copy, Debug, Default)]
struct Last {
    ends: Ends4,
    slot: u32,
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
            last: Last::default(),
            seed,
            paths,
        }
    }

    /// The state of a slot for the fast path.
    #[inline]
    pub fn flow(&mut self, slot: u32) -> &mut Flow {
        &mut self.flows[slot as usize]
    }

    /// The state of a slot for the fast path, its way, and the id of its flow, if it has one.
    #[inline]
    pub fn way(&mut self, slot: u32) -> (&mut Flow, &Path, FlowId) {
        let id = self.id(slot);
        let flow = &mut self.flows[slot as usize];
        let path = self.paths.path(flow.path);
        (flow, path, id)
    }

    /// The state of a slot for the fast path, and the id of its flow.
    #[inline]
    pub fn flow_and_id(&mut self, slot: u32) -> (&mut Flow, FlowId) {
        let id = self.id(slot);
        (&mut self.flows[slot as usize], id)
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
    pub fn find(&self, tuple: &Tuple) -> Option<u32> {
        self.probe(self.hash(tuple), |flow, path| {
            flow.remote_port == tuple.remote.port
                && flow.local_port == tuple.local.port
                && path.remote == tuple.remote.ip
                && path.local == tuple.local.ip
        })
    }

    /// The slot of an IPv4 connection: what [`Table::find`] answers. The connection that was found last is looked at first, as
    /// segments come in trains.
    #[inline]
    pub fn find4(&mut self, ends: Ends4) -> Option<u32> {
        if self.last.ends == ends && self.last.slot > 0 {
            return Some(self.last.slot - 1);
        }
        self.find4_any(ends)
    }

    #[inline(never)]
    fn find4_any(&mut self, ends: Ends4) -> Option<u32> {
        let (remote, local) = (Ip::of_v4(ends.remote), Ip::of_v4(ends.local));
        let slot = self.probe(self.mix(ends.hosts(), ends.ports()), |flow, path| {
            flow.remote_port == ends.remote_port
                && flow.local_port == ends.local_port
                && path.remote == remote
                && path.local == local
        })?;
        self.last = Last { ends, slot: slot + 1 };
        Some(slot)
    }

    /// The slot with this hash that `is_it`.
    #[inline(always)]
    fn probe(&self, hash: u32, is_it: impl Fn(&Flow, &Path) -> bool) -> Option<u32> {
        let mask = self.buckets.len() - 1;
        let mut at = hash as usize & mask;
        loop {
            let bucket = self.buckets[at];
            if bucket.slot == 0 {
                return None;
            }
            if bucket.hash == hash {
                let slot = bucket.slot - 1;
                let flow = &self.flows[slot as usize];
                if is_it(flow, self.paths.path(flow.path)) {
                    return Some(slot);
                }
            }
            at = (at + 1) & mask;
        }
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
        self.last = Last::default();
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

    fn hash(&self, tuple: &Tuple) -> u32 {
        let ports = u64::from(tuple.local.port) << 16 | u64::from(tuple.remote.port);
        let [remote0, remote1] = tuple.remote.ip.halves();
        let [local0, local1] = tuple.local.ip.halves();
        // The upper halves of IPv4 addresses are alike.
        let hosts = if tuple.remote.ip.is_v4() {
            remote1 << 32 | local1 & 0xffff_ffff
        } else {
            let remote = fold(remote0 ^ self.seed, remote1 ^ 0x9e37_79b9_7f4a_7c15);
            fold(local0 ^ remote, local1 ^ 0xd6e8_feb8_6659_fd93)
        };
        self.mix(hosts, ports)
    }

    #[inline]
    fn mix(&self, hosts: u64, ports: u64) -> u32 {
        fold(hosts ^ self.seed, ports ^ self.seed.rotate_left(32)) as u32
    }
}

/// Multiply and fold, as `base::map::Mix`.
#[inline]
fn fold(a: u64, b: u64) -> u64 {
    let wide = u128::from(a) * u128::from(b);
    (wide >> 64) as u64 ^ wide as u64
}
