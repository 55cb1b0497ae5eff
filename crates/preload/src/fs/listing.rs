//! Listings: streams of directories (`opendir`), served if the program has the directory's lease, and as long as the directory is served. Once the kernel has it, the C library goes on from where the program is: the
//! places of a listing are the mount's.
//!
//! A stream of ours has an odd address, and nobody else's has. No function of the C library gets one: all that take a stream are here.

use super::answers::Done;
use super::live::{NUMBERS, live};
use super::open::opened_directory;
use super::place::{Does, at, bytes};
use super::served::by;
use super::table::{Opened, is_known};
use super::{leave, numbers};
use crate::state::set_errno;
use crate::{descriptors, real};
use libc::{DIR, c_char, c_int, c_long, dirent64, off_t};
use libfs::{Entry, Errno, Open};
use std::mem::offset_of;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::{io, mem, ptr};

/// Entries that are had at once.
const ENTRIES: usize = 256;
/// Bytes of a name, at most (`NAME_MAX`).
const NAME_BYTES_MAX: usize = 255;
/// Places of entries in memory are multiples of this.
const ENTRY_ALIGN: usize = 8;

/// A stream.
struct Stream(Mutex<Listing>);

struct Listing {
    fd: c_int,
    inode: u64,
    /// The entry that the program was told last, as a place in the directory: the next one is behind it.
    place: u64,
    /// The next ones, the last one first.
    entries: Vec<Entry>,
    told: dirent64,
    /// The C library's stream, once the kernel has the directory.
    real: *mut DIR,
}

// SAFETY: the C library's streams can be used by any thread.
unsafe impl Send for Listing {}

impl Listing {
    /// Goes on by the kernel.
    fn leave(&mut self) -> Done<()> {
        // SAFETY: no memory is involved; the stream's descriptor becomes the C library's, which has it until the stream is closed.
        self.real = unsafe {
            real::lseek(self.fd, self.place as off_t, libc::SEEK_SET);
            real::fdopendir(self.fd)
        };
        self.entries.clear();
        match self.real.is_null() {
            true => Err(io::Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)),
            false => Ok(()),
        }
    }

    /// Goes to the next entry: false at the end. None if the kernel has the directory.
    fn go_on(&mut self) -> Option<Done<bool>> {
        if !self.real.is_null() {
            return None;
        }
        if self.entries.is_empty() {
            let (inode, place) = (self.inode, self.place);
            let listed = by(self.fd, |live, opened, _| {
                // The program may have closed the number, and it is another one's.
                if opened.inode != inode {
                    return Err(libc::EBADF);
                }
                let listed = live.files.list(inode, place, ENTRIES);
                listed.map_err(|errno| errno.code())
            });
            match listed {
                Some(Ok(entries)) => self.entries = entries,
                // One that was removed has none.
                Some(Err(libc::ENOENT)) => {}
                Some(Err(code)) => return Some(Err(code)),
                None => return self.leave().err().map(Err),
            }
            self.entries.reverse();
        }
        let next = self.entries.pop();
        Some(Ok(next.is_some_and(|entry| {
            self.tell(&entry);
            true
        })))
    }

    fn tell(&mut self, entry: &Entry) {
        self.place = entry.cookie;
        let length = entry.name.len().min(NAME_BYTES_MAX);
        self.told.d_ino = entry.inode;
        self.told.d_off = entry.cookie as off_t;
        self.told.d_reclen = (offset_of!(dirent64, d_name) + length + 1).next_multiple_of(ENTRY_ALIGN) as u16;
        self.told.d_type = entry.kind;
        for (to, from) in self.told.d_name.iter_mut().zip(&entry.name[..length]) {
            *to = *from as c_char;
        }
        self.told.d_name[length] = 0;
    }

    /// To another place, which the program was told.
    fn seek(&mut self, place: u64) {
        self.entries.clear();
        self.place = place;
    }
}

/// A stream of ours, locked.
fn ours<'s>(stream: *mut DIR) -> Option<MutexGuard<'s, Listing>> {
    if !is_ours(stream) {
        return None;
    }
    // SAFETY: the address is ours, and the program has not closed the stream.
    let Stream(listing) = unsafe { &*stream.byte_sub(1).cast::<Stream>() };
    Some(listing.lock().unwrap_or_else(PoisonError::into_inner))
}

fn is_ours(stream: *mut DIR) -> bool {
    stream.addr() & 1 == 1
}

fn stream(fd: c_int, inode: u64) -> *mut DIR {
    let listing = Listing {
        fd,
        inode,
        place: 0,
        entries: Vec::new(),
        // SAFETY: zeros are a valid entry.
        told: unsafe { mem::zeroed() },
        real: ptr::null_mut(),
    };
    let stream = Box::into_raw(Box::new(Stream(Mutex::new(listing))));
    stream.cast::<DIR>().wrapping_byte_add(1)
}

