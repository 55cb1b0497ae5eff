//! `switchyard tcp`: a hub that connects programs by virtual NICs in shared memory, and what it tells.

mod serve;
mod status;

use clap::{Args, Subcommand};
use nic::shared::default_socket;
use std::path::PathBuf;

/// `switchyard tcp`.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  switchyard tcp serve                      programs of this user reach each other\n  \
    switchyard tcp serve --tap sw0            and the kernel, at interface sw0\n  \
    switchyard tcp serve --uplink eth1        and hosts behind eth1\n  switchyard tcp status --json\n\n\
    Programs attach with the library: nic::shared::attach, sockets::Sockets (Rust). `switchyard bench tcp` measures it."
)]
pub struct TcpArgs {
    /// Socket of the hub [default: $SWITCHYARD_TCP; or /run/switchyard/tcp.sock for root,
    /// $XDG_RUNTIME_DIR/switchyard-tcp.sock for other users]
    #[arg(long, value_name = "PATH", global = true)]
    socket: Option<PathBuf>,
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: TcpCommand,
}

#[derive(Subcommand)]
enum TcpCommand {
    /// Serve virtual NICs until Ctrl-C
    Serve(serve::ServeArgs),
    /// Show the ports of a running hub
    Status,
}

/// Runs it.
pub fn run(args: TcpArgs) -> anyhow::Result<()> {
    let is_hub = matches!(args.command, TcpCommand::Serve(_));
    let socket = args.socket.unwrap_or_else(|| default_socket(is_hub));
    match args.command {
        TcpCommand::Serve(serve) => serve::run(&serve, &socket, args.json),
        TcpCommand::Status => status::run(&socket, args.json),
    }
}
