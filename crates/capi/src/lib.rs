//! Storage areas for C: `include/switchyard_store.h` describes every call; `python/switchyard_store.py` wraps them.
//!
//! Each call checks its pointers for null and relies on its caller for the rest. No panic leaves a call: it is a bug, and
//! the process ends (`extern "C"` aborts).
#![warn(clippy::undocumented_unsafe_blocks)]
// Each function's contract is in the header, and the same for all: pointers are null or valid, lengths are theirs.
#![allow(clippy::missing_safety_doc, missing_docs)]

use area::catalog::{CatalogClient, default_socket};
use area::{Area, AreaError, AreaOptions, Log, Map, Queue, SubmitError};
use std::cell::RefCell;
use std::ffi::{CStr, CString, OsStr, c_char, c_int};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{ptr, slice};

const OK: c_int = 0;
const NONE: c_int = 1;
const INVALID: c_int = -1;
const FULL: c_int = -2;
const FAILED: c_int = -3;
const DAMAGED: c_int = -4;
const UNUSABLE: c_int = -5;

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// A failed call: its result, and what `swy_error` says.
struct Failure(c_int, String);

type Result<T> = std::result::Result<T, Failure>;

impl From<AreaError> for Failure {
    fn from(error: AreaError) -> Self {
        let code = match &error {
            AreaError::Refused(SubmitError::NoSpace | SubmitError::IndexFull) => FULL,
            AreaError::Refused(SubmitError::Damaged { .. }) => DAMAGED,
            AreaError::Refused(SubmitError::Latched) | AreaError::Failed => FAILED,
            AreaError::Refused(_) => INVALID,
            AreaError::Damaged { .. } | AreaError::Lost => DAMAGED,
            _ => UNUSABLE,
        };
        Self(code, error.to_string())
    }
}

fn invalid(what: &str) -> Failure {
    Failure(INVALID, what.into())
}

fn answer(result: Result<c_int>) -> c_int {
    result.unwrap_or_else(|Failure(code, text)| {
        let text = CString::new(text.replace('\0', " ")).expect("zeros were replaced");
        ERROR.set(text);
        code
    })
}

/// The object behind a handle.
fn target<'a, T>(handle: *const T) -> Result<&'a T> {
    // SAFETY: null, or a handle that this library gave out and that is not closed yet.
    unsafe { handle.as_ref() }.ok_or_else(|| invalid("a handle is null"))
}

fn bytes<'a>(data: *const u8, length: usize) -> Result<&'a [u8]> {
    match (data.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(invalid("data is null")),
        // SAFETY: the caller has `length` bytes there for the time of the call.
        _ => Ok(unsafe { slice::from_raw_parts(data, length) }),
    }
}

fn text<'a>(name: *const c_char) -> Result<&'a str> {
    if name.is_null() {
        return Err(invalid("a name is null"));
    }
    // SAFETY: the caller has a string there that ends with a zero.
    let name = unsafe { CStr::from_ptr(name) };
    name.to_str().map_err(|_| invalid("a name is not UTF-8"))
}

fn path<'a>(path: *const c_char) -> Result<&'a Path> {
    if path.is_null() {
        return Err(invalid("the path is null"));
    }
    // SAFETY: the caller has a string there that ends with a zero.
    let path = unsafe { CStr::from_ptr(path) };
    Ok(Path::new(OsStr::from_bytes(path.to_bytes())))
}

/// Stores a result where the caller wants it; nowhere if that is null.
fn store<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller has room for a `T` there.
        unsafe { place.write(value) };
    }
}

fn hand_out<T>(place: *mut *mut T, value: T) -> Result<c_int> {
    if place.is_null() {
        return Err(invalid("there is no place for the handle"));
    }
    store(place, Box::into_raw(Box::new(value)));
    Ok(OK)
}

fn hand_out_bytes(value: Option<Vec<u8>>, data: *mut *mut u8, length: *mut usize) -> Result<c_int> {
    if data.is_null() || length.is_null() {
        return Err(invalid("there is no place for the data"));
    }
    let Some(value) = value else {
        store(data, ptr::null_mut());
        store(length, 0);
        return Ok(NONE);
    };
    store(length, value.len());
    store(data, Box::into_raw(value.into_boxed_slice()).cast());
    Ok(OK)
}

