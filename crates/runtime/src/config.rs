//! How a core is set up.

use crate::events::Teller;
use base::Duration;
use host::target::{ClassRules, Config};

/// How a core is set up.
#[derive(Clone, Debug)]
pub struct CoreConfig {
    /// Processor to pin the thread to; `None` leaves it to the scheduler.
    pub cpu: Option<usize>,
    /// Whose turn it is, and how much a turn does; the core's pages, shared by its hosts, are as many as at start. When
    /// no page is left, connections are not read and arriving pages are dropped, until some are returned. Every host's
    /// socket holds 64 of them.
    pub target: Config,
    /// How long a stopping core waits for answers to the requests it has taken.
    pub drain: Duration,
    /// Classes of clients that are given and not learned.
    pub classes: ClassRules,
    /// A medium that does not answer an operation within this is given up: the operation fails, and nothing is written to
    /// the medium any more.
    pub media_limit: Duration,
    /// Count where requests spend their time: some clock reads and a megabyte for the core.
    pub spans: bool,
    /// Where the core and its hosts tell of events; `None` drops them.
    pub events: Option<Teller>,
}

impl CoreConfig {
    /// The default with so many pages, polling for so long.
    pub fn with(pool_pages: usize, spin: Duration) -> Self {
        let mut config = Self::default();
        (config.target.pool_pages, config.target.spin) = (pool_pages, spin);
        config
    }
}

impl Default for CoreConfig {
    /// Not pinned, what ships but with 256 connections, 2 s to drain.
    fn default() -> Self {
        Self {
            cpu: None,
            target: Config {
                connections_max: 256,
                ..Config::default()
            },
            drain: Duration::from_secs(2),
            classes: ClassRules::default(),
            media_limit: base::device::LIMIT,
            spans: false,
            events: None,
        }
    }
}
