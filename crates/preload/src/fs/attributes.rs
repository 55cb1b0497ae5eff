//! Extended attributes. Those of users are served, and looks at those that tell of rights. The kernel has the others, and lists all.

use super::answers::{Done, answer};
use super::live::Live;
use super::place::{Does, at, bytes};
use super::served::call;
use libc::{c_char, c_int, c_void, size_t, ssize_t};
use libfs::{Errno, File, Place, XattrMode};
use std::slice;

/// Bytes of a value, at most (`XATTR_SIZE_MAX` of Linux).
const VALUE_BYTES_MAX: usize = 1 << 16;
/// What the daemon keeps elsewhere.
const OWN: &[u8] = b"user.switchyard.";

/// What an attribute is of.
#[derive(Clone, Copy)]
pub(crate) enum Of {
    Path(*const c_char, bool),
    Descriptor(c_int),
}

/// A name whose attributes programs set and see as they set them.
fn is_plain(name: &[u8]) -> bool {
    name.starts_with(b"user.") && !name.starts_with(OWN)
}

/// A name that may be looked at without the kernel.
fn is_shown(name: &[u8]) -> bool {
    is_plain(name) || name.starts_with(b"system.posix_acl_")
}

fn of<R>(
    it: Of,
    does: Does,
    by_path: impl FnOnce(&Live, Place<'_>, bool) -> Result<R, Errno>,
    by_file: impl FnOnce(&File) -> Result<R, Errno>,
) -> Option<Done<R>> {
    match it {
        Of::Path(path, follows) => at((libc::AT_FDCWD, path), does, |live, place| {
            by_path(live, place, follows)
        }),
        Of::Descriptor(fd) => call(fd, |_, file| by_file(file)),
    }
}

/// `getxattr` and the like.
pub(crate) unsafe fn get(it: Of, name: *const c_char, value: *mut c_void, room: size_t) -> Option<ssize_t> {
    let name = bytes(name).filter(|name| is_shown(name))?;
    let found = of(
        it,
        Does::Look,
        |live, place, follows| live.files.attribute(place, name, follows),
        |file| file.attribute(name),
    )?;
    let copied = found.and_then(|found| match room {
        0 => Ok(found.len()),
        room if room < found.len() => Err(libc::ERANGE),
        _ if value.is_null() => Err(libc::EFAULT),
        _ => {
            // SAFETY: the program's place has so much room.
            let place = unsafe { slice::from_raw_parts_mut(value.cast::<u8>(), found.len()) };
            place.copy_from_slice(&found);
            Ok(found.len())
        }
    });
    Some(answer(copied.map(|count| count as i64)) as ssize_t)
}

/// `setxattr` and the like.
pub(crate) unsafe fn set(
    it: Of,
    name: *const c_char,
    (value, count): (*const c_void, size_t),
    flags: c_int,
) -> Option<c_int> {
    let name = bytes(name).filter(|name| is_plain(name))?;
    let mode = match flags {
        0 => XattrMode::Any,
        libc::XATTR_CREATE => XattrMode::Create,
        libc::XATTR_REPLACE => XattrMode::Replace,
        _ => return None,
    };
    if count > VALUE_BYTES_MAX || (value.is_null() && count > 0) {
        return None;
    }
    let value = match count {
        0 => Vec::new(),
        // SAFETY: the program's bytes.
        _ => unsafe { slice::from_raw_parts(value.cast::<u8>(), count) }.to_vec(),
    };
    let done = of(
        it,
        Does::Change,
        |live, place, follows| live.files.set_attribute(place, (name, &value), (mode, follows)),
        |file| file.set_attribute(name, &value, mode),
    )?;
    Some(answer(done.map(|()| 0)))
}

/// `removexattr` and the like.
pub(crate) fn remove(it: Of, name: *const c_char) -> Option<c_int> {
    let name = bytes(name).filter(|name| is_plain(name))?;
    let done = of(
        it,
        Does::Change,
        |live, place, follows| live.files.remove_attribute(place, name, follows),
        |file| file.remove_attribute(name),
    )?;
    Some(answer(done.map(|()| 0)))
}
