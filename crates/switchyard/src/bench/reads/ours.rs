//! Switchyard as the engine that is measured: a tree in an area.

use super::drive::{Engine, Key, Plan, Session};
use anyhow::Context;
use area::{Area, AreaOptions, Op, Tree};
use std::ops::{Bound, ControlFlow};

/// Memory for maps and trees before they leave for tables: RocksDB and fjall are given as much.
const SPILL_BYTES: u64 = 16 << 20;
/// Memory for maps and trees with what is on its way to tables, the program, its threads and merges. Others have the page cache in
/// what they do not need; here it is the cache's.
const OWN_BYTES: u64 = 4 * SPILL_BYTES + (64 << 20);
/// The area beside its data: what a log needs to be cleaned seldom.
const AREA_BYTES: u64 = 256 << 20;

/// A tree, and its area.
pub struct Ours {
    area: Area,
    tree: Tree,
}

impl Ours {
    /// Opens it, and makes it if it is not there.
    pub fn open(plan: &Plan) -> anyhow::Result<Self> {
        let data_bytes = plan.keys * (plan.bytes as u64 + 48);
        let options = AreaOptions {
            cache_bytes_max: plan.cache_bytes.max(plan.memory_bytes.saturating_sub(OWN_BYTES)),
            index_bytes_max: 4 * SPILL_BYTES,
            spill_bytes: SPILL_BYTES,
            ..AreaOptions::new(3 * data_bytes + AREA_BYTES)
        };
        let area = Area::open(&plan.dir.join("it.area"), &options)?;
        let tree = area.tree("it")?;
        Ok(Self { area, tree })
    }
}

impl Engine for Ours {
    fn session(&self) -> anyhow::Result<Box<dyn Session + '_>> {
        Ok(Box::new(OursSession(self)))
    }

    fn settle(&self) -> anyhow::Result<()> {
        self.area.sync()?;
        Ok(self.area.settle()?)
    }
}

struct OursSession<'a>(&'a Ours);

impl Session for OursSession<'_> {
    fn load(&mut self, entries: &[(Key, Vec<u8>)]) -> anyhow::Result<()> {
        let map = self.0.tree.id();
        // A batch lies in one record.
        for some in entries.chunks(64) {
            let put = |(key, data)| Op::Put { map, key, data };
            let ops: Vec<_> = some
                .iter()
                .map(|(key, data)| put((&key[..], &data[..])))
                .collect();
            self.0.area.submit(&ops)?;
        }
        Ok(())
    }

    fn get(&mut self, key: &Key, found: &mut dyn FnMut(&[u8])) -> anyhow::Result<()> {
        found(&self.0.tree.get_ref(key)?.context("no such key")?);
        Ok(())
    }

    fn range(&mut self, key: &Key, count: usize, found: &mut dyn FnMut(&[u8], &[u8])) -> anyhow::Result<()> {
        let bounds = (Bound::Included(&key[..]), Bound::Unbounded);
        self.0.tree.visit(bounds, count, |key, value| {
            found(key, value);
            ControlFlow::Continue(())
        })?;
        Ok(())
    }

    fn put(&mut self, key: &Key, value: &[u8]) -> anyhow::Result<()> {
        Ok(self.0.tree.put(key, value)?)
    }
}
