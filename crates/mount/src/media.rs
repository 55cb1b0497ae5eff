//! The devices of a file system: memory, mapped files, and files and block devices by direct I/O.
//!
//! All threads of a file system use the same devices at once. Each device is its file system's alone as long as it is open.

use crate::window::Beside;
use base::{Device, MediaError};
use fs::format::{BLOCK_BYTES, Place, Tier};
use fs::media::Media;
use os::{Mapped, MediaFile, MediaOpenError, MediaWarning, NvmTiming, Persist};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use thiserror::Error;

/// Frames of a log on mapped memory begin at multiples of so many bytes: a cache line.
const LINE_BYTES: u32 = 64;

/// Where a device's bytes are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// Memory of so many bytes, gone when its program ends.
    Memory(u64),
    /// A file or block device.
    File(PathBuf),
}

/// A device, as a user names it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// Where its bytes are.
    pub source: Source,
    /// Its kind. A device of memory is mapped.
    pub tier: Tier,
    /// A mapped device takes so much time, as an emulation.
    pub timing: Option<NvmTiming>,
}

impl DeviceSpec {
    /// Its file, if it has one.
    pub fn path(&self) -> Option<&Path> {
        match &self.source {
            Source::Memory(_) => None,
            Source::File(path) => Some(path),
        }
    }
}

/// What a device is opened for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// For this program alone.
    Own,
    /// To read it, when nobody has it as their own.
    Read,
}

