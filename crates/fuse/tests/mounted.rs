//! System calls on a mount of a file system in memory, over both transports.
#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests on a real kernel wait and have threads"
)]

#[macro_use]
mod common;

use common::memory::Behaviour;
use common::{Mounted, Served};
use fuse::transport::{End, Transport};
use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, StatxFlags, XattrFlags};
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::thread;

const CACHING: Behaviour = Behaviour {
    no_open: false,
    valid_s: 3600,
};

fn served(behaviour: Behaviour) -> Served {
    Served {
        behaviour,
        elsewhere: false,
    }
}

on_both! {
    files_are_made_written_read_renamed_and_removed
    directories_of_ten_thousand_entries_are_listed_whole
    attributes_and_extended_attributes_are_kept
    links_are_followed_and_counted
    holes_are_found_and_made
    a_mapping_is_coherent_with_reads_and_writes
    appenders_do_not_overwrite_each_other
    locks_exclude
    without_opens_files_are_used_all_the_same
    names_that_do_not_exist_are_remembered
    closing_sends_no_flush
    large_reads_and_writes_are_whole
    replies_from_other_threads_in_any_order_reach_their_callers
    an_unnamed_file_gets_a_name
    copies_inside_the_server_are_whole
}

fn files_are_made_written_read_renamed_and_removed(transport: Transport) {
    let Some(mounted) = Mounted::new(transport, served(CACHING)) else {
        return;
    };
    let path = |name: &str| mounted.path.join(name);
    fs::create_dir(path("d")).expect("a directory");
    fs::write(path("d/a"), b"hello").expect("a file");
    assert_eq!(fs::read(path("d/a")).expect("it is there"), b"hello");
    fs::rename(path("d/a"), path("b")).expect("a rename");
    assert!(!path("d/a").exists());
    fs::write(path("c"), b"other").expect("a file");
    let cwd = rustix::fs::CWD;
    let renamed = rustix::fs::renameat_with(cwd, path("b"), cwd, path("c"), RenameFlags::NOREPLACE);
    assert_eq!(renamed, Err(Errno::EXIST));
    rustix::fs::renameat_with(cwd, path("b"), cwd, path("c"), RenameFlags::EXCHANGE).expect("an exchange");
    assert_eq!(fs::read(path("c")).expect("it is there"), b"hello");
    assert_eq!(fs::read(path("b")).expect("it is there"), b"other");
    let file = OpenOptions::new()
        .write(true)
        .open(path("c"))
        .expect("it is there");
    file.set_len(2).expect("a truncation");
    file.sync_all().expect("a sync");
    drop(file);
    assert_eq!(fs::read(path("c")).expect("it is there"), b"he");
    File::create(path("c")).expect("a truncation by opening");
    assert_eq!(fs::read(path("c")).expect("it is there"), b"");
    let removed = fs::remove_dir(path("b")).expect_err("it is a file");
    assert_eq!(removed.raw_os_error(), Some(libc::ENOTDIR));
    fs::write(path("d/x"), b"").expect("a file");
    let removed = fs::remove_dir(path("d")).expect_err("it is full");
    assert_eq!(removed.raw_os_error(), Some(libc::ENOTEMPTY));
    fs::remove_file(path("d/x")).expect("it is there");
    fs::remove_dir(path("d")).expect("it is empty");
    // A file that is open is there without a name.
    let mut open = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path("b"))
        .expect("it is there");
    fs::remove_file(path("b")).expect("it is there");
    open.write_all(b"OTHER and more").expect("it is open");
    open.rewind().expect("a position");
    let mut text = String::new();
    open.read_to_string(&mut text).expect("it is open");
    assert_eq!(text, "OTHER and more");
    assert_eq!(open.metadata().expect("it is open").nlink(), 0);
    drop(open);
    assert_eq!(mounted.end(), End::Unmounted);
}

fn directories_of_ten_thousand_entries_are_listed_whole(transport: Transport) {
    let Some(mounted) = Mounted::new(transport, served(CACHING)) else {
        return;
    };
    let mut expected: Vec<String> = (0..10_000).map(|number| format!("file-{number:05}")).collect();
    for name in &expected {
        File::create(mounted.path.join(name)).expect("a file");
    }
    let list = || {
        let entries = fs::read_dir(&mounted.path).expect("a directory");
        let names = entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("plain"));
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    };
    assert_eq!(list(), expected);
    // With attributes: this is what READDIRPLUS is for.
    let entries = fs::read_dir(&mounted.path).expect("a directory");
    let kinds = entries.map(|entry| {
        entry
            .expect("an entry")
            .metadata()
            .expect("it is there")
            .is_file()
    });
    assert_eq!(kinds.filter(|is_file| *is_file).count(), expected.len());
    for name in expected.drain(5000..) {
        fs::remove_file(mounted.path.join(name)).expect("it is there");
    }
    assert_eq!(list(), expected);
}

