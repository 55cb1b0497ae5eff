//! The configuration of a target's cores. `serve` and the simulator make it with the same constructor.

use base::limits::PAGE_BYTES;
use base::{Duration, VolumeId};
use blockswitch::policy::{Balancing, Order};
use blockswitch::{Class, ClassHint, Policy};
use core::fmt;
use serde_json::Value;

/// Bytes that a turn reads from a connection at most: a gulp of a bulk write.
pub const READ_BYTES: usize = 128 << 10;
/// A turn with at most so many requests asks little at a time.
pub const SPARSE_REQUESTS: usize = 4;
/// Requests of one turn of a connection that asks much at a time, where turns are shared.
pub const TURN_REQUESTS_MAX: usize = 16;
/// The same while there are clients that ask little at a time: about as much work as one of their requests is.
pub const TURN_REQUESTS_BESIDE_SPARSE: usize = 4;
/// Clients that ask little at a time count as present for this long after the last request of one.
pub const SPARSE_LINGER: Duration = Duration::from_millis(1);
/// Turns in a row that do not ask who is ready, since the guess was right.
pub const GUESSES_MAX: u32 = 3;
/// A bulk connection with so many requests waiting is read later, several requests at once.
pub const ENOUGH_REQUESTS: u32 = 4;
/// Turns that such a connection passes over at most: among what waits in its socket may be a flush.
pub const PASSES_MAX: u8 = 3;
/// What a bulk request costs besides its bytes, in bytes: about a microsecond.
pub const REQUEST_BYTES: usize = 4 << 10;
/// What an answer takes besides its data, about.
pub const ANSWER_BYTES: usize = 64;
/// Answers of one connection are collected up to this, and then sent at once, where work is not cut into slices.
pub const SEND_BYTES_MAX: usize = 256 << 10;
/// A connection that is to move and is not at rest after this long stays: a client that does not read, or sends the rest
/// of a payload slowly, would otherwise be kept from going on.
pub const REST_TIME: Duration = Duration::from_millis(100);

/// Everything that decides whose turn it is, and how much a turn does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// The order of requests, the slices of bulk work, and what moves between cores.
    pub switch: blockswitch::Config,
    /// Connections of a core. A core closes one more at once.
    pub connections_max: usize,
    /// Requests that a connection has under way. A client that sends more is not read until some are answered.
    pub requests_max: usize,
    /// Pages of 4 KiB of a core's pool. Half of them at most hold payload under way.
    pub pool_pages: usize,
    /// A core polls at most this long after work before it sleeps. Zero never polls.
    pub spin: Duration,
}

impl Config {
    /// What ships, for a policy: 256 MiB of pages, 1024 connections of 128 requests, polling for 50 µs, slices of 352 KiB.
    /// Requests do not move: the core that executes a request also sends its answer, and only the connection's own can.
    pub const fn of(policy: Policy) -> Self {
        let mut config = Self::published(policy);
        config.switch.request_steering = false;
        config
    }

    /// The same, but a baseline moves requests between cores if its authors did (blk-switch). Only the simulator can,
    /// where a client has a connection to every core.
    pub const fn published(policy: Policy) -> Self {
        Self::around(blockswitch::Config::of(policy))
    }

    /// The same around a configuration of the switch: a step of a published breakdown.
    pub const fn around(switch: blockswitch::Config) -> Self {
        Self {
            switch,
            connections_max: 1024,
            requests_max: 128,
            pool_pages: 65_536,
            spin: Duration::from_micros(50),
        }
    }

    /// Requests that the session of any protocol has under way. Linux asks for an NVMe admin queue of 32 entries.
    pub fn session_requests_max(&self) -> usize {
        self.requests_max.clamp(32, usize::from(u16::MAX))
    }

    /// Payload that all connections of a core have under way at most.
    pub const fn payload_bytes_max(&self) -> u64 {
        (self.pool_pages / 2 * PAGE_BYTES) as u64
    }

    /// Payload that each connection has under way whatever the others do.
    pub const fn reserve_bytes(&self) -> u64 {
        self.payload_bytes_max() / 2 / self.connections_max as u64
    }

    /// A request beyond its connection's share is done in parts of so much: two of them fit the reserve.
    pub fn part_bytes(&self) -> u64 {
        let page = PAGE_BYTES as u64;
        (self.reserve_bytes() / 2 / page * page).max(page)
    }

    /// True if latency-bound work goes before bulk work that has begun: a core looks for it between any two slices.
    pub const fn prioritises(&self) -> bool {
        matches!(self.switch.order, Order::Strict | Order::Sliced)
    }

    /// True if work is done in slices, so that everybody's turn is bounded.
    pub const fn slices(&self) -> bool {
        matches!(self.switch.order, Order::Sliced)
    }

    /// Bulk work after which a core looks for latency-bound work. By request where requests are not cut.
    pub const fn slice_bytes(&self) -> usize {
        match self.switch.order {
            Order::Sliced => self.switch.slice_bytes as usize,
            Order::Strict => 1,
            _ => usize::MAX,
        }
    }

    /// Answers of one connection are collected up to this, and then sent at once. Ours: a slice of bulk work is one send,
    /// since every send wakes a client that has gone to sleep after the one before, which costs as much as tens of
    /// kilobytes.
    pub const fn batch_bytes(&self) -> usize {
        match self.switch.order {
            Order::Sliced => self.slice_bytes(),
            _ => SEND_BYTES_MAX,
        }
    }