fn open(path: *const c_char) -> Option<*mut DIR> {
    let opened = at((libc::AT_FDCWD, path), Does::Look, |live, place| {
        // A program that only looks is told more by the kernel at once than by leases of each file.
        let file = live.files.open_at_hand(place, Open::READ)?;
        if !file.is_directory() {
            return Err(Errno::NotDirectory);
        }
        let flags = libc::O_RDONLY | libc::O_DIRECTORY;
        let opened = Opened::new(file, flags, bytes(path).unwrap_or_default());
        let number = live.table.number(&NUMBERS, &opened, true);
        Ok(number.map(|number| stream(number, opened.inode)))
    })?;
    Some(opened.and_then(|opened| opened).unwrap_or_else(failed))
}

fn failed(code: c_int) -> *mut DIR {
    set_errno(code);
    ptr::null_mut()
}

/// A stream of a directory that is open.
fn of(fd: c_int) -> Option<*mut DIR> {
    if !is_known(fd) {
        return None;
    }
    let live = live()?;
    live.inside(|| {
        let opened = live.table.get(fd).filter(|opened| opened.is_directory)?;
        opened.served(|_| ())?;
        Some(stream(fd, opened.inode))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn opendir(path: *const c_char) -> *mut DIR {
    if let Some(stream) = open(path) {
        return stream;
    }
    // SAFETY: the caller's arguments.
    unsafe {
        let directory = real::opendir(path);
        if !directory.is_null() {
            opened_directory(path, real::dirfd(directory));
        }
        directory
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn fdopendir(fd: c_int) -> *mut DIR {
    if let Some(stream) = of(fd) {
        return stream;
    }
    if leave(fd).is_err() {
        return failed(libc::EIO);
    }
    // SAFETY: the caller's arguments.
    unsafe { real::fdopendir(fd) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn closedir(directory: *mut DIR) -> c_int {
    // SAFETY: the caller's arguments; the program has no stream of this address any more.
    unsafe {
        let Some(listing) = ours(directory) else {
            if !directory.is_null() {
                numbers::closing(real::dirfd(directory));
            }
            return real::closedir(directory);
        };
        let (fd, real) = (listing.fd, listing.real);
        drop(listing);
        drop(Box::from_raw(directory.byte_sub(1).cast::<Stream>()));
        if real.is_null() {
            return descriptors::close(fd);
        }
        numbers::closing(fd);
        real::closedir(real)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn dirfd(directory: *mut DIR) -> c_int {
    match ours(directory) {
        Some(listing) => listing.fd,
        // SAFETY: the caller's arguments.
        None => unsafe { real::dirfd(directory) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn readdir64(directory: *mut DIR) -> *mut dirent64 {
    let Some(mut listing) = ours(directory) else {
        // SAFETY: the caller's arguments.
        return unsafe { real::readdir64(directory) };
    };
    match listing.go_on() {
        Some(Ok(true)) => &raw mut listing.told,
        Some(Ok(false)) => ptr::null_mut(),
        Some(Err(code)) => {
            set_errno(code);
            ptr::null_mut()
        }
        // SAFETY: the C library's stream.
        None => unsafe { real::readdir64(listing.real) },
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn readdir64_r(
    directory: *mut DIR,
    entry: *mut dirent64,
    result: *mut *mut dirent64,
) -> c_int {
    let Some(mut listing) = ours(directory) else {
        // SAFETY: the caller's arguments.
        return unsafe { real::readdir64_r(directory, entry, result) };
    };
    let (found, code) = match listing.go_on() {
        Some(Ok(true)) => (entry, 0),
        Some(Ok(false)) => (ptr::null_mut(), 0),
        Some(Err(code)) => (ptr::null_mut(), code),
        // SAFETY: the C library's stream, and the caller's arguments.
        None => return unsafe { real::readdir64_r(listing.real, entry, result) },
    };
    // SAFETY: the caller's places. That of the entry may be shorter than all that a name can have.
    unsafe {
        if !found.is_null() {
            let bytes = usize::from(listing.told.d_reclen);
            ptr::copy_nonoverlapping((&raw const listing.told).cast::<u8>(), found.cast(), bytes);
        }
        result.write(found);
    }
    code
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn rewinddir(directory: *mut DIR) {
    // SAFETY: the caller's arguments.
    unsafe { seekdir(directory, 0) };
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn seekdir(directory: *mut DIR, place: c_long) {
    let real = match ours(directory) {
        Some(mut listing) if listing.real.is_null() => return listing.seek(place as u64),
        Some(listing) => listing.real,
        None => directory,
    };
    // SAFETY: a stream of the C library's, and the caller's arguments.
    unsafe {
        match place {
            0 => real::rewinddir(real),
            place => real::seekdir(real, place),
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn telldir(directory: *mut DIR) -> c_long {
    let real = match ours(directory) {
        Some(listing) if listing.real.is_null() => return listing.place as c_long,
        Some(listing) => listing.real,
        None => directory,
    };
    // SAFETY: a stream of the C library's.
    unsafe { real::telldir(real) }
}

/// On machines of 64 bits an entry is the same by either name.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn readdir(directory: *mut DIR) -> *mut dirent64 {
    // SAFETY: the caller's arguments.
    unsafe { readdir64(directory) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn readdir_r(
    directory: *mut DIR,
    entry: *mut dirent64,
    result: *mut *mut dirent64,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe { readdir64_r(directory, entry, result) }
}
