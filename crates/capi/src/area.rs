//! Areas: opening, closing, and what is asked of them as a whole.

use crate::arguments::{Versioned, known_flags, name, path, place, read_sized, store, write_sized};
use crate::handles::{Handle, Target, close, give, look_up};
use crate::result::{Failure, MISSING, NONE, OK, Result, call, invalid};
use crate::sync::{Arc, AtomicU64, Ordering};
use area::catalog::{CatalogClient, default_socket};
use area::{Area, AreaError, AreaOptions, Durability, Kind, StructureId, Ticket};
use os::MediaWarning;
use std::ffi::{c_char, c_int};

/// `SWY_AREA_MAPPED`.
const MAPPED: u32 = 1;
/// `SWY_AREA_UNCACHED`.
const UNCACHED: u32 = 2;
/// `SWY_LAZY`: durable with the next record that somebody waits for.
const LAZY: u32 = 1;
/// `SWY_EXISTING`: a missing structure is not made.
const EXISTING: u32 = 2;
/// Of the engine; 32 is what its table of records has room for.
const WRITES_IN_FLIGHT_MAX: u32 = 32;

/// An open area.
pub struct OpenArea {
    pub area: Area,
    /// Told from other areas of this process, also from an earlier one of the same file.
    pub number: u64,
}

impl Target for OpenArea {
    const KIND: u64 = 1;
    const NAME: &'static str = "area";
}

/// `swy_area_options`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct CAreaOptions {
    size: usize,
    create_bytes: u64,
    index_bytes_max: u64,
    cache_bytes_max: u64,
    writes_in_flight_max: u32,
    flags: u32,
}

// SAFETY: integers alone, and 8 + 8 + 8 + 8 + 4 + 4 bytes of them have no padding.
unsafe impl Versioned for CAreaOptions {
    const NAME: &'static str = "swy_area_options";
    const BYTES_MIN: usize = 40;
}
const _: () = assert!(size_of::<CAreaOptions>() == CAreaOptions::BYTES_MIN);

impl CAreaOptions {
    fn checked(self) -> Result<AreaOptions> {
        known_flags(self.flags, MAPPED | UNCACHED)?;
        if self.writes_in_flight_max > WRITES_IN_FLIGHT_MAX {
            return Err(invalid("writes_in_flight_max is 1 to 32, or 0 for the default"));
        }
        let mut options = AreaOptions::new(self.create_bytes);
        options.is_mapped = self.flags & MAPPED != 0;
        if self.index_bytes_max > 0 {
            options.index_bytes_max = self.index_bytes_max;
        }
        if self.flags & UNCACHED != 0 {
            options.cache_bytes_max = 0;
        } else if self.cache_bytes_max > 0 {
            options.cache_bytes_max = self.cache_bytes_max;
        }
        if self.writes_in_flight_max > 0 {
            options.writes_in_flight_max = self.writes_in_flight_max as usize;
        }
        Ok(options)
    }
}

