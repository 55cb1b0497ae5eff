//! What replication sees of a vSSD: the cache in front of the flash, and the pages whose newest data is lost.

use base::{Lpn, Version};
use flash::Vssd;
use rack::cache::{Cache, Cached};
use rack::replica::Store;
use std::collections::BTreeMap;

/// The store that replication sees: the cache in front of the flash.
pub(super) struct View<'a> {
    pub cache: &'a mut Cache,
    pub flash: &'a Vssd,
    /// Pages whose newest data, of this version, is damaged here.
    pub damaged: &'a mut BTreeMap<u32, Version>,
    pub latched: bool,
    /// Set when a value was taken.
    pub put: &'a mut bool,
}

impl Store for View<'_> {
    fn newest(&self, lpn: Lpn) -> Version {
        if lpn.0 >= self.flash.logical_pages() {
            return Version::NONE;
        }
        newest(self.cache, self.flash, self.damaged, lpn)
    }

    fn has_room(&self, lpn: Lpn) -> bool {
        self.cache.has_room(lpn)
    }

    fn put(&mut self, lpn: Lpn, data: Cached) {
        self.damaged.remove(&lpn.0);
        self.cache.put(lpn, data);
        *self.put = true;
    }

    fn lose(&mut self, lpn: Lpn, version: Version) {
        self.damaged.insert(lpn.0, version);
    }

    fn is_latched(&self) -> bool {
        self.latched
    }

    fn is_damaged(&self, lpn: Lpn) -> bool {
        self.damaged.contains_key(&lpn.0)
    }

    fn pages(&self) -> u32 {
        self.flash.logical_pages()
    }
}

/// The newest version of a page, be its data here or lost.
pub(super) fn newest(cache: &Cache, flash: &Vssd, damaged: &BTreeMap<u32, Version>, lpn: Lpn) -> Version {
    match (cache.get(lpn), damaged.get(&lpn.0)) {
        (Some(cached), _) => cached.version,
        (None, Some(&lost)) => lost.max(flash.version(lpn)),
        (None, None) => flash.version(lpn),
    }
}
