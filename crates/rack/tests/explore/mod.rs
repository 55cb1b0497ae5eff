//! Breadth-first exploration of everything that can happen to a few replicas with one page.
//!
//! A state is the history that leads to it, played again; states are told apart by a hash of their printed form, in
//! which instants are relative to now, as only differences matter to the protocol.

use base::{Instant, Lpn, Version};
use rack::cache::{Cached, Store};
use rack::replica::REPLAY_AFTER;
use std::collections::{BTreeMap, VecDeque};
use std::fmt::{Debug, Write};
use std::panic::AssertUnwindSafe;

/// The page.
pub const PAGE: Lpn = Lpn(0);
/// More states than an exploration has by far: it is said to have exploded.
const STATES_MAX: usize = 400_000;

/// One page, volatile and durable.
#[derive(Clone, Debug, Default)]
pub struct Memory {
    pub volatile: Option<Cached>,
    pub durable: Option<Cached>,
}

impl Store for Memory {
    fn newest(&self, _lpn: Lpn) -> Version {
        self.volatile
            .as_ref()
            .map_or(Version::NONE, |cached| cached.version)
    }
    fn has_room(&self, _lpn: Lpn) -> bool {
        true
    }
    fn put(&mut self, _now: Instant, _lpn: Lpn, data: Cached) {
        assert!(data.version >= self.newest(PAGE), "a page never goes back");
        self.volatile = Some(data);
    }
    fn lose(&mut self, _lpn: Lpn, _version: Version) {
        unreachable!("the page is damaged nowhere");
    }
    fn is_latched(&self) -> bool {
        false
    }
    fn is_damaged(&self, _lpn: Lpn) -> bool {
        false
    }
    fn pages(&self) -> u32 {
        1
    }
}

/// Subject of the exploration.
pub trait World: Sized {
    /// Possible events, and how often.
    type Budget: Copy + Debug;
    /// Something that happens.
    type Action: Copy + Debug;

    /// The first state.
    fn new(budget: Self::Budget) -> Self;
    /// Everything that can happen next.
    fn actions(&self) -> Vec<Self::Action>;
    /// It happens; panics if it breaks a promise.
    fn apply(&mut self, action: Self::Action);
    /// Nothing is under way, and no timer runs.
    fn is_at_rest(&self) -> bool;
    /// Panics if what holds at rest does not.
    fn assert_rest(&self);
    /// The state as text, messages in no order.
    fn print(&self) -> String;
    /// The time.
    fn now(&self) -> Instant;

    /// The state after these actions.
    fn replay(budget: Self::Budget, history: &[Self::Action]) -> Self {
        let mut world = Self::new(budget);
        for &action in history {
            world.apply(action);
        }
        world
    }

    /// The state's identity.
    fn fingerprint(&self) -> u64 {
        fnv(&relative(&self.print(), self.now()))
    }
}

/// Replaces each instant by how long ago it was, as far as timeouts can tell, or how far ahead it is.
fn relative(text: &str, now: Instant) -> String {
    const MARK: &str = "Instant(";
    let mut parts = text.split(MARK);
    let mut out = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (digits, rest) = part.split_once(')').expect("an instant is closed");
        let at: u64 = digits.parse().expect("an instant is a number");
        let ago = i128::from(now.as_nanos()) - i128::from(at);
        write!(out, "{}{rest}", ago.min(REPLAY_AFTER.as_nanos() as i128)).expect("memory suffices");
    }
    out
}

fn fnv(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// The states found: by fingerprint, with the edges backwards.
#[derive(Default)]
struct Graph {
    numbers: BTreeMap<u64, usize>,
    before: Vec<Vec<usize>>,
    at_rest: Vec<usize>,
}

impl Graph {
    /// The state's number, and whether it is new.
    fn add(&mut self, fingerprint: u64) -> (usize, bool) {
        let next = self.before.len();
        let number = *self.numbers.entry(fingerprint).or_insert(next);
        if number == next {
            self.before.push(Vec::new());
        }
        (number, number == next)
    }

    /// States from which rest can be reached.
    fn can_rest(&self) -> usize {
        let mut reached = vec![false; self.before.len()];
        let mut stack = self.at_rest.clone();
        let mut count = 0;
        while let Some(state) = stack.pop() {
            if !core::mem::replace(&mut reached[state], true) {
                count += 1;
                stack.extend(&self.before[state]);
            }
        }
        count
    }
}

/// Explores everything; panics with the history that breaks a promise, or if rest cannot be reached from everywhere.
pub fn explore<W: World>(budget: W::Budget) {
    let mut graph = Graph::default();
    let mut frontier = VecDeque::from([(0, Vec::new())]);
    graph.add(W::new(budget).fingerprint());
    let (mut transitions, mut depth) = (0u64, 0);
    while let Some((from, history)) = frontier.pop_front() {
        let world = W::replay(budget, &history);
        if world.is_at_rest() {
            world.assert_rest();
            graph.at_rest.push(from);
        }
        for action in world.actions() {
            let mut longer = history.clone();
            longer.push(action);
            let next = std::panic::catch_unwind(AssertUnwindSafe(|| W::replay(budget, &longer)));
            let next = next.unwrap_or_else(|_| panic!("this breaks it: {longer:?}"));
            let (to, is_new) = graph.add(next.fingerprint());
            graph.before[to].push(from);
            transitions += 1;
            if is_new {
                depth = depth.max(longer.len());
                frontier.push_back((to, longer));
            }
        }
        assert!(graph.before.len() < STATES_MAX, "the state space exploded");
    }
    let states = graph.before.len();
    println!(
        "{budget:?}: {states} states, {transitions} transitions, {} at rest, depth {depth}",
        graph.at_rest.len()
    );
    assert!(states > 1000, "the exploration was worth something");
    assert_eq!(graph.can_rest(), states, "rest can be reached from everywhere");
}
