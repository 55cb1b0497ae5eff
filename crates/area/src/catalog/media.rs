//! The medium of a catalog: a directory or a block device, what a change asks for of it, and the descriptors of areas.

use super::disk::Disk;
use super::loops;
use super::throttle::Throttle;
use crate::sync::{Mutex, MutexGuard, PoisonError};
use os::{MediaFile, MediaOpenError};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use store::catalog::errand::Facts;
use store::catalog::{AreaId, Catalog, CatalogArea, CatalogError, Extent, TABLE_BYTES, Work};
use thiserror::Error;

/// The table's file in a directory.
const TABLE: &str = "table";

/// Why a medium cannot hold a catalog.
#[derive(Debug, Error)]
pub enum CatalogMediaError {
    /// Another server has it, or it is mounted.
    #[error("{}: in use by another server of areas, or mounted", .0.display())]
    InUse(PathBuf),
    /// It cannot be.
    #[error("{}: {why}", .path.display())]
    Unfit {
        /// The medium.
        path: PathBuf,
        /// Why, in words.
        why: &'static str,
    },
    /// The operating system refuses.
    #[error("{}: {source}", .path.display())]
    Os {
        /// The medium.
        path: PathBuf,
        /// Its reason.
        source: io::Error,
    },
    /// The table's file.
    #[error(transparent)]
    Table(#[from] MediaOpenError),
}

/// Why work was not done.
#[derive(Debug, Error)]
pub enum WorkError {
    /// Somebody has it open.
    #[error("somebody has it open: end the program that has it, and try again")]
    InUse,
    /// The file system has no room.
    #[error("the file system has no room for it: make room there, or ask for less")]
    NoSpace,
    /// There is nothing by which a rate would be kept.
    #[error("rates cannot be kept here: it takes root, and control groups with `io` or `blkio`")]
    NoRates,
    /// A rate does not hold for the one who asks.
    #[error("a process of the root control group gets no area with a rate, which would not hold for it")]
    OutOfReach,
    /// The operating system refuses.
    #[error("the medium failed: {0}")]
    Os(io::Error),
}

impl From<io::Error> for WorkError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::ResourceBusy | io::ErrorKind::WouldBlock => Self::InUse,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Self::NoSpace,
            _ => Self::Os(error),
        }
    }
}

/// The grant to a program.
#[derive(Debug)]
pub struct HandedOut {
    /// The area. A program that has the area open for writing keeps other writers out.
    pub file: File,
    /// It is persistent memory, to be mapped.
    pub is_mapped: bool,
}

/// A medium, taken for this process.
#[derive(Debug)]
pub struct CatalogMedia {
    kind: Kind,
    is_strict: bool,
    /// `None` where rates cannot be kept.
    throttle: Mutex<Option<Throttle>>,
}

#[derive(Debug)]
enum Kind {
    Directory(PathBuf),
    Device(Disk),
}

impl Facts for CatalogMedia {
    fn is_open(&self, id: AreaId, area: &CatalogArea) -> bool {
        Self::is_open(self, id, area)
    }
    fn has_loop(&self, area: &CatalogArea) -> bool {
        Self::has_loop(self, area)
    }
    fn can_limit(&self) -> bool {
        Self::can_limit(self)
    }
}

impl CatalogMedia {
    fn new(kind: Kind, is_strict: bool) -> Self {
        Self {
            kind,
            is_strict,
            throttle: Mutex::new(Throttle::find()),
        }
    }

    fn throttle(&self) -> MutexGuard<'_, Option<Throttle>> {
        self.throttle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// True if rates of areas can be kept: that takes root, and control groups for I/O.
    pub fn can_limit(&self) -> bool {
        self.throttle().is_some()
    }

