//! The command line: arguments, help, and which module carries a command out.

use crate::areas::AreasArgs;
use crate::bench::BenchArgs;
use crate::config::{Collecting, GcPolicy, Options, Scheduler, Scheduling};
use crate::events;
use crate::profiling::ProfileArgs;
use crate::run::{ExportArgs, RunArgs};
use crate::serve::ServeArgs;
use crate::simulate::SimCommand;
use crate::size::Size;
use crate::store::StoreCommand;
use crate::volume::VolumeCommand;
use crate::{
    areas, bench, parts, profiling, rackup, run, serve, simulate, status, store, top, verify, volume,
};
use base::{Addr, NodeId};
use clap::{Args, Parser, Subcommand};
use std::net::{SocketAddr, SocketAddrV4};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  switchyard up                                   a rack of four nodes with a 1 GiB volume `demo`
  nbdinfo nbd://127.0.0.1:10809/demo              look at the volume with any NBD client
  switchyard volume create db --size 2GiB         another volume
  switchyard top                                  what the rack does now
  switchyard bench                                latency and rate of the volume `demo`
  switchyard verify rack-data                     check every medium after stopping the rack

Exit codes:
  0  done
  1  failed, or `verify` found problems
  2  wrong usage or configuration; `verify` cannot check the medium
  3  no rack answers at the control address, or no server of areas at its socket
  4  a directory, medium or address is in use";

#[derive(Parser)]
#[command(name = "switchyard", version, about = "Storage in user space: a rack of \
    software-defined flash, NVMe/TCP and NBD targets, storage areas for programs, an I/O profiler", after_help = EXAMPLES, max_term_width = 110)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Run a whole rack in this process until Ctrl-C
    Up(Box<UpArgs>),
    /// Serve volumes of this machine: memory, files, block devices
    Serve(Box<ServeArgs>),
    /// Run one storage server of a rack
    Node(Box<NodeArgs>),
    /// Run the switch of a rack
    Tor(TorArgs),
    /// Run the gateway of a rack, where clients enter
    Gateway(Box<GatewayArgs>),
    /// Create, list, show, resize and delete volumes
    Volume(VolumeArgs),
    /// Show a running rack
    Status(StatusArgs),
    /// Show a running rack, refreshed each second
    Top(TopArgs),
    /// Show what happened in a running rack, and why
    Events(EventsArgs),
    /// Measure latency and rate of a volume, any NBD export, a file or a device
    Bench(BenchArgs),
    /// Run experiments in the deterministic simulator
    Sim(SimArgs),
    /// Show where the time of a program's I/O goes, layer by layer
    Profile(Box<ProfileArgs>),
    /// Check a stopped rack's media, or one medium
    Verify(VerifyArgs),
    /// Check, list or repair a storage area
    Store(StoreArgs),
    /// Serve storage areas to many programs, and manage them
    Areas(AreasArgs),
    /// Run a program and make its synced files durable through a storage area
    Run(RunArgs),
    /// Bring the files of `run` up to date, or copy them
    Export(ExportArgs),
}

/// `switchyard up`.
#[derive(Args)]
#[command(
    after_help = "Every flag is also a key of the configuration file; docs/configuration.md describes them.\n\n\
    Examples:\n  switchyard up --dir /srv/rack --size 16GiB --demo 8GiB\n  \
    switchyard up --media memory --timing p-ssd     flash of RackBlox's speed, kept in memory\n  \
    switchyard up --config rack.toml --json         one JSON line when ready, for scripts"
)]
pub struct UpArgs {
    /// Configuration file (TOML); flags override it
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    #[command(flatten)]
    pub options: Options,
    /// Print one JSON line when ready, nothing else on standard output
    #[arg(long)]
    pub json: bool,
}

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
    /// Print one JSON line when ready
    #[arg(long)]
    pub json: bool,
}

