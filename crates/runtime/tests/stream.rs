//! Transports other than TCP carry any protocol, and a protocol may be listed more than once.

use crate::common::nbd::{self, Client, READ, WRITE};
use crate::common::{ANY_TCP, small};
use runtime::{CoreHandle, Door, Listen, Listener, LocalVolume, Stream, TargetSpec, start_target};
use std::collections::VecDeque;
use std::io::{self, ErrorKind, IoSlice, IoSliceMut, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex};
use wire::nbd::{NAME, Nbd};

/// Bytes that one direction of a pipe holds: less than a large answer.
const PIPE_BYTES: usize = 10_000;

/// The bytes of a connection in memory.
#[derive(Default)]
struct Pipe {
    /// Towards the server, and towards the client.
    ways: Mutex<[VecDeque<u8>; 2]>,
    moved: Condvar,
}

/// The server's end. The bell says that bytes came, or that there is room again.
struct Memory {
    pipe: Arc<Pipe>,
    bell: UnixStream,
}

impl Stream for Memory {
    fn fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    fn read(&mut self, into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        // Before the look: whoever rings after it is heard.
        let _ = self.bell.read(&mut [0; 256]);
        let mut ways = self.pipe.ways.lock().expect("no panic");
        if ways[0].is_empty() {
            return Err(ErrorKind::WouldBlock.into());
        }
        self.pipe.moved.notify_all();
        let mut count = 0;
        for slice in into {
            let piece = ways[0].len().min(slice.len());
            slice[..piece].copy_from_slice(&ways[0].drain(..piece).collect::<Vec<u8>>());
            count += piece;
        }
        Ok(count)
    }

    fn write(&mut self, from: &[IoSlice<'_>]) -> io::Result<usize> {
        let mut ways = self.pipe.ways.lock().expect("no panic");
        let room = PIPE_BYTES - ways[1].len();
        let bytes: Vec<u8> = from
            .iter()
            .flat_map(|slice| slice.iter().copied())
            .take(room)
            .collect();
        ways[1].extend(&bytes);
        self.pipe.moved.notify_all();
        match bytes.len() {
            0 => Err(ErrorKind::WouldBlock.into()),
            count => Ok(count),
        }
    }
}

/// The client's end, which blocks.
struct Peer {
    pipe: Arc<Pipe>,
    bell: UnixStream,
}

impl Peer {
    fn give(&mut self, bytes: &[u8]) {
        for piece in bytes.chunks(PIPE_BYTES) {
            let ways = self.pipe.ways.lock().expect("no panic");
            let is_full = |ways: &mut [VecDeque<u8>; 2]| ways[0].len() + piece.len() > PIPE_BYTES;
            let mut ways = self.pipe.moved.wait_while(ways, is_full).expect("no panic");
            ways[0].extend(piece);
            drop(ways);
            self.bell.write_all(&[0]).expect("the server has the other end");
        }
    }

    fn take(&mut self, count: usize) -> Vec<u8> {
        let mut taken = Vec::new();
        while taken.len() < count {
            let ways = self.pipe.ways.lock().expect("no panic");
            let mut ways = self
                .pipe
                .moved
                .wait_while(ways, |ways| ways[1].is_empty())
                .expect("no panic");
            let piece = ways[1].len().min(count - taken.len());
            taken.extend(ways[1].drain(..piece));
            drop(ways);
            self.bell.write_all(&[0]).expect("the server has the other end");
        }
        taken
    }
}

/// Where clients in the same process connect.
struct Lobby {
    waiting: Arc<Mutex<VecDeque<Memory>>>,
    bell: UnixStream,
}

impl Listener for Lobby {
    fn fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    fn accept(&mut self) -> io::Result<(Box<dyn Stream>, IpAddr)> {
        self.bell.read_exact(&mut [0])?;
        let memory = self.waiting.lock().expect("no panic").pop_front();
        Ok((
            Box::new(memory.expect("the bell rings once for each")),
            Ipv4Addr::LOCALHOST.into(),
        ))
    }

