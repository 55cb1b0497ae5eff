//! The UUID of a volume: it follows from the medium, so that no two volumes have one, and one volume keeps its own.
//!
//! An initiator takes equal UUIDs for paths of one disk, and reads a block by either. So what is not certain to be the same
//! medium gets another UUID: a copy of a file, the same file on a cloned machine, memory of another process.
//! `--uuid NAME=UUID` gives one where this is too strict, as for a disk that two machines reach.

use rustix::fs::{AtFlags, CWD, StatxFlags};
use std::fs::FileType;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::{fs, io};
use uuid::{Uuid, uuid};

/// Namespace of the UUIDs (RFC 9562 §5.5).
const SPACE: Uuid = uuid!("6d1c4bb8-2f0e-4c0b-9e43-5f3a1c0d7a52");

/// This machine, as far as its media tell.
#[derive(Debug)]
pub struct Machine {
    id: String,
    /// False: the id is of this boot only.
    lasts: bool,
    /// `/sys/dev/block`: a folder for each block device.
    devices: PathBuf,
}

impl Machine {
    /// This one.
    ///
    /// # Errors
    /// `/proc` is not mounted.
    pub fn here() -> io::Result<Self> {
        let lasting = fs::read_to_string("/etc/machine-id").unwrap_or_default();
        let lasting = Uuid::try_parse(lasting.trim()).ok().filter(|id| !id.is_nil());
        let id = match lasting {
            Some(id) => id.to_string(),
            None => fs::read_to_string("/proc/sys/kernel/random/boot_id")?,
        };
        Ok(Self {
            id,
            lasts: lasting.is_some(),
            devices: "/sys/dev/block".into(),
        })
    }

    /// The UUID of a volume on the file or block device at `path`.
    ///
    /// # Errors
    /// When the path cannot be looked up.
    pub fn volume_at(&self, path: &Path) -> io::Result<Found> {
        Ok(match self.describe(path)? {
            Some(medium) => Found {
                uuid: derived(&[&self.id, &medium]),
                lasts: self.lasts,
            },
            None => Found::random(),
        })
    }

    /// The lasting name of the medium at `path` on this machine, if it has one.
    fn describe(&self, path: &Path) -> io::Result<Option<String>> {
        let found = fs::metadata(path)?;
        match FileType::is_block_device(&found.file_type()) {
            true => self.device(found.rdev()),
            false => self.file(path).map(Some),
        }
    }

    /// A file: where it is, its inode, and when the inode was made, since numbers are used again. A copy of a whole file system
    /// has the same inodes and the same id: so its disk counts, if that has a name.
    fn file(&self, path: &Path) -> io::Result<String> {
        let asked = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        let found = rustix::fs::statx(CWD, path, AtFlags::empty(), asked)?;
        let number = rustix::fs::makedev(found.stx_dev_major, found.stx_dev_minor);
        let place = match self.device(number)? {
            Some(disk) => disk,
            None => format!("{:x}", rustix::fs::statvfs(path)?.f_fsid),
        };
        let born = match StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME) {
            true => format!("{}.{}", found.stx_btime.tv_sec, found.stx_btime.tv_nsec),
            false => String::new(),
        };
        Ok(format!("file {place} {} {born}", found.stx_ino))
    }

    fn device(&self, number: u64) -> io::Result<Option<String>> {
        let name = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
        // The link's end is a folder in that of the disk, if this is a partition.
        let Ok(folder) = fs::canonicalize(self.devices.join(name)) else {
            return Ok(None);
        };
        if let Some(backing) = said(&folder, "loop/backing_file") {
            let offset = said(&folder, "loop/offset").unwrap_or_default();
            let Some(file) = self.describe(Path::new(&backing)).ok().flatten() else {
                return Ok(None);
            };
            return Ok(Some(format!("loop {file} {offset}")));
        }
        if said(&folder, "partition").is_none() {
            return Ok(name_of_disk(&folder));
        }
        let disk = folder.parent().and_then(name_of_disk);
        let start = said(&folder, "start");
        Ok(disk.zip(start).map(|(disk, start)| format!("{disk} {start}")))
    }
}

/// The UUID of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The UUID.
    pub uuid: Uuid,
    /// The same medium has it at the next start, also after a boot.
    pub lasts: bool,
}

impl Found {
    /// That of a volume of whose medium nothing is known.
    fn random() -> Self {
        Self {
            uuid: Uuid::new_v4(),
            lasts: false,
        }
    }

    /// That of what was made within this medium, and has an id of its own: what is made there next is another volume.
    pub fn of_content(self, content: [u8; 16]) -> Self {
        Self {
            uuid: Uuid::new_v5(&self.uuid, &content),
            ..self
        }
    }
}

/// UUIDs of equal parts are equal.
fn derived(parts: &[&str]) -> Uuid {
    Uuid::new_v5(&SPACE, parts.join("\n").as_bytes())
}

/// A whole disk: the first of its names that the kernel knows.
fn name_of_disk(folder: &Path) -> Option<String> {
    ["dm/uuid", "md/uuid", "wwid", "device/wwid", "serial"]
        .into_iter()
        .find_map(|name| said(folder, name))
}

