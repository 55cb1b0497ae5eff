//! Windows: the bytes of a process's log, in a memory or file of their own beside device 0. The process maps its window, and sees nothing else of
//! the devices.
//!
//! A window begins with a block for three words ([`CLOSED_AT`], [`DURABLE_AT`], [`HEARD_AT`]); the ring is behind it. The daemon reads a window by
//! `pread` and never maps it: a process that cuts its window short, or changes it while it is read, gets its log closed, and nothing else.

use base::{Device, MediaError};
use fs::format::{BLOCK_BYTES, Place};
use fs::log::Ring;
use fs::protocol::{CLOSED_AT, DURABLE_AT, HEARD_AT, MAGIC_AT, WINDOW_HEAD_BYTES, WINDOW_MAGIC};
use fs::value::{LogRecord, Run};
use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, memfd_create};
use std::cell::RefCell;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Where windows are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Beside {
    /// Nowhere: device 0 is not memory, or is a device file.
    Nowhere,
    /// In memory.
    Memory,
    /// Beside a file, under its name with the log's number.
    File(PathBuf),
}

impl Beside {
    /// The file of a log's window, if it has one.
    pub fn path(&self, log: u64) -> Option<PathBuf> {
        let Self::File(path) = self else {
            return None;
        };
        let mut name = path.file_name()?.to_os_string();
        name.push(format!(".log-{log}"));
        Some(path.with_file_name(name))
    }

