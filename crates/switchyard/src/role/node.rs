//! `switchyard node`: one storage server of a rack.

use super::{FIRST, about, reachable, ready, serve_control, tors};
use crate::config::{Collecting, GcPolicy, Scheduler, Scheduling};
use crate::config::{Config, Options};
use crate::datadir::{self, DataDir};
use crate::failure::Failure;
use crate::foreign::Consent;
use crate::launch::{self, Says};
use crate::operator::{Part, Pieces};
use crate::size::Size;
use anyhow::bail;
use base::NodeId;
use clap::Args;
use runtime::Medium;
use std::net::{SocketAddr, SocketAddrV4};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// `switchyard node`.
#[derive(Args)]
#[command(
    after_help = "Example:\n  switchyard node --id 1 --listen 10.0.0.11:8888 --tor 10.0.0.1:8888 \
    --dir /srv/switchyard --size 64GiB\n\nA medium in a file is formatted at the first start, a block device with --format."
)]
pub struct NodeArgs {
    /// The node's number in the rack, 1 to 255
    #[arg(long, value_name = "N")]
    pub id: u8,
    /// This machine's address for rack packets (UDP)
    #[arg(long, value_name = "IP:PORT")]
    pub listen: SocketAddrV4,
    /// The ToR's address; repeat it for a second ToR, which is used if the first does not answer
    #[arg(long = "tor", value_name = "IP:PORT", required = true)]
    pub tors: Vec<SocketAddrV4>,
    /// Directory of the node's medium and lock [default: $SWITCHYARD_DIR or ./rack-data]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The medium: a file, a block device, or `memory` [default: node-ID.img in the directory]
    #[arg(long, value_name = "PATH")]
    pub media: Option<String>,
    /// Make the block device of --media a vSSD if it holds nothing
    #[arg(long)]
    pub format: bool,
    /// With --format: make it a vSSD also if it holds this, which is DESTROYED
    #[arg(long, value_name = "NAME", requires = "format")]
    pub erase: Option<String>,
    /// Size of a new medium [default: 4GiB]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Channels of a new SSD [default: 16]
    #[arg(long, value_name = "N")]
    pub channels: Option<u32>,
    /// Chips behind each channel of a new SSD [default: 1]
    #[arg(long, value_name = "N")]
    pub chips: Option<u32>,
    /// Channels that software-isolated vSSDs share; with fewer, more vSSDs fit the node [default: all]
    #[arg(long, value_name = "N")]
    pub group_channels: Option<u32>,
    /// Emulated device time: p-ssd, intel-dc, optane, none, or a profile file [default: none]
    #[arg(long, value_name = "PROFILE")]
    pub timing: Option<String>,
    /// Share of the flash reserved for collection [default: 0.25]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    pub over_provisioning: Option<f64>,
    /// Scheduler of the reads and write-backs that wait for a vSSD's flash [default: fifo]
    #[arg(long, value_name = "NAME")]
    pub scheduler: Option<Scheduler>,
    /// Whether the scheduler orders by end-to-end time or by arrival [default: coordinated]
    #[arg(long, value_name = "POLICY")]
    pub scheduling: Option<Scheduling>,
    /// Reads' latency target (kyber) or expiry (deadline), in µs [default: RackBlox's]
    #[arg(long, value_name = "US")]
    pub read_target_us: Option<u64>,
    /// Write-backs' latency target or expiry, in µs [default: RackBlox's]
    #[arg(long, value_name = "US")]
    pub write_target_us: Option<u64>,
    /// Reads and write-backs in a vSSD's flash at once; the rest wait in the scheduler [default: 128]
    #[arg(long, value_name = "N")]
    pub device_depth: Option<usize>,
    /// Coordinator of garbage collection [default: rack]
    #[arg(long, value_name = "POLICY")]
    pub gc: Option<GcPolicy>,
    /// Effect of collection on other requests [default: preemptible]
    #[arg(long, value_name = "MODE")]
    pub gc_mode: Option<Collecting>,
    /// Payload memory at most [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    pub pool: Option<Size>,
    /// Time that the thread polls after work before it sleeps, in µs [default: 50]
    #[arg(long, value_name = "US")]
    pub spin_us: Option<u64>,
    /// Seconds until a medium's unanswered operation is given up and the medium takes no more writes [default: 30]
    #[arg(long, value_name = "S")]
    pub media_timeout_s: Option<u64>,
    /// The most that the node copies in a second, in MiB, when copies are rebuilt or moved [default: no cap]
    #[arg(long, value_name = "MIB")]
    pub copy_mib_per_s: Option<u64>,
    /// What the node reads of its own pages in a second while it is idle, in MiB, to find damage; 0 for nothing [default: 4]
    #[arg(long, value_name = "MIB")]
    pub scrub_mib_per_s: Option<u64>,
    /// Seconds from the begin of such a pass over all pages to that of the next one [default: 604800]
    #[arg(long, value_name = "S")]
    pub scrub_every_s: Option<u64>,
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

impl NodeArgs {
    /// The part of a rack's options that a node has.
    pub fn options(&self) -> Options {
        Options {
            dir: self.dir.clone(),
            size: self.size,
            channels: self.channels,
            chips: self.chips,
            group_channels: self.group_channels,
            timing: self.timing.clone(),
            over_provisioning: self.over_provisioning,
            scheduler: self.scheduler,
            scheduling: self.scheduling,
            read_target_us: self.read_target_us,
            write_target_us: self.write_target_us,
            device_depth: self.device_depth,
            gc: self.gc,
            gc_mode: self.gc_mode,
            pool: self.pool,
            // Clients are at gateways.
            connections: Some(1),
            spin_us: self.spin_us,
            media_timeout_s: self.media_timeout_s,
            copy_mib_per_s: self.copy_mib_per_s,
            scrub_mib_per_s: self.scrub_mib_per_s,
            scrub_every_s: self.scrub_every_s,
            level_max: self.level_max,
            ..Options::default()
        }
    }
}

/// Runs until a signal.
pub fn run(args: NodeArgs) -> anyhow::Result<()> {
    let says = Says { json: args.json };
    let signals = launch::signals()?;
    if args.id == 0 {
        bail!(Failure::Usage("--id takes 1 to 255, not 0".into()));
    }
    let (addr, tors) = (reachable("listen", args.listen)?, tors(&args.tors)?);
    // One node: its vSSDs share the whole pool.
    let options = Options {
        nodes: Some(1),
        replicas: Some(1),
        ..args.options()
    };
    let config = Config::new(options)?;
    if config.central().is_some() {
        bail!(Failure::Usage(
            "--gc controller works in `switchyard up` only: choose rack or none".into()
        ));
    }
    let id = NodeId(args.id);
    let (medium, dir, _lock) = medium(&args, &config, &says)?;
    if let Some(warning) = medium.warning() {
        says.note(&format!("node {}: {warning}", id.0));
    }
    let spec = launch::node_spec(config.node(id, addr, tors), medium);
    let name = format!("node {}", id.0);
    let pieces = Pieces {
        cores: vec![launch::start_core(
            config.core(0),
            vec![spec],
            core::slice::from_ref(&name),
        )?],
        nodes: vec![(id, FIRST)],
        ..Pieces::default()
    };
    signals.serving();
    let part = Arc::new(Part::new(about("node", dir, &config), pieces)?);
    launch::print_recovery(&part, &says)?;
    let server = serve_control(args.control, &part)?;
    ready(&name, addr, server.as_ref(), &says);
    launch::serve(part, server, &signals, &says)
}

type NodeMedium = (Medium, Option<PathBuf>, Option<DataDir>);

/// `memory`, a named file or device, or `node-N.img` in the node's directory.
fn medium(args: &NodeArgs, config: &Config, says: &Says) -> anyhow::Result<NodeMedium> {
    let note = |made: bool, path: &Path| {
        if made {
            says.note(&format!("node {}: formatted {}", args.id, path.display()));
        }
    };
    let consent = Consent {
        format: args.format,
        erase: args.erase.clone(),
    };
    match args.media.as_deref() {
        Some("memory") => {
            let medium = datadir::open_memory(config.media_bytes, config.shape)?;
            Ok((medium, None, None))
        }
        Some(path) => {
            let path = Path::new(path);
            let (medium, made) = datadir::open_named(path, config.media_bytes, config.shape, &consent)?;
            note(made, path);
            Ok((medium, Some(path.to_owned()), None))
        }
        None => {
            let dir = DataDir::lock(&config.dir)?;
            let path = dir.medium_path(args.id);
            let (medium, made) = datadir::open_file(&path, config.media_bytes, config.shape)?;
            note(made, &path);
            Ok((medium, Some(dir.path().to_owned()), Some(dir)))
        }
    }
}
