//! The findings of a profile, in numbers that a script can read back: the cost of the probes is taken out of every mean and
//! percentile, and stands beside it.

use crate::attribute::LAYERS;
use crate::event::Action;
use crate::heat::Heat;
use crate::layers::{DeviceRow, LayerRow, RowKey, Times};
use crate::session::Profile;
use crate::stacks::{self, Stacks};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// The version of this description.
pub const VERSION: u32 = 1;
/// Name of a stack without the kernel's functions.
pub const USER: &str = "program";
/// Above this share of what was measured, the probes' cost makes the rest a guess.
pub const PROBE_SHARE_MAX: f64 = 0.5;

/// A profile.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// [`VERSION`].
    pub version: u32,
    /// Subject of the profile.
    pub target: String,
    /// The kernel's release.
    pub kernel: String,
    /// For how long, s.
    pub seconds: f64,
    /// The probes.
    pub probes: ProbeSummary,
    /// By kind and size of operation, those that took the most time first.
    pub operations: Vec<OperationSummary>,
    /// By device and action.
    pub devices: Vec<DeviceSummary>,
    /// Latencies over time.
    #[serde(default)]
    pub heat: Heat,
    /// The processor's time by function, if stacks were sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stacks: Option<StackSummary>,
}

/// Kernel stacks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StackSummary {
    /// Samples a second of processor time.
    pub hertz: u64,
    /// Samples.
    pub samples: u64,
    /// Samples lost for want of room.
    pub lost: u64,
    /// Functions, those with the most samples first.
    pub functions: Vec<FunctionSummary>,
    /// Samples of each stack, as `outer;inner`: what flame graphs are made of.
    pub folded: BTreeMap<String, u64>,
}

/// A function.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FunctionSummary {
    /// Its name.
    pub name: String,
    /// Share of the samples that were in it itself.
    pub own: f64,
    /// Share of the samples that were in it or what it called.
    pub all: f64,
}

impl StackSummary {
    /// Sums stacks up.
    pub fn new(stacks: &Stacks) -> Self {
        let samples: u64 = stacks.counts.values().sum();
        let mut functions: BTreeMap<&str, (u64, u64)> = BTreeMap::new();
        for (names, count) in &stacks.counts {
            let once: BTreeSet<&str> = names.iter().map(String::as_str).collect();
            for name in once {
                functions.entry(name).or_default().1 += count;
            }
            if let Some(innermost) = names.last() {
                functions.entry(innermost).or_default().0 += count;
            }
        }
        let share = |count: u64| count as f64 / samples.max(1) as f64;
        let mut functions: Vec<FunctionSummary> = functions
            .into_iter()
            .map(|(name, (own, all))| FunctionSummary {
                name: name.to_owned(),
                own: share(own),
                all: share(all),
            })
            .collect();
        functions.sort_by(|a, b| b.all.total_cmp(&a.all));
        let folded = stacks.counts.iter().map(|(names, count)| match &names[..] {
            [] => (USER.to_owned(), *count),
            names => (names.join(";"), *count),
        });
        Self {
            hertz: stacks::HERTZ,
            samples,
            lost: stacks.lost,
            functions,
            folded: folded.collect(),
        }
    }
}

/// Cost and losses of the probes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProbeSummary {
    /// An event, ns.
    pub event_ns: f64,
    /// The rest of a null workload after the correction, as a share of the workload.
    pub null_error: f64,
    /// Share of the measured time that was subtracted.
    pub share: f64,
    /// Events recorded.
    pub events: u64,
    /// Events lost for want of room.
    pub lost: u64,
    /// Records that were not understood.
    pub undecoded: u64,
    /// Bios of which the beginning or the end was not seen.
    pub unclear_bios: u64,
    /// Operations of which the beginning or the end was not seen.
    pub unclear_operations: u64,
}

/// Times, µs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimeSummary {
    /// Mean.
    pub mean_us: f64,
    /// Median.
    pub p50_us: f64,
    /// 99th percentile.
    pub p99_us: f64,
    /// 99.9th percentile.
    pub p999_us: f64,
}

/// One layer of a kind of operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LayerSummary {
    /// Its name.
    pub name: String,
    /// Without the probes.
    #[serde(flatten)]
    pub times: TimeSummary,
    /// The probes in it, mean, µs: what was subtracted.
    pub probes_us: f64,
    /// Its share of the operation.
    pub share: f64,
}

