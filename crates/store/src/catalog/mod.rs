//! The catalog: which program has which storage area of a medium (Arrakis's control plane), as a table and its changes.
//!
//! Pure, as all of this crate: who serves the catalog keeps the table durable, does the work that a change asks for, and
//! hands out descriptors. A change is three steps, and a crash may come between any two of them:
//!
//! ```text
//!  Catalog::begin ─► save ─► [Work on the medium] ─► Catalog::end ─► save ─► [holders see it] ─► answer
//!        after a restart: Catalog::unfinished ─► [Work] ─► Catalog::end ─► save
//! ```
//!
//! # Invariants
//! - Ranges of two areas never overlap, whatever their state: space is given away when its [`Work::Remove`] or
//!   [`Work::Shrink`] is done and that is durable.
//! - Answered changes are in the table. A restart undoes or completes the others.
//! - Names of areas are their owners': those of one owner differ, and so do those of all exports.
//! - Users have at most their quota, of bytes and of what their areas may move in a second, areas that are leaving included.
//!
//! Bytes and steps: docs/format/areas.md.

pub mod errand;
mod format;
pub mod protocol;

pub use base::{Rate, Readers};
pub use format::CatalogError;
pub use protocol::NewArea;

use std::collections::BTreeMap;
use thiserror::Error;

/// Bytes of one slot of the table.
pub const SLOT_BYTES: u64 = 1 << 20;
/// Bytes of the table: two slots.
pub const TABLE_BYTES: u64 = 2 * SLOT_BYTES;
/// Sizes and places of areas are multiples of this: 1 MiB.
pub const UNIT_BYTES: u64 = 1 << 20;
/// Longest name of an area or export.
pub const CATALOG_NAME_BYTES_MAX: usize = 64;
/// Longest path of an owner's socket: what `sockaddr_un` takes.
pub const PATH_BYTES_MAX: usize = 107;
/// Areas and exports at most, each: the table has room for as many. A user that is no administrator has an eighth.
pub const CATALOG_AREAS_MAX: usize = 2048;
/// Areas at most where they have places: partitions of a disk have numbers up to 255.
const PLACED_AREAS_MAX: usize = 248;

/// Number of an area; never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AreaId(pub u64);

/// A range of the medium in bytes. Without places `offset` is 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extent {
    /// Its first byte.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
}

impl Extent {
    /// Its end.
    pub fn end(&self) -> u64 {
        self.offset + self.bytes
    }

    fn meets(&self, other: &Self) -> bool {
        self.offset < other.end() && other.offset < self.end()
    }
}

/// How far an area is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AreaState {
    /// Its space is being prepared.
    Making,
    /// It is there.
    Ready,
    /// It is there, and getting more: this, from beginning to end.
    Growing(Extent),
    /// It is gone for everybody who has not got it open.
    Leaving,
}

/// One area.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CatalogArea {
    /// Its name, unique among the owner's areas that are not leaving.
    pub name: String,
    /// The user that it belongs to.
    pub owner: u32,
    /// The group that `mode` speaks of.
    pub group: u32,
    /// Rights to read and write: 0o600 and the like, as for files, without execution.
    pub mode: u16,
    /// How far it is.
    pub state: AreaState,
    /// Its place on the medium.
    pub extent: Extent,
    /// How fast it may be read and written.
    pub rate: Rate,
}

impl CatalogArea {
    /// Its share of its owner's quota, and of the medium if that has no places.
    fn bytes(&self) -> u64 {
        match self.state {
            AreaState::Growing(to) if to.offset == self.extent.offset => to.bytes,
            AreaState::Growing(to) => self.extent.bytes + to.bytes,
            _ => self.extent.bytes,
        }
    }

    /// Whether `who` may read it, and write it too if `write`.
    pub fn permits(&self, who: Who, write: bool) -> bool {
        let wanted = if write { 0o6 } else { 0o4 };
        let class = if who.user == self.owner {
            self.mode >> 6
        } else if who.group == self.group {
            self.mode >> 3
        } else {
            self.mode
        };
        who.is_admin || class & wanted == wanted
    }
}

