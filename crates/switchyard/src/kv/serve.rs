//! `switchyard kv serve`: starts the threads of `shards`, and ends them at a signal.

use crate::failure::{Failure, within};
use crate::launch;
use crate::machine;
use crate::size::Size;
use anyhow::Context;
use clap::{Args, ValueEnum};
use nic::shared::default_socket;
use shards::{
    AreaSizes, Durability, HubOptions, Listen, PlaceError, SHARDS_MAX, Server, ServerOptions, StartError,
};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

/// Between two looks whether every thread is alive.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Descriptors of a thread: its epoll, its bell, its area and what that needs.
const FILES_OF_SHARD: u64 = 16;
/// Memory of a shard, at least: a table and the longest values.
const SHARD_MEMORY_MIN: u64 = 1 << 20;

/// As [`Durability`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DurabilityArg {
    /// A write is answered when it is durable
    Always,
    /// A write is durable about a second after its answer
    Everysec,
    /// Keys are in memory alone
    None,
}

impl From<DurabilityArg> for Durability {
    fn from(arg: DurabilityArg) -> Self {
        match arg {
            DurabilityArg::Always => Self::Always,
            DurabilityArg::Everysec => Self::EverySecond,
            DurabilityArg::None => Self::None,
        }
    }
}

/// `switchyard kv serve`.
#[derive(Args)]
pub struct ServeArgs {
    /// Where clients connect. Nothing is authenticated: stay on networks that you trust
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:6379")]
    listen: SocketAddr,
    /// Threads, each with its share of the keys [default: 1]
    #[arg(long, value_name = "N", default_value_t = 1)]
    shards: usize,
    /// Directory of the storage areas, made if it is not there [default: none, keys are in memory alone]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
    /// When a write is answered [default: always with --dir, none without]
    #[arg(long, value_name = "WHEN")]
    durability: Option<DurabilityArg>,
    /// Memory of all keys; beyond, those used longest ago are evicted
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    memory_max: Size,
    /// Size of each shard's new area, which takes as many zeros; it grows to four times the shard's memory
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    area: Size,
    /// Connections at a time
    #[arg(long, value_name = "N", default_value_t = 10_000)]
    clients: u32,
    /// Serve by user-level TCP behind a hub (`switchyard tcp serve`): the address of the first shard and its network; the other
    /// shards have the addresses that follow
    #[arg(long, value_name = "IP/BITS", conflicts_with = "listen")]
    tcp: Option<String>,
    /// Port with --tcp
    #[arg(long, value_name = "PORT", default_value_t = 6379, requires = "tcp")]
    tcp_port: u16,
    /// Socket of the hub, with --tcp [default: as `switchyard tcp`]
    #[arg(long, value_name = "PATH", requires = "tcp")]
    hub: Option<PathBuf>,
    /// With --tcp: how long an idle thread looks for frames before it sleeps
    #[arg(long, value_name = "US", default_value_t = 0)]
    spin_us: u64,
    /// Let the kernel choose the processor of each thread
    #[arg(long)]
    no_pin: bool,
    /// Make no copies of hot keys at other shards
    #[arg(long)]
    no_copies: bool,
}

/// Runs it.
pub fn run(args: &ServeArgs, json: bool) -> anyhow::Result<()> {
    let options = options(args)?;
    let says = launch::Says { json };
    let wanted = 64 + FILES_OF_SHARD * options.shards as u64 + u64::from(options.clients_max);
    if launch::allow_files(wanted) < wanted {
        says.note("this process may have too few open files for --clients: raise `ulimit -Hn`");
    }
    let signals = launch::signals()?;
    let server = Server::start(&options).map_err(|error| explain(error, &options))?;
    signals.serving();
    tell(&server, &options, json);
    loop {
        if signals.wait(LOOK_EVERY)? {
            return server.stop().context("the server did not end well");
        }
        if !server.is_serving() {
            server.stop().context("the server has stopped")?;
            anyhow::bail!("a thread of the server has ended");
        }
    }
}

