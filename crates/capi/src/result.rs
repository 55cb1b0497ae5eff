//! Results of calls, and the words for them.

use area::catalog::ClientError;
use area::{AreaError, FollowError, MediaOpenError, OpenError, SubmitError};
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};
use std::io;
use store::catalog::protocol::Code as Refusal;

pub const OK: c_int = 0;
pub const NONE: c_int = 1;
pub const INVALID: c_int = -1;
pub const FULL: c_int = -2;
pub const FAILED: c_int = -3;
pub const DAMAGED: c_int = -4;
pub const UNUSABLE: c_int = -5;
pub const HANDLE: c_int = -6;
pub const FORKED: c_int = -7;
pub const KIND: c_int = -8;
pub const TOO_LARGE: c_int = -9;
pub const MISSING: c_int = -10;
pub const BUSY: c_int = -11;
pub const DENIED: c_int = -12;
pub const SYSTEM: c_int = -13;
pub const GONE: c_int = -14;
pub const CONFLICT: c_int = -15;
pub const ENDED: c_int = -16;

/// Name and words of each result.
const CODES: &[(c_int, &CStr, &CStr)] = &[
    (OK, c"SWY_OK", c"done"),
    (NONE, c"SWY_NONE", c"there is no such entry"),
    (INVALID, c"SWY_INVALID", c"an argument is not what the call takes"),
    (
        FULL,
        c"SWY_FULL",
        c"the area, its index, the disk or a quota has no room",
    ),
    (
        FAILED,
        c"SWY_FAILED",
        c"a write failed: open the area anew to see what is there",
    ),
    (
        DAMAGED,
        c"SWY_DAMAGED",
        c"a checksum does not match, or data were lost",
    ),
    (UNUSABLE, c"SWY_UNUSABLE", c"the area cannot be opened or read"),
    (
        HANDLE,
        c"SWY_HANDLE",
        c"the handle is closed, or is none of this kind",
    ),
    (
        FORKED,
        c"SWY_FORKED",
        c"the handle belongs to the parent of this process",
    ),
    (
        KIND,
        c"SWY_KIND",
        c"the name belongs to a structure of another kind",
    ),
    (
        TOO_LARGE,
        c"SWY_TOO_LARGE",
        c"a name, a key, a value or a batch is too long",
    ),
    (
        MISSING,
        c"SWY_MISSING",
        c"there is no such file, area or structure",
    ),
    (BUSY, c"SWY_BUSY", c"another process has the area"),
    (DENIED, c"SWY_DENIED", c"permission denied"),
    (
        SYSTEM,
        c"SWY_SYSTEM",
        c"the system refuses memory, a thread or a descriptor",
    ),
    (
        GONE,
        c"SWY_GONE",
        c"the moment that a follower showed is gone: refresh it",
    ),
    (
        CONFLICT,
        c"SWY_CONFLICT",
        c"a key is not as the batch expects: nothing was done",
    ),
    (
        ENDED,
        c"SWY_ENDED",
        c"the snapshot has ended: the area needed what it kept",
    ),
];

thread_local! {
    static ERROR: RefCell<CString> = RefCell::default();
}

/// A failed call: its result, and what `swy_error` says.
#[derive(Debug)]
pub struct Failure(pub c_int, pub String);

pub type Result<T> = std::result::Result<T, Failure>;

impl From<AreaError> for Failure {
    fn from(error: AreaError) -> Self {
        Self(code_of(&error), error.to_string())
    }
}

fn code_of(error: &AreaError) -> c_int {
    match error {
        AreaError::Refused(refused) => refusal(*refused),
        AreaError::Conflict { .. } => CONFLICT,
        AreaError::Failed | AreaError::Panicked => FAILED,
        AreaError::Damaged { .. } | AreaError::Lost => DAMAGED,
        AreaError::Forked => FORKED,
        AreaError::SnapshotGone => GONE,
        AreaError::SnapshotEnded(_) => ENDED,
        AreaError::Grow(error) if error.kind() == io::ErrorKind::StorageFull => FULL,
        AreaError::Grow(_) | AreaError::System(_) => SYSTEM,
        AreaError::Media(error) => medium(error),
        AreaError::Catalog(error) => catalog(error),
        AreaError::Follow(FollowError::TooFast) => BUSY,
        AreaError::Follow(FollowError::Open(error)) | AreaError::Open(error) => opening(error),
        _ => UNUSABLE,
    }
}

