//! Clients' requests, and the operations that they become ([`flight`](super::flight)).
//!
//! Reads go out at once. Mutations of a page go out one at a time. While one is in flight, others to the same page wait
//! and then go out merged ([`merge`](super::merge)). Parts of a page are laid over its content.

use super::flight::{End, Flight, SCAN_EVERY};
use super::merge::{Merged, Part, merge};
use super::operations::{Kind, Operation};
use super::requests::{Flushing, Request, Requests};
use super::set::{locate, sooner};
use crate::Output;
use base::{BlockError, BlockOp, BlockReply, BlockRequest, Extent, Instant, Page, Pages, Pool, VolumeId};
use core::ops::Range;
use rack::registry::Durability;
use wire::rack::Packet;

/// Content of a page, and the epoch in which it was read.
#[derive(Debug)]
pub(super) struct Base {
    page: Option<Page>,
    epoch: u32,
}

/// A page whose merge waits for memory: its volume and number, the parts, and what it holds if that was read.
pub(super) type Starved = (u32, u64, Vec<Part>, Option<Base>);

/// Requests under way.
pub(super) struct Traffic {
    pub flight: Flight,
    pool: Pool,
    zero: Page,
    pub requests: Requests,
    /// Pages whose merge waits for memory.
    pub starved: Vec<Starved>,
    /// Volumes are served here, unless this gateway stands by.
    pub leads: bool,
    /// When anybody answered last.
    pub heard_at: Option<Instant>,
    /// When overdue requests were told of last.
    pub told_at: Option<Instant>,
}

impl Traffic {
    /// # Panics
    /// If the pool is empty.
    pub fn new(flight: Flight, pool: Pool) -> Self {
        Self {
            flight,
            zero: pool.alloc_zeroed().expect("a pool has pages at start"),
            pool,
            requests: Requests::default(),
            starved: Vec::new(),
            leads: true,
            heard_at: None,
            told_at: None,
        }
    }

    fn reply(&mut self, client: u32, tag: u64, result: Result<Pages, BlockError>) {
        self.flight.stats.requests += 1;
        self.flight.stats.errors += u64::from(result.is_err());
        if client != crate::NOBODY {
            let reply = BlockReply { client, tag, result };
            self.flight.out.push_back(Output::Reply(reply));
        }
    }

    /// The volume (by index) of a request that can be carried out.
    fn admit(&self, request: &BlockRequest) -> Result<u32, BlockError> {
        let index = self.flight.find(request.volume);
        let open = index.filter(|&index| !self.flight.volumes[index].closing);
        let elsewhere = self.flight.config.shared || !self.leads;
        let index = open.ok_or(if elsewhere {
            BlockError::Elsewhere
        } else {
            BlockError::NoVolume
        })?;
        match request.op {
            BlockOp::Read | BlockOp::Flush | BlockOp::Status => Ok(index),
            _ if self.flight.volumes[index].record.read_only => Err(BlockError::ReadOnly),
            _ => Ok(index),
        }
    }

    pub fn request(&mut self, now: Instant, request: BlockRequest) {
        let volume = match self.admit(&request) {
            Ok(volume) => volume,
            Err(error) => return self.reply(request.client, request.tag, Err(error)),
        };
        if request.op == BlockOp::Status {
            // Replicas are not asked: all of it may be data.
            Extent::fill(&request.pages[0], request.range, |_, length| {
                Some(Extent::data(length))
            });
            return self.reply(request.client, request.tag, Ok(request.pages));
        }
        let durable = request.fua || self.flight.volumes[volume].record.durability == Durability::Media;
        let touched = request.range.pages();
        let count = (touched.end - touched.start) as usize;
        let results = if request.op == BlockOp::Read { count } else { 0 };
        sooner(&mut self.flight.scan_at, now + self.flight.config.request_timeout);
        let slot = self.requests.insert(Request {
            client: request.client,
            tag: request.tag,
            volume,
            op: request.op,
            left: count as u32,
            error: None,
            pages: smallvec::smallvec![None; results],
            arrived: now,
            sets: 0..0,
            before: None,
            shown: 0,
        });
        self.watch_losses(now, slot, touched.clone(), durable);
        if request.op == BlockOp::Flush {
            return self.flush(now, slot, volume);
        }
        let mut pages = request.pages.into_iter();
        for place in 0..results {
            let (set, lpn) = locate(&self.flight.volumes[volume].sets, touched.start + place as u64);
            let kind = Kind::Read {
                request: slot,
                place,
                bulk: request.bulk,
            };
            self.flight.start(now, volume, set, lpn, kind);
        }
        if request.op == BlockOp::Read {
            return;
        }
        for page in touched {
            let sectors = request.range.sectors_of(page);
            let part = Part {
                request: slot,
                page: pages.next().filter(|_| request.op == BlockOp::Write),
                first: sectors.start,
                count: sectors.len(),
                durable,
                bulk: request.bulk,
            };
            // Now, or with others when the page is free.
            if let Some(part) = self.flight.volumes[volume].locks.lock(page, part) {
                self.mutate_locked(now, volume, page, vec![part], None);
            }
        }
    }

