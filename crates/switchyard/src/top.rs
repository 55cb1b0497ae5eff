//! `switchyard top`: a running rack, refreshed. Rates come from the differences of counters, so the first table takes
//! one interval to appear.

use crate::control::api::{Status, Volume};
use crate::control::client::Client;
use crate::control::client::RackArgs;
use crate::failure::Failure;
use crate::{out, status};
use clap::Args;
use serde::Serialize;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// `switchyard top`.
#[derive(Args)]
#[command(after_help = "Example:\n  switchyard top --count 10 --json | jq .read_iops")]
pub struct TopArgs {
    #[command(flatten)]
    pub rack: RackArgs,
    /// Number of refreshes; then stop
    #[arg(long, value_name = "N")]
    pub count: Option<u64>,
    /// Seconds between refreshes
    #[arg(long, value_name = "S", default_value_t = 1.0, allow_negative_numbers = true)]
    pub interval: f64,
}

/// Changes between two looks.
#[derive(Debug, Default, PartialEq, Serialize)]
struct Rates {
    seconds: f64,
    read_iops: f64,
    write_iops: f64,
    flush_iops: f64,
    received_mib_s: f64,
    sent_mib_s: f64,
    errors_s: f64,
    retransmissions_s: f64,
    redirected_s: f64,
    packets_s: f64,
    user_programs_s: f64,
    gc_programs_s: f64,
    erases_s: f64,
    cpu_percent: Option<f64>,
}

/// One look.
struct Look {
    status: Status,
    at: Instant,
    cpu: Option<Duration>,
}

/// Refreshes until Ctrl-C or the count.
pub fn run(args: &TopArgs) -> anyhow::Result<()> {
    if !(0.05..=3600.0).contains(&args.interval) {
        anyhow::bail!(Failure::Usage(format!(
            "--interval takes 0.05 to 3600 seconds, not {}",
            args.interval
        )));
    }
    let client = Client::new(&args.rack.control);
    let look = || -> anyhow::Result<Look> {
        let status = client.status()?;
        let cpu = crate::machine::cpu_time(status.pid);
        Ok(Look {
            status,
            at: Instant::now(),
            cpu,
        })
    };
    let clears = std::io::stdout().is_terminal() && !args.rack.json;
    let mut before = look()?;
    for _ in 0..args.count.unwrap_or(u64::MAX) {
        std::thread::sleep(Duration::from_secs_f64(args.interval));
        let now = look()?;
        let rates = rates(&before, &now);
        let text = match args.rack.json {
            true => format!("{}\n", serde_json::to_string(&rates)?),
            false => table(&now.status, &rates),
        };
        // Home, then clear to the end: the table replaces itself without flicker.
        let start = if clears { "\x1b[H\x1b[J" } else { "" };
        print!("{start}{text}");
        out::flush();
        if out::is_lost() {
            break;
        }
        before = now;
    }
    Ok(())
}

/// The count of an operation over all volumes.
fn operations(status: &Status, name: &str) -> u64 {
    let latencies = status.volumes.iter().flat_map(|volume| &volume.latency);
    latencies
        .filter(|latency| latency.name == name)
        .map(|latency| latency.count)
        .sum()
}

fn rates(before: &Look, now: &Look) -> Rates {
    let seconds = now.at.duration_since(before.at).as_secs_f64().max(1e-9);
    let rate = |count: &dyn Fn(&Status) -> u64| {
        count(&now.status).saturating_sub(count(&before.status)) as f64 / seconds
    };
    let gateway = |field: fn(&crate::control::api::GatewayCounters) -> u64| {
        rate(&|status| status.gateway.as_ref().map_or(0, field))
    };
    let node = |field: fn(&rack::control::NodeStatus) -> u64| {
        rate(&|status| status.nodes.iter().map(|node| field(&node.status)).sum())
    };
    let cores =
        |field: fn(&crate::control::api::Core) -> u64| rate(&|status| status.cores.iter().map(field).sum());
    let user = node(|status| status.user_programs);
    let cpu =
        |(before, now): (Duration, Duration)| now.saturating_sub(before).as_secs_f64() / seconds * 100.0;
    Rates {
        seconds,
        read_iops: rate(&|status| operations(status, "read")),
        write_iops: rate(&|status| operations(status, "write")),
        flush_iops: rate(&|status| operations(status, "flush")),
        received_mib_s: cores(|core| core.nbd_bytes_in) / 1_048_576.0,
        sent_mib_s: cores(|core| core.nbd_bytes_out) / 1_048_576.0,
        errors_s: gateway(|gateway| gateway.errors),
        retransmissions_s: gateway(|gateway| gateway.retransmissions),
        redirected_s: gateway(|gateway| gateway.redirected),
        packets_s: cores(|core| core.packets_in),
        user_programs_s: user,
        gc_programs_s: (node(|status| status.programs) - user).max(0.0),
        erases_s: node(|status| status.erases),
        cpu_percent: before.cpu.zip(now.cpu).map(cpu),
    }
}

