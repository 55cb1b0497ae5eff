//! Processes at a hub, played by threads: streams between ports and with the kernel behind an uplink, and ports that do harm.

#[path = "../../nic/tests/common/mod.rs"]
mod common;
mod echo;

use base::{Duration, Rng};
use common::{enter, ip as ip_command};
use echo::echo;
use nic::hub::{Hub, HubOptions, HubStatus};
use nic::shared::{AttachError, LINKS_MAX, Port, Vnic, attach, join, status};
use nic::{Frames, Written, tap};
use sockets::{Handle, Options, SocketError, Sockets};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use tcp::addr::{Endpoint, Ip};
use tcp::config::Config;

const PORT: u16 = 700;
/// Longer than anything takes.
const LIMIT: Option<Duration> = Some(Duration::from_secs(60));
const OPTIONS: HubOptions = HubOptions {
    ports_max: 4,
    mtu: 1500,
    seed: 0x77_8899,
    introduces: true,
};

fn told(status: &HubStatus) -> String {
    let forged: u64 = status.ports.iter().map(|port| port.counters.forged).sum();
    format!("{} ports, {forged} forged", status.ports.len())
}

/// A hub in a thread, until it is dropped.
struct Running {
    _dir: tempfile::TempDir,
    path: PathBuf,
    stops: Arc<AtomicBool>,
    pauses: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Running {
    fn start(uplink: Option<Box<dyn Frames>>) -> Self {
        Self::start_with(uplink, OPTIONS)
    }

    fn start_with(uplink: Option<Box<dyn Frames>>, options: HubOptions) -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("hub");
        let mut hub = Hub::open(&path, uplink, options).expect("the socket is free");
        let stops = Arc::new(AtomicBool::new(false));
        let pauses = Arc::new(AtomicBool::new(false));
        let (shared, paused) = (Arc::clone(&stops), Arc::clone(&pauses));
        let run = move || {
            while !shared.load(Ordering::Relaxed) {
                if paused.load(Ordering::Relaxed) {
                    thread::yield_now();
                } else if hub.turn(&told).expect("the uplink is up") == 0 {
                    hub.rest(Duration::from_millis(50));
                }
            }
        };
        Self {
            _dir: dir,
            path,
            stops,
            pauses,
            thread: Some(thread::Builder::new().spawn(run).expect("a thread")),
        }
    }

    fn join(&self, name: &str) -> Port {
        join(&self.path, name).expect("a port is free")
    }

    fn attach(&self, name: &str) -> Vnic {
        attach(&self.path, name, 1).expect("a port is free").remove(0)
    }