    /// Takes a directory, which is made if it is missing, or a block device, and its table: blank in a new directory. A strict
    /// catalog hands out loop devices over its files.
    pub fn open(path: &Path, is_strict: bool) -> Result<(Self, MediaFile), CatalogMediaError> {
        let os = |source: io::Error| match source.kind() {
            io::ErrorKind::WouldBlock => CatalogMediaError::InUse(path.into()),
            _ => CatalogMediaError::Os {
                path: path.into(),
                source,
            },
        };
        let unfit = |why| CatalogMediaError::Unfit {
            path: path.into(),
            why,
        };
        match path.metadata() {
            Ok(data) if data.file_type().is_block_device() => {
                let disk = Disk::open(path).map_err(os)?;
                let table = MediaFile::from_file(disk.file().try_clone().map_err(os)?).map_err(os)?;
                let kind = Kind::Device(disk);
                Ok((Self::new(kind, is_strict), table))
            }
            Ok(data) if data.file_type().is_char_device() => Err(unfit(
                "a DAX device is mapped as a whole, by anybody who has it: make a file system with DAX on its memory, and name a \
                 directory there",
            )),
            Ok(data) if !data.is_dir() => Err(unfit("areas lie in a directory or on a block device")),
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(os(error)),
            found => {
                if found.is_err() {
                    DirBuilder::new().mode(0o700).create(path).map_err(os)?;
                }
                if let Some(why) = is_anothers(path).map_err(os)? {
                    return Err(unfit(why));
                }
                let table = path.join(TABLE);
                if table.symlink_metadata().is_err() && fs::read_dir(path).map_err(os)?.next().is_some() {
                    return Err(unfit("the directory has other files in it: name a new one"));
                }
                let in_use = |error| match error {
                    MediaOpenError::InUse(_) => CatalogMediaError::InUse(path.into()),
                    error => error.into(),
                };
                let found = MediaFile::open_here(&table, 0).map_err(in_use)?;
                let is_table = !matches!(Catalog::read(&found), Err(CatalogError::NotACatalog));
                if !is_table && found.find_data().map_err(os)?.is_some() {
                    return Err(unfit(
                        "the file `table` in it is no table of areas: name a new directory",
                    ));
                }
                drop(found);
                fs::set_permissions(path, fs::Permissions::from_mode(0o700)).map_err(os)?;
                let table = MediaFile::open_here(&table, TABLE_BYTES).map_err(in_use)?;
                if is_written(table.as_file()).is_err() {
                    return Err(unfit(
                        "its file system has no leases, by which it is known who writes an area",
                    ));
                }
                let path = fs::canonicalize(path).map_err(os)?;
                let kind = Kind::Directory(path);
                Ok((Self::new(kind, is_strict), table))
            }
        }
    }

    /// True if areas have places on it.
    pub fn is_placed(&self) -> bool {
        matches!(self.kind, Kind::Device(_))
    }

    /// True if nobody else uses any of a block device, mounted or otherwise.
    pub fn is_unclaimed(&self) -> bool {
        match &self.kind {
            Kind::Directory(_) => true,
            Kind::Device(disk) => disk.is_unclaimed(),
        }
    }

    /// Does what a change asks for, all of it or, if it was begun before, the rest.
    pub fn work(&self, work: &Work) -> Result<(), WorkError> {
        let is_moved = |from: Extent, to: Extent| from.offset != to.offset;
        match *work {
            Work::Remove(id, _) => self.release(id),
            Work::Grow(id, from, to) | Work::Shrink(id, from, to) if is_moved(from, to) => self.release(id),
            _ => {}
        }
        match &self.kind {
            Kind::Directory(dir) => self.work_on_files(dir, work),
            Kind::Device(disk) => work_on_disk(disk, work),
        }
    }

