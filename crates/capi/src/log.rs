//! Logs.

use crate::area::{Structure, open_structure, store_length, store_ticket};
use crate::arguments::{Bytes, bytes, bytes_place, give_bytes, store};
use crate::handles::{Handle, Target, close, look_up};
use crate::result::{NONE, OK, call};
use area::{Area, Kind, Log};
use std::ffi::{c_char, c_int, c_void};

pub type OpenLog = Structure<Log>;

impl Target for OpenLog {
    const KIND: u64 = 2;
    const NAME: &'static str = "log";
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_log_open(
    area: Handle,
    name: *const c_char,
    flags: u32,
    log: *mut Handle,
) -> c_int {
    open_structure((area, name, flags, log), Kind::Log, Area::log)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_log_append(
    log: Handle,
    data: *const c_void,
    length: usize,
    position: *mut u64,
) -> c_int {
    call(|| {
        let log = look_up::<OpenLog>(log)?;
        store(position, log.it.append(bytes(data, length)?)?);
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_log_append_async(
    log: Handle,
    data: *const c_void,
    length: usize,
    position: *mut u64,
    ticket: *mut u64,
) -> c_int {
    call(|| {
        let log = look_up::<OpenLog>(log)?;
        let (at, pending) = log.it.append_async(bytes(data, length)?)?;
        store(position, at);
        store_ticket(ticket, &pending)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_log_read(log: Handle, position: u64, value: *mut Bytes) -> c_int {
    call(|| {
        let place = bytes_place(value)?;
        let value = look_up::<OpenLog>(log)?.it.read(position)?;
        give_bytes(place, value.as_deref())?;
        Ok(if value.is_some() { OK } else { NONE })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_log_trim(log: Handle, floor: u64) -> c_int {
    call(|| {
        let log = look_up::<OpenLog>(log)?;
        log.it.trim(floor)?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_log_positions(log: Handle, first: *mut u64, next: *mut u64) -> c_int {
    call(|| {
        let range = look_up::<OpenLog>(log)?.it.positions()?;
        store(first, range.start);
        store(next, range.end);
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_log_length(log: Handle, entries: *mut u64) -> c_int {
    store_length(log, entries, Log::len)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_log_close(log: Handle) -> c_int {
    close::<OpenLog>(log, |_| Ok(()))
}
