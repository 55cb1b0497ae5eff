//! A replica set as the gateway sees it: numbering, bounded in-flight work, retransmission times, and what is dirty.

use super::line::Line;
use super::operations::{Kind, Kinds};
use super::readers::Readers;
use super::round_trip::RoundTrip;
use base::{Duration, Instant, VssdId};
use rack::dedup::WINDOW;

/// Mutations in flight on one set, at most; the rest waits. Well inside the servers' duplicate window.
pub const MUTATIONS_MAX: usize = 256;
/// Reads in flight on one set, at most.
pub const READS_MAX: usize = 256;
/// A set whose servers answered by the other ToR only is asked by that one so long.
const DETOUR: Duration = Duration::from_secs(1);

/// One replica set.
#[derive(Debug)]
pub struct Set {
    /// The replicas; the first orders the writes.
    pub replicas: Vec<VssdId>,
    /// They are others than when the gateway began.
    pub has_changed: bool,
    /// A joining replica that is whole: it is flushed with the others.
    pub joined: Option<VssdId>,
    /// The replicas as those to read from.
    pub readers: Readers,
    /// Another primary takes over: nothing is changed meanwhile.
    pub taking_over: bool,
    /// First page of the volume that is here.
    pub first_page: u64,
    /// The primary knows of this start of the gateway, so that nothing an earlier one has sent changes data any more.
    /// Before, nothing is changed, and no page is read to change a part of it.
    pub fenced: bool,
    /// A server may be cut off from the ToR that is used: what is first sent before this goes by the other one.
    detour_until: Option<Instant>,
    /// Requests name the set by this ([`rack::part::mark_since`]).
    pub mark: u32,
    /// The membership epoch last heard of.
    pub epoch: u32,
    next_mutation: u64,
    /// Operation of each mutation in flight, by number modulo the window.
    mutations: Box<[Option<u32>]>,
    oldest_mutation: u64,
    /// Mutations in flight.
    pub mutations_in_flight: usize,
    /// Reads in flight.
    pub reads_in_flight: usize,
    /// Operations that wait for a place in flight.
    pub waiting_mutations: Line,
    /// Reads that wait for a place in flight.
    pub waiting_reads: Line,
    /// Kinds of operations of which some may wait after a refusal.
    pub refused: Kinds,
    read_times: RoundTrip,
    mutation_times: RoundTrip,
    /// Acknowledged mutations that were not durable by themselves.
    pub acked: u64,
    /// As many of these a completed flush covers.
    pub flushed: u64,
    /// Continuity under which the unflushed ones were acknowledged.
    pub dirty_continuity: Option<u32>,
    /// Times that acknowledged data was lost before a flush.
    pub losses: u64,
}

impl Set {
    /// A set about which nothing is known yet: it counts as dirty, as an earlier gateway may have written to it.
    pub fn new(replicas: Vec<VssdId>, first_page: u64) -> Self {
        Self {
            readers: Readers::new(&replicas),
            replicas,
            has_changed: false,
            joined: None,
            taking_over: false,
            first_page,
            fenced: false,
            detour_until: None,
            mark: 0,
            epoch: 0,
            next_mutation: 1,
            mutations: vec![None; WINDOW as usize].into_boxed_slice(),
            oldest_mutation: 1,
            mutations_in_flight: 0,
            reads_in_flight: 0,
            waiting_mutations: Line::default(),
            waiting_reads: Line::default(),
            refused: Kinds::default(),
            read_times: RoundTrip::default(),
            mutation_times: RoundTrip::default(),
            acked: 1,
            flushed: 0,
            dirty_continuity: None,
            losses: 0,
        }
    }

    /// Where operations like this one wait for a place in flight.
    pub fn line(&mut self, kind: &Kind) -> &mut Line {
        match kind {
            Kind::Mutate { .. } => &mut self.waiting_mutations,
            _ => &mut self.waiting_reads,
        }
    }

    /// The replica after this one, around.
    pub fn next_of(&self, vssd: VssdId) -> VssdId {
        let place = self.replicas.iter().position(|&known| known == vssd);
        self.replicas[place.map_or(0, |place| (place + 1) % self.replicas.len())]
    }

    /// The next replica after this one, around, that is not silent; this one if all others are.
    pub fn next_heard(&self, now: Instant, vssd: VssdId) -> VssdId {
        let around = (1..self.replicas.len()).scan(vssd, |last, _| {
            *last = self.next_of(*last);
            Some(*last)
        });
        let mut heard = around.filter(|&next| !self.readers.is_silent(now, next));
        heard.next().unwrap_or(vssd)
    }

    /// True when pages may be changed, and read to be changed in part.
    pub fn takes_mutations(&self) -> bool {
        self.fenced && !self.taking_over
    }

    /// Every copy that a flush is for.
    pub fn copies(&self) -> impl Iterator<Item = VssdId> {
        self.replicas.iter().copied().chain(self.joined)
    }

    /// A number for the next mutation, `None` if too many are in flight or the window is full.
    pub fn number_mutation(&mut self, op: u32) -> Option<u64> {
        if self.mutations_in_flight >= MUTATIONS_MAX || self.next_mutation >= self.oldest_mutation + WINDOW {
            return None;
        }
        let number = self.next_mutation;
        self.next_mutation += 1;
        self.mutations_in_flight += 1;
        self.mutations[(number % WINDOW) as usize] = Some(op);
        Some(number)
    }

    /// It has had one replica ever since: nobody can be expelled.
    pub fn is_lone(&self) -> bool {
        self.replicas.len() == 1 && !self.has_changed
    }

