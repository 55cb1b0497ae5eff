//! Settings from `switchyard run --tcp`, in the environment.

use crate::state::inside;
use nic::shared::default_socket;
use os::sync::OnceLock;
use std::net::IpAddr;
use std::path::PathBuf;
use tcp::addr::Ip;

/// Names the address and the network, as `10.9.0.2/24`.
const ADDRESS: &str = "SWITCHYARD_TCP_ADDRESS";

/// The hub, and the program's address there.
pub(crate) struct Settings {
    pub socket: PathBuf,
    pub ip: Ip,
    /// Bits of the network.
    pub bits: u8,
}

static SETTINGS: OnceLock<Option<Settings>> = OnceLock::new();

impl Settings {
    fn read() -> Option<Self> {
        let text = std::env::var(ADDRESS).ok()?;
        let (address, bits) = text.split_once('/')?;
        let ip = match address.parse().ok()? {
            IpAddr::V4(ip) => Ip::v4(ip.octets()),
            IpAddr::V6(ip) => Ip::v6(ip.octets()),
        };
        Some(Self {
            socket: default_socket(false),
            ip,
            bits: bits.parse().ok()?,
        })
    }

    /// Whether an address belongs to the hub's network.
    pub fn is_near(&self, ip: Ip) -> bool {
        ip.is_v4() == self.ip.is_v4() && ip.is_within(self.ip, self.bits)
    }
}

/// None in a program that is not one of `run --tcp`.
pub(crate) fn settings() -> Option<&'static Settings> {
    SETTINGS.get_or_init(|| inside(Settings::read)).as_ref()
}

/// True in a program of `run --tcp`.
pub(crate) fn is_run() -> bool {
    settings().is_some()
}
