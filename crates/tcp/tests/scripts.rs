//! Scripts in the manner of packetdrill: what a peer sends at which time, and what the stack has to answer when.
//!
//! | line | meaning |
//! | --- | --- |
//! | `set KEY VALUE` | the stack's configuration, before everything else |
//! | `+T < FLAGS SEQ:END(BYTES) ack N win N <options> ce` | after `T` seconds the peer sends a segment |
//! | `+T > FLAGS SEQ:END(BYTES) ack N win N <options> ect` | the stack sends exactly this then |
//! | `+T quiet` | the stack has sent nothing until then |
//! | `+T listen`, `connect`, `write N`, `read N`, `shutdown`, `close`, `abort`, `nodelay`, `keepalive IDLE INTERVAL N` | what the application does |
//! | `+T open`, `readable N`, `freed N`, `ended`, `closed END` | what the application has been told by then |
//! | `+T toobig MTU SEQ` | a router reports a segment that was too long |
//!
//! Numbers are relative to each side's SYN. Flags are `S F R P E W` and `.` for ACK. Options are `mss N`, `ts N`, `ws N`: the
//! value of `ts` is the peer's clock, sent or echoed. A time may be missed by a millisecond, or by a hundredth.

use crate::common::{MACS, Memory, ip, too_big};
use base::{Duration, Instant};
use std::collections::VecDeque;
use tcp::addr::{Endpoint, Tuple};
use tcp::api::{Call, Event, FlowId, Moved, News, Request, Rings, Setting};
use tcp::config::{Config, EcnMode, KeepAlive};
use tcp::frame::arp::Arp;
use tcp::frame::segment::Segment;
use tcp::frame::{self, Ecn, Flags, Hop, Options, Packet, Stamps};
use tcp::seq::Seq;
use tcp::stack::{Bump, Stack};

const OURS: Endpoint = Endpoint { ip: ip4(1), port: 80 };
const PEERS: Endpoint = Endpoint {
    ip: ip4(2),
    port: 5000,
};
/// The number of the peer's SYN: near the wrap.
const PEER_ISN: Seq = Seq(u32::MAX - 1000);

const fn ip4(last: u8) -> tcp::addr::Ip {
    tcp::addr::Ip::v4([10, 0, 0, last])
}

struct Script {
    name: String,
    line: usize,
    stack: Stack,
    rings: Rings,
    memory: Memory,
    now: Instant,
    /// The time of the script.
    at: Instant,
    sent: VecDeque<(Instant, Segment, Vec<u8>)>,
    flow: Option<FlowId>,
    iss: Seq,
    last_stamp: u32,
    readable_to: Seq,
    read_at: Seq,
    freed_to: Seq,
    write_from: Seq,
    is_open: bool,
    is_ended: bool,
    closed: Option<String>,
    last_frame: Vec<u8>,
}

fn seconds(text: &str) -> Duration {
    Duration::from_secs_f64(text.parse().expect("seconds"))
}

fn number(text: &str) -> u32 {
    text.parse().unwrap_or_else(|_| panic!("a number: {text}"))
}

impl Script {
    fn new(name: &str, text: &str) -> Self {
        assert_eq!((ip(0, false), ip(1, false)), (OURS.ip, PEERS.ip));
        let mut config = Config::new(MACS[0], OURS.ip, 24);
        config.timestamps = false;
        config.ack_delay = Duration::from_millis(40);
        config.rto_min = Duration::from_millis(200);
        let mut rings = Rings {
            receive: 16,
            transmit: 16,
        };
        for line in text.lines().filter_map(|line| line.strip_prefix("set ")) {
            let (key, value) = line.split_once(' ').expect("a key and a value");
            match key {
                "timestamps" => config.timestamps = value == "on",
                "ecn" if value == "classic" => config.ecn = EcnMode::Classic,
                "ecn" if value == "accurate" => config.ecn = EcnMode::Accurate,
                "mtu" => config.mtu = number(value) as u16,
                "ring" => {
                    rings.receive = number(value) as u8;
                    rings.transmit = number(value) as u8;
                }
                "user_timeout" => config.user_timeout = seconds(value),
                "fin_wait" => config.fin_wait = seconds(value),
                "time_wait" => config.time_wait = seconds(value),
                "syn_retries" => config.syn_retries = number(value) as u8,
                _ => panic!("no such key: {line}"),
            }
        }
        let now = Instant::from_nanos(5_000_000_000);
        let memory = Memory {
            sizes: Some(rings),
            ..Memory::default()
        };
        Self {
            name: name.to_string(),
            line: 0,
            stack: Stack::new(config),
            rings,
            memory,
            now,
            at: now,
            sent: VecDeque::new(),
            flow: None,
            iss: Seq(0),
            last_stamp: 0,
            readable_to: Seq(0),
            read_at: Seq(0),
            freed_to: Seq(0),
            write_from: Seq(0),
            is_open: false,
            is_ended: false,
            closed: None,
            last_frame: Vec::new(),
        }
    }