    /// Makes the window of a new log, with so many bytes of ring.
    pub fn make(&self, log: u64, ring_bytes: u64) -> io::Result<Window> {
        let bytes = WINDOW_HEAD_BYTES + ring_bytes;
        let file = match self.path(log) {
            Some(path) => {
                let mut options = OpenOptions::new();
                let options = options.read(true).write(true).create_new(true).mode(0o600);
                let file = options.open(&path)?;
                let filled = fallocate(&file, FallocateFlags::empty(), 0, bytes)
                    .map_err(io::Error::from)
                    .and_then(|()| file.write_all_at(&head_of(log), MAGIC_AT))
                    .and_then(|()| file.sync_all())
                    .and_then(|()| File::open(directory_of(&path))?.sync_all());
                if let Err(error) = filled {
                    let _ = std::fs::remove_file(&path);
                    return Err(error);
                }
                file
            }
            None if *self == Self::Memory => {
                let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
                let file = File::from(memfd_create("switchyard fs log", flags)?);
                file.set_len(bytes)?;
                fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
                file
            }
            None => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(Window(Arc::new(file)))
    }

    /// Opens the window that a log has left.
    pub fn find(&self, log: u64) -> io::Result<Window> {
        let path = self.path(log).ok_or(io::ErrorKind::NotFound)?;
        let mut options = OpenOptions::new();
        let options = options.read(true).write(true);
        let file = options.custom_flags(libc::O_NOFOLLOW).open(path)?;
        match file.metadata()?.is_file() {
            true => Ok(Window(Arc::new(file))),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Removes the window of a log that the tree does not have any more.
    pub fn remove(&self, log: u64) {
        if let Some(path) = self.path(log) {
            // What stays is removed by the next opening.
            let _ = std::fs::remove_file(path);
        }
    }

    /// Removes the windows that there are: no log has one.
    pub fn sweep(&self) {
        let Self::File(path) = self else {
            return;
        };
        let Ok(entries) = std::fs::read_dir(directory_of(path)) else {
            return;
        };
        for entry in entries.flatten() {
            let name = entry.file_name();
            let (Some(name), Some(own)) = (name.to_str(), path.file_name().and_then(|own| own.to_str()))
            else {
                continue;
            };
            let number = name.strip_prefix(own).and_then(|rest| rest.strip_prefix(".log-"));
            let number = number.and_then(|number| number.parse().ok());
            // A rotated log of somebody else may have such a name.
            if number.is_some_and(|number| self.find(number).is_ok_and(|window| window.is_of(number))) {
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

fn directory_of(path: &Path) -> &Path {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    parent.unwrap_or(Path::new("."))
}

/// What a window says of itself.
fn head_of(log: u64) -> [u8; 16] {
    let mut head = [0; 16];
    head[..8].copy_from_slice(&WINDOW_MAGIC);
    head[8..].copy_from_slice(&log.to_le_bytes());
    head
}

/// A window.
#[derive(Clone, Debug)]
pub struct Window(Arc<File>);

/// Bytes of a window that are read at once: a log's frames are some hundred bytes long.
const AHEAD_BYTES: usize = 256 << 10;

/// A window whose log is read in order, up to a position that its process has told. What is read is as it was at one of the reads.
pub(crate) struct Ahead<'w> {
    window: &'w Window,
    bytes: u64,
    /// Where the bytes begin that were read last.
    last: RefCell<(u64, Vec<u8>)>,
}

impl<'w> Ahead<'w> {
    /// Of a window with so many bytes of ring.
    pub fn new(window: &'w Window, ring_bytes: u64) -> Self {
        Self {
            window,
            bytes: WINDOW_HEAD_BYTES + ring_bytes,
            last: RefCell::default(),
        }
    }
}

impl Device for Ahead<'_> {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        let (start, last) = &mut *self.last.borrow_mut();
        let has = |start: u64, last: &[u8]| {
            let at = usize::try_from(offset.checked_sub(start)?).ok()?;
            Some(at..at.checked_add(bytes.len())?).filter(|range| range.end <= last.len())
        };
        if let Some(range) = has(*start, last) {
            bytes.copy_from_slice(&last[range]);
            return Ok(());
        }
        let left = self.bytes.saturating_sub(offset).min(AHEAD_BYTES as u64) as usize;
        if bytes.len() >= left {
            return self.window.read_at(offset, bytes);
        }
        last.resize(left, 0);
        *start = offset;
        if let Err(error) = self.window.read_at(offset, last) {
            last.clear();
            return Err(error);
        }
        bytes.copy_from_slice(&last[..bytes.len()]);
        Ok(())
    }

    fn write_at(&mut self, _: u64, _: &[u8]) -> Result<(), MediaError> {
        unreachable!("its process writes it")
    }

    fn flush(&mut self) -> Result<(), MediaError> {
        unreachable!("its process writes it")
    }

    fn capacity_bytes(&self) -> u64 {
        self.bytes
    }
}

impl Window {
    /// What its process gets.
    pub fn file(&self) -> &File {
        &self.0
    }

    fn is_of(&self, log: u64) -> bool {
        let mut head = [0; 16];
        self.0.read_exact_at(&mut head, MAGIC_AT).is_ok() && head == head_of(log)
    }

    /// From now on its process acknowledges nothing.
    pub fn close(&self) {
        // A window that cannot be written is one whose process has destroyed it.
        let _ = self.0.write_all_at(&1u64.to_le_bytes(), CLOSED_AT);
    }

    /// Up to which position its process says that it is durable.
    pub fn durable(&self) -> u64 {
        self.word(DURABLE_AT)
    }

    /// The newest part of the room of which its process says that it has heard.
    pub fn heard(&self) -> u64 {
        self.word(HEARD_AT)
    }

    fn word(&self, at: u64) -> u64 {
        let mut bytes = [0; 8];
        match self.0.read_exact_at(&mut bytes, at) {
            Ok(()) => u64::from_le_bytes(bytes),
            Err(_) => 0,
        }
    }
}

impl Device for Window {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        self.0.read_exact_at(bytes, offset).map_err(|_| MediaError::Io)
    }

    fn write_at(&mut self, _: u64, _: &[u8]) -> Result<(), MediaError> {
        unreachable!("its process writes it")
    }

    fn flush(&mut self) -> Result<(), MediaError> {
        unreachable!("its process writes it")
    }

    fn capacity_bytes(&self) -> u64 {
        self.0.metadata().map_or(0, |data| data.len())
    }
}

/// The ring of a windowed log: one extent, behind the window's first block.
pub fn ring_in_window(nonce: u64, sector: u32, ring_bytes: u64) -> Option<Ring> {
    const { assert!(WINDOW_HEAD_BYTES == BLOCK_BYTES as u64) };
    let run = Run {
        place: Place::new(0, 1),
        blocks: ring_bytes / BLOCK_BYTES as u64,
    };
    Ring::new(nonce, sector, &[run])
}

/// Bytes of a log's ring.
pub(crate) fn ring_bytes(record: &LogRecord) -> u64 {
    let blocks = record.extents.iter().map(|run| run.blocks);
    blocks
        .fold(0u64, u64::saturating_add)
        .saturating_mul(BLOCK_BYTES as u64)
}