/// `switchyard node`.
#[derive(Args)]
#[command(
    after_help = "Example:\n  switchyard node --id 1 --listen 10.0.0.11:8888 --tor 10.0.0.1:8888 \
    --dir /srv/switchyard --size 64GiB\n\nThe medium is formatted at the first start."
)]
pub struct NodeArgs {
    /// The node's number in the rack, 1 to 255
    #[arg(long, value_name = "N")]
    pub id: u8,
    /// This machine's address for rack packets (UDP)
    #[arg(long, value_name = "IP:PORT")]
    pub listen: SocketAddrV4,
    /// The ToR's address
    #[arg(long, value_name = "IP:PORT")]
    pub tor: SocketAddrV4,
    /// Directory of the node's medium and lock [default: $SWITCHYARD_DIR or ./rack-data]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// The medium: a file, a block device, or `memory` [default: node-ID.img in the directory]
    #[arg(long, value_name = "PATH")]
    pub media: Option<String>,
    /// Size of a new medium [default: 4GiB]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Channels of a new SSD [default: 16]
    #[arg(long, value_name = "N")]
    pub channels: Option<u32>,
    /// Chips behind each channel of a new SSD [default: 1]
    #[arg(long, value_name = "N")]
    pub chips: Option<u32>,
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
    /// Payload memory, reserved at start [default: 256MiB]
    #[arg(long, value_name = "SIZE")]
    pub pool: Option<Size>,
    /// Time that the thread polls after work before it sleeps, in µs [default: 50]
    #[arg(long, value_name = "US")]
    pub spin_us: Option<u64>,
    /// Serve the control API and /metrics here
    #[arg(long, value_name = "IP:PORT")]
    pub control: Option<SocketAddr>,
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
            spin_us: self.spin_us,
            ..Options::default()
        }
    }
}

/// `switchyard gateway`.
#[derive(Args)]
#[command(
    after_help = "Example:\n  switchyard gateway --listen 10.0.0.2:8888 --tor 10.0.0.1:8888 \
    --node 1=10.0.0.11:8888 --node 2=10.0.0.12:8888 --nbd 10.0.0.2:10809 --demo 1GiB\n\n\
    The registry remembers nodes. Name a node again only if its address changes."
)]
pub struct GatewayArgs {
    /// This machine's address for rack packets (UDP)
    #[arg(long, value_name = "IP:PORT")]
    pub listen: SocketAddrV4,
    /// The ToR's address
    #[arg(long, value_name = "IP:PORT")]
    pub tor: SocketAddrV4,
    /// A storage server; repeat it for each
    #[arg(long = "node", value_name = "ID=IP:PORT", value_parser = parts::parse_node)]
    pub nodes: Vec<(NodeId, Addr)>,
    /// Directory of the registry and lock [default: $SWITCHYARD_DIR or ./rack-data]
    #[arg(long, value_name = "DIR")]
    pub dir: Option<PathBuf>,
    /// Directory of a registry that several gateways share; one serves, the others stand by
    #[arg(long, value_name = "DIR")]
    pub registry: Option<PathBuf>,
    /// Address for NBD clients [default: 127.0.0.1:10809]
    #[arg(long, value_name = "IP:PORT")]
    pub nbd: Option<SocketAddr>,
    /// Address for NVMe/TCP hosts, such as 10.0.0.2:4420 [default: none]
    #[arg(long, value_name = "IP:PORT")]
    pub nvme: Option<SocketAddr>,
    /// Address for the commands and Prometheus [default: 127.0.0.1:9180]
    #[arg(long, value_name = "IP:PORT")]
    pub control: Option<SocketAddr>,
    /// Create the volume `demo` of this size at the first start
    #[arg(long, value_name = "SIZE")]
    pub demo: Option<Size>,
    /// Copies of a volume that `volume create` makes without --replicas [default: 2]
    #[arg(long, value_name = "N")]
    pub replicas: Option<u8>,
    /// Seconds until an unanswered request of a client fails [default: 30]
    #[arg(long, value_name = "S")]
    pub request_timeout_s: Option<u64>,
    /// Print one JSON line when ready
    #[arg(long)]
    pub json: bool,
}