    fn place(&self) -> String {
        format!("{}:{}", self.name, self.line)
    }

    /// Lets the stack say all it wants. ARP is answered at once.
    fn settle(&mut self) {
        let mut buffer = vec![0; 70_000];
        loop {
            let mut is_quiet = true;
            while let Some(sent) = self.stack.transmit(self.now, &mut buffer, &mut self.memory) {
                is_quiet = false;
                self.take_frame(&buffer[..sent.bytes]);
            }
            while let Some(event) = self.stack.event() {
                is_quiet = false;
                self.take_event(event);
            }
            if is_quiet {
                break;
            }
        }
        self.stack.check();
    }

    fn take_frame(&mut self, frame: &[u8]) {
        match frame::parse(frame, true).expect("the stack's frames are right").1 {
            Packet::Tcp(segment, payload) => {
                if segment.flags.any(Flags::SYN) {
                    self.iss = segment.seq;
                }
                self.last_stamp = segment
                    .options
                    .stamps
                    .map_or(self.last_stamp, |stamps| stamps.value);
                self.last_frame = frame.to_vec();
                self.sent.push_back((self.now, segment, payload.to_vec()));
            }
            Packet::Arp(question) => {
                let answer = Arp {
                    is_reply: true,
                    sender_mac: MACS[1],
                    sender: question.target,
                    target_mac: MACS[0],
                    target: question.sender,
                };
                let mut frame = [0; 60];
                frame::emit_arp(hop(), &answer, &mut frame);
                self.stack.receive(self.now, &frame, &mut self.memory);
            }
            other => panic!("{}: {other:?}", self.place()),
        }
    }

    fn take_event(&mut self, event: Event) {
        match event.news {
            News::Connecting { flow } => self.flow = Some(flow),
            News::Open {
                flow,
                read_from,
                write_from,
                ..
            } => {
                self.flow = Some(flow);
                (self.is_open, self.is_ended, self.closed) = (true, false, None);
                (self.read_at, self.readable_to) = (read_from, read_from);
                (self.write_from, self.freed_to) = (write_from, write_from);
            }
            News::Moved(Moved {
                readable_to,
                freed_to,
                is_ended,
                ..
            }) => {
                (self.readable_to, self.freed_to, self.is_ended) = (readable_to, freed_to, is_ended);
            }
            News::Closed { end, .. } => self.closed = Some(format!("{end:?}").to_lowercase()),
            News::Done => {}
            News::Refused(refused) => panic!("{}: {refused}", self.place()),
        }
    }

    /// Runs until `until`, or until a frame is sent if `stops`.
    fn run(&mut self, until: Instant, stops: bool) {
        self.settle();
        while !stops || self.sent.is_empty() {
            match self.stack.deadline().filter(|deadline| *deadline <= until) {
                Some(deadline) => self.now = self.now.max(deadline),
                None => {
                    self.now = self.now.max(until);
                    return;
                }
            }
            self.stack.tick(self.now);
            self.settle();
        }
    }

    fn none_sent(&mut self) {
        let sent = self.sent.pop_front();
        assert!(sent.is_none(), "{}: the stack has sent {sent:?}", self.place());
    }

