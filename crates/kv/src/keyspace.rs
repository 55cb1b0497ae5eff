//! The keys of one shard: expiry, memory and eviction, and what has changed since the last commit.
//!
//! # Batches
//! Changes belong to a *batch*, which the driver makes durable as a whole. Each entry knows the batch of its last change. A command
//! leaves in [`Keyspace::needs`] the youngest batch that its reply tells of: the reply may go when that batch is complete. So no
//! reply tells of a change that a crash could undo, and reads of other keys wait for nothing.
//!
//! Expired and evicted keys are removed in passing. No reply waits for these removals: what has expired is expired after a crash,
//! too, and an evicted key that a crash brings back has the value that was written last.

use crate::table::{ENTRY_BYTES, Entry, Place, Table};

/// Bytes of a key: the limit of storage areas.
pub const KEY_BYTES_MAX: usize = 65_535;
/// Buckets that one look for expired keys goes through.
const EXPIRY_BUCKETS: usize = 32;
/// Such looks of one tick, at most, while a quarter of what they find has expired.
const EXPIRY_LOOKS_MAX: usize = 64;

/// How a keyspace behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyspaceOptions {
    /// Memory of entries; beyond, those used longest ago are evicted.
    pub memory_max: u64,
    /// Bytes of a value.
    pub value_bytes_max: usize,
    /// Changes are to be kept by somebody: [`Keyspace::changes`].
    pub keeps_changes: bool,
}

/// Counters of a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceCounters {
    /// Reads that found their key.
    pub hits: u64,
    /// Reads that did not.
    pub misses: u64,
    /// Keys removed as their time was over.
    pub expired: u64,
    /// Keys removed for want of memory.
    pub evicted: u64,
}

/// Why a write is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Nothing more can be evicted.
    Memory,
    /// The value is too long.
    Value,
    /// The key is too long.
    Key,
}

/// What becomes of an entry's time when its value is set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lasts {
    /// It has no end.
    Ever,
    /// It ends at this Unix time in ms.
    Until(u64),
    /// As before.
    AsBefore,
}

/// What has changed since the last commit.
#[derive(Clone, Debug, Default)]
pub struct Changes {
    /// Everything that was there before is gone.
    pub is_cleared: bool,
    keys: Vec<u8>,
    spans: Vec<(u64, u32, u32)>,
}

impl Changes {
    /// True without any.
    pub fn is_empty(&self) -> bool {
        !self.is_cleared && self.spans.is_empty()
    }

    /// How many keys have changed.
    pub fn count(&self) -> usize {
        self.spans.len()
    }

    fn add(&mut self, hash: u64, key: &[u8]) {
        self.spans.push((hash, self.keys.len() as u32, key.len() as u32));
        self.keys.extend_from_slice(key);
    }

    fn clear(&mut self) {
        self.is_cleared = false;
        self.keys.clear();
        self.spans.clear();
    }
}

/// The keys of one shard.
#[derive(Debug)]
pub struct Keyspace {
    table: Table,
    options: KeyspaceOptions,
    memory: u64,
    /// Entries that have an end.
    mortal: usize,
    now_ms: u64,
    /// The batch that changes belong to.
    batch: u64,
    /// The last batch in which a command removed a key.
    removed: u64,
    /// Replies of the command at hand need this batch.
    needs: u64,
    changes: Changes,
    /// Keys whose copies elsewhere are out of date.
    outdated: Vec<(u64, Box<[u8]>)>,
    counters: KeyspaceCounters,
    /// Where the next look for expired keys begins.
    sweep: usize,
}

impl Keyspace {
    /// No keys.
    pub fn new(options: KeyspaceOptions) -> Self {
        Self {
            table: Table::default(),
            options,
            memory: 0,
            mortal: 0,
            now_ms: 0,
            batch: 1,
            removed: 0,
            needs: 0,
            changes: Changes::default(),
            outdated: Vec::new(),
            counters: KeyspaceCounters::default(),
            sweep: 0,
        }
    }

    /// It is this Unix time. Time that runs backwards stands still.
    pub fn set_now(&mut self, now_ms: u64) {
        self.now_ms = self.now_ms.max(now_ms);
    }

