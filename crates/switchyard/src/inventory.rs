//! Asks nodes what is on their media, without a gateway: `switchyard registry rebuild`.

use crate::failure::Failure;
use anyhow::{Context, bail};
use base::{Addr, NodeId, VssdId};
use rack::inventory::{Inventory, RECORD_BYTES_MAX};
use rack::rebuild::Found;
use std::net::UdpSocket;
use std::time::{Duration, Instant};
use wire::rack::{Code, HEADER_BYTES, Header, Op, flags};

/// A request is sent again after this.
const AGAIN_AFTER: Duration = Duration::from_millis(200);
/// A node that has not answered by then does not.
const SILENT_AFTER: Duration = Duration::from_secs(5);

/// What the node at this address has.
pub fn ask(node: NodeId, addr: Addr) -> anyhow::Result<Found> {
    let mut asker = Asker::new(addr)?;
    let mut found = Found {
        node,
        addr,
        boot: 0,
        vssds: Vec::new(),
    };
    let mut from = 0;
    loop {
        let told = asker.ask(from)?;
        if told.node != node {
            bail!(Failure::Usage(format!(
                "the node at {addr} has the number {}: name it by this number",
                told.node.0
            )));
        }
        if found.boot != told.boot {
            // It has just started: what it told before may not hold any more.
            found.vssds.clear();
            found.boot = told.boot;
            if from > 0 {
                from = 0;
                continue;
            }
        }
        found.vssds.extend(told.vssds);
        from = told.next;
        if from == 0 {
            return Ok(found);
        }
    }
}

/// The number of the node at this address.
pub fn number_at(addr: Addr) -> anyhow::Result<NodeId> {
    Ok(Asker::new(addr)?.ask(0)?.node)
}

struct Asker {
    socket: UdpSocket,
    me: Addr,
    node: Addr,
    request: u64,
}

impl Asker {
    fn new(node: Addr) -> anyhow::Result<Self> {
        let target = runtime::socket_addr(node);
        let why = || format!("cannot ask the node at {node}");
        // Which of this machine's addresses the node's network knows. The answer comes from a ToR: so the socket that takes it is
        // another one, which takes it from anybody.
        let probe = UdpSocket::bind("0.0.0.0:0").with_context(why)?;
        probe.connect(target).with_context(why)?;
        let ip = probe.local_addr().with_context(why)?.ip();
        let socket = UdpSocket::bind((ip, 0)).with_context(why)?;
        socket.set_read_timeout(Some(AGAIN_AFTER)).with_context(why)?;
        let text = socket.local_addr().with_context(why)?.to_string();
        let me = rack::registry::parse_addr(&text).with_context(|| format!("{text} is no IPv4 address"))?;
        let request = u64::from(me.port) << 32;
        Ok(Self {
            socket,
            me,
            node,
            request,
        })
    }

    /// The vSSDs from this number on.
    fn ask(&mut self, from: u32) -> anyhow::Result<Inventory> {
        self.request += 1;
        let header = Header {
            request: self.request,
            source: self.me,
            target: self.node,
            ..Header::new(Op::List, VssdId(from))
        };
        let mut datagram = [0; HEADER_BYTES];
        header.emit(&mut datagram);
        let until = Instant::now() + SILENT_AFTER;
        while Instant::now() < until {
            self.socket
                .send_to(&datagram, runtime::socket_addr(self.node))
                .with_context(|| format!("cannot ask the node at {}", self.node))?;
            if let Some(told) = self.answer() {
                return Ok(told);
            }
        }
        bail!(Failure::Uncheckable(format!(
            "the node at {} does not answer: start it, and a ToR of its rack, by which it answers. A node whose program does not know the rack's level lists nothing, either: give it a new one",
            self.node
        )))
    }

    /// The answer to the last request, unless none comes in time.
    fn answer(&self) -> Option<Inventory> {
        let mut datagram = [0; HEADER_BYTES + RECORD_BYTES_MAX];
        loop {
            let length = self.socket.recv(&mut datagram).ok()?;
            let (bytes, record) = datagram[..length].split_at_checked(HEADER_BYTES)?;
            let Ok(header) = Header::parse(bytes, record.len()) else {
                continue;
            };
            let is_answer = header.has(flags::REPLY)
                && (header.op, header.code, header.request) == (Op::List, Code::SoftOrOk, self.request);
            if is_answer && crc32c::crc32c(record) == header.payload_crc {
                return Inventory::parse(record);
            }
        }
    }
}