    /// How far `number` lies above the oldest mutation in flight.
    pub fn floor(&self, number: u64) -> u32 {
        (number - self.oldest_mutation) as u32
    }

    /// The operation of a mutation in flight.
    pub fn mutation(&self, number: u64) -> Option<u32> {
        let in_flight = (self.oldest_mutation..self.next_mutation).contains(&number);
        if in_flight {
            self.mutations[(number % WINDOW) as usize]
        } else {
            None
        }
    }

    /// A mutation is over.
    pub fn end_mutation(&mut self, number: u64) {
        self.mutations[(number % WINDOW) as usize] = None;
        self.mutations_in_flight -= 1;
        while self.oldest_mutation < self.next_mutation
            && self.mutations[(self.oldest_mutation % WINDOW) as usize].is_none()
        {
            self.oldest_mutation += 1;
        }
    }

    /// A read in flight is over, or is to be sent anew. A replica was chosen for it, unless it goes where changes are ordered.
    pub fn end_read(&mut self, reader: Option<VssdId>) {
        self.reads_in_flight -= 1;
        if let Some(reader) = reader {
            self.readers.end(reader);
        }
    }

    /// When operations like this one are answered; `None` for a flush, which takes as long as there is to flush.
    pub fn times(&mut self, kind: &Kind) -> Option<&mut RoundTrip> {
        match kind {
            Kind::Read { .. } | Kind::ReadForMerge { .. } => Some(&mut self.read_times),
            Kind::Mutate { .. } => Some(&mut self.mutation_times),
            Kind::Flush { .. } => None,
        }
    }

    /// An operation that was sent more than once was answered, by the ToR that is used or by the other one.
    pub fn answered_again(&mut self, now: Instant, by_other: bool) {
        self.detour_until = by_other.then(|| now + DETOUR);
    }

    /// True if the other ToR than the one that is used is asked first.
    pub fn detours(&self, now: Instant) -> bool {
        self.detour_until.is_some_and(|until| now < until)
    }

    /// How long to wait for the answer to an operation that was sent so many times before.
    pub fn wait(&self, kind: &Kind, attempts: u32) -> Duration {
        match kind.is_read() {
            true => self.read_times.wait(attempts),
            false => self.mutation_times.wait(attempts),
        }
    }

    /// True when there are acknowledged writes that no completed flush covers.
    pub fn is_dirty(&self) -> bool {
        self.acked != self.flushed
    }

    /// A mutation was acknowledged that is not durable by itself. True if earlier ones are lost.
    pub fn acknowledge(&mut self, continuity: u32) -> bool {
        let is_lost = self.check_continuity(continuity);
        self.acked += 1;
        self.dirty_continuity = Some(continuity);
        is_lost
    }

    /// A replica tells its continuity: if it is another than that of unflushed writes, these are lost.
    /// True if that shows now.
    pub fn check_continuity(&mut self, continuity: u32) -> bool {
        if let Some(known) = &mut self.dirty_continuity
            && *known != continuity
        {
            *known = continuity;
            self.losses += 1;
            return true;
        }
        false
    }

    /// A flush that began when `acked` writes were acknowledged is complete.
    pub fn complete_flush(&mut self, acked: u64) {
        self.flushed = self.flushed.max(acked);
        if self.flushed == self.acked {
            self.dirty_continuity = None;
        }
    }
}

/// Shares of volume pages among sets.
pub fn locate(sets: &[Set], page: u64) -> (usize, u32) {
    let index = sets.partition_point(|set| set.first_page <= page) - 1;
    (index, (page - sets[index].first_page) as u32)
}

/// Next time something is due, kept coarse.
pub fn sooner(at: &mut Option<Instant>, candidate: Instant) {
    *at = Some(at.map_or(candidate, |at| at.min(candidate)));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_floor_is_the_oldest_mutation_in_flight() {
        let mut set = Set::new(vec![VssdId(1)], 0);
        let numbers: Vec<u64> = (0..3).map(|op| set.number_mutation(op).unwrap()).collect();
        assert_eq!(set.floor(numbers[2]), 2);
        set.end_mutation(numbers[1]);
        assert_eq!(set.floor(numbers[2]), 2, "the oldest is still there");
        set.end_mutation(numbers[0]);
        assert_eq!(set.floor(numbers[2]), 0);
        assert_eq!(
            (set.mutation(numbers[0]), set.mutation(numbers[2])),
            (None, Some(2))
        );
    }

    #[test]
    fn a_stuck_mutation_stops_the_window_before_the_servers_forget() {
        let mut set = Set::new(vec![VssdId(1)], 0);
        set.number_mutation(0).unwrap();
        for _ in 1..WINDOW {
            let number = set.number_mutation(1).unwrap();
            set.end_mutation(number);
        }
        assert_eq!(set.number_mutation(2), None);
    }

    #[test]
    fn a_changed_continuity_is_a_loss_of_what_is_not_flushed() {
        let mut set = Set::new(vec![VssdId(1)], 0);
        set.acknowledge(7);
        assert!(!set.check_continuity(7));
        set.complete_flush(set.acked);
        assert!(!set.is_dirty());
        assert!(!set.check_continuity(8), "nothing was unflushed");
        set.acknowledge(8);
        assert!(set.check_continuity(9) && !set.check_continuity(9));
        assert_eq!(set.losses, 1);
    }

    #[test]
    fn pages_are_found_in_their_set() {
        let sets = [Set::new(vec![], 0), Set::new(vec![], 10), Set::new(vec![], 15)];
        for (page, expected) in [(0, (0, 0)), (9, (0, 9)), (10, (1, 0)), (19, (2, 4))] {
            assert_eq!(locate(&sets, page), expected);
        }
    }
}
