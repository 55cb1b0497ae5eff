//! Drives requests through the whole switch and nothing else, for counting what it costs: classification, steering,
//! charge, push, pop (all slices of a T request), spend, release.
//!
//! `overhead POLICY REQUESTS`: eight applications on four cores, half of them L (4 KiB), half T (128 KiB). Again and
//! again each sends eight requests, and the cores take turns until all are done: every policy does the same work.

use base::{Instant, Rng};
use blockswitch::class::ClassConfig;
use blockswitch::{
    AppId, Charge, Class, ClassHint, Classifier, Config, Egress, Item, Kind, Limits, Loads, Policy, Steering,
};
use std::process::ExitCode;

const CORES: usize = 4;
const APPS: u32 = 8;
/// Requests that an application sends at a time.
const DEPTH: u32 = 8;

/// Every other application is L.
fn bytes_of(app: u32) -> u32 {
    [4096, 128 << 10][app as usize % 2]
}

struct Switch {
    loads: Loads,
    egress: Vec<Egress>,
    steering: Vec<Steering>,
    classifiers: Vec<Classifier>,
    /// Charges of requests, by tag.
    charges: Vec<Option<Charge>>,
    now: Instant,
    slices: u64,
}

impl Switch {
    fn new(config: &Config) -> Self {
        let mut rng = Rng::new(1);
        let hint = |app: u32| match app % 2 {
            0 => ClassHint::Fixed(Class::Latency),
            _ => ClassHint::Auto,
        };
        Self {
            loads: Loads::new(CORES, config),
            egress: (0..CORES)
                .map(|_| Egress::new(config, Limits::default()))
                .collect(),
            steering: (0..CORES)
                .map(|home| Steering::new(config, home, CORES, rng.fork()))
                .collect(),
            classifiers: (0..APPS)
                .map(|app| Classifier::new(ClassConfig::DEFAULT, hint(app), config.promotion))
                .collect(),
            charges: (0..APPS * DEPTH).map(|_| None).collect(),
            now: Instant::ZERO,
            slices: 0,
        }
    }

    /// A request of the application that `tag` belongs to arrives.
    fn submit(&mut self, tag: u64) {
        let app = tag as u32 % APPS;
        let home = app as usize / 2 % CORES;
        let bytes = bytes_of(app);
        let class = self.classifiers[app as usize].arrive(self.now, bytes, false);
        let core = self.steering[home].steer(&self.loads, class);
        self.charges[tag as usize] = Some(self.loads.charge(home, core, class, bytes));
        let item = Item {
            app: AppId(app),
            class,
            tag,
            bytes,
            kind: Kind::Read,
        };
        self.egress[core]
            .push(self.now, item)
            .expect("the limits are wide");
        self.loads.set_batch(core, self.egress[core].batch());
    }

    /// A core works on one slice; true if that completes a request.
    fn serve(&mut self, core: usize) -> bool {
        self.now += base::Duration::from_micros(4);
        let Some(slice) = self.egress[core].pop(self.now) else {
            return false;
        };
        self.slices += 1;
        self.loads.spend(core, slice.class, 4000);
        if !slice.last {
            return false;
        }
        let charge = self.charges[slice.tag as usize]
            .take()
            .expect("charged when it arrived");
        let bytes = bytes_of(slice.app.0);
        self.classifiers[slice.app.0 as usize].finish(bytes, charge.class());
        self.loads.release(charge);
        true
    }
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let policy = args.next().and_then(|text| text.parse::<Policy>().ok());
    let requests = args.next().and_then(|text| text.parse::<u64>().ok());
    let (Some(policy), Some(requests)) = (policy, requests) else {
        eprintln!("usage: overhead POLICY REQUESTS");
        return ExitCode::from(2);
    };
    let mut switch = Switch::new(&Config::of(policy));
    let mut done = 0;
    while done < requests {
        for tag in 0..u64::from(APPS * DEPTH) {
            switch.submit(tag);
        }
        let mut waiting = APPS * DEPTH;
        let mut core = 0;
        while waiting > 0 {
            core = (core + 1) % CORES;
            waiting -= u32::from(switch.serve(core));
        }
        done += u64::from(APPS * DEPTH);
    }
    println!("{policy}: {done} requests, {} slices", switch.slices);
    ExitCode::SUCCESS
}