fn close<T>(handle: *mut T) {
    if !handle.is_null() {
        // SAFETY: a handle that this library gave out and that is not used any more.
        drop(unsafe { Box::from_raw(handle) });
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_area_open(
    path: *const c_char,
    create_bytes: u64,
    area: *mut *mut Area,
) -> c_int {
    let open = || {
        let options = AreaOptions::new(create_bytes);
        hand_out(area, Area::open(self::path(path)?, &options)?)
    };
    answer(open())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_area_open_in_catalog(
    socket: *const c_char,
    name: *const c_char,
    create_bytes: u64,
    area: *mut *mut Area,
) -> c_int {
    let open = || {
        let socket = match socket.is_null() {
            true => default_socket(false),
            false => path(socket)?.to_owned(),
        };
        let catalog = CatalogClient::connect(&socket).map_err(AreaError::from)?;
        let opened = Area::open_in_catalog(&catalog, text(name)?, &AreaOptions::new(create_bytes))?;
        hand_out(area, opened)
    };
    answer(open())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_area_sync(area: *const Area) -> c_int {
    answer(target(area).and_then(|area| Ok(area.sync().map(|()| OK)?)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_area_close(area: *mut Area) {
    close(area);
}

#[unsafe(no_mangle)]
pub extern "C" fn swy_error() -> *const c_char {
    ERROR.with_borrow(|text| text.as_ptr())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_free(data: *mut u8, length: usize) {
    if !data.is_null() {
        // SAFETY: a boxed slice of this length that `hand_out_bytes` gave out.
        drop(unsafe { Box::from_raw(ptr::slice_from_raw_parts_mut(data, length)) });
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_log_open(area: *const Area, name: *const c_char, log: *mut *mut Log) -> c_int {
    let open = || hand_out(log, target(area)?.log(text(name)?)?);
    answer(open())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_log_append(
    log: *const Log,
    data: *const u8,
    length: usize,
    position: *mut u64,
) -> c_int {
    let append = || {
        store(position, target(log)?.append(bytes(data, length)?)?);
        Ok(OK)
    };
    answer(append())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_log_read(
    log: *const Log,
    position: u64,
    data: *mut *mut u8,
    length: *mut usize,
) -> c_int {
    let read = || hand_out_bytes(target(log)?.read(position)?, data, length);
    answer(read())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_log_trim(log: *const Log, floor: u64) -> c_int {
    answer(target(log).and_then(|log| Ok(log.trim(floor).map(|()| OK)?)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_log_positions(log: *const Log, first: *mut u64, next: *mut u64) -> c_int {
    let positions = || {
        let log = target(log)?;
        log.area().check()?;
        let range = log.positions();
        store(first, range.start);
        store(next, range.end);
        Ok(OK)
    };
    answer(positions())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_log_close(log: *mut Log) {
    close(log);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_queue_open(
    area: *const Area,
    name: *const c_char,
    queue: *mut *mut Queue,
) -> c_int {
    let open = || hand_out(queue, target(area)?.queue(text(name)?)?);
    answer(open())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_queue_push(
    queue: *const Queue,
    data: *const u8,
    length: usize,
    position: *mut u64,
) -> c_int {
    let push = || {
        store(position, target(queue)?.push(bytes(data, length)?)?);
        Ok(OK)
    };
    answer(push())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_queue_pop(
    queue: *const Queue,
    position: *mut u64,
    data: *mut *mut u8,
    length: *mut usize,
) -> c_int {
    let pop = || {
        let queue = target(queue)?;
        if data.is_null() || length.is_null() || position.is_null() {
            return Err(invalid("there is no place for the entry"));
        }
        match queue.pop()? {
            Some((at, value)) => {
                store(position, at);
                hand_out_bytes(Some(value), data, length)
            }
            None => hand_out_bytes(None, data, length),
        }
    };
    answer(pop())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_queue_acknowledge(queue: *const Queue, position: u64) -> c_int {
    answer(target(queue).and_then(|queue| Ok(queue.acknowledge(position).map(|()| OK)?)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_queue_give_up(queue: *const Queue, position: u64) -> c_int {
    let code = |given_up| if given_up { OK } else { NONE };
    answer(target(queue).and_then(|queue| {
        queue.area().check()?;
        Ok(code(queue.give_up(position)))
    }))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_queue_length(queue: *const Queue, entries: *mut u64) -> c_int {
    let length = || {
        let queue = target(queue)?;
        queue.area().check()?;
        store(entries, queue.len());
        Ok(OK)
    };
    answer(length())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_queue_close(queue: *mut Queue) {
    close(queue);
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_map_open(area: *const Area, name: *const c_char, map: *mut *mut Map) -> c_int {
    let open = || hand_out(map, target(area)?.map(text(name)?)?);
    answer(open())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_map_put(
    map: *const Map,
    key: *const u8,
    key_length: usize,
    data: *const u8,
    length: usize,
) -> c_int {
    let put = || {
        target(map)?.put(bytes(key, key_length)?, bytes(data, length)?)?;
        Ok(OK)
    };
    answer(put())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_map_get(
    map: *const Map,
    key: *const u8,
    key_length: usize,
    data: *mut *mut u8,
    length: *mut usize,
) -> c_int {
    let get = || hand_out_bytes(target(map)?.get(bytes(key, key_length)?)?, data, length);
    answer(get())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_map_remove(map: *const Map, key: *const u8, key_length: usize) -> c_int {
    let remove = || {
        target(map)?.remove(bytes(key, key_length)?)?;
        Ok(OK)
    };
    answer(remove())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_map_length(map: *const Map, entries: *mut u64) -> c_int {
    let length = || {
        let map = target(map)?;
        map.area().check()?;
        store(entries, map.len());
        Ok(OK)
    };
    answer(length())
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_map_close(map: *mut Map) {
    close(map);
}
