//! Remote calls of 64 bytes between two stacks in one thread: how many instructions, and how long, is a call on each side?
//!
//! `cargo run --release -p switchyard-tcp --example rpc -- CALLS [checksums]`. With callgrind, the difference of two numbers of
//! calls is without the start: `valgrind --tool=callgrind target/release/examples/rpc CALLS`.

use base::{Duration, Instant};
use tcp::addr::{Endpoint, Ip, Mac};
use tcp::api::{Call, FlowId, News, Request, Rings};
use tcp::config::{Config, Segmentation};
use tcp::seq::Seq;
use tcp::stack::{Buffers, Bump, Stack, copy_in, copy_out};

const BYTES: usize = 64;
const RINGS: Rings = Rings {
    receive: 16,
    transmit: 16,
};

/// The rings of the one flow of a host.
struct Memory {
    receive: Vec<u8>,
    transmit: Vec<u8>,
}

impl Buffers for Memory {
    fn place(&mut self, _: FlowId, at: Seq, bytes: &[u8]) {
        copy_in(&mut self.receive, at, bytes);
    }
    fn fetch(&mut self, _: FlowId, at: Seq, bytes: &mut [u8]) {
        copy_out(&self.transmit, at, bytes);
    }
}

struct Host {
    stack: Stack,
    memory: Memory,
    flow: Option<FlowId>,
    read_at: Seq,
    readable_to: Seq,
}

impl Host {
    fn new(last: u8, checksums: bool) -> Self {
        let mut config = Config::new(Mac([2, 0, 0, 0, 0, last]), Ip::v4([10, 0, 0, last]), 24);
        config.checksums = checksums;
        config.segmentation = Segmentation::Link {
            payload_bytes_max: 60_000,
        };
        config.seed = u64::from(last);
        Self {
            stack: Stack::new(config),
            memory: Memory {
                receive: vec![0; 1 << RINGS.receive],
                transmit: vec![0; 1 << RINGS.transmit],
            },
            flow: None,
            read_at: Seq(0),
            readable_to: Seq(0),
        }
    }

    fn call(&mut self, now: Instant, call: Call) {
        let (app, opaque) = (0, 0);
        self.stack.request(now, &Request { app, opaque, call });
    }

    fn events(&mut self) {
        while let Some(event) = self.stack.event() {
            match event.news {
                News::Open { flow, read_from, .. } => {
                    self.flow = Some(flow);
                    (self.read_at, self.readable_to) = (read_from, read_from);
                }
                News::Moved(moved) => self.readable_to = moved.readable_to,
                _ => {}
            }
        }
    }

    /// Reads a call, if there is one, and writes one.
    fn answer(&mut self, must_read: bool) -> bool {
        let has_call = self.readable_to.since(self.read_at) as usize >= BYTES;
        if must_read && !has_call {
            return false;
        }
        let read = if has_call { BYTES as u32 } else { 0 };
        self.read_at += read;
        let bump = Bump {
            read,
            written: BYTES as u32,
        };
        let flow = self.flow.expect("it is open");
        self.stack.bump(0, flow, bump).expect("there is room");
        true
    }
}

/// Carries every frame of one host to the other.
fn carry(now: Instant, from: &mut Host, to: &mut Host, frame: &mut [u8]) {
    while let Some(sent) = from.stack.transmit(now, frame, &mut from.memory) {
        to.stack.receive(now, &frame[..sent.bytes], &mut to.memory);
    }
    to.events();
}

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let calls: u64 = arguments
        .get(1)
        .map_or(100_000, |text| text.parse().expect("CALLS is a number"));
    let checksums = arguments.iter().any(|argument| argument == "checksums");
    let (mut a, mut b) = (Host::new(1, checksums), Host::new(2, checksums));
    let mut frame = vec![0; 70_000];
    let mut now = Instant::from_nanos(1_000_000_000);
    let local = Endpoint {
        ip: Ip::v4([10, 0, 0, 2]),
        port: 7,
    };
    let (backlog, rings) = (1, RINGS);
    b.call(
        now,
        Call::Listen {
            local,
            backlog,
            rings,
        },
    );
    let (remote, port) = (local, 0);
    a.call(now, Call::Connect { remote, port, rings });
    for _ in 0..5 {
        carry(now, &mut a, &mut b, &mut frame);
        carry(now, &mut b, &mut a, &mut frame);
    }
    let mut answered = 0;
    for call in 0..calls {
        now += Duration::from_micros(1);
        a.answer(call > 0);
        carry(now, &mut a, &mut b, &mut frame);
        answered += u64::from(b.answer(true));
        carry(now, &mut b, &mut a, &mut frame);
        for host in [&mut a, &mut b] {
            if host.stack.deadline().is_some_and(|deadline| deadline <= now) {
                host.stack.tick(now);
            }
        }
    }
    println!("{answered} of {calls} calls were answered");
}
