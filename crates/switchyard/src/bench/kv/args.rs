//! Arguments of `bench kv`, and the servers that they name.

use crate::size::Size;
use clap::Args;
use std::path::PathBuf;

/// `switchyard bench kv`.
#[derive(Args)]
#[command(after_help = "Needs redis-server.\n\n\
    Examples:\n  switchyard bench kv --dir /srv\n  switchyard bench kv --shards 2 --clients 50 --json\n  \
    switchyard bench kv --steering --keys 1000000")]
pub struct KvArgs {
    /// Directory on the file system to measure, for files that the command removes again
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Threads of our server
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub shards: usize,
    /// Bytes of a value
    #[arg(long, value_name = "SIZE", default_value = "100")]
    pub bytes: Size,
    /// Keys
    #[arg(long, value_name = "N", default_value_t = 100_000)]
    pub keys: u64,
    /// Connections
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,50")]
    pub clients: Vec<usize>,
    /// Requests under way on each connection
    #[arg(long, value_name = "N,…", value_delimiter = ',', default_value = "1,16")]
    pub pipeline: Vec<usize>,
    /// Sides: durable, memory
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "durable,memory"
    )]
    pub sides: Vec<Kind>,
    /// Seconds of each case
    #[arg(long, value_name = "S", default_value_t = 1.0, allow_negative_numbers = true)]
    pub seconds: f64,
    /// Rounds; the report has medians
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub rounds: usize,
    /// Port of the servers
    #[arg(long, value_name = "PORT", default_value_t = 16_379)]
    pub port: u16,
    /// Measure two threads in this process instead: striped locks beside shards
    #[arg(long)]
    pub steering: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// What servers keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Kind {
    /// Every write, before its answer.
    Durable,
    /// Nothing.
    Memory,
}

/// A server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Ours, durable.
    Ours,
    /// Redis with `appendfsync always`.
    Redis,
    /// Ours without a directory.
    OursMemory,
    /// Redis without persistence.
    RedisMemory,
}

impl Side {
    /// As reports name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ours => "switchyard, always",
            Self::Redis => "redis, always",
            Self::OursMemory => "switchyard, memory",
            Self::RedisMemory => "redis, memory",
        }
    }

    /// Its counterpart of Redis.
    pub fn redis(self) -> Self {
        match self {
            Self::Ours | Self::Redis => Self::Redis,
            Self::OursMemory | Self::RedisMemory => Self::RedisMemory,
        }
    }
}