    /// Notes what a request must know at its end of acknowledged data that are lost meanwhile.
    fn watch_losses(&mut self, now: Instant, slot: u32, touched: Range<u64>, durable: bool) {
        let request = &mut self.requests[slot];
        let volume = &mut self.flight.volumes[request.volume];
        if request.op == BlockOp::Read {
            return;
        }
        volume.losses.meet(now, request.client);
        if request.op == BlockOp::Flush {
            request.before = Some(volume.losses.acked());
            request.shown = volume.losses.shown();
        } else if !durable && touched.end.saturating_sub(touched.start) > 1 {
            // What has one page is done when that is acknowledged.
            let first = locate(&volume.sets, touched.start).0;
            request.sets = first..locate(&volume.sets, touched.end - 1).0 + 1;
            request.before = Some(volume.losses_of(&request.sets));
        }
    }

    /// Changes a page whose lock is held; `old` is what it holds, if that was read.
    pub fn mutate_locked(
        &mut self,
        now: Instant,
        volume: u32,
        page: u64,
        parts: Vec<Part>,
        old: Option<Base>,
    ) {
        let (set, lpn) = locate(&self.flight.volumes[volume].sets, page);
        let known = old.as_ref().map(|base| base.page.as_ref());
        let data = match merge(&parts, known, &self.pool) {
            Merged::NeedsRead => {
                let kind = Kind::ReadForMerge { page, parts };
                return self.flight.start(now, volume, set, lpn, kind);
            }
            Merged::NoMemory => {
                self.starved.push((volume, page, parts, old));
                return sooner(&mut self.flight.scan_at, now + SCAN_EVERY);
            }
            Merged::Zero => None,
            Merged::Page(data) => Some(data),
        };
        self.flight.stats.merged += parts.len() as u64 - 1;
        let kind = Kind::Mutate {
            page,
            crc: data.as_ref().map_or(0, Page::crc),
            durable: parts.iter().any(|part| part.durable),
            parts,
            data,
            base_epoch: old.map(|base| base.epoch),
        };
        self.flight.start(now, volume, set, lpn, kind);
    }

    /// Sends a flush to every replica of every set that has something to flush.
    fn flush(&mut self, now: Instant, request: u32, volume: u32) {
        let sets = self.flight.volumes[volume].sets.iter().enumerate();
        // Another gateway may have taken the volume over, and have acknowledged writes: nodes tell.
        let asks = self.flight.config.shared;
        let dirty: Vec<(usize, usize, u64)> = sets
            .filter(|(_, set)| set.is_dirty() || asks)
            .map(|(index, set)| (index, set.copies().count(), set.acked))
            .collect();
        let count = dirty.iter().map(|(_, replicas, _)| *replicas as u32).sum();
        self.requests[request].left = count;
        if count == 0 {
            return self.finish_request(now, request);
        }
        let pending = |&(set, replicas, _): &(usize, usize, u64)| Flushing {
            set,
            left: replicas as u32,
            failed: false,
        };
        self.requests.flush(request, dirty.iter().map(pending).collect());
        for (set, replicas, acked) in dirty {
            for replica in 0..replicas {
                let kind = Kind::Flush {
                    request,
                    replica,
                    acked,
                };
                self.flight.start(now, volume, set, 0, kind);
            }
        }
    }

    /// Takes a node's answer to an operation.
    pub fn answered(&mut self, now: Instant, packet: Packet) {
        let slot = self.flight.answered_slot(&packet.header);
        let ended = slot.and_then(|slot| self.flight.answered(now, slot, &packet.header));
        match ended {
            Some((operation, End::Answered(error))) => self.complete(now, operation, packet, error),
            Some((operation, End::Stale)) => self.merge_again(now, operation),
            None => {}
        }
    }

