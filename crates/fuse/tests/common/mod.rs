//! What the tests on real mounts share: a mount with its server, over either transport.
#![allow(dead_code, reason = "each test uses a part")]
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests on a real kernel wait and have threads"
)]

pub mod memory;

/// Makes a test for each transport.
macro_rules! on_both {
    ($($name:ident)+) => {
        mod ring {
            $(#[test] fn $name() { super::$name(super::Transport::Ring); })+
        }
        mod classic {
            $(#[test] fn $name() { super::$name(super::Transport::Classic); })+
        }
    };
}

use fuse::mount::{Mount, MountOptions, UnmountError, mount};
use fuse::transport::{Call, Choice, Config, End, Session, Transport, Wishes};
use memory::{Behaviour, Memory};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Duration;

const PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";
/// A test that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);

/// Root's switch for io_uring, set for the start of a session and restored then. Test processes take turns.
pub struct Switch {
    before: String,
    _turn: File,
}

impl Switch {
    /// `None` where the kernel has no such switch.
    pub fn set(value: &str) -> Option<Self> {
        let path = std::env::temp_dir().join("switchyard-fuse-test.lock");
        let turn = File::create(path).expect("a file for taking turns");
        turn.lock().expect("a lock");
        let before = std::fs::read_to_string(PARAMETER).ok()?;
        std::fs::write(PARAMETER, value).ok()?;
        Some(Self { before, _turn: turn })
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        let _ = std::fs::write(PARAMETER, self.before.trim());
    }
}

/// A file system in memory on a mount.
pub struct Mounted {
    pub mount: Option<Mount>,
    pub session: Option<Session>,
    pub memory: Arc<Memory>,
    pub path: PathBuf,
    _dir: tempfile::TempDir,
    _ends: Sender<()>,
}

/// How requests are served.
#[derive(Clone, Copy, Debug, Default)]
pub struct Served {
    pub behaviour: Behaviour,
    /// By other threads than the transport's, in another order.
    pub elsewhere: bool,
}

/// Whether mounts can be made here; says why not.
pub fn can_mount() -> bool {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: only root mounts here");
        return false;
    }
    if !Path::new("/dev/fuse").exists() {
        eprintln!("skipped: there is no /dev/fuse");
        return false;
    }
    true
}

impl Mounted {
    /// `None` if the test is to be skipped; it has been said why.
    pub fn new(transport: Transport, served: Served) -> Option<Self> {
        if !can_mount() {
            return None;
        }
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("mount");
        std::fs::create_dir(&path).expect("a directory");
        let memory = Arc::new(Memory::new(served.behaviour));
        let wishes = match served.behaviour.no_open {
            true => Wishes::without_opens(),
            false => Wishes::default(),
        };
        let handler = handler(&memory, served.elsewhere);
        let (mount, session) = start(transport, &path, wishes, handler)?;
        let ends = watch(&path);
        Some(Self {
            mount: Some(mount),
            session: Some(session),
            memory,
            path,
            _dir: dir,
            _ends: ends,
        })
    }

    /// Unmounts, and ends the session.
    pub fn end(mut self) -> End {
        let mut mount = self.mount.take().expect("it is mounted");
        // A child of another test has this process's files open between its fork and its exec.
        let mut tries = 0;
        while let Err(error) = mount.unmount() {
            tries += 1;
            assert!(matches!(error, UnmountError::Busy(_)) && tries < 5000, "{error}");
            thread::sleep(Duration::from_millis(1));
        }
        self.session.take().expect("it is served").join()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        self.mount = None;
        self.session = None;
    }
}

/// Ends the process if a test hangs. The connection ends first: a process whose own thread waits for a reply of its own server
/// cannot end.
pub fn watch(path: &Path) -> Sender<()> {
    let (ends, ended) = channel::<()>();
    let path = path.to_path_buf();
    thread::spawn(move || {
        if ended.recv_timeout(LIMIT) == Err(std::sync::mpsc::RecvTimeoutError::Timeout) {
            eprintln!("a test hangs: {:?}", thread::current());
            let _ = rustix::mount::unmount(&path, rustix::mount::UnmountFlags::FORCE);
            let _ = rustix::mount::unmount(&path, rustix::mount::UnmountFlags::DETACH);
            std::process::abort();
        }
    });
    ends
}

/// A mount that is served; `None` if the kernel does not have the transport.
pub fn start(
    transport: Transport,
    path: &Path,
    wishes: Wishes,
    handler: impl Fn(Call) + Send + Sync + 'static,
) -> Option<(Mount, Session)> {
    let switch = Switch::set(if transport == Transport::Ring { "Y" } else { "N" });
    if switch.is_none() && transport == Transport::Ring {
        eprintln!("skipped: this kernel has no FUSE over io_uring");
        return None;
    }
    let config = Config {
        choice: if transport == Transport::Ring {
            Choice::Best
        } else {
            Choice::Classic
        },
        threads: 3,
        wishes,
        ..Config::default()
    };
    let options = MountOptions {
        allow_other: true,
        ..MountOptions::default()
    };
    let (mount, device) = mount(path, &options).expect("root can mount");
    let session = Session::start(device, &config, handler).expect("a new mount can be served");
    assert_eq!(session.transport(), transport, "{:?}", session.fallback());
    Some((mount, session))
}

fn handler(memory: &Arc<Memory>, elsewhere: bool) -> impl Fn(Call) + Send + Sync + 'static {
    let senders: Vec<Sender<Call>> = (0..if elsewhere { 3 } else { 0 })
        .map(|number| {
            let (sender, calls) = channel::<Call>();
            let memory = Arc::clone(memory);
            thread::spawn(move || {
                while let Ok(first) = calls.recv() {
                    // What has come by now is answered last first.
                    let mut calls: Vec<_> = std::iter::once(first).chain(calls.try_iter()).collect();
                    if number == 0 {
                        thread::yield_now();
                    }
                    calls.drain(..).rev().for_each(|call| memory.serve(call));
                }
            });
            sender
        })
        .collect();
    let memory = Arc::clone(memory);
    move |call| match senders.len() {
        0 => memory.serve(call),
        count => {
            let at = call.header().unique as usize / 2 % count;
            senders[at]
                .send(call)
                .expect("the threads live as long as their senders");
        }
    }
}