/// A global name for an area of somebody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Export {
    /// Of whom it is.
    pub area: AreaId,
    /// Readers that may open it.
    pub readers: Readers,
    /// The socket where its owner answers; empty to hand out the area itself, for reading.
    pub path: String,
}

/// Limit of all areas of a user together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Bytes.
    pub bytes: u64,
    /// The sum of their rates.
    pub rate: Rate,
}

impl Quota {
    /// As much as there is.
    pub const UNLIMITED: Self = Self {
        bytes: u64::MAX,
        rate: Rate::UNLIMITED,
    };
}

/// The asking user, by the kernel's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Who {
    /// User.
    pub user: u32,
    /// First group.
    pub group: u32,
    /// May do everything: root, and the user that serves the catalog.
    pub is_admin: bool,
}

/// Changes of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
#[allow(missing_docs, reason = "fields as in CatalogArea and Export")]
pub enum Change {
    /// A new area.
    Create(NewArea),
    /// More room for an area.
    Resize { name: String, bytes: u64 },
    /// Another rate for an area.
    Limit { name: String, rate: Rate },
    /// An area goes, and everything in it.
    Delete { name: String },
    /// A global name for an area.
    Export {
        name: String,
        area: String,
        readers: Readers,
        path: String,
    },
    /// A global name goes.
    Withdraw { name: String },
}

/// Work on the medium before a change can end. All of it may have been done already, wholly or in part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Take the space, zeros in all of it.
    Make(AreaId, Extent),
    /// Take the space of the second, which begins with what the first holds, then zeros. The first stays as it is if the
    /// second begins elsewhere. A program that has the area open sees nothing of it before [`errand::Step::Show`].
    Grow(AreaId, Extent, Extent),
    /// Back to the first, from the second.
    Shrink(AreaId, Extent, Extent),
    /// Nobody reaches it any more, and its space is free.
    Remove(AreaId, Extent),
}

impl Work {
    /// The area.
    pub fn area(&self) -> AreaId {
        match *self {
            Self::Make(id, _) | Self::Grow(id, _, _) | Self::Shrink(id, _, _) | Self::Remove(id, _) => id,
        }
    }
}

/// Why a change, or an opening, is refused. Nothing was changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum CatalogRefusal {
    /// There is nothing of this name, or nothing that concerns the one who asks.
    #[error("there is no area or export of this name; an area of another user is called UID/NAME")]
    Unknown,
    /// The name is taken.
    #[error("there is an area or export of this name already")]
    Exists,
    /// Another user's.
    #[error("not permitted: it belongs to another user")]
    NotPermitted,
    /// Names.
    #[error("a name has 1 to 64 letters, digits, `-`, `_` and `.`, and begins with none of `-` and `.`")]
    Name,
    /// Sizes.
    #[error("an area has at least 8 MiB, and can only grow")]
    Size,
    /// Modes.
    #[error("a mode is three octal digits of 0, 4 and 6")]
    Mode,
    /// The path of a socket.
    #[error("the path of a socket begins with `/` and has at most 107 bytes")]
    Path,
    /// The user's quota, of bytes or of rates.
    #[error(
        "the user's quota is used up: delete an area, or have the server of areas started with a larger one"
    )]
    Quota,
    /// The medium, or the table.
    #[error(
        "the catalog has no room for it: delete an area, or start `switchyard areas serve` with a larger --size or device"
    )]
    NoRoom,
    /// Another change to it is under way.
    #[error("another change to the area is under way: try again")]
    Busy,
}

/// The least size of an area: what a storage area of the library needs.
pub const AREA_BYTES_MIN: u64 = 8 * UNIT_BYTES;

/// The table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Catalog {
    uuid: [u8; 16],
    generation: u64,
    /// Areas have places on the medium, which do not overlap.
    is_placed: bool,
    end: u64,
    next: u64,
    areas: BTreeMap<AreaId, CatalogArea>,
    exports: BTreeMap<String, Export>,
}

