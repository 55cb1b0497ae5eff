//! Hosts, as the runtime drives them.

use crate::medium::Medium;
use crate::stream::Listen;
use base::event::Source;
use base::{Addr, Device, Instant, Machine, Pool};
use host::{Controller, Disk, Gateway, Node, Tor};
use std::any::Any;
use std::net::SocketAddrV4;
use wire::Export;

/// Why a host could not be built; shown to the user as it is.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// A host the runtime can drive.
pub trait RackHost: Machine<Input = host::Input, Output = host::Output> + 'static {
    /// Whose events these are. Asked once.
    fn source(&self) -> Source {
        Source::Core(0)
    }

    /// Exports that clients can open. Asked once per connection.
    fn exports(&self) -> Vec<Export> {
        Vec::new()
    }

    /// Ends cleanly: asked again and again when the core stops and its clients are answered, until it is true, which it
    /// is at once for hosts that whoever runs them has stopped before.
    fn stop(&mut self, _now: Instant) -> bool {
        true
    }

    /// The host itself, for [`CoreHandle::call`] to reach what is particular to it.
    fn as_any_mut(&mut self) -> &mut dyn Any;
}

/// What a host is given when it is built, on its core's thread.
pub struct Site<'a> {
    /// The core's pages.
    pub pool: &'a Pool,
    /// The host's medium, for formatting and recovery; later the host reaches it through its outputs only.
    pub medium: Option<&'a mut dyn Device>,
    /// Where the host's socket is bound, with the real port; all zeros without a socket.
    pub address: Addr,
    /// Now.
    pub now: Instant,
}

/// Builds a host on its core's thread (pages cannot leave it).
pub type Build = Box<dyn FnOnce(Site<'_>) -> Result<Box<dyn RackHost>, BoxError> + Send>;

/// One host of a core.
pub struct HostSpec {
    /// Where rack packets arrive (UDP); port 0 takes any free one. `None` for a host that sends and takes none.
    pub bind: Option<SocketAddrV4>,
    /// The host's medium; a host without one must not ask for media operations.
    pub medium: Option<Medium>,
    /// Makes the host.
    pub build: Build,
    /// Where clients of the host's volumes connect, and what they speak.
    pub listen: Vec<Listen>,
}

impl RackHost for Node {
    fn source(&self) -> Source {
        Source::Node(self.config().id)
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl RackHost for Tor {
    fn source(&self) -> Source {
        Source::Tor
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl RackHost for Controller {
    fn source(&self) -> Source {
        Source::Controller
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl RackHost for Gateway {
    fn source(&self) -> Source {
        Source::Gateway(0)
    }

    fn exports(&self) -> Vec<Export> {
        Gateway::exports(self)
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

impl RackHost for Disk {
    fn source(&self) -> Source {
        Source::Disk
    }

    fn stop(&mut self, now: Instant) -> bool {
        self.drain(now);
        self.is_quiet()
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
