//! The structures of an area, one after the other.

use crate::area::OpenArea;
use crate::arguments::{Versioned, place, write_sized};
use crate::follower::OpenFollower;
use crate::handles::{Handle, Target, close, give, look_up};
use crate::result::{NONE, OK, Result, call};
use crate::sync::{Mutex, PoisonError};
use area::{Durability, Kind, StructureId};
use std::ffi::c_int;
use std::vec;
use store::NAME_BYTES_MAX;

/// Room for the name and its zero, in whole words.
const NAME_BYTES: usize = 72;
const _: () = assert!(NAME_BYTES > NAME_BYTES_MAX);

/// `swy_structure`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CStructure {
    size: usize,
    entries: u64,
    number: u32,
    kind: u32,
    is_lazy: u32,
    name_length: u32,
    name: [u8; NAME_BYTES],
}

impl Default for CStructure {
    fn default() -> Self {
        Self {
            size: 0,
            entries: 0,
            number: 0,
            kind: 0,
            is_lazy: 0,
            name_length: 0,
            name: [0; NAME_BYTES],
        }
    }
}

// SAFETY: integers alone: 2 of 8 bytes, 4 of 4 bytes, and 72 bytes.
unsafe impl Versioned for CStructure {
    const NAME: &'static str = "swy_structure";
    const BYTES_MIN: usize = 104;
}
const _: () = assert!(size_of::<CStructure>() == CStructure::BYTES_MIN);

type Found = (String, StructureId, Kind, Durability, u64);

/// The structures that an area had when it was asked.
pub struct Listing(Mutex<vec::IntoIter<Found>>);

impl Target for Listing {
    const KIND: u64 = 7;
    const NAME: &'static str = "listing";
}

/// Hands out a listing of what `find` finds.
fn hand_out(listing: *mut Handle, find: impl FnOnce() -> Result<Vec<Found>>) -> c_int {
    call(|| {
        let place = place(listing)?;
        *place = std::ptr::null_mut();
        *place = give(Listing(Mutex::new(find()?.into_iter())))?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_listing_open(area: Handle, listing: *mut Handle) -> c_int {
    hand_out(listing, || Ok(look_up::<OpenArea>(area)?.area.structures()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_follower_listing_open(follower: Handle, listing: *mut Handle) -> c_int {
    hand_out(listing, || Ok(look_up::<OpenFollower>(follower)?.0.structures()))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_listing_next(listing: Handle, structure: *mut CStructure) -> c_int {
    call(|| {
        let listing = look_up::<Listing>(listing)?;
        let mut left = listing.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((name, id, kind, durability, entries)) = left.as_slice().first() else {
            return Ok(NONE);
        };
        let mut found = CStructure {
            entries: *entries,
            number: id.0,
            kind: *kind as u32,
            is_lazy: u32::from(*durability == Durability::Lazy),
            name_length: name.len() as u32,
            ..CStructure::default()
        };
        found.name[..name.len()].copy_from_slice(name.as_bytes());
        write_sized(structure, &found)?;
        left.next();
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_listing_close(listing: Handle) -> c_int {
    close::<Listing>(listing, |_| Ok(()))
}
