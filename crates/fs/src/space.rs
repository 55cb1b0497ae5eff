//! Which blocks are free.
//!
//! Each zone has two sets of blocks. The *used* ones are those of the next root: its bitmap has them. The *busy* ones may not
//! be given away: they are used, or reserved and not used yet, or *held*: the next root does not need them, but an older one does.
//!
//! What root `t` is the first not to need is held until root `t + 1` is durable, as then neither of the two kept roots needs it, and
//! until no reader of a root before `t` is left.
//!
//! A zone without used blocks has no record. The bitmap of a zone is read when the zone is needed. Until then its record says how many
//! blocks are free, so room is found without reading what is full. Of the zones whose sets the medium has, too, no more than a limit
//! stay in memory: see [`Space::trim`].

use crate::bits::{Bits, WORDS};
use crate::format::{Damage, Place, Pointer, RESERVED_BLOCKS, Sort, ZONE_BLOCKS, unseal};
use crate::media::{Error, Media, read_block};
use crate::value::{Run, ZoneRecord};
use std::collections::VecDeque;

/// A zone: its device, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ZoneId {
    /// The device.
    pub device: u8,
    /// Its number.
    pub zone: u32,
}

impl ZoneId {
    /// The number in the zone's key.
    pub fn number(self) -> u64 {
        u64::from(self.device) << 32 | u64::from(self.zone)
    }

    /// Reads the number of a key.
    pub fn of_number(number: u64) -> Option<Self> {
        let device = u8::try_from(number >> 32).ok()?;
        let zone = number as u32;
        Some(Self { device, zone })
    }

    /// The place of one of its blocks.
    pub fn place(self, bit: usize) -> Place {
        let number = RESERVED_BLOCKS + u64::from(self.zone) * ZONE_BLOCKS + bit as u64;
        Place::new(self.device, number)
    }
}

/// Reads a bitmap, of which a record says where it is. `blocks` are those of the zone.
pub(crate) fn read_bitmap(
    media: &dyn Media,
    record: &ZoneRecord,
    blocks: u32,
    mark: u64,
) -> Result<Bits, Error> {
    let place = record.bitmap.place;
    let block = read_block(media, place)?;
    let damaged = |damage| Error::Damaged { place, damage };
    unseal(&block, Sort::Bitmap, record.bitmap, mark).map_err(damaged)?;
    let bits = Bits::parse(&block);
    let is_sound = bits.all(blocks as usize, WORDS * 64, false) && bits.count() == record.used;
    match is_sound {
        true => Ok(bits),
        false => Err(damaged(Damage::Content)),
    }
}

/// The zones of a device: blocks of each.
pub(crate) fn zones_of(device_blocks: u64) -> impl Iterator<Item = u32> {
    let blocks = device_blocks.saturating_sub(RESERVED_BLOCKS);
    (0..blocks.div_ceil(ZONE_BLOCKS)).map(move |zone| (blocks - zone * ZONE_BLOCKS).min(ZONE_BLOCKS) as u32)
}

/// Zones whose sets stay in memory, at least: more than one change touches.
pub const LOADED_MIN: usize = 16;

#[derive(Debug)]
struct Sets {
    used: Bits,
    busy: Bits,
}

#[derive(Debug)]
struct Zone {
    blocks: u32,
    used: u32,
    busy: u32,
    /// No run of blocks that are not busy is longer.
    longest: u32,
    /// All blocks before this one are busy.
    first: u32,
    bitmap: Pointer,
    sets: Option<Box<Sets>>,
    is_dirty: bool,
}

impl Zone {
    /// A run of so many blocks, from `from` on if there is such a one.
    fn find(&mut self, from: usize, want: usize) -> Option<usize> {
        let end = self.blocks as usize;
        let busy = &self.sets.as_ref().expect("the zone was loaded").busy;
        if from > 0
            && let Ok(at) = busy.find_clear(from, end, want)
        {
            return Some(at);
        }
        let first = busy.first(self.first as usize, end, false);
        let found = busy.find_clear(first, end, want);
        self.first = first as u32;
        match found {
            Ok(at) => Some(at),
            Err(longest) => {
                self.longest = longest as u32;
                None
            }
        }
    }

    fn sets(&mut self) -> &mut Sets {
        self.sets.as_mut().expect("the zone was loaded")
    }
}

