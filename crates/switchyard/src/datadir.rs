//! A rack's directory: its lock, durable small files, the gateway's session number, and nodes' media.
//!
//! Layout of the directory: `lock` (held while a rack runs; contains its process id), `registry.json`,
//! `gateway-session` (the last session number), `node-N.img` (the medium of node N; `node-N.img.new` while it is
//! being formatted for the first time, so that a name without `.new` is always a formatted medium).

use crate::failure::Failure;
use crate::foreign::{self, Consent};
use crate::size::Size;
use anyhow::{Context, bail};
use base::Device;
use base::limits::PAGE_BYTES;
use flash::{Geometry, Ssd};
use runtime::{MediaFile, MediaOpenError, Medium};
use std::fs::{File, TryLockError};
use std::io::{Read, Seek, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

/// Replaces a file so that it is the old or the new one after any crash, and durable on return.
pub fn write_durably(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(".tmp");
    let replace = || {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    };
    if let Err(error) = replace() {
        // A full disk needs no half of a file.
        let _ = std::fs::remove_file(&temporary);
        return Err(error);
    }
    sync_parent(path)
}

fn sync_parent(path: &Path) -> std::io::Result<()> {
    match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => File::open(parent)?.sync_all(),
        _ => File::open(".")?.sync_all(),
    }
}

/// A rack's directory, taken for this process.
#[derive(Debug)]
pub struct DataDir {
    path: PathBuf,
    /// Held open: closing it gives the lock back.
    _lock: File,
}

impl DataDir {
    /// Makes the directory if it is missing, and takes it.
    pub fn lock(path: &Path) -> anyhow::Result<Self> {
        std::fs::create_dir_all(path)
            .with_context(|| format!("cannot create the directory {} (key dir)", path.display()))?;
        let lock_path = path.join("lock");
        let mut lock = File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock_path)
            .with_context(|| format!("cannot open {}", lock_path.display()))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut owner = String::new();
                // The lock is what counts; the number inside is for the message.
                let _ = lock.read_to_string(&mut owner);
                let owner = owner.trim();
                let pid = if owner.is_empty() { "?" } else { owner };
                bail!(Failure::InUse(format!(
                    "{} is in use by pid {pid}: stop that rack, or name another directory with --dir",
                    path.display()
                )));
            }
            Err(TryLockError::Error(error)) => {
                return Err(error).with_context(|| format!("cannot lock {}", lock_path.display()));
            }
        }
        lock.set_len(0)?;
        lock.rewind()?;
        writeln!(lock, "{}", std::process::id())?;
        Ok(Self {
            path: path.to_owned(),
            _lock: lock,
        })
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of the medium of a node.
    pub fn medium_path(&self, node: u8) -> PathBuf {
        self.path.join(format!("node-{node}.img"))
    }

    /// A session number larger than that of every start before, durably noted.
    pub fn next_session(&self) -> anyhow::Result<u32> {
        let path = self.path.join("gateway-session");
        let last = match std::fs::read_to_string(&path) {
            Ok(text) => text.trim().parse::<u32>().with_context(|| {
                format!(
                    "{} is damaged, because it is not a number: write a larger number than any used before",
                    path.display()
                )
            })?,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error).with_context(|| format!("cannot read {}", path.display())),
        };
        let next = next_session(last).context("the gateway's session numbers are used up")?;
        write_durably(&path, format!("{next}\n").as_bytes())
            .with_context(|| format!("cannot write {}", path.display()))?;
        Ok(next)
    }
}

/// The session after `last`: the time if it is later, so that a lost file does not repeat a number.
pub fn next_session(last: u32) -> Option<u32> {
    Some(last.checked_add(1)?.max(seconds()))
}

/// The wall clock's seconds since 1970: numbers that do not repeat when what counted them is lost.
pub fn seconds() -> u32 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(0)
}

/// The shape of a new SSD, apart from what follows from its size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Channels.
    pub channels: u32,
    /// Chips behind each.
    pub chips: u32,
}

impl Shape {
    /// One chip behind each of so many channels.
    pub fn channels(channels: u32) -> Self {
        Self { channels, chips: 1 }
    }
}

/// The SSD that fits a medium of so many bytes: chips of one plane, erase blocks of 256 pages, or of
/// fewer when a chip would have less than 64 of them. `None` if even blocks of 16 pages are too few.
pub fn geometry(bytes: u64, of: Shape) -> Option<Geometry> {
    const BLOCKS_MIN: u32 = 64;
    let shape = |blocks_per_plane, pages_per_block| Geometry {
        channels: of.channels,
        chips_per_channel: of.chips,
        planes_per_chip: 1,
        blocks_per_plane,
        pages_per_block,
    };
    for pages_per_block in [256, 128, 64, 32, 16] {
        let fits = |blocks: u32| {
            let geometry = shape(blocks, pages_per_block);
            geometry.validate().is_ok() && Ssd::bytes_needed(&geometry, PAGE_BYTES) <= bytes
        };
        let (mut low, mut high) = (0, u32::MAX / 2);
        while low < high {
            let middle = low + (high - low).div_ceil(2);
            if fits(middle) {
                low = middle;
            } else {
                high = middle - 1;
            }
        }
        if low >= BLOCKS_MIN {
            return Some(shape(low, pages_per_block));
        }
    }
    None
}

