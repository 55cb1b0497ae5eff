//! Arguments: pointers that are checked for null, and structs that tell their size.

use crate::result::{Failure, Result, TOO_LARGE, invalid};
use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::{ptr, slice};
use store::NAME_BYTES_MAX;

/// Bytes that a call gives away: of malloc, until `swy_bytes_free`.
#[repr(C)]
pub struct Bytes {
    data: *mut c_void,
    length: usize,
}

impl Bytes {
    /// Gives them back to malloc.
    pub fn free(&mut self) {
        // SAFETY: of malloc, or null.
        unsafe { libc::free(self.data) };
        self.data = ptr::null_mut();
        self.length = 0;
    }
}

/// Bytes that a cursor lends until its next call.
#[repr(C)]
pub struct Slice {
    data: *const c_void,
    length: usize,
}

impl Slice {
    pub const NONE: Self = Self {
        data: ptr::null(),
        length: 0,
    };

    /// Address and length.
    pub fn parts(&self) -> (*const c_void, usize) {
        (self.data, self.length)
    }

    /// The bytes outlive the loan: their owner keeps them until the next call.
    pub fn of(bytes: &[u8]) -> Self {
        Self {
            data: bytes.as_ptr().cast(),
            length: bytes.len(),
        }
    }
}

pub fn bytes<'a>(data: *const c_void, length: usize) -> Result<&'a [u8]> {
    match (data.is_null(), length) {
        (_, 0) => Ok(&[]),
        (true, _) => Err(invalid("data is null, and its length is not 0")),
        (_, length) if isize::try_from(length).is_err() => {
            Err(Failure(TOO_LARGE, "a length is negative".into()))
        }
        // SAFETY: the caller has `length` bytes there for the time of the call.
        _ => Ok(unsafe { slice::from_raw_parts(data.cast(), length) }),
    }
}

fn string<'a>(text: *const c_char, what: &str) -> Result<&'a [u8]> {
    if text.is_null() {
        return Err(invalid(&format!("{what} is null")));
    }
    // SAFETY: the caller has a string there that ends with a zero.
    let text = unsafe { CStr::from_ptr(text) }.to_bytes();
    match text.is_empty() {
        true => Err(invalid(&format!("{what} is empty"))),
        false => Ok(text),
    }
}

/// The name of a structure or an area.
pub fn name<'a>(name: *const c_char) -> Result<&'a str> {
    let name = string(name, "the name")?;
    if name.len() > NAME_BYTES_MAX {
        let text = format!("a name has {NAME_BYTES_MAX} bytes at most, not {}", name.len());
        return Err(Failure(TOO_LARGE, text));
    }
    std::str::from_utf8(name).map_err(|_| invalid("the name is not UTF-8"))
}

pub fn path<'a>(path: *const c_char) -> Result<&'a Path> {
    Ok(Path::new(OsStr::from_bytes(string(path, "the path")?)))
}

/// A place for a result that the caller must have.
pub fn place<'a, T>(place: *mut T) -> Result<&'a mut T> {
    // SAFETY: null, or the caller has room for a `T` there that nobody else uses for the time of the call.
    unsafe { place.as_mut() }.ok_or_else(|| invalid("there is no place for a result"))
}

/// Stores a result where the caller wants it; nowhere if that is null.
pub fn store<T>(place: *mut T, value: T) {
    if !place.is_null() {
        // SAFETY: the caller has room for a `T` there.
        unsafe { place.write(value) };
    }
}

/// Copies `value` to memory of malloc. Empty values have an address, too: no value has none.
pub fn give_bytes(place: &mut Bytes, value: Option<&[u8]>) -> Result<()> {
    *place = Bytes {
        data: ptr::null_mut(),
        length: 0,
    };
    let Some(value) = value else {
        return Ok(());
    };
    // SAFETY: any size may be asked for.
    let data = unsafe { libc::malloc(value.len().max(1)) };
    if data.is_null() {
        return Err(Failure(
            crate::result::SYSTEM,
            "there is no memory for the value".into(),
        ));
    }
    // SAFETY: the new memory has room for the value.
    unsafe { ptr::copy_nonoverlapping(value.as_ptr(), data.cast(), value.len()) };
    place.data = data;
    place.length = value.len();
    Ok(())
}

/// The slices that a caller has at an address.
pub fn slices<'a>(first: *const Slice, count: usize) -> Result<&'a [Slice]> {
    array(first, count)?;
    match count {
        0 => Ok(&[]),
        // SAFETY: not null, and the caller has `count` of them there.
        _ => Ok(unsafe { slice::from_raw_parts(first, count) }),
    }
}