#[derive(Debug)]
struct DeviceSpace {
    zones: Vec<Zone>,
    blocks: u64,
    used: u64,
    busy: u64,
}

/// A part of a run that is in one zone.
#[derive(Clone, Copy)]
struct Piece {
    id: ZoneId,
    from: usize,
    to: usize,
}

/// The blocks of all devices.
#[derive(Debug)]
pub struct Space {
    mark: u64,
    devices: Vec<DeviceSpace>,
    dirty: Vec<ZoneId>,
    /// Zones whose sets are in memory, in the order in which [`Space::trim`] looks at them.
    loaded: VecDeque<ZoneId>,
    loaded_max: usize,
    /// What each root was the first not to need.
    held: VecDeque<(u64, Vec<Run>)>,
}

impl Space {
    /// All is free. `blocks` are those of each device.
    pub fn new(mark: u64, blocks: &[u64]) -> Self {
        let zone = |blocks| Zone {
            blocks,
            used: 0,
            busy: 0,
            longest: blocks,
            first: 0,
            bitmap: Pointer::default(),
            sets: None,
            is_dirty: false,
        };
        let device = |&blocks: &u64| DeviceSpace {
            zones: zones_of(blocks).map(zone).collect(),
            blocks: blocks.saturating_sub(RESERVED_BLOCKS),
            used: 0,
            busy: 0,
        };
        Self {
            mark,
            devices: blocks.iter().map(device).collect(),
            dirty: Vec::new(),
            loaded: VecDeque::new(),
            loaded_max: usize::MAX,
            held: VecDeque::new(),
        }
    }

    /// Keeps no more sets in memory than fit `bytes`, and [`LOADED_MIN`] at least, beside those that only memory has.
    pub fn limit(&mut self, bytes: usize) {
        self.loaded_max = (bytes / size_of::<Sets>()).max(LOADED_MIN);
    }

    /// Drops sets that the medium has as they are, if there are more than the limit. `durable` is the newest durable root. Not while
    /// a caller relies on zones to be loaded.
    #[inline]
    pub fn trim(&mut self, durable: u64) {
        if self.loaded.len() > self.loaded_max {
            self.drop_sets(durable);
        }
    }

    /// Looks at two zones more than are too many, so that those which have to stay do not cost a look at each of them every time.
    #[cold]
    fn drop_sets(&mut self, durable: u64) {
        for _ in 0..self.loaded.len() - self.loaded_max + 2 {
            let Some(id) = self.loaded.pop_front() else {
                return;
            };
            let zone = self.zone(id);
            let is_written = !zone.is_dirty && zone.bitmap.generation <= durable;
            match is_written && zone.busy == zone.used {
                true => zone.sets = None,
                false => self.loaded.push_back(id),
            }
        }
    }

    /// Zones whose sets are in memory.
    pub fn loaded(&self) -> usize {
        self.loaded.len()
    }

    /// Takes over the record of a zone, when opening. False if there is no such zone, or it makes no sense.
    pub fn add_record(&mut self, id: ZoneId, record: &ZoneRecord) -> bool {
        let Some(device) = self.devices.get_mut(usize::from(id.device)) else {
            return false;
        };
        let Some(zone) = device.zones.get_mut(id.zone as usize) else {
            return false;
        };
        if record.used > zone.blocks || zone.bitmap.place != Place::NONE {
            return false;
        }
        zone.bitmap = record.bitmap;
        (zone.used, zone.busy, zone.longest) = (record.used, record.used, zone.blocks - record.used);
        device.used += u64::from(record.used);
        device.busy += u64::from(record.used);
        true
    }

    /// Holds what a zone had in the root before this one (`generation`) and has no more, when opening.
    pub fn hold_older(
        &mut self,
        media: &dyn Media,
        (id, older): (ZoneId, &ZoneRecord),
        generation: u64,
    ) -> Result<(), Error> {
        let Some(blocks) = self.zone_blocks(id) else {
            return Ok(());
        };
        let before = read_bitmap(media, older, blocks, self.mark)?;
        self.load(media, id)?;
        let gone = before.without(&self.zone(id).sets().used);
        for (at, count) in gone.runs(0, blocks as usize, true) {
            let run = self.take(id, at, count);
            self.hold(run, generation);
        }
        Ok(())
    }

