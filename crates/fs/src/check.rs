//! The offline check: superblocks, both roots, each block that they reach, and who has each used block; then what inodes and names say
//! of each other (`census`), and the checksums of data, as deep as is asked for ([`Depth`]).
//!
//! It changes nothing, and reports all that it finds. It does not see what lies below a damaged node. So it does not report used
//! blocks without an owner of a root that has such a node.

use crate::bits::{Bits, WORDS};
use crate::census::{Census, FileDamage};
use crate::format::{
    BLOCK_BYTES, Damage, Key, Kind, Place, Pointer, Root, Sort, Superblock, ZONE_BLOCKS, unseal,
};
use crate::inode::Inode;
use crate::media::{Error, Media, Volume, read_block};
use crate::node::{FILL_MIN, Node, Raw};
use crate::space::{ZoneId, zones_of};
use crate::tree::{is_sound, read_node};
use crate::value::{ExtentRecord, LogRecord, Run, ZoneRecord};
use core::fmt;
use std::collections::{BTreeMap, BTreeSet};
use thiserror::Error;

/// The owner of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Owner {
    /// The tree.
    Node,
    /// A zone, as its bitmap.
    Bitmap(ZoneId),
    /// An operation log.
    Log(u64),
    /// A file, from this block of it on.
    Extent {
        /// The file.
        inode: u64,
        /// Its block.
        block: u64,
    },
}

impl fmt::Display for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node => write!(f, "the tree"),
            Self::Bitmap(id) => write!(f, "the bitmap of zone {} of device {}", id.zone, id.device),
            Self::Log(log) => write!(f, "operation log {log}"),
            Self::Extent { inode, block } => write!(f, "inode {inode} (its block {block})"),
        }
    }
}

/// A kind of damage.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Meaning {
    /// The file system cannot be opened.
    #[error("the file system cannot be opened: {0}")]
    Volume(Error),
    /// One of the two superblocks of a device.
    #[error("this superblock is damaged ({0}); the device's other one counts")]
    Superblock(Damage),
    /// The two superblocks of a device are not the same.
    #[error("the two superblocks of the device do not say the same; the first one counts")]
    Superblocks,
    /// A root slot.
    #[error(
        "this root slot is damaged ({0}); the other root counts. On persistent memory, a cut in a commit may leave it so"
    )]
    RootSlot(Damage),
    /// The two roots do not follow each other.
    #[error("root {1} does not follow root {0}: a commit is missing")]
    Gap(u64, u64),
    /// A medium does not read a block.
    #[error("the medium does not read it: {0}")]
    Unread(base::MediaError),
    /// A node cannot be read.
    #[error("this node of the tree is damaged ({0}); what it and the nodes below it have is lost")]
    Node(Damage),
    /// A bitmap cannot be read.
    #[error("the bitmap of zone {} of device {} is damaged ({damage}); nothing can be allocated there", .id.zone, .id.device)]
    Bitmap {
        /// Its zone.
        id: ZoneId,
        /// How.
        damage: Damage,
    },
    /// A node has too little.
    #[error("this node has {0} bytes of entries, and must have 1014")]
    Thin(usize),
    /// A node has keys that belong elsewhere.
    #[error("this node has keys that belong into another one; they are not found")]
    Keys,
    /// A node is newer than the one above.
    #[error("this node is newer than what points to it")]
    Newer,
    /// A value makes no sense.
    #[error("the value of inode {}, {:?} {} makes no sense", .0.inode, .0.kind, .0.number)]
    Value(Key),
    /// Extents of a file overlap.
    #[error("the extent at block {block} of inode {inode} begins in the one before it")]
    Overlap {
        /// The file.
        inode: u64,
        /// Its block.
        block: u64,
    },
    /// Blocks have two owners.
    #[error("{blocks} blocks from here on belong to {first}, and also to {second}")]
    Shared {
        /// How many.
        blocks: u64,
        /// An owner.
        first: Owner,
        /// Another one.
        second: Owner,
    },
    /// Blocks are where no block is.
    #[error("{1} has {0} blocks from here on, where the device has not so many")]
    Outside(u64, Owner),
    /// Used blocks have no owner.
    #[error("{0} blocks from here on are marked as used, and belong to nobody; they are lost until repaired")]
    Unowned(u64),
    /// Blocks with an owner are free.
    #[error("{0} blocks from here on belong to {1}, and are marked as free; they may be overwritten")]
    Unmarked(u64, Owner),
    /// The count of a zone is wrong.
    #[error("the record of zone {} of device {} says that {said} blocks are used, and its bitmap {found}", .id.zone, .id.device)]
    Used {
        /// The zone.
        id: ZoneId,
        /// By the record.
        said: u32,
        /// By the bitmap.
        found: u32,
    },
    /// The count of a root is wrong.
    #[error("the root says that device {device} has {said} free blocks, and it has {found}")]
    Free {
        /// The device.
        device: u8,
        /// By the root.
        said: u64,
        /// By the zones.
        found: u64,
    },
    /// Inodes and names do not fit each other.
    #[error("{0}")]
    File(FileDamage),
    /// A block of data is not what its checksum says.
    #[error("block {block} of inode {inode} is damaged; reading it fails")]
    Data {
        /// The file.
        inode: u64,
        /// Its block.
        block: u64,
    },
}

