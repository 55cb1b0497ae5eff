//! Room that was told to a process is *reserved* for it: no other process, and no work of the daemon, takes it. So a call that was acknowledged finds its
//! room in the digest, whatever the others do (docs/format/fs.md, "Room").
//!
//! A process promises its calls no more than the newest part of the room that it has heard of. It may hear late, so each part that it was told
//! counts until it says that it has heard a newer one. The digest counts what it takes for the process against each of these parts. The rest of the largest
//! one is reserved. New parts are so large that all reservations together fit into what is free ([`level`]).

use fs::value::Part;
use std::collections::VecDeque;

/// Parts that are noted beside each other, at most. More are put together, and count as if the process had heard none of them.
const TOLD_MAX: usize = 32;

/// The parts of the room that a process was told, less what the digest has taken for it since.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reserved {
    /// The number of the telling, and what is left.
    told: VecDeque<(u64, Part)>,
}

impl Reserved {
    /// The room that the process's calls may take yet.
    pub fn left(&self) -> Part {
        let parts = self.told.iter().map(|(_, part)| *part);
        parts.fold(Part::default(), Part::max)
    }

    /// A part is told. Numbers rise.
    pub fn tell(&mut self, number: u64, part: Part) {
        match self.told.back_mut() {
            Some((last, told)) if *last == number => *told = told.max(part),
            _ => self.told.push_back((number, part)),
        }
        if self.told.len() > TOLD_MAX {
            let (_, first) = self.told.pop_front().expect("there are more than one");
            let second = &mut self.told.front_mut().expect("there are more than one").1;
            *second = second.max(first);
        }
    }

    /// The process has heard of a part, and all that it had logged before is digested.
    pub fn heard(&mut self, number: u64) {
        while self.told.len() > 1 && self.told.front().is_some_and(|(told, _)| *told < number) {
            self.told.pop_front();
        }
    }

    /// The digest has taken blocks of device 0, and of others.
    pub fn take(&mut self, first: u64, others: u64) {
        for (_, part) in &mut self.told {
            *part = part.less(first, others);
        }
    }
}

/// The largest part that can be told to each of `parts`, of which some have reserved more, if all of them together have `pool`.
pub(crate) fn level(pool: u64, parts: u64, reserved: impl Iterator<Item = u64> + Clone) -> u64 {
    let mut level = pool / parts;
    loop {
        // Those above the level have what they have. The others divide the rest.
        let above = reserved.clone().filter(|reserved| *reserved > level);
        let (count, sum) = above.fold((0, 0u64), |(count, sum), one| {
            (count + 1, sum.saturating_add(one))
        });
        let others = parts.saturating_sub(count);
        let next = match others {
            0 => 0,
            _ => pool.saturating_sub(sum) / others,
        };
        if next >= level {
            return level;
        }
        level = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::Rng;

    fn part(growth: u64) -> Part {
        Part {
            growth,
            deletion: growth + 10,
            data: growth,
        }
    }

    #[test]
    fn all_reservations_fit_into_the_pool_whoever_hears_late_and_takes_how_much() {
        for seed in 0..200 {
            let mut rng = Rng::new(seed);
            let parts = 2 + rng.below(6);
            let mut logs = vec![Reserved::default(); parts as usize];
            let mut pool = 500 + rng.below(5000);
            for number in 1..200 {
                let reserved: Vec<u64> = logs.iter().map(|log| log.left().growth).collect();
                let level = level(pool, parts, reserved.iter().copied());
                for log in &mut logs {
                    log.tell(number, part(level));
                }
                let sum: u64 = logs.iter().map(|log| log.left().growth).sum();
                assert!(sum <= pool, "seed {seed}: {sum} of {pool}");
                for log in &mut logs {
                    let taken = rng.below(log.left().growth + 1);
                    pool -= taken;
                    log.take(taken, 0);
                    if rng.chance(0.5) {
                        log.heard(number.saturating_sub(rng.below(3)));
                    }
                }
                // What was freed.
                pool += rng.below(200);
            }
            // Nothing stays reserved that nobody can use.
            for number in 200..202 {
                let reserved: Vec<u64> = logs.iter().map(|log| log.left().growth).collect();
                let level = level(pool, parts, reserved.iter().copied());
                for log in &mut logs {
                    log.tell(number, part(level));
                    log.heard(number);
                }
            }
            let left: Vec<u64> = logs.iter().map(|log| log.left().growth).collect();
            assert!(
                left.iter().all(|left| *left == pool / parts),
                "seed {seed}: {left:?}"
            );
        }
    }

    #[test]
    fn what_a_process_has_not_heard_counts_however_much_it_is_told() {
        let mut log = Reserved::default();
        log.tell(1, part(1000));
        for number in 2..500 {
            log.tell(number, part(10));
        }
        assert_eq!(log.left().growth, 1000);
        log.take(400, 0);
        assert_eq!(log.left().growth, 600);
        log.heard(499);
        assert_eq!(log.left().growth, 0, "the newest part was taken, too");
    }
}
