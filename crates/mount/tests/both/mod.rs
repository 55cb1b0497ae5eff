//! A mount and programs with logs of their own beside it: each sees at once what the other does, whatever the kernel has in its caches.

pub mod crowd;

use crate::yard::{Process, Yard, disks, say};
use libfs::{Errno, FileSystem, Open, Place, Rename, Wanted};
use mount::engine::{Engine, Options};
use mount::posix::{Mounted, Settings};
use mount::serve::Server;
use std::fs::OpenOptions;
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const WRITE: Open = Open {
    writes: true,
    creates: Some(0o644),
    ..Open::READ
};
const APPEND: Open = Open {
    appends: true,
    ..WRITE
};

/// Mounts and serves until its input ends.
pub fn mount(directory: &Path, is_classic: bool) {
    let disks = disks(&directory.join("nvm"));
    let options = Options {
        checks_permissions: false,
        ..Options::default()
    };
    let (engine, recovery) = Engine::open(disks.clone(), &options).expect("it is a file system");
    assert_eq!(recovery.refused, 0, "{recovery:?}");
    engine.share(8, Some(1 << 20)).expect("it is memory");
    let control = directory.join("control");
    let settings = Settings {
        keeps_atime: true,
        control: Some(control.clone()),
        choice: if is_classic {
            fuse::transport::Choice::Classic
        } else {
            fuse::transport::Choice::Best
        },
        ..Settings::default()
    };
    let engine = Arc::new(engine);
    let mounted = Mounted::start(engine, &disks, &directory.join("mnt"), &settings).expect("it mounts");
    let opener = mounted.opener().expect("it is mounted");
    let engine = Arc::clone(mounted.engine());
    let mut server =
        Server::start_beside(engine, Some(opener), &control, (0o666, 8)).expect("nobody listens");
    say("serving");
    let mut end = Vec::new();
    std::io::stdin().read_to_end(&mut end).expect("it is a pipe");
    let mut mounted = mounted;
    mounted.unmount().expect("nobody uses it");
    server.stop();
    mounted.finish().1.expect("nothing has failed");
}

/// A mount, and a program's view of its files.
struct Both {
    yard: Yard,
    daemon: Option<Process>,
}

impl Both {
    /// None if the test is to be skipped.
    fn new() -> Option<Self> {
        Self::by("best")
    }

    fn by(transport: &str) -> Option<Self> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            eprintln!("skipped: it takes root and /dev/fuse");
            return None;
        }
        let yard = Yard::new();
        std::fs::create_dir(yard.directory.path().join("mnt")).expect("it is new");
        let mut both = Self { yard, daemon: None };
        both.start(transport);
        Some(both)
    }

    fn start(&mut self, transport: &str) {
        let mut daemon = Process::start("mount", self.yard.directory.path(), &[transport], None);
        assert_eq!(daemon.line().as_deref(), Some("serving"));
        self.daemon = Some(daemon);
    }

    /// Of a name on the mount.
    fn path(&self, name: &str) -> PathBuf {
        self.yard.directory.path().join("mnt").join(name)
    }

    fn connect(&self) -> FileSystem {
        let socket = FileSystem::socket_of(&self.path("")).expect("it is mounted");
        assert_eq!(socket.as_deref(), Some(&*self.yard.socket()));
        FileSystem::connect(&self.yard.socket()).expect("it is served")
    }

    /// Kills the daemon. Whoever waits for the kernel's pages waits for the daemon, and its thread that does keeps the mount, until the mount is
    /// unmounted by force.
    fn kill(&mut self) {
        let mut daemon = self.daemon.take().expect("it runs");
        daemon.signal(rustix::process::Signal::KILL);
        let place = self.yard.directory.path().join("mnt");
        let _ = rustix::mount::unmount(&place, rustix::mount::UnmountFlags::FORCE);
        let _ = rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH);
        daemon.child.wait().expect("it is ours");
    }

    /// Ends the mount, and checks the files.
    fn end(mut self) {
        self.daemon.take().expect("it runs").end();
        self.yard.check();
    }
}