/// How much is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Depth {
    /// The tree, and who has each block.
    Tree,
    /// Also files: their names, links, sizes and blocks. It takes some 200 bytes of memory for each inode.
    Files,
    /// Also data: each block that a file has is read.
    Data,
}

/// A thing that is wrong.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Where.
    pub place: Place,
    /// The newest root that it is wrong for; none if it is so whichever root counts.
    pub root: Option<u64>,
    /// The damage.
    pub meaning: Meaning,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.root {
            Some(root) => write!(f, "root {root}, {}: {}", self.place, self.meaning),
            None => write!(f, "{}: {}", self.place, self.meaning),
        }
    }
}

/// The findings of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// All that is wrong.
    pub findings: Vec<Finding>,
    /// The roots that were looked at, the newest one first.
    pub roots: Vec<u64>,
    /// Nodes of the newest root.
    pub nodes: u64,
    /// Entries of the newest root.
    pub entries: u64,
    /// Blocks that it uses.
    pub used: u64,
}

impl Report {
    /// True if nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// Checks the tree of the file system on these devices.
pub fn check(media: &dyn Media) -> Report {
    check_to(media, Depth::Tree)
}

/// Checks the file system on these devices.
pub fn check_to(media: &dyn Media, depth: Depth) -> Report {
    let mut check = Check {
        depth,
        read: BTreeSet::new(),
        media,
        report: Report::default(),
        told: BTreeSet::new(),
        root: None,
    };
    let volume = match Volume::read(media) {
        Ok(volume) => volume,
        Err(error) => {
            check.tell(Place::NONE, Meaning::Volume(error));
            return check.report;
        }
    };
    check.superblocks(&volume);
    for root in check.roots(&volume) {
        check.root = Some(root.generation);
        check.report.roots.push(root.generation);
        let mut walk = Walk::new(&volume, root);
        walk.tree(&mut check);
        walk.owners(&mut check);
        walk.counts(&mut check);
        if walk.is_whole {
            let place = Root::place_of(root.generation);
            let damages = walk.census.damages();
            damages
                .into_iter()
                .for_each(|damage| check.tell(place, Meaning::File(damage)));
        }
        if check.report.roots.len() == 1 {
            check.report.nodes = walk.nodes;
            check.report.entries = walk.entries;
            check.report.used = walk.zones.values().map(|record| u64::from(record.used)).sum();
        }
    }
    check.report
}

struct Check<'m> {
    media: &'m dyn Media,
    depth: Depth,
    /// Extents whose data were read: the other root may have them, too.
    read: BTreeSet<(Run, u32)>,
    report: Report,
    /// Findings of the newest root: the root before it may have the same ones.
    told: BTreeSet<(Place, String)>,
    root: Option<u64>,
}