impl GatewayArgs {
    /// The part of a rack's options that a gateway has.
    pub fn options(&self) -> Options {
        Options {
            dir: self.dir.clone(),
            nbd: self.nbd,
            nvme: self.nvme,
            control: self.control,
            demo: self.demo,
            replicas: self.replicas,
            request_timeout_s: self.request_timeout_s,
            ..Options::default()
        }
    }
}

/// Which rack a command asks.
#[derive(Args)]
pub struct Target {
    /// Control address of the rack
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://127.0.0.1:9180",
        global = true
    )]
    pub control: String,
    /// Print JSON
    #[arg(long, global = true)]
    pub json: bool,
}

/// `switchyard volume`.
#[derive(Args)]
pub struct VolumeArgs {
    #[command(flatten)]
    pub target: Target,
    #[command(subcommand)]
    pub command: VolumeCommand,
}

/// `switchyard status`.
#[derive(Args)]
#[command(after_help = "Examples:\n  switchyard status\n  switchyard status --json | jq .volumes")]
pub struct StatusArgs {
    #[command(flatten)]
    pub target: Target,
}

/// `switchyard top`.
#[derive(Args)]
#[command(after_help = "Example:\n  switchyard top --count 10 --json | jq .read_iops")]
pub struct TopArgs {
    #[command(flatten)]
    pub target: Target,
    /// Number of refreshes; then stop
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Seconds between refreshes
    #[arg(long, value_name = "S", default_value_t = 1.0, allow_negative_numbers = true)]
    pub interval: f64,
}

/// `switchyard events`.
#[derive(Args)]
#[command(
    after_help = "docs/events.md says of each event what it means and what to do.\n\nExamples:\n  switchyard events\n  \
    switchyard events --follow --level debug\n  switchyard events --json | jq 'select(.name == \"lease-lapsed\")'"
)]
pub struct EventsArgs {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub wanted: events::Wanted,
}

/// `switchyard sim`.
#[derive(Args)]
pub struct SimArgs {
    #[command(subcommand)]
    pub command: SimCommand,
}

/// `switchyard verify`.
#[derive(Args)]
#[command(
    after_help = "Exit codes: 0 clean, 1 problems found, 2 the medium is in use or not a rack's.\n\n\
    Examples:\n  switchyard verify rack-data\n  switchyard verify rack-data/node-2.img --json"
)]
pub struct VerifyArgs {
    /// A rack's directory, or one medium
    #[arg(value_name = "DIR|FILE")]
    pub path: PathBuf,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// `switchyard store`.
#[derive(Args)]
#[command(
    after_help = "Exit codes: 0 sound, 1 damaged, 2 the file is in use or not an area.\n\n\
    Examples:\n  switchyard store verify app.area\n  switchyard store dump app.area --structure jobs\n  \
    switchyard store repair app.area --yes"
)]
pub struct StoreArgs {
    #[command(subcommand)]
    pub command: StoreCommand,
}

/// Reads the command line and does what it says.
pub fn run() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Up(args) => rackup::run(*args),
        Command::Serve(args) => serve::run(*args),
        Command::Node(args) => parts::node(*args),
        Command::Tor(args) => parts::tor(args),
        Command::Gateway(args) => parts::gateway(*args),
        Command::Volume(args) => volume::run(args),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Events(args) => events::run(&args.target.control, args.target.json, &args.wanted),
        Command::Bench(args) => bench::run(&args),
        Command::Sim(args) => simulate::run(args.command),
        Command::Profile(args) => profiling::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Store(args) => store::run(&args.command),
        Command::Areas(args) => areas::run(args),
        Command::Run(args) => run::run(&args),
        Command::Export(args) => run::export(&args),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }
}
