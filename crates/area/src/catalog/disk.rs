//! Partitions of a disk that the kernel knows of and the disk does not (BLKPG): how areas of a block device are bounded.
//!
//! The table of the catalog says where areas are; partitions follow it, and are found again by where they begin. A partition goes
//! only when nobody has it open.

use super::{ioctl, ioctl_with};
use std::ffi::c_void;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use store::catalog::Extent;

const BLKPG: libc::c_ulong = 0x1269;
const BLKPG_ADD_PARTITION: i32 = 1;
const BLKPG_DEL_PARTITION: i32 = 2;
const BLKPG_RESIZE_PARTITION: i32 = 3;
const BLKFLSBUF: libc::c_ulong = 0x1261;
/// Bytes that are copied at once.
const COPY_BYTES: usize = 1 << 20;
const SECTOR_BYTES: u64 = 512;

/// Disks whose drivers refuse partitions' holders whatever would reach beyond the partition. Of others, such as loop devices, a
/// partition is handed out through a loop device of its own.
const KNOWN: [&str; 9] = ["nvme", "sd", "vd", "xvd", "mmcblk", "md", "nbd", "pmem", "dasd"];

/// `struct blkpg_partition`.
#[repr(C)]
struct BlkpgPartition {
    start: i64,
    length: i64,
    number: i32,
    names: [u8; 128],
}

/// `struct blkpg_ioctl_arg`.
#[repr(C)]
struct BlkpgArgument {
    operation: i32,
    flags: i32,
    bytes: i32,
    data: *mut c_void,
}

/// A whole disk.
#[derive(Debug)]
pub(super) struct Disk {
    file: File,
    name: String,
}

struct Partition {
    number: i32,
    extent: Extent,
    path: PathBuf,
}

