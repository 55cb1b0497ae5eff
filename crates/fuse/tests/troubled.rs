//! Mounts in trouble: signals, kills, a server that dies, unmounts while programs use the mount, changes behind the kernel's
//! back, a kernel without the ring.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests on a real kernel wait and have threads"
)]

#[macro_use]
mod common;

use common::memory::{Behaviour, Memory};
use common::{Mounted, Served, Switch, can_mount};
use fuse::abi::{Errno, Notification};
use fuse::mount::{MountError, MountOptions, UnmountError, mount};
use fuse::transport::{Call, Choice, Config, End, Fallback, Session, Transport, Wishes};
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

/// The kernel keeps names and attributes until it is told.
const CACHING: Served = Served {
    behaviour: Behaviour {
        no_open: false,
        valid_s: 3600,
    },
    elsewhere: false,
};
/// The child of [`a_dead_server_fails_calls_and_is_named`] finds here where to mount, and over what.
const PLACE: &str = "SWITCHYARD_FUSE_TEST_PLACE";
const OVER: &str = "SWITCHYARD_FUSE_TEST_TRANSPORT";

on_both! {
    a_signal_ends_a_slow_call
    a_killed_caller_ends_and_the_mount_goes_on
    a_slow_call_keeps_no_other_one_waiting
    a_dead_server_fails_calls_and_is_named
    a_stopped_session_fails_calls
    a_busy_mount_is_unmounted_lazily_only
    a_dropped_mount_is_gone
    changes_are_seen_after_their_notifications
    a_call_that_is_dropped_fails
    a_panic_of_the_handler_ends_the_session
    sessions_start_and_end_again_and_again
}

/// Waits for something that another thread or the kernel is about to do.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if is_so() {
            return;
        }
        thread::sleep(Duration::from_millis(1));
    }
    panic!("in vain: {what}");
}

extern "C" fn nothing(_: libc::c_int) {}

fn a_signal_ends_a_slow_call(transport: Transport) {
    let Some(mounted) = Mounted::new(transport, CACHING) else {
        return;
    };
    fs::write(mounted.path.join("slow"), b"x").expect("a file");
    // SAFETY: a handler that does nothing, without SA_RESTART.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &action, std::ptr::null_mut()), 0);
    }
    let file = File::open(mounted.path.join("slow")).expect("it is there");
    let (tell, told) = std::sync::mpsc::channel();
    let reader = thread::spawn(move || {
        // SAFETY: it only tells which thread this is.
        tell.send(unsafe { libc::pthread_self() })
            .expect("somebody wants to know");
        let mut bytes = [0; 10];
        file.read_at(&mut bytes, 0).map_err(|error| error.raw_os_error())
    });
    let id = told.recv().expect("it tells");
    until("the call comes", || mounted.memory.slow() == 1);
    // SAFETY: the thread was not joined yet.
    unsafe { libc::pthread_kill(id, libc::SIGUSR1) };
    assert_eq!(reader.join().expect("no panic"), Err(Some(libc::EINTR)));
    assert_eq!(mounted.memory.counts().interrupts, 1);
    assert_eq!(mounted.memory.slow(), 0);
}

/// A program that reads a file once.
fn reader(path: &Path) -> Child {
    let mut command = Command::new("dd");
    command
        .arg(format!("if={}", path.display()))
        .args(["of=/dev/null", "bs=1", "count=1"]);
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command.spawn().expect("dd is everywhere")
}

fn a_killed_caller_ends_and_the_mount_goes_on(transport: Transport) {
    let Some(mounted) = Mounted::new(transport, CACHING) else {
        return;
    };
    let slow = mounted.path.join("slow");
    fs::write(&slow, b"x").expect("a file");
    for _ in 0..10 {
        let mut child = reader(&slow);
        until("the call comes", || mounted.memory.slow() == 1);
        child.kill().expect("it is ours");
        let status = child.wait().expect("it is ours");
        assert_eq!(status.signal(), Some(libc::SIGKILL));
        assert_eq!(mounted.memory.slow(), 0, "its call was interrupted");
    }
    fs::write(mounted.path.join("other"), b"x").expect("the mount goes on");
    assert_eq!(mounted.end(), End::Unmounted);
}

