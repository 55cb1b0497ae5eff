//! Connected sockets of one host whose messages the kernel hands to the other end at once, past its TCP (`BPF_MAP_TYPE_SOCKHASH`).

use crate::bpf::{self, MAP_FD, step};
use std::io;
use std::net::TcpStream;
use std::os::fd::{AsFd, OwnedFd};

/// Types and helpers of `linux/bpf.h`.
const BPF_MAP_TYPE_SOCKHASH: u32 = 18;
const BPF_PROG_TYPE_SK_MSG: u32 = 16;
const BPF_SK_MSG_VERDICT: u32 = 7;
const BPF_FUNC_MSG_REDIRECT_HASH: i32 = 71;
/// To what the other end receives, not to what it sends.
const BPF_F_INGRESS: i32 = 1;
/// Places in the context (`struct sk_msg_md`).
const REMOTE_PORT_AT: i16 = 60;
const LOCAL_PORT_AT: i16 = 64;

/// The sockets.
#[derive(Debug)]
pub struct Sockmap {
    map: OwnedFd,
    _program: OwnedFd,
}

impl Sockmap {
    /// Room for so many sockets. Needs CAP_NET_ADMIN and CAP_BPF.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn new(sockets: u32) -> io::Result<Self> {
        let map = bpf::map(BPF_MAP_TYPE_SOCKHASH, 8, 4, sockets)?;
        let program = bpf::program(BPF_PROG_TYPE_SK_MSG, &steps(&map))?;
        bpf::attach(program.as_fd(), map.as_fd(), BPF_SK_MSG_VERDICT)?;
        Ok(Self {
            map,
            _program: program,
        })
    }

    /// Takes an end of a connection. Bytes that it sends from now on go to the other end, which has to be here, too.
    ///
    /// # Errors
    /// The socket is not connected, or there is no room.
    pub fn put(&self, socket: &TcpStream) -> io::Result<()> {
        // The sender has its ports the other way round: "remote" is a number of network order in four bytes, "local" one of the host.
        let own = u32::from(socket.local_addr()?.port()).to_be_bytes();
        let peer = u32::from(socket.peer_addr()?.port()).to_ne_bytes();
        let [a, b, c, d] = own;
        let [e, f, g, h] = peer;
        bpf::put(self.map.as_fd(), [a, b, c, d, e, f, g, h], socket.as_fd())
    }
}

/// `key = { message->remote_port, message->local_port }; return bpf_msg_redirect_hash(message, &map, &key, BPF_F_INGRESS);`
fn steps(map: &OwnedFd) -> [u64; 11] {
    use std::os::fd::AsRawFd;
    const LOAD_WORD: u8 = 0x61;
    const STORE_WORD: u8 = 0x63;
    const LOAD_MAP: u8 = 0x18;
    const COPY: u8 = 0xbf;
    const ADD: u8 = 0x07;
    const MOVE: u8 = 0xb7;
    const CALL: u8 = 0x85;
    const EXIT: u8 = 0x95;
    [
        step(LOAD_WORD, 2, 1, REMOTE_PORT_AT, 0),
        step(STORE_WORD, 10, 2, -8, 0),
        step(LOAD_WORD, 2, 1, LOCAL_PORT_AT, 0),
        step(STORE_WORD, 10, 2, -4, 0),
        step(LOAD_MAP, 2, MAP_FD, 0, map.as_raw_fd()),
        step(0, 0, 0, 0, 0),
        step(COPY, 3, 10, 0, 0),
        step(ADD, 3, 0, 0, -8),
        step(MOVE, 4, 0, 0, BPF_F_INGRESS),
        step(CALL, 0, 0, 0, BPF_FUNC_MSG_REDIRECT_HASH),
        step(EXIT, 0, 0, 0, 0),
    ]
}
