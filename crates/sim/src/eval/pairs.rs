//! Fast and slow networks beside fast and slow devices (RackBlox §4.5.3, Figures 19 and 20).
//!
//! Coordinated scheduling hides the slower of network and storage behind the other one, so it gains most where a request
//! waits in front of the storage about as long as requests differ in the network. So there is one vSSD with room for two
//! reads, and clients at two distances, as in Figure 17; write-backs have room of their own, for else Kyber's batches of
//! them would be all that makes a read's tail. Collection takes no time here: it would put the whole of a pause on top
//! of the baseline's tail, which counts for most beside the fastest network, whatever the device.

use super::{Case, Figure, Hardware, Plan, Policies, System, Workload, ycsb};
use crate::client::Pace;
use crate::net::{Delay, LinkModel};
use crate::report::Progress;
use crate::report::Report;
use crate::workload::Mix;
use flash::{GcMode, Geometry, Timing};
use serde_json::{Map, Value, json};

/// Networks, from fast to slow.
pub const NETWORKS: [(&str, Delay); 3] = [
    ("fast", Delay::FAST),
    ("medium", Delay::MEDIUM),
    ("slow", Delay::SLOW),
];
/// Devices, from fast to slow, with the requests outstanding at all times. They are ours: with two reads at a time and
/// YCSB C a read waits for about 0.1 ms in front of an Optane, 0.4 ms in front of an Intel DC and 1.2 ms in front of a
/// P-SSD.
pub const DEVICES: [(&str, u32); 3] = [("optane", 32), ("intel-dc", 14), ("p-ssd", 40)];
/// The paper's pairs: the network with which each device gains most.
pub const MATCHES: [(&str, &str); 3] = [("optane", "fast"), ("intel-dc", "medium"), ("p-ssd", "slow")];
/// YCSB workloads: C reads only, B has 5 % of writes, A has 50 %.
const WORKLOADS: [char; 3] = ['C', 'B', 'A'];
/// Requests that are measured: some of a link's long segments are bursty, and every run is to meet some of these.
const MEASURED: u64 = 300_000;
/// Reads, and write-backs, in the flash at once.
const DEPTHS: (usize, usize) = (2, 8);

fn hardware(device: &str, delay: Delay) -> Hardware {
    Hardware {
        nodes: 2,
        sets: 1,
        channels: 8,
        geometry: Geometry {
            channels: 8,
            chips_per_channel: 4,
            planes_per_chip: 1,
            blocks_per_plane: 16,
            pages_per_block: 32,
        },
        timing: match device {
            "optane" => Timing::built_in(device).expect("it is built in"),
            flash => ycsb::of_large_pages(flash),
        },
        read_depth: DEPTHS.0,
        write_depth: DEPTHS.1,
        device_depth: DEPTHS.0 + DEPTHS.1,
        client_link: LinkModel {
            delay,
            paths: 16,
            near_paths: 6,
            ..LinkModel::default()
        },
        ..Hardware::default()
    }
}

/// Name of a workload in rows.
fn workload(letter: char) -> String {
    format!("ycsb-{}", letter.to_ascii_lowercase())
}

fn case(letter: char, device: (&str, u32), network: (&str, Delay), system: System) -> Case {
    let (mix, pattern) = Mix::ycsb(letter).expect("the letter is one of YCSB's");
    Case {
        hardware: hardware(device.0, network.1),
        policies: Policies {
            gc_mode: GcMode::Free,
            ..system.policies()
        },
        workload: Workload {
            name: workload(letter),
            mix,
            pattern,
            pace: Pace::Closed { depth: device.1 },
            warm: 10_000,
            measured: MEASURED,
            ..Workload::writes(0.0, 0.0)
        },
        parameters: Map::from_iter([
            ("device".to_owned(), json!(device.0)),
            ("network".to_owned(), json!(network.0)),
        ]),
        cdf: false,
    }
}

fn plan(name: &'static str, letters: &[char], systems: &[System]) -> Plan {
    let mut cases = Vec::new();
    for &letter in letters {
        for device in DEVICES {
            for network in NETWORKS {
                cases.extend(
                    systems
                        .iter()
                        .map(|&system| case(letter, device, network, system)),
                );
            }
        }
    }
    Plan { name, cases }
}

/// Figure 19: RackBlox with every device and network under YCSB A.
pub fn distributions() -> Plan {
    let mut plan = plan("fig19", &['A'], &[System::RackBlox]);
    plan.cases.iter_mut().for_each(|case| case.cdf = true);
    plan
}

/// Figure 20: VDC and RackBlox with every device and network.
pub fn improvements() -> Plan {
    plan("fig20", &WORKLOADS, &[System::Vdc, System::RackBlox])
}

/// P99.9 of VDC's reads over RackBlox's: a row for each device of [`DEVICES`], a column for each network of [`NETWORKS`].
/// `None` if the figure lacks one.
fn gains(figure: &Figure, workload: &str) -> Option<[[f64; 3]; 3]> {
    let p999 = |system: System, device: &str, network: &str| {
        let is_it = |row: &&super::Row| {
            row.policy == system.name()
                && row.workload == workload
                && row.parameters["device"] == device
                && row.parameters["network"] == network
        };
        figure.rows.iter().find(is_it).map(|row| row.read.p999_us)
    };
    let mut gains = [[0.0; 3]; 3];
    for (gains, (device, _)) in gains.iter_mut().zip(DEVICES) {
        for (gain, (network, _)) in gains.iter_mut().zip(NETWORKS) {
            *gain = p999(System::Vdc, device, network)? / p999(System::RackBlox, device, network)?;
        }
    }
    Some(gains)
}

/// The distribution of reads' latency by device and network.
pub fn fig19(seed: u64, progress: Progress<'_>) -> Report {
    distributions().run(seed, progress).into()
}

/// Gain of reads' P99.9 by device and network.
pub fn fig20(seed: u64, progress: Progress<'_>) -> Report {
    let mut figure = improvements().run(seed, progress);
    let of = |workload: String| {
        let gains = gains(&figure, &workload)?;
        let devices = DEVICES.iter().zip(gains).map(|((device, _), gains)| {
            let networks = NETWORKS.iter().zip(gains);
            let gains: Map<String, Value> = networks
                .map(|((network, _), gain)| ((*network).to_owned(), json!(gain)))
                .collect();
            ((*device).to_owned(), Value::Object(gains))
        });
        Some((workload, devices.collect::<Map<String, Value>>().into()))
    };
    let names = WORKLOADS.map(workload);
    let gains: Map<String, Value> = names.into_iter().filter_map(of).collect();
    figure
        .parameters
        .insert("read_p999_gain".to_owned(), Value::Object(gains));
    figure.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_device_gains_most_with_the_paper_s_network_and_each_network_with_its_device() {
        let figure = plan("fig20", &['C'], &[System::Vdc, System::RackBlox]).run(1, &mut |_| {});
        let gains = gains(&figure, &workload('C')).expect("every pair has its rows");
        for (at, pair) in MATCHES.iter().enumerate() {
            assert_eq!(*pair, (DEVICES[at].0, NETWORKS[at].0));
            for other in (0..3).filter(|other| *other != at) {
                assert!(
                    gains[at][at] > gains[at][other].max(gains[other][at]),
                    "{pair:?}: {gains:?}"
                );
            }
        }
    }
}
