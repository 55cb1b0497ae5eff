//! The cost of cleaning: bytes written for each byte that users write, beside the closed form for a log that is cleaned
//! from its oldest end (docs/format/store.md, "What cleaning costs").

use base::{Device, Rng};
use store::{CleanStep, Durability, Engine, Kind, Layout, Op, Options, StructureId, SubmitError};

const VALUE_BYTES: usize = 200;

fn layout() -> Layout {
    Layout {
        sector_bytes: 512,
        block_bytes: 512,
        segment_bytes: 64 << 10,
        segments: 96,
        atomic_bytes: 512,
        record_bytes_max: 16 << 10,
    }
}

struct Rig {
    engine: Engine,
    image: Vec<u8>,
    map: StructureId,
    tag: u64,
    /// Segments that the cleaner read.
    reads: u64,
}

impl Rig {
    fn new() -> Self {
        let layout = layout();
        let mut image = vec![0; layout.capacity_bytes() as usize];
        store::create(&mut image, layout, [1; 16]).expect("the sizes fit");
        let (mut engine, _) = Engine::open(&mut image, Options::default()).expect("it was just made");
        let (map, _) = engine.create("it", Kind::Map, Durability::Sync).expect("room");
        let tag = 0;
        Self {
            engine,
            image,
            map,
            tag,
            reads: 0,
        }
    }

    /// Carries out what there is to do; true if there was something.
    fn work(&mut self) -> bool {
        let write = match self.engine.clean_step() {
            CleanStep::Read { offset, length } => {
                self.reads += 1;
                let mut bytes = vec![0; length];
                let result = self.image.read_at(offset, &mut bytes);
                self.engine.clean_read(bytes, result);
                return true;
            }
            CleanStep::Write(write) => Some(write),
            CleanStep::Wait | CleanStep::Idle => self.engine.next_write(),
        };
        let Some(write) = write else { return false };
        self.image
            .write_at(write.offset(), write.bytes())
            .expect("inside");
        self.engine.written(write, Ok(()));
        true
    }

    /// Puts `keys`, each with a new value, as one batch.
    fn put(&mut self, keys: &[u64]) {
        self.tag += 1;
        let data = vec![self.tag as u8; VALUE_BYTES];
        let keys: Vec<[u8; 8]> = keys.iter().map(|key| key.to_be_bytes()).collect();
        let map = self.map;
        let op = |key| Op::Put {
            map,
            key,
            data: &data,
        };
        let ops: Vec<Op<'_>> = keys.iter().map(|key| op(key)).collect();
        loop {
            match self.engine.submit(&ops) {
                Ok(_) => break,
                Err(SubmitError::Busy) => assert!(self.work(), "there is something to wait for"),
                Err(error) => panic!("{error}"),
            }
        }
        while self.work() {}
    }
}

/// Bytes written for each byte that users write, what the closed form says, and what it says of classes that are kept apart: live
/// data fills `fill` of the segments that are not reserved, and a share `writes` of the writes goes to a share `keys` of the keys.
fn amplification(fill: f64, (writes, keys): (f64, f64)) -> (f64, f64, f64) {
    let mut rig = Rig::new();
    let limit = rig.engine.stats().live_bytes_max as f64 / 0.8;
    let entry_bytes = (12 + 8 + VALUE_BYTES) as f64;
    let count = (limit * fill / entry_bytes) as u64;
    let all: Vec<u64> = (0..count).collect();
    all.chunks(32).for_each(|chunk| rig.put(chunk));
    let mut rng = Rng::new(7);
    let hot = (count as f64 * keys) as u64;
    let mut draw = || match rng.chance(writes) {
        true => rng.below(hot),
        false => hot + rng.below(count - hot),
    };
    let rounds = 6 * count / 32;
    let (mut before, mut chain) = (rig.engine.stats(), 0.0);
    // The first time the log comes to its steady state.
    for _ in 0..2 {
        before = rig.engine.stats();
        chain = 0.0;
        for _ in 0..rounds {
            let keys: Vec<u64> = (0..32).map(|_| draw()).collect();
            rig.put(&keys);
            let bytes: u64 = rig.engine.log_ranges().iter().map(|&(_, length)| length).sum();
            chain += bytes as f64 / rounds as f64;
        }
    }
    let after = rig.engine.stats();
    let user = (rounds * 32) as f64 * entry_bytes;
    let moved = (after.moved_bytes - before.moved_bytes) as f64;
    // What a byte of the log holds of entries, less headers and padding.
    let density = (user + moved) / (after.record_bytes - before.record_bytes) as f64;
    let live = count as f64 * entry_bytes / (chain * density);
    (
        1.0 + moved / user,
        closed_form(live, &[(writes, keys), (1.0 - writes, 1.0 - keys)]),
        apart(live, writes, keys),
    )
}