    /// The time as it was told last.
    pub fn now_ms(&self) -> u64 {
        self.now_ms
    }

    /// How many keys there are, expired ones that nobody has met included.
    pub fn count(&self) -> usize {
        self.table.count()
    }

    /// How many of these have an end.
    pub fn mortal(&self) -> usize {
        self.mortal
    }

    /// Memory of all entries.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// Counters.
    pub fn counters(&self) -> KeyspaceCounters {
        self.counters
    }

    /// The limits.
    pub fn options(&self) -> &KeyspaceOptions {
        &self.options
    }

    /// The batch that the reply of the last commands needs; the next commands begin anew.
    pub fn take_needs(&mut self) -> u64 {
        std::mem::take(&mut self.needs)
    }

    /// The batch that changes belong to now.
    pub fn batch(&self) -> u64 {
        self.batch
    }

    /// What has changed since the last call of [`Keyspace::close_batch`].
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Hands out each changed key with its entry, or with none if it is gone. A key may come twice.
    pub fn each_change(&self, mut f: impl FnMut(&[u8], Option<&Entry>)) {
        for &(hash, begin, length) in &self.changes.spans {
            let key = &self.changes.keys[begin as usize..][..length as usize];
            let place = self.table.find(hash, key);
            f(key, place.map(|place| self.table.entry(place)));
        }
    }

    /// What follows belongs to the next batch; answers the number of the one that has ended.
    pub fn close_batch(&mut self) -> u64 {
        self.changes.clear();
        self.batch += 1;
        self.batch - 1
    }

    /// Keys of which copies elsewhere are out of date since the last call.
    pub fn take_outdated(&mut self) -> Vec<(u64, Box<[u8]>)> {
        std::mem::take(&mut self.outdated)
    }

    /// True if there are some.
    pub fn has_outdated(&self) -> bool {
        !self.outdated.is_empty()
    }

    /// The entry of a key, which becomes the newest; for reads.
    pub fn read(&mut self, hash: u64, key: &[u8]) -> Option<&Entry> {
        match self.look(hash, key) {
            Some(place) => {
                self.counters.hits += 1;
                self.table.touch(place);
                Some(self.table.entry(place))
            }
            None => {
                self.counters.misses += 1;
                None
            }
        }
    }

    /// The place of a key that has not expired. The reply of the command needs what is told thereby.
    pub fn look(&mut self, hash: u64, key: &[u8]) -> Option<Place> {
        let place = self.live(hash, key);
        let told = place.map_or(self.removed, |place| self.table.entry(place).written);
        self.needs = self.needs.max(told);
        place
    }

    /// An entry that [`Keyspace::look`] found, with nothing done in between.
    pub fn entry(&self, place: Place) -> &Entry {
        self.table.entry(place)
    }

    /// The same for who tells nobody of it.
    fn live(&mut self, hash: u64, key: &[u8]) -> Option<Place> {
        let place = self.table.find(hash, key)?;
        let expires_ms = self.table.entry(place).expires_ms;
        if expires_ms == 0 || expires_ms > self.now_ms {
            return Some(place);
        }
        self.counters.expired += 1;
        self.forget(place);
        None
    }

    /// The entry of a key for a copy: it has no end, and its last change is in this batch or an earlier one.
    pub fn lasting(&self, hash: u64, key: &[u8], complete: u64) -> Option<&Entry> {
        let entry = self.table.entry(self.table.find(hash, key)?);
        (entry.expires_ms == 0 && entry.written <= complete).then_some(entry)
    }

    /// Other shards have copies of this key from now on.
    pub fn mark_copied(&mut self, hash: u64, key: &[u8]) {
        if let Some(place) = self.table.find(hash, key) {
            self.table.entry_mut(place).has_copies = true;
        }
    }

    /// The copies of a key are to go, though it has not changed.
    pub fn outdate(&mut self, hash: u64, key: &[u8]) {
        let place = self.table.find(hash, key);
        if let Some(place) = place.filter(|place| self.table.entry(*place).has_copies) {
            self.changed(place);
            self.needs = 0;
        }
    }