    fn zone_blocks(&self, id: ZoneId) -> Option<u32> {
        let device = self.devices.get(usize::from(id.device))?;
        device.zones.get(id.zone as usize).map(|zone| zone.blocks)
    }

    fn zone(&mut self, id: ZoneId) -> &mut Zone {
        &mut self.devices[usize::from(id.device)].zones[id.zone as usize]
    }

    /// How many zones there are.
    pub fn zones(&self) -> u64 {
        self.devices.iter().map(|device| device.zones.len() as u64).sum()
    }

    /// Blocks of a device that the next root does not use.
    pub fn free(&self, device: u8) -> u64 {
        let device = &self.devices[usize::from(device)];
        device.blocks - device.used
    }

    /// Blocks of a device that may be reserved now.
    pub fn room(&self, device: u8) -> u64 {
        let device = &self.devices[usize::from(device)];
        device.blocks - device.busy
    }

    /// Devices.
    pub fn devices(&self) -> usize {
        self.devices.len()
    }

    fn locate(&self, place: Place) -> Option<Piece> {
        let number = place.number().checked_sub(RESERVED_BLOCKS)?;
        let id = ZoneId {
            device: place.device(),
            zone: u32::try_from(number / ZONE_BLOCKS).ok()?,
        };
        let from = (number % ZONE_BLOCKS) as usize;
        let blocks = self.zone_blocks(id)? as usize;
        (from < blocks).then_some(Piece {
            id,
            from,
            to: from + 1,
        })
    }

    /// The part of a run that is in its first zone, and the rest.
    fn cut(&self, run: Run) -> Option<(Piece, Run)> {
        let mut piece = self.locate(run.place)?;
        let inside = u64::from(self.zone_blocks(piece.id)?) - piece.from as u64;
        let blocks = run.blocks.min(inside);
        piece.to = piece.from + blocks as usize;
        let rest = Run {
            place: run.place.plus(blocks),
            blocks: run.blocks - blocks,
        };
        Some((piece, rest))
    }

    /// The parts of a run, whose zones are then loaded. All blocks of it are to be busy or not, and used or not.
    fn pieces(
        &mut self,
        media: &dyn Media,
        run: Run,
        (is_busy, is_used): (bool, bool),
    ) -> Result<Vec<Piece>, Error> {
        let mut pieces = Vec::new();
        let mut rest = run;
        while rest.blocks > 0 {
            let (piece, behind) = self.cut(rest).ok_or(Error::NotOwned(run.place))?;
            self.load(media, piece.id)?;
            let sets = self.zone(piece.id).sets();
            let fits =
                sets.busy.all(piece.from, piece.to, is_busy) && sets.used.all(piece.from, piece.to, is_used);
            if !fits {
                return Err(Error::NotOwned(run.place));
            }
            pieces.push(piece);
            rest = behind;
        }
        Ok(pieces)
    }

    /// Reads the bitmap of a zone, unless it is there.
    fn load(&mut self, media: &dyn Media, id: ZoneId) -> Result<(), Error> {
        let mark = self.mark;
        let zone = self.zone(id);
        if zone.sets.is_some() {
            return Ok(());
        }
        let record = ZoneRecord {
            bitmap: zone.bitmap,
            used: zone.used,
        };
        let used = match zone.bitmap.place {
            Place::NONE => Bits::none(),
            _ => read_bitmap(media, &record, zone.blocks, mark)?,
        };
        let busy = used.clone();
        zone.sets = Some(Box::new(Sets { used, busy }));
        self.loaded.push_back(id);
        Ok(())
    }

    fn put_busy(&mut self, piece: Piece, is_busy: bool) {
        let count = (piece.to - piece.from) as u32;
        let zone = self.zone(piece.id);
        zone.sets().busy.put(piece.from, piece.to, is_busy);
        if is_busy {
            zone.busy += count;
            self.devices[usize::from(piece.id.device)].busy += u64::from(count);
        } else {
            zone.busy -= count;
            zone.longest = zone.blocks - zone.busy;
            zone.first = zone.first.min(piece.from as u32);
            self.devices[usize::from(piece.id.device)].busy -= u64::from(count);
        }
    }

