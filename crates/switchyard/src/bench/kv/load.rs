//! The load of `bench kv`: one thread, some connections, each with as many requests under way as asked. It is the same for every server.
//!
//! Each connection sends its requests in one write, waits for all replies, and sends the next. Every reply's bytes are known
//! before it comes, and all of them are compared.

use anyhow::{Context, ensure};
use hdrhistogram::Histogram;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

/// Latencies beyond are counted as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// A server that answers nothing for so long has failed.
const SILENCE: Timespec = Timespec {
    tv_sec: 20,
    tv_nsec: 0,
};

/// What is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Asked {
    /// SET of random keys.
    Set,
    /// GET of keys that are all there.
    Get,
    /// SET of all keys, one after the other.
    Fill,
}

/// The load of a run.
#[derive(Clone, Copy, Debug)]
pub struct Load {
    /// Of the server.
    pub address: SocketAddr,
    /// What is asked for.
    pub asked: Asked,
    /// Connections.
    pub clients: usize,
    /// Requests under way on each.
    pub pipeline: usize,
    /// Keys.
    pub keys: u64,
    /// Bytes of each value.
    pub value_bytes: usize,
    /// How long; [`Asked::Fill`] ends with the last key.
    pub time: Duration,
}

/// What came of it.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    /// Requests.
    pub requests: u64,
    /// Requests a second.
    pub per_second: f64,
    /// From the send of a connection's requests to its last reply, median.
    pub p50_us: f64,
    /// The same, of the slowest hundredth.
    pub p99_us: f64,
}

struct Connection {
    socket: TcpStream,
    sent: Instant,
    got: Vec<u8>,
}

struct Client {
    load: Load,
    random: base::Rng,
    next_key: u64,
    request: Vec<u8>,
    expected: Vec<u8>,
    requests: u64,
}

impl Client {
    /// Sends the next requests of a connection; false if there are none.
    fn send(&mut self, connection: &mut Connection) -> anyhow::Result<bool> {
        let load = &self.load;
        let left = match load.asked {
            Asked::Fill => (load.keys - self.next_key).min(load.pipeline as u64),
            _ => load.pipeline as u64,
        };
        // The replies of fewer requests would be others than expected: the last keys are set again.
        if left == 0 {
            return Ok(false);
        }
        self.request.clear();
        for _ in 0..load.pipeline {
            let key = match load.asked {
                Asked::Fill => {
                    self.next_key += 1;
                    (self.next_key - 1) % load.keys
                }
                _ => self.random.below(load.keys),
            };
            match load.asked {
                Asked::Get => write!(self.request, "*2\r\n$3\r\nGET\r\n$16\r\nkey:{key:012}\r\n")?,
                _ => {
                    let length = load.value_bytes;
                    write!(
                        self.request,
                        "*3\r\n$3\r\nSET\r\n$16\r\nkey:{key:012}\r\n${length}\r\n"
                    )?;
                    self.request.resize(self.request.len() + length, b'x');
                    self.request.extend_from_slice(b"\r\n");
                }
            }
        }
        self.next_key = self.next_key.min(load.keys);
        connection.sent = Instant::now();
        connection.got.clear();
        connection
            .socket
            .write_all(&self.request)
            .context("the server has closed a connection")?;
        Ok(true)
    }

    /// Reads what has come; true if all replies are there.
    fn receive(&self, connection: &mut Connection) -> anyhow::Result<bool> {
        connection.got.reserve(self.expected.len());
        let count = rustix::io::read(&connection.socket, spare_capacity(&mut connection.got))?;
        ensure!(count > 0, "the server has closed a connection");
        let got = &connection.got;
        ensure!(
            self.expected.get(..got.len()) == Some(got),
            "the server answers {:?}",
            String::from_utf8_lossy(&got[..got.len().min(200)])
        );
        Ok(got.len() == self.expected.len())
    }
}

fn expected(load: &Load) -> Vec<u8> {
    let reply = match load.asked {
        Asked::Get => {
            let mut reply = format!("${}\r\n", load.value_bytes).into_bytes();
            reply.resize(reply.len() + load.value_bytes, b'x');
            reply.extend_from_slice(b"\r\n");
            reply
        }
        _ => b"+OK\r\n".to_vec(),
    };
    reply.repeat(load.pipeline)
}

fn watched(connections: &[Connection]) -> anyhow::Result<OwnedFd> {
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    for (index, connection) in connections.iter().enumerate() {
        let data = epoll::EventData::new_u64(index as u64);
        epoll::add(&epoll, &connection.socket, data, epoll::EventFlags::IN)?;
    }
    Ok(epoll)
}

/// Puts the load on the server.
pub fn run(load: Load) -> anyhow::Result<Outcome> {
    let mut connections = Vec::with_capacity(load.clients);
    for _ in 0..load.clients {
        let socket = TcpStream::connect(load.address)?;
        socket.set_nodelay(true)?;
        let (sent, got) = (Instant::now(), Vec::new());
        connections.push(Connection { socket, sent, got });
    }
    let mut client = Client {
        load,
        random: base::Rng::new(1),
        next_key: 0,
        request: Vec::new(),
        expected: expected(&load),
        requests: 0,
    };
    let epoll = watched(&connections)?;
    let mut latency = Histogram::<u64>::new_with_bounds(1, LATENCY_NS_MAX, 3)?;
    let mut events: Vec<epoll::Event> = Vec::with_capacity(load.clients);
    let start = Instant::now();
    let mut under_way = 0;
    for connection in &mut connections {
        under_way += usize::from(client.send(connection)?);
    }
    while under_way > 0 {
        events.clear();
        let found = epoll::wait(&epoll, spare_capacity(&mut events), Some(&SILENCE))?;
        ensure!(found > 0, "the server does not answer any more");
        for event in &events {
            let connection = &mut connections[event.data.u64() as usize];
            if !client.receive(connection)? {
                continue;
            }
            let now = Instant::now();
            let taken = now - connection.sent;
            latency.saturating_record(taken.as_nanos() as u64);
            client.requests += load.pipeline as u64;
            let goes_on = load.asked == Asked::Fill || now - start < load.time;
            under_way -= usize::from(!goes_on || !client.send(connection)?);
        }
    }
    let us = |quantile| latency.value_at_quantile(quantile) as f64 / 1000.0;
    Ok(Outcome {
        requests: client.requests,
        per_second: client.requests as f64 / start.elapsed().as_secs_f64(),
        p50_us: us(0.5),
        p99_us: us(0.99),
    })
}