    fn work_on_files(&self, dir: &Path, work: &Work) -> Result<(), WorkError> {
        match *work {
            Work::Make(id, extent) => {
                let file = private(&area_path(dir, id), true)?;
                // Left over from a change that was cut.
                file.set_len(0)?;
                os::reserve(&file, extent.bytes)?;
                file.sync_all()?;
                File::open(dir)?.sync_all()?;
            }
            Work::Grow(id, _, extent) => {
                let file = private(&area_path(dir, id), false)?;
                os::reserve_beyond(&file, extent.bytes)?;
                file.sync_all()?;
            }
            Work::Shrink(id, extent, _) => {
                let file = private(&area_path(dir, id), false)?;
                file.set_len(extent.bytes)?;
                file.sync_all()?;
                loops::refresh(&file)?;
            }
            Work::Remove(id, _) => {
                match private(&area_path(dir, id), false) {
                    // Whoever still has it open keeps nothing of its space.
                    Ok(file) => file.set_len(0)?,
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    Err(error) => return Err(error.into()),
                }
                match fs::remove_file(area_path(dir, id)) {
                    Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
                    _ => {}
                }
                File::open(dir)?.sync_all()?;
            }
        }
        Ok(())
    }

    /// True if the area is handed out as a loop device.
    pub fn has_loop(&self, area: &CatalogArea) -> bool {
        let always = match &self.kind {
            Kind::Directory(_) => self.is_strict,
            Kind::Device(disk) => disk.needs_loops(),
        };
        always || area.rate.is_limited()
    }

    /// The file below the loop device of an area.
    fn backing(&self, id: AreaId, area: &CatalogArea, write: bool) -> io::Result<File> {
        match &self.kind {
            Kind::Directory(dir) => private(&area_path(dir, id), false),
            Kind::Device(disk) => disk.open_partition(area.extent, 0, write),
        }
    }

    /// Gives the area's device the area's rate, if it has a device now. The area's users notice at once.
    pub fn limit(&self, id: AreaId, area: &CatalogArea) -> Result<(), WorkError> {
        if !self.has_loop(area) {
            return Ok(());
        }
        let Some(device) = loops::existing(&self.backing(id, area, false)?)? else {
            return Ok(());
        };
        let mut throttle = self.throttle();
        match throttle.as_mut() {
            Some(throttle) => throttle.limit(id, device, area.rate)?,
            None if area.rate.is_limited() => return Err(WorkError::NoRates),
            None => {}
        }
        drop(throttle);
        if !area.rate.is_limited() {
            self.release(id);
        }
        Ok(())
    }

    /// Lets go of the area's device.
    fn release(&self, id: AreaId) {
        if let Some(throttle) = self.throttle().as_mut() {
            throttle.release(id);
        }
    }

    /// Control groups that are new get the rates of all areas.
    pub fn tend_rates(&self) -> io::Result<()> {
        self.throttle().as_mut().map_or(Ok(()), Throttle::tend)
    }

    /// The descriptor of an area, for this process. For writing there is one at a time: [`WorkError::InUse`] if somebody has it.
    pub fn hand_out(
        &self,
        id: AreaId,
        area: &CatalogArea,
        write: bool,
        process: u32,
    ) -> Result<HandedOut, WorkError> {
        if area.rate.is_limited() {
            match self.throttle().as_ref() {
                None => return Err(WorkError::NoRates),
                Some(throttle) if !throttle.reaches(process) => return Err(WorkError::OutOfReach),
                Some(_) => {}
            }
        }
        let mut has_loop = self.has_loop(area);
        if let (Kind::Directory(dir), true) = (&self.kind, write) {
            let file = for_reading(dir, id)?;
            // One that is left from when the area had a rate keeps others from the file: who writes, writes through it.
            let is_under_loop = loops::is_under(&file)?;
            if !is_under_loop && is_written(&file)? {
                return Err(WorkError::InUse);
            }
            has_loop |= is_under_loop;
        }
        if has_loop {
            let file = loops::open(&self.backing(id, area, true)?, write)?;
            if area.rate.is_limited() {
                self.limit(id, area)?;
            }
            return Ok(device(file));
        }
        let dir = match &self.kind {
            Kind::Directory(dir) => dir,
            Kind::Device(disk) => {
                let exclusive = if write { libc::O_EXCL } else { 0 };
                return Ok(device(disk.open_partition(area.extent, exclusive, write)?));
            }
        };
        let open = |flags| {
            let mut options = OpenOptions::new();
            options
                .read(true)
                .write(write)
                .custom_flags(libc::O_NOFOLLOW | flags);
            options.open(area_path(dir, id))
        };
        let file = match open(libc::O_DIRECT) {
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(0)?,
            other => other?,
        };
        let is_mapped = is_dax(&file);
        Ok(HandedOut { file, is_mapped })
    }