    fn put_used(&mut self, piece: Piece, is_used: bool) {
        let count = (piece.to - piece.from) as u32;
        let zone = self.zone(piece.id);
        zone.sets().used.put(piece.from, piece.to, is_used);
        let is_new = !core::mem::replace(&mut zone.is_dirty, true);
        if is_used {
            zone.used += count;
            self.devices[usize::from(piece.id.device)].used += u64::from(count);
        } else {
            zone.used -= count;
            self.devices[usize::from(piece.id.device)].used -= u64::from(count);
        }
        if is_new {
            self.dirty.push(piece.id);
        }
    }

    /// Reserves up to `want` blocks one behind the other, near a place. Fewer, if no so many are in a row; nothing if the device is
    /// full. They are used when they are [kept](Space::keep).
    pub fn reserve(
        &mut self,
        media: &dyn Media,
        device: u8,
        want: u64,
        near: Option<Place>,
    ) -> Result<Option<Run>, Error> {
        let want = want.clamp(1, ZONE_BLOCKS) as usize;
        let near = near.filter(|near| near.device() == device);
        let near = near.and_then(|near| self.locate(near));
        if let Some(piece) = near {
            self.load(media, piece.id)?;
            let zone = self.zone(piece.id);
            let end = (zone.blocks as usize).min(piece.from + want);
            let count = zone.sets().busy.first(piece.from, end, true) - piece.from;
            // What goes on where something ended may be shorter.
            if count * 4 >= want {
                return Ok(Some(self.take(piece.id, piece.from, count)));
            }
        }
        let zones = self.devices[usize::from(device)].zones.len();
        let (first, bit) = near.map_or((0, 0), |piece| (piece.id.zone as usize, piece.from));
        for step in 0..zones {
            let zone = ((first + step) % zones) as u32;
            let from = if step == 0 { bit } else { 0 };
            if let Some(run) = self.reserve_in(media, ZoneId { device, zone }, from, want)? {
                return Ok(Some(run));
            }
        }
        self.reserve_longest(media, device)
    }

    fn reserve_in(
        &mut self,
        media: &dyn Media,
        id: ZoneId,
        from: usize,
        want: usize,
    ) -> Result<Option<Run>, Error> {
        if (self.zone(id).longest as usize) < want {
            return Ok(None);
        }
        self.load(media, id)?;
        let found = self.zone(id).find(from, want);
        Ok(found.map(|at| self.take(id, at, want)))
    }

    /// The longest run that there is. Each step makes what is known of a zone more exact, or finds.
    fn reserve_longest(&mut self, media: &dyn Media, device: u8) -> Result<Option<Run>, Error> {
        loop {
            let zones = &self.devices[usize::from(device)].zones;
            let best = zones
                .iter()
                .enumerate()
                .max_by_key(|(index, zone)| (zone.longest, usize::MAX - index));
            let Some((zone, longest)) = best.map(|(zone, of)| (zone as u32, of.longest as usize)) else {
                return Ok(None);
            };
            if longest == 0 {
                return Ok(None);
            }
            if let Some(run) = self.reserve_in(media, ZoneId { device, zone }, 0, longest)? {
                return Ok(Some(run));
            }
        }
    }

    fn take(&mut self, id: ZoneId, at: usize, count: usize) -> Run {
        self.put_busy(
            Piece {
                id,
                from: at,
                to: at + count,
            },
            true,
        );
        let zone = self.zone(id);
        zone.longest = zone.longest.min(zone.blocks - zone.busy);
        Run {
            place: id.place(at),
            blocks: count as u64,
        }
    }

    /// Reserves just these blocks, which nobody may have: what an operation log says that its process was granted.
    pub fn claim(&mut self, media: &dyn Media, run: Run) -> Result<(), Error> {
        for piece in self.pieces(media, run, (false, false))? {
            self.take(piece.id, piece.from, piece.to - piece.from);
        }
        Ok(())
    }

    /// Uses what was reserved.
    pub fn keep(&mut self, media: &dyn Media, run: Run) -> Result<(), Error> {
        for piece in self.pieces(media, run, (true, false))? {
            self.put_used(piece, true);
        }
        Ok(())
    }

    /// Gives back what was reserved and not used.
    pub fn give_back(&mut self, media: &dyn Media, run: Run) -> Result<(), Error> {
        for piece in self.pieces(media, run, (true, false))? {
            self.put_busy(piece, false);
        }
        Ok(())
    }

