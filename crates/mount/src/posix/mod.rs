//! The mount: requests of the kernel's FUSE as calls of the engine.
//!
//! # What the kernel does itself
//! The mount is the only way to the files, so the kernel may keep names and attributes for long, negative ones too, and pages as long as it
//! has room. It checks permissions, keeps all locks, and opens without asking: an inode that it knows counts as open, so one without a name
//! lives until the kernel forgets it.

mod attr;
mod attributes;
mod cache;
mod content;
mod descriptors;
mod dispatch;
mod kernel;
mod names;
mod pin;
mod server;
mod status;
mod workers;

pub use pin::TIER;
pub use status::{CONTROL, STATUS};

use crate::engine::{Engine, Failure, Pins};
use crate::media::Disks;
use crate::serve::Opener;
use cache::KernelCache;
use descriptors::Handles;
use fs::media::Media;
use fuse::abi::init;
use fuse::mount::{Mount, MountError, MountOptions, UnmountError, mount};
use fuse::transport::{Choice, Config, End, Session, StartError, Stopper, Transport, Wishes};
use kernel::Kernel;
use os::sync::{Arc, thread};
use server::{Place, Server, Told};
use std::path::{Path, PathBuf};
use thiserror::Error;
use workers::{Queue, Workers};

/// How a file system is mounted.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// What the kernel is told of the mount.
    pub mount: MountOptions,
    /// Which transport.
    pub choice: Choice,
    /// Reading changes access times, as `relatime` does.
    pub keeps_atime: bool,
    /// The socket of programs that have logs of their own beside the mount. The engine [is shared](Engine::share) then.
    pub control: Option<PathBuf>,
}

/// Why there is no mount.
#[derive(Debug, Error)]
pub enum StartFailure {
    /// The kernel refused it.
    #[error("{0}")]
    Mount(#[from] MountError),
    /// The mount cannot be served.
    #[error("{0}")]
    Session(#[from] StartError),
}

/// A file system that is mounted.
pub struct Mounted {
    /// Dropped before the session.
    mount: Mount,
    transport: Transport,
    fallback: Option<String>,
    session: thread::JoinHandle<End>,
    stopper: Stopper,
    workers: Workers,
    cache: KernelCache,
    engine: Arc<Engine>,
}

/// Entries of each processor's queue where calls may wait for leases, each of which has one.
const ENTRIES_SHARED: usize = 128;
/// Entries of a queue that stay free for calls that do not wait, at least.
const ENTRIES_FREE: usize = 8;
/// Reading ahead that may be under way at once where it may wait for leases: pages that are written back are to pass it.
const BACKGROUND_SHARED: u16 = 1024;

fn wishes(is_shared: bool) -> Wishes {
    let mut wishes = Wishes::without_opens();
    // The umask is not for what is made in a directory with a default list. Numbers of inodes are never used again, so handles are good as long
    // as their files are there.
    wishes.flags |= init::POSIX_ACL
        | init::DONT_MASK
        | init::HAS_IOCTL_DIR
        | init::EXPLICIT_INVAL_DATA
        | init::EXPORT_SUPPORT;
    if is_shared {
        wishes.background_max = BACKGROUND_SHARED;
    }
    wishes
}

impl Mounted {
    /// Mounts a file system on a directory, and serves it.
    ///
    /// # Errors
    /// [`StartFailure`]; the engine is as it was.
    pub fn start(
        engine: Arc<Engine>,
        disks: &Disks,
        place: &Path,
        settings: &Settings,
    ) -> Result<Self, StartFailure> {
        let is_slow = (0..disks.devices() as u8).any(|device| !disks.is_immediate(device));
        let (mount, device) = mount(place, &settings.mount)?;
        let queue = Queue::default();
        let kernel = Kernel::default();
        let cache = KernelCache::new(kernel.clone());
        if settings.control.is_some() {
            engine.share_own(Arc::new(cache.clone()));
        }
        let entries = match settings.control {
            Some(_) => ENTRIES_SHARED,
            None => Config::default().entries,
        };
        let server = Arc::new(Server {
            engine: Arc::clone(&engine),
            queue: queue.clone(),
            is_slow,
            keeps_atime: settings.keeps_atime,
            transport: Told::default(),
            kernel,
            cache: cache.clone(),
            waiting_max: entries - ENTRIES_FREE,
            control: settings.control.clone(),
        });
        let config = Config {
            choice: settings.choice,
            entries,
            wishes: wishes(settings.control.is_some()),
            // Descriptors are opened for programs, and the kernel drops pages for them.
            waits_for_itself: settings.control.is_some(),
            ..Config::default()
        };
        let serving = Arc::clone(&server);
        let session = Session::start(device, &config, move |call| {
            serving.serve(call, Place::Transport, &Pins::new())
        })?;
        server.transport.set(session.transport());
        server.kernel.set(session.notifier());
        cache.start(&engine);
        let workers = Workers::start(queue, move |call, pins| server.serve(call, Place::Worker, &pins));
        let (transport, fallback) = (session.transport(), session.fallback().map(ToString::to_string));
        let stopper = session.stopper();
        let join = thread::Builder::new().name("fs-session".into());
        let session = join
            .spawn(move || session.join())
            .expect("the system has room for a thread");
        Ok(Self {
            mount,
            transport,
            fallback,
            session,
            stopper,
            workers,
            cache,
            engine,
        })
    }

    /// What requests come by.
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Why there is no ring, if there was to be one.
    pub fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// Where it is.
    pub fn place(&self) -> &Path {
        self.mount.place()
    }

    /// The number of the mount's connection, by which others can [end it](fuse::mount::abort).
    pub fn connection(&self) -> Option<u32> {
        self.mount.connection()
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Opens inodes of the mount for programs that have logs of their own.
    ///
    /// # Errors
    /// The mount is gone.
    pub fn opener(&self) -> std::io::Result<Arc<dyn Opener>> {
        let place = self.mount.place().to_owned();
        let device = rustix::fs::stat(&place)?.st_dev;
        Ok(Arc::new(Handles { place, device }))
    }

    /// True if it was unmounted, by whomever.
    pub fn is_over(&self) -> bool {
        self.session.is_finished()
    }

    /// Unmounts.
    ///
    /// # Errors
    /// Somebody uses it.
    pub fn unmount(&mut self) -> Result<(), UnmountError> {
        self.mount.unmount()
    }

    /// Takes the mount away from its place. Programs that have files open go on with them, and the session ends with the last one.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn unmount_lazily(&mut self) -> Result<(), UnmountError> {
        self.mount.unmount_lazily()
    }

    /// Ends the session although programs use the mount: their calls fail.
    pub fn stop(&self) {
        self.stopper.stop();
    }

    /// Waits until somebody unmounts, and closes the file system.
    pub fn finish_on_unmount(self) -> (End, Result<(), Failure>) {
        while !self.is_over() {
            thread::sleep(std::time::Duration::from_millis(50));
        }
        self.finish()
    }

    /// Waits until the session is over, and closes the file system. Why the session ended, and how the closing went.
    pub fn finish(self) -> (End, Result<(), Failure>) {
        let Self {
            mount,
            session,
            workers,
            cache,
            engine,
            ..
        } = self;
        drop(mount);
        let end = session.join().unwrap_or(End::Panicked);
        drop(workers);
        engine.drop_waiting();
        cache.stop();
        (end, engine.close())
    }
}
