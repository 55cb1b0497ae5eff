//! Loop devices over exactly one file or partition. Each clears itself when the last who has it open closes it.

use super::{ioctl, ioctl_with};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Directory where the kernel lists them.
const DEVICES: &str = "/sys/block";
const LOOP_SET_STATUS64: libc::c_ulong = 0x4C04;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
const LOOP_SET_CAPACITY: libc::c_ulong = 0x4C07;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
const LOOP_CTL_ADD: libc::c_ulong = 0x4C80;
const LOOP_CTL_REMOVE: libc::c_ulong = 0x4C81;
const LO_FLAGS_AUTOCLEAR: u32 = 4;
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// Numbers of this module's devices: above those that other tools take first. A device is made anew for each use, which the
/// kernel refuses as long as anybody has the old one open: nobody is left with a descriptor of another's area.
const NUMBERS: std::ops::Range<libc::c_ulong> = 1024..4096;

/// `struct loop_info64`.
#[derive(Clone, Copy)]
#[repr(C)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    names: [u8; 128],
    key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Info>() == 232 && size_of::<Config>() == 304);

impl Info {
    const ZERO: Self = Self {
        device: 0,
        inode: 0,
        rdevice: 0,
        offset: 0,
        size_limit: 0,
        number: 0,
        encrypt_type: 0,
        encrypt_key_size: 0,
        flags: 0,
        names: [0; 128],
        key: [0; 32],
        init: [0; 2],
    };

    /// True if it is over all of `backing`.
    fn is_over(&self, backing: &File) -> io::Result<bool> {
        let data = backing.metadata()?;
        Ok(match data.file_type().is_block_device() {
            true => self.rdevice == kernel_number(data.rdev()),
            false => self.device == kernel_number(data.dev()) && self.inode == data.ino(),
        })
    }
}

/// A device number as the kernel encodes it in this structure (`huge_encode_dev`).
fn kernel_number(device: u64) -> u64 {
    let (major, minor) = (u64::from(libc::major(device)), u64::from(libc::minor(device)));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// The devices that are over `backing` now.
fn over(backing: &File) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(DEVICES)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let number = name.strip_prefix("loop").and_then(|number| number.parse().ok());
        // One that is over nothing has no such directory.
        if !number.is_some_and(|number| NUMBERS.contains(&number)) || !entry.path().join("loop").exists() {
            continue;
        }
        let path = Path::new("/dev").join(name);
        let Ok(device) = File::open(&path) else { continue };
        let mut info = Info::ZERO;
        if ioctl_with(&device, LOOP_GET_STATUS64, &mut info).is_ok() && info.is_over(backing)? {
            found.push(path);
        }
    }
    Ok(found)
}

/// Whether `backing` lies under a device of this module.
pub(super) fn is_under(backing: &File) -> io::Result<bool> {
    Ok(Path::new(DEVICES).exists() && !over(backing)?.is_empty())
}

/// Whether somebody has `backing` open for writing through a device of this module.
pub(super) fn is_open(backing: &File) -> io::Result<bool> {
    let devices = over(backing)?;
    let is_claimed = |path: &PathBuf| {
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_EXCL)
            .open(path);
        matches!(opened, Err(error) if error.kind() == io::ErrorKind::ResourceBusy)
    };
    Ok(devices.iter().any(is_claimed))
}

/// Lets the devices over `backing` know its size.
pub(super) fn refresh(backing: &File) -> io::Result<()> {
    if !Path::new(DEVICES).exists() {
        return Ok(());
    }
    for path in over(backing)? {
        let device = OpenOptions::new().read(true).write(true).open(path)?;
        ioctl(&device, LOOP_SET_CAPACITY, 0)?;
    }
    Ok(())
}

/// A device that is over `backing` now, for keeping it.
pub(super) fn existing(backing: &File) -> io::Result<Option<File>> {
    let found = over(backing)?.into_iter().next();
    found.map(|path| open_device(&path, false)).transpose()
}

/// A device over all of `backing`, which has to be open for writing: the one that is there, or a new one. For writing it is
/// this opening's alone.
pub(super) fn open(backing: &File, write: bool) -> io::Result<File> {
    for path in over(backing)? {
        match open_device(&path, write) {
            Ok(device) => {
                let mut info = Info::ZERO;
                ioctl_with(&device, LOOP_GET_STATUS64, &mut info)?;
                if !info.is_over(backing)? {
                    continue;
                }
                // Whoever had it before may have moved its window.
                if write && (info.offset, info.size_limit) != (0, 0) {
                    (info.offset, info.size_limit) = (0, 0);
                    ioctl_with(&device, LOOP_SET_STATUS64, &mut info)?;
                }
                return Ok(device);
            }
            // Going away: it is cleared when the last one closes it.
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENXIO | libc::ENOENT)) => {}
            Err(error) => return Err(error),
        }
    }
    create(backing, write)
}

fn open_device(path: &Path, write: bool) -> io::Result<File> {
    let exclusive = if write { libc::O_EXCL } else { 0 };
    OpenOptions::new()
        .read(true)
        .write(write)
        .custom_flags(libc::O_DIRECT | exclusive)
        .open(path)
}

fn create(backing: &File, write: bool) -> io::Result<File> {
    let control = OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/loop-control")?;
    for number in NUMBERS {
        // One that is there is not used: it is removed if nobody has it open, and made anew.
        let _ = ioctl(&control, LOOP_CTL_REMOVE, number);
        match ioctl(&control, LOOP_CTL_ADD, number) {
            Ok(_) => {}
            Err(error) if error.raw_os_error() == Some(libc::EEXIST) => continue,
            Err(error) => return Err(error),
        }
        let path = PathBuf::from(format!("/dev/loop{number}"));
        let device = OpenOptions::new().read(true).write(true).open(&path)?;
        let mut config = Config {
            fd: backing.as_raw_fd() as u32,
            block_size: 0,
            info: Info {
                flags: LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO,
                ..Info::ZERO
            },
            reserved: [0; 8],
        };
        match ioctl_with(&device, LOOP_CONFIGURE, &mut config) {
            Ok(_) => return open_device(&path, write),
            // Somebody else was faster.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {}
            Err(error) => return Err(error),
        }
    }
    Err(io::ErrorKind::QuotaExceeded.into())
}
