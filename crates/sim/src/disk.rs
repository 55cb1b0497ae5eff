//! A disk of its own in virtual time, part of every seed of the swarm: the very [`host::Disk`] that a target serves.
//!
//! The seed draws the flash, the load and the faults: loss of power, failing writes and flushes, flipped bits, a medium
//! that hangs. The checkers that judge a rack judge the disk. There is one copy of the data, so a loss of power takes what was not flushed.

use crate::check::Violation;
use crate::check::memory::Set;
use crate::client::ClientVolume;
use crate::draw::{draw_hang_ns, draw_load, draw_media, drop_damage_like_a_cut, pick};
use crate::media::{MediaStats, SimMedium};
use crate::net::NetFaults;
use crate::rack::flash_is_sound;
use crate::run::{AtCut, FOR_EVER, Fault, Fleet, Outcome, Role, Run, RunSpec};
use crate::world::{Canary, Site, WorldOptions};
use base::event::Source;
use base::limits::{PAGE_BYTES, RACK_PORT, SECTOR_BYTES};
use base::{Addr, Duration, Instant, Machine, Pool, Rng, VolumeId, VssdId};
use flash::{GcMode, Geometry, Ssd, Timing, VssdStats};
use host::{Disk, DiskConfig, DiskEntry, Input, Output};

const MILLISECOND: u64 = 1_000_000;
/// Every request is answered this long after the faults stopped; the slowest flash collects for less.
const ANSWER_NS: u64 = 20_000 * MILLISECOND;
/// Pages of memory: a few times what the requests under way and the largest cache hold.
const POOL_PAGES: usize = 4096;

/// The choices that the seed does not make.
#[derive(Clone, Copy, Debug, Default)]
pub struct DiskOptions {
    /// Writes and flushes of the medium may fail, bits flip, and the medium may hang.
    pub failing_media: bool,
    /// The canary: a write with FUA is acknowledged before it is on the medium.
    pub hasty_fua: bool,
    /// Another canary: flushes of the medium do nothing.
    pub loses_flushes: bool,
    /// A third canary: the medium hangs for ever, and no deadline gives its operations up.
    pub never_gives_up: bool,
}

/// The end of a seed's run.
#[derive(Clone, Debug)]
pub struct DiskReport {
    /// The run.
    pub outcome: Outcome,
    /// The work of the medium.
    pub media: MediaStats,
    /// The work of the flash since the last start.
    pub flash: VssdStats,
}

/// Runs `seed`.
pub fn run(seed: u64, options: DiskOptions) -> DiskReport {
    let mut rng = Rng::new(seed ^ 0xd15c);
    let fleet = draw_disk(options, &mut rng);
    let spec = draw_run(&fleet, seed, options, &mut rng);
    let mut run = Run::new(fleet, spec);
    let mut outcome = run.execute();
    let wrap = |violation: Violation| Violation::Disk(Box::new(violation));
    outcome.violations = outcome.violations.into_iter().map(wrap).collect();
    let world = run.world();
    DiskReport {
        outcome,
        flash: world
            .host(0)
            .map_or_else(VssdStats::default, |host| host.disk.flash().stats()),
        media: world.medium(0).expect("a disk has a medium").stats(),
    }
}

/// A disk, and perhaps its canary.
struct DiskHost {
    disk: Disk,
    hasty_fua: bool,
}

impl Machine for DiskHost {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Instant, mut input: Input) {
        if let Input::Request(request) = &mut input {
            request.fua &= !self.hasty_fua;
        }
        self.disk.handle(now, input);
    }

    fn poll(&mut self) -> Option<Output> {
        self.disk.poll()
    }

    fn deadline(&self) -> Option<Instant> {
        self.disk.deadline()
    }

    fn tick(&mut self, now: Instant) {
        self.disk.tick(now);
    }
}

/// One machine with one disk.
struct DiskFleet {
    geometry: Geometry,
    config: DiskConfig,
    pages: u32,
    hasty_fua: bool,
}

impl Fleet for DiskFleet {
    type Host = DiskHost;

    fn sites(&self) -> Vec<(Site, Role)> {
        let site = Site {
            addr: Addr::new([10, 0, 0, 1], RACK_PORT),
            medium_bytes: Ssd::bytes_needed(&self.geometry, PAGE_BYTES),
            source: Source::Disk,
        };
        vec![(site, Role::Server)]
    }

    fn start(
        &mut self,
        _index: usize,
        boot: u32,
        now: Instant,
        pool: &Pool,
        medium: Option<&mut SimMedium>,
    ) -> Result<DiskHost, String> {
        let medium = medium.expect("a disk has a medium");
        if boot == 0 {
            Ssd::format(medium, self.geometry, PAGE_BYTES, [7; 16]).map_err(|error| error.to_string())?;
        }
        let size_bytes = u64::from(self.pages) * PAGE_BYTES as u64;
        let entry = DiskEntry::open(medium, Some(size_bytes)).map_err(|error| error.to_string())?;
        let disk = Disk::start(now, &entry, self.config.clone(), pool.clone(), medium);
        Ok(DiskHost {
            disk: disk.map_err(|error| error.to_string())?,
            hasty_fua: self.hasty_fua,
        })
    }

