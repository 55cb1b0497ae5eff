//! Followers: areas of other processes, read-only.

use crate::arguments::{
    Bytes, Slice, Versioned, bytes_place, bytes_places, give_bytes, known_flags, name, path, read_sized,
    store, write_sized,
};
use crate::handles::{Handle, Target, close, give, look_up};
use crate::keyed::{give_values, key_of, keys_of};
use crate::result::{Failure, KIND, MISSING, NONE, OK, Result, call};
use area::catalog::{CatalogClient, default_socket};
use area::{AreaError, FollowOptions, Follower, Kind, Moment, StructureId};
use std::ffi::{c_char, c_int, c_void};

/// `SWY_FOLLOWER_STEADY`.
const STEADY: u32 = 1;
/// `SWY_FOLLOWER_UNFLUSHED`.
const UNFLUSHED: u32 = 2;
/// `SWY_FOLLOWER_UNCACHED`.
const UNCACHED: u32 = 4;

/// A follower.
pub struct OpenFollower(pub Follower);

impl Target for OpenFollower {
    const KIND: u64 = 10;
    const NAME: &'static str = "follower";
}

/// `swy_follower_options`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct CFollowerOptions {
    size: usize,
    cache_bytes_max: u64,
    flags: u32,
    reserved: u32,
}

// SAFETY: integers alone, and 8 + 8 + 4 + 4 bytes of them have no padding.
unsafe impl Versioned for CFollowerOptions {
    const NAME: &'static str = "swy_follower_options";
    const BYTES_MIN: usize = 24;
}
const _: () = assert!(size_of::<CFollowerOptions>() == CFollowerOptions::BYTES_MIN);

impl CFollowerOptions {
    fn checked(self) -> Result<FollowOptions> {
        known_flags(self.flags, STEADY | UNFLUSHED | UNCACHED)?;
        known_flags(self.reserved, 0)?;
        let mut options = FollowOptions {
            is_steady: self.flags & STEADY != 0,
            flushes: self.flags & UNFLUSHED == 0,
            ..FollowOptions::default()
        };
        if self.flags & UNCACHED != 0 {
            options.cache_bytes_max = 0;
        } else if self.cache_bytes_max > 0 {
            options.cache_bytes_max = self.cache_bytes_max;
        }
        Ok(options)
    }
}

/// `swy_moment`.
#[derive(Clone, Copy, Default)]
#[repr(C)]
pub struct CMoment {
    size: usize,
    epoch: u64,
    record: u64,
}

// SAFETY: integers of 8 bytes alone.
unsafe impl Versioned for CMoment {
    const NAME: &'static str = "swy_moment";
    const BYTES_MIN: usize = 24;
}
const _: () = assert!(size_of::<CMoment>() == CMoment::BYTES_MIN);

fn tell(place: *mut CMoment, moment: Moment) -> Result<()> {
    if place.is_null() {
        return Ok(());
    }
    let Moment { epoch, record } = moment;
    write_sized(
        place,
        &CMoment {
            size: 0,
            epoch,
            record,
        },
    )
}

fn hand_out(
    options: *const CFollowerOptions,
    follower: *mut Handle,
    open: impl FnOnce(FollowOptions) -> Result<Follower>,
) -> c_int {
    call(|| {
        let place = crate::arguments::place(follower)?;
        *place = std::ptr::null_mut();
        *place = give(OpenFollower(open(read_sized(options)?.checked()?)?))?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_follower_open(
    path: *const c_char,
    options: *const CFollowerOptions,
    follower: *mut Handle,
) -> c_int {
    hand_out(options, follower, |options| {
        Ok(Follower::open(self::path(path)?, options)?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_follower_open_in_catalog(
    socket: *const c_char,
    name: *const c_char,
    options: *const CFollowerOptions,
    follower: *mut Handle,
) -> c_int {
    hand_out(options, follower, |options| {
        let socket = match socket.is_null() {
            true => default_socket(false),
            false => path(socket)?.to_owned(),
        };
        let name = self::name(name)?;
        let catalog = CatalogClient::connect(&socket).map_err(AreaError::from)?;
        Ok(Follower::open_in_catalog(&catalog, name, options)?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_follower_refresh(follower: Handle, moment: *mut CMoment) -> c_int {
    call(|| {
        tell(moment, look_up::<OpenFollower>(follower)?.0.refresh()?)?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_follower_moment(follower: Handle, moment: *mut CMoment) -> c_int {
    call(|| {
        tell(moment, look_up::<OpenFollower>(follower)?.0.moment())?;
        Ok(OK)
    })
}

/// The structure called `name`.
pub fn find(follower: &Follower, name: &str) -> Result<(StructureId, Kind)> {
    let found = follower.structure(name);
    found.ok_or_else(|| Failure(MISSING, format!("the area has no structure {name:?}")))
}

/// The failure of who asks a log or queue for keys.
pub fn no_keys(name: &str) -> Failure {
    Failure(KIND, format!("{name:?} is neither a map nor a tree"))
}

/// The map or tree called `name`.
fn keyed(follower: &Follower, name: &str) -> Result<StructureId> {
    match find(follower, name)? {
        (id, Kind::Map | Kind::Tree) => Ok(id),
        _ => Err(no_keys(name)),
    }
}

/// The log or queue called `name`.
fn positional(follower: &Follower, name: &str) -> Result<StructureId> {
    match find(follower, name)? {
        (id, Kind::Log | Kind::Queue) => Ok(id),
        _ => Err(Failure(KIND, format!("{name:?} is neither a log nor a queue"))),
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_follower_get(
    follower: Handle,
    name: *const c_char,
    key: *const c_void,
    key_length: usize,
    value: *mut Bytes,
) -> c_int {
    call(|| {
        let place = bytes_place(value)?;
        let follower = &look_up::<OpenFollower>(follower)?.0;
        let id = keyed(follower, self::name(name)?)?;
        let value = follower.get(id, key_of(key, key_length)?)?;
        give_bytes(place, value.as_deref())?;
        Ok(if value.is_some() { OK } else { NONE })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_follower_get_many(
    follower: Handle,
    name: *const c_char,
    keys: *const Slice,
    count: usize,
    values: *mut Bytes,
) -> c_int {
    call(|| {
        let places = bytes_places(values, count)?;
        let follower = &look_up::<OpenFollower>(follower)?.0;
        let id = keyed(follower, self::name(name)?)?;
        give_values(places, &follower.get_many(id, &keys_of(keys, count)?)?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_follower_read(
    follower: Handle,
    name: *const c_char,
    position: u64,
    value: *mut Bytes,
) -> c_int {
    call(|| {
        let place = bytes_place(value)?;
        let follower = &look_up::<OpenFollower>(follower)?.0;
        let id = positional(follower, self::name(name)?)?;
        let value = follower.read(id, position)?;
        give_bytes(place, value.as_deref())?;
        Ok(if value.is_some() { OK } else { NONE })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_follower_positions(
    follower: Handle,
    name: *const c_char,
    first: *mut u64,
    next: *mut u64,
) -> c_int {
    call(|| {
        let follower = &look_up::<OpenFollower>(follower)?.0;
        let range = follower.positions(positional(follower, self::name(name)?)?);
        store(first, range.start);
        store(next, range.end);
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_follower_close(follower: Handle) -> c_int {
    close::<OpenFollower>(follower, |_| Ok(()))
}