impl Drop for Both {
    fn drop(&mut self) {
        drop(self.daemon.take());
        let place = self.yard.directory.path().join("mnt");
        let _ = rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH);
    }
}

fn is_missing<T: std::fmt::Debug>(result: std::io::Result<T>) -> bool {
    result.is_err_and(|error| error.kind() == ErrorKind::NotFound)
}

fn content(files: &FileSystem, path: &str) -> Vec<u8> {
    let file = files.open(Place::new(path), Open::READ).expect("it is there");
    let mut bytes = vec![0; file.stat().expect("it is open").inode.size as usize];
    let count = file.read_at(0, &mut bytes).expect("it is whole");
    assert_eq!(count, bytes.len());
    bytes
}

fn write(files: &FileSystem, path: &str, data: &[u8]) {
    let file = files.open(Place::new(path), WRITE).expect("it can be made");
    assert_eq!(file.write_at(0, data), Ok(data.len()));
}

#[test]
fn each_sees_at_once_what_the_other_has_made_written_and_named() {
    for transport in ["best", "classic"] {
        let Some(both) = Both::by(transport) else {
            return;
        };
        // From before the first program: the kernel has all of this in its caches.
        std::fs::create_dir(both.path("d")).expect("it is new");
        std::fs::write(both.path("d/old"), b"of the mount").expect("it is new");
        assert!(is_missing(std::fs::metadata(both.path("d/new"))));
        let files = both.connect();
        for round in 0..20 {
            let (a, b) = (format!("d/a{round}"), format!("d/b{round}"));
            // A name that the kernel knows not to be there.
            assert!(is_missing(std::fs::metadata(both.path(&a))));
            write(&files, &format!("/{a}"), b"of the program");
            assert_eq!(
                std::fs::read(both.path(&a)).expect("it is there"),
                b"of the program"
            );
            std::fs::write(both.path(&b), b"of the mount").expect("it is new");
            assert_eq!(content(&files, &format!("/{b}")), b"of the mount");
            // Both append in turn.
            for turn in 0..3u8 {
                let mut file = OpenOptions::new()
                    .append(true)
                    .open(both.path(&a))
                    .expect("it is there");
                file.write_all(&[turn; 10]).expect("there is room");
                let own = files
                    .open(Place::new(&format!("/{a}")), APPEND)
                    .expect("it is there");
                own.append(&[turn + 100; 10]).expect("there is room");
                // By the same descriptor: the kernel has another idea of the end.
                file.write_all(&[turn + 50; 10]).expect("there is room");
            }
            let mut expected = b"of the program".to_vec();
            for turn in 0..3u8 {
                for byte in [turn, turn + 100, turn + 50] {
                    expected.extend([byte; 10]);
                }
            }
            assert_eq!(content(&files, &format!("/{a}")), expected, "{transport}");
            assert_eq!(std::fs::read(both.path(&a)).expect("it is there"), expected);
            // Renames, and what is gone is gone.
            let moved = format!("d/c{round}");
            files
                .rename(
                    Place::new(&format!("/{a}")),
                    Place::new(&format!("/{moved}")),
                    Rename::default(),
                )
                .expect("it is there");
            assert!(is_missing(std::fs::metadata(both.path(&a))));
            assert_eq!(std::fs::read(both.path(&moved)).expect("it is there"), expected);
            std::fs::rename(both.path(&moved), both.path(&b)).expect("it is there");
            assert_eq!(
                files.stat(Place::new(&format!("/{moved}")), true),
                Err(Errno::NoEntry)
            );
            assert_eq!(content(&files, &format!("/{b}")), expected);
            files.unlink(Place::new(&format!("/{b}"))).expect("it is there");
            assert!(is_missing(std::fs::read(both.path(&b))));
            let names: Vec<_> = std::fs::read_dir(both.path("d"))
                .expect("it is there")
                .map(|entry| entry.expect("it is read").file_name())
                .collect();
            assert_eq!(names, ["old"], "{transport}, round {round}");
        }
        drop(files);
        both.end();
    }
}