fn attributes_and_extended_attributes_are_kept(transport: Transport) {
    let Some(mounted) = Mounted::new(transport, served(CACHING)) else {
        return;
    };
    let path = mounted.path.join("f");
    let file = File::create(&path).expect("a file");
    file.set_permissions(PermissionsExt::from_mode(0o4711))
        .expect("own file");
    std::os::unix::fs::chown(&path, Some(12), Some(34)).expect("root may");
    let stat = fs::metadata(&path).expect("it is there");
    assert_eq!((stat.uid(), stat.gid(), stat.mode() & 0o777), (12, 34, 0o711));
    let time = std::time::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    file.set_modified(time).expect("own file");
    assert_eq!(
        fs::metadata(&path)
            .expect("it is there")
            .modified()
            .expect("Linux has it"),
        time
    );
    let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let statx = rustix::fs::statx(rustix::fs::CWD, &path, AtFlags::empty(), flags).expect("it is there");
    assert_eq!(statx.stx_size, 0);
    if statx.stx_mask & StatxFlags::BTIME.bits() != 0 {
        assert_eq!((statx.stx_btime.tv_sec, statx.stx_btime.tv_nsec), (12345, 678));
    }

    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&path, name, value, flags);
    set("user.a", b"one", XattrFlags::CREATE).expect("it is new");
    assert_eq!(set("user.a", b"two", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(set("user.b", b"two", XattrFlags::REPLACE), Err(Errno::NODATA));
    set("user.b", &[7; 5000], XattrFlags::empty()).expect("there is room");
    let mut value = vec![0; 65536];
    assert_eq!(rustix::fs::getxattr(&path, "user.b", &mut value[..]), Ok(5000));
    assert_eq!(value[..5000], [7; 5000]);
    assert_eq!(xattr_size(&path, "user.b"), 5000);
    assert_eq!(
        rustix::fs::getxattr(&path, "user.b", &mut value[..10]),
        Err(Errno::RANGE)
    );
    assert_eq!(
        rustix::fs::getxattr(&path, "user.c", &mut value[..]),
        Err(Errno::NODATA)
    );
    let count = rustix::fs::listxattr(&path, &mut value[..]).expect("it has some");
    assert_eq!(value[..count], *b"user.a\0user.b\0");
    rustix::fs::removexattr(&path, "user.a").expect("it is there");
    assert_eq!(rustix::fs::listxattr(&path, &mut value[..]), Ok(7));

    let room = rustix::fs::statvfs(&mounted.path).expect("a file system");
    assert_eq!(
        (room.f_blocks, room.f_bavail, room.f_namemax),
        (1 << 20, 1 << 19, 255)
    );
}

fn xattr_size(path: &Path, name: &str) -> isize {
    let path = std::ffi::CString::new(path.to_str().expect("plain")).expect("plain");
    let name = std::ffi::CString::new(name).expect("plain");
    // SAFETY: two strings with a NUL, and no place for a value.
    unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) }
}

fn links_are_followed_and_counted(transport: Transport) {
    let Some(mounted) = Mounted::new(transport, served(CACHING)) else {
        return;
    };
    let path = |name: &str| mounted.path.join(name);
    fs::write(path("a"), b"text").expect("a file");
    symlink("a", path("soft")).expect("a link");
    assert_eq!(fs::read_link(path("soft")).expect("a link"), Path::new("a"));
    assert_eq!(fs::read(path("soft")).expect("it leads to a"), b"text");
    let long = "x/".repeat(1000);
    symlink(&long, path("long")).expect("a link");
    assert_eq!(fs::read_link(path("long")).expect("a link"), Path::new(&long));
    fs::hard_link(path("a"), path("hard")).expect("a link");
    assert_eq!(fs::metadata(path("a")).expect("it is there").nlink(), 2);
    fs::remove_file(path("a")).expect("it is there");
    assert_eq!(fs::metadata(path("hard")).expect("it is there").nlink(), 1);
    assert_eq!(fs::read(path("hard")).expect("it is there"), b"text");
    let broken = fs::read(path("soft")).expect_err("it leads nowhere");
    assert_eq!(broken.raw_os_error(), Some(libc::ENOENT));
    let mode = Mode::from_raw_mode(0o644);
    rustix::fs::mknodat(rustix::fs::CWD, path("fifo"), rustix::fs::FileType::Fifo, mode, 0).expect("a FIFO");
    assert_eq!(
        fs::metadata(path("fifo")).expect("it is there").mode() & libc::S_IFMT,
        libc::S_IFIFO
    );
}