    /// Waits until the hub's status is this.
    fn await_status(&self, wanted: &str) {
        let until = os::now() + Duration::from_secs(20);
        loop {
            let now = status(&self.path).expect("the hub answers");
            if now == wanted {
                return;
            }
            assert!(os::now() < until, "{now}, and not {wanted}");
            thread::yield_now();
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stops.store(true, Ordering::Relaxed);
        let thread = self.thread.take().expect("it was started");
        assert!(thread.join().is_ok() || thread::panicking());
    }
}

fn sockets(vnic: impl Frames + 'static, host: u8) -> Sockets {
    let mac = vnic.limits().mac.expect("the hub gives an address");
    let config = Config::new(mac, Ip::v4([10, 9, 0, host]), 24);
    let options = Options {
        spin: Duration::ZERO,
        ..Options::default()
    };
    Sockets::new(Box::new(vnic), config, options)
}

fn at(host: u8) -> Endpoint {
    Endpoint {
        ip: Ip::v4([10, 9, 0, host]),
        port: PORT,
    }
}

/// Sends bytes and reads them back.
fn ask(sockets: &mut Sockets, stream: Handle, count: usize) {
    let bytes: Vec<u8> = (0..count).map(|at| (at * 7) as u8).collect();
    let mut answer = vec![0; count];
    for _ in 0..20 {
        sockets.wait_send(stream, &bytes, LIMIT).expect("the peer reads");
        let mut got = 0;
        while got < count {
            let room = &mut answer[got..];
            got += sockets
                .wait_receive(stream, room, LIMIT)
                .expect("the peer answers");
        }
        assert_eq!(answer, bytes);
    }
}

#[test]
fn streams_pass_between_ports_and_a_forger_gets_nothing_through() {
    let hub = Running::start(None);
    let vnic = hub.attach("server");
    let server = move || {
        let mut sockets = sockets(vnic, 2);
        let listener = sockets.listen(at(2), 8).expect("the port is free");
        let stream = sockets.wait_accept(listener, LIMIT).expect("somebody connects");
        echo(&mut sockets, stream);
    };
    let server = thread::Builder::new().spawn(server).expect("a thread");
    let mut forger = hub.attach("forger");
    let mut client = sockets(hub.attach("client"), 1);
    hub.await_status("3 ports, 0 forged");
    let stream = client.wait_connect(at(2), LIMIT).expect("somebody listens");
    let mut left = 10;
    let forged = forger.send(&mut |frame| {
        left -= 1;
        frame[..60].fill(0xff);
        (left > 0).then_some(Written {
            bytes: 60,
            segment_bytes: 0,
        })
    });
    assert_eq!(forged.expect("the link is up"), 9);
    forger.flush().expect("the link is up");
    ask(&mut client, stream, 100_000);
    hub.await_status("3 ports, 9 forged");
    let heard = forger.receive(100, &mut |frame| {
        assert_eq!(frame.bytes[0] & 1, 1, "only what is for all")
    });
    assert!(
        heard.expect("the link is up") > 0,
        "the client asks all for the server's card"
    );
    client.shutdown(stream).expect("it is open");
    assert_eq!(client.wait_receive(stream, &mut [0], LIMIT), Ok(0));
    server.join().expect("the server has served");
    drop((client, forger));
    hub.await_status("0 ports, 0 forged");
}

#[test]
fn ports_that_were_introduced_need_no_hub_for_their_streams() {
    // More clients than a port has links, one after the other.
    const CLIENTS: usize = LINKS_MAX + 8;
    let hub = Running::start(None);
    let other = hub.join("server");
    let server = move || {
        let mut sockets = sockets(other, 2);
        let listener = sockets.listen(at(2), 8).expect("the port is free");
        for _ in 0..CLIENTS {
            let stream = sockets.wait_accept(listener, LIMIT).expect("somebody connects");
            echo(&mut sockets, stream);
        }
    };
    let server = thread::Builder::new().spawn(server).expect("a thread");
    for left in (0..CLIENTS).rev() {
        let mut client = sockets(hub.join("client"), 1);
        let stream = client.wait_connect(at(2), LIMIT).expect("somebody listens");
        ask(&mut client, stream, 1000);
        if left == 0 {
            // From here on the hub carries nothing.
            hub.pauses.store(true, Ordering::Relaxed);
            ask(&mut client, stream, 100_000);
        }
        client.shutdown(stream).expect("it is open");
        assert_eq!(client.wait_receive(stream, &mut [0], LIMIT), Ok(0));
        drop(client);
        if left > 0 {
            hub.await_status("1 ports, 0 forged");
        }
    }
    server.join().expect("the server has served");
}

/// A process that is killed says nothing to its peers: the hub does, and the peers end what they had with it.
fn a_peer_that_ends_without_a_word_is_told_as_a_reset(introduces: bool) {
    let options = HubOptions {
        introduces,
        ..OPTIONS
    };
    let hub = Running::start_with(None, options);
    let (one, other) = (hub.join("client"), hub.join("server"));
    let server = move || {
        let mut sockets = sockets(other, 2);
        let listener = sockets.listen(at(2), 8).expect("the port is free");
        let stream = sockets.wait_accept(listener, LIMIT).expect("somebody connects");
        let mut bytes = [0; 5];
        sockets
            .wait_receive(stream, &mut bytes, LIMIT)
            .expect("the client asks");
        sockets.wait_send(stream, b"bytes", LIMIT).expect("there is room");
    };
    let server = thread::Builder::new().spawn(server).expect("a thread");
    let mut client = sockets(one, 1);
    let stream = client.wait_connect(at(2), LIMIT).expect("somebody listens");
    client.wait_send(stream, b"hello", LIMIT).expect("there is room");
    server.join().expect("the server has served");
    let mut bytes = [0; 9];
    assert_eq!(
        client.wait_receive(stream, &mut bytes, LIMIT),
        Ok(5),
        "the last bytes arrive"
    );
    assert_eq!(
        client.wait_receive(stream, &mut bytes, LIMIT),
        Err(SocketError::Reset)
    );
    // The address belongs to whoever comes next.
    let next = hub.join("next");
    let server = move || {
        let mut sockets = sockets(next, 2);
        let listener = sockets.listen(at(2), 8).expect("the port is free");
        let stream = sockets.wait_accept(listener, LIMIT).expect("somebody connects");
        echo(&mut sockets, stream);
    };
    let server = thread::Builder::new().spawn(server).expect("a thread");
    let stream = client.wait_connect(at(2), LIMIT).expect("somebody listens");
    ask(&mut client, stream, 1000);
    client.shutdown(stream).expect("it is open");
    assert_eq!(client.wait_receive(stream, &mut [0], LIMIT), Ok(0));
    server.join().expect("the server has served");
}

#[test]
fn a_peer_that_ends_without_a_word_is_told_past_the_hub() {
    a_peer_that_ends_without_a_word_is_told_as_a_reset(true);
}

#[test]
fn a_peer_that_ends_without_a_word_is_told_through_the_hub() {
    a_peer_that_ends_without_a_word_is_told_as_a_reset(false);
}

#[test]
fn ports_are_limited_and_come_back() {
    let hub = Running::start(None);
    let mut ports: Vec<Vnic> = (0..4).map(|_| hub.attach("one")).collect();
    let more = attach(&hub.path, "more", 1);
    assert!(matches!(more, Err(AttachError::Full)), "{more:?}");
    ports.pop();
    hub.await_status("3 ports, 0 forged");
    ports.push(hub.attach("again"));
    assert_eq!(ports[3].limits().mtu, 1500);
    let path = hub.path.clone();
    assert!(Hub::open(&path, None, OPTIONS).is_err(), "a hub is there");
    drop(hub);
    // Everybody at a hub that has gone is told.
    let until = os::now() + Duration::from_secs(20);
    for port in &mut ports {
        // A process that another test starts has the hub's descriptors until it is another program.
        while port.receive(1, &mut |_| ()).is_ok() {
            assert!(os::now() < until, "the hub has gone, {port:?}");
            port.disarm();
        }
    }
    let late = attach(&path, "late", 1);
    assert!(matches!(late, Err(AttachError::NoHub(_))), "{late:?}");
}

#[test]
fn what_is_no_wish_is_refused_and_the_hub_goes_on() {
    let hub = Running::start(None);
    for round in 0..50usize {
        let socket = rustix::net::socket(
            rustix::net::AddressFamily::UNIX,
            rustix::net::SocketType::SEQPACKET,
            None,
        );
        let socket = socket.expect("a descriptor");
        let address = rustix::net::SocketAddrUnix::new(&hub.path).expect("a path");
        rustix::net::connect(&socket, &address).expect("the hub listens");
        if round % 3 > 0 {
            let garbage = vec![round as u8; round * 40];
            let _ = rustix::net::send(&socket, &garbage, rustix::net::SendFlags::NOSIGNAL);
        }
    }
    hub.await_status("0 ports, 0 forged");
}

#[test]
fn a_hub_that_was_killed_is_replaced() {
    let dir = tempfile::tempdir().expect("a directory");
    let path: &Path = &dir.path().join("hub");
    // Its file stays, and nobody listens.
    drop(std::os::unix::net::UnixListener::bind(path).expect("the path is free"));
    Hub::open(path, None, OPTIONS).expect("nobody is there");
    assert!(!path.exists(), "a hub takes its file away");
}

/// Sends frames to the kernel that nearly are TCP, with any wish of how they are to be cut.
fn send_garbage(port: &mut Vnic) {
    let mac = port.limits().mac.expect("the hub gives an address");
    let mut rng = Rng::new(5);
    for _ in 0..2000 {
        let mut once = Some(rng.between(14, 4000) as usize);
        port.send(&mut |frame| {
            let bytes = once.take()?;
            frame[..bytes].fill_with(|| rng.next_u64() as u8);
            let start = [0x45, 0, (bytes >> 8) as u8, bytes as u8, 0, 0, 0, 0, 64, 6];
            frame[..6].fill(0xff);
            frame[6..12].copy_from_slice(&mac.0);
            frame[12..14].copy_from_slice(&[8, 0]);
            if rng.chance(0.9) && bytes > 24 {
                frame[14..24].copy_from_slice(&start);
            }
            let segment_bytes = rng.next_u64() as u16;
            Some(Written { bytes, segment_bytes })
        })
        .expect("the link is up");
        port.flush().expect("the link is up");
        port.receive(64, &mut |_| ()).expect("the link is up");
    }
}

#[test]
fn ports_reach_the_kernel_through_an_uplink() {
    if !enter() {
        return;
    }
    let uplink = match tap::open("tap9", 1) {
        Ok(mut frames) => frames.remove(0),
        Err(error) => return eprintln!("skipped: this kernel has no TAP: {error}"),
    };
    ip_command("addr add 10.9.0.1/24 dev tap9");
    let hub = Running::start(Some(Box::new(uplink)));
    let listener = TcpListener::bind(("10.9.0.1", PORT)).expect("the port is free");
    let linux = move || {
        let (mut stream, _) = listener.accept().expect("a connection");
        let mut bytes = vec![0; 100_000];
        loop {
            match stream.read(&mut bytes).expect("the stream is open") {
                0 => break,
                count => stream.write_all(&bytes[..count]).expect("the stream is open"),
            }
        }
        drop(stream);
        let (mut stream, _) = listener.accept().expect("a connection");
        stream.write_all(b"hello").expect("the stream is open");
        let end = stream
            .read(&mut bytes)
            .expect_err("the client ends without a word");
        assert_eq!(end.kind(), std::io::ErrorKind::ConnectionReset);
    };
    let linux = thread::Builder::new().spawn(linux).expect("a thread");
    let mut client = sockets(hub.attach("client"), 2);
    let stream = client.wait_connect(at(1), LIMIT).expect("Linux listens");
    send_garbage(&mut hub.attach("garbage"));
    ask(&mut client, stream, 100_000);
    client.shutdown(stream).expect("it is open");
    assert_eq!(client.wait_receive(stream, &mut [0], LIMIT), Ok(0));
    let stream = client.wait_connect(at(1), LIMIT).expect("Linux listens");
    assert_eq!(client.wait_receive(stream, &mut [0; 9], LIMIT), Ok(5));
    drop(client);
    linux.join().expect("Linux has served");
}
