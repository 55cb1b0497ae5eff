//! Linearizability of every block, and durability across a loss of power.
//!
//! A block is a register; writes have unique values (write ids), so a history is linearizable exactly if no two
//! *clusters* (a write with the reads of its value) must each precede the other (Gibbons and Korach, "Testing shared
//! memories", 1997). With f = earliest end and s = latest start of a cluster's operations, u must precede v when
//! f(u) < s(v); two clusters conflict when f(u) < s(v) and f(v) < s(u). The checker keeps per block only the clusters
//! that a read may still return, and decides each read when it ends.
//!
//! No two clusters kept conflict. So a read that begins at `start` makes its cluster u conflict only with a v that ended
//! before `start`, and has f(u) < s(v). The latest s of the clusters that ended before `start` decides that for every u.
//! Two looks at each cluster decide a read.
//!
//! Zeros (trimmed, zeroed or never written) are not unique. A read of zeros is assigned to a cluster of zeros when only
//! one can have it, and otherwise only required to fit one: lenient, never wrong.
//!
//! A write that failed or was never answered may take effect at any time, or never: its f stays infinite until a read
//! returns it. Until then it is *pending*. It precedes nothing, so no read conflicts with it, and each read that ends after
//! it began may return it. Reads need not look at pending writes: one is found by its id, and zeros are counted. A
//! client that tries in vain leaves tens of thousands of them in each block.
//!
//! Loss of power ([`Checker::power_loss`]) makes the block fall back to *some* value that no durable write must follow;
//! durable are writes acknowledged before an acknowledged flush began, and acknowledged durable writes. The first read
//! decides which, and from then on it is stable. If every replica was down at once ([`Loss::Certain`]), what is found
//! was on a medium and is durable too; if some replica may have kept its memory ([`Loss::Possible`]), it is durable only
//! by a later flush. Reads under way across the loss are not judged; writes under way stay possible.

use super::Violation;
use base::{Instant, VolumeId};
use smallvec::SmallVec;
use std::collections::BTreeMap;

/// Not yet.
const NEVER: u64 = u64::MAX;
/// Id of the cluster whose value the first read after a loss of power decides.
const UNDECIDED: u64 = u64::MAX;
/// Flushes of a client that may fail after a loss of power.
const TELLS_MAX: u32 = 2;

/// Writes that a block lost with power.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// Nothing: a replica that holds everything keeps its memory.
    None,
    /// Perhaps what was not flushed: the replica that keeps its memory may not hold everything yet.
    Possible,
    /// Unflushed writes that no medium has: every replica is down.
    Certain,
}

/// Stamp of a simulated sector instead of data: its write, and its place. Zeros: never written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamp {
    /// Id of the write, unique in the run, 0 for zeros.
    pub id: u64,
    /// Block number in the volume.
    pub block: u64,
}

impl Stamp {
    /// Bytes of a stamp; a simulated sector is no smaller.
    pub const BYTES: usize = 16;

    /// Writes the stamp at the start of a sector.
    pub fn emit(self, sector: &mut [u8]) {
        sector[..8].copy_from_slice(&self.id.to_le_bytes());
        sector[8..16].copy_from_slice(&self.block.to_le_bytes());
    }