/// Bytes of a medium whose flash has room for a disk of `size_bytes` and for what clients do not see; `None` if no
/// geometry does.
pub fn media_bytes_for(size_bytes: u64, channels: u32) -> Option<u64> {
    let pages = u32::try_from(size_bytes / PAGE_BYTES as u64).ok()?;
    let fits = |geometry: &Geometry| {
        let room = f64::from(geometry.pages()) * (1.0 - host::disk::SPARE_RATIO);
        f64::from(pages) <= room && pages <= geometry.logical_pages_max(channels)
    };
    let mut bytes = (size_bytes as f64 / (1.0 - host::disk::SPARE_RATIO)) as u64;
    // Metadata take about a fiftieth; a medium that is twice as large and does not do is beyond what can be numbered.
    for _ in 0..1000 {
        if geometry(bytes, Shape::channels(channels))
            .as_ref()
            .is_some_and(fits)
        {
            return Some(bytes);
        }
        bytes += bytes / 200 + (1 << 20);
    }
    None
}

/// Formats a fresh medium of a node or disk.
fn format(medium: &mut Medium, shape: Shape) -> anyhow::Result<()> {
    let bytes = medium.capacity_bytes();
    let Some(geometry) = geometry(bytes, shape) else {
        bail!(Failure::Usage(format!(
            "a medium of {} is too small for {} channels of {} chips: enlarge the medium (key size) or use fewer \
             channels (key channels) or chips (key chips)",
            Size(bytes),
            shape.channels,
            shape.chips
        )));
    };
    let uuid = uuid::Uuid::new_v4().into_bytes();
    match Ssd::format(medium, geometry, PAGE_BYTES, uuid) {
        Ok(()) => Ok(()),
        Err(error) => Err(error).context("cannot format the medium"),
    }
}

/// A new medium in memory, formatted.
pub fn open_memory(bytes: u64, shape: Shape) -> anyhow::Result<Medium> {
    let too_large = |error: std::io::Error| {
        Failure::Usage(format!(
            "size = {}: this machine has no memory for it ({error}): choose a smaller medium (flag --size), or keep it in a \
             file (key media)",
            Size(bytes)
        ))
    };
    let mut medium = Medium::memory(bytes).map_err(too_large)?;
    format(&mut medium, shape)?;
    Ok(medium)
}

/// The place where a new medium is made.
fn fresh_path(path: &Path) -> PathBuf {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    fresh.into()
}

/// True for what a format leaves that was cut: zeros, or a vSSD.
fn is_left_over(path: &Path) -> anyhow::Result<bool> {
    let file = MediaFile::open(path, 0, false).map_err(in_use)?;
    let find = || file.find_data().with_context(|| path.display().to_string());
    Ok(foreign::own(&file) == Some("vssd") || find()?.is_none())
}

/// Opens a node's medium in a file, made and formatted if it does not exist. The flag says whether it was made.
pub fn open_file(path: &Path, bytes: u64, shape: Shape) -> anyhow::Result<(Medium, bool)> {
    if path.exists() {
        return Ok((Medium::open(path, 0, false).map_err(in_use)?, false));
    }
    let fresh = fresh_path(path);
    // Left behind by a first start that was cut short: nothing was ever stored in it.
    if fresh.exists() {
        std::fs::remove_file(&fresh).with_context(|| format!("cannot remove {}", fresh.display()))?;
    }
    check_room(path, bytes)?;
    let mut medium = Medium::open(&fresh, bytes, true).map_err(in_use)?;
    let made = format(&mut medium, shape)
        .and_then(|()| std::fs::rename(&fresh, path).context("cannot rename the new medium"))
        .and_then(|()| sync_parent(path).context("cannot sync the directory"));
    if let Err(error) = made {
        let _ = std::fs::remove_file(&fresh);
        return Err(error.context(format!("{}", path.display())));
    }
    Ok((medium, true))
}

