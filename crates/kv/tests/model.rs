//! Shards that share hot keys, under random orders of messages and commits: what clients see of each key is linearizable, and what
//! one connection sees keeps its order.

use crate::rack::{Rack, keys};
use base::Rng;
use kv::SessionId;
use std::collections::{BTreeSet, VecDeque};

const SHARDS: usize = 3;
const KEYS: u64 = 2;
const CLIENTS: usize = 6;

#[derive(Clone, Debug)]
struct Event {
    key: u64,
    /// The value written, or 0 for a removal; none for a read.
    written: Option<u64>,
    /// The value read; 0 for none.
    read: u64,
    began: u64,
    /// When the reply came; `u64::MAX` if it did not.
    ended: u64,
}

struct Client {
    shard: usize,
    session: SessionId,
    under_way: VecDeque<usize>,
    input: Vec<u8>,
}

/// A wrong world, which the test must find.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Mistake {
    None,
    /// `Forget` is answered on the way, and does not arrive.
    LosesForget,
}

/// Runs clients and the world between shards from a seed. Answers what clients saw, and how many reads copies answered.
fn run(seed: u64, keeps: bool, mistake: Mistake) -> (Vec<Event>, u64) {
    let mut rng = Rng::new(seed);
    let mut rack = Rack::new(SHARDS, keys(keeps));
    let mut clients: Vec<Client> = (0..CLIENTS)
        .map(|number| {
            let shard = number % SHARDS;
            let session = rack.shards[shard].open();
            let (under_way, input) = (VecDeque::new(), Vec::new());
            Client {
                shard,
                session,
                under_way,
                input,
            }
        })
        .collect();
    let (mut events, mut time, mut value) = (Vec::<Event>::new(), 0, 0);
    // Mostly reads, so that keys become hot, then more writes.
    for step in 0..6000 {
        time += 1;
        match rng.below(10) {
            0..4 => {
                let client = &mut clients[rng.below(CLIENTS as u64) as usize];
                if client.under_way.len() < 3 {
                    let key = rng.below(KEYS);
                    let writes = rng.below(if step < 3000 { 400 } else { 12 }) == 0;
                    let line = match writes {
                        false => format!("get k{key}\r\n"),
                        true if rng.below(5) == 0 => format!("del k{key}\r\n"),
                        true => {
                            value += 1;
                            format!("set k{key} {value}\r\n")
                        }
                    };
                    let written = writes.then(|| if line.starts_with("del") { 0 } else { value });
                    client.under_way.push_back(events.len());
                    events.push(Event {
                        key,
                        written,
                        read: 0,
                        began: time,
                        ended: u64::MAX,
                    });
                    client.input.extend_from_slice(line.as_bytes());
                }
                let received = rack.shards[client.shard].receive(client.session, &client.input);
                client.input.drain(..received.consumed);
                rack.tell(client.shard);
            }
            4..8 => {
                let (from, to) = (
                    rng.below(SHARDS as u64) as usize,
                    rng.below(SHARDS as u64) as usize,
                );
                rack.deliver(from, to);
            }
            _ => {
                let shard = rng.below(SHARDS as u64) as usize;
                if rack.shards[shard].wants_commit() {
                    rack.commit(shard);
                }
            }
        }
        if mistake == Mistake::LosesForget {
            lose_forgets(&mut rack);
        }
        time += 1;
        clients
            .iter_mut()
            .for_each(|client| note(&mut rack, client, &mut events, time));
    }
    let reads = rack.shards.iter().map(|shard| shard.counters().copy_reads).sum();
    (events, reads)
}

/// Takes the replies that have come.
fn note(rack: &mut Rack, client: &mut Client, events: &mut [Event], time: u64) {
    let replies = rack.replies(client.shard, client.session);
    let text = String::from_utf8(replies).expect("plain text");
    let mut lines = text.split("\r\n").filter(|line| !line.is_empty());
    while let Some(line) = lines.next() {
        let event = &mut events[client.under_way.pop_front().expect("it was asked for")];
        event.ended = time;
        match line.as_bytes()[0] {
            b'+' | b':' => assert!(event.written.is_some(), "{line}"),
            b'$' if line == "$-1" => event.read = 0,
            b'$' => event.read = lines.next().expect("a value").parse().expect("a number"),
            _ => panic!("{line}"),
        }
    }
}

