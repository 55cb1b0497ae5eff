//! Real processes that share files: they are killed, stopped, and lie. Each is this test program in another role.
#![allow(
    clippy::disallowed_types,
    clippy::disallowed_methods,
    reason = "tests of a driver have threads and a clock"
)]

mod both;
mod yard;

use fs::format::ROOT_INODE;
use fs::inode::Time;
use fs::lease::{Given, Mode};
use fs::log::{Options as LogOptions, Writer};
use fs::op::{Action, Changes, Entry, Op};
use fs::protocol::{Answer, DURABLE_AT, MESSAGE_BYTES_MAX, Request, WINDOW_HEAD_BYTES, Welcome};
use libfs::{Errno, FileSystem, Open, Place};
use mount::engine::{Engine, Options};
use mount::serve::Server;
use mount::window::ring_in_window;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType,
};
use std::fs::File;
use std::io::{IoSliceMut, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use yard::{NOBODY, Process, ROLE, Yard, disks, say};

const APPEND: Open = Open {
    writes: true,
    appends: true,
    creates: Some(0o644),
    ..Open::READ
};

/// Not a test: what a process of the other tests does.
#[test]
#[ignore = "the other tests run it"]
fn role_of_a_process() {
    let Ok(role) = std::env::var(ROLE) else {
        return;
    };
    let words: Vec<&str> = role.split(' ').collect();
    let directory = Path::new(words[1]);
    let socket = directory.join("control");
    match words[0] {
        "daemon" => daemon(directory),
        "member" => both::crowd::member(directory, words[2], (words[3], words[4])),
        "mount" => both::mount(directory, words[2] == "classic"),
        "writer" => writer(
            &FileSystem::connect(&socket).expect("it is served"),
            (words[2], words[3]),
        ),
        "holder" => holder(&FileSystem::connect(&socket).expect("it is served")),
        "nobody" => nobody(&FileSystem::connect(&socket).expect("everybody may")),
        "liar" => liar(&socket, words[2].parse().expect("a number")),
        other => panic!("no role: {other}"),
    }
}

/// Serves until its input ends.
fn daemon(directory: &Path) {
    let disks = disks(&directory.join("nvm"));
    let (engine, recovery) = Engine::open(disks, &Options::default()).expect("it is a file system");
    assert_eq!(recovery.refused, 0, "{recovery:?}");
    engine.share(8, Some(1 << 20)).expect("it is memory");
    let engine = Arc::new(engine);
    let socket = directory.join("control");
    let mut server = Server::start(Arc::clone(&engine), &socket, 0o666, 8).expect("nobody listens there");
    say("serving");
    let mut end = Vec::new();
    std::io::stdin().read_to_end(&mut end).expect("it is a pipe");
    server.stop();
    engine.close().expect("nothing has failed");
}

/// Makes calls, and says which have returned, until it is killed or a call fails.
fn writer(files: &FileSystem, (at, name): (&str, &str)) {
    let shared = files
        .open(Place::new(&format!("{at}/all")), APPEND)
        .expect("it can be made");
    let own = files
        .open(Place::new(&format!("{at}/own-{name}")), APPEND)
        .expect("it can be made");
    for round in 0.. {
        let line = format!("{name} {round:08}\n");
        let made = format!("{at}/made-{name}-{round}");
        let done = own
            .append(line.as_bytes())
            .and_then(|_| shared.append(line.as_bytes()))
            .and_then(|_| files.open(Place::new(&made), APPEND).map(drop))
            .and_then(|()| match round {
                0 => Ok(()),
                _ => files.unlink(Place::new(&format!("{at}/made-{name}-{}", round - 1))),
            });
        if let Err(errno) = done {
            // The daemon may be killed.
            assert_eq!(errno, Errno::Io, "in round {round}");
            return;
        }
        say(&line);
    }
}

fn content(files: &FileSystem, path: &str) -> String {
    let file = files.open(Place::new(path), Open::READ).expect("it is there");
    let size = file.stat().expect("it is open").inode.size as usize;
    let mut bytes = vec![0; size];
    let mut done = 0;
    while done < size {
        done += file
            .read_at(done as u64, &mut bytes[done..])
            .expect("it is whole");
    }
    String::from_utf8(bytes).expect("it is text")
}

/// All that a writer has said is there.
fn assert_there(files: &FileSystem, name: &str, lines: &[String]) {
    let prefix = format!("{name} ");
    let all = content(files, "/d/all");
    let shared: Vec<&str> = all.lines().filter(|line| line.starts_with(&prefix)).collect();
    let own = content(files, &format!("/d/own-{name}"));
    for (at, line) in lines.iter().enumerate() {
        assert_eq!(shared.get(at), Some(&line.as_str()), "of {name}");
        assert_eq!(own.lines().nth(at), Some(line.as_str()), "of {name}");
    }
    if let Some(last) = lines.len().checked_sub(1) {
        let made = |at: usize| files.stat(Place::new(&format!("/d/made-{name}-{at}")), true);
        assert!(made(last).is_ok() || made(last + 1).is_ok(), "of {name}");
        assert!(last == 0 || made(last - 1) == Err(Errno::NoEntry), "of {name}");
    }
}

#[test]
fn what_was_acknowledged_is_there_after_kills_of_processes_and_of_the_daemon() {
    let place = Yard::new();
    let mut rng = base::Rng::new(os::seed());
    let mut expected: Vec<(String, Vec<String>)> = Vec::new();
    let daemon = place.serve();
    let files = FileSystem::connect(&place.socket()).expect("it is served");
    files.mkdir(Place::new("/d"), 0o755).expect("it is new");
    // The writers are no owners of the devices, if they can be: recovery then asks for permissions.
    let user = rustix::process::geteuid().is_root().then_some(NOBODY);
    let owner = fs::client::Wanted {
        uid: user,
        gid: user,
        ..Default::default()
    };
    files.set(Place::new("/d"), &owner, true).expect("it is ours");
    drop(files);
    daemon.end();
    for round in 0..6 {
        let mut daemon = place.serve();
        let names: Vec<String> = (0..3).map(|writer| format!("{round}-{writer}")).collect();
        let start = |name: &String| Process::start("writer", place.directory.path(), &["/d", name], user);
        let mut writers: Vec<Process> = names.iter().map(start).collect();
        let mut said: Vec<Vec<String>> = Vec::new();
        for writer in &mut writers {
            said.push((0..20 + rng.below(200)).map_while(|_| writer.line()).collect());
        }
        match rng.chance(0.5) {
            true => daemon.kill(),
            false => writers.iter_mut().for_each(Process::kill),
        }
        if round % 2 == 1 {
            daemon.kill();
        }
        for ((name, mut lines), writer) in names.into_iter().zip(said).zip(&mut writers) {
            lines.extend(writer.rest());
            expected.push((name, lines));
        }
        // Another daemon, or the same one.
        let again = daemon.child.try_wait().expect("it is ours").is_some();
        let daemon = if again { place.serve() } else { daemon };
        let files = FileSystem::connect(&place.socket()).expect("it is served");
        expected
            .iter()
            .for_each(|(name, lines)| assert_there(&files, name, lines));
        drop(files);
        daemon.end();
        place.check();
        assert_eq!(place.windows(), 0, "in round {round}");
    }
    assert!(expected.iter().map(|(_, lines)| lines.len()).sum::<usize>() > 100);
}

/// Holds a lease, and says how a call ends that comes late.
fn holder(files: &FileSystem) {
    let file = files.open(Place::new("/held"), APPEND).expect("it can be made");
    file.append(b"before\n").expect("there is room");
    say("holding");
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("it is a pipe");
    say(&format!("{:?}", file.append(b"after\n").map(|(_, count)| count)));
}

#[test]
fn a_stopped_process_loses_its_leases_and_its_calls_fail() {
    let place = Yard::new();
    let daemon = place.serve();
    let mut holder = Process::start("holder", place.directory.path(), &[], None);
    assert_eq!(holder.line().as_deref(), Some("holding"));
    holder.signal(rustix::process::Signal::STOP);
    let files = FileSystem::connect(&place.socket()).expect("it is served");
    let file = files.open(Place::new("/held"), APPEND).expect("it is there");
    file.append(b"meanwhile\n").expect("there is room");
    holder.signal(rustix::process::Signal::CONT);
    let input = holder.child.stdin.as_mut().expect("it is piped");
    input.write_all(b"\n").expect("it hears");
    assert_eq!(holder.line().as_deref(), Some("Err(Io)"));
    assert_eq!(content(&files, "/held"), "before\nmeanwhile\n");
    drop((file, files));
    daemon.end();
    place.check();
}

/// What a user may not do by calls.
fn nobody(files: &FileSystem) {
    let open = |path: &str, how: Open| files.open(Place::new(path), how).map(drop);
    say(&format!("{:?}", open("/secret", Open::READ)));
    say(&format!("{:?}", open("/closed/in", Open::READ)));
    say(&format!("{:?}", open("/new", APPEND)));
    say(&format!("{:?}", open("/open/new", APPEND)));
    say(&format!("{:?}", files.unlink(Place::new("/secret"))));
}

/// A connection that keeps to no rule.
struct Raw {
    socket: OwnedFd,
    welcome: Welcome,
    window: File,
}

impl Raw {
    /// Connects. Logs of its user that are being closed have their places yet.
    fn connect(path: &Path) -> Self {
        loop {
            if let Some(raw) = Self::try_connect(path) {
                return raw;
            }
            std::thread::yield_now();
        }
    }

    fn try_connect(path: &Path) -> Option<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let socket = socket.expect("there are sockets");
        rustix::net::connect(&socket, &SocketAddrUnix::new(path).expect("it is short"))
            .expect("it is served");
        rustix::net::send(&socket, &Request::Hello.emit(), SendFlags::NOSIGNAL).ok()?;
        let mut packet = vec![0; MESSAGE_BYTES_MAX];
        let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut packet)];
        let received = rustix::net::recvmsg(&socket, &mut slices, &mut control, RecvFlags::empty());
        let count = received.ok()?.bytes;
        let mut window = None;
        for message in control.drain() {
            if let RecvAncillaryMessage::ScmRights(mut all) = message {
                window = all.next().map(File::from);
            }
        }
        match (Answer::parse(&packet[..count]), window) {
            (Ok(Answer::Welcome(welcome)), Some(window)) => Some(Self {
                socket,
                welcome,
                window,
            }),
            _ => None,
        }
    }

    fn say(&self, packet: &[u8]) {
        let _ = rustix::net::send(&self.socket, packet, SendFlags::NOSIGNAL);
    }

    /// The next answer that is not about a digest. None when the connection has ended.
    fn answer(&self) -> Option<Answer> {
        let mut packet = vec![0; MESSAGE_BYTES_MAX];
        loop {
            let (_, count) = rustix::net::recv(&self.socket, &mut packet[..], RecvFlags::empty()).ok()?;
            match Answer::parse(packet.get(..count).filter(|packet| !packet.is_empty())?) {
                Ok(Answer::Digested(_)) => {}
                Ok(answer) => return Some(answer),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Writes a frame with whatever operations, and says that it is durable.
    fn log(&self, ops: &[Op<'_>]) -> u64 {
        let welcome = &self.welcome;
        let ring = ring_in_window(welcome.nonce, welcome.sector, welcome.ring_bytes).expect("it is a ring");
        let options = LogOptions {
            frame_bytes_max: 1 << 16,
            writes_in_flight_max: 1,
        };
        let mut writer = Writer::new(ring, 0, options);
        writer.add(ops).expect("there is room");
        let write = writer.next_write().expect("there are records");
        for (offset, bytes) in write.pieces() {
            self.window.write_all_at(bytes, offset).expect("it is ours");
        }
        writer.written(write, Ok(()));
        let end = writer.durable_position();
        let bytes = end.to_le_bytes();
        self.window.write_all_at(&bytes, DURABLE_AT).expect("it is ours");
        end
    }
}

fn op(inode: u64, action: Action<'_>) -> Op<'_> {
    let time = Time::default();
    Op { inode, time, action }
}

/// Asks for leases, as a process that has no mount.
fn ask(request: u64, wants: Vec<(u64, Mode)>) -> Vec<u8> {
    let has_mount = false;
    let ask = Request::Ask {
        request,
        wants,
        has_mount,
    };
    ask.emit()
}

/// Tries what the protocol has no place for. Says what it was told.
fn liar(socket: &Path, secret: u64) {
    // What it has not come to it gets no lease of.
    let raw = Raw::connect(socket);
    let wants = vec![(secret, Mode::Shared)];
    raw.say(&ask(1, wants));
    say(&format!("{:?}", raw.answer()));
    // Without a lease it reads nothing, and with one only what its user may.
    let records = |request, inode, kind, numbers| Request::Records {
        request,
        inode,
        kind,
        numbers,
    };
    raw.say(&records(2, secret, fs::format::Kind::Inode, 0..1).emit());
    say(&format!("{:?}", raw.answer()));
    let wants = vec![(ROOT_INODE, Mode::Exclusive)];
    raw.say(&ask(3, wants));
    assert!(matches!(raw.answer(), Some(Answer::Granted { .. })));
    raw.say(&records(4, ROOT_INODE, fs::format::Kind::Entry, 0..u64::MAX).emit());
    assert!(matches!(raw.answer(), Some(Answer::Records { .. })));
    let wants = vec![(secret, Mode::Exclusive)];
    raw.say(&ask(5, wants));
    assert!(matches!(raw.answer(), Some(Answer::Granted { .. })));
    let blocks = Request::Blocks {
        request: 6,
        inode: secret,
        first: 0,
        count: 1,
    };
    raw.say(&blocks.emit());
    say(&format!("{:?}", raw.answer()));
    forge(&raw, secret);
    raw.say(&Request::Digest.emit());
    // A position that the log does not reach ends it, and so does what is no message.
    raw.say(
        &Request::Give(Given {
            inode: secret,
            keeps_shared: false,
            position: 1 << 40,
            is_open: false,
            grant: u64::MAX,
        })
        .emit(),
    );
    say(&format!("{:?}", raw.answer()));
    assert_eq!(raw.answer(), None);
    spoil(socket);
    say("done");
}

/// Forged records, with leases of all that they name.
fn forge(raw: &Raw, secret: u64) {
    let all = Changes {
        mode: Some(0o777),
        uid: Some(NOBODY),
        ..Changes::default()
    };
    let data = (&b"forged"[..]).into();
    let entry = |name: &'static [u8]| Entry::new(ROOT_INODE, name);
    let create = |mode| Action::Create {
        entry: entry(b"forged"),
        mode,
        uid: 0,
        gid: 0,
        device: 0,
        target: (&b""[..]).into(),
    };
    let file = fs::inode::TYPE_FILE;
    raw.log(&[
        op(secret, Action::Set(all)),
        op(secret, Action::Write { offset: 0, data }),
        op(secret, Action::Truncate { size: 0 }),
        op(raw.welcome.numbers.start, create(file | 0o4755)),
        op(77_777, create(file | 0o644)),
        op(
            secret,
            Action::Unlink {
                entry: entry(b"secret"),
                is_directory: false,
                fate: fs::op::Fate::Deleted,
            },
        ),
    ]);
}

/// Garbage in the ring, a window that is cut short, a durable position that is none, and what is no message.
fn spoil(socket: &Path) {
    let mut rng = base::Rng::new(os::seed());
    for round in 0..6 {
        let raw = Raw::connect(socket);
        let garbage: Vec<u8> = (0..64 << 10).map(|_| rng.below(256) as u8).collect();
        raw.window
            .write_all_at(&garbage, WINDOW_HEAD_BYTES)
            .expect("it is ours");
        let end = if round % 2 == 0 { u64::MAX } else { 1 << 12 };
        raw.window
            .write_all_at(&end.to_le_bytes(), DURABLE_AT)
            .expect("it is ours");
        if round > 3 {
            let _ = raw.window.set_len(5000);
        }
        raw.say(&Request::Digest.emit());
        while raw.answer().is_some() {}
    }
    for _ in 0..30 {
        let raw = Raw::connect(socket);
        let bytes: Vec<u8> = (0..1 + rng.below(100)).map(|_| rng.below(8) as u8).collect();
        raw.say(&bytes);
        drop(raw);
    }
}

#[test]
fn a_process_that_lies_harms_nobody_else_and_reads_nothing_that_it_may_not() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("left out: only root runs processes of other users");
        return;
    }
    let place = Yard::new();
    let daemon = place.serve();
    let files = FileSystem::connect(&place.socket()).expect("it is served");
    let secret = Open {
        creates: Some(0o600),
        ..APPEND
    };
    let file = files.open(Place::new("/secret"), secret).expect("it is new");
    file.append(b"secret\n").expect("there is room");
    files.mkdir(Place::new("/closed"), 0o700).expect("it is new");
    files.mkdir(Place::new("/open"), 0o777).expect("it is new");
    let open = fs::client::Wanted {
        mode: Some(0o777),
        ..Default::default()
    };
    files.set(Place::new("/open"), &open, true).expect("it is ours");
    drop(files.open(Place::new("/closed/in"), APPEND).expect("it is new"));
    let before = files.stat(Place::new("/secret"), true).expect("it is there");
    let directory = place.directory.path();
    let mut nobody = Process::start("nobody", directory, &[], Some(NOBODY));
    let said = nobody.rest();
    let expected = [
        "Err(Access)",
        "Err(Access)",
        "Err(Access)",
        "Ok(())",
        "Err(Access)",
    ];
    assert_eq!(said, expected);
    let number = before.number.to_string();
    let mut liar = Process::start("liar", directory, &[&number], Some(NOBODY));
    let said = liar.rest();
    let refused = |request: u64, errno: Errno| format!("{:?}", Some(Answer::refused(request, errno)));
    let lied = format!("{:?}", Some(Answer::Closed(fs::protocol::Closed::Lied)));
    let expected = [
        refused(1, Errno::Stale),
        refused(2, Errno::Stale),
        refused(6, Errno::Access),
        lied,
        "done".to_owned(),
    ];
    assert_eq!(said, expected);
    // A process that holds to the rules noticed nothing.
    let after = files.stat(Place::new("/secret"), true).expect("it is there");
    let counts = |stat: libfs::Stat| libfs::Inode {
        changes: 0,
        log: 0,
        ..stat.inode
    };
    assert_eq!((after.number, counts(after)), (before.number, counts(before)));
    assert_eq!(content(&files, "/secret"), "secret\n");
    assert_eq!(files.stat(Place::new("/forged"), true), Err(Errno::NoEntry));
    file.append(b"more\n").expect("there is room");
    drop((file, files));
    daemon.end();
    place.check();
    assert_eq!(place.windows(), 0);
}

#[test]
fn a_window_that_is_missing_is_told_and_strays_are_swept() {
    let place = Yard::new();
    let mut daemon = place.serve();
    let mut writer = Process::start("writer", place.directory.path(), &["", "w"], None);
    assert!(writer.line().is_some());
    daemon.kill();
    writer.rest();
    assert_eq!(place.windows(), 1);
    // What a window of log 999 says of itself, and what a rotated log of somebody else has.
    let (stray, foreign) = (
        place.directory.path().join("nvm.log-999"),
        place.directory.path().join("nvm.log-20261127"),
    );
    let mut head = vec![0; 4096];
    head[64..72].copy_from_slice(b"FSWINDOW");
    head[72..80].copy_from_slice(&999u64.to_le_bytes());
    std::fs::write(&stray, head).expect("a new file");
    std::fs::write(&foreign, vec![b'x'; 5000]).expect("a new file");
    let entries = std::fs::read_dir(place.directory.path()).expect("it is there");
    let paths = entries.flatten().map(|entry| entry.path());
    let is_window =
        |path: &PathBuf| path.to_string_lossy().contains(".log-") && *path != stray && *path != foreign;
    let mut windows = paths.filter(is_window);
    let window = windows.next().expect("there is one");
    let aside = place.directory.path().join("aside");
    std::fs::rename(&window, &aside).expect("it is ours");
    let open = |despite_damage| {
        let options = Options {
            despite_damage,
            ..Options::default()
        };
        Engine::open(disks(&place.device()), &options)
    };
    let error = open(false).map(drop).expect_err("acknowledged calls are missing");
    assert!(error.to_string().contains("window"), "{error}");
    std::fs::rename(&aside, &window).expect("it is ours");
    let (engine, recovery) = open(false).expect("it is whole again");
    assert!(recovery.operations > 0 && recovery.refused == 0, "{recovery:?}");
    engine.close().expect("nothing has failed");
    drop(engine);
    assert!(!stray.exists() && foreign.exists());
    assert_eq!(place.windows(), 1, "the one that is none");
    place.check();
}

#[test]
fn a_process_takes_no_more_room_than_it_was_told() {
    let place = Yard::new();
    let daemon = place.serve();
    let raw = Raw::connect(&place.socket());
    let wants = vec![(ROOT_INODE, Mode::Exclusive)];
    raw.say(&ask(1, wants));
    assert!(matches!(raw.answer(), Some(Answer::Granted { .. })));
    let own = raw.welcome.numbers.start;
    let create = Action::Create {
        entry: Entry::new(ROOT_INODE, b"hog"),
        mode: fs::inode::TYPE_FILE | 0o644,
        uid: 0,
        gid: 0,
        device: 0,
        target: (&b""[..]).into(),
    };
    // Four fifths of the device, where each of eight processes has a ninth.
    let all = Action::Allocate {
        offset: 0,
        bytes: 100 << 20,
        what: fs::op::Allocation::Reserve,
        keeps_size: false,
    };
    raw.log(&[op(own, create), op(own, all)]);
    raw.say(&Request::Digest.emit());
    let mut packet = vec![0; MESSAGE_BYTES_MAX];
    let refused = loop {
        let (_, count) =
            rustix::net::recv(&raw.socket, &mut packet[..], RecvFlags::empty()).expect("it says");
        match Answer::parse(&packet[..count]) {
            Ok(Answer::Digested(digested)) if digested.tree > 0 => break digested.refused,
            _ => {}
        }
    };
    assert_eq!(refused, 1);
    drop(raw);
    let files = FileSystem::connect(&place.socket()).expect("it is served");
    let hog = files.stat(Place::new("/hog"), true).expect("that was its right");
    assert_eq!((hog.inode.size, hog.inode.blocks), (0, 0));
    drop(files);
    daemon.end();
    place.check();
}
