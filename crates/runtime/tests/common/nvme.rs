//! A small NVMe/TCP host on blocking sockets.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use wire::nvme::host::{Data, Host, HostOptions, Sink};
use wire::nvme::proto::{Cqe, Sqe, Status};

/// Data of commands under way, and what came of them.
#[derive(Default)]
pub struct Work {
    pub data: BTreeMap<u16, Vec<u8>>,
    pub next: Vec<u8>,
    /// Status by command.
    pub done: BTreeMap<u16, u16>,
}

impl Sink for Work {
    fn data(&mut self, cid: u16, offset: u32, bytes: &[u8]) {
        let data = self.data.entry(cid).or_default();
        data.resize(data.len().max(offset as usize + bytes.len()), 0);
        data[offset as usize..][..bytes.len()].copy_from_slice(bytes);
    }

    fn fill(&mut self, cid: u16, offset: u32, target: &mut [u8]) {
        let data = self.data.get(&cid).unwrap_or(&self.next);
        target.copy_from_slice(&data[offset as usize..][..target.len()]);
    }

    fn done(&mut self, cid: u16, completion: &Cqe) {
        self.done.insert(cid, completion.status.0);
    }
}

pub struct Queue {
    pub stream: TcpStream,
    pub host: Host,
}

impl Queue {
    pub fn open(address: SocketAddr, options: HostOptions) -> Self {
        let stream = TcpStream::connect(address).expect("a listener");
        let mut queue = Self {
            stream,
            host: Host::new(options),
        };
        while !queue.host.is_connected() {
            queue.turn(&mut Work::default());
        }
        queue
    }

    pub fn turn(&mut self, work: &mut Work) {
        self.try_turn(work).expect("an open connection");
    }

    /// Sends what there is, and receives once.
    fn try_turn(&mut self, work: &mut Work) -> io::Result<()> {
        self.stream.write_all(self.host.outgoing())?;
        self.host.sent(self.host.outgoing().len());
        let mut bytes = [0; 65_536];
        let count = self.stream.read(&mut bytes)?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        self.host.receive(&bytes[..count], work);
        assert_eq!(self.host.failed(), None);
        Ok(())
    }

    /// Runs commands together; gives back the data of each.
    pub fn run(&mut self, commands: Vec<(Sqe, Data, Vec<u8>)>) -> Vec<Vec<u8>> {
        self.try_run(commands).expect("an open connection")
    }

    /// As [`Queue::run`], with a target that may end the connection or refuse for it stops.
    pub fn try_run(&mut self, commands: Vec<(Sqe, Data, Vec<u8>)>) -> io::Result<Vec<Vec<u8>>> {
        let mut work = Work::default();
        let mut order = Vec::new();
        for (sqe, data, payload) in commands {
            work.next = payload;
            let cid = self
                .host
                .submit(sqe, data, &mut work)
                .expect("the queue has room");
            let payload = std::mem::take(&mut work.next);
            if matches!(data, Data::Out(_)) {
                work.data.insert(cid, payload);
            }
            order.push(cid);
        }
        while work.done.len() < order.len() {
            self.try_turn(&mut work)?;
        }
        if work.done.values().any(|&status| status == Status::PATH.0) {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        assert!(work.done.values().all(|&status| status == 0), "{:?}", work.done);
        let data = order.iter().map(|cid| work.data.remove(cid).unwrap_or_default());
        Ok(data.collect())
    }

    pub fn one(&mut self, (sqe, data): (Sqe, Data), payload: Vec<u8>) -> Vec<u8> {
        self.run(vec![(sqe, data, payload)]).remove(0)
    }
}

impl Queue {
    /// Runs a command that may be refused: its status, and what it read.
    pub fn try_one(&mut self, (sqe, data): (Sqe, Data), payload: Vec<u8>) -> (Status, Vec<u8>) {
        let mut work = Work {
            next: payload,
            ..Work::default()
        };
        let cid = self.host.submit(sqe, data, &mut work);
        let cid = cid.expect("the queue has room");
        if matches!(data, Data::Out(_)) {
            work.data.insert(cid, std::mem::take(&mut work.next));
        }
        loop {
            self.turn(&mut work);
            if let Some(&status) = work.done.get(&cid) {
                return (Status(status), work.data.remove(&cid).unwrap_or_default());
            }
        }
    }
}

/// An admin queue and I/O queues of one controller.
pub fn connect(address: SocketAddr, name: &str, queues: u16, digests: bool) -> (Queue, Vec<Queue>) {
    connect_as("nqn.2026-11.io.switchyard:test", address, name, queues, digests)
}

/// [`connect`] as a host of this name.
pub fn connect_as(
    host_nqn: &str,
    address: SocketAddr,
    name: &str,
    queues: u16,
    digests: bool,
) -> (Queue, Vec<Queue>) {
    let options = HostOptions {
        header_digest: digests,
        data_digest: digests,
        sq_flow: digests,
        ..HostOptions::admin(&format!("nqn.2026-11.io.switchyard:{name}"), host_nqn)
    };
    let mut admin = Queue::open(address, options.clone());
    admin.one(Sqe::set_property(0x14, 1 | 6 << 16 | 4 << 20), Vec::new());
    let cntlid = admin.host.cntlid();
    let io = (1..=queues)
        .map(|id| Queue::open(address, options.io(cntlid, id, 64)))
        .collect();
    (admin, io)
}