    /// What a turn sends of answers that media gave, for a connection without work. As much as a slice. By request where
    /// requests are not cut: all that is there, as the published worker.
    pub const fn send_bytes(&self) -> usize {
        match self.switch.order {
            Order::Strict => SEND_BYTES_MAX,
            _ => self.slice_bytes(),
        }
    }

    /// Every setting by name, as `serve --show-config` and `sim run` print them.
    pub fn rows(&self) -> Vec<(&'static str, String)> {
        let switch = &self.switch;
        let order = match switch.order {
            Order::Fifo => "arrival",
            Order::RunToCompletion => "connections in turn",
            Order::RunToCompletionPriority => "connections in turn, latency first",
            Order::Strict => "latency first at every request",
            Order::Sliced => "latency first at every slice",
        };
        let request_steering = match switch.request_steering {
            false => "off",
            true => "as published",
        };
        let application_steering = match switch.application_steering {
            Balancing::Off => "off",
            Balancing::Published => "as published",
            Balancing::Switchyard => "by time spent",
        };
        let kib = |bytes: u64| format!("{} KiB", bytes >> 10);
        let us = |duration: Duration| format!("{} µs", duration.as_micros());
        let mut rows = vec![
            ("order", order.into()),
            ("request_steering", request_steering.into()),
            ("application_steering", application_steering.into()),
            ("promotion", switch.promotion.to_string()),
        ];
        match switch.order {
            Order::Strict => rows.extend([
                ("doorbell_requests", switch.doorbell_requests.to_string()),
                ("doorbell_bytes", kib(switch.doorbell_bytes.into())),
                ("doorbell_delay", us(switch.doorbell_delay)),
            ]),
            Order::Sliced => rows.extend([
                ("slice_bytes", kib(switch.slice_bytes.into())),
                ("turn_bytes", kib(switch.turn_bytes.into())),
                ("starvation_bytes", kib(switch.starvation_bytes.into())),
                ("starvation_delay", us(switch.starvation_delay)),
                ("turn_requests", TURN_REQUESTS_MAX.to_string()),
                (
                    "turn_requests_beside_sparse",
                    TURN_REQUESTS_BESIDE_SPARSE.to_string(),
                ),
                ("guesses", GUESSES_MAX.to_string()),
            ]),
            Order::Fifo | Order::RunToCompletion | Order::RunToCompletionPriority => {}
        }
        if switch.request_steering {
            rows.push(("threshold_requests", switch.threshold_requests.to_string()));
        }
        if switch.application_steering != Balancing::Off {
            rows.push(("balance_interval", us(switch.balance_interval)));
        }
        rows.extend([
            ("sparse_requests", SPARSE_REQUESTS.to_string()),
            ("enough_requests", ENOUGH_REQUESTS.to_string()),
            ("read_bytes", kib(READ_BYTES as u64)),
            ("connections", self.connections_max.to_string()),
            ("requests", self.requests_max.to_string()),
            ("payload_bytes", kib(self.payload_bytes_max())),
            ("spin", us(self.spin)),
        ]);
        rows
    }

    /// The same as an object.
    pub fn to_json(&self) -> Value {
        let rows = self.rows().into_iter();
        rows.map(|(name, value)| (name, Value::String(value))).collect()
    }
}

impl Default for Config {
    fn default() -> Self {
        Self::of(Policy::default())
    }
}

impl fmt::Display for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, value) in self.rows() {
            writeln!(f, "{name:<28}{value}")?;
        }
        Ok(())
    }
}

/// Classes that an operator gives to clients. Of several rules that match a request the first in this order counts, the
/// most specific: a host is one machine, a volume has several hosts, a port several volumes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClassRules {
    /// By the name (NQN) with which an NVMe host connects.
    pub hosts: Vec<(String, Class)>,
    /// By volume.
    pub volumes: Vec<(VolumeId, Class)>,
    /// By the port where clients connect.
    pub ports: Vec<(u16, Class)>,
}

impl ClassRules {
    /// What the rules say of a request: of an NVMe host of this name, if it is one, at this port and for this volume.
    pub fn hint(&self, host_nqn: Option<&str>, port: u16, volume: VolumeId) -> ClassHint {
        let by_host = host_nqn.and_then(|nqn| self.hosts.iter().find(|(of, _)| of == nqn));
        let by_volume = || {
            self.volumes
                .iter()
                .find(|(of, _)| *of == volume)
                .map(|rule| rule.1)
        };
        let by_port = || self.ports.iter().find(|(of, _)| *of == port).map(|rule| rule.1);
        by_host
            .map(|rule| rule.1)
            .or_else(by_volume)
            .or_else(by_port)
            .map_or(ClassHint::Auto, ClassHint::Fixed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_several_rules_the_most_specific_counts() {
        let rules = ClassRules {
            hosts: vec![("nqn.a".into(), Class::Throughput)],
            volumes: vec![(VolumeId(1), Class::Latency)],
            ports: vec![(4420, Class::Throughput)],
        };
        let (latency, throughput) = (Class::Latency, Class::Throughput);
        for (host_nqn, port, volume, expected) in [
            (Some("nqn.a"), 1, 1, ClassHint::Fixed(throughput)),
            (Some("nqn.ab"), 4420, 1, ClassHint::Fixed(latency)),
            (None, 4420, 1, ClassHint::Fixed(latency)),
            (None, 4420, 2, ClassHint::Fixed(throughput)),
            (Some("nqn.b"), 1, 2, ClassHint::Auto),
        ] {
            assert_eq!(rules.hint(host_nqn, port, VolumeId(volume)), expected);
        }
    }
}
