//! Snapshots: maps and trees of an area as they were at one moment. `cursor` has their order.

use crate::area::{OpenArea, Structure, structure_of};
use crate::arguments::{Bytes, Slice, bytes_place, bytes_places, give_bytes, place, store};
use crate::handles::{Handle, Target, close, give, look_up};
use crate::keyed::{OpenMap, OpenTree, give_values, key_of, keys_of};
use crate::log::OpenLog;
use crate::queue::OpenQueue;
use crate::result::{NONE, OK, Result, call};
use crate::sync::Arc;
use area::{Snapshot, StructureId};
use std::ffi::{c_int, c_void};

/// A snapshot. A cursor that reads it holds it, too.
pub struct OpenSnapshot {
    pub it: Snapshot,
    /// [`OpenArea::number`].
    area: u64,
}

impl Target for OpenSnapshot {
    const KIND: u64 = 11;
    const NAME: &'static str = "snapshot";
}

impl OpenSnapshot {
    /// A snapshot and a structure of its area.
    pub fn with<T>(snapshot: Handle, structure: Handle) -> Result<(Arc<Self>, Arc<Structure<T>>)>
    where
        Structure<T>: Target,
    {
        let snapshot = look_up::<Self>(snapshot)?;
        let structure = structure_of(structure, snapshot.area, Self::NAME)?;
        Ok((snapshot, structure))
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_snapshot_open(area: Handle, snapshot: *mut Handle) -> c_int {
    call(|| {
        let place = place(snapshot)?;
        *place = std::ptr::null_mut();
        let OpenArea { area, number } = &*look_up::<OpenArea>(area)?;
        *place = give(OpenSnapshot {
            it: area.snapshot()?,
            area: *number,
        })?;
        Ok(OK)
    })
}

macro_rules! keyed {
    ($open:ident, $get:ident, $get_many:ident) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get(
            snapshot: Handle,
            structure: Handle,
            key: *const c_void,
            key_length: usize,
            value: *mut Bytes,
        ) -> c_int {
            call(|| {
                let place = bytes_place(value)?;
                let (snapshot, structure): (_, Arc<$open>) = OpenSnapshot::with(snapshot, structure)?;
                let value = snapshot.it.get(&structure.it, key_of(key, key_length)?)?;
                give_bytes(place, value.as_deref())?;
                Ok(if value.is_some() { OK } else { NONE })
            })
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get_many(
            snapshot: Handle,
            structure: Handle,
            keys: *const Slice,
            count: usize,
            values: *mut Bytes,
        ) -> c_int {
            call(|| {
                let places = bytes_places(values, count)?;
                let (snapshot, structure): (_, Arc<$open>) = OpenSnapshot::with(snapshot, structure)?;
                let values = snapshot
                    .it
                    .get_many(&structure.it, &keys_of(keys, count)?)?;
                give_values(places, &values)
            })
        }
    };
}

keyed!(OpenMap, swy_snapshot_map_get, swy_snapshot_map_get_many);
keyed!(OpenTree, swy_snapshot_tree_get, swy_snapshot_tree_get_many);

fn positions(
    snapshot: &Snapshot,
    structure: StructureId,
    (first, next): (*mut u64, *mut u64),
) -> Result<c_int> {
    let range = snapshot.positions(structure)?;
    store(first, range.start);
    store(next, range.end);
    Ok(OK)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_snapshot_log_positions(
    snapshot: Handle,
    log: Handle,
    first: *mut u64,
    next: *mut u64,
) -> c_int {
    call(|| {
        let (snapshot, log): (_, Arc<OpenLog>) = OpenSnapshot::with(snapshot, log)?;
        positions(&snapshot.it, log.it.id(), (first, next))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_snapshot_queue_positions(
    snapshot: Handle,
    queue: Handle,
    first: *mut u64,
    next: *mut u64,
) -> c_int {
    call(|| {
        let (snapshot, queue): (_, Arc<OpenQueue>) = OpenSnapshot::with(snapshot, queue)?;
        positions(&snapshot.it, queue.it.id(), (first, next))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_snapshot_close(snapshot: Handle) -> c_int {
    close::<OpenSnapshot>(snapshot, |_| Ok(()))
}
