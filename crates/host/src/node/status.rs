//! A node as it tells of itself.

use super::Node;
use base::Instant;
use rack::control::{Config, Copying, NodeStatus, Roll};
use std::collections::BTreeSet;
use uuid::Uuid;

/// vSSDs of which a node tells how far their copies are: more than join at a time.
const COPYING_MAX: usize = 16;

impl Node {
    /// Content of a `status` packet.
    pub fn status(&self, now: Instant) -> NodeStatus {
        let mut status = NodeStatus {
            copied_pages: self.units.pace().pages(),
            acknowledged: self.units.answers.last().to_vec(),
            scrubbed_pages: self.units.scrubbed().pages(),
            scrubs: self.units.scrubbed().passes(),
            scrubbed_ago_s: self.units.scrubbed().ended().map(|at| now.since(at).as_secs()),
            node: self.config.id.0,
            software: Some(self.askers.software()),
            boot: self.ssd.boot(),
            boot_before: Some(self.ssd.boot_before()),
            channels: self.ssd.geometry().channels,
            free_channels: self.ssd.free_channels(),
            pages_per_channel: self.pages_per_channel(),
            group_channels: self.group_channels(),
            free_rows: self.ssd.free_rows(self.group_channels()),
            pages_per_row: self.pages_per_row(),
            free_ratio_min: 1.0,
            unreadable: self.unreadable.len() as u32,
            racks: self.racks(),
            roll: Some(self.roll(now)),
            lead: self.askers.seen(now).max_by_key(|seen| seen.session),
            gateways: self.askers.seen(now).collect(),
            copying: self.copying(now),
            ..NodeStatus::default()
        };
        let (mut erases, mut blocks) = (0.0, 0.0);
        for unit in self.units() {
            let (stats, flash) = (unit.stats(), unit.flash().stats());
            erases += flash.erase_count_mean * f64::from(flash.blocks);
            blocks += f64::from(flash.blocks);
            status.vssds += 1;
            status.serving += u32::from(unit.is_serving());
            status.collecting += u32::from(unit.is_collecting());
            status.latched += u32::from(unit.is_latched() || self.changes.is_latched());
            status.reads += stats.reads;
            status.writes += stats.writes;
            status.dirty_pages += unit.dirty_pages() as u64;
            status.programs += flash.user_programs + flash.gc_programs;
            status.user_programs += flash.user_programs;
            status.erases += flash.erases;
            status.damaged_pages += stats.damaged;
            status.repaired_pages += stats.repaired;
            status.compared_pages += stats.compared;
            status.differed_pages += stats.differed;
            status.free_ratio_min = status.free_ratio_min.min(unit.flash().free_ratio());
        }
        status.erase_count_mean = if blocks > 0.0 { erases / blocks } else { 0.0 };
        status
    }

    /// vSSDs that take copies of what others have.
    fn copying(&self, now: Instant) -> Vec<Copying> {
        let copying = self.units().filter_map(|unit| unit.copying(now));
        copying.take(COPYING_MAX).collect()
    }

    fn roll(&self, now: Instant) -> Roll {
        let mut roll = Roll {
            here: self.ssd.vssds().iter().map(|entry| entry.id.0).collect(),
            failed: self.unreadable.iter().map(|vssd| vssd.0).collect(),
            ..Roll::default()
        };
        for unit in self.units() {
            let vssd = unit.identity().vssd.0;
            if unit.is_latched() || self.changes.is_latched() {
                roll.failed.push(vssd);
            } else if !unit.is_serving() {
                roll.joining.push(vssd);
                let generation = unit.identity().config.membership.generation;
                roll.generations.push((vssd, generation));
            }
            roll.unheard
                .extend(unit.leases().unheard(now).map(|peer| (vssd, peer.0)));
        }
        roll
    }

    /// The racks that the vSSDs belong to, as far as that is known.
    pub(super) fn racks(&self) -> Vec<Uuid> {
        let entries = self.ssd.vssds().iter();
        let configs = entries.filter_map(|entry| Config::parse(&entry.config));
        let racks = configs.map(|config| config.rack).filter(|rack| !rack.is_nil());
        racks.collect::<BTreeSet<_>>().into_iter().collect()
    }

    pub(super) fn pages_per_channel(&self) -> u32 {
        let physical = self.ssd.geometry().pages_per_channel() as f64;
        (physical * (1.0 - self.config.over_provisioning)) as u32
    }

    pub(super) fn group_channels(&self) -> u32 {
        match self.config.group_channels {
            0 => self.ssd.geometry().channels,
            channels => channels.min(self.ssd.geometry().channels),
        }
    }

    fn pages_per_row(&self) -> u32 {
        let (geometry, channels) = (self.ssd.geometry(), self.group_channels());
        let physical = channels * geometry.pages_per_channel() / geometry.units_per_channel();
        let visible = (f64::from(physical) * (1.0 - self.config.over_provisioning)) as u32;
        let max = geometry.logical_pages_max_shared(channels, 1, self.pool.page_bytes());
        visible.min(max)
    }
}
