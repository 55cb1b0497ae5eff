//! `switchyard status`: a running rack at one moment.

use crate::control::api::{Drain, Node, Rack, Status, Tor};
use crate::control::client::Client;
use crate::control::client::RackArgs;
use crate::events::time::{self, duration};
use crate::volume;
use clap::Args;
use rack::level::Software;
use std::fmt::Write;

/// `switchyard status`.
#[derive(Args)]
#[command(after_help = "Examples:\n  switchyard status\n  switchyard status --json | jq .volumes")]
pub struct StatusArgs {
    #[command(flatten)]
    pub rack: RackArgs,
}

/// Prints it.
pub fn run(args: &StatusArgs) -> anyhow::Result<()> {
    let status = Client::new(&args.rack.control).status()?;
    if args.rack.json {
        println!("{}", serde_json::to_string_pretty(&status)?);
        return Ok(());
    }
    println!(
        "switchyard {} `{}`, pid {}, up {}, timing {}{}",
        status.version,
        status.role,
        status.pid,
        duration(status.uptime_s),
        status.timing,
        if status.dir.is_empty() {
            String::new()
        } else {
            format!(", in {}", status.dir)
        }
    );
    print!("{}{}", trouble_of(&status), registry(&status));
    println!();
    volume::list(&status.volumes, false)?;
    for problem in status.volumes.iter().filter_map(|volume| volume.problem.as_ref()) {
        println!("  {problem}");
    }
    println!();
    print!("{}{}", nodes(&status.nodes), tors(&status.tors));
    if status.rebalancing {
        println!("copies move until free room is even over the nodes");
    }
    if let Some(rack) = &status.rack {
        print!("{}", programs(rack));
    }
    print!("{}", counters(&status));
    Ok(())
}

/// A line about what keeps everything from being asked, if something does.
pub fn trouble_of(status: &Status) -> String {
    let trouble = status.trouble.as_ref();
    trouble.map_or(String::new(), |why| format!("trouble: {why}\n"))
}

/// A line about the registry, if it does not answer.
pub fn registry(status: &Status) -> String {
    let away = status.registry.as_ref();
    away.map_or(String::new(), |away| format!("registry: {away}\n"))
}

/// The table of nodes.
pub fn nodes(nodes: &[Node]) -> String {
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{:<5} {:<22} {:<19} {:>8} {:>5} {:>9} {:>13} {:>11} {:>7} {:>6} {:>6}",
        "node",
        "address",
        "started (UTC)",
        "version",
        "level",
        "channels",
        "vSSDs serving",
        "collecting",
        "dirty",
        "WA",
        "free"
    );
    for node in nodes {
        let s = &node.status;
        if let Some(refused) = &node.refused {
            let _ = writeln!(text, "{:<5} {:<22} does not serve: {refused}", node.id, node.addr);
            continue;
        }
        if !node.answers {
            let trouble = trouble(node);
            let _ = writeln!(text, "{:<5} {:<22} does not answer{trouble}", node.id, node.addr);
            continue;
        }
        let software = s.software();
        let amplification = if s.user_programs == 0 {
            1.0
        } else {
            s.programs as f64 / s.user_programs as f64
        };
        let _ = writeln!(
            text,
            "{:<5} {:<22} {:<19} {:>8} {:>5} {:>9} {:>13} {:>11} {:>7} {:>6.2} {:>5.0}%{}",
            node.id,
            node.addr,
            time::start(s.boot),
            software.version,
            software.levels.max,
            format!("{}/{}", s.channels - s.free_channels, s.channels),
            format!("{}/{}", s.serving, s.vssds),
            s.collecting,
            s.dirty_pages,
            amplification,
            s.free_ratio_min * 100.0,
            trouble(node)
        );
    }
    text
}

/// How far a node is with being drained.
pub fn progress(node: &Node, drain: &Drain) -> String {
    let heir = drain
        .to
        .map_or(String::new(), |to| format!(", node {to} takes its place"));
    if drain.done {
        return format!("drained: it has no copies{heir}");
    }
    let doing = match (&drain.problem, drain.moving.len()) {
        (Some(problem), _) => format!("waits: {problem}"),
        (None, moving) => format!("{moving} of them move now"),
    };
    format!("being drained{heir}: {} copies left, {doing}", node.copies)
}