    /// True if somebody has the area open for writing.
    pub fn is_open(&self, id: AreaId, area: &CatalogArea) -> bool {
        let state = match &self.kind {
            _ if self.has_loop(area) => self
                .backing(id, area, false)
                .and_then(|file| loops::is_open(&file)),
            Kind::Directory(dir) => for_reading(dir, id).and_then(|file| match loops::is_under(&file)? {
                true => loops::is_open(&file),
                false => is_written(&file),
            }),
            Kind::Device(disk) => disk
                .open_partition(area.extent, libc::O_EXCL, false)
                .map(|_| false),
        };
        // If it cannot be known, somebody may have.
        state.unwrap_or_else(|error| error.kind() != io::ErrorKind::NotFound)
    }

    /// Gives an area the size that the table says, so that its holder sees all of it. The area may have grown, or its holder may have cut
    /// or extended the file. After a reboot a partition is made anew. True if a file had another size.
    pub fn tend(&self, id: AreaId, extent: Extent) -> io::Result<bool> {
        let dir = match &self.kind {
            Kind::Directory(dir) => dir,
            Kind::Device(disk) => {
                if disk.bound(extent)? {
                    loops::refresh(&disk.open_partition(extent, 0, false)?)?;
                }
                return Ok(false);
            }
        };
        let path = area_path(dir, id);
        let data = fs::symlink_metadata(&path)?;
        if data.len() == extent.bytes && data.blocks() * 512 >= extent.bytes {
            return Ok(false);
        }
        let file = private(&path, false)?;
        if data.len() > extent.bytes {
            file.set_len(extent.bytes)?;
        } else {
            os::reserve(&file, extent.bytes)?;
        }
        loops::refresh(&file)?;
        Ok(true)
    }
}

/// Why a directory cannot be the server's own, if so: its owner could exchange what is in it.
fn is_anothers(path: &Path) -> io::Result<Option<&'static str>> {
    let data = path.metadata()?;
    if data.uid() != rustix::process::geteuid().as_raw() {
        return Ok(Some(
            "the directory belongs to another user: name one of your own",
        ));
    }
    let is_writable = data.mode() & 0o022 != 0;
    Ok(is_writable.then_some(
        "others may write the directory: take the right away with `chmod go-w`, and look what is in it",
    ))
}

fn device(file: File) -> HandedOut {
    HandedOut {
        file,
        is_mapped: false,
    }
}

fn work_on_disk(disk: &Disk, work: &Work) -> Result<(), WorkError> {
    match *work {
        Work::Make(_, extent) => {
            disk.zero(extent.offset, extent.bytes)?;
            disk.bound(extent)?;
        }
        Work::Grow(_, from, to) if from.offset == to.offset => {
            disk.zero(from.end(), to.bytes - from.bytes)?;
        }
        Work::Grow(_, from, to) => {
            // Nobody can open it meanwhile, and nobody has it open if the partition can be taken away.
            disk.write_back(from.offset)?;
            disk.unbound(from.offset)?;
            disk.copy(from.offset, to.offset, from.bytes)?;
            disk.zero(to.offset + from.bytes, to.bytes - from.bytes)?;
        }
        Work::Shrink(_, from, to) => {
            if from.offset != to.offset {
                disk.unbound(to.offset)?;
            }
            disk.bound(from)?;
            loops::refresh(&disk.open_partition(from, 0, false)?)?;
        }
        Work::Remove(_, extent) => disk.unbound(extent.offset)?,
    }
    Ok(())
}

