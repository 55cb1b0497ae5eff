//! Handles: numbers that look like pointers, and the table of what they stand for.
//!
//! A handle that is closed, was never given out, or is of another kind is found out, as it is looked up and never followed. Its
//! number is no address of x86-64 or AArch64, so a program that follows it ends at once.
//!
//! ```text
//!  63        52 51   48 47        40 39       20 19      0
//! | 0x5A9      | kind  | generation | use       | place   |
//! ```
//!
//! - *place*: in the table; the low bits choose the shard.
//! - *use*: how often the place was used before. A place that was used 2^20 times is not used again.
//! - *generation*: of the process that has the handle ([`area::process_generation`]). A forked child begins a table of its own, as
//!   another thread of the parent may have held a lock of the parent's table. The parent's table stays for [`close`].
//!
//! A call holds what it works on, so a handle may be closed meanwhile.

use crate::result::{FORKED, Failure, HANDLE, Result, SYSTEM};
use crate::sync::{Arc, AtomicU64, Mutex, MutexGuard, Ordering, PoisonError};
use std::any::Any;
use std::ffi::c_int;

/// A handle as C has it. Nothing is ever there.
pub type Handle = *mut Opaque;

/// The target of pointers that are none.
#[repr(C)]
pub struct Opaque {
    _nothing: [u8; 0],
}

const _: () = assert!(usize::BITS == 64, "a handle is 64 bits");

const MARK: u64 = 0x5A9;
const PLACE_BITS: u32 = 20;
const USE_BITS: u32 = 20;
const GENERATION_BITS: u32 = 8;
/// Locks of a table, so that threads with different handles seldom meet.
const SHARDS: usize = 16;

/// An object that a handle stands for.
pub trait Target: Any + Send + Sync {
    const KIND: u64;
    /// For errors.
    const NAME: &'static str;
}

type Object = Arc<dyn Any + Send + Sync>;

#[derive(Default)]
struct Place {
    used: u64,
    object: Option<Object>,
}

#[derive(Default)]
struct Shard {
    places: Vec<Place>,
    free: Vec<usize>,
}

struct Table {
    generation: u32,
    shards: [Mutex<Shard>; SHARDS],
    /// Handles given out: the shard of the next one.
    given: AtomicU64,
    /// The table of the parent that this process was forked from.
    parent: Option<&'static Table>,
}

/// Address of this process's table; 0 before the first handle.
static TABLE: AtomicU64 = AtomicU64::new(0);

/// The table, of this process or of one that it was forked from.
fn newest() -> Option<&'static Table> {
    let address = TABLE.load(Ordering::Acquire) as *const Table;
    // SAFETY: null, or leaked below.
    unsafe { address.as_ref() }
}

/// This process's table.
fn table() -> &'static Table {
    let generation = area::process_generation();
    loop {
        let found = newest();
        if let Some(table) = found.filter(|table| table.generation == generation) {
            return table;
        }
        let made = Box::into_raw(Box::new(Table {
            generation,
            shards: Default::default(),
            given: AtomicU64::new(0),
            parent: found,
        }));
        let before = found.map_or(0, |table| std::ptr::from_ref(table) as u64);
        if TABLE
            .compare_exchange(before, made as u64, Ordering::AcqRel, Ordering::Acquire)
            .is_err()
        {
            // SAFETY: another thread was first, so nobody else has seen this one.
            drop(unsafe { Box::from_raw(made) });
        }
    }
}

impl Table {
    /// Those that this process was forked from.
    fn parents(&self) -> impl Iterator<Item = &'static Table> {
        std::iter::successors(self.parent, |table| table.parent)
    }
}

fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    shard.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A handle, taken apart.
struct Parts {
    kind: u64,
    generation: u64,
    used: u64,
    place: usize,
}

fn bits(value: u64, low: u32, count: u32) -> u64 {
    (value >> low) & ((1 << count) - 1)
}

