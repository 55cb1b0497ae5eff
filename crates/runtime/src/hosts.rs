//! The hosts, as the runtime drives them.

use crate::RackHost;
use base::Instant;
use base::event::Source;
use host::{Controller, Disk, Gateway, Node, Tor};
use std::any::Any;
use wire::nbd::Export;

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