fn table(status: &Status, rates: &Rates) -> String {
    let mut text = format!(
        "switchyard {}  pid {}  cpu {}\n\n",
        status.role,
        status.pid,
        rates
            .cpu_percent
            .map_or("?".to_owned(), |percent| format!("{percent:.1} %"))
    );
    text += &format!(
        "clients  {:>9.0} reads/s {:>9.0} writes/s {:>7.0} flushes/s   in {:>7.1} MiB/s  out {:>7.1} MiB/s\n",
        rates.read_iops, rates.write_iops, rates.flush_iops, rates.received_mib_s, rates.sent_mib_s
    );
    text += &format!(
        "rack     {:>9.0} packets/s  {:>6.0} redirected/s  {:>6.0} sent again/s  {:>4.0} errors/s\n",
        rates.packets_s, rates.redirected_s, rates.retransmissions_s, rates.errors_s
    );
    text += &format!(
        "flash    {:>9.0} programs/s for clients  {:>7.0} by collection  {:>6.0} erases/s\n\n",
        rates.user_programs_s, rates.gc_programs_s, rates.erases_s
    );
    text += &status::trouble_of(status);
    text += &status::registry(status);
    text += &volumes(&status.volumes);
    text += "\n";
    text += &status::nodes(&status.nodes);
    text += &status::tors(&status.tors);
    if status.nodes.iter().any(|node| !node.stages.is_empty()) {
        text += "\nreads at the nodes, p50/p99 µs\n";
        for node in status.nodes.iter().filter(|node| !node.stages.is_empty()) {
            let stages: Vec<_> = node
                .stages
                .iter()
                .map(|s| format!("{} {:.0}/{:.0}", s.name, s.p50_us, s.p99_us))
                .collect();
            text += &format!("  {:<3} {}\n", node.id, stages.join("   "));
        }
    }
    text
}

/// The table of volumes; with the gateway that leads each, where several share them.
fn volumes(volumes: &[Volume]) -> String {
    let is_shared = volumes.iter().any(|volume| volume.lead.is_some());
    let line = |name: &str, state: &str, read: &str, write: &str, lead: &str| {
        let lead = if is_shared {
            format!(" {lead}")
        } else {
            String::new()
        };
        format!("{name:<20} {state:<9} {read:>28} {write:>28}{lead}\n")
    };
    let (read, write) = ("read p50/p99/p99.9 µs", "write p50/p99/p99.9 µs");
    let mut text = line("volume", "state", read, write, "led by");
    for volume in volumes {
        let percentiles = |name: &str| {
            let latency = volume
                .latency
                .iter()
                .find(|latency| latency.name == name && latency.count > 0);
            latency.map_or("-".to_owned(), |l| {
                format!("{:.0}/{:.0}/{:.0}", l.p50_us, l.p99_us, l.p999_us)
            })
        };
        let lead = volume.lead.as_ref().map_or("nobody", |lead| &lead.gateway);
        text += &line(
            &volume.name,
            &volume.state,
            &percentiles("read"),
            &percentiles("write"),
            lead,
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::api::{GatewayCounters, Latency, Lead};

    #[test]
    fn the_table_of_volumes_names_the_leads_of_a_shared_rack_only() {
        let volume = |name: &str, lead: Option<&str>| Volume {
            name: name.into(),
            state: "ready".into(),
            lead: lead.map(|gateway| Lead {
                gateway: gateway.into(),
                ..Lead::default()
            }),
            ..Volume::default()
        };
        let text = volumes(&[volume("a", Some("10.0.0.2:8888")), volume("b", None)]);
        let ends: Vec<&str> = text
            .lines()
            .filter_map(|line| line.split_whitespace().last())
            .collect();
        assert_eq!(ends, ["by", "10.0.0.2:8888", "nobody"]);
        assert!(!volumes(&[volume("a", None)]).contains("led by"));
    }

    fn look(reads: u64, errors: u64, at: Instant) -> Look {
        let latency = Latency {
            name: "read".into(),
            count: reads,
            ..Latency::default()
        };
        let volume = Volume {
            latency: vec![latency],
            ..Volume::default()
        };
        let gateway = GatewayCounters {
            errors,
            ..GatewayCounters::default()
        };
        let status = Status {
            volumes: vec![volume],
            gateway: Some(gateway),
            ..Status::default()
        };
        Look {
            status,
            at,
            cpu: Some(Duration::from_secs(reads / 100)),
        }
    }

    #[test]
    fn rates_are_differences_over_time() {
        let start = Instant::now();
        let rates = rates(
            &look(100, 5, start),
            &look(300, 9, start + Duration::from_secs(2)),
        );
        assert_eq!(
            (rates.read_iops, rates.errors_s, rates.cpu_percent),
            (100.0, 2.0, Some(100.0))
        );
    }

    #[test]
    fn a_restarted_rack_shows_no_negative_rates() {
        let start = Instant::now();
        let rates = rates(&look(300, 9, start), &look(1, 0, start + Duration::from_secs(1)));
        assert_eq!((rates.read_iops, rates.errors_s), (0.0, 0.0));
    }
}