impl Parts {
    fn of(handle: Handle) -> Option<Self> {
        let value = handle as u64;
        (value >> 52 == MARK).then(|| Self {
            kind: bits(value, 48, 4),
            generation: bits(value, 40, GENERATION_BITS),
            used: bits(value, PLACE_BITS, USE_BITS),
            place: bits(value, 0, PLACE_BITS) as usize,
        })
    }

    fn handle(&self) -> Handle {
        let value = MARK << 52
            | self.kind << 48
            | self.generation << 40
            | self.used << PLACE_BITS
            | self.place as u64;
        value as Handle
    }

    fn is_of(&self, table: &Table) -> bool {
        self.generation == bits(u64::from(table.generation), 0, GENERATION_BITS)
    }

    fn shard<'a>(&self, table: &'a Table) -> &'a Mutex<Shard> {
        &table.shards[self.place % SHARDS]
    }

    /// The object, if the place is used for this handle.
    fn object<'a>(&self, shard: &'a mut Shard) -> Option<&'a mut Option<Object>> {
        let place = shard.places.get_mut(self.place / SHARDS)?;
        (place.used == self.used && place.object.is_some()).then_some(&mut place.object)
    }
}

/// Gives a handle out.
pub fn give<T: Target>(object: T) -> Result<Handle> {
    let table = table();
    let index = table.given.fetch_add(1, Ordering::Relaxed) as usize % SHARDS;
    let mut shard = lock(&table.shards[index]);
    let within = match shard.free.pop() {
        Some(within) => within,
        None if shard.places.len() < (1 << PLACE_BITS) / SHARDS => {
            shard.places.push(Place::default());
            shard.places.len() - 1
        }
        None => return Err(Failure(SYSTEM, "a process has 1048576 handles at most".into())),
    };
    let place = &mut shard.places[within];
    place.object = Some(Arc::new(object));
    let parts = Parts {
        kind: T::KIND,
        generation: bits(u64::from(table.generation), 0, GENERATION_BITS),
        used: place.used,
        place: within * SHARDS + index,
    };
    Ok(parts.handle())
}

fn wrong<T: Target>(handle: Handle, parts: Option<&Parts>) -> Failure {
    let name = T::NAME;
    let text = match parts {
        _ if handle.is_null() => format!("the handle of a {name} is null"),
        None => format!("the handle of a {name} was never given out"),
        Some(parts) if parts.kind != T::KIND => format!("the handle is not that of a {name}"),
        Some(_) => format!("the {name} is closed"),
    };
    Failure(HANDLE, text)
}

/// The object of a handle.
pub fn look_up<T: Target>(handle: Handle) -> Result<Arc<T>> {
    let parts = Parts::of(handle).ok_or_else(|| wrong::<T>(handle, None))?;
    let table = table();
    if !parts.is_of(table) {
        let mut parents = table.parents();
        if !parents.any(|parent| parts.is_of(parent)) {
            return Err(wrong::<T>(handle, None));
        }
        let name = T::NAME;
        let text = format!("the {name} belongs to the process that opened it, not to a forked child");
        return Err(Failure(FORKED, text));
    }
    let found = parts.object(&mut lock(parts.shard(table))).cloned().flatten();
    found
        .and_then(|object| object.downcast().ok())
        .ok_or_else(|| wrong::<T>(handle, Some(&parts)))
}

/// Takes a handle back. Its object ends with the last call on it. A handle of the parent ends in a forked child, too:
/// the child lets go of its copies of descriptors.
pub fn take<T: Target>(handle: Handle) -> Result<Arc<T>> {
    let parts = Parts::of(handle).ok_or_else(|| wrong::<T>(handle, None))?;
    if parts.kind != T::KIND {
        return Err(wrong::<T>(handle, Some(&parts)));
    }
    let own = table();
    let mut tables = std::iter::once(own).chain(own.parents());
    let table = tables.find(|table| parts.is_of(table));
    let table = table.ok_or_else(|| wrong::<T>(handle, Some(&parts)))?;
    let mut shard = if table.generation == own.generation {
        lock(parts.shard(table))
    } else {
        // A thread that is not here may hold the lock: then the child keeps its copies.
        parts
            .shard(table)
            .try_lock()
            .map_err(|_| wrong::<T>(handle, Some(&parts)))?
    };
    // A forged handle may name the place of an object of another kind, which stays.
    let object = parts
        .object(&mut shard)
        .filter(|object| object.as_deref().is_some_and(|object| object.is::<T>()))
        .and_then(Option::take);
    let object = object.ok_or_else(|| wrong::<T>(handle, Some(&parts)))?;
    let within = parts.place / SHARDS;
    let place = &mut shard.places[within];
    place.used += 1;
    if place.used < 1 << USE_BITS {
        shard.free.push(within);
    }
    drop(shard);
    Ok(object.downcast().expect("the kind is that of the type"))
}