impl Check<'_> {
    fn tell(&mut self, place: Place, meaning: Meaning) {
        if self.told.insert((place, meaning.to_string())) {
            let root = self.root;
            self.report.findings.push(Finding { place, root, meaning });
        }
    }

    /// Compares data with their checksums.
    fn data(&mut self, (inode, first): (u64, u64), extent: &ExtentRecord, value: &[u8]) {
        if !self.read.insert((extent.run, crc32c::crc32c(value))) {
            return;
        }
        for (index, crc) in (0..).zip(&extent.crcs) {
            let place = extent.run.place.plus(index);
            let block = first.saturating_add(index);
            match read_block(self.media, place) {
                Ok(data) if crc32c::crc32c(&data[..]) == *crc => {}
                Ok(_) => self.tell(place, Meaning::Data { inode, block }),
                Err(error) => self.tell_unread(place, error),
            }
        }
    }

    fn superblocks(&mut self, volume: &Volume) {
        for superblock in &volume.devices {
            for slot in [0, 1] {
                let place = Place::new(superblock.device, slot);
                let parsed = read_block(self.media, place).map(|block| Superblock::parse(&block, slot));
                match parsed {
                    Err(error) => self.tell_unread(place, error),
                    Ok(Err(damage)) => self.tell(place, Meaning::Superblock(damage)),
                    Ok(Ok(other)) if other != *superblock => self.tell(place, Meaning::Superblocks),
                    Ok(Ok(_)) => {}
                }
            }
        }
    }

    fn tell_unread(&mut self, place: Place, error: Error) {
        if let Error::Media { error, .. } = error {
            self.tell(place, Meaning::Unread(error));
        }
    }

    /// The roots that can be read, the newest one first.
    fn roots(&mut self, volume: &Volume) -> Vec<Root> {
        let (mut roots, mut empty) = (Vec::new(), None);
        for slot in [0, 1] {
            let place = Place::new(0, 2 + slot);
            let block = match read_block(self.media, place) {
                Ok(block) => block,
                Err(error) => {
                    self.tell_unread(place, error);
                    continue;
                }
            };
            match Root::parse(&block, slot, volume.mark) {
                Ok(root) if is_sound(&root) => roots.push(root),
                Ok(_) => self.tell(place, Meaning::RootSlot(Damage::Content)),
                Err(damage) if *block == [0; BLOCK_BYTES] => empty = Some((place, damage)),
                Err(damage) => self.tell(place, Meaning::RootSlot(damage)),
            }
        }
        roots.sort_by_key(|root: &Root| core::cmp::Reverse(root.generation));
        match (empty, &roots[..]) {
            // A file system that was just made has one root.
            (Some(_), [root]) if root.generation == 1 => {}
            (Some((place, damage)), _) => self.tell(place, Meaning::RootSlot(damage)),
            (None, [newer, older]) if newer.generation != older.generation + 1 => {
                self.tell(
                    Root::place_of(newer.generation),
                    Meaning::Gap(older.generation, newer.generation),
                );
            }
            (None, _) => {}
        }
        if roots.is_empty() {
            self.tell(Place::new(0, 2), Meaning::Volume(Error::NoRoot));
        }
        roots
    }
}

/// The blocks that one root reaches.
struct Walk {
    mark: u64,
    root: Root,
    /// Blocks of each device.
    blocks: Vec<u64>,
    claims: Vec<(Run, Owner)>,
    zones: BTreeMap<ZoneId, ZoneRecord>,
    nodes: u64,
    entries: u64,
    /// The last extent: its file, and the block behind it.
    extent: (u64, u64),
    census: Census,
    is_whole: bool,
}

impl Walk {
    fn new(volume: &Volume, root: Root) -> Self {
        Self {
            mark: volume.mark,
            root,
            blocks: volume.blocks(),
            claims: Vec::new(),
            zones: BTreeMap::new(),
            nodes: 0,
            entries: 0,
            extent: (0, 0),
            census: Census::default(),
            is_whole: true,
        }
    }

    fn tree(&mut self, check: &mut Check<'_>) {
        if self.root.tree.place != Place::NONE {
            let (top, level) = (self.root.tree, self.root.level);
            self.node(check, (top, level), (Raw::LOWEST, None));
        }
    }

    /// A node and those below it. Its keys are from `range.0` on, and below `range.1`.
    fn node(&mut self, check: &mut Check<'_>, (pointer, level): (Pointer, u8), range: (Raw, Option<Raw>)) {
        let place = pointer.place;
        self.claims.push((Run::one(place), Owner::Node));
        let node = match read_node(check.media, pointer, (level, self.mark)) {
            Ok(node) => node,
            Err(error) => {
                self.is_whole = false;
                let meaning = match error {
                    Error::Damaged { damage, .. } => Meaning::Node(damage),
                    Error::Media { error, .. } => Meaning::Unread(error),
                    error => Meaning::Volume(error),
                };
                return check.tell(place, meaning);
            }
        };
        self.nodes += 1;
        if place != self.root.tree.place && node.bytes() < FILL_MIN {
            check.tell(place, Meaning::Thin(node.bytes()));
        }
        let is_low = node.key(0) < range.0;
        if is_low || range.1.is_some_and(|bound| node.key(node.count() - 1) >= bound) {
            check.tell(place, Meaning::Keys);
        }
        match level {
            0 => self.leaf(check, &node, place),
            _ => self.children(check, &node, (pointer, level), range.1),
        }
    }