    fn step(&mut self, line: &str) {
        let (time, what) = line.split_once(' ').expect("a time and what happens");
        let wait = seconds(time.strip_prefix('+').expect("a time begins with +"));
        self.at += wait;
        let (verb, rest) = what.split_once(' ').unwrap_or((what, ""));
        if verb == ">" {
            return self.expect(rest, wait);
        }
        self.run(self.at, false);
        if matches!(verb, "<" | "quiet" | "write" | "read") {
            self.none_sent();
        }
        match verb {
            "<" => self.deliver(rest),
            "quiet" => {}
            "toobig" => {
                let (mtu, _) = rest.split_once(' ').unwrap_or((rest, ""));
                let report = too_big(&self.last_frame.clone(), number(mtu));
                self.stack.receive(self.now, &report, &mut self.memory);
            }
            "open" | "readable" | "freed" | "ended" | "closed" => self.told(verb, rest),
            _ => self.act(verb, rest),
        }
        self.settle();
    }

    fn told(&mut self, verb: &str, rest: &str) {
        let place = self.place();
        match verb {
            "open" => assert!(self.is_open, "{place}"),
            "ended" => assert!(self.is_ended, "{place}"),
            "readable" => assert_eq!(self.readable_to.since(self.read_at), number(rest), "{place}"),
            "freed" => assert_eq!(self.freed_to.since(self.write_from), number(rest), "{place}"),
            _ => assert_eq!(self.closed.as_deref(), Some(rest), "{place}"),
        }
    }

    fn act(&mut self, verb: &str, rest: &str) {
        let (rings, now) = (self.rings, self.now);
        let flow = || self.flow.unwrap_or_else(|| panic!("{}: no flow", self.place()));
        let words: Vec<_> = rest.split(' ').collect();
        let call = match verb {
            "listen" => Call::Listen {
                local: OURS,
                backlog: 4,
                rings,
            },
            "connect" => Call::Connect {
                remote: PEERS,
                port: OURS.port,
                rings,
            },
            "shutdown" => Call::Shutdown(flow()),
            "close" => Call::Close(flow()),
            "abort" => Call::Abort(flow()),
            "nodelay" => Call::Set(flow(), Setting::NoDelay(true)),
            "keepalive" => Call::Set(
                flow(),
                Setting::KeepAlive(Some(KeepAlive {
                    idle: seconds(words[0]),
                    interval: seconds(words[1]),
                    probes: number(words[2]) as u8,
                })),
            ),
            "write" | "read" => {
                let count = number(rest);
                let mut bump = Bump::default();
                if verb == "read" {
                    bump.read = count;
                    self.read_at += count;
                } else {
                    bump.written = count;
                }
                let flow = self.flow.expect("an open flow");
                return self.stack.bump(0, flow, bump).expect("the script counts right");
            }
            _ => panic!("{}: {verb}?", self.place()),
        };
        let request = Request {
            app: 0,
            opaque: 0,
            call,
        };
        self.stack.request(now, &request);
    }

    fn deliver(&mut self, text: &str) {
        let tuple = Tuple {
            local: PEERS,
            remote: OURS,
        };
        let mut segment = parse(text, tuple);
        segment.seq = PEER_ISN + segment.seq.0;
        if segment.flags.any(Flags::ACK) {
            segment.ack = self.iss + segment.ack.0;
        }
        if let Some(stamps) = &mut segment.options.stamps {
            stamps.echo = self.last_stamp;
        }
        let mut frame = vec![0; 70_000];
        let length = frame::emit(hop(), &segment, &mut frame, true);
        self.stack.receive(self.now, &frame[..length], &mut self.memory);
    }