    fn address(&self) -> io::Result<SocketAddr> {
        Ok(ANY_TCP)
    }
}

/// A bell, and who rings it.
fn bell() -> (UnixStream, UnixStream) {
    let (ours, theirs) = UnixStream::pair().expect("a pair of sockets");
    ours.set_nonblocking(true).expect("a plain socket");
    (ours, theirs)
}

fn start(listen: Vec<Listen>, cores: usize) -> Vec<CoreHandle> {
    let volumes = vec![LocalVolume::memory("data", 4 << 20).expect("memory")];
    start_target(vec![small(); cores], TargetSpec { volumes, listen }).expect("a target")
}

#[test]
fn a_stream_in_memory_carries_nbd_from_end_to_end() {
    let (ours, mut rings) = bell();
    let waiting = Arc::new(Mutex::new(VecDeque::new()));
    let lobby = Lobby {
        waiting: Arc::clone(&waiting),
        bell: ours,
    };
    let listen = vec![Listen {
        door: Door::Open(Box::new(lobby)),
        protocol: Nbd::new(),
    }];
    let cores = start(listen, 2);
    // The second one is served by the other core.
    for round in 0..2u8 {
        let (pipe, (ours, theirs)) = (Arc::new(Pipe::default()), bell());
        let memory = Memory {
            pipe: Arc::clone(&pipe),
            bell: ours,
        };
        waiting.lock().expect("no panic").push_back(memory);
        rings.write_all(&[0]).expect("the target listens");
        let mut peer = Peer { pipe, bell: theirs };
        assert_eq!(&peer.take(18)[..8], b"NBDMAGIC");
        peer.give(&3u32.to_be_bytes());
        peer.give(b"IHAVEOPT\0\0\0\x01\0\0\0\x04data");
        peer.take(10);
        // Larger than what the pipe holds, both ways.
        let data: Vec<u8> = (0..256 << 10).map(|at: u32| (at / 7) as u8 ^ round).collect();
        peer.give(&nbd::header(WRITE, 1, 4096, data.len() as u32));
        peer.give(&data);
        let ended = |peer: &mut Peer| nbd::parse(peer.take(16)[..].try_into().expect("16 bytes"));
        assert_eq!(ended(&mut peer), (0, 1));
        peer.give(&nbd::header(READ, 2, 4096, data.len() as u32));
        assert_eq!(ended(&mut peer), (0, 2));
        assert!(peer.take(data.len()) == data, "round {round}");
    }
    let accepted: u64 = cores.iter().map(|core| core.stats().clients_accepted).sum();
    assert_eq!(accepted, 2);
    for core in cores {
        core.stop().expect("a healthy core");
    }
}

/// Clients of one machine that connect without end, and of which each goes at once.
struct Crowd {
    bell: UnixStream,
    _rings: UnixStream,
    left: Arc<AtomicU32>,
}

/// A client of the crowd.
struct Gone(UnixStream);

impl Stream for Gone {
    fn fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }

    fn read(&mut self, _into: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        Ok(0)
    }

    fn write(&mut self, _from: &[IoSlice<'_>]) -> io::Result<usize> {
        Err(ErrorKind::BrokenPipe.into())
    }
}

impl Listener for Crowd {
    fn fd(&self) -> RawFd {
        self.bell.as_raw_fd()
    }

    fn accept(&mut self) -> io::Result<(Box<dyn Stream>, IpAddr)> {
        let left = self.left.load(Relaxed).checked_sub(1);
        self.left.store(left.ok_or(ErrorKind::WouldBlock)?, Relaxed);
        let address = Ipv4Addr::new(10, 0, 0, 1);
        Ok((Box::new(Gone(UnixStream::pair()?.0)), address.into()))
    }

    fn address(&self) -> io::Result<SocketAddr> {
        Ok(ANY_TCP)
    }
}

// Bug: clients that connected as fast as the target refused them kept its core from everything else. Cause: a core took
// clients until nobody waited. Fix: a look takes a batch of them.
#[test]
fn a_crowd_that_connects_without_end_does_not_keep_others_from_being_served() {
    const CROWD: u32 = 200_000;
    let (ours, mut rings) = bell();
    rings.write_all(&[0]).expect("its other end is open");
    let left = Arc::new(AtomicU32::new(CROWD));
    let crowd = Crowd {
        bell: ours,
        _rings: rings,
        left: Arc::clone(&left),
    };
    let listen = vec![
        Listen::tcp(ANY_TCP, Nbd::new()),
        Listen {
            door: Door::Open(Box::new(crowd)),
            protocol: Nbd::new(),
        },
    ];
    let cores = start(listen, 1);
    let mut good = Client::new(cores[0].target_listening(NAME)[0]);
    good.request(READ, 1, 0, 512);
    assert_eq!(good.reply(), (0, 1));
    assert!(left.load(Relaxed) > 0, "the crowd is still coming");
    left.store(0, Relaxed);
    for core in cores {
        core.stop().expect("a healthy core");
    }
}

#[test]
fn a_protocol_listed_twice_serves_the_same_volumes_on_two_ports() {
    let protocol = Nbd::new();
    let listen = vec![
        Listen::tcp(ANY_TCP, protocol.clone()),
        Listen::tcp(ANY_TCP, protocol),
    ];
    let cores = start(listen, 1);
    let addresses = cores[0].target_listening(NAME);
    assert!(addresses.len() == 2 && addresses[0] != addresses[1]);
    let [mut first, mut second] = [0, 1].map(|at: usize| Client::new(addresses[at]));
    // The reply to NBD_OPT_EXPORT_NAME ends here: both clients agreed on no padding.
    first.request(WRITE, 1, 0, 512);
    first.give(&[9; 512]);
    assert_eq!(first.reply(), (0, 1));
    second.request(READ, 2, 0, 512);
    assert_eq!(second.reply(), (0, 2));
    assert_eq!(second.take::<512>(), [9; 512]);
    for core in cores {
        core.stop().expect("a healthy core");
    }
}