    #[cold]
    fn merge_again(&mut self, now: Instant, operation: Operation) {
        let Kind::Mutate { page, parts, .. } = operation.kind else {
            unreachable!("only mutations are refused as stale");
        };
        if parts.is_empty() {
            self.finish_page(now, operation.volume, page, parts, None);
        } else {
            self.mutate_locked(now, operation.volume, page, parts, None);
        }
    }

    fn complete(&mut self, now: Instant, operation: Operation, packet: Packet, error: Option<BlockError>) {
        let (volume, set, header) = (operation.volume, operation.set, packet.header);
        let page = packet.page().cloned();
        match operation.kind {
            Kind::Read { request, place, .. } => {
                let page = page.unwrap_or_else(|| self.zero.clone());
                self.requests[request].pages[place] = Some(page);
                self.finish_part(now, request, error);
            }
            Kind::ReadForMerge { page: number, parts } => match error {
                None => {
                    let epoch = header.epoch;
                    self.mutate_locked(now, volume, number, parts, Some(Base { page, epoch }));
                }
                Some(_) => self.finish_page(now, volume, number, parts, error),
            },
            Kind::Mutate {
                page: number,
                parts,
                durable,
                ..
            } => {
                if error.is_none() && !durable {
                    let is_lost = self.flight.set(volume, set).acknowledge(header.floor);
                    self.flight.note_loss(now, volume, set, is_lost);
                    self.flight.volumes[volume].losses.acknowledge();
                }
                self.finish_page(now, volume, number, parts, error);
            }
            Kind::Flush { request, acked, .. } => {
                if error.is_none() {
                    let is_lost = self.flight.set(volume, set).check_continuity(header.floor);
                    self.flight.note_loss(now, volume, set, is_lost);
                }
                let entry = self.requests.flushing(request, set);
                entry.left -= 1;
                entry.failed |= error.is_some();
                // One replica of the set is flushed; with the last one the set is.
                if entry.left == 0 && !entry.failed {
                    self.flight.set(volume, set).complete_flush(acked);
                }
                self.finish_part(now, request, error);
            }
        }
    }

    /// A page was changed, or not: answer, and let in what waits for it.
    pub fn finish_page(
        &mut self,
        now: Instant,
        volume: u32,
        page: u64,
        parts: Vec<Part>,
        error: Option<BlockError>,
    ) {
        for part in parts {
            self.finish_part(now, part.request, error);
        }
        let open = self.flight.volumes.get_mut(volume);
        if let Some(parts) = open.and_then(|volume| volume.locks.next(page)) {
            self.mutate_locked(now, volume, page, parts, None);
        }
    }

    fn finish_part(&mut self, now: Instant, request: u32, error: Option<BlockError>) {
        if self.requests.end_part(request, error) {
            self.finish_request(now, request);
        }
    }

    pub fn finish_request(&mut self, now: Instant, slot: u32) {
        let mut request = self.requests.remove(slot);
        let volume = &mut self.flight.volumes[request.volume];
        if request.error.is_none() && volume.has_lost(&request) {
            request.error = Some(BlockError::Io);
        }
        let stage = match request.op {
            BlockOp::Read => 0,
            BlockOp::Flush => 2,
            _ => 1,
        };
        volume.latency[stage].saturating_record(now.nanos_since(request.arrived));
        let is_closing = volume.closing;
        let pages = request.pages.into_iter();
        let result = match request.error {
            None => Ok(pages.map(|page| page.expect("every page was answered")).collect()),
            Some(error) => Err(error),
        };
        self.reply(request.client, request.tag, result);
        if is_closing {
            self.drop_if_unused(request.volume);
        }
    }

    /// Serves a volume no more. Requests in flight are answered first.
    pub fn close(&mut self, id: VolumeId) {
        let Some(index) = self.flight.find(id) else { return };
        self.flight.volumes[index].closing = true;
        self.drop_if_unused(index);
    }

    fn drop_if_unused(&mut self, volume: u32) {
        if !self.requests.iter().any(|(_, request)| request.volume == volume) {
            self.flight.drop_volume(volume);
        }
    }
}