/// Faults of a node, at the end of its line.
fn trouble(node: &Node) -> String {
    let mut text = String::new();
    if node.status.latched > 0 {
        let _ = write!(
            text,
            "  {} vSSDs refuse writes: the medium failed",
            node.status.latched
        );
    }
    if node.status.unreadable > 0 {
        let _ = write!(
            text,
            "  {} vSSDs cannot be read: run `switchyard verify`",
            node.status.unreadable
        );
    }
    if node.slow {
        text += "  slow: reads go to other nodes";
    }
    if let Some(drain) = &node.drain {
        let _ = write!(text, "  {}", progress(node, drain));
    }
    if node.status.damaged_pages > 0 {
        let (damaged, repaired) = (node.status.damaged_pages, node.status.repaired_pages);
        let _ = write!(text, "  {damaged} damaged pages found, {repaired} repaired");
    }
    if let Some(ago_s) = node.status.scrubbed_ago_s {
        let _ = write!(text, "  scrubbed {} ago", duration(ago_s as f64));
    }
    text
}

/// The rack's level, what the next one waits for, and a line for each program that parts have.
pub fn programs(rack: &Rack) -> String {
    let mut text = format!("rack at level {}", rack.level);
    if !rack.waits_for.is_empty() {
        let _ = write!(
            text,
            "; level {} waits for {}",
            rack.level + 1,
            rack.waits_for.join(", ")
        );
    }
    text.push('\n');
    let mut groups: Vec<(String, Vec<&str>)> = Vec::new();
    for program in &rack.parts {
        let software = Software {
            version: program.version.clone(),
            levels: program.levels,
        };
        let name = software.to_string();
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, parts)) => parts.push(&program.part),
            None => groups.push((name, vec![&program.part])),
        }
    }
    for (name, parts) in groups {
        let _ = writeln!(text, "{name}: {}", parts.join(", "));
    }
    text
}

/// The two ToRs, one a line.
pub fn tors(tors: &[Tor]) -> String {
    let line = |tor: &Tor| {
        let how = match (&tor.refused, tor.answers, tor.used) {
            (Some(refused), ..) => format!("does not serve: {refused}"),
            (None, true, true) => "is used".to_owned(),
            (None, true, false) => "stands by".to_owned(),
            (None, false, _) => "does not answer".to_owned(),
        };
        format!("ToR   {:<22} {how}\n", tor.addr)
    };
    tors.iter().map(line).collect()
}

fn counters(status: &Status) -> String {
    let mut text = String::new();
    if let Some(gateway) = &status.gateway {
        let _ = writeln!(
            text,
            "\ngateway {} requests ({} errors), {} in flight, {} packets sent again, {} reads redirected",
            gateway.requests, gateway.errors, gateway.in_flight, gateway.retransmissions, gateway.redirected
        );
    }
    if let Some(tor) = &status.tor {
        let _ = writeln!(
            text,
            "ToR     {} packets forwarded, {} reads redirected, {} collections allowed, {} delayed, {} unroutable",
            tor.forwarded, tor.redirected, tor.gc_accepted, tor.gc_delayed, tor.unroutable
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::api::Program;
    use rack::level::Levels;

    #[test]
    fn each_of_two_tors_has_its_line() {
        let tor = |end: u8, answers, used| Tor {
            addr: format!("10.0.0.{end}:8888"),
            answers,
            used,
            refused: None,
        };
        let text = tors(&[tor(1, false, false), tor(2, true, true)]);
        assert_eq!(
            text,
            "ToR   10.0.0.1:8888          does not answer\nToR   10.0.0.2:8888          is used\n"
        );
        assert_eq!(tors(&[]), "");
        let refused = Tor {
            refused: Some("the rack is at level 2".to_owned()),
            ..tor(1, true, true)
        };
        assert!(tors(&[refused]).contains("does not serve: the rack is at level 2"));
    }

    #[test]
    fn programs_are_grouped_and_the_level_says_what_it_waits_for() {
        let program = |part: &str, version: &str, max| Program {
            part: part.into(),
            version: version.into(),
            levels: Levels { min: 1, max },
        };
        let rack = Rack {
            level: 1,
            newest: 2,
            waits_for: vec!["node 2".into()],
            parts: vec![
                program("node 1", "0.1.0", 2),
                program("node 2", "", 1),
                program("ToR 10.0.0.1:8888", "0.1.0", 2),
            ],
        };
        assert_eq!(
            programs(&rack),
            "rack at level 1; level 2 waits for node 2\n\
             version 0.1.0, which knows levels 1 to 2: node 1, ToR 10.0.0.1:8888\n\
             an earlier version, which knows level 1: node 2\n"
        );
    }

    #[test]
    fn a_node_that_is_refused_says_why() {
        let node = Node {
            id: 3,
            refused: Some("the rack is at level 2".into()),
            ..Node::default()
        };
        assert!(nodes(&[node]).contains("does not serve: the rack is at level 2"));
    }

    #[test]
    fn a_silent_node_says_so() {
        let node = Node {
            id: 3,
            addr: "10.0.0.3:8888".into(),
            ..Node::default()
        };
        assert!(nodes(&[node]).contains("does not answer"));
    }
}