/// Takes a handle back, unless it is null; `end` sees its object.
pub fn close<T: Target>(handle: Handle, end: impl FnOnce(&T) -> Result<()>) -> c_int {
    crate::result::call(|| {
        if !handle.is_null() {
            let object = take::<T>(handle)?;
            let is_own = Parts::of(handle).is_some_and(|parts| parts.is_of(table()));
            // A child waits for nobody and ends nothing.
            let result = if is_own { end(&object) } else { Ok(()) };
            drop(object);
            result?;
        }
        Ok(crate::result::OK)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Thing(u32);
    struct Other;

    impl Target for Thing {
        const KIND: u64 = 14;
        const NAME: &'static str = "thing";
    }
    impl Target for Other {
        const KIND: u64 = 15;
        const NAME: &'static str = "other";
    }

    fn code<T>(result: Result<T>) -> c_int {
        result.map(|_| 0).unwrap_or_else(|Failure(code, _)| code)
    }

    #[test]
    fn closed_wrong_and_forged_handles_are_errors() {
        let handle = give(Thing(7)).expect("there is room");
        assert_eq!(look_up::<Thing>(handle).expect("it is open").0, 7);
        assert_eq!(code(look_up::<Other>(handle)), HANDLE);
        assert_eq!(code(take::<Other>(handle)), HANDLE);
        let held = take::<Thing>(handle).expect("it is open");
        assert_eq!(code(look_up::<Thing>(handle)), HANDLE);
        assert_eq!(code(take::<Thing>(handle)), HANDLE);
        assert_eq!(held.0, 7);
        for forged in [0, 1, 8, 0x7fff_1234_5678, MARK << 52, u64::MAX] {
            assert_eq!(code(look_up::<Thing>(forged as Handle)), HANDLE);
            assert_eq!(code(take::<Thing>(forged as Handle)), HANDLE);
        }
    }

    /// Bug: closing a handle whose kind was forged ended the process. Cause: the object was taken, and then found to be of another
    /// kind. Fix: its kind is looked at first.
    #[test]
    fn a_handle_of_a_forged_kind_is_an_error_and_its_object_stays() {
        let handle = give(Thing(7)).expect("there is room");
        let forged = (handle as u64 & !(15 << 48) | Other::KIND << 48) as Handle;
        assert_eq!(code(look_up::<Other>(forged)), HANDLE);
        assert_eq!(code(take::<Other>(forged)), HANDLE);
        assert_eq!(take::<Thing>(handle).expect("it is open").0, 7);
    }

    #[test]
    fn a_place_is_used_again_under_another_number() {
        let mut seen = std::collections::BTreeSet::new();
        for _ in 0..10_000 {
            let handle = give(Thing(1)).expect("there is room");
            assert!(seen.insert(handle as u64));
            take::<Thing>(handle).expect("it is open");
        }
    }

    #[test]
    fn threads_open_and_close_at_once() {
        let thread = || {
            for round in 0..2_000 {
                let handle = give(Thing(round)).expect("there is room");
                assert_eq!(look_up::<Thing>(handle).expect("it is open").0, round);
                take::<Thing>(handle).expect("it is open");
            }
        };
        std::thread::scope(|scope| (0..8).for_each(|_| drop(scope.spawn(thread))));
    }
}
