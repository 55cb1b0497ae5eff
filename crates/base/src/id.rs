//! Identifiers. A newtype each, so that one is never passed for another.

use core::fmt;

/// A virtual SSD, unique in the rack (RackBlox §3.3: 4 bytes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VssdId(pub u32);

/// A volume, unique in the registry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VolumeId(pub u32);

/// A storage server, unique in the registry; below 256, as it is part of a [`Version`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u8);

/// Logical page number within a vSSD, in pages of [`crate::limits::PAGE_BYTES`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lpn(pub u32);

/// Address of a host of the rack: IPv4 address and UDP port.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Addr {
    /// IPv4 address, host byte order.
    pub ip: u32,
    /// UDP port.
    pub port: u16,
}

impl Addr {
    /// The address `a.b.c.d:port`.
    pub const fn new(octets: [u8; 4], port: u16) -> Self {
        Self {
            ip: u32::from_be_bytes(octets),
            port,
        }
    }

    /// Nowhere: the value of an address field that is not used.
    pub const NONE: Self = Self { ip: 0, port: 0 };

    /// True for [`Addr::NONE`].
    pub const fn is_none(self) -> bool {
        self.ip == 0 && self.port == 0
    }
}

impl fmt::Display for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d] = self.ip.to_be_bytes();
        write!(f, "{a}.{b}.{c}.{d}:{}", self.port)
    }
}

impl fmt::Debug for Addr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Version of one page: Hermes' timestamp (version, node), compared lexicographically (ASPLOS'20 §3.1).
///
/// The node is the low byte, so the plain integer order is the right one. Zero means "never written".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u64);

impl Version {
    /// Of a page that was never written.
    pub const NONE: Self = Self(0);
    /// The highest start has counts from 2^54 on: nobody gets to 2^55, so a greater version is nonsense from outside.
    pub const PLAUSIBLE_MAX: Self = Self(1 << 63);
    /// A start has counts for so many writes of one page, as a power of two: four million. Starts are numbered by seconds, so only a
    /// page that is written more often in each second of a start reaches the counts of the next one.
    const COUNT_BITS: u32 = 22;

    /// The version that `node` gives to a write which follows `self`, in its start of this number. No other start gives it: what a
    /// member has in memory, and others go on without, is no later write's version.
    pub fn next(self, node: NodeId, boot: u32) -> Self {
        let first = u64::from(boot) << Self::COUNT_BITS;
        let count = first.max((self.0 >> 8) + 1);
        assert!(
            count < 1 << 56,
            "a page's version count does not wrap: versions from outside are plausible"
        );
        Self(count << 8 | u64::from(node.0))
    }

    /// The writer.
    pub fn node(self) -> NodeId {
        NodeId(self.0 as u8)
    }
}