/// A kind of operation.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OperationSummary {
    /// How it was asked for: `call`, `io_uring`, `libaio`, `other`, `below` (a stacked device's worker), `background`.
    pub interface: String,
    /// `read`, `write`, `sync`, `discard`, `other`.
    pub action: String,
    /// Bytes each, rounded up to a power of two.
    pub bytes_max: u64,
    /// False if the device was not needed.
    pub reached_device: bool,
    /// How many.
    pub count: u64,
    /// All of their time, without the probes.
    #[serde(flatten)]
    pub times: TimeSummary,
    /// The application's own time before each, mean, µs.
    pub application_us: f64,
    /// Share of their time that is not the device's.
    pub software_share: f64,
    /// The layers.
    pub layers: Vec<LayerSummary>,
    /// Bytes moved.
    pub bytes: u64,
    /// Bios.
    pub bios: u64,
    /// Bios that joined a request.
    pub merged: u64,
    /// Splits.
    pub splits: u64,
    /// How many went on in an io_uring worker.
    pub punted: u64,
}

/// A device's bios.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DeviceSummary {
    /// Its name.
    pub device: String,
    /// Its scheduler.
    pub scheduler: String,
    /// The base of the device.
    pub backed_by: Vec<String>,
    /// `read`, `write`, …
    pub action: String,
    /// How many.
    pub count: u64,
    /// Bytes.
    pub bytes: u64,
    /// How many joined a request that was there already.
    pub merged: u64,
    /// Bios in flight when one was done, mean.
    pub depth: f64,
    /// Submission to request.
    pub q2g: TimeSummary,
    /// Request to scheduler, if there is one.
    pub g2i: Option<TimeSummary>,
    /// In the scheduler, if there is one.
    pub i2d: Option<TimeSummary>,
    /// Submission to driver.
    pub q2d: TimeSummary,
    /// Driver and device.
    pub d2c: TimeSummary,
}

/// Why a profile is not summed up.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
pub enum Refused {
    /// The probes cost more than the summary can bear.
    #[error(
        "the probes take {:.0} % of the measured time, so the rest would be a guess: profile fewer operations a second, or one \
         device (--device)",
        .0 * 100.0
    )]
    TooDear(f64),
    /// The cost of the probes could not be measured.
    #[error(
        "this machine is too busy to measure the cost of the probes (the correction leaves {:+.0} % of a null workload): profile at a quieter time",
        .0 * 100.0
    )]
    Unsure(f64),
}

/// The user-visible name of an action.
pub fn action_name(action: Action) -> &'static str {
    match action {
        Action::Read => "read",
        Action::Write => "write",
        Action::Discard => "discard",
        Action::Flush => "sync",
        Action::Other => "other",
    }
}

impl Summary {
    /// Sums a profile up, or refuses if the probes cost more than what they measure, or nobody knows how much.
    pub fn new(profile: &Profile, target: String) -> Result<Self, Refused> {
        let event_ns = profile.calibration.event_ns;
        if !profile.calibration.is_sure() {
            return Err(Refused::Unsure(profile.calibration.error()));
        }
        let rows = &profile.tables.operations;
        let reached = || rows.iter().filter(|(key, _)| key.reached_device);
        let measured_ns: u64 = reached().map(|(_, row)| row.total_ns).sum();
        let probes: u64 = reached().flat_map(|(_, row)| row.probes).sum();
        let share = match measured_ns {
            0 => 0.0,
            measured_ns => event_ns * probes as f64 / measured_ns as f64,
        };
        if share > PROBE_SHARE_MAX {
            return Err(Refused::TooDear(share));
        }
        let mut operations: Vec<_> = rows
            .iter()
            .map(|(key, row)| operation(key, row, event_ns))
            .collect();
        let time = |row: &OperationSummary| row.count as f64 * row.times.mean_us;
        operations.sort_by(|a, b| time(b).total_cmp(&time(a)));
        let devices = profile.tables.devices.iter();
        let devices = devices.map(|((dev, action), row)| {
            let info = profile.devices.all.get(dev);
            DeviceSummary {
                device: profile.devices.name(*dev),
                scheduler: info.map_or("none".to_string(), |info| info.scheduler.clone()),
                backed_by: info.map_or(Vec::new(), |info| info.backed_by.clone()),
                ..device(action_name(*action), row)
            }
        });
        Ok(Self {
            version: VERSION,
            target,
            kernel: std::fs::read_to_string("/proc/sys/kernel/osrelease")
                .map_or_else(|_| "unknown".to_string(), |text| text.trim().to_string()),
            seconds: profile.recorded.as_secs_f64(),
            probes: ProbeSummary {
                event_ns,
                null_error: profile.calibration.error(),
                share,
                events: profile.losses.events,
                lost: profile.losses.lost,
                undecoded: profile.losses.undecoded,
                unclear_bios: profile.unclear.bios,
                unclear_operations: profile.unclear.operations,
            },
            operations,
            devices: devices.collect(),
            heat: profile.heat.finish(),
            stacks: profile.stacks.as_ref().map(StackSummary::new),
        })
    }
}