fn holes_are_found_and_made(transport: Transport) {
    let Some(mounted) = Mounted::new(transport, served(CACHING)) else {
        return;
    };
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mounted.path.join("f"));
    let file = file.expect("a file");
    file.write_all_at(&[1; 4096], 40960).expect("a write");
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(SeekFrom::Data(0)), Ok(40960));
    assert_eq!(seek(SeekFrom::Hole(0)), Ok(0));
    assert_eq!(seek(SeekFrom::Hole(40960)), Ok(45056));
    assert_eq!(seek(SeekFrom::Data(45056)), Err(Errno::NXIO));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&file, punch, 40960, 4096).expect("a hole");
    assert_eq!(seek(SeekFrom::Data(0)), Err(Errno::NXIO));
    let mut bytes = [9; 4096];
    file.read_exact_at(&mut bytes, 40960).expect("the size stays");
    assert_eq!(bytes, [0; 4096]);
    rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 100_000).expect("room");
    assert_eq!(file.metadata().expect("it is open").len(), 100_000);
    let refused = rustix::fs::fallocate(&file, FallocateFlags::COLLAPSE_RANGE, 0, 4096);
    assert_eq!(refused, Err(Errno::OPNOTSUPP));
}

fn a_mapping_is_coherent_with_reads_and_writes(transport: Transport) {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    let Some(mounted) = Mounted::new(transport, served(CACHING)) else {
        return;
    };
    let path = mounted.path.join("f");
    fs::write(&path, vec![b'a'; 8192]).expect("a file");
    let file = File::options()
        .read(true)
        .write(true)
        .open(&path)
        .expect("it is there");
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping of a file that only this test uses.
    let base = unsafe { mmap(std::ptr::null_mut(), 8192, protection, MapFlags::SHARED, &file, 0) };
    let base = base.expect("a mapping").cast::<u8>();
    // SAFETY: the mapping has 8192 bytes and lives until below.
    unsafe {
        assert_eq!(base.add(5000).read_volatile(), b'a');
        base.add(5000).write_volatile(b'b');
        msync(base.cast(), 8192, MsyncFlags::SYNC).expect("a sync");
    }
    assert_eq!(fs::read(&path).expect("it is there")[5000], b'b');
    file.write_all_at(b"c", 6000).expect("a write");
    // SAFETY: as above; nothing uses it afterwards.
    unsafe {
        assert_eq!(base.add(6000).read_volatile(), b'c');
        munmap(base.cast(), 8192).expect("it was mapped");
    }
}

fn appenders_do_not_overwrite_each_other(transport: Transport) {
    const LINES: usize = 200;
    let Some(mounted) = Mounted::new(transport, served(CACHING)) else {
        return;
    };
    let path = mounted.path.join("log");
    thread::scope(|scope| {
        for name in ["a", "b", "c", "d"] {
            let path = &path;
            scope.spawn(move || {
                let mut file = OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(path)
                    .expect("a file");
                for line in 0..LINES {
                    file.write_all(format!("{name}{line:03}\n").as_bytes())
                        .expect("a line");
                }
            });
        }
    });
    let text = fs::read_to_string(&path).expect("it is there");
    assert_eq!(text.lines().count(), 4 * LINES);
    for name in ["a", "b", "c", "d"] {
        let lines = text.lines().filter(|line| line.starts_with(name));
        assert!(lines.eq((0..LINES).map(|line| format!("{name}{line:03}"))));
    }
}

fn locks_exclude(transport: Transport) {
    let Some(mounted) = Mounted::new(transport, served(CACHING)) else {
        return;
    };
    let path = mounted.path.join("f");
    let one = File::create(&path).expect("a file");
    let other = File::open(&path).expect("it is there");
    one.lock().expect("it is free");
    assert!(matches!(other.try_lock(), Err(fs::TryLockError::WouldBlock)));
    one.unlock().expect("it is ours");
    other.try_lock().expect("it is free");
}

fn without_opens_files_are_used_all_the_same(transport: Transport) {
    let behaviour = Behaviour {
        no_open: true,
        ..CACHING
    };
    let Some(mounted) = Mounted::new(transport, served(behaviour)) else {
        return;
    };
    let path = |number: u32| mounted.path.join(format!("f{number}"));
    for number in 0..100 {
        fs::write(path(number), b"text").expect("a file");
        assert_eq!(fs::read(path(number)).expect("it is there"), b"text");
    }
    assert_eq!(fs::read_dir(&mounted.path).expect("a directory").count(), 100);
    // One OPEN was refused, and perhaps one OPENDIR.
    assert!(
        mounted.memory.counts().opens <= 2,
        "{:?}",
        mounted.memory.counts()
    );
    // Bug: a truncation by opening was lost. Cause: with ATOMIC_O_TRUNC the kernel leaves it to OPEN, which it does not send here.
    // Fix: `Wishes::without_opens`.
    File::create(path(0)).expect("a truncation");
    assert_eq!(fs::read(path(0)).expect("it is there"), b"");
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(path(0));
    assert_eq!(
        file.expect("it is there").metadata().expect("it is open").len(),
        0
    );
}