    fn sets(&self) -> Vec<Set> {
        vec![Set {
            volume: 0,
            pages: 0..u64::from(self.pages),
            members: vec![(VssdId(0), 0)],
            may_change: false,
        }]
    }

    fn corruptible(&self, _index: usize) -> core::ops::Range<u64> {
        // The data area, which is the last part of the layout (docs/format/flash.md).
        let end = Ssd::bytes_needed(&self.geometry, PAGE_BYTES);
        end - u64::from(self.geometry.pages()) * PAGE_BYTES as u64..end
    }

    fn probe(&self, _index: usize, host: &DiskHost) -> Result<(), String> {
        flash_is_sound(host.disk.flash(), self.geometry.pages_per_block)
    }
}

fn draw_disk(options: DiskOptions, rng: &mut Rng) -> DiskFleet {
    let geometry = Geometry {
        channels: rng.between(1, 2) as u32,
        chips_per_channel: rng.between(1, 2) as u32,
        planes_per_chip: 1,
        blocks_per_plane: rng.between(20, 40) as u32,
        pages_per_block: pick(rng, &[4, 8, 16]),
    };
    let logical_max = f64::from(geometry.logical_pages_max(geometry.channels));
    let share = pick(rng, &[0.3, 0.6, 0.8, 0.95]);
    let timing = Timing::built_in(pick(rng, Timing::BUILT_IN)).expect("it is built in");
    let mut config = DiskConfig::new(timing, geometry.channels);
    config.gc_mode = pick(rng, &[GcMode::Blocking, GcMode::Preemptible { step_pages: 2 }]);
    config.cache_pages = pick(rng, &[16, 64]);
    config.read_depth = pick(rng, &[1, 4, 32]);
    config.write_depth = pick(rng, &[1, 4, 32]);
    config.dirty_ratio_low = pick(rng, &[0.0, 0.5, 0.9]);
    DiskFleet {
        pages: ((logical_max * share) as u32).clamp(4, 256),
        geometry,
        config,
        hasty_fua: options.hasty_fua,
    }
}

fn draw_run(fleet: &DiskFleet, seed: u64, options: DiskOptions, rng: &mut Rng) -> RunSpec {
    let span_ns = rng.between(200, 2_000) * MILLISECOND;
    let loads = (0..rng.between(1, 2))
        .map(|_| draw_load(0, 0, span_ns, rng))
        .collect();
    let faults = draw_faults(span_ns, options, rng);
    let mut media = draw_media(rng);
    (media.page_bytes, media.sector_bytes) = (PAGE_BYTES, SECTOR_BYTES);
    if options.never_gives_up {
        media.limit = Duration::from_secs(1_000_000);
    }
    RunSpec {
        world: WorldOptions {
            seed,
            link: crate::small::LINK,
            media,
            wire_check: false,
            canary: match options.loses_flushes {
                true => Canary::LoseFlush,
                false => Canary::None,
            },
            cut: None,
        },
        volumes: vec![ClientVolume {
            id: VolumeId(0),
            pages: u64::from(fleet.pages),
            check: true,
            durability: true,
            durable_writes: false,
        }],
        loads,
        errors_are_violations: faults.is_empty(),
        faults,
        net_faults: NetFaults::default(),
        calm_ns: span_ns,
        answer_ns: ANSWER_NS,
        gc_lease_ns: u64::MAX,
        pool_pages: POOL_PAGES,
        read_back: true,
        probe: true,
        exam: true,
        at_cut: AtCut::Host,
    }
}

fn draw_faults(span_ns: u64, options: DiskOptions, rng: &mut Rng) -> Vec<(u64, Fault)> {
    let host = 0;
    let mut faults = Vec::new();
    for _ in 0..rng.between(0, 4) {
        let down_ns = pick(rng, &[MILLISECOND, 30 * MILLISECOND]);
        let fault = match rng.below(9) {
            5 if options.failing_media => Fault::Corrupt { host },
            6 if options.failing_media => Fault::FailWrite { host },
            7 if options.failing_media => Fault::FailFlush { host },
            8 => Fault::Hang {
                host,
                for_ns: match options.failing_media {
                    true => draw_hang_ns(rng),
                    false => MILLISECOND,
                },
            },
            _ => Fault::Crash { host, down_ns },
        };
        faults.push((rng.between(span_ns / 10, span_ns), fault));
    }
    if options.loses_flushes || options.hasty_fua {
        // Without a loss of power nobody could tell.
        let down_ns = MILLISECOND;
        faults.push((span_ns / 2, Fault::Crash { host, down_ns }));
    }
    if options.never_gives_up {
        let for_ns = FOR_EVER;
        faults.push((span_ns / 2, Fault::Hang { host, for_ns }));
    }
    faults.sort_unstable_by_key(|fault| fault.0);
    drop_damage_like_a_cut(&mut faults);
    faults
}
