//! An NVMe/TCP host on blocking sockets around [`wire::nvme::host::Host`]: an admin queue, which keeps the controller,
//! and one I/O queue.

use super::socket::{self, Client, Inbox, Outbox};
use anyhow::{Context, bail};
use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::TcpStream;
use wire::nvme::host::{Data, Host, HostOptions, Sink};
use wire::nvme::proto::{Cqe, Sqe};

/// Bytes read from a socket at once.
const READ_BYTES: usize = 256 << 10;
/// Entries of the I/O queue, what Linux asks for: the deepest case needs no more, as there is no flow control.
const ENTRIES: u16 = 128;

/// A target and a subsystem.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// `host:port`.
    pub server: String,
    /// Qualified name of the subsystem.
    pub nqn: String,
}

impl Address {
    /// Reads `nvme://host[:port]/name`, with a volume's name or a subsystem's whole NQN.
    pub fn parse(uri: &str) -> Option<Self> {
        let (server, name) = uri.strip_prefix("nvme://")?.split_once('/')?;
        if server.is_empty() || name.is_empty() {
            return None;
        }
        let has_port = server
            .rsplit_once(':')
            .is_some_and(|(_, port)| port.parse::<u16>().is_ok());
        Some(Self {
            server: if has_port {
                server.to_owned()
            } else {
                format!("{server}:4420")
            },
            nqn: if name.starts_with("nqn.") {
                name.to_owned()
            } else {
                format!("nqn.2026-11.io.switchyard:{name}")
            },
        })
    }
}

/// A socket and its queue.
struct Queue {
    stream: TcpStream,
    inbox: Inbox,
    host: Host,
    buffer: Vec<u8>,
    /// Payload of large writes, by command id.
    outbox: Outbox,
}

impl Queue {
    fn open(server: &str, options: HostOptions, polls: bool) -> anyhow::Result<Self> {
        let stream = socket::connect(server, "NVMe/TCP target")?;
        let mut queue = Self {
            inbox: Inbox::new(stream.try_clone()?, polls),
            stream,
            host: Host::new(options),
            buffer: vec![0; READ_BYTES],
            outbox: Outbox::new(),
        };
        let mut nothing = Work::default();
        while !queue.host.is_connected() {
            queue.send()?;
            queue.receive(&mut nothing)?;
        }
        Ok(queue)
    }

    fn send(&mut self) -> io::Result<()> {
        while let Some(due) = self.host.data_due() {
            let head = self.host.outgoing();
            let (offset, length) = (due.offset as usize, due.length as usize);
            let sent = self
                .outbox
                .send(&self.stream, head, usize::from(due.cid), offset, length)?;
            let of_head = sent.min(head.len());
            self.host.sent(of_head);
            if sent > of_head {
                self.host.sent(sent - of_head);
            }
        }
        let rest = self.host.outgoing();
        if !rest.is_empty() {
            self.stream.write_all(rest)?;
            self.host.sent(rest.len());
        }
        Ok(())
    }

    /// Reads once.
    fn receive(&mut self, sink: &mut dyn Sink) -> anyhow::Result<()> {
        let count = self.inbox.read(&mut self.buffer)?;
        if count == 0 {
            bail!("the target closed the connection");
        }
        self.host.receive(&self.buffer[..count], sink);
        if let Some(error) = self.host.failed() {
            bail!(error);
        }
        Ok(())
    }

    /// Runs one command and returns the data it brought.
    fn command(&mut self, (sqe, data): (Sqe, Data)) -> anyhow::Result<Vec<u8>> {
        let mut work = Work {
            page: vec![
                0;
                if let Data::In(bytes) = data {
                    bytes as usize
                } else {
                    0
                }
            ],
            ..Work::default()
        };
        self.host
            .submit(sqe, data, &mut work)
            .context("the queue has no room")?;
        while work.done.is_empty() {
            self.send()?;
            self.receive(&mut work)?;
        }
        match work.failed {
            Some(status) => bail!("the target answered with status {status:#x}"),
            None => Ok(work.page),
        }
    }
}

/// Subjects of the commands under way.
#[derive(Default)]
struct Work {
    /// Data of a command of its own.
    page: Vec<u8>,
    /// Cookie and data of each command id.
    cookies: Vec<u64>,
    payload: Vec<Vec<u8>>,
    /// Of the command being submitted.
    submitting: Option<(u64, Vec<u8>)>,
    done: VecDeque<u64>,
    failed: Option<u16>,
    /// Bytes that reads brought.
    bytes_in: u64,
}

impl Sink for Work {
    fn data(&mut self, _cid: u16, offset: u32, bytes: &[u8]) {
        if let Some(target) = self.page.get_mut(offset as usize..offset as usize + bytes.len()) {
            target.copy_from_slice(bytes);
        }
        self.bytes_in += bytes.len() as u64;
    }

    fn fill(&mut self, cid: u16, offset: u32, target: &mut [u8]) {
        let data = match &self.submitting {
            Some((_, data)) => data,
            None => &self.payload[usize::from(cid)],
        };
        target.copy_from_slice(&data[offset as usize..][..target.len()]);
    }

