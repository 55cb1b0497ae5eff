//! `switchyard node add`, `drain`, `remove` and the like: the nodes of a running rack.

use crate::control::api::{AddNodes, Node, NodePlace};
use crate::control::client::{Client, RackArgs};
use crate::events::time;
use crate::role::gateway::parse_node;
use crate::status::{self, progress};
use anyhow::bail;
use base::{Addr, NodeId};
use clap::Subcommand;
use std::time::Duration;

/// Between two looks at a node that is waited for.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Commands for the nodes of a running rack.
#[derive(Subcommand)]
pub enum NodeCommand {
    /// List the nodes of a running rack
    List {
        #[command(flatten)]
        rack: RackArgs,
    },
    /// Show one node, and how far it is with being drained
    Show {
        /// Number of the node
        node: u8,
        #[command(flatten)]
        rack: RackArgs,
    },
    /// Add nodes to a running rack; copies move there until free room is even
    #[command(
        after_help = "Start the node first: `switchyard node --id 5 --listen 10.0.0.15:8888 --tor 10.0.0.1:8888`.\n\n\
        Example:\n  switchyard node add 5=10.0.0.15:8888"
    )]
    Add {
        /// A node's number and address
        #[arg(value_name = "ID=IP:PORT", required = true, value_parser = parse_node)]
        nodes: Vec<(NodeId, Addr)>,
        /// Move nothing: only new volumes and copies use the nodes
        #[arg(long)]
        no_rebalance: bool,
        #[command(flatten)]
        rack: RackArgs,
    },
    /// Move the copies of a node to other nodes while clients go on, one at a time for each set
    #[command(
        after_help = "Returns when that is noted. It goes on if a gateway starts again or another one takes over.\n\n\
        Examples:\n  switchyard node drain 4 --wait\n  switchyard node drain 4 --stop"
    )]
    Drain {
        /// Number of the node
        node: u8,
        /// Let the node have copies again
        #[arg(long, conflicts_with = "wait")]
        stop: bool,
        /// Return when the node has no copies any more
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        rack: RackArgs,
    },
    /// Let the rack forget a node that has no copies
    #[command(after_help = "Example:\n  switchyard node drain 4 --wait && switchyard node remove 4")]
    Remove {
        /// Number of the node
        node: u8,
        #[command(flatten)]
        rack: RackArgs,
    },
    /// Let a node take the place of another one, which is drained and then forgotten
    #[command(after_help = "Example:\n  switchyard node replace 4 5=10.0.0.15:8888 --wait")]
    Replace {
        /// Number of the node that goes
        old: u8,
        /// Number of the node that takes its place, with its address if the rack does not have it yet
        #[arg(value_name = "ID[=IP:PORT]", value_parser = parse_place)]
        new: NodePlace,
        /// Return when the rack has forgotten the old node
        #[arg(long)]
        wait: bool,
        #[command(flatten)]
        rack: RackArgs,
    },
    /// Move copies until free room is even over the nodes, one at a time
    #[command(after_help = "Example:\n  switchyard node rebalance")]
    Rebalance {
        /// Begin no other move
        #[arg(long)]
        stop: bool,
        #[command(flatten)]
        rack: RackArgs,
    },
}

/// `ID` or `ID=IP:PORT`.
fn parse_place(text: &str) -> Result<NodePlace, String> {
    if let Some(id) = text.parse().ok().filter(|id| *id > 0) {
        return Ok(NodePlace { id, addr: None });
    }
    let (id, addr) = parse_node(text)?;
    Ok(place(id, addr))
}

fn place(id: NodeId, addr: Addr) -> NodePlace {
    NodePlace {
        id: id.0,
        addr: Some(addr.to_string()),
    }
}