fn a_slow_call_keeps_no_other_one_waiting(transport: Transport) {
    let Some(mounted) = Mounted::new(transport, CACHING) else {
        return;
    };
    let slow = mounted.path.join("slow");
    fs::write(&slow, b"x").expect("a file");
    let readers: Vec<_> = (0..5)
        .map(|_| {
            let slow = slow.clone();
            thread::spawn(move || {
                let mut bytes = Vec::new();
                let mut file = File::open(slow).expect("it is there");
                file.read_to_end(&mut bytes).map(|_| bytes)
            })
        })
        .collect();
    until("the calls come", || mounted.memory.slow() == 5);
    for number in 0..100 {
        fs::write(mounted.path.join(format!("f{number}")), b"x").expect("a file");
    }
    assert_eq!(mounted.memory.slow(), 5);
    mounted.memory.release(b"");
    for reader in readers {
        assert_eq!(reader.join().expect("no panic").expect("it was answered"), b"");
    }
    assert_eq!(mounted.end(), End::Unmounted);
}

/// Not a test by itself: the server that [`a_dead_server_fails_calls_and_is_named`] kills.
#[test]
fn serve_until_killed() {
    let Some(place) = std::env::var_os(PLACE) else {
        return;
    };
    let transport = match std::env::var(OVER).as_deref() {
        Ok("ring") => Transport::Ring,
        _ => Transport::Classic,
    };
    let memory = Arc::new(Memory::new(CACHING.behaviour));
    let handler = move |call: Call| memory.serve(call);
    let served = common::start(transport, Path::new(&place), Wishes::default(), handler);
    fs::write(Path::new(&place).with_extension("ready"), b"").expect("a mark");
    thread::sleep(Duration::from_secs(100));
    drop(served);
}

fn a_dead_server_fails_calls_and_is_named(transport: Transport) {
    if !can_mount() {
        return;
    }
    if transport == Transport::Ring && Switch::set("Y").is_none() {
        return eprintln!("skipped: this kernel has no FUSE over io_uring");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let place = dir.path().join("mount");
    fs::create_dir(&place).expect("a directory");
    let mut child = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "serve_until_killed"])
        .env(PLACE, &place)
        .env(
            OVER,
            if transport == Transport::Ring {
                "ring"
            } else {
                "classic"
            },
        )
        .stdout(Stdio::null())
        .spawn()
        .expect("this program can be run");
    until("the server is ready", || place.with_extension("ready").exists());
    fs::write(place.join("slow"), b"x").expect("a file");
    let slow = File::open(place.join("slow")).expect("it is there");
    let reader = thread::spawn(move || slow.read_at(&mut [0], 0).map_err(|error| error.raw_os_error()));
    thread::sleep(Duration::from_millis(20));
    child.kill().expect("it is ours");
    child.wait().expect("it is ours");
    let failed = reader.join().expect("no panic").expect_err("nobody answers");
    assert!(
        matches!(failed, Some(libc::ENOTCONN | libc::ECONNABORTED)),
        "{failed:?}"
    );
    until("the connection ends", || fs::metadata(&place).is_err());
    let error = fs::metadata(place.join("slow")).expect_err("nobody answers");
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN));
    // Bug: a second mount covered the dead one. Cause: the kernel answers stat(2) from its cache. Fix: `statx` that asks the server.
    let error = mount(&place, &MountOptions::default()).expect_err("a dead mount is there");
    assert!(matches!(error, MountError::Dead { .. }), "{error}");
    rustix::mount::unmount(&place, rustix::mount::UnmountFlags::DETACH).expect("it is mounted");
}

fn a_stopped_session_fails_calls(transport: Transport) {
    let Some(mut mounted) = Mounted::new(transport, CACHING) else {
        return;
    };
    let slow = mounted.path.join("slow");
    fs::write(&slow, b"x").expect("a file");
    let reader = thread::spawn(move || File::open(slow)?.read_at(&mut [0], 0));
    until("the call comes", || mounted.memory.slow() == 1);
    let session = mounted.session.take().expect("it is served");
    assert_eq!(session.stop(), End::Stopped);
    // The call that waits still has the connection.
    mounted.memory.abandon();
    let failed = reader.join().expect("no panic").expect_err("nobody answers");
    let codes = [libc::ENOTCONN, libc::ECONNABORTED, libc::EIO];
    assert!(codes.contains(&failed.raw_os_error().unwrap_or(0)), "{failed}");
    until("the connection ends", || {
        fs::metadata(&mounted.path).is_err_and(|error| error.raw_os_error() == Some(libc::ENOTCONN))
    });
}