    fn done(&mut self, cid: u16, completion: &Cqe) {
        self.done
            .push_back(self.cookies.get(usize::from(cid)).copied().unwrap_or_default());
        if completion.status.0 != 0 {
            self.failed = Some(completion.status.0);
        }
    }
}

/// One controller with one I/O queue.
pub struct Connection {
    /// Held: with it the controller goes.
    _admin: Queue,
    io: Queue,
    work: Work,
    spare: Vec<Vec<u8>>,
    /// Bytes of the namespace.
    pub size_bytes: u64,
    /// The namespace refuses writes.
    pub is_read_only: bool,
}

impl Connection {
    /// The socket of its I/O queue.
    pub fn stream(&self) -> &TcpStream {
        &self.io.stream
    }

    /// Connects to a subsystem.
    pub fn open(address: &Address, polls: bool) -> anyhow::Result<Self> {
        let server = &address.server;
        let host = format!(
            "nqn.2014-08.org.nvmexpress:uuid:{:08x}-0000-4000-8000-000000000000",
            std::process::id()
        );
        let options = HostOptions {
            sq_flow: false,
            apart_bytes: Some(socket::APART_BYTES_MIN as u32),
            ..HostOptions::admin(&address.nqn, &host)
        };
        let mut admin = Queue::open(server, options.clone(), false)
            .with_context(|| format!("{server} refuses a connection to {}", address.nqn))?;
        // CC: enabled, entries of 64 and 16 bytes (Base §3.1.3.5).
        admin.command(Sqe::set_property(0x14, 1 | 6 << 16 | 4 << 20))?;
        let namespace = admin.command(Sqe::identify(0, 1))?;
        // NSZE, NSATTR and the first LBA format's LBADS (NVM Command Set §4.1.5.1).
        let blocks = u64::from_le_bytes(namespace[..8].try_into().expect("eight bytes"));
        let size_bytes = blocks << namespace[130];
        let io = Queue::open(server, options.io(admin.host.cntlid(), 1, ENTRIES), polls)?;
        Ok(Self {
            _admin: admin,
            io,
            work: Work {
                cookies: vec![0; usize::from(ENTRIES)],
                payload: (0..ENTRIES).map(|_| Vec::new()).collect(),
                ..Work::default()
            },
            spare: Vec::new(),
            size_bytes,
            is_read_only: namespace[99] & 1 != 0,
        })
    }

    fn push(&mut self, cookie: u64, (sqe, data): (Sqe, Data), payload: &[u8]) {
        let is_apart = payload.len() >= socket::APART_BYTES_MIN;
        let mut bytes = self.spare.pop().unwrap_or_default();
        bytes.clear();
        if !is_apart {
            bytes.extend_from_slice(payload);
        }
        self.work.submitting = Some((cookie, bytes));
        let cid = self
            .io
            .host
            .submit(sqe, data, &mut self.work)
            .expect("the queue is deeper than any case");
        let (cookie, bytes) = self.work.submitting.take().expect("set above");
        self.work.cookies[usize::from(cid)] = cookie;
        self.spare
            .push(std::mem::replace(&mut self.work.payload[usize::from(cid)], bytes));
        if is_apart {
            self.io.outbox.put(usize::from(cid), payload);
        }
    }
}

impl Client for Connection {
    fn can_flush(&self) -> bool {
        true
    }

    fn push_read(&mut self, cookie: u64, offset: u64, length: u32) {
        self.push(cookie, Sqe::read(offset, length), &[]);
    }

    fn push_write(&mut self, cookie: u64, offset: u64, data: &[u8]) {
        self.push(cookie, Sqe::write(offset, data.len() as u32, false), data);
    }

    fn push_flush(&mut self, cookie: u64) {
        self.push(cookie, Sqe::flush(), &[]);
    }

    fn send(&mut self) -> io::Result<()> {
        self.io.send()
    }

    fn receive(&mut self, _data_bytes: &dyn Fn(u64) -> usize) -> anyhow::Result<u64> {
        loop {
            if let Some(status) = self.work.failed {
                bail!("the target answered with status {status:#x}");
            }
            if let Some(cookie) = self.work.done.pop_front() {
                return Ok(cookie);
            }
            self.io.receive(&mut self.work)?;
            // Data that the target has asked for.
            self.io.send()?;
        }
    }

    fn has_reply(&self) -> bool {
        !self.work.done.is_empty()
    }

    fn socket(&self) -> &TcpStream {
        self.stream()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_have_a_default_port_and_prefix() {
        let address = |server: &str, nqn: &str| {
            Some(Address {
                server: server.into(),
                nqn: nqn.into(),
            })
        };
        assert_eq!(
            Address::parse("nvme://h/disk"),
            address("h:4420", "nqn.2026-11.io.switchyard:disk")
        );
        assert_eq!(
            Address::parse("nvme://h:1/nqn.2019.org:x"),
            address("h:1", "nqn.2019.org:x")
        );
        assert_eq!(Address::parse("nvme://h"), None);
        assert_eq!(Address::parse("nbd://h/x"), None);
    }
}