impl Catalog {
    /// An empty one. `end_bytes` is the size of the medium if areas have places on it (after the table), else the bytes of
    /// all areas together.
    pub fn new(uuid: [u8; 16], is_placed: bool, end_bytes: u64) -> Self {
        Self {
            uuid,
            generation: 0,
            is_placed,
            end: end_bytes / UNIT_BYTES * UNIT_BYTES,
            next: 1,
            areas: BTreeMap::new(),
            exports: BTreeMap::new(),
        }
    }

    /// Of the catalog.
    pub fn uuid(&self) -> [u8; 16] {
        self.uuid
    }

    /// Of the table's state: how often it was written.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether areas have places on the medium.
    pub fn is_placed(&self) -> bool {
        self.is_placed
    }

    /// Highest end of the last area, in bytes.
    pub fn end_bytes(&self) -> u64 {
        self.end
    }

    /// Gives the catalog another end, if every area is below it; false if not.
    pub fn set_end(&mut self, end_bytes: u64) -> bool {
        let end = end_bytes / UNIT_BYTES * UNIT_BYTES;
        let is_enough = match self.is_placed {
            true => self.extents().all(|extent| extent.end() <= end),
            false => self.used_bytes() <= end,
        };
        if is_enough {
            self.end = end;
        }
        is_enough
    }

    /// Bytes for areas, whoever has them.
    pub fn capacity_bytes(&self) -> u64 {
        self.end - if self.is_placed { TABLE_BYTES } else { 0 }
    }

    /// Bytes that areas have.
    pub fn used_bytes(&self) -> u64 {
        self.areas.values().map(CatalogArea::bytes).sum()
    }

    /// Bytes that count against a user's quota.
    pub fn bytes_of(&self, user: u32) -> u64 {
        let mine = self.areas.values().filter(|area| area.owner == user);
        mine.map(CatalogArea::bytes).sum()
    }

    /// All areas, by number.
    pub fn areas(&self) -> impl Iterator<Item = (AreaId, &CatalogArea)> {
        self.areas.iter().map(|(&id, area)| (id, area))
    }

    /// All exports, by name.
    pub fn exports(&self) -> impl Iterator<Item = (&str, &Export)> {
        self.exports.iter().map(|(name, export)| (name.as_str(), export))
    }

    /// An area by its number.
    pub fn area(&self, id: AreaId) -> Option<&CatalogArea> {
        self.areas.get(&id)
    }

    /// An area by the name that `user` calls it by, unless it is leaving: NAME of its own, UID/NAME of anybody's.
    pub fn find(&self, name: &str, user: u32) -> Option<(AreaId, &CatalogArea)> {
        let (owner, name) = split_name(name)?;
        let owner = owner.unwrap_or(user);
        let is_it = |area: &CatalogArea| area.owner == owner && area.name == name;
        self.areas()
            .find(|(_, area)| is_it(area) && area.state != AreaState::Leaving)
    }

    /// The owner of the area with an export.
    fn owner_of(&self, export: &Export) -> u32 {
        self.areas[&export.area].owner
    }