fn names_that_do_not_exist_are_remembered(transport: Transport) {
    let Some(mounted) = Mounted::new(transport, served(CACHING)) else {
        return;
    };
    let path = mounted.path.join("missing");
    let lookups = || mounted.memory.counts().lookups_of_missing;
    let before = lookups();
    for _ in 0..10 {
        let error = fs::metadata(&path).expect_err("there is none");
        assert_eq!(error.raw_os_error(), Some(libc::ENOENT));
    }
    assert_eq!(lookups(), before + 1);
    // A negative entry does not hide what is made later.
    fs::write(&path, b"x").expect("a file");
    assert!(path.exists());
}

fn closing_sends_no_flush(transport: Transport) {
    let Some(mounted) = Mounted::new(transport, served(CACHING)) else {
        return;
    };
    for number in 0..10 {
        fs::write(mounted.path.join(format!("f{number}")), b"x").expect("a file");
    }
    assert_eq!(mounted.memory.counts().flushes, 0);
}

fn large_reads_and_writes_are_whole(transport: Transport) {
    let Some(mounted) = Mounted::new(transport, served(CACHING)) else {
        return;
    };
    let bytes: Vec<u8> = (0..(5 << 20) + 123u32).map(|at| (at % 251) as u8).collect();
    let path = mounted.path.join("large");
    fs::write(&path, &bytes).expect("a file");
    assert!(fs::read(&path).expect("it is there") == bytes);
    // Past the cache, so that each read is a request.
    let direct = OpenOptions::new()
        .read(true)
        .custom_flags(OFlags::DIRECT.bits() as i32)
        .open(&path);
    let mut read = vec![0; bytes.len()];
    direct
        .expect("it is there")
        .read_exact_at(&mut read, 0)
        .expect("it is there");
    assert!(read == bytes);
}

fn replies_from_other_threads_in_any_order_reach_their_callers(transport: Transport) {
    // The kernel keeps nothing, so that there are many requests.
    let elsewhere = Served {
        behaviour: Behaviour::default(),
        elsewhere: true,
    };
    let Some(mounted) = Mounted::new(transport, elsewhere) else {
        return;
    };
    thread::scope(|scope| {
        for thread in 0..8u8 {
            let dir = mounted.path.join(format!("d{thread}"));
            scope.spawn(move || {
                fs::create_dir(&dir).expect("a directory");
                for number in 0..100u8 {
                    let (path, to) = (dir.join(format!("f{number}")), dir.join(format!("g{number}")));
                    let text = vec![thread ^ number; 100 + 50 * usize::from(number)];
                    fs::write(&path, &text).expect("a file");
                    assert_eq!(fs::metadata(&path).expect("it is there").len(), text.len() as u64);
                    fs::rename(&path, &to).expect("a rename");
                    assert_eq!(fs::read(&to).expect("it is there"), text);
                    if number % 3 == 0 {
                        fs::remove_file(&to).expect("it is there");
                    }
                }
                assert_eq!(fs::read_dir(&dir).expect("a directory").count(), 66);
            });
        }
    });
    assert_eq!(mounted.end(), End::Unmounted);
}

fn an_unnamed_file_gets_a_name(transport: Transport) {
    let Some(mounted) = Mounted::new(transport, served(CACHING)) else {
        return;
    };
    let flags = OFlags::TMPFILE | OFlags::RDWR;
    let file =
        rustix::fs::open(&mounted.path, flags, Mode::from_raw_mode(0o600)).expect("a file without a name");
    let mut file = File::from(file);
    file.write_all(b"text").expect("it is open");
    let from = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let (cwd, to) = (rustix::fs::CWD, mounted.path.join("named"));
    rustix::fs::linkat(cwd, from, cwd, &to, AtFlags::SYMLINK_FOLLOW).expect("a name");
    assert_eq!(fs::read(&to).expect("it is there"), b"text");
}

fn copies_inside_the_server_are_whole(transport: Transport) {
    let Some(mounted) = Mounted::new(transport, served(CACHING)) else {
        return;
    };
    let bytes: Vec<u8> = (0..300_000u32).map(|at| (at % 253) as u8).collect();
    fs::write(mounted.path.join("from"), &bytes).expect("a file");
    let from = File::open(mounted.path.join("from")).expect("it is there");
    let to = File::create(mounted.path.join("to")).expect("a file");
    let (mut at, mut into) = (1, 0);
    let copied = rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut into), 250_000);
    assert_eq!(copied, Ok(250_000));
    assert!(fs::read(mounted.path.join("to")).expect("it is there") == bytes[1..250_001]);
}