/// Carries it out.
pub fn run(command: NodeCommand) -> anyhow::Result<()> {
    match command {
        NodeCommand::List { rack } => list(&client(&rack).nodes()?, rack.json),
        NodeCommand::Show { node, rack } => show(&one(&client(&rack).nodes()?, node)?, rack.json),
        NodeCommand::Add {
            nodes,
            no_rebalance,
            rack,
        } => {
            let add = AddNodes {
                nodes: nodes.iter().map(|(id, addr)| place(*id, *addr)).collect(),
                rebalance: !no_rebalance,
            };
            let known = client(&rack).add_nodes(&add)?;
            let is_silent = |node: &&Node| add.nodes.iter().any(|new| new.id == node.id) && !node.answers;
            for node in known.iter().filter(is_silent) {
                eprintln!(
                    "switchyard: node {0} belongs to the rack, and nothing answers at {1}: start it with `switchyard node --id {0} \
                     --listen {1} --tor …`, or take it back with `switchyard node remove {0}`",
                    node.id, node.addr
                );
            }
            list(&known, rack.json)
        }
        NodeCommand::Drain {
            node,
            stop,
            wait,
            rack,
        } => {
            let client = client(&rack);
            let known = client.drain(node, !stop)?;
            match wait {
                true => await_drain(&client, node, rack.json),
                false => show(&one(&known, node)?, rack.json),
            }
        }
        NodeCommand::Remove { node, rack } => {
            client(&rack).remove_node(node)?;
            if rack.json {
                println!("{}", serde_json::json!({ "removed": node }));
            } else {
                println!("node {node} belongs to the rack no more: stop it");
            }
            Ok(())
        }
        NodeCommand::Replace { old, new, wait, rack } => {
            let client = client(&rack);
            let known = client.replace_node(old, &new)?;
            match wait {
                true => await_drain(&client, old, rack.json),
                false => list(&known, rack.json),
            }
        }
        NodeCommand::Rebalance { stop, rack } => list(&client(&rack).rebalance(!stop)?, rack.json),
    }
}

fn client(rack: &RackArgs) -> Client {
    Client::new(&rack.control)
}

fn one(nodes: &[Node], id: u8) -> anyhow::Result<Node> {
    match nodes.iter().find(|node| node.id == id) {
        Some(node) => Ok(node.clone()),
        None => bail!("the rack has no node {id}: `switchyard node list` names those it has"),
    }
}

/// Returns when a node has no copies, or the rack has forgotten it.
fn await_drain(client: &Client, id: u8, json: bool) -> anyhow::Result<()> {
    let mut told = None;
    loop {
        let nodes = client.nodes()?;
        let Some(node) = nodes.into_iter().find(|node| node.id == id) else {
            if !json {
                println!("node {id} belongs to the rack no more: stop it");
            }
            return Ok(());
        };
        match &node.drain {
            None => bail!("node {id} is not being drained any more: somebody has stopped that"),
            Some(drain) if drain.done && !drain.removes => return show(&node, json),
            Some(drain) => {
                let news = (node.copies, drain.problem.clone());
                if !json && told.as_ref() != Some(&news) {
                    println!("node {id}: {}", progress(&node, drain));
                    crate::out::flush();
                }
                told = Some(news);
            }
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

fn list(nodes: &[Node], json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(nodes)?);
    } else {
        print!("{}", status::nodes(nodes));
    }
    Ok(())
}

fn show(node: &Node, json: bool) -> anyhow::Result<()> {
    if json {
        println!("{}", serde_json::to_string_pretty(node)?);
        return Ok(());
    }
    println!("node        {} at {}", node.id, node.addr);
    let status = &node.status;
    match (&node.refused, node.answers) {
        (Some(refused), _) => println!("answers     but does not serve: {refused}"),
        (None, true) => println!("answers     yes, started {} (UTC)", time::start(status.boot)),
        (None, false) => println!("answers     no"),
    }
    if node.answers {
        println!("program     {}", status.software());
    }
    println!("copies      {}", node.copies);
    if node.answers {
        println!("channels    {} of {} free", status.free_channels, status.channels);
    }
    let Some(drain) = &node.drain else { return Ok(()) };
    println!("drain       {}", progress(node, drain));
    for moving in &drain.moving {
        println!(
            "moving      volume {}: vSSD {} to vSSD {} on node {}",
            moving.volume, moving.from.vssd, moving.to.vssd, moving.to.node
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_node_that_is_known_needs_no_address() {
        let place = parse_place("5").unwrap();
        assert_eq!((place.id, place.addr), (5, None));
        let place = parse_place("5=10.0.0.15:8888").unwrap();
        assert_eq!((place.id, place.addr.as_deref()), (5, Some("10.0.0.15:8888")));
        assert!(parse_place("0").is_err() && parse_place("five").is_err());
    }
}
