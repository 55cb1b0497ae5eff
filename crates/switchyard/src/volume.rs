//! `switchyard volume`: volumes of a running rack.

use crate::control::api::{Create, ELSEWHERE, Exchange, Patch, Volume};
use crate::control::client::Client;
use crate::control::client::RackArgs;
use crate::events::time::duration;
use crate::failure::Failure;
use crate::size::Size;
use anyhow::bail;
use clap::Args;
use clap::Subcommand;
use std::io::IsTerminal;

/// `switchyard volume`.
#[derive(Args)]
pub struct VolumeArgs {
    #[command(flatten)]
    pub rack: RackArgs,
    #[command(subcommand)]
    pub command: VolumeCommand,
}

/// Commands for volumes.
#[derive(Subcommand)]
pub enum VolumeCommand {
    /// Create a volume; returns when clients can use it
    #[command(after_help = "Example:\n  switchyard volume create db --size 2GiB --replicas 3")]
    Create {
        /// Name of the volume: letters, digits, `-`, `_`, `.`
        name: String,
        /// Size of the volume
        #[arg(long, value_name = "SIZE")]
        size: Size,
        /// Copies, on different nodes [default: the rack's]
        #[arg(long, value_name = "N")]
        replicas: Option<u8>,
        /// Place of an acknowledged write: `memory` of all replicas or `media` [default: the rack's]
        #[arg(long, value_name = "WHEN")]
        durability: Option<String>,
        /// Isolation of its vSSDs: `hardware` or `software` [default: the rack's]
        #[arg(long, value_name = "WHAT")]
        isolation: Option<String>,
        /// Refuse writes
        #[arg(long)]
        read_only: bool,
    },
    /// List the volumes
    List,
    /// Show one volume
    Show {
        /// Name of the volume
        name: String,
    },
    /// Grow a volume; clients see the new size when they connect again
    Resize {
        /// Name of the volume
        name: String,
        /// New size of the volume
        #[arg(long, value_name = "SIZE")]
        size: Size,
    },
    /// Let a volume have more or fewer copies while clients go on; returns when that is noted
    #[command(
        after_help = "`volume show` tells `degraded` until the copies are made.\n\nExample:\n  \
        switchyard volume set db --replicas 3"
    )]
    Set {
        /// Name of the volume
        name: String,
        /// Copies, on different nodes
        #[arg(long, value_name = "N")]
        replicas: u8,
    },
    /// Exchange the nodes of two vSSDs while clients go on, for example to even out wear; returns when done
    #[command(
        alias = "swap",
        after_help = "`volume show` names vSSDs. Both nodes need free channels for the second copies.\n\nExample:\n  \
        switchyard volume exchange 1 6"
    )]
    Exchange {
        /// Number of a vSSD
        a: u32,
        /// Number of a vSSD of another replica set, of the same size
        b: u32,
    },
    /// Delete a volume and its data
    Delete {
        /// Name of the volume
        name: String,
        /// Delete without asking
        #[arg(long)]
        yes: bool,
    },
}

/// Carries it out.
pub fn run(args: VolumeArgs) -> anyhow::Result<()> {
    let client = Client::new(&args.rack.control);
    let json = args.rack.json;
    match args.command {
        VolumeCommand::Create {
            name,
            size,
            replicas,
            durability,
            isolation,
            read_only,
        } => {
            let volume = client.create(&Create {
                name,
                size,
                replicas,
                durability,
                isolation,
                read_only,
            })?;
            show(&volume, json)
        }
        VolumeCommand::List => list(&client.volumes()?, json),
        VolumeCommand::Show { name } => show(&client.volume(&name)?, json),
        VolumeCommand::Resize { name, size } => {
            let patch = Patch {
                size: Some(size),
                ..Patch::default()
            };
            show(&client.patch(&name, patch)?, json)
        }
        VolumeCommand::Set { name, replicas } => {
            let patch = Patch {
                replicas: Some(replicas),
                ..Patch::default()
            };
            show(&client.patch(&name, patch)?, json)
        }
        VolumeCommand::Exchange { a, b } => {
            let over = Client::patient(&args.rack.control).exchange(Exchange { a, b })?;
            if json {
                println!("{}", serde_json::to_string(&over)?);
            } else {
                println!(
                    "vSSDs {a} and {b} have exchanged their nodes in {:.1} s",
                    over.seconds
                );
            }
            Ok(())
        }
        VolumeCommand::Delete { name, yes } => {
            // Asks the rack first, so that a wrong name is told before the question.
            let volume = client.volume(&name)?;
            if !yes && !confirmed(&volume)? {
                bail!("nothing was deleted");
            }
            client.delete(&name)?;
            if json {
                println!("{}", serde_json::json!({ "deleted": name }));
            } else {
                println!("volume {name} deleted");
            }
            Ok(())
        }
    }
}