fn a_busy_mount_is_unmounted_lazily_only(transport: Transport) {
    let Some(mut mounted) = Mounted::new(transport, CACHING) else {
        return;
    };
    let path = mounted.path.join("f");
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .expect("a file");
    let mut mount = mounted.mount.take().expect("it is mounted");
    let error = mount.unmount().expect_err("it is busy");
    assert!(matches!(error, UnmountError::Busy(_)), "{error}");
    assert!(mount.is_there());
    fs::write(mounted.path.join("g"), b"x").expect("the mount goes on");
    mount.unmount_lazily().expect("it is mounted");
    assert!(!path.exists(), "the mount has left its place");
    file.write_all_at(b"still", 0).expect("it is open");
    let mut text = [0; 5];
    file.read_exact_at(&mut text, 0).expect("it is open");
    assert_eq!(text, *b"still");
    // Bug: in three of fifty runs the session said that it was aborted. Cause: a thread had taken the RELEASE of this close when
    // the mount went, and its read failed with ECONNABORTED. Fix: `classic::serve` reads again.
    drop(file);
    assert_eq!(
        mounted.session.take().expect("it is served").join(),
        End::Unmounted
    );
}

fn a_dropped_mount_is_gone(transport: Transport) {
    let Some(mut mounted) = Mounted::new(transport, CACHING) else {
        return;
    };
    fs::write(mounted.path.join("f"), b"x").expect("a file");
    // Somebody else unmounts, and mounts another one there. Bug: it was unmounted. Cause: it gets the number of the one that is gone.
    // Fix: `table::Entry` has more than the number.
    rustix::mount::unmount(&mounted.path, rustix::mount::UnmountFlags::empty()).expect("it is mounted");
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount("none", &mounted.path, "tmpfs", flags, None).expect("root can mount");
    fs::write(mounted.path.join("theirs"), b"x").expect("a file");
    mounted.mount = None;
    assert!(mounted.path.join("theirs").exists(), "another mount stays");
    rustix::mount::unmount(&mounted.path, rustix::mount::UnmountFlags::empty()).expect("it is mounted");
    assert_eq!(
        mounted.session.take().expect("it is served").join(),
        End::Unmounted
    );
}

fn changes_are_seen_after_their_notifications(transport: Transport) {
    let Some(mounted) = Mounted::new(transport, CACHING) else {
        return;
    };
    let notifier = mounted.session.as_ref().expect("it is served").notifier();
    let path = mounted.path.join("f");
    fs::write(&path, b"before").expect("a file");
    assert_eq!(fs::read(&path).expect("it is there"), b"before");
    let inode = mounted.memory.change(b"f", b"behind the kernel's back");
    assert_eq!(
        fs::read(&path).expect("it is there"),
        b"before",
        "the kernel has it in its cache"
    );
    let changed = Notification::InvalInode {
        inode,
        offset: 0,
        bytes: 0,
    };
    assert_eq!(notifier.notify(&changed), Ok(true));
    assert_eq!(fs::read(&path).expect("it is there"), b"behind the kernel's back");
    let store = Notification::Store {
        inode,
        offset: 0,
        data: b"STORED",
    };
    assert_eq!(notifier.notify(&store), Ok(true));
    assert_eq!(fs::read(&path).expect("it is there"), b"STORED the kernel's back");

    fs::write(mounted.path.join("g"), b"x").expect("a file");
    let child = mounted.memory.remove(b"g");
    assert!(
        mounted.path.join("g").exists(),
        "the kernel has the name in its cache"
    );
    assert_eq!(
        notifier.notify(&Notification::Delete {
            parent: 1,
            child,
            name: b"g"
        }),
        Ok(true)
    );
    assert!(!mounted.path.join("g").exists());
    // A name that did not exist, and does now.
    assert!(fs::metadata(mounted.path.join("late")).is_err());
    mounted.memory.add(b"late", b"text");
    assert!(
        fs::metadata(mounted.path.join("late")).is_err(),
        "the kernel remembers that there is none"
    );
    assert_eq!(
        notifier.notify(&Notification::InvalEntry {
            parent: 1,
            name: b"late"
        }),
        Ok(true)
    );
    assert_eq!(fs::read(mounted.path.join("late")).expect("it is there"), b"text");
    assert_eq!(
        notifier.notify(&Notification::ExpireEntry {
            parent: 1,
            name: b"late"
        }),
        Ok(true)
    );
    assert_eq!(
        notifier.notify(&Notification::InvalEntry {
            parent: 1,
            name: b"never asked for"
        }),
        Ok(false)
    );
    let unknown = Notification::InvalInode {
        inode: 999,
        offset: 0,
        bytes: 0,
    };
    assert_eq!(notifier.notify(&unknown), Ok(false));
    assert_eq!(mounted.end(), End::Unmounted);
    assert_eq!(notifier.notify(&unknown), Err(Errno::NOTCONN));
}