/// Opens a block device or file that the user names as a node's medium. A missing file is made. A block device is
/// formatted if the user consents and it holds nothing; one of ours is opened as it is.
pub fn open_named(
    path: &Path,
    bytes: u64,
    shape: Shape,
    consent: &Consent,
) -> anyhow::Result<(Medium, bool)> {
    let is_device = std::fs::metadata(path).is_ok_and(|data| !data.is_file());
    if !is_device {
        let fresh = fresh_path(path);
        if !path.exists() && fresh.exists() && !is_left_over(&fresh)? {
            bail!(Failure::Usage(format!(
                "{} holds something else than a new vSSD, which is made there first: name another file",
                fresh.display()
            )));
        }
        return open_file(path, bytes, shape);
    }
    let mut file = MediaFile::open(path, 0, false).map_err(in_use)?;
    let is_ours = foreign::own(&file) == Some("vssd") && consent.erase.is_none();
    if !is_ours && !consent.format {
        bail!(Failure::Usage(format!(
            "{} is a block device without a vSSD: ask for one with `format` (--format, or `vssd:{},format`)",
            path.display(),
            path.display()
        )));
    }
    if !is_ours {
        foreign::permit(path, &mut file, consent.erase.as_deref())?;
    }
    let mut medium = Medium::from(file.with_cache(path)?);
    if !is_ours {
        format(&mut medium, shape)?;
    }
    Ok((medium, !is_ours))
}

/// Refuses with what is missing when the file system has less room than `bytes`.
fn check_room(path: &Path, bytes: u64) -> anyhow::Result<()> {
    let dir = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let stat = rustix::fs::statvfs(dir).with_context(|| {
        format!(
            "cannot ask the file system of {} for its free space",
            dir.display()
        )
    })?;
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    if free < bytes {
        bail!(
            "{} needs {} and the file system of {} has {} free, {} bytes too little: free some space, or choose smaller media \
             with --size",
            path.display(),
            Size(bytes),
            dir.display(),
            Size(free),
            bytes - free
        );
    }
    Ok(())
}

/// "In use" has an exit code of its own.
fn in_use(error: MediaOpenError) -> anyhow::Error {
    match error {
        MediaOpenError::InUse(path) => Failure::InUse(format!(
            "{}: already in use by another process: stop that rack or node first",
            path.display()
        ))
        .into(),
        error => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_medium_for_a_disk_has_room_for_it_and_is_not_much_larger() {
        for size_bytes in [1 << 20, 16 << 20, 1 << 30, 100 << 30] {
            for channels in [1, 8, 64] {
                let bytes = media_bytes_for(size_bytes, channels).unwrap();
                let geometry = geometry(bytes, Shape::channels(channels)).unwrap();
                let pages = (size_bytes / 4096) as u32;
                assert!(pages <= geometry.logical_pages_max(channels));
                // Channels of 64 blocks of 16 pages are the least there is.
                let least = u64::from(channels) * (6 << 20);
                assert!(
                    bytes <= (size_bytes + size_bytes / 2).max(least),
                    "{size_bytes} on {channels}: {bytes}"
                );
            }
        }
        assert_eq!(media_bytes_for(1 << 50, 8), None);
    }

    #[test]
    fn a_directory_has_one_owner() {
        let dir = tempfile::tempdir().unwrap();
        let first = DataDir::lock(dir.path()).unwrap();
        let error = DataDir::lock(dir.path()).unwrap_err();
        assert_eq!(crate::failure::code_of(&error), crate::failure::IN_USE);
        assert!(
            error.to_string().contains(&format!("pid {}", std::process::id())),
            "{error}"
        );
        drop(first);
        DataDir::lock(dir.path()).unwrap();
    }

    #[test]
    fn sessions_grow_with_each_start() {
        let dir = tempfile::tempdir().unwrap();
        let dir = DataDir::lock(dir.path()).unwrap();
        let mut last = 0;
        for _ in 0..5 {
            let next = dir.next_session().unwrap();
            assert!(next > last);
            last = next;
        }
        assert_eq!(next_session(u32::MAX), None);
        assert_eq!(next_session(u32::MAX - 1), Some(u32::MAX));
    }

    #[test]
    fn durable_files_are_replaced_whole() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        write_durably(&path, b"one").unwrap();
        write_durably(&path, b"two").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    /// Bug: a medium named `x` was made as `x.new`, whatever was there. Fix: only what a format leaves is taken away.
    #[test]
    fn a_file_of_the_user_is_not_taken_for_a_medium_that_is_being_made() {
        let dir = tempfile::tempdir().unwrap();
        let (path, fresh) = (dir.path().join("x"), dir.path().join("x.new"));
        let open = || open_named(&path, 64 << 20, Shape::channels(1), &Consent::default());
        std::fs::write(&fresh, b"a diary").unwrap();
        let error = open().map(drop).unwrap_err().to_string();
        assert!(error.contains("name another file"), "{error}");
        assert_eq!(std::fs::read(&fresh).unwrap(), b"a diary");
        std::fs::write(&fresh, [0; 8192]).unwrap();
        assert!(open().unwrap().1);
        assert!(!fresh.exists());
    }

    #[test]
    fn a_full_disk_is_named_with_what_is_missing() {
        let dir = tempfile::tempdir().unwrap();
        let error = check_room(&dir.path().join("node-1.img"), 1 << 60)
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("bytes too little") && error.contains("--size"),
            "{error}"
        );
    }
}