/// Opens by `open` with the caller's options, and hands the area out.
fn hand_out(
    options: *const CAreaOptions,
    area: *mut Handle,
    open: impl FnOnce(&AreaOptions) -> Result<Area>,
) -> c_int {
    static OPENED: AtomicU64 = AtomicU64::new(0);
    call(|| {
        let place = place(area)?;
        *place = std::ptr::null_mut();
        let area = open(&read_sized(options)?.checked()?)?;
        let number = OPENED.fetch_add(1, Ordering::Relaxed);
        *place = give(OpenArea { area, number })?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_area_open(
    path: *const c_char,
    options: *const CAreaOptions,
    area: *mut Handle,
) -> c_int {
    hand_out(options, area, |options| {
        Ok(Area::open(self::path(path)?, options)?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_area_open_in_catalog(
    socket: *const c_char,
    name: *const c_char,
    options: *const CAreaOptions,
    area: *mut Handle,
) -> c_int {
    hand_out(options, area, |options| {
        let socket = match socket.is_null() {
            true => default_socket(false),
            false => path(socket)?.to_owned(),
        };
        let name = self::name(name)?;
        let catalog = CatalogClient::connect(&socket).map_err(AreaError::from)?;
        Ok(Area::open_in_catalog(&catalog, name, options)?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_area_open_memory(options: *const CAreaOptions, area: *mut Handle) -> c_int {
    hand_out(options, area, |options| match options.create_bytes {
        0 => Err(invalid("an area in memory needs create_bytes")),
        _ => Ok(Area::memory(options, None)?),
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_area_format(path: *const c_char, options: *const CAreaOptions) -> c_int {
    call(|| {
        let options = read_sized(options)?.checked()?;
        Area::format(self::path(path)?, &options)?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_area_close(area: Handle) -> c_int {
    // Lazy changes are to be durable, and the caller to know if they are not.
    close(area, |open: &OpenArea| Ok(open.area.sync()?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_area_sync(area: Handle) -> c_int {
    call(|| Ok(look_up::<OpenArea>(area)?.area.sync().map(|()| OK)?))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_area_grow(area: Handle, bytes: u64, has: *mut u64) -> c_int {
    call(|| {
        *place(has)? = look_up::<OpenArea>(area)?.area.grow(bytes)?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_area_durable(area: Handle, ticket: *mut u64) -> c_int {
    call(|| {
        *place(ticket)? = look_up::<OpenArea>(area)?.area.durable().0;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_area_wait(area: Handle, ticket: u64) -> c_int {
    call(|| {
        let open = look_up::<OpenArea>(area)?;
        let ticket = known_ticket(&open.area, ticket)?;
        Ok(open.area.wait(ticket).map(|()| OK)?)
    })
}

/// A ticket that was given out; nobody would ever make another one durable.
pub fn known_ticket(area: &Area, ticket: u64) -> Result<Ticket> {
    match ticket <= area.newest().0 {
        true => Ok(Ticket(ticket)),
        false => Err(invalid(&format!("ticket {ticket} was not given out yet"))),
    }
}

/// `swy_stats`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct CStats {
    size: usize,
    records: u64,
    record_bytes: u64,
    entries: u64,
    moved_bytes: u64,
    cleaned_segments: u64,
    checkpoints: u64,
    live_bytes: u64,
    live_bytes_max: u64,
    index_bytes: u64,
    free_segments: u64,
    read_errors: u64,
    damaged_at: u64,
    batch_bytes_max: u64,
    opened: u64,
    replayed_records: u64,
    is_torn: u64,
    snapshots: u64,
    snapshot_bytes: u64,
    snapshots_ended: u64,
    tables_damaged: u64,
    table_damaged_at: u64,
}

// SAFETY: integers of 8 bytes alone.
unsafe impl Versioned for CStats {
    const NAME: &'static str = "swy_stats";
    const BYTES_MIN: usize = 136;
}
const _: () = assert!(size_of::<CStats>() == CStats::BYTES_MIN + 5 * 8);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_area_stats(area: Handle, stats: *mut CStats) -> c_int {
    call(|| {
        let open = look_up::<OpenArea>(area)?;
        let (now, report) = (open.area.stats(), open.area.report());
        let found = CStats {
            size: 0,
            records: now.records,
            record_bytes: now.record_bytes,
            entries: now.entries,
            moved_bytes: now.moved_bytes,
            cleaned_segments: now.cleaned,
            checkpoints: now.checkpoints,
            live_bytes: now.live_bytes,
            live_bytes_max: now.live_bytes_max,
            index_bytes: now.index_bytes,
            free_segments: u64::from(now.free_segments),
            read_errors: now.read_errors,
            damaged_at: now.damaged_at.unwrap_or(u64::MAX),
            batch_bytes_max: open.area.batch_bytes_max() as u64,
            opened: report.epoch,
            replayed_records: report.records,
            is_torn: u64::from(report.is_torn),
            snapshots: u64::from(now.snapshots),
            snapshot_bytes: now.snapshot_bytes,
            snapshots_ended: now.snapshots_ended,
            tables_damaged: u64::from(now.tables_damaged),
            table_damaged_at: now.table_damaged_at.unwrap_or(0),
        };
        write_sized(stats, &found)?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_area_warning(area: Handle, text: *mut *const c_char) -> c_int {
    call(|| {
        let place = place(text)?;
        *place = std::ptr::null();
        let text = match look_up::<OpenArea>(area)?.area.warning() {
            None => return Ok(NONE),
            Some(MediaWarning::Buffered) => {
                c"the file system refuses O_DIRECT: data passes through the page cache"
            }
            Some(MediaWarning::Volatile) => {
                c"the file system keeps its files in memory: data does not survive a power cut"
            }
        };
        *place = text.as_ptr();
        Ok(OK)
    })
}

fn find(area: &Area, name: &str) -> Result<(StructureId, Kind)> {
    let all = area.structures().into_iter();
    all.filter(|(found, ..)| found == name)
        .map(|(_, id, kind, ..)| (id, kind))
        .next()
        .ok_or_else(|| Failure(MISSING, format!("the area has no structure {name:?}")))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_area_drop(area: Handle, name: *const c_char) -> c_int {
    call(|| {
        let open = look_up::<OpenArea>(area)?;
        let (id, _) = find(&open.area, self::name(name)?)?;
        open.area.drop_structure(id)?;
        Ok(OK)
    })
}

/// A structure of an area.
pub struct Structure<T> {
    pub it: T,
    /// [`OpenArea::number`].
    pub area: u64,
}

/// A structure of the area with this number, to which `whole` belongs.
pub fn structure_of<T>(structure: Handle, area: u64, whole: &str) -> Result<Arc<Structure<T>>>
where
    Structure<T>: Target,
{
    let structure = look_up::<Structure<T>>(structure)?;
    match structure.area == area {
        true => Ok(structure),
        false => Err(invalid(&format!(
            "the structure belongs to another area than the {whole}"
        ))),
    }
}

/// Opens the structure called `name`; `wrap` makes it what its handle stands for.
pub fn open_structure<T>(
    (area, name, flags, structure): (Handle, *const c_char, u32, *mut Handle),
    kind: Kind,
    wrap: impl FnOnce(&Area, &str) -> std::result::Result<T, AreaError>,
) -> c_int
where
    Structure<T>: Target,
{
    call(|| {
        let place = place(structure)?;
        *place = std::ptr::null_mut();
        let OpenArea { area, number } = &*look_up::<OpenArea>(area)?;
        let name = self::name(name)?;
        known_flags(flags, LAZY | EXISTING)?;
        if flags & EXISTING != 0 {
            find(area, name)?;
        }
        let durability = match flags & LAZY {
            0 => Durability::Sync,
            _ => Durability::Lazy,
        };
        area.create(name, kind, durability)?;
        let it = wrap(area, name)?;
        *place = give(Structure { it, area: *number })?;
        Ok(OK)
    })
}

/// Stores how many entries there are.
pub fn store_length<T>(
    structure: Handle,
    entries: *mut u64,
    length: impl FnOnce(&T) -> std::result::Result<u64, AreaError>,
) -> c_int
where
    Structure<T>: Target,
{
    call(|| {
        *place(entries)? = length(&look_up::<Structure<T>>(structure)?.it)?;
        Ok(OK)
    })
}

/// Stores a ticket where the caller wants it.
pub fn store_ticket(place: *mut u64, pending: &area::Pending) -> Result<c_int> {
    store(place, pending.ticket().0);
    Ok(OK)
}