fn area_path(dir: &Path, id: AreaId) -> PathBuf {
    dir.join(format!("area-{}", id.0))
}

/// A file that nobody else may open.
fn private(path: &Path, create: bool) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(create).truncate(false);
    options.mode(0o600).custom_flags(libc::O_NOFOLLOW).open(path)
}

fn for_reading(dir: &Path, id: AreaId) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(libc::O_NOFOLLOW);
    options.open(area_path(dir, id))
}

/// True if anybody has the file open for writing, which a killed program has until its last write has ended: the kernel grants no
/// lease for reading then (fcntl(2)). Readers do not count, and have no way to: leases are for the file's owner.
fn is_written(file: &File) -> io::Result<bool> {
    const F_SETSIG: libc::c_int = 10;
    let call = |command, argument: libc::c_int| {
        // SAFETY: no memory is involved.
        match unsafe { libc::fcntl(file.as_raw_fd(), command, argument) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    };
    // Who opens it for writing meanwhile waits, and we are told by a signal: by one that nobody minds.
    call(F_SETSIG, libc::SIGURG)?;
    match call(libc::F_SETLEASE, libc::F_RDLCK) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(true),
        other => other
            .and_then(|()| call(libc::F_SETLEASE, libc::F_UNLCK))
            .map(|()| false),
    }
}

/// True on persistent memory that can be mapped.
fn is_dax(file: &File) -> bool {
    const STATX_ATTR_DAX: u64 = 0x0020_0000;
    let flags = rustix::fs::AtFlags::EMPTY_PATH;
    let stat = rustix::fs::statx(file, "", flags, rustix::fs::StatxFlags::BASIC_STATS);
    stat.is_ok_and(|stat| stat.stx_attributes.bits() & STATX_ATTR_DAX != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn refusal(path: &Path) -> String {
        CatalogMedia::open(path, false)
            .map(drop)
            .expect_err("it is unfit")
            .to_string()
    }

    /// Bug: the server wrote through a link `table` that somebody had planted. Fix: no link is followed.
    #[test]
    fn a_planted_link_is_not_followed_and_its_target_stays() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let (path, victim) = (directory.path().join("areas"), directory.path().join("victim"));
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .expect("a new directory");
        fs::write(&victim, "kept").expect("room");
        symlink(&victim, path.join(TABLE)).expect("a link");
        assert!(refusal(&path).contains("neither a file"), "{}", refusal(&path));
        assert_eq!(fs::read(&victim).expect("it is there"), b"kept");
    }

    /// Bug: any file called `table` became the table. Fix: only one of zeros does.
    #[test]
    fn a_file_of_the_user_is_not_taken_for_the_table() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("areas");
        DirBuilder::new()
            .mode(0o700)
            .create(&path)
            .expect("a new directory");
        fs::write(path.join("other"), "kept").expect("room");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("ours");
        assert!(refusal(&path).contains("other files"), "{}", refusal(&path));
        let mode = path.metadata().expect("it is there").mode();
        assert_eq!(mode & 0o777, 0o755, "it stays as it is");
        fs::write(path.join(TABLE), "kept").expect("room");
        assert!(refusal(&path).contains("no table of areas"), "{}", refusal(&path));
        assert_eq!(fs::read(path.join(TABLE)).expect("it is there"), b"kept");
    }

    #[test]
    fn a_directory_that_others_write_is_refused() {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = directory.path().join("areas");
        drop(CatalogMedia::open(&path, false).expect("a new directory"));
        fs::set_permissions(&path, fs::Permissions::from_mode(0o770)).expect("ours");
        assert!(refusal(&path).contains("chmod go-w"), "{}", refusal(&path));
        if rustix::process::geteuid().is_root() {
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("ours");
            std::os::unix::fs::chown(&path, Some(65_534), None).expect("root may");
            assert!(refusal(&path).contains("another user"), "{}", refusal(&path));
        }
    }
}