fn a_call_that_is_dropped_fails(transport: Transport) {
    let Some(mounted) = Mounted::new(transport, CACHING) else {
        return;
    };
    let slow = mounted.path.join("slow");
    fs::write(&slow, b"x").expect("a file");
    let reader = thread::spawn(move || File::open(slow)?.read_at(&mut [0], 0));
    until("the call comes", || mounted.memory.slow() == 1);
    mounted.memory.abandon();
    let failed = reader.join().expect("no panic").expect_err("it was dropped");
    assert_eq!(failed.raw_os_error(), Some(libc::EIO));
}

fn a_panic_of_the_handler_ends_the_session(transport: Transport) {
    if !can_mount() {
        return;
    }
    // Bug: callers waited for ever. Cause: the session itself kept the connection when its threads had ended. Fix: `Notifier`
    // does not keep the connection.
    let dir = tempfile::tempdir().expect("a directory");
    let _ends = common::watch(dir.path());
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let handler = move |call: Call| {
        counted.fetch_add(1, Ordering::Relaxed);
        let number = call.header().nodeid;
        assert!(number != 1, "a defect of the server");
    };
    let Some((mount, session)) = common::start(transport, dir.path(), Wishes::default(), handler) else {
        return;
    };
    let failed = fs::metadata(dir.path().join("x")).expect_err("nobody answers");
    // The call that panicked was dropped and answered; its queue may be without a thread by then.
    let codes = [libc::EIO, libc::ENOTCONN, libc::ECONNABORTED];
    assert!(codes.contains(&failed.raw_os_error().unwrap_or(0)), "{failed}");
    assert_eq!(session.join(), End::Panicked);
    assert!(calls.load(Ordering::Relaxed) >= 1);
    drop(mount);
}

fn sessions_start_and_end_again_and_again(transport: Transport) {
    for _ in 0..20 {
        let Some(mounted) = Mounted::new(transport, CACHING) else {
            return;
        };
        fs::write(mounted.path.join("f"), b"x").expect("a file");
        assert_eq!(mounted.end(), End::Unmounted);
    }
}

#[test]
fn a_kernel_whose_ring_is_off_is_served_and_says_what_to_do() {
    if !can_mount() {
        return;
    }
    let Some(switch) = Switch::set("N") else {
        return eprintln!("skipped: this kernel has no FUSE over io_uring");
    };
    let dir = tempfile::tempdir().expect("a directory");
    let memory = Arc::new(Memory::new(CACHING.behaviour));
    let (mount, device) = mount(dir.path(), &MountOptions::default()).expect("root can mount");
    let config = Config {
        choice: Choice::Best,
        ..Config::default()
    };
    let session = Session::start(device, &config, move |call| memory.serve(call)).expect("a new mount");
    drop(switch);
    assert_eq!(session.transport(), Transport::Classic);
    let fallback = session.fallback().expect("there is a reason");
    assert!(matches!(fallback, Fallback::Off), "{fallback}");
    assert!(
        fallback
            .to_string()
            .contains("/sys/module/fuse/parameters/enable_uring")
    );
    fs::write(dir.path().join("f"), b"x").expect("it is served");
    drop(mount);
    assert_eq!(session.join(), End::Unmounted);
}

#[test]
fn a_descriptor_without_a_mount_is_no_session() {
    let Ok(device) = File::options().read(true).write(true).open("/dev/fuse") else {
        return eprintln!("skipped: /dev/fuse cannot be opened");
    };
    let error = Session::start(device.into(), &Config::default(), drop).expect_err("there is no mount");
    assert!(error.to_string().contains("new mount"), "{error}");
}