    fn children(
        &mut self,
        check: &mut Check<'_>,
        node: &Node,
        (pointer, level): (Pointer, u8),
        bound: Option<Raw>,
    ) {
        for index in 0..node.count() {
            let child = node.child(index);
            if child.generation > pointer.generation {
                check.tell(child.place, Meaning::Newer);
            }
            let lowest = node.lowest_of(index).expect("it is one of its children");
            let range = (lowest, node.lowest_of(index + 1).or(bound));
            self.node(check, (child, level - 1), range);
        }
    }

    fn leaf(&mut self, check: &mut Check<'_>, node: &Node, place: Place) {
        for index in 0..node.count() {
            self.entries += 1;
            let key = node.key(index).key().expect("the node was checked");
            let value = &node.block()[node.value(index)];
            let is_sound = self.entry(check, key, value, place);
            let is_file = check.depth < Depth::Files || self.census.add(key, value);
            if !is_sound || !is_file {
                check.tell(place, Meaning::Value(key));
            }
        }
    }

    /// False if it makes no sense.
    fn entry(&mut self, check: &mut Check<'_>, key: Key, value: &[u8], place: Place) -> bool {
        match (key.inode, key.kind) {
            (0, Kind::Zone) => self.zone(key.number, value),
            (0, Kind::Log) => {
                let Ok(log) = LogRecord::parse(value) else {
                    return false;
                };
                let owner = Owner::Log(key.number);
                self.claims.extend(log.extents.iter().map(|run| (*run, owner)));
                true
            }
            (0, Kind::Orphan) => value.is_empty(),
            (0, _) | (_, Kind::Zone | Kind::Log | Kind::Orphan) => false,
            (_, Kind::Inode) => key.number == 0 && Inode::parse(value).is_ok(),
            (inode, Kind::Extent) => {
                let Ok(extent) = ExtentRecord::parse(value) else {
                    return false;
                };
                let block = key.number;
                self.claims.push((extent.run, Owner::Extent { inode, block }));
                if check.depth >= Depth::Data {
                    check.data((inode, block), &extent, value);
                }
                if self.extent.0 == inode && block < self.extent.1 {
                    check.tell(place, Meaning::Overlap { inode, block });
                }
                self.extent = (inode, block.saturating_add(extent.run.blocks));
                true
            }
            (_, Kind::Entry | Kind::Target | Kind::Attribute) => true,
        }
    }

    fn zone(&mut self, number: u64, value: &[u8]) -> bool {
        let (Some(id), Ok(record)) = (ZoneId::of_number(number), ZoneRecord::parse(value)) else {
            return false;
        };
        if self.zone_blocks(id).is_none() {
            return false;
        }
        self.claims
            .push((Run::one(record.bitmap.place), Owner::Bitmap(id)));
        self.zones.insert(id, record);
        true
    }

    fn zone_blocks(&self, id: ZoneId) -> Option<u32> {
        let blocks = *self.blocks.get(usize::from(id.device))?;
        zones_of(blocks).nth(id.zone as usize)
    }

    /// Compares who has blocks with the bitmaps.
    fn owners(&mut self, check: &mut Check<'_>) {
        let mut claims = core::mem::take(&mut self.claims);
        claims.sort_by_key(|(run, _)| *run);
        let mut owned = BTreeMap::new();
        let mut before: Option<(Run, Owner)> = None;
        for (run, owner) in claims {
            if !self.is_inside(run) {
                check.tell(run.place, Meaning::Outside(run.blocks, owner));
                continue;
            }
            if let Some((other, first)) = before.filter(|(other, _)| other.end() > run.place) {
                let blocks = other.end().min(run.end()).number() - run.place.number();
                let second = owner;
                check.tell(
                    run.place,
                    Meaning::Shared {
                        blocks,
                        first,
                        second,
                    },
                );
            }
            if before.is_none_or(|(other, _)| other.end() <= run.end()) {
                before = Some((run, owner));
            }
            let mut pieces = Vec::new();
            pieces_of(run, |id, from, to| pieces.push((id, from, to)));
            for (id, from, to) in pieces {
                let zone: &mut Zone = owned.entry(id).or_default();
                zone.owned.put(from, to, true);
                zone.claims.push((from, to, owner));
            }
        }
        let ids: BTreeSet<_> = owned.keys().chain(self.zones.keys()).copied().collect();
        for id in ids {
            let zone = owned.remove(&id).unwrap_or_default();
            self.bitmap(check, id, &zone);
        }
    }