fn opening(error: &OpenError) -> c_int {
    match error {
        OpenError::SegmentHeader { .. }
        | OpenError::SegmentMissing { .. }
        | OpenError::Damaged { .. }
        | OpenError::RecordLost { .. }
        | OpenError::TableDamaged { .. }
        | OpenError::EntryMissing { .. } => DAMAGED,
        _ => UNUSABLE,
    }
}

fn refusal(error: SubmitError) -> c_int {
    match error {
        SubmitError::NoSpace
        | SubmitError::IndexFull
        | SubmitError::TooManyStructures
        | SubmitError::TooManySnapshots => FULL,
        SubmitError::Damaged { .. } => DAMAGED,
        SubmitError::Latched => FAILED,
        SubmitError::TooLong { .. } | SubmitError::KeyTooLong => TOO_LARGE,
        SubmitError::NameTaken => KIND,
        SubmitError::NoStructure => MISSING,
        _ => INVALID,
    }
}

fn medium(error: &MediaOpenError) -> c_int {
    match error {
        MediaOpenError::Missing(_) => MISSING,
        MediaOpenError::InUse(_) => BUSY,
        MediaOpenError::NoSpace { .. } => FULL,
        MediaOpenError::Os { source, .. } if source.kind() == io::ErrorKind::PermissionDenied => DENIED,
        _ => UNUSABLE,
    }
}

fn catalog(error: &ClientError) -> c_int {
    match error {
        ClientError::Refused { code, .. } => match code {
            Refusal::Unknown => MISSING,
            Refusal::InUse | Refusal::Busy => BUSY,
            Refusal::NotPermitted => DENIED,
            Refusal::Quota | Refusal::NoRoom => FULL,
            Refusal::Invalid | Refusal::Malformed => INVALID,
            _ => UNUSABLE,
        },
        _ => UNUSABLE,
    }
}

pub fn invalid(what: &str) -> Failure {
    Failure(INVALID, what.into())
}

/// A call: what it gives back, with its error kept for `swy_error`.
pub fn call(body: impl FnOnce() -> Result<c_int>) -> c_int {
    body().unwrap_or_else(|Failure(code, text)| {
        let text = CString::new(text.replace('\0', " ")).expect("zeros were replaced");
        // A thread that ends has no place for words any more: destructors of C++ may make calls there.
        let _ = ERROR.try_with(|error| error.replace(text));
        code
    })
}

#[unsafe(no_mangle)]
pub extern "C" fn swy_error() -> *const c_char {
    ERROR
        .try_with(|error| error.borrow().as_ptr())
        .unwrap_or(c"".as_ptr())
}

fn described(code: c_int) -> Option<&'static (c_int, &'static CStr, &'static CStr)> {
    CODES.iter().find(|(known, ..)| *known == code)
}

#[unsafe(no_mangle)]
pub extern "C" fn swy_code_name(code: c_int) -> *const c_char {
    described(code).map_or(c"unknown", |(_, name, _)| name).as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn swy_code_text(code: c_int) -> *const c_char {
    described(code)
        .map_or(c"a code that this version does not know", |(.., text)| text)
        .as_ptr()
}

#[unsafe(no_mangle)]
pub extern "C" fn swy_version() -> *const c_char {
    const VERSION: &CStr =
        match CStr::from_bytes_with_nul(concat!(env!("CARGO_PKG_VERSION"), "\0").as_bytes()) {
            Ok(version) => version,
            Err(_) => panic!("a version has no zeros"),
        };
    VERSION.as_ptr()
}