    fn expect(&mut self, text: &str, wait: Duration) {
        let slack = (wait / 100).max(Duration::from_millis(1));
        self.run(self.at + slack, true);
        let place = self.place();
        let Some((at, mut sent, payload)) = self.sent.pop_front() else {
            panic!("{place}: nothing is sent instead of {text}");
        };
        assert!(
            at + slack >= self.at,
            "{place}: too early by {:?}: {sent:?}",
            self.at - at
        );
        self.at = self.at.max(at);
        let tuple = Tuple {
            local: OURS,
            remote: PEERS,
        };
        let mut expected = parse(text, tuple);
        expected.seq = self.iss + expected.seq.0;
        if expected.flags.any(Flags::ACK) {
            expected.ack = PEER_ISN + expected.ack.0;
        }
        if !text.contains("win") {
            sent.window = expected.window;
        }
        sent.plain = expected.plain;
        if let (Some(sent), Some(expected)) = (&mut sent.options.stamps, &mut expected.options.stamps) {
            // The script has what is echoed in the place of the value.
            (expected.echo, expected.value) = (expected.value, sent.value);
        }
        assert_eq!(sent, expected, "{place}");
        assert_eq!(payload.len() as u32, expected.payload_bytes, "{place}");
    }
}

fn hop() -> Hop {
    Hop {
        source: MACS[1],
        target: MACS[0],
    }
}

/// Reads a segment with relative numbers.
fn parse(text: &str, tuple: Tuple) -> Segment {
    let (text, options) = match text.split_once('<') {
        Some((text, rest)) => {
            let (options, after) = rest.split_once('>').expect("options end");
            (format!("{text} {after}"), options)
        }
        None => (text.to_string(), ""),
    };
    let words: Vec<_> = text.split_whitespace().collect();
    let mut flags = Flags::default();
    for letter in words[0].chars() {
        flags |= match letter {
            'S' => Flags::SYN,
            'F' => Flags::FIN,
            'R' => Flags::RST,
            'P' => Flags::PSH,
            'E' => Flags::ECE,
            'W' => Flags::CWR,
            '.' => Flags::ACK,
            _ => panic!("no such flag: {text}"),
        };
    }
    let (seq, rest) = words[1].split_once(':').expect("a range");
    let bytes = rest
        .split_once('(')
        .and_then(|(_, bytes)| bytes.strip_suffix(')'));
    let mut segment = Segment::new(tuple, Seq(number(seq)), Seq(0), flags);
    segment.payload_bytes = number(bytes.expect("a length"));
    segment.window = 65535;
    for (index, word) in words.iter().enumerate() {
        match *word {
            "ack" => segment.ack = Seq(number(words[index + 1])),
            "win" => segment.window = number(words[index + 1]) as u16,
            "ce" => segment.ecn = Ecn::Congested,
            "ect" => segment.ecn = Ecn::Able,
            _ => {}
        }
    }
    segment.options = parse_options(options);
    segment
}

fn parse_options(text: &str) -> Options {
    let mut options = Options::default();
    for option in text.split(',').filter(|option| !option.is_empty()) {
        let (kind, value) = option.split_once(' ').expect("an option and its value");
        let value = number(value);
        match kind {
            "mss" => options.mss = Some(value as u16),
            "ws" => options.scale = Some(value as u8),
            "ts" => options.stamps = Some(Stamps { value, echo: 0 }),
            _ => panic!("no such option: {text}"),
        }
    }
    options
}

fn run(name: &str, text: &str) {
    let mut script = Script::new(name, text);
    for (number, line) in text.lines().enumerate() {
        script.line = number + 1;
        let line = line.split("//").next().expect("a first part").trim();
        if !line.is_empty() && !line.starts_with("set ") {
            script.step(line);
        }
    }
    script.none_sent();
}

#[test]
fn every_script_runs_as_written() {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/scripts");
    let mut paths: Vec<_> = std::fs::read_dir(dir)
        .expect("there are scripts")
        .map(|entry| entry.expect("a file").path())
        .collect();
    paths.sort();
    assert!(paths.len() >= 25, "{} scripts", paths.len());
    let mut failed = Vec::new();
    for path in paths {
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("text");
        if std::panic::catch_unwind(|| run(&name, &text)).is_err() {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
#[should_panic(expected = "canary:3")]
fn a_script_that_is_not_followed_fails() {
    run(
        "canary",
        "+0 listen\n+0 < S 0:0(0) win 1000 <mss 1000>\n+0 > S. 0:0(0) ack 2 <mss 1460>\n",
    );
}