/// `sum_ns` rather than the histogram's own mean: it is exact.
fn summary(times: &Times, sum_ns: u64, probes_ns: f64) -> TimeSummary {
    let at = |quantile| ((times.value_at_quantile(quantile) as f64 - probes_ns) / 1e3).max(0.0);
    TimeSummary {
        mean_us: ((sum_ns as f64 / times.len().max(1) as f64 - probes_ns) / 1e3).max(0.0),
        p50_us: at(0.5),
        p99_us: at(0.99),
        p999_us: at(0.999),
    }
}

fn operation(key: &RowKey, row: &LayerRow, event_ns: f64) -> OperationSummary {
    let count = row.total.len();
    let mut layers: Vec<LayerSummary> = LAYERS
        .iter()
        .enumerate()
        .map(|(index, layer)| {
            let probes_ns = event_ns * row.probes[index] as f64 / count as f64;
            LayerSummary {
                name: layer.name().to_string(),
                times: summary(&row.layers[index], row.layers_ns[index], probes_ns),
                probes_us: probes_ns / 1e3,
                share: 0.0,
            }
        })
        .collect();
    // What was subtracted from a layer that was shorter than its probes is not taken from the others.
    let total_us: f64 = layers.iter().map(|layer| layer.times.mean_us).sum();
    for layer in &mut layers {
        layer.share = layer.times.mean_us / total_us.max(f64::MIN_POSITIVE);
    }
    let probes_ns: f64 = row
        .probes
        .iter()
        .map(|probes| event_ns * *probes as f64 / count as f64)
        .sum();
    let device_share = layers[crate::attribute::Layer::Device as usize].share;
    OperationSummary {
        interface: key.interface.name().to_string(),
        action: action_name(key.action).to_string(),
        bytes_max: key.bytes_max,
        reached_device: key.reached_device,
        count,
        times: TimeSummary {
            mean_us: total_us,
            ..summary(&row.total, row.total_ns, probes_ns)
        },
        application_us: row.application_ns as f64 / count as f64 / 1e3,
        software_share: 1.0 - device_share,
        layers,
        bytes: row.bytes,
        bios: row.bios,
        merged: row.merged,
        splits: row.splits,
        punted: row.punted,
    }
}

fn device(action: &str, row: &DeviceRow) -> DeviceSummary {
    let count = row.d2c.len();
    let of = |times: &Times| summary(times, (times.mean() * times.len() as f64) as u64, 0.0);
    let if_any = |times: &Times| (!times.is_empty()).then(|| of(times));
    DeviceSummary {
        device: String::new(),
        scheduler: String::new(),
        backed_by: Vec::new(),
        action: action.to_string(),
        count,
        bytes: row.bytes,
        merged: row.merged,
        depth: row.depth_sum as f64 / count.max(1) as f64,
        q2g: of(&row.q2g),
        g2i: if_any(&row.g2i),
        i2d: if_any(&row.i2d),
        q2d: of(&row.q2d),
        d2c: of(&row.d2c),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_has_its_own_samples_and_those_of_what_it_called_once_each() {
        let stack = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let stacks = Stacks {
            counts: BTreeMap::from([
                (stack(&["call", "bio_add_page"]), 2),
                (stack(&["call", "call"]), 1),
                (stack(&[]), 1),
            ]),
            lost: 0,
        };
        let summary = StackSummary::new(&stacks);
        let shares: Vec<_> = summary
            .functions
            .iter()
            .map(|f| (f.name.as_str(), f.own, f.all))
            .collect();
        assert_eq!(shares, [("call", 0.25, 0.75), ("bio_add_page", 0.5, 0.5)]);
        assert_eq!(
            (
                summary.samples,
                summary.folded["call;bio_add_page"],
                summary.folded[USER]
            ),
            (4, 2, 1)
        );
    }
}
