//! Maps and trees: what they have in common. `cursor` has their order.

use crate::area::{Structure, open_structure, store_length, store_ticket};
use crate::arguments::{Bytes, Slice, bytes, bytes_place, bytes_places, give_bytes, place, slices};
use crate::handles::{Handle, Target, close, look_up};
use crate::result::{Failure, NONE, OK, Result, TOO_LARGE, call};
use area::{Area, AreaError, Kind, Map, Op, StructureId, Tree, Version, Versioned};
use std::ffi::{c_char, c_int, c_void};
use store::KEY_BYTES_MAX;

pub type OpenMap = Structure<Map>;
pub type OpenTree = Structure<Tree>;

impl Target for OpenMap {
    const KIND: u64 = 4;
    const NAME: &'static str = "map";
}

impl Target for OpenTree {
    const KIND: u64 = 5;
    const NAME: &'static str = "tree";
}

/// Outcome of a read.
pub type Read<T> = std::result::Result<T, AreaError>;

/// A key of the length that keys have.
pub fn key_of<'a>(key: *const c_void, length: usize) -> Result<&'a [u8]> {
    if length > KEY_BYTES_MAX {
        let text = format!("a key has {KEY_BYTES_MAX} bytes at most, not {length}");
        return Err(Failure(TOO_LARGE, text));
    }
    bytes(key, length)
}

/// Maps and trees, as far as they are alike.
pub trait Keyed {
    fn whole(&self) -> (&Area, StructureId);
    fn value(&self, key: &[u8]) -> Read<Option<Vec<u8>>>;
    fn versioned(&self, key: &[u8]) -> Read<Versioned<Vec<u8>>>;
    fn values(&self, keys: &[&[u8]]) -> Read<Vec<Option<Vec<u8>>>>;
}

/// Carries out the change of one key; with a place for a ticket it does not wait.
fn change<T: Keyed>(
    structure: Handle,
    ticket: Option<*mut u64>,
    op: impl FnOnce(StructureId) -> Result<Op<'static>>,
) -> c_int
where
    Structure<T>: Target,
{
    call(|| {
        let structure = look_up::<Structure<T>>(structure)?;
        let (area, id) = structure.it.whole();
        let ops = [op(id)?];
        match ticket {
            None => area.commit(&ops).map(|_| OK).map_err(Failure::from),
            Some(place) => store_ticket(place, &area.submit(&ops)?.1),
        }
    })
}

fn put<T: Keyed>(
    structure: Handle,
    (key, key_length): (*const c_void, usize),
    (data, length): (*const c_void, usize),
    ticket: Option<*mut u64>,
) -> c_int
where
    Structure<T>: Target,
{
    change::<T>(structure, ticket, |map| {
        let (key, data) = (key_of(key, key_length)?, bytes(data, length)?);
        Ok(Op::Put { map, key, data })
    })
}

fn remove<T: Keyed>(
    structure: Handle,
    (key, length): (*const c_void, usize),
    ticket: Option<*mut u64>,
) -> c_int
where
    Structure<T>: Target,
{
    change::<T>(structure, ticket, |map| {
        let key = key_of(key, length)?;
        Ok(Op::Remove { map, key })
    })
}

fn get<T: Keyed>(structure: Handle, (key, length): (*const c_void, usize), value: *mut Bytes) -> c_int
where
    Structure<T>: Target,
{
    call(|| {
        let place = bytes_place(value)?;
        let value = look_up::<Structure<T>>(structure)?
            .it
            .value(key_of(key, length)?)?;
        give_bytes(place, value.as_deref())?;
        Ok(if value.is_some() { OK } else { NONE })
    })
}

fn get_versioned<T: Keyed>(
    structure: Handle,
    (key, length): (*const c_void, usize),
    value: *mut Bytes,
    version: *mut u64,
) -> c_int
where
    Structure<T>: Target,
{
    call(|| {
        let (place, version) = (bytes_place(value)?, place(version)?);
        *version = 0;
        let structure = look_up::<Structure<T>>(structure)?;
        let found = structure.it.versioned(key_of(key, length)?)?;
        let value = found.as_ref().map(|(value, _)| &value[..]);
        give_bytes(place, value)?;
        *version = found.as_ref().map_or(0, |&(_, version)| Version::number(version));
        Ok(if found.is_some() { OK } else { NONE })
    })
}