    /// Frees what was used: root `generation` is the first not to need it.
    pub fn release(&mut self, media: &dyn Media, run: Run, generation: u64) -> Result<(), Error> {
        for piece in self.pieces(media, run, (true, true))? {
            self.put_used(piece, false);
        }
        self.hold(run, generation);
        Ok(())
    }

    /// Makes sure that [`free_one`](Space::free_one) may be called.
    pub fn check_one(&mut self, media: &dyn Media, place: Place) -> Result<(), Error> {
        let piece = self.locate(place).ok_or(Error::NotOwned(place))?;
        self.load(media, piece.id)?;
        match self.zone(piece.id).sets().used.is_set(piece.from) {
            true => Ok(()),
            false => Err(Error::NotOwned(place)),
        }
    }

    /// Uses a reserved block of the tree.
    pub fn keep_one(&mut self, place: Place) {
        let piece = self.locate(place).expect("it was reserved");
        self.put_used(piece, true);
    }

    /// Frees a block of the tree that was checked. `held_for` is the first root that does not need it; none, if it was written for no
    /// root yet.
    pub fn free_one(&mut self, place: Place, held_for: Option<u64>) {
        let piece = self.locate(place).expect("it was checked");
        self.put_used(piece, false);
        match held_for {
            Some(generation) => self.hold(Run::one(place), generation),
            None => self.put_busy(piece, false),
        }
    }

    fn hold(&mut self, run: Run, generation: u64) {
        match self.held.back_mut() {
            Some((of, runs)) if *of == generation => match runs.last_mut() {
                Some(last) if last.end() == run.place => last.blocks += run.blocks,
                _ => runs.push(run),
            },
            _ => self.held.push_back((generation, vec![run])),
        }
    }

    /// Lets go of what nobody needs any more. `durable` is the newest durable root, `oldest` the oldest one that is read.
    pub fn let_go(&mut self, durable: u64, oldest: Option<u64>) {
        while let Some((generation, _)) = self.held.front() {
            let is_read = oldest.is_some_and(|oldest| oldest < *generation);
            if *generation >= durable || is_read {
                return;
            }
            let (_, runs) = self.held.pop_front().expect("there is one");
            for run in runs {
                let mut rest = run;
                while rest.blocks > 0 {
                    let (piece, behind) = self.cut(rest).expect("it was in use");
                    self.put_busy(piece, false);
                    rest = behind;
                }
            }
        }
    }

    /// The changed zones, in the order in which they were.
    pub fn dirty(&self) -> &[ZoneId] {
        &self.dirty
    }

    /// Forgets which zones were changed: their bitmaps have been written.
    pub fn clean(&mut self) -> Vec<ZoneId> {
        let dirty = core::mem::take(&mut self.dirty);
        for id in &dirty {
            self.zone(*id).is_dirty = false;
        }
        dirty
    }

    /// Says that a zone is to be looked at by the next commit.
    pub fn touch(&mut self, id: ZoneId) {
        if !core::mem::replace(&mut self.zone(id).is_dirty, true) {
            self.dirty.push(id);
        }
    }

    /// What the record of a zone is to say.
    pub fn record(&self, id: ZoneId) -> ZoneRecord {
        let zone = &self.devices[usize::from(id.device)].zones[id.zone as usize];
        ZoneRecord {
            bitmap: zone.bitmap,
            used: zone.used,
        }
    }

    /// Says where the bitmap of a zone is now.
    pub fn set_bitmap(&mut self, id: ZoneId, bitmap: Pointer) {
        self.zone(id).bitmap = bitmap;
    }

    /// True if a zone uses nothing but its own bitmap.
    pub fn is_hollow(&self, id: ZoneId) -> bool {
        let record = self.record(id);
        let is_inside = self
            .locate(record.bitmap.place)
            .is_some_and(|piece| piece.id == id);
        record.used == u32::from(is_inside)
    }

    /// All zones.
    pub fn ids(&self) -> impl Iterator<Item = ZoneId> {
        (0..).zip(&self.devices).flat_map(|(device, of)| {
            let zones = 0..of.zones.len() as u32;
            zones.map(move |zone| ZoneId { device, zone })
        })
    }

    /// The used blocks of a zone, to be written as its bitmap. It has changed, so it is loaded.
    pub fn used(&self, id: ZoneId) -> &Bits {
        let zone = &self.devices[usize::from(id.device)].zones[id.zone as usize];
        &zone.sets.as_ref().expect("a changed zone is loaded").used
    }
}
