//! The tables: how long each kind of operation spent in each layer, and each device's bios on their way.

use crate::attribute::{BioPath, Finding, Interface, LAYERS, Operation};
use crate::event::{Action, Dev};
use hdrhistogram::Histogram;
use std::collections::BTreeMap;

/// Longest time told apart: an hour, ns.
const NANOS_MAX: u64 = 3_600_000_000_000;

/// Times, ns.
pub type Times = Histogram<u64>;

fn times() -> Times {
    Histogram::new_with_bounds(1, NANOS_MAX, 3).expect("valid bounds")
}

/// Subject of a row of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RowKey {
    /// How it was asked for.
    pub interface: Interface,
    /// Its work.
    pub action: Action,
    /// Bytes, rounded up to a power of two; 0 for none.
    pub bytes_max: u64,
    /// It needed the device. What did not was answered by the page cache, or was no file.
    pub reached_device: bool,
}

/// Operations of one kind and size.
#[derive(Clone, Debug)]
pub struct LayerRow {
    /// All of their time.
    pub total: Times,
    /// Their time in each of [`LAYERS`], with the cost of the probes in it.
    pub layers: [Times; LAYERS.len()],
    /// Sum of that time, ns.
    pub layers_ns: [u64; LAYERS.len()],
    /// Sum of all, ns.
    pub total_ns: u64,
    /// Sum of the application's own time before each, ns.
    pub application_ns: u64,
    /// Probes in each layer.
    pub probes: [u64; LAYERS.len()],
    /// Bytes moved.
    pub bytes: u64,
    /// Bios.
    pub bios: u64,
    /// Bios that joined a request.
    pub merged: u64,
    /// Splits.
    pub splits: u64,
    /// Operations that went on in a worker.
    pub punted: u64,
}

impl Default for LayerRow {
    fn default() -> Self {
        Self {
            total: times(),
            layers: core::array::from_fn(|_| times()),
            layers_ns: [0; LAYERS.len()],
            total_ns: 0,
            application_ns: 0,
            probes: [0; LAYERS.len()],
            bytes: 0,
            bios: 0,
            merged: 0,
            splits: 0,
            punted: 0,
        }
    }
}

impl LayerRow {
    fn add(&mut self, operation: &Operation) {
        self.total.saturating_record(operation.total_ns);
        self.total_ns += operation.total_ns;
        self.application_ns += operation.application_ns;
        for (index, ns) in operation.layers_ns.iter().enumerate() {
            self.layers[index].saturating_record(*ns);
            self.layers_ns[index] += ns;
            self.probes[index] += u64::from(operation.probes[index]);
        }
        self.bytes += operation.bytes;
        self.bios += u64::from(operation.bios);
        self.merged += u64::from(operation.merged);
        self.splits += u64::from(operation.splits);
        self.punted += u64::from(operation.punted);
    }
}

/// Bios of one device and action.
#[derive(Clone, Debug)]
pub struct DeviceRow {
    /// Submission to request.
    pub q2g: Times,
    /// Request to scheduler; empty if there is no scheduler.
    pub g2i: Times,
    /// In the scheduler; empty if there is none.
    pub i2d: Times,
    /// Submission to driver.
    pub q2d: Times,
    /// Driver and device.
    pub d2c: Times,
    /// Sum of the bios in flight at each completion.
    pub depth_sum: u64,
    /// Bytes.
    pub bytes: u64,
    /// Bios that joined a request.
    pub merged: u64,
}

impl Default for DeviceRow {
    fn default() -> Self {
        Self {
            q2g: times(),
            g2i: times(),
            i2d: times(),
            q2d: times(),
            d2c: times(),
            depth_sum: 0,
            bytes: 0,
            merged: 0,
        }
    }
}

impl DeviceRow {
    fn add(&mut self, bio: &BioPath) {
        let steps = [
            (&mut self.q2g, bio.q2g_ns),
            (&mut self.g2i, bio.g2i_ns),
            (&mut self.i2d, bio.i2d_ns),
            (&mut self.q2d, bio.q2d_ns),
            (&mut self.d2c, bio.d2c_ns),
        ];
        for (times, ns) in steps {
            if ns > 0 {
                times.saturating_record(ns);
            }
        }
        self.depth_sum += u64::from(bio.depth);
        self.bytes += bio.bytes;
        self.merged += u64::from(bio.merged);
    }
}

/// The tables.
#[derive(Clone, Debug, Default)]
pub struct Tables {
    /// By kind and size of operation.
    pub operations: BTreeMap<RowKey, LayerRow>,
    /// By device and action.
    pub devices: BTreeMap<(Dev, Action), DeviceRow>,
}

impl Tables {
    /// Adds what was found.
    pub fn add(&mut self, finding: &Finding) {
        match finding {
            Finding::Operation(operation) => {
                let key = RowKey {
                    interface: operation.interface,
                    action: operation.action,
                    bytes_max: match operation.bytes {
                        0 => 0,
                        bytes => bytes.next_power_of_two(),
                    },
                    reached_device: operation.reached_device,
                };
                self.operations.entry(key).or_default().add(operation);
            }
            Finding::Bio(bio) => self.devices.entry((bio.dev, bio.action)).or_default().add(bio),
        }
    }
}
