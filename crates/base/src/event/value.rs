//! Types that events consist of.

use crate::{Addr, Duration, NodeId, VolumeId, VssdId};
use core::fmt;
use core::net::IpAddr;

/// How much an event matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Routine: it happens all the time on a busy rack.
    Debug,
    /// A change of state that an operator expects.
    Info,
    /// Something is slower or smaller than it should be, and mends itself.
    Warn,
    /// Somebody has to act.
    Error,
}

impl Level {
    /// The stable name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Debug => "debug",
            Self::Info => "info",
            Self::Warn => "warn",
            Self::Error => "error",
        }
    }
}

/// A host, or another part of a process, that tells of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Source {
    /// The rack's switch.
    Tor,
    /// The central controller of the baselines.
    Controller,
    /// A storage server.
    Node(NodeId),
    /// Where clients enter a rack; by its number, where a world has several.
    Gateway(u16),
    /// The control plane.
    Operator,
    /// A vSSD that one machine serves by itself.
    Disk,
    /// A core that takes clients, by its number.
    Core(u16),
    /// The server of storage areas.
    Areas,
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tor => f.write_str("tor"),
            Self::Controller => f.write_str("controller"),
            Self::Node(node) => write!(f, "node-{}", node.0),
            Self::Gateway(0) => f.write_str("gateway"),
            Self::Gateway(number) => write!(f, "gateway-{number}"),
            Self::Operator => f.write_str("operator"),
            Self::Disk => f.write_str("disk"),
            Self::Core(core) => write!(f, "core-{core}"),
            Self::Areas => f.write_str("areas"),
        }
    }
}

/// The value of an event's field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number or a count.
    Number(u64),
    /// The stable name of a reason.
    Name(&'static str),
    /// A host of the rack.
    Host(Addr),
    /// A client's machine.
    Client(IpAddr),
    /// A time.
    Time(Duration),
}

macro_rules! value_of {
    ($($type:ty: $value:ident => $made:expr;)+) => {
        $(impl From<$type> for Value {
            fn from($value: $type) -> Self {
                $made
            }
        })+
    };
}

value_of! {
    &'static str: name => Self::Name(name);
    u16: value => Self::Number(u64::from(value));
    u32: value => Self::Number(u64::from(value));
    u64: value => Self::Number(value);
    NodeId: value => Self::Number(u64::from(value.0));
    VssdId: value => Self::Number(u64::from(value.0));
    VolumeId: value => Self::Number(u64::from(value.0));
    Addr: value => Self::Host(value);
    IpAddr: value => Self::Client(value);
    Duration: value => Self::Time(value);
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number(number) => number.fmt(f),
            Self::Name(name) => f.write_str(name),
            Self::Host(addr) => addr.fmt(f),
            Self::Client(ip) => ip.fmt(f),
            Self::Time(time) => write!(f, "{time:?}"),
        }
    }
}