/// The world's mistake: owners hear that copies are gone, which are not.
fn lose_forgets(rack: &mut Rack) {
    const FORGET: u8 = 4;
    const FORGOTTEN: u8 = 5;
    for from in 0..SHARDS {
        for to in 0..SHARDS {
            let mut answers = Vec::new();
            rack.ways[from][to].retain(|bytes| {
                // A message of this kind alone: kind, batch, hash.
                let is_forget = bytes.len() == 17 && bytes[0] == FORGET;
                if is_forget {
                    let mut answer = bytes.clone();
                    answer[0] = FORGOTTEN;
                    answer.extend_from_slice(&0_u64.to_le_bytes());
                    answers.push(answer);
                }
                !is_forget
            });
            for answer in answers {
                rack.shards[from].hear(to, &answer);
                rack.tell(from);
            }
        }
    }
}

/// True if the events of a key have an order that explains them: each between its begin and its end, each read with the value of the
/// last write before. Values are unique, so the search is short.
fn is_linearizable(events: &[Event]) -> bool {
    let mut events: Vec<&Event> = events.iter().collect();
    events.sort_by_key(|event| event.began);
    // States: the value, and which of the events that may be next are done already.
    let mut states: BTreeSet<(u64, Vec<usize>)> = BTreeSet::from([(0, Vec::new())]);
    let mut open: Vec<usize> = Vec::new();
    let mut moments: Vec<(u64, bool, usize)> = Vec::new();
    for (index, event) in events.iter().enumerate() {
        moments.push((event.began, false, index));
        if event.ended != u64::MAX {
            moments.push((event.ended, true, index));
        }
    }
    moments.sort();
    for (_, is_end, index) in moments {
        if !is_end {
            open.push(index);
            continue;
        }
        // Reads that fit happen at once, which hinders nothing. Writes that are open may happen now, in any order.
        let absorb = |value: u64, mut done: Vec<usize>| {
            let fits = |at: &usize| {
                events[*at].written.is_none() && events[*at].read == value && events[*at].ended != u64::MAX
            };
            done.extend(open.iter().filter(|at| fits(at)));
            done.sort_unstable();
            done.dedup();
            (value, done)
        };
        let mut reached: BTreeSet<_> = states
            .into_iter()
            .map(|(value, done)| absorb(value, done))
            .collect();
        let mut ahead: Vec<_> = reached.iter().cloned().collect();
        while let Some((_, done)) = ahead.pop() {
            for &next in open.iter().filter(|next| !done.contains(next)) {
                if let Some(written) = events[next].written {
                    let mut done = done.clone();
                    done.push(next);
                    let state = absorb(written, done);
                    if reached.insert(state.clone()) {
                        ahead.push(state);
                    }
                }
            }
        }
        open.retain(|other| *other != index);
        states = reached
            .into_iter()
            .filter(|(_, done)| done.contains(&index))
            .map(|(value, done)| (value, done.into_iter().filter(|other| *other != index).collect()))
            .collect();
        if states.is_empty() {
            return false;
        }
    }
    true
}

fn check(seed: u64, keeps: bool, mistake: Mistake) -> (bool, u64) {
    let (events, copy_reads) = run(seed, keeps, mistake);
    let of_key = |key| -> Vec<Event> { events.iter().filter(|event| event.key == key).cloned().collect() };
    ((0..KEYS).all(|key| is_linearizable(&of_key(key))), copy_reads)
}

#[test]
fn each_key_is_linearizable_with_copies_of_hot_keys() {
    let mut copy_reads = 0;
    for seed in 0..20 {
        for keeps in [false, true] {
            let (is_linearizable, reads) = check(seed, keeps, Mistake::None);
            assert!(is_linearizable, "seed {seed}, keeps {keeps}");
            copy_reads += reads;
        }
    }
    assert!(copy_reads > 1000, "copies answer reads: {copy_reads}");
}

#[test]
fn a_run_depends_on_its_seed_alone() {
    let text = |seed| format!("{:?}", run(seed, true, Mistake::None));
    assert_eq!(text(5), text(5));
}

#[test]
fn a_write_that_does_not_wait_for_copies_is_found() {
    assert!((0..40).any(|seed| !check(seed, false, Mistake::LosesForget).0));
}
