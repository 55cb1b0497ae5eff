//! `switchyard kv`: a key-value store that speaks RESP, and what it tells.

mod serve;
mod status;

use clap::{Args, Subcommand};

/// `switchyard kv`.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  switchyard kv serve                                in memory, at 127.0.0.1:6379\n  \
    switchyard kv serve --dir keys --shards 4          every write durable before it is answered\n  \
    switchyard kv serve --tcp 10.9.0.2/24 --shards 2   by user-level TCP, at 10.9.0.2 and 10.9.0.3 behind a hub\n  \
    redis-benchmark -t set,get                         any client of Redis\n  switchyard kv status --json"
)]
pub struct KvArgs {
    /// Print JSON
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: KvCommand,
}

#[derive(Subcommand)]
enum KvCommand {
    /// Serve keys until Ctrl-C
    Serve(serve::ServeArgs),
    /// Show a running server
    Status(status::StatusArgs),
}

/// Runs it.
pub fn run(args: &KvArgs) -> anyhow::Result<()> {
    match &args.command {
        KvCommand::Serve(serve) => serve::run(serve, args.json),
        KvCommand::Status(status) => status::run(status, args.json),
    }
}