/// All values, or none: what was given is taken back if a later one fails.
fn get_many<T: Keyed>(structure: Handle, (keys, count): (*const Slice, usize), values: *mut Bytes) -> c_int
where
    Structure<T>: Target,
{
    call(|| {
        let places = bytes_places(values, count)?;
        let structure = look_up::<Structure<T>>(structure)?;
        give_values(places, &structure.it.values(&keys_of(keys, count)?)?)
    })
}

/// Many keys.
pub fn keys_of<'a>(keys: *const Slice, count: usize) -> Result<Vec<&'a [u8]>> {
    let keys = slices(keys, count)?.iter();
    keys.map(|key| key_of(key.parts().0, key.parts().1)).collect()
}

/// The values of as many keys: all of them, or none.
pub fn give_values(places: &mut [Bytes], values: &[Option<Vec<u8>>]) -> Result<c_int> {
    let mut pairs = places.iter_mut().zip(values);
    let given = pairs.try_for_each(|(place, value)| give_bytes(place, value.as_deref()));
    if let Err(failure) = given {
        places.iter_mut().for_each(Bytes::free);
        return Err(failure);
    }
    Ok(OK)
}

macro_rules! keyed {
    ($type:ident, $kind:expr, $make:expr, $open:ident, $put:ident, $put_async:ident, $get:ident, $get_versioned:ident,
     $get_many:ident, $remove:ident, $remove_async:ident, $length:ident, $close:ident) => {
        impl Keyed for $type {
            fn whole(&self) -> (&Area, StructureId) {
                (self.area(), self.id())
            }
            fn value(&self, key: &[u8]) -> Read<Option<Vec<u8>>> {
                self.get(key)
            }
            fn versioned(&self, key: &[u8]) -> Read<Versioned<Vec<u8>>> {
                self.get_versioned(key)
            }
            fn values(&self, keys: &[&[u8]]) -> Read<Vec<Option<Vec<u8>>>> {
                self.get_many(keys)
            }
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $open(
            area: Handle,
            name: *const c_char,
            flags: u32,
            structure: *mut Handle,
        ) -> c_int {
            open_structure((area, name, flags, structure), $kind, $make)
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $put(
            structure: Handle,
            key: *const c_void,
            key_length: usize,
            data: *const c_void,
            length: usize,
        ) -> c_int {
            put::<$type>(structure, (key, key_length), (data, length), None)
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $put_async(
            structure: Handle,
            key: *const c_void,
            key_length: usize,
            data: *const c_void,
            length: usize,
            ticket: *mut u64,
        ) -> c_int {
            put::<$type>(structure, (key, key_length), (data, length), Some(ticket))
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get(
            structure: Handle,
            key: *const c_void,
            key_length: usize,
            value: *mut Bytes,
        ) -> c_int {
            get::<$type>(structure, (key, key_length), value)
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get_versioned(
            structure: Handle,
            key: *const c_void,
            key_length: usize,
            value: *mut Bytes,
            version: *mut u64,
        ) -> c_int {
            get_versioned::<$type>(structure, (key, key_length), value, version)
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $get_many(
            structure: Handle,
            keys: *const Slice,
            count: usize,
            values: *mut Bytes,
        ) -> c_int {
            get_many::<$type>(structure, (keys, count), values)
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $remove(structure: Handle, key: *const c_void, key_length: usize) -> c_int {
            remove::<$type>(structure, (key, key_length), None)
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $remove_async(
            structure: Handle,
            key: *const c_void,
            key_length: usize,
            ticket: *mut u64,
        ) -> c_int {
            remove::<$type>(structure, (key, key_length), Some(ticket))
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $length(structure: Handle, entries: *mut u64) -> c_int {
            store_length(structure, entries, $type::len)
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $close(structure: Handle) -> c_int {
            close::<Structure<$type>>(structure, |_| Ok(()))
        }
    };
}

keyed!(
    Map,
    Kind::Map,
    Area::map,
    swy_map_open,
    swy_map_put,
    swy_map_put_async,
    swy_map_get,
    swy_map_get_versioned,
    swy_map_get_many,
    swy_map_remove,
    swy_map_remove_async,
    swy_map_length,
    swy_map_close
);
keyed!(
    Tree,
    Kind::Tree,
    Area::tree,
    swy_tree_open,
    swy_tree_put,
    swy_tree_put_async,
    swy_tree_get,
    swy_tree_get_versioned,
    swy_tree_get_many,
    swy_tree_remove,
    swy_tree_remove_async,
    swy_tree_length,
    swy_tree_close
);