    /// Sets the value of a key.
    ///
    /// # Errors
    /// There is no room, or it is too long: nothing has changed, but keys may have been evicted.
    pub fn set(&mut self, hash: u64, key: &[u8], value: &[u8], lasts: Lasts) -> Result<(), Refused> {
        if key.len() > KEY_BYTES_MAX {
            return Err(Refused::Key);
        }
        if value.len() > self.options.value_bytes_max {
            return Err(Refused::Value);
        }
        let place = match self.live(hash, key) {
            Some(place) => {
                let before = self.table.entry(place).memory();
                self.table.touch(place);
                self.make_room(
                    (value.len() + key.len()) as u64 + ENTRY_BYTES,
                    before,
                    Some(place),
                )?;
                self.table.entry_mut(place).set_value(value);
                self.memory = self.memory - before + self.table.entry(place).memory();
                place
            }
            None => {
                self.make_room((value.len() + key.len()) as u64 + ENTRY_BYTES, 0, None)?;
                let place = self.table.insert(hash, key, value);
                self.memory += self.table.entry(place).memory();
                if !self.options.keeps_changes {
                    // The key may have been removed a moment ago, and copies of it may be left.
                    self.table.entry_mut(place).written = self.removed;
                }
                place
            }
        };
        let entry = self.table.entry_mut(place);
        let expires_ms = match lasts {
            Lasts::Ever => 0,
            Lasts::Until(expires_ms) => expires_ms,
            Lasts::AsBefore => entry.expires_ms,
        };
        self.mortal += usize::from(expires_ms != 0);
        self.mortal -= usize::from(entry.expires_ms != 0);
        entry.expires_ms = expires_ms;
        self.changed(place);
        Ok(())
    }

    /// Adds to the end of a value that is there.
    ///
    /// # Errors
    /// As of [`Keyspace::set`].
    pub fn append(&mut self, place: Place, more: &[u8]) -> Result<usize, Refused> {
        let entry = self.table.entry(place);
        let (before, length) = (entry.memory(), entry.value().len() + more.len());
        if length > self.options.value_bytes_max {
            return Err(Refused::Value);
        }
        let wanted = before + more.len() as u64;
        self.table.touch(place);
        self.make_room(wanted, before, Some(place))?;
        self.table.entry_mut(place).append(more);
        self.memory = self.memory - before + self.table.entry(place).memory();
        self.changed(place);
        Ok(length)
    }

    /// Sets when an entry ends; 0: never.
    pub fn set_end(&mut self, place: Place, expires_ms: u64) {
        let entry = self.table.entry_mut(place);
        self.mortal += usize::from(expires_ms != 0);
        self.mortal -= usize::from(entry.expires_ms != 0);
        entry.expires_ms = expires_ms;
        self.changed(place);
    }

    /// Removes a key; true if it was there.
    pub fn remove(&mut self, hash: u64, key: &[u8]) -> bool {
        let Some(place) = self.look(hash, key) else {
            return false;
        };
        if self.options.keeps_changes || self.table.entry(place).has_copies {
            self.removed = self.batch;
            self.needs = self.batch;
        }
        self.forget(place);
        true
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        let copied = self.table.all().filter(|entry| entry.has_copies);
        self.outdated
            .extend(copied.map(|entry| (entry.hash(), entry.key().into())));
        if self.options.keeps_changes || !self.outdated.is_empty() {
            self.removed = self.batch;
            self.needs = self.batch;
        }
        self.changes.clear();
        self.changes.is_cleared = self.options.keeps_changes;
        (self.table, self.memory, self.mortal, self.sweep) = (Table::default(), 0, 0, 0);
    }

    /// An entry as it was kept, at the start; no change.
    ///
    /// # Errors
    /// There is no room, or it is too long. Nothing is evicted.
    pub fn load(&mut self, hash: u64, key: &[u8], value: &[u8], expires_ms: u64) -> Result<(), Refused> {
        if self.memory + ENTRY_BYTES + (key.len() + value.len()) as u64 > self.options.memory_max {
            return Err(Refused::Memory);
        }
        let place = self.table.insert(hash, key, value);
        self.memory += self.table.entry(place).memory();
        self.table.entry_mut(place).expires_ms = expires_ms;
        self.mortal += usize::from(expires_ms != 0);
        Ok(())
    }