/// With a log for each of the two classes, and the space shared as it is best.
fn apart(live: f64, writes: f64, keys: f64) -> f64 {
    let class = |share: f64, keys: f64| match keys * live / share {
        fill if fill < 0.999 => closed_form(fill, &[(1.0, 1.0)]),
        _ => f64::INFINITY,
    };
    let shares = (1..1000).map(|share| f64::from(share) / 1000.0);
    let costs =
        shares.map(|share| writes * class(share, keys) + (1.0 - writes) * class(1.0 - share, 1.0 - keys));
    costs.fold(f64::INFINITY, f64::min)
}

/// Of what is written a share `u` is moved again by the time it is oldest. A key's entry survives a round of the log, of
/// `1 - u` user's writes, with `exp(-(1 - u) w / (k live))`, where `w` is the share of its class in writes and `k` in keys.
fn closed_form(live: f64, classes: &[(f64, f64)]) -> f64 {
    let excess = |u: f64| -> f64 {
        let part = |&(w, k): &(f64, f64)| w * (1.0 - u) / (1.0 - (-(1.0 - u) * w / (k * live)).exp());
        classes.iter().filter(|(w, _)| *w > 0.0).map(part).sum::<f64>() - 1.0
    };
    let (mut low, mut high) = (0.0, 1.0 - 1e-9);
    for _ in 0..100 {
        let middle = (low + high) / 2.0;
        match excess(middle) > 0.0 {
            true => low = middle,
            false => high = middle,
        }
    }
    1.0 / (1.0 - low)
}

#[test]
fn cleaning_costs_what_the_closed_form_says() {
    for (fill, skew, bound) in [
        (0.5, (0.5, 0.5), 1.8),
        (0.7, (0.5, 0.5), 3.3),
        (0.79, (0.5, 0.5), 7.2),
        (0.5, (0.9, 0.1), 2.5),
        (0.7, (0.9, 0.1), 4.4),
        (0.79, (0.9, 0.1), 8.8),
    ] {
        let (measured, expected, apart) = amplification(fill, skew);
        println!("fill {fill}, {skew:?}: {measured:.2}, closed form {expected:.2}, kept apart {apart:.2}");
        // Classes that are written alike gain nothing.
        let gains = apart < 0.99 * expected;
        assert_eq!(
            gains,
            skew != (0.5, 0.5),
            "{fill} {skew:?}: {apart} beside {expected}"
        );
        let ratio = measured / expected;
        assert!(
            (0.8..1.3).contains(&ratio),
            "{fill} {skew:?}: {measured} beside {expected}"
        );
        assert!(measured < bound, "{fill} {skew:?}: {measured}");
    }
}

#[test]
fn a_segment_without_anything_live_is_not_read() {
    let mut rig = Rig::new();
    let keys: Vec<u64> = (0..32).collect();
    while rig.engine.stats().cleaned < 200 {
        rig.put(&keys);
    }
    assert_eq!((rig.reads, rig.engine.stats().moved_bytes), (0, 0));
    assert_eq!(rig.engine.stats().cleaned_unread, rig.engine.stats().cleaned);
    // One key that stays makes a difference for the segment that it is in, each time the log comes round.
    rig.put(&[99]);
    let before = rig.engine.stats().cleaned;
    while rig.engine.stats().cleaned < before + 400 {
        rig.put(&keys);
    }
    assert!((1..20).contains(&rig.reads), "{} reads", rig.reads);
}