/// Why a device cannot be opened.
#[derive(Debug, Error)]
pub enum DeviceError {
    /// It cannot be opened, or somebody has it.
    #[error("{0}")]
    Open(#[from] MediaOpenError),
    /// It cannot be mapped.
    #[error("{}: it cannot be mapped: {source}", .path.display())]
    Map {
        /// The device.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is not so much memory.
    #[error("no memory of {bytes} bytes: {source}")]
    Memory {
        /// How much.
        bytes: u64,
        /// Why.
        source: io::Error,
    },
}

#[derive(Debug)]
enum Storage {
    Mapped(Mapped),
    Direct(MediaFile),
    #[cfg(test)]
    Volatile(crate::cut_tests::Volatile, bool),
}

impl Storage {
    fn open(spec: &DeviceSpec, access: Access) -> Result<(Self, Option<MediaWarning>), DeviceError> {
        let path = match &spec.source {
            Source::Memory(bytes) => {
                let memory = Mapped::memory(*bytes / BLOCK_BYTES as u64 * BLOCK_BYTES as u64, spec.timing);
                let bytes = *bytes;
                let memory = memory.map_err(|source| DeviceError::Memory { bytes, source })?;
                return Ok((Self::Mapped(memory), None));
            }
            Source::File(path) => path,
        };
        let file = match access {
            Access::Own => MediaFile::open(path, 0, false)?,
            Access::Read => MediaFile::open_to_read(path)?,
        };
        let warning = file.warning();
        if spec.tier != Tier::Memory || access == Access::Read {
            return Ok((Self::Direct(file), warning));
        }
        let warning = warning.filter(|warning| *warning == MediaWarning::Volatile);
        let mapped = Mapped::whole(file, spec.timing).map_err(|source| DeviceError::Map {
            path: path.clone(),
            source,
        })?;
        Ok((Self::Mapped(mapped), warning))
    }
}

/// Where windows are, and the time that their emulated memory takes.
#[derive(Debug)]
struct Windows {
    beside: Beside,
    timing: Option<NvmTiming>,
}

impl Windows {
    fn of(spec: Option<&DeviceSpec>) -> Self {
        let beside = match spec.map(|spec| (spec.tier, &spec.source)) {
            Some((Tier::Memory, Source::Memory(_))) => Beside::Memory,
            Some((Tier::Memory, Source::File(path))) if path.is_file() => Beside::File(path.clone()),
            _ => Beside::Nowhere,
        };
        let timing = spec.and_then(|spec| spec.timing);
        Self { beside, timing }
    }
}

/// The devices of a file system, by number. Clones are the same devices.
#[derive(Clone, Debug)]
pub struct Disks(Arc<[Storage]>, Arc<Windows>);

impl Disks {
    /// Opens devices, in their order. Beside them is what their user is to be told of each.
    ///
    /// # Errors
    /// One of them cannot be opened; none is open then.
    pub fn open(
        specs: &[DeviceSpec],
        access: Access,
    ) -> Result<(Self, Vec<Option<MediaWarning>>), DeviceError> {
        let opened: Result<Vec<_>, _> = specs.iter().map(|spec| Storage::open(spec, access)).collect();
        let (storages, warnings): (Vec<_>, Vec<_>) = opened?.into_iter().unzip();
        let windows = Windows::of(specs.first());
        Ok((Self(storages.into(), Arc::new(windows)), warnings))
    }

    /// Where windows of logs are.
    pub(crate) fn beside(&self) -> &Beside {
        &self.1.beside
    }

    /// The time that the first device takes, if it is emulated.
    pub(crate) fn timing(&self) -> Option<NvmTiming> {
        self.1.timing
    }

    /// True if a durable write to a device waits for nothing but the processor.
    pub fn is_immediate(&self, device: u8) -> bool {
        match &self.0[usize::from(device)] {
            Storage::Mapped(mapped) => mapped.persist() != Persist::Msync,
            Storage::Direct(_) => false,
            #[cfg(test)]
            Storage::Volatile(_, is_immediate) => *is_immediate,
        }
    }

    /// True if a device is mapped: it is memory, or is to be.
    pub fn is_mapped(&self, device: u8) -> bool {
        matches!(&self.0[usize::from(device)], Storage::Mapped(_))
    }

    /// Frames of a log on device 0 begin at multiples of so many bytes. On a file these are whole blocks: two writes at once never
    /// share one.
    pub fn log_sector(&self) -> u32 {
        match &self.0[0] {
            Storage::Mapped(_) => LINE_BYTES,
            Storage::Direct(_) => BLOCK_BYTES as u32,
            #[cfg(test)]
            Storage::Volatile(..) => 512,
        }
    }

    /// Writes to device 0, durable on return: pieces of a log's frame.
    ///
    /// # Errors
    /// The device failed; what it has is unknown.
    pub fn write_durable<'p>(
        &self,
        mut pieces: impl Iterator<Item = (u64, &'p [u8])>,
    ) -> Result<(), MediaError> {
        match &self.0[0] {
            Storage::Mapped(mapped) => {
                let began = mapped.begin();
                let mut count = 0;
                for (offset, bytes) in pieces {
                    mapped.store(offset, bytes).map_err(|_| MediaError::Io)?;
                    count += bytes.len();
                }
                mapped.pace(began, count);
                Ok(())
            }
            Storage::Direct(file) => {
                pieces.try_for_each(|(offset, bytes)| file.clone().write_through(offset, bytes))
            }
            #[cfg(test)]
            Storage::Volatile(device, _) => {
                pieces.try_for_each(|(offset, bytes)| device.write_through(offset, bytes))
            }
        }
    }

    /// Writes a device's blocks; they are durable after a flush.
    ///
    /// # Errors
    /// The device failed.
    pub fn write_blocks(&self, place: Place, bytes: &[u8]) -> Result<(), MediaError> {
        match self.storage(place)? {
            Storage::Mapped(mapped) => {
                let began = mapped.begin();
                mapped
                    .store(place.offset(), bytes)
                    .map_err(|_| MediaError::OutOfRange)?;
                mapped.pace(began, bytes.len());
                Ok(())
            }
            Storage::Direct(file) => file.clone().write_at(place.offset(), bytes),
            #[cfg(test)]
            Storage::Volatile(device, _) => device.write(place.offset(), bytes),
        }
    }

    /// Makes all writes to a device durable.
    ///
    /// # Errors
    /// The device failed.
    pub fn flush_device(&self, device: u8) -> Result<(), MediaError> {
        match &self.0[usize::from(device)] {
            // A store is durable on return.
            Storage::Mapped(_) => Ok(()),
            Storage::Direct(file) => file.clone().flush(),
            #[cfg(test)]
            Storage::Volatile(device, _) => device.flush(),
        }
    }

    /// Devices with these contents that lose power.
    #[cfg(test)]
    pub(crate) fn volatile(
        contents: Vec<Vec<u8>>,
        is_immediate: bool,
        power: &Arc<crate::cut_tests::Power>,
    ) -> Self {
        let device = |bytes| Storage::Volatile(crate::cut_tests::Volatile::new(bytes, power), is_immediate);
        Self(
            contents.into_iter().map(device).collect(),
            Arc::new(Windows::of(None)),
        )
    }

    /// What a cut leaves of each device. The power of all goes at once.
    #[cfg(test)]
    pub(crate) fn cut_all(
        &self,
        cut: impl FnMut(os::sync::MutexGuard<'_, crate::cut_tests::Content>) -> Vec<u8>,
    ) -> Vec<Vec<u8>> {
        let frozen = self.0.iter().map(|storage| match storage {
            Storage::Volatile(device, _) => device.freeze(),
            _ => unreachable!("all of them lose power"),
        });
        let frozen: Vec<_> = frozen.collect();
        frozen.into_iter().map(cut).collect()
    }

    fn storage(&self, place: Place) -> Result<&Storage, MediaError> {
        self.0
            .get(usize::from(place.device()))
            .ok_or(MediaError::OutOfRange)
    }

    fn read_bytes(storage: &Storage, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        match storage {
            Storage::Mapped(mapped) => mapped.read(offset, bytes).map_err(|_| MediaError::OutOfRange),
            Storage::Direct(file) => file.read_at(offset, bytes),
            #[cfg(test)]
            Storage::Volatile(device, _) => device.read(offset, bytes),
        }
    }
}

impl Media for Disks {
    fn devices(&self) -> usize {
        self.0.len()
    }

    fn capacity_bytes(&self, device: u8) -> u64 {
        match &self.0[usize::from(device)] {
            Storage::Mapped(mapped) => mapped.bytes(),
            Storage::Direct(file) => file.capacity_bytes(),
            #[cfg(test)]
            Storage::Volatile(device, _) => device.bytes(),
        }
    }

    fn read(&self, place: Place, bytes: &mut [u8]) -> Result<(), MediaError> {
        Self::read_bytes(self.storage(place)?, place.offset(), bytes)
    }

    fn write(&mut self, place: Place, bytes: &[u8]) -> Result<(), MediaError> {
        self.write_blocks(place, bytes)
    }

    fn flush(&mut self, device: u8) -> Result<(), MediaError> {
        self.flush_device(device)
    }
}

/// Device 0, to read logs.
#[derive(Clone, Debug)]
pub struct First(pub Disks);

impl Device for First {
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        Disks::read_bytes(&self.0.0[0], offset, bytes)
    }

    fn write_at(&mut self, _: u64, _: &[u8]) -> Result<(), MediaError> {
        unreachable!("logs are read by this, and written by `write_durable`")
    }

    fn flush(&mut self) -> Result<(), MediaError> {
        unreachable!("logs are read by this, and written by `write_durable`")
    }

    fn capacity_bytes(&self) -> u64 {
        Media::capacity_bytes(&self.0, 0)
    }
}