fn options(args: &ServeArgs) -> anyhow::Result<ServerOptions> {
    within("--shards", args.shards, 1..=SHARDS_MAX)?;
    within("--clients", args.clients, 1..=1_000_000)?;
    within("--spin-us", args.spin_us, 0..=1_000_000)?;
    let usage = |text: String| anyhow::Error::from(Failure::Usage(text));
    let share = args.memory_max.0 / args.shards as u64;
    if share < SHARD_MEMORY_MIN {
        return Err(usage(format!(
            "--memory-max {} is too little for {} shards: each needs 1 MiB",
            args.memory_max, args.shards
        )));
    }
    let durability = match (args.durability, &args.dir) {
        (Some(DurabilityArg::None), Some(_)) => {
            return Err(usage("--durability none keeps nothing: leave --dir out".into()));
        }
        (Some(DurabilityArg::Always | DurabilityArg::Everysec), None) => {
            return Err(usage(
                "--durability always and everysec need --dir DIR, where keys are kept".into(),
            ));
        }
        (Some(durability), _) => durability.into(),
        (None, Some(_)) => Durability::Always,
        (None, None) => Durability::None,
    };
    let first = args.area.0;
    Ok(ServerOptions {
        listen: listen(args)?,
        shards: args.shards,
        dir: args.dir.clone(),
        durability,
        memory_max: args.memory_max.0,
        area: AreaSizes {
            first,
            most: first.max(share.saturating_mul(4)),
        },
        pins: !args.no_pin && args.shards > 1 && args.shards <= machine::about().processors,
        copies: !args.no_copies,
        spin: Duration::from_micros(args.spin_us),
        clients_max: args.clients,
        version: env!("CARGO_PKG_VERSION").into(),
    })
}

fn listen(args: &ServeArgs) -> anyhow::Result<Listen> {
    let Some(text) = &args.tcp else {
        return Ok(Listen::Kernel(args.listen));
    };
    let parsed = text.split_once('/').and_then(|(ip, bits)| {
        let bits: u8 = bits.parse().ok().filter(|bits| (1..=30).contains(bits))?;
        Some((ip.parse::<Ipv4Addr>().ok()?, bits))
    });
    let (first, prefix) =
        parsed.ok_or_else(|| Failure::Usage(format!("--tcp takes an address as 10.9.0.2/24, not {text}")))?;
    Ok(Listen::Hub(HubOptions {
        hub: args.hub.clone().unwrap_or_else(|| default_socket(false)),
        first,
        prefix,
        port: args.tcp_port,
    }))
}

/// Gives a failure its exit code, and says what to do.
fn explain(error: StartError, options: &ServerOptions) -> anyhow::Error {
    let text = error.to_string();
    match &error {
        StartError::Listen { source, .. } if source.kind() == std::io::ErrorKind::AddrInUse => {
            Failure::InUse(format!(
                "{text}: stop its user, or choose another address with --listen"
            ))
            .into()
        }
        StartError::Place(PlaceError::InUse(_)) => Failure::InUse(text).into(),
        StartError::User(_) => {
            let text = format!("{text}. Start a hub with `switchyard tcp serve`, or name another with --hub");
            Failure::Silent(text).into()
        }
        StartError::Place(PlaceError::Area { path, .. }) => {
            let path = path.display();
            anyhow::anyhow!("{text}. `switchyard store verify {path}` shows what is there")
        }
        _ => match &options.dir {
            Some(dir) => anyhow::Error::from(error).context(format!("cannot serve {}", dir.display())),
            None => error.into(),
        },
    }
}

fn tell(server: &Server, options: &ServerOptions, json: bool) {
    let started = server.started();
    let addresses: Vec<String> = match &options.listen {
        Listen::Kernel(address) => vec![server.address().unwrap_or(*address).to_string()],
        Listen::Hub(hub) => (0..options.shards)
            .map(|index| format!("{}:{}", hub.address(index), hub.port))
            .collect(),
    };
    if json {
        let value = serde_json::json!({
            "addresses": addresses, "pid": std::process::id(), "shards": options.shards,
            "durability": options.durability.name(), "keys": started.loaded.keys,
            "expired": started.loaded.ended, "left_out": started.loaded.left_out, "steered_from": started.steered_from,
        });
        println!("{value}");
    } else {
        println!(
            "serving keys at {}: {} shards, durability {}, {} keys",
            addresses.join(", "),
            options.shards,
            options.durability.name(),
            started.loaded.keys
        );
        if let Some(before) = started.steered_from {
            println!("the keys were spread anew, from {before} shards");
        }
        if started.loaded.left_out > 0 {
            println!(
                "{} keys had no room in --memory-max, and are gone",
                started.loaded.left_out
            );
        }
    }
    crate::out::flush();
}