    /// Entries of the buckets from `bucket` on, until `count` were seen; the bucket that comes next, or none at the end.
    pub fn walk(&self, bucket: usize, count: usize, mut f: impl FnMut(&Entry)) -> Option<usize> {
        let (mut next, mut seen) = (bucket, 0);
        while next < self.table.buckets() {
            for place in self.table.of_bucket(next) {
                let entry = self.table.entry(place);
                if entry.expires_ms == 0 || entry.expires_ms > self.now_ms {
                    f(entry);
                }
                seen += 1;
            }
            next += 1;
            // Empty buckets count, too, but less.
            if seen >= count || next - bucket >= count.saturating_mul(10) {
                break;
            }
        }
        (next < self.table.buckets()).then_some(next)
    }

    /// The batch that a reply needs which tells of all keys.
    pub fn needs_all(&mut self) {
        if self.options.keeps_changes {
            self.needs = self.batch - u64::from(self.changes.is_empty());
        }
    }

    /// Removes keys whose time is over: some of them, more if there are many.
    pub fn sweep(&mut self) {
        let mut looks = 0;
        while self.mortal > 0 && looks < EXPIRY_LOOKS_MAX {
            looks += 1;
            let (mut ended, mut mortal) = (Vec::new(), 0);
            for _ in 0..EXPIRY_BUCKETS.min(self.table.buckets()) {
                self.sweep = if self.sweep < self.table.buckets() {
                    self.sweep
                } else {
                    0
                };
                for place in self.table.of_bucket(self.sweep) {
                    let expires_ms = self.table.entry(place).expires_ms;
                    mortal += usize::from(expires_ms != 0);
                    if expires_ms != 0 && expires_ms <= self.now_ms {
                        ended.push(place);
                    }
                }
                self.sweep += 1;
            }
            self.counters.expired += ended.len() as u64;
            ended.iter().for_each(|place| self.forget(*place));
            if ended.len() * 4 < mortal {
                break;
            }
        }
    }

    /// Evicts until an entry that takes `before` may take `wanted`. `spared` stays.
    fn make_room(&mut self, wanted: u64, before: u64, spared: Option<Place>) -> Result<(), Refused> {
        let mut renewed = 0;
        while self.memory - before + wanted > self.options.memory_max {
            let oldest = self.table.oldest().filter(|oldest| Some(*oldest) != spared);
            let Some(oldest) = oldest else {
                return Err(Refused::Memory);
            };
            // Its readers are elsewhere: it is in use. A look at each such entry, and no more.
            if self.table.entry(oldest).has_copies {
                renewed += 1;
                if renewed > self.table.count() {
                    return Err(Refused::Memory);
                }
                self.table.touch(oldest);
                continue;
            }
            self.counters.evicted += 1;
            self.forget(oldest);
        }
        Ok(())
    }

    /// An entry has changed: its batch is the present one.
    fn changed(&mut self, place: Place) {
        let entry = self.table.entry_mut(place);
        let was_copied = std::mem::take(&mut entry.has_copies);
        if was_copied {
            self.outdated.push((entry.hash(), entry.key().into()));
        }
        if self.options.keeps_changes || was_copied {
            if self.options.keeps_changes && entry.written != self.batch {
                self.changes.add(entry.hash(), entry.key());
            }
            entry.written = self.batch;
        }
        self.needs = self.needs.max(entry.written);
    }

    fn forget(&mut self, place: Place) {
        let entry = self.table.entry(place);
        // Whoever finds no key is told of its last change, too.
        self.removed = self.removed.max(entry.written);
        self.memory -= entry.memory();
        self.mortal -= usize::from(entry.expires_ms != 0);
        if entry.has_copies {
            self.outdated.push((entry.hash(), entry.key().into()));
        }
        if self.options.keeps_changes && entry.written != self.batch {
            self.changes.add(entry.hash(), entry.key());
        }
        self.table.remove(place);
    }
}