    fn is_inside(&self, run: Run) -> bool {
        let blocks = self.blocks.get(usize::from(run.place.device()));
        let end = run.place.number().checked_add(run.blocks);
        let is_behind = run.place.number() >= crate::format::RESERVED_BLOCKS && run.blocks > 0;
        is_behind && end.is_some_and(|end| blocks.is_some_and(|blocks| end <= *blocks))
    }

    fn bitmap(&self, check: &mut Check<'_>, id: ZoneId, zone: &Zone) {
        let blocks = self.zone_blocks(id).expect("the zone is inside") as usize;
        let used = match self.zones.get(&id) {
            None if !self.is_whole => return,
            None => Bits::none(),
            Some(record) => match self.read_bitmap(check, id, record) {
                Some(bits) => bits,
                None => return,
            },
        };
        if !used.all(blocks, WORDS * 64, false) {
            let place = self
                .zones
                .get(&id)
                .map_or(Place::NONE, |record| record.bitmap.place);
            check.tell(
                place,
                Meaning::Bitmap {
                    id,
                    damage: Damage::Content,
                },
            );
        }
        if self.is_whole {
            for (at, count) in used.without(&zone.owned).runs(0, blocks, true) {
                check.tell(id.place(at), Meaning::Unowned(count as u64));
            }
        }
        for &(from, to, owner) in &zone.claims {
            for (at, count) in used.runs(from, to, false) {
                check.tell(id.place(at), Meaning::Unmarked(count as u64, owner));
            }
        }
    }

    fn read_bitmap(&self, check: &mut Check<'_>, id: ZoneId, record: &ZoneRecord) -> Option<Bits> {
        let place = record.bitmap.place;
        let block = match read_block(check.media, place) {
            Ok(block) => block,
            Err(error) => {
                check.tell_unread(place, error);
                return None;
            }
        };
        if let Err(damage) = unseal(&block, Sort::Bitmap, record.bitmap, self.mark) {
            check.tell(place, Meaning::Bitmap { id, damage });
            return None;
        }
        let bits = Bits::parse(&block);
        if bits.count() != record.used {
            let (said, found) = (record.used, bits.count());
            check.tell(place, Meaning::Used { id, said, found });
        }
        Some(bits)
    }

    /// Compares the counts of the root with those of the zones.
    fn counts(&self, check: &mut Check<'_>) {
        if !self.is_whole {
            return;
        }
        let mut found = [0; crate::format::DEVICES_MAX];
        for (free, blocks) in found.iter_mut().zip(&self.blocks) {
            *free = zones_of(*blocks).map(u64::from).sum();
        }
        for (id, record) in &self.zones {
            let free = &mut found[usize::from(id.device)];
            *free = free.saturating_sub(u64::from(record.used));
        }
        for (device, (said, found)) in (0..).zip(self.root.free.into_iter().zip(found)) {
            if said != found {
                let place = Root::place_of(self.root.generation);
                check.tell(place, Meaning::Free { device, said, found });
            }
        }
    }
}

/// The blocks of a zone that have owners.
struct Zone {
    owned: Box<Bits>,
    claims: Vec<(usize, usize, Owner)>,
}

impl Default for Zone {
    fn default() -> Self {
        Self {
            owned: Box::new(Bits::none()),
            claims: Vec::new(),
        }
    }
}

/// The parts of a run that are in one zone each.
fn pieces_of(run: Run, mut piece: impl FnMut(ZoneId, usize, usize)) {
    let (mut at, end) = (
        run.place.number() - crate::format::RESERVED_BLOCKS,
        run.end().number(),
    );
    let end = end - crate::format::RESERVED_BLOCKS;
    while at < end {
        let (zone, bit) = (at / ZONE_BLOCKS, at % ZONE_BLOCKS);
        let count = (ZONE_BLOCKS - bit).min(end - at);
        let id = ZoneId {
            device: run.place.device(),
            zone: zone as u32,
        };
        piece(id, bit as usize, (bit + count) as usize);
        at += count;
    }
}
