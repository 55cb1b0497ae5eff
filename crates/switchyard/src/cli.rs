//! The command line: its commands. The module that carries a command out has its arguments.

use crate::areas::AreasArgs;
use crate::bench::BenchArgs;
use crate::events::EventsArgs;
use crate::fs::FsArgs;
use crate::kv::KvArgs;
use crate::nodes::NodeCommand;
use crate::profile::ProfileArgs;
use crate::records::RecordsArgs;
use crate::role::{gateway, node, tor, up};
use crate::run::{ExportArgs, KeeperArgs, RunArgs};
use crate::serve::ServeArgs;
use crate::sim::SimArgs;
use crate::status::StatusArgs;
use crate::store::StoreArgs;
use crate::tcp::TcpArgs;
use crate::top::TopArgs;
use crate::verify::VerifyArgs;
use crate::volume::VolumeArgs;
use crate::{
    areas, bench, events, fs, kv, nodes, profile, records, run, serve, sim, status, store, tcp, top, verify,
    volume,
};
use clap::{Parser, Subcommand};

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
  3  no rack answers at the control address, or not in time, or no server of areas or hub at its socket
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
    Up(Box<up::UpArgs>),
    /// Serve volumes of this machine: memory, files, block devices
    Serve(Box<ServeArgs>),
    /// Run one storage server of a rack; list, add, drain, remove and replace those of a running rack
    Node(Box<NodeCli>),
    /// Run the switch of a rack
    Tor(tor::TorArgs),
    /// Run the gateway of a rack, where clients enter
    Gateway(Box<gateway::GatewayArgs>),
    /// Create, list, show, change and delete volumes
    Volume(VolumeArgs),
    /// Show, back up or restore the registry of a rack
    Registry(RecordsArgs),
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
    /// Make, mount and check file systems on memory, flash and disks
    Fs(Box<FsArgs>),
    /// Serve storage areas to many programs, and manage them
    Areas(AreasArgs),
    /// Connect programs by user-level TCP: virtual NICs in shared memory, and an uplink
    Tcp(TcpArgs),
    /// Serve keys and values to clients of Redis
    Kv(Box<KvArgs>),
    /// Run a program and make its synced files durable through a storage area
    Run(RunArgs),
    /// Answer processes that have gone into the background, in the place of a `run` that has ended
    #[command(hide = true)]
    RunKeeper(KeeperArgs),
    /// Bring the files of `run` up to date, or copy them
    Export(ExportArgs),
}

/// `switchyard node`: the server itself, or a command for the nodes of a running rack.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
struct NodeCli {
    #[command(flatten)]
    run: Option<node::NodeArgs>,
    #[command(subcommand)]
    command: Option<NodeCommand>,
}

/// Reads the command line and does what it says.
pub fn run() -> anyhow::Result<()> {
    match Cli::parse().command {
        Command::Up(args) => up::run(*args),
        Command::Serve(args) => serve::run(*args),
        Command::Node(args) => match (args.command, args.run) {
            (Some(command), _) => nodes::run(command),
            (None, Some(args)) => node::run(args),
            (None, None) => unreachable!("one of them is required"),
        },
        Command::Tor(args) => tor::run(args),
        Command::Gateway(args) => gateway::run(*args),
        Command::Volume(args) => volume::run(args),
        Command::Registry(args) => records::run(args),
        Command::Status(args) => status::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Events(args) => events::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Sim(args) => sim::run(args),
        Command::Profile(args) => profile::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Store(args) => store::run(&args),
        Command::Fs(args) => fs::run(*args),
        Command::Areas(args) => areas::run(args),
        Command::Tcp(args) => tcp::run(args),
        Command::Kv(args) => kv::run(&args),
        Command::Run(args) => match (&args.fs, &args.tcp) {
            (Some(point), _) => crate::run_fs::run(&args, point),
            (None, Some(_)) => crate::run_tcp::run(&args),
            (None, None) => run::run(&args),
        },
        Command::RunKeeper(args) => run::keeper(&args),
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