#[test]
fn attributes_and_sizes_are_never_stale() {
    let Some(both) = Both::new() else {
        return;
    };
    let path = both.path("f");
    std::fs::write(&path, vec![1; 10_000]).expect("it is new");
    let open = std::fs::File::open(&path).expect("it is there");
    assert_eq!(open.metadata().expect("it is open").mode() & 0o777, 0o644);
    let files = both.connect();
    for round in 0..50u32 {
        let mode = 0o600 + round % 64;
        let wanted = Wanted {
            mode: Some(mode),
            size: Some(u64::from(round)),
            ..Wanted::default()
        };
        files.set(Place::new("/f"), &wanted, true).expect("it is ours");
        let seen = open.metadata().expect("it is open");
        assert_eq!((seen.mode() & 0o7777, seen.len()), (mode, u64::from(round)));
        // What was cut off is not read.
        let mut bytes = Vec::new();
        let mut reading = &open;
        reading.seek(SeekFrom::Start(0)).expect("it is a file");
        reading.read_to_end(&mut bytes).expect("it is read");
        assert_eq!(bytes.len(), round as usize);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).expect("it is ours");
        OpenOptions::new()
            .write(true)
            .open(&path)
            .expect("it is there")
            .set_len(20_000)
            .expect("there is room");
        let seen = files.stat(Place::new("/f"), true).expect("it is there").inode;
        assert_eq!((seen.mode & 0o7777, seen.size), (0o640, 20_000));
        files
            .set_attribute(
                Place::new("/f"),
                (b"user.round", &round.to_le_bytes()),
                (Default::default(), true),
            )
            .expect("there is room");
        let mut value = [0; 8];
        let count = rustix::fs::getxattr(&path, "user.round", &mut value[..]).expect("it is there");
        assert_eq!(&value[..count], round.to_le_bytes());
    }
    drop((open, files));
    both.end();
}

#[test]
fn a_mapping_of_the_kernel_and_a_program_see_each_others_bytes() {
    let Some(both) = Both::new() else {
        return;
    };
    let path = both.path("mapped");
    std::fs::write(&path, vec![b'.'; 1 << 16]).expect("it is new");
    let files = both.connect();
    // A mapping that writes, of another process: this one has no unsafe code.
    let script = r#"
import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(f, 1 << 16)
for line in sys.stdin:
    at, byte = line.split()
    seen = m[int(at):int(at) + 1]
    m[int(at):int(at) + 1] = byte.encode()
    print(seen.decode(), flush=True)
"#;
    let mut python = std::process::Command::new("python3")
        .args(["-c", script])
        .arg(&path)
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .expect("there is Python");
    let mut says = python.stdin.take().expect("it is piped");
    let mut hears = std::io::BufReader::new(python.stdout.take().expect("it is piped"));
    let file = files.open(Place::new("/mapped"), WRITE).expect("it is there");
    let mut rng = base::Rng::new(os::seed());
    for round in 0..100 {
        let at = rng.below(1 << 16);
        let (first, second) = (b'a' + (round % 26) as u8, b'A' + (round % 26) as u8);
        file.write_at(at, &[first]).expect("there is room");
        writeln!(says, "{at} {}", char::from(second)).expect("it is there");
        let mut line = String::new();
        std::io::BufRead::read_line(&mut hears, &mut line).expect("it is a pipe");
        assert_eq!(line.trim_end(), char::from(first).to_string(), "round {round}");
        // No msync: it is a store, and nothing else.
        let mut seen = [0];
        file.read_at(at, &mut seen).expect("it is there");
        assert_eq!(seen, [second], "round {round}");
    }
    drop((says, file, files));
    assert!(python.wait().expect("it is ours").success());
    both.end();
}