    /// The meaning of a name for `who`: an area of its own, an area to which it has a right, or an export.
    pub fn open(&self, name: &str, who: Who, write: bool) -> Result<Opened<'_>, CatalogRefusal> {
        if let Some((id, area)) = self.find(name, who.user) {
            if area.state == AreaState::Making {
                return Err(CatalogRefusal::Unknown);
            }
            if !area.permits(who, write) {
                return Err(CatalogRefusal::NotPermitted);
            }
            return self.opened(id);
        }
        let export = self.exports.get(name).ok_or(CatalogRefusal::Unknown)?;
        let area = &self.areas[&export.area];
        let is_reader = export.readers.have(who.user, who.group);
        let is_permitted = is_reader || area.permits(who, false);
        // A redirected client asks the owner for whatever it wants; a name hands out an area for reading alone.
        if !is_permitted || (write && export.path.is_empty()) {
            return Err(CatalogRefusal::NotPermitted);
        }
        match export.path.is_empty() {
            true => self.opened(export.area),
            false => Ok(Opened::Elsewhere(&export.path)),
        }
    }

    /// An area to be handed out, unless it is being moved.
    fn opened(&self, id: AreaId) -> Result<Opened<'_>, CatalogRefusal> {
        let area = &self.areas[&id];
        match area.state {
            AreaState::Growing(to) if to.offset != area.extent.offset => Err(CatalogRefusal::Busy),
            _ => Ok(Opened::Area(id, area.extent)),
        }
    }

    /// The first step of a change, for `who`, where all areas of the owner may have `quota`. Afterwards save the table; if there
    /// is work, do it, [`end`](Catalog::end) it, and save again.
    pub fn begin(&mut self, change: &Change, who: Who, quota: Quota) -> Result<Option<Work>, CatalogRefusal> {
        match change {
            Change::Create(new) => {
                let area = CatalogArea {
                    name: new.name.clone(),
                    owner: new.owner,
                    group: new.group,
                    mode: new.mode,
                    state: AreaState::Making,
                    extent: Extent::default(),
                    rate: new.rate,
                };
                self.create(area, new.bytes, who, quota).map(Some)
            }
            Change::Resize { name, bytes } => self.resize(name, *bytes, who, quota.bytes),
            Change::Limit { name, rate } => {
                let id = self.owned(name, who)?;
                let granted = self.grant(*rate, self.areas[&id].owner, Some(id), quota.rate)?;
                self.areas.get_mut(&id).expect("it was found").rate = granted;
                Ok(None)
            }
            Change::Delete { name } => {
                let id = self.owned(name, who)?;
                let area = self.areas.get_mut(&id).expect("it was found");
                area.state = AreaState::Leaving;
                let work = Work::Remove(id, area.extent);
                self.exports.retain(|_, export| export.area != id);
                Ok(Some(work))
            }
            Change::Export {
                name,
                area,
                readers,
                path,
            } => self.export(name, area, *readers, path, who).map(|()| None),
            Change::Withdraw { name } => {
                let export = self.exports.get(name).ok_or(CatalogRefusal::Unknown)?;
                if !who.is_admin && self.areas[&export.area].owner != who.user {
                    return Err(CatalogRefusal::NotPermitted);
                }
                self.exports.remove(name);
                Ok(None)
            }
        }
    }

    fn create(
        &mut self,
        mut area: CatalogArea,
        bytes: u64,
        who: Who,
        quota: Quota,
    ) -> Result<Work, CatalogRefusal> {
        self.check_name(&area.name, area.owner)?;
        if area.owner != who.user && !who.is_admin {
            return Err(CatalogRefusal::NotPermitted);
        }
        if !mode_is_valid(area.mode) {
            return Err(CatalogRefusal::Mode);
        }
        let bytes = whole_units(bytes)?;
        let areas_max = if self.is_placed {
            PLACED_AREAS_MAX
        } else {
            CATALOG_AREAS_MAX
        };
        let mine = self.areas.values().filter(|it| it.owner == area.owner).count();
        if self.areas.len() >= areas_max || (!who.is_admin && mine >= areas_max / 8) {
            return Err(CatalogRefusal::NoRoom);
        }
        if self.bytes_of(area.owner).saturating_add(bytes) > quota.bytes {
            return Err(CatalogRefusal::Quota);
        }
        area.rate = self.grant(area.rate, area.owner, None, quota.rate)?;
        area.extent = self.place(bytes).ok_or(CatalogRefusal::NoRoom)?;
        let id = AreaId(self.next);
        self.next += 1;
        let work = Work::Make(id, area.extent);
        self.areas.insert(id, area);
        Ok(work)
    }

    /// The rate that an area of `owner`, or `mine`, gets when it asks for `rate`. If the owner has a quota, no limit means
    /// the part of the quota that the owner's other areas leave.
    fn grant(
        &self,
        rate: Rate,
        owner: u32,
        mine: Option<AreaId>,
        quota: Rate,
    ) -> Result<Rate, CatalogRefusal> {
        let others = || {
            self.areas()
                .filter(|(id, it)| it.owner == owner && Some(*id) != mine)
        };
        let granted = |asked: u64, quota: u64, used: u64| match (asked, quota.saturating_sub(used)) {
            _ if quota == 0 => Ok(asked),
            (_, 0) => Err(CatalogRefusal::Quota),
            (0, left) => Ok(left),
            (asked, left) if asked <= left => Ok(asked),
            _ => Err(CatalogRefusal::Quota),
        };
        let operations = others().map(|(_, it)| u64::from(it.rate.operations)).sum();
        let bytes = others().fold(0, |sum: u64, (_, it)| sum.saturating_add(it.rate.bytes));
        Ok(Rate {
            operations: granted(rate.operations.into(), quota.operations.into(), operations)? as u32,
            bytes: granted(rate.bytes, quota.bytes, bytes)?,
        })
    }

    fn resize(
        &mut self,
        name: &str,
        bytes: u64,
        who: Who,
        quota_bytes: u64,
    ) -> Result<Option<Work>, CatalogRefusal> {
        let id = self.owned(name, who)?;
        let area = &self.areas[&id];
        let (from, bytes) = (area.extent, whole_units(bytes)?);
        if bytes < from.bytes {
            return Err(CatalogRefusal::Size);
        }
        if bytes == from.bytes {
            return Ok(None);
        }
        let in_place = Extent { bytes, ..from };
        let to = if self.is_free(in_place, Some(id)) {
            in_place
        } else if self.is_placed {
            self.place(bytes).ok_or(CatalogRefusal::NoRoom)?
        } else {
            return Err(CatalogRefusal::NoRoom);
        };
        let more = if to.offset == from.offset {
            bytes - from.bytes
        } else {
            bytes
        };
        if self.bytes_of(area.owner).saturating_add(more) > quota_bytes {
            return Err(CatalogRefusal::Quota);
        }
        self.areas.get_mut(&id).expect("it was found").state = AreaState::Growing(to);
        Ok(Some(Work::Grow(id, from, to)))
    }

    fn export(
        &mut self,
        name: &str,
        area: &str,
        readers: Readers,
        path: &str,
        who: Who,
    ) -> Result<(), CatalogRefusal> {
        let area = self.owned(area, who)?;
        self.check_name(name, self.areas[&area].owner)?;
        if self.exports.contains_key(name) {
            return Err(CatalogRefusal::Exists);
        }
        if !path.is_empty() && (!path.starts_with('/') || path.len() > PATH_BYTES_MAX || path.contains('\0'))
        {
            return Err(CatalogRefusal::Path);
        }
        let of_owner = |export: &&Export| self.owner_of(export) == self.areas[&area].owner;
        let mine = self.exports.values().filter(of_owner).count();
        if self.exports.len() >= CATALOG_AREAS_MAX || (!who.is_admin && mine >= CATALOG_AREAS_MAX / 8) {
            return Err(CatalogRefusal::NoRoom);
        }
        let path = path.to_owned();
        self.exports
            .insert(name.to_owned(), Export { area, readers, path });
        Ok(())
    }

    /// The last step of a change, when its work is done.
    pub fn end(&mut self, work: &Work) {
        let area = self.areas.get_mut(&work.area());
        let area = area.expect("an area stays until its work is done");
        match *work {
            Work::Make(..) => area.state = AreaState::Ready,
            Work::Grow(_, _, to) => {
                area.extent = to;
                area.state = AreaState::Ready;
            }
            Work::Shrink(..) => area.state = AreaState::Ready,
            Work::Remove(id, _) => {
                self.areas.remove(&id);
            }
        }
    }

    /// The work that undoes or completes what is under way: after a restart, or when the work of an area has failed.
    pub fn unfinished(&self) -> Vec<Work> {
        let work = |(id, area): (AreaId, &CatalogArea)| match area.state {
            AreaState::Making | AreaState::Leaving => Some(Work::Remove(id, area.extent)),
            AreaState::Growing(to) => Some(Work::Shrink(id, area.extent, to)),
            AreaState::Ready => None,
        };
        self.areas().filter_map(work).collect()
    }

    /// The area of this name, if `who` may manage it and nothing else is done to it.
    fn owned(&self, name: &str, who: Who) -> Result<AreaId, CatalogRefusal> {
        let (id, area) = self.find(name, who.user).ok_or(CatalogRefusal::Unknown)?;
        if !who.is_admin && area.owner != who.user {
            return Err(CatalogRefusal::NotPermitted);
        }
        match area.state {
            AreaState::Ready => Ok(id),
            _ => Err(CatalogRefusal::Busy),
        }
    }

    /// Whether `owner` may call an area or an export so. Of others' exports a name is not taken: nobody can keep a name from another.
    fn check_name(&self, name: &str, owner: u32) -> Result<(), CatalogRefusal> {
        if !catalog_name_is_valid(name) {
            return Err(CatalogRefusal::Name);
        }
        let exported = self.exports.get(name);
        let is_exported = exported.is_some_and(|export| self.owner_of(export) == owner);
        match self.find(name, owner).is_some() || is_exported {
            true => Err(CatalogRefusal::Exists),
            false => Ok(()),
        }
    }

    /// All ranges that are not free.
    fn extents(&self) -> impl Iterator<Item = Extent> {
        self.areas.values().flat_map(|area| {
            let to = match area.state {
                AreaState::Growing(to) => Some(to),
                _ => None,
            };
            std::iter::once(area.extent).chain(to)
        })
    }

    /// True if nobody has any of it, but `mine`.
    fn is_free(&self, extent: Extent, mine: Option<AreaId>) -> bool {
        if !self.is_placed {
            let others = self.areas().filter(|(id, _)| Some(*id) != mine);
            let used: u64 = others.map(|(_, area)| area.bytes()).sum();
            return used.checked_add(extent.bytes).is_some_and(|all| all <= self.end);
        }
        let is_inside = extent
            .offset
            .checked_add(extent.bytes)
            .is_some_and(|end| end <= self.end);
        let own = mine.map(|id| self.areas[&id].extent);
        is_inside
            && self
                .extents()
                .all(|other| Some(other) == own || !other.meets(&extent))
    }

    /// The first free range of this length.
    fn place(&self, bytes: u64) -> Option<Extent> {
        if !self.is_placed {
            let extent = Extent { offset: 0, bytes };
            return self.is_free(extent, None).then_some(extent);
        }
        let ends = self.extents().map(|extent| extent.end());
        let mut offsets: Vec<u64> = ends.chain([TABLE_BYTES]).collect();
        offsets.sort_unstable();
        let candidates = offsets.into_iter().map(|offset| Extent { offset, bytes });
        candidates.into_iter().find(|extent| self.is_free(*extent, None))
    }
}