fn confirmed(volume: &Volume) -> anyhow::Result<bool> {
    if !std::io::stdin().is_terminal() {
        bail!(Failure::Usage(format!(
            "this destroys volume `{}` with its {}: add --yes if you mean it",
            volume.name,
            Size(volume.size_bytes)
        )));
    }
    print!(
        "delete volume {} and its {} for good? [y/N] ",
        volume.name,
        Size(volume.size_bytes)
    );
    crate::out::flush();
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer)?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

/// The table of volumes.
pub fn list(volumes: &[Volume], json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(volumes)?);
        return Ok(());
    }
    if volumes.is_empty() {
        println!("no volumes: `switchyard volume create NAME --size SIZE` makes one");
        return Ok(());
    }
    println!(
        "{:<20} {:>12} {:>7} {:<9} uri, and the gateway if it is another one",
        "volume", "size", "copies", "state"
    );
    for volume in volumes {
        println!(
            "{:<20} {:>12} {:>7} {:<9} {}",
            volume.name,
            Size(volume.size_bytes).to_string(),
            volume.replicas,
            volume.state,
            place(volume)
        );
    }
    Ok(())
}

/// Where clients find a volume: here, or at another gateway.
fn place(volume: &Volume) -> String {
    match &volume.lead {
        Some(lead) if volume.state == ELSEWHERE && lead.nbd.is_some() => {
            format!("{} at gateway {}", volume.uri, lead.gateway)
        }
        Some(lead) if volume.state == ELSEWHERE => format!("gateway {}, {}", lead.gateway, lead.control),
        _ => volume.uri.clone(),
    }
}

fn show(volume: &Volume, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(volume)?);
        return Ok(());
    }
    println!("volume      {} (number {})", volume.name, volume.id);
    println!("uri         {}", volume.uri);
    println!(
        "size        {} ({} bytes)",
        Size(volume.size_bytes),
        volume.size_bytes
    );
    match &volume.lead {
        Some(lead) if volume.state == ELSEWHERE => println!(
            "state       {ELSEWHERE}: the gateway at {} serves it; `switchyard volume show {} --control {}` tells how it is",
            lead.gateway, volume.name, lead.control
        ),
        _ => println!("state       {}", volume.state),
    }
    if let Some(lead) = &volume.lead {
        println!(
            "gateway     {}, session {}, control {}",
            lead.gateway, lead.session, lead.control
        );
    }
    println!(
        "copies      {}, writes acknowledged from {}",
        volume.replicas, volume.durability
    );
    for set in &volume.sets {
        let places: Vec<_> = set
            .replicas
            .iter()
            .map(|p| format!("node {} vSSD {}", p.node, p.vssd))
            .collect();
        let size = Size(u64::from(set.pages) * 4096);
        println!(
            "set         {size} on {} channels each{}: {}{}",
            set.channels,
            match set.rows {
                0 => String::new(),
                rows => format!(", of which {rows} chips"),
            },
            places.join(", "),
            match set.lacks {
                0 => String::new(),
                lacks => format!("; degraded, lacks {lacks}"),
            }
        );
    }
    for copy in volume.sets.iter().flat_map(|set| &set.copying) {
        let left = copy.seconds_left.map_or(String::new(), |left| {
            format!(", about {} left", duration(left as f64))
        });
        println!(
            "being made  node {} vSSD {}: {} of {} pages{left}",
            copy.node, copy.vssd, copy.pages_done, copy.pages
        );
    }
    for latency in volume.latency.iter().filter(|latency| latency.count > 0) {
        println!(
            "{:<11} {} done, p50 {:.0} µs, p99 {:.0} µs, p99.9 {:.0} µs",
            latency.name, latency.count, latency.p50_us, latency.p99_us, latency.p999_us
        );
    }
    if let Some(problem) = &volume.problem {
        println!("problem     {problem}");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::api::Lead;

    #[test]
    fn a_volume_of_another_gateway_is_listed_with_the_place_where_clients_find_it() {
        let mut volume = Volume {
            uri: "nbd://10.0.0.2:10809/db".into(),
            state: "ready".into(),
            lead: Some(Lead {
                gateway: "10.0.0.2:8888".into(),
                control: "http://10.0.0.2:9180".into(),
                nbd: Some("10.0.0.2:10809".into()),
                session: 3,
            }),
            ..Volume::default()
        };
        assert_eq!(place(&volume), "nbd://10.0.0.2:10809/db");
        volume.state = ELSEWHERE.into();
        assert_eq!(place(&volume), "nbd://10.0.0.2:10809/db at gateway 10.0.0.2:8888");
        // Of an earlier program.
        volume.lead.as_mut().unwrap().nbd = None;
        assert_eq!(place(&volume), "gateway 10.0.0.2:8888, http://10.0.0.2:9180");
    }
}