/// The text of a file of sysfs, unless it is missing or empty.
fn said(folder: &Path, name: &str) -> Option<String> {
    let text = fs::read_to_string(folder.join(name)).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine(id: &str, devices: &Path) -> Machine {
        Machine {
            id: id.into(),
            lasts: true,
            devices: devices.into(),
        }
    }

    #[test]
    fn a_file_keeps_its_uuid_and_shares_it_with_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        fs::write(at("a"), [0; 512]).unwrap();
        let (here, clone) = (machine("1", dir.path()), machine("2", dir.path()));
        let first = here.volume_at(&at("a")).unwrap();
        assert!(first.lasts);
        assert_ne!(clone.volume_at(&at("a")).unwrap().uuid, first.uuid);
        fs::write(at("a"), [1; 4096]).unwrap();
        fs::rename(at("a"), at("b")).unwrap();
        assert_eq!(here.volume_at(&at("b")).unwrap(), first);
        std::os::unix::fs::symlink(at("b"), at("link")).unwrap();
        assert_eq!(here.volume_at(&at("link")).unwrap(), first);
        fs::copy(at("b"), at("a")).unwrap();
        assert_ne!(here.volume_at(&at("a")).unwrap().uuid, first.uuid);
        assert!(here.volume_at(&at("nothing")).is_err());
    }

    // Bug: an image had the UUID of its original if the whole file system was copied, as a snapshot of its disk is. Cause:
    // the copy has the id and the inodes of the original. Fix: the name of the disk counts.
    #[test]
    fn a_file_on_a_copied_file_system_is_another_volume() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        fs::write(&path, [0; 512]).unwrap();
        let number = fs::metadata(&path).unwrap().dev();
        let name = format!("{}:{}", rustix::fs::major(number), rustix::fs::minor(number));
        let on = |disk: &str| {
            let devices = dir.path().join(disk);
            fs::create_dir_all(devices.join(&name)).unwrap();
            fs::write(devices.join(&name).join("serial"), disk).unwrap();
            machine("1", &devices).volume_at(&path).unwrap()
        };
        assert_eq!(on("original"), on("original"));
        assert_ne!(on("original").uuid, on("snapshot").uuid);
    }

    #[test]
    fn a_file_in_the_place_of_a_removed_one_is_another_volume() {
        let dir = tempfile::tempdir().unwrap();
        let (path, here) = (dir.path().join("a"), machine("1", dir.path()));
        let mut seen = Vec::new();
        for _ in 0..10 {
            fs::write(&path, [0; 512]).unwrap();
            seen.push(here.volume_at(&path).unwrap().uuid);
            fs::remove_file(&path).unwrap();
            // Times of inodes are those of the kernel's tick.
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 10);
    }

    #[test]
    fn a_device_is_known_by_its_own_name_and_a_partition_by_its_place() {
        let dir = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("8:0/wwid", "naa.5000c500a1b2c3d4\n");
        put("8:0/8:1/partition", "1\n");
        put("8:0/8:1/start", "2048\n");
        put("8:0/8:2/partition", "2\n");
        put("8:0/8:2/start", "409600\n");
        put("254:0/serial", "\n");
        put("253:0/dm/uuid", "LVM-abc\n");
        put("7:0/loop/backing_file", "/nonexistent (deleted)\n");
        for partition in ["8:1", "8:2"] {
            std::os::unix::fs::symlink(dir.path().join("8:0").join(partition), dir.path().join(partition))
                .unwrap();
        }
        let here = machine("1", dir.path());
        let device = |major, minor| here.device(rustix::fs::makedev(major, minor)).unwrap();
        assert_eq!(device(8, 0).as_deref(), Some("naa.5000c500a1b2c3d4"));
        assert_eq!(device(8, 1).as_deref(), Some("naa.5000c500a1b2c3d4 2048"));
        assert_eq!(device(8, 2).as_deref(), Some("naa.5000c500a1b2c3d4 409600"));
        assert_eq!(device(253, 0).as_deref(), Some("LVM-abc"));
        for unknown in [device(254, 0), device(254, 9), device(7, 0)] {
            assert_eq!(unknown, None);
        }
        let backing = dir.path().join("image");
        fs::write(&backing, [0; 512]).unwrap();
        put("7:1/loop/backing_file", backing.to_str().unwrap());
        put("7:1/loop/offset", "0\n");
        put("7:2/loop/backing_file", backing.to_str().unwrap());
        put("7:2/loop/offset", "4096\n");
        assert!(device(7, 1).is_some() && device(7, 1) != device(7, 2));
    }

    #[test]
    fn what_is_made_anew_in_a_file_is_another_volume() {
        let file = Found::random();
        assert_eq!(file.of_content([1; 16]), file.of_content([1; 16]));
        assert_ne!(file.of_content([1; 16]), file.of_content([2; 16]));
        assert_ne!(file.of_content([1; 16]), Found::random().of_content([1; 16]));
    }
}