/// Meaning of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opened<'a> {
    /// An area to be handed out.
    Area(AreaId, Extent),
    /// The socket of its owner.
    Elsewhere(&'a str),
}

/// The owner and the name of an area that is called UID/NAME; no owner for NAME. `None` if the user is no number.
pub fn split_name(name: &str) -> Option<(Option<u32>, &str)> {
    match name.split_once('/') {
        None => Some((None, name)),
        Some((user, _)) if user.is_empty() || !user.bytes().all(|byte| byte.is_ascii_digit()) => None,
        Some((user, name)) => Some((Some(user.parse().ok()?), name)),
    }
}

/// True for what may name an area or export.
pub fn catalog_name_is_valid(name: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    (1..=CATALOG_NAME_BYTES_MAX).contains(&name.len())
        && name.bytes().all(fits)
        && !name.starts_with(['-', '.'])
}

fn mode_is_valid(mode: u16) -> bool {
    let classes = [mode >> 6, mode >> 3 & 7, mode & 7];
    classes.iter().all(|class| [0, 4, 6].contains(class))
}

fn whole_units(bytes: u64) -> Result<u64, CatalogRefusal> {
    let whole = bytes
        .checked_next_multiple_of(UNIT_BYTES)
        .ok_or(CatalogRefusal::Size)?;
    match whole >= AREA_BYTES_MIN {
        true => Ok(whole),
        false => Err(CatalogRefusal::Size),
    }
}