impl Disk {
    /// Takes the disk; the name is that of sysfs. Fails with `WouldBlock` if another server has it.
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let options = |flags| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .custom_flags(libc::O_DIRECT | flags)
                .open(path)
        };
        let file = options(0)?;
        let rdev = file.metadata()?.rdev();
        let (major, minor) = (libc::major(rdev), libc::minor(rdev));
        let link = fs::canonicalize(format!("/sys/dev/block/{major}:{minor}"))?;
        if link.join("partition").exists() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a partition cannot be divided further: name the whole disk",
            ));
        }
        let name = link
            .file_name()
            .and_then(|name| name.to_str())
            .unwrap_or_default();
        file.try_lock().map_err(io::Error::from)?;
        Ok(Self {
            file,
            name: name.to_owned(),
        })
    }

    /// For the table.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// True if nobody has mounted it, or part of it, nor claimed it otherwise.
    pub(super) fn is_unclaimed(&self) -> bool {
        let path = Path::new("/dev").join(&self.name);
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_EXCL)
            .open(path);
        opened.is_ok()
    }

    /// True if partitions of this disk cannot be handed out as they are.
    pub(super) fn needs_loops(&self) -> bool {
        !KNOWN.iter().any(|known| self.name.starts_with(known))
    }

    fn partitions(&self) -> io::Result<Vec<Partition>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(Path::new("/sys/class/block").join(&self.name))? {
            let entry = entry?;
            let value = |name: &str| -> Option<u64> {
                let text = fs::read_to_string(entry.path().join(name)).ok()?;
                text.trim().parse().ok()
            };
            let (Some(number), Some(start), Some(size)) = (value("partition"), value("start"), value("size"))
            else {
                continue;
            };
            found.push(Partition {
                number: number as i32,
                extent: Extent {
                    offset: start * SECTOR_BYTES,
                    bytes: size * SECTOR_BYTES,
                },
                path: Path::new("/dev").join(entry.file_name()),
            });
        }
        Ok(found)
    }

    fn at(&self, offset: u64) -> io::Result<Option<Partition>> {
        let all = self.partitions()?;
        Ok(all
            .into_iter()
            .find(|partition| partition.extent.offset == offset))
    }

    fn change(&self, operation: i32, number: i32, extent: Extent) -> io::Result<()> {
        let mut partition = BlkpgPartition {
            start: extent.offset as i64,
            length: extent.bytes as i64,
            number,
            names: [0; 128],
        };
        let mut argument = BlkpgArgument {
            operation,
            flags: 0,
            bytes: size_of::<BlkpgPartition>() as i32,
            data: std::ptr::from_mut(&mut partition).cast(),
        };
        ioctl_with(&self.file, BLKPG, &mut argument).map(drop)
    }

    /// Makes a partition of this range, or makes the one that begins there of this length. False if it was there.
    pub(super) fn bound(&self, extent: Extent) -> io::Result<bool> {
        match self.at(extent.offset)? {
            Some(partition) if partition.extent == extent => return Ok(false),
            Some(partition) => self.change(BLKPG_RESIZE_PARTITION, partition.number, extent)?,
            None => {
                let taken = self.partitions()?;
                let is_free = |number: &i32| taken.iter().all(|partition| partition.number != *number);
                let number = (1..256).find(is_free).ok_or(io::ErrorKind::QuotaExceeded)?;
                self.change(BLKPG_ADD_PARTITION, number, extent)?;
            }
        }
        Ok(true)
    }

    /// Takes the partition that begins there away, if there is one: `ResourceBusy` while somebody has it open.
    pub(super) fn unbound(&self, offset: u64) -> io::Result<()> {
        match self.at(offset)? {
            Some(partition) => self.change(BLKPG_DEL_PARTITION, partition.number, partition.extent),
            None => Ok(()),
        }
    }

    /// Opens the partition of this range; for writing, for this opening alone.
    pub(super) fn open_partition(&self, extent: Extent, flags: libc::c_int, write: bool) -> io::Result<File> {
        let partition = self.at(extent.offset)?.ok_or(io::ErrorKind::NotFound)?;
        // It has grown, and the kernel has not been told yet: nobody knows who has it open.
        if partition.extent.bytes < extent.bytes {
            return Err(io::ErrorKind::ResourceBusy.into());
        }
        let file = OpenOptions::new()
            .read(true)
            .write(write)
            .custom_flags(libc::O_DIRECT | flags)
            .open(&partition.path)?;
        let is_device = file.metadata()?.file_type().is_block_device();
        let is_it = |it: Partition| it.extent.bytes >= extent.bytes && it.number == partition.number;
        match is_device && self.at(extent.offset)?.is_some_and(is_it) {
            true => Ok(file),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Writes zeros, durably.
    pub(super) fn zero(&self, offset: u64, bytes: u64) -> io::Result<()> {
        let mode = libc::FALLOC_FL_ZERO_RANGE | libc::FALLOC_FL_KEEP_SIZE;
        // SAFETY: no pointers.
        let result = unsafe { libc::fallocate64(self.file.as_raw_fd(), mode, offset as i64, bytes as i64) };
        match result {
            0 => self.file.sync_data(),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Copies a range, durably. Writes of a partition's holder through the page cache must be on the disk.
    pub(super) fn copy(&self, from: u64, to: u64, bytes: u64) -> io::Result<()> {
        use base::Device;
        let mut medium = os::MediaFile::from_file(self.file.try_clone()?)?;
        let mut buffer = vec![0; COPY_BYTES];
        for at in (0..bytes).step_by(COPY_BYTES) {
            let part = &mut buffer[..(bytes - at).min(COPY_BYTES as u64) as usize];
            let io = |_| io::Error::from(io::ErrorKind::Other);
            medium.read_at(from + at, part).map_err(io)?;
            medium.write_at(to + at, part).map_err(io)?;
        }
        self.file.sync_data()
    }

    /// Writes back what is in the partition's page cache.
    pub(super) fn write_back(&self, offset: u64) -> io::Result<()> {
        if let Some(partition) = self.at(offset)? {
            let file = File::open(partition.path)?;
            file.sync_all()?;
            ioctl(&file, BLKFLSBUF, 0)?;
        }
        Ok(())
    }
}