#[test]
fn a_program_gets_descriptors_of_the_mount_also_of_what_has_no_name() {
    let Some(both) = Both::new() else {
        return;
    };
    let files = both.connect();
    let file = files.open(Place::new("/f"), WRITE).expect("it is new");
    file.write_at(0, b"of the log").expect("there is room");
    let flags = (rustix::fs::OFlags::RDWR | rustix::fs::OFlags::APPEND).bits();
    let mut real = std::fs::File::from(file.descriptor(flags).expect("it may"));
    real.write_all(b", and of the kernel").expect("there is room");
    assert_eq!(content(&files, "/f"), b"of the log, and of the kernel");
    file.append(b"; again").expect("there is room");
    let mut bytes = [0; 64];
    let count = real.read_at(&mut bytes, 0).expect("it is open");
    assert_eq!(&bytes[..count], b"of the log, and of the kernel; again");
    // Without a name.
    files.unlink(Place::new("/f")).expect("it is there");
    let nameless = std::fs::File::from(
        file.descriptor(rustix::fs::OFlags::RDONLY.bits())
            .expect("it may"),
    );
    let count = nameless.read_at(&mut bytes, 0).expect("it is open");
    assert_eq!(&bytes[..count], b"of the log, and of the kernel; again");
    assert_eq!(nameless.metadata().expect("it is open").nlink(), 0);
    // The descriptors keep the file when the program has closed it.
    drop(file);
    write(&files, "/other", b"x");
    let count = nameless.read_at(&mut bytes, 0).expect("it is open");
    assert_eq!(count, 36);
    // What may not be had.
    let directory = files.descriptor(1, rustix::fs::OFlags::RDONLY.bits());
    assert!(directory.is_ok());
    assert!(files.descriptor(1, rustix::fs::OFlags::WRONLY.bits()).is_err());
    assert_eq!(files.descriptor(77_777, 0).err(), Some(Errno::Stale));
    let other = files.open(Place::new("/other"), Open::READ).expect("it is there");
    let truncates = rustix::fs::OFlags::TRUNC.bits();
    assert_eq!(other.descriptor(truncates).err(), Some(Errno::Invalid));
    drop((other, real, nameless, directory, files));
    both.end();
}

/// Bug: a daemon that was killed while it opened files of its own mount for programs never ended, nor did anybody's calls on the mount, though the connection
/// had been ended. Cause: what the kernel had to do for a request was deferred until a thread waits that was gone, or until the ring's file is closed, which the
/// daemon's other threads had: they waited for the request. Fix: a mount that programs share defers nothing.
#[test]
fn a_kill_ends_a_daemon_that_waits_for_its_own_mount() {
    for round in 0..6 {
        let Some(mut both) = Both::new() else {
            return;
        };
        let files = both.connect();
        let open = |thread: u64| {
            let name = format!("/f{thread}");
            files.open(Place::new(&name), WRITE).expect("it is new")
        };
        let open: Vec<_> = (0..8).map(open).collect();
        let flags = rustix::fs::OFlags::RDWR.bits();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            // The daemon's threads wait for a processor, so that the kill comes between a request and its thread.
            for _ in 0..8 {
                scope.spawn(|| {
                    while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                        std::hint::spin_loop();
                    }
                });
            }
            for file in &open {
                // Until the daemon is gone.
                scope.spawn(|| while file.append(b"x").is_ok() && file.descriptor(flags).is_ok() {});
            }
            std::thread::sleep(std::time::Duration::from_millis(40 + 7 * round));
            let mut daemon = both.daemon.take().expect("it runs");
            daemon.signal(rustix::process::Signal::KILL);
            is_over.store(true, std::sync::atomic::Ordering::Relaxed);
            // As its guard does, some time later.
            std::thread::sleep(std::time::Duration::from_millis(200));
            let place = both.path("");
            let _ = rustix::mount::unmount(&place, rustix::mount::UnmountFlags::FORCE);
            let _ = rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH);
            let has_ended = (0..200).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(50));
                daemon.child.try_wait().expect("it is ours").is_some()
            });
            // The program's threads wait for the daemon.
            files.close();
            assert!(has_ended, "the daemon waits for itself, in round {round}");
        });
    }
}