    /// Reads a sector's stamp.
    pub fn parse(sector: &[u8]) -> Self {
        let word =
            |at: usize| u64::from_le_bytes(*sector[at..].first_chunk().expect("a sector holds a stamp"));
        Self {
            id: word(0),
            block: word(8),
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Cluster {
    id: u64,
    /// Latest start of an operation on this value.
    s: u64,
    /// Earliest end of one.
    f: u64,
    /// When the write was acknowledged.
    acked: u64,
    zero: bool,
    durable: bool,
    /// The write was acknowledged by the gateway that runs still: if it is lost, a flush must say so.
    vouched: bool,
}

/// Latest and second latest s of some clusters.
#[derive(Clone, Copy, Debug)]
struct Bar {
    first: u64,
    /// Its place in [`Block::live`], [`usize::MAX`] if it was dropped from there.
    holder: usize,
    second: u64,
}

impl Bar {
    /// Latest s of the clusters but this one.
    fn of_others(self, place: usize) -> u64 {
        if place == self.holder {
            self.second
        } else {
            self.first
        }
    }
}

/// Where a block keeps a cluster.
#[derive(Clone, Copy, Debug)]
enum Place {
    Live(usize),
    Pending(usize),
}

#[derive(Clone, Debug)]
struct Block {
    /// Values that took effect and that a read may still return. No two conflict.
    live: SmallVec<[Cluster; 1]>,
    /// Writes that nobody has acknowledged or read since, by id: each takes effect at any time, or never.
    pending: Vec<Cluster>,
    /// Those of them that are of zeros.
    pending_zeros: usize,
    /// Starts of the reads under way.
    reading: SmallVec<[u64; 2]>,
    /// Values that can only come back with a loss of power.
    rollback: Vec<Cluster>,
    rollback_pruned_at: usize,
    /// Candidates of the undecided cluster.
    undecided: Vec<u64>,
    /// Those of them that no acknowledged write must follow, and when power was lost.
    untold: Option<(u64, Vec<u64>)>,
    /// A read has found another one, of a loss of power at this time.
    lost: Option<u64>,
    /// Latest s of the clusters dropped from `live`.
    dropped_s: u64,
    /// Latest s of the durable clusters dropped from everywhere.
    durable_s: u64,
}

impl Block {
    fn new() -> Self {
        let nothing_written = Cluster {
            id: 0,
            s: 0,
            f: 0,
            acked: 0,
            zero: true,
            durable: true,
            vouched: false,
        };
        Self {
            live: SmallVec::from_slice(&[nothing_written]),
            pending: Vec::new(),
            pending_zeros: 0,
            reading: SmallVec::new(),
            rollback: Vec::new(),
            rollback_pruned_at: 8,
            undecided: Vec::new(),
            untold: None,
            lost: None,
            dropped_s: 0,
            durable_s: 0,
        }
    }

    fn holds(&self, cluster: &Cluster, id: u64) -> bool {
        match (cluster.id == UNDECIDED, id) {
            (true, _) => self.undecided.contains(&id),
            (false, 0) => cluster.zero,
            (false, _) => cluster.id == id && !cluster.zero,
        }
    }

    /// A write may take effect from now on.
    fn add_pending(&mut self, write: Cluster) {
        // Clients count ids up, so this is nearly always the end.
        let is_last = self.pending.last().is_none_or(|other| other.id < write.id);
        let place = match is_last {
            true => self.pending.len(),
            false => self.pending.partition_point(|other| other.id < write.id),
        };
        self.pending.insert(place, write);
        self.pending_zeros += usize::from(write.zero);
    }

    fn find_pending(&self, id: u64) -> Option<usize> {
        self.pending.binary_search_by_key(&id, |write| write.id).ok()
    }

    fn find_pending_zeros(&self) -> Option<usize> {
        self.pending.iter().position(|write| {
            look();
            write.zero
        })
    }

    /// A write took effect: it was acknowledged or read now.
    fn take_effect(&mut self, place: usize, now: u64) -> &mut Cluster {
        let mut write = self.pending.remove(place);
        self.pending_zeros -= usize::from(write.zero);
        write.f = now;
        self.live.push(write);
        self.live.last_mut().expect("it was pushed")
    }

    /// Of the clusters that ended before `time`.
    fn bar(&self, time: u64) -> Bar {
        let mut bar = Bar {
            first: self.dropped_s,
            holder: usize::MAX,
            second: 0,
        };
        for (place, cluster) in self.live.iter().enumerate() {
            look();
            if cluster.f >= time {
                continue;
            }
            if cluster.s > bar.first {
                (bar.second, bar.first, bar.holder) = (bar.first, cluster.s, place);
            } else {
                bar.second = bar.second.max(cluster.s);
            }
        }
        bar
    }

    /// How many clusters a read of `id` that begins at `start` and ends now may belong to, and one of them.
    fn owners(&self, id: u64, start: u64) -> (usize, Option<Place>) {
        let bar = self.bar(start);
        let (mut count, mut owner) = (0, None);
        for (place, cluster) in self.live.iter().enumerate() {
            look();
            if self.holds(cluster, id) && cluster.f >= bar.of_others(place) {
                count += 1;
                owner = Some(Place::Live(place));
            }
        }
        if id == 0 {
            count += self.pending_zeros;
            if count == 1 && owner.is_none() {
                owner = self.find_pending_zeros().map(Place::Pending);
            }
        } else if let Some(place) = self.find_pending(id).filter(|&place| !self.pending[place].zero) {
            count += 1;
            owner = Some(Place::Pending(place));
        }
        (count, owner)
    }

    /// A read of `id` that began at `start` and ends now is of this cluster and no other.
    fn own(&mut self, place: Place, id: u64, start: u64, now: u64) {
        let cluster = match place {
            Place::Live(place) => &mut self.live[place],
            Place::Pending(place) => self.take_effect(place, now),
        };
        cluster.s = cluster.s.max(start);
        if cluster.id == UNDECIDED {
            (cluster.id, cluster.zero) = (id, id == 0);
            self.undecided = Vec::new();
            let untold = self.untold.take();
            if let Some((lost_at, _)) = untold.filter(|(_, untold)| !untold.contains(&id)) {
                self.lost = Some(lost_at);
            }
        }
    }

    /// Drops from `live` what no read under way or to come can return.
    fn prune(&mut self, now: u64, flushed_before: u64, durability: bool) {
        if self.live.len() <= 1 {
            return;
        }
        // Every read that can still end begins after this.
        let horizon = self.reading.iter().copied().min().unwrap_or(now);
        let bar = self.bar(horizon);
        let mut place = 0;
        self.live.retain(|cluster| {
            look();
            let stays = cluster.f >= horizon || cluster.f >= bar.of_others(place);
            place += 1;
            if !stays {
                self.dropped_s = self.dropped_s.max(cluster.s);
                if durability {
                    self.rollback.push(*cluster);
                }
            }
            stays
        });
        if durability && self.rollback.len() > self.rollback_pruned_at {
            self.prune_rollback(flushed_before);
            self.rollback_pruned_at = 2 * self.rollback.len() + 8;
        }
    }

    /// Latest and second latest s of the durable clusters, and the id of the latest; with `vouched` of those, too, that
    /// may be lost only if a flush says so.
    fn durable_bar(&self, flushed_before: u64, vouched: bool) -> (u64, u64, Option<Cluster>) {
        let (mut first, mut second, mut holder) = (self.durable_s, 0, None);
        for cluster in self.live.iter().chain(&self.rollback) {
            let durable = cluster.durable && cluster.acked < NEVER || cluster.acked < flushed_before;
            if !(durable || vouched && cluster.vouched) {
                continue;
            }
            if cluster.s > first || holder.is_none() && cluster.s == first {
                second = first;
                first = cluster.s;
                holder = Some(*cluster);
            } else {
                second = second.max(cluster.s);
            }
        }
        (first, second, holder)
    }

    /// True if a durable write must follow `cluster`, given [`Block::durable_bar`].
    fn is_buried(cluster: &Cluster, bar: (u64, u64, Option<Cluster>)) -> bool {
        let (first, second, holder) = bar;
        let own = holder.is_some_and(|h| h.id == cluster.id && h.zero == cluster.zero);
        cluster.f < if own { second } else { first }
    }

    fn prune_rollback(&mut self, flushed_before: u64) {
        let bar = self.durable_bar(flushed_before, false);
        let mut durable_s = self.durable_s;
        self.rollback.retain(|cluster| {
            let buried = Self::is_buried(cluster, bar);
            let durable = cluster.durable && cluster.acked < NEVER || cluster.acked < flushed_before;
            if buried && durable {
                durable_s = durable_s.max(cluster.s);
            }
            !buried
        });
        self.durable_s = durable_s;
    }

    /// Values that may be found after a loss of power, given [`Block::durable_bar`].
    fn candidates(&self, bar: (u64, u64, Option<Cluster>)) -> Vec<u64> {
        let mut candidates: Vec<u64> = Vec::new();
        for cluster in self.live.iter().chain(&self.rollback) {
            if Self::is_buried(cluster, bar) {
                continue;
            }
            match cluster.id {
                UNDECIDED => candidates.extend(&self.undecided),
                _ if cluster.zero => candidates.push(0),
                id => candidates.push(id),
            }
        }
        candidates.sort_unstable();
        candidates.dedup();
        assert!(
            !candidates.is_empty(),
            "the last durable value, or the one that buries it, is a candidate"
        );
        candidates
    }

    fn lose_power(&mut self, now: u64, flushed_before: u64, certain: bool) {
        let candidates = self.candidates(self.durable_bar(flushed_before, false));
        let untold = self.candidates(self.durable_bar(flushed_before, true));
        // A read may have seen a write that is under way. If power takes it, it takes effect once more.
        let again = |write: &Cluster| Cluster { f: NEVER, ..*write };
        let seen = self.live.iter().filter(|c| c.acked == NEVER && c.id != UNDECIDED);
        let seen: SmallVec<[Cluster; 1]> = seen.map(again).collect();
        *self = Self {
            lost: self.lost,
            pending: core::mem::take(&mut self.pending),
            pending_zeros: self.pending_zeros,
            ..Self::new()
        };
        seen.into_iter().for_each(|write| self.add_pending(write));
        let base = &mut self.live[0];
        (base.s, base.f, base.acked) = (now, now, now);
        base.durable = certain;
        let base = *base;
        if !certain {
            // Whichever the first read finds, power may take it again and leave another.
            self.rollback.extend(candidates.iter().map(|&id| Cluster {
                id,
                zero: id == 0,
                acked: NEVER,
                durable: false,
                ..base
            }));
        }
        let base = &mut self.live[0];
        if let [only] = candidates[..] {
            (base.id, base.zero) = (only, only == 0);
        } else {
            (base.id, base.zero) = (UNDECIDED, false);
            self.undecided = candidates;
            self.untold = Some((now, untold));
        }
    }
}

/// The blocks of one volume and their histories.
#[derive(Clone, Debug)]
pub struct Checker {
    volume: VolumeId,
    blocks: Vec<Block>,
    /// Start of the latest-started flush that was acknowledged.
    flushed_before: u64,
    /// When power was lost last.
    lost_at: u64,
    /// When the gateway that runs still acknowledged a client's first write.
    wrote_at: BTreeMap<u32, u64>,
    /// When a client's last flush was answered.
    heard_at: BTreeMap<u32, u64>,
    /// When a flush failed last.
    told_at: u64,
    /// Flushes of a client that failed since power was lost; [`TELLS_MAX`] after one that succeeded.
    failed: BTreeMap<u32, u32>,
    durability: bool,
    reads_judged: u64,
    reads_excused: u64,
}

impl Checker {
    /// A checker of a volume of `blocks` blocks, all zeros. Without `durability`, losses of power must not happen, and
    /// less is remembered.
    pub fn new(volume: VolumeId, blocks: u64, durability: bool) -> Self {
        Self {
            volume,
            blocks: vec![Block::new(); blocks as usize],
            flushed_before: 0,
            lost_at: 0,
            wrote_at: BTreeMap::new(),
            heard_at: BTreeMap::new(),
            told_at: 0,
            failed: BTreeMap::new(),
            durability,
            reads_judged: 0,
            reads_excused: 0,
        }
    }

    /// Block reads judged so far.
    pub fn reads_judged(&self) -> u64 {
        self.reads_judged
    }

    /// Block reads that were not judged, as power was lost meanwhile.
    pub fn reads_excused(&self) -> u64 {
        self.reads_excused
    }

    /// Blocks of the volume.
    pub fn blocks(&self) -> u64 {
        self.blocks.len() as u64
    }

    /// A write of `count` blocks from `first` begins; of zeros for trims and zeroes. `id` is unique and not 0.
    pub fn write_started(
        &mut self,
        now: Instant,
        first: u64,
        count: u64,
        id: u64,
        zero: bool,
        durable: bool,
    ) {
        let now = now.as_nanos();
        for block in self.range(first, count) {
            block.add_pending(Cluster {
                id,
                s: now,
                f: NEVER,
                acked: NEVER,
                zero,
                durable,
                vouched: false,
            });
        }
    }

    /// The write was acknowledged to a client.
    pub fn write_acked(&mut self, now: Instant, client: u32, first: u64, count: u64, id: u64) {
        let now = now.as_nanos();
        self.wrote_at.entry(client).or_insert(now);
        let (flushed_before, durability) = (self.flushed_before, self.durability);
        for block in self.range(first, count) {
            if let Some(place) = block.find_pending(id) {
                block.take_effect(place, now);
            }
            let all = block.live.iter_mut().chain(&mut block.rollback);
            // There may be two: one that was seen before power was lost, and what takes effect after it.
            for cluster in all.filter(|c| c.id == id) {
                cluster.acked = now;
                cluster.vouched = true;
            }
            block.prune(now, flushed_before, durability);
        }
    }

    /// A read begins.
    pub fn read_started(&mut self, now: Instant, first: u64, count: u64) {
        for block in self.range(first, count) {
            block.reading.push(now.as_nanos());
        }
    }

    /// A read that began at `start` failed, or will never be answered.
    pub fn read_failed(&mut self, start: Instant, first: u64, count: u64) {
        for block in self.range(first, count) {
            end_read(block, start.as_nanos());
        }
    }

    /// A read of one block of a request ends, having returned `stamp`.
    pub fn block_read(
        &mut self,
        now: Instant,
        start: Instant,
        at: u64,
        stamp: Stamp,
    ) -> Result<(), Violation> {
        let (flushed_before, durability, volume) = (self.flushed_before, self.durability, self.volume);
        let (start, end) = (start.as_nanos(), now.as_nanos());
        let block = &mut self.blocks[at as usize];
        if stamp.id != 0 && stamp.block != at || stamp.id == 0 && stamp.block != 0 {
            end_read(block, start);
            return Err(Violation::Invented {
                volume,
                block: at,
                id: stamp.id,
                stamped: stamp.block,
            });
        }
        if !end_read(block, start) {
            self.reads_excused += 1;
            return Ok(());
        }
        self.reads_judged += 1;
        match block.owners(stamp.id, start) {
            (0, _) => {
                return Err(Violation::Stale {
                    volume,
                    block: at,
                    id: stamp.id,
                    start_ns: start,
                    end_ns: end,
                });
            }
            (1, Some(place)) => block.own(place, stamp.id, start, end),
            _ => {}
        }
        block.prune(end, flushed_before, durability);
        Ok(())
    }

    /// A client's flush that began at `start` was acknowledged. It says that no acknowledged write was lost, if it began after a loss of
    /// power of which nobody was told, or this client was not, and it had written before.
    pub fn flush_acked(&mut self, now: Instant, client: u32, start: Instant) -> Result<(), Violation> {
        self.flushed_before = self.flushed_before.max(start.as_nanos());
        if start.as_nanos() <= self.lost_at {
            return Ok(());
        }
        let heard_at = self.heard_at.insert(client, now.as_nanos()).unwrap_or(0);
        self.failed.insert(client, TELLS_MAX);
        let wrote_at = self.wrote_at.get(&client).copied().unwrap_or(NEVER);
        let told_at = self.told_at;
        for (at, block) in self.blocks.iter_mut().enumerate() {
            let is_untold = |lost_at: u64| told_at <= lost_at || wrote_at <= lost_at && heard_at <= lost_at;
            if block.lost.is_some_and(is_untold) {
                return Err(Violation::Untold {
                    volume: self.volume,
                    block: at as u64,
                    start_ns: start.as_nanos(),
                });
            }
            if let Some((lost_at, untold)) = &block.untold
                && is_untold(*lost_at)
            {
                block.undecided.clone_from(untold);
            }
        }
        Ok(())
    }

    /// A client's flush failed: whatever was lost, this client knows of it.
    pub fn flush_failed(&mut self, now: Instant, client: u32) {
        self.heard_at.insert(client, now.as_nanos());
        self.told_at = now.as_nanos();
        *self.failed.entry(client).or_default() += 1;
    }

    /// True if a client's flush that began at `start` may fail: power was lost, and no flush has told this client of all since. The first
    /// one may have begun before writes that were acknowledged and lost. Then the next one fails, too. So does each one that was under way when
    /// one failed.
    pub fn may_tell(&self, client: u32, start: Instant) -> bool {
        let failed = self.failed.get(&client).copied().unwrap_or(0);
        let began = start.as_nanos();
        self.lost_at > 0 && (failed < TELLS_MAX || began <= self.lost_at || began <= self.told_at)
    }

    /// The gateway is gone, and does not know any more what it has acknowledged.
    pub fn gateway_lost(&mut self) {
        self.wrote_at.clear();
        for block in &mut self.blocks {
            (block.lost, block.untold) = (None, None);
            for cluster in block.live.iter_mut().chain(&mut block.rollback) {
                cluster.vouched = false;
            }
        }
    }

    /// Power was lost now; `loss` says what that means for each block.
    pub fn power_loss(&mut self, now: Instant, mut loss: impl FnMut(u64) -> Loss) {
        assert!(
            self.durability,
            "a checker without durability meets no loss of power"
        );
        self.lost_at = now.as_nanos();
        self.failed.clear();
        for (at, block) in self.blocks.iter_mut().enumerate() {
            match loss(at as u64) {
                Loss::None => {}
                Loss::Possible => block.lose_power(now.as_nanos(), self.flushed_before, false),
                Loss::Certain => block.lose_power(now.as_nanos(), self.flushed_before, true),
            }
        }
    }

    fn range(&mut self, first: u64, count: u64) -> &mut [Block] {
        &mut self.blocks[first as usize..(first + count) as usize]
    }
}

/// Work of the checker: it looks at one cluster.
#[inline]
fn look() {
    #[cfg(test)]
    tests::LOOKS.set(tests::LOOKS.get() + 1);
}

/// Forgets a read under way; false if power was lost since it began.
fn end_read(block: &mut Block, start: u64) -> bool {
    match block.reading.iter().position(|&s| s == start) {
        Some(at) => {
            block.reading.swap_remove(at);
            true
        }
        None => false,
    }
}

#[cfg(test)]
#[path = "register_tests.rs"]
mod tests;