/// Places for the values of many keys, empty until the call succeeds.
pub fn bytes_places<'a>(first: *mut Bytes, count: usize) -> Result<&'a mut [Bytes]> {
    array(first, count)?;
    for index in 0..count {
        let none = Bytes {
            data: ptr::null_mut(),
            length: 0,
        };
        // SAFETY: not null, and the caller has room for `count` of them there.
        unsafe { first.add(index).write(none) };
    }
    match count {
        0 => Ok(&mut []),
        // SAFETY: as above, and they were just written.
        _ => Ok(unsafe { slice::from_raw_parts_mut(first, count) }),
    }
}

/// An array whose bytes a length can tell.
fn array<T>(first: *const T, count: usize) -> Result<()> {
    if count > 0 && first.is_null() {
        return Err(invalid("an array is null, and its count is not 0"));
    }
    match count.checked_mul(size_of::<T>()).map(isize::try_from) {
        Some(Ok(_)) => Ok(()),
        _ => Err(Failure(TOO_LARGE, "a count is negative".into())),
    }
}

/// A place for bytes, empty until the call succeeds.
pub fn bytes_place<'a>(bytes: *mut Bytes) -> Result<&'a mut Bytes> {
    let place = place(bytes)?;
    give_bytes(place, None)?;
    Ok(place)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_bytes_free(bytes: *mut Bytes) {
    // SAFETY: null, or bytes of a call, or freed before and so without an address.
    if let Some(bytes) = unsafe { bytes.as_mut() } {
        bytes.free();
    }
}

/// A struct of the header that begins with its size, as the caller's header has it. Later versions add fields at its end, and
/// zero in a new field means what was before the field.
///
/// # Safety
/// It is `repr(C)`, begins with a `usize`, has no padding, and any bytes are a value.
pub unsafe trait Versioned: Copy + Default {
    /// Its name in the header.
    const NAME: &'static str;
    /// Size of its first version.
    const BYTES_MIN: usize;
}

/// Size that a caller gives.
fn size_of_caller<T: Versioned>(from: *const T) -> Result<usize> {
    // SAFETY: the caller has at least the size there.
    let size = unsafe { from.cast::<usize>().read() };
    // No struct of a later version is longer.
    match (T::BYTES_MIN..=4096).contains(&size) {
        true => Ok(size),
        false => Err(invalid(&format!(
            "{}.size is not the size of the struct",
            T::NAME
        ))),
    }
}

/// Options of a caller; null stands for the defaults.
pub fn read_sized<T: Versioned>(from: *const T) -> Result<T> {
    let mut value = T::default();
    if from.is_null() {
        return Ok(value);
    }
    let size = size_of_caller(from)?;
    let known = size.min(size_of::<T>());
    // SAFETY: the caller has `size` bytes there; any bytes are a `T`.
    unsafe { ptr::copy_nonoverlapping(from.cast::<u8>(), ptr::from_mut(&mut value).cast(), known) };
    // SAFETY: as above.
    let rest = unsafe { slice::from_raw_parts(from.cast::<u8>().add(known), size - known) };
    match rest.iter().all(|&byte| byte == 0) {
        true => Ok(value),
        false => {
            let text = format!("a field of {} is one that this version does not know", T::NAME);
            Err(invalid(&text))
        }
    }
}

/// Fills the struct of a caller as far as the caller knows it; its later fields become zeros.
pub fn write_sized<T: Versioned>(to: *mut T, value: &T) -> Result<()> {
    if to.is_null() {
        return Err(invalid("there is no place for a result"));
    }
    let size = size_of_caller(to)?;
    let known = size.min(size_of::<T>());
    let head = size_of::<usize>();
    // SAFETY: the caller has `size` bytes there; its size stays.
    unsafe {
        let from = ptr::from_ref(value).cast::<u8>();
        ptr::copy_nonoverlapping(from.add(head), to.cast::<u8>().add(head), known - head);
        ptr::write_bytes(to.cast::<u8>().add(known), 0, size - known);
    }
    Ok(())
}

/// Refuses bits that mean nothing yet.
pub fn known_flags(flags: u32, known: u32) -> Result<()> {
    match flags & !known {
        0 => Ok(()),
        unknown => Err(invalid(&format!("flag {unknown:#x} is not known"))),
    }
}
