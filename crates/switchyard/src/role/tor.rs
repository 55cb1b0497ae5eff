//! `switchyard tor`: the switch of a rack.

use super::{FIRST, about, reachable, ready, serve_control};
use crate::config::{Config, Options};
use crate::launch::{self, Says};
use crate::operator::{Part, Pieces};
use base::Addr;
use clap::Args;
use host::{Tor, TorConfig};
use rack::level::Levels;
use runtime::{CoreConfig, HostSpec};
use std::net::{SocketAddr, SocketAddrV4};
use std::sync::Arc;

/// `switchyard tor`.
#[derive(Args)]
#[command(after_help = "Example:\n  switchyard tor --listen 10.0.0.1:8888")]
pub struct TorArgs {
    /// This machine's address for rack packets (UDP)
    #[arg(long, value_name = "IP:PORT")]
    pub listen: SocketAddrV4,
    /// Serve the control API and /metrics here
    #[arg(long, value_name = "IP:PORT")]
    pub control: Option<SocketAddr>,
    /// The highest level of the rack that this part may serve at, to keep the way back open [default: the newest]
    #[arg(long, value_name = "N")]
    pub level_max: Option<u8>,
    /// Print one JSON line when ready
    #[arg(long)]
    pub json: bool,
}

/// Runs until a signal.
pub fn run(args: TorArgs) -> anyhow::Result<()> {
    let says = Says { json: args.json };
    let signals = launch::signals()?;
    let addr = reachable("listen", args.listen)?;
    let config = Config::new(Options {
        level_max: args.level_max,
        ..Options::default()
    })?;
    let core = CoreConfig::with(config.pool_pages, config.spin);
    let pieces = Pieces {
        cores: vec![launch::start_core(
            core,
            vec![host(addr, config.levels)],
            &["the ToR".into()],
        )?],
        tor: Some(FIRST),
        ..Pieces::default()
    };
    signals.serving();
    let part = Arc::new(Part::new(about("tor", None, &config), pieces)?);
    let server = serve_control(args.control, &part)?;
    ready("tor", addr, server.as_ref(), &says);
    launch::serve(part, server, &signals, &says)
}

/// A ToR at this address.
pub(super) fn host(addr: Addr, levels: Levels) -> HostSpec {
    HostSpec {
        bind: Some(runtime::socket_addr(addr)),
        medium: None,
        build: Box::new(move |_| {
            let config = TorConfig {
                addr,
                gc_lease: rack::gc::TOR_LEASE,
                egress: None,
                levels,
            };
            Ok(Box::new(Tor::new(config)))
        }),
        listen: Vec::new(),
    }
}
