//! Power is lost at every write boundary: the crash test that leaves nothing to chance about *when*.
//!
//! A first run without cuts counts the boundaries, which are the writes and flushes that nodes issue to their media.
//! For each boundary and each fate of the operation there ([`CutFate`]), the same run is made again up to that operation.
//! Then the whole rack or the one node loses power. Writes that its drive had not made durable persist, vanish or are torn
//! by the seed. The hosts start again from their media, and every volume is read back under the checkers. The replicas must
//! serve, agree and have their accounts in order. Then the rack does further work and is read back once more, because damage
//! to the flash's own tables may show late.
//!
//! Assumption: up to the cut, the runs of one seed are equal. It is checked: each run meets its boundary.
//!
//! Recovery itself only reads ([`flash::Ssd`]), so that power lost during it is power lost before it.

use crate::check::Violation;
use crate::client::{LoadSpec, Pace, Shape};
use crate::media::CutFate;
use crate::rack::{Layout, RackFleet, RackHost, RackOptions, flash_totals};
use crate::run::{AtCut, Fleet, Run, RunSpec};
use crate::small;
use crate::workload::{Mix, Pattern};
use crate::world::{Canary, Cut};
use base::{Duration, Instant};
use flash::VssdStats;
use rack::registry::Durability;
use std::panic::{AssertUnwindSafe, catch_unwind};

const MILLISECOND: u64 = 1_000_000;
/// Servers: the two volumes of two replicas each then share one of them.
const NODES: u32 = 3;
/// Pages of each volume, of the 80 that its vSSDs have: collection is constant.
const PAGES: u32 = 40;
/// Requests on each volume before the cut, and after it.
const REQUESTS: u64 = 200;
const REQUESTS_AFTER: u64 = 60;
/// The load is over long before this; what is still to be destaged by then is cut as well.
const CALM_NS: u64 = 300 * MILLISECOND;

/// Which cuts to make.
#[derive(Clone, Copy, Debug)]
pub struct CutsOptions {
    /// Seed of the load and of what drives keep.
    pub seed: u64,
    /// Every so many boundaries; each case begins at another one.
    pub stride: u64,
    /// The deliberate break.
    pub canary: Canary,
    /// The vSSDs are software-isolated: those of the server that both volumes have share a channel.
    pub shared: bool,
}

impl Default for CutsOptions {
    fn default() -> Self {
        Self {
            seed: 1,
            stride: 1,
            canary: Canary::None,
            shared: false,
        }
    }
}

/// Result of all cuts.
#[derive(Clone, Debug)]
pub struct CutsOutcome {
    /// Writes and flushes in the run without cuts.
    pub boundaries: u64,
    /// Work of the flash in it.
    pub flash: VssdStats,
    /// By what fails and what becomes of the write.
    pub cases: Vec<CutCase>,
}

/// The runs of one kind.
#[derive(Clone, Debug)]
pub struct CutCase {
    /// Parts that lose power.
    pub at_cut: AtCut,
    /// Fate of the operation at the boundary.
    pub fate: CutFate,
    /// Runs made.
    pub runs: u64,
    /// Block reads judged in them.
    pub reads_judged: u64,
    /// Writes that the drives undid or tore.
    pub writes_lost: u64,
    /// First broken promise of each run that broke one, by boundary.
    pub violations: Vec<(u64, Violation)>,
}

impl CutCase {
    /// The name that users write.
    pub fn label(&self) -> String {
        let what = match self.at_cut {
            AtCut::Rack => "rack",
            AtCut::Host => "node",
        };
        let fate = match self.fate {
            CutFate::Lost => "lost",
            CutFate::Persists => "persists",
            CutFate::Torn => "torn",
        };
        format!("{what}, write {fate}")
    }
}

/// Makes them all; `progress` is told of each case and each broken promise.
///
/// # Panics
/// If the run without cuts breaks a promise already.
pub fn run(options: CutsOptions, progress: &mut dyn FnMut(&str)) -> CutsOutcome {
    let (boundaries, flash) = count_boundaries(options);
    let mut cases = Vec::new();
    for at_cut in [AtCut::Rack, AtCut::Host] {
        for fate in CutFate::ALL {
            let case = CutCase {
                at_cut,
                fate,
                runs: 0,
                reads_judged: 0,
                writes_lost: 0,
                violations: Vec::new(),
            };
            progress(&format!("power-cut: {}, {boundaries} boundaries", case.label()));
            let first = cases.len() as u64 % options.stride;
            cases.push(run_case(options, case, (first, boundaries), progress));
        }
    }
    CutsOutcome {
        boundaries,
        flash,
        cases,
    }
}

fn run_case(
    options: CutsOptions,
    mut case: CutCase,
    (first, boundaries): (u64, u64),
    progress: &mut dyn FnMut(&str),
) -> CutCase {
    for boundary in (first..boundaries).step_by(options.stride as usize) {
        let cut = Cut {
            boundary,
            fate: case.fate,
        };
        let outcome = catch_unwind(AssertUnwindSafe(|| run_cut(options, cut, case.at_cut)));
        let end = outcome.unwrap_or_else(|cause| {
            let text = cause.downcast_ref::<String>().map(String::as_str);
            let text = text.or(cause.downcast_ref::<&str>().copied()).unwrap_or("?");
            CutEnd {
                violations: vec![Violation::Panicked(text.to_owned())],
                ..CutEnd::default()
            }
        });
        case.runs += 1;
        case.reads_judged += end.reads_judged;
        case.writes_lost += end.writes_lost;
        if let Some(violation) = end.violations.into_iter().next() {
            progress(&format!(
                "power-cut: {} at boundary {boundary}: {violation}",
                case.label()
            ));
            case.violations.push((boundary, violation));
        }
    }
    case
}

/// The run without cuts: its boundaries, and what the flash did.
fn count_boundaries(options: CutsOptions) -> (u64, VssdStats) {
    let fleet = RackFleet::new(rack_options(options.shared));
    let mut spec = run_spec(&fleet, options.seed);
    spec.read_back = false;
    spec.probe = false;
    spec.errors_are_violations = true;
    let mut run = Run::new(fleet, spec);
    let outcome = run.execute();
    assert_eq!(outcome.violations, [], "a run without cuts is without fault");
    let hosts = run.fleet().sites().len();
    let world = run.world();
    let up: Vec<&RackHost> = (0..hosts).filter_map(|i| world.host(i)).collect();
    (outcome.world.boundaries, flash_totals(up.into_iter()))
}

/// How a run with a cut ended.
#[derive(Default)]
struct CutEnd {
    violations: Vec<Violation>,
    reads_judged: u64,
    writes_lost: u64,
}

fn run_cut(options: CutsOptions, cut: Cut, at_cut: AtCut) -> CutEnd {
    let fleet = RackFleet::new(rack_options(options.shared));
    let mut spec = run_spec(&fleet, options.seed);
    spec.world.cut = Some(cut);
    spec.world.canary = options.canary;
    spec.at_cut = at_cut;
    let loads = spec.loads.clone();
    let mut run = Run::new(fleet, spec);
    let outcome = run.execute();
    assert!(
        outcome.world.boundaries > cut.boundary,
        "the run with a cut is the run without it, until then"
    );
    let nodes: Vec<usize> = (0..NODES).map(|i| run.fleet().node(i)).collect();
    let media = nodes
        .iter()
        .filter_map(|&node| run.world().medium(node).map(|m| m.stats()));
    let mut end = CutEnd {
        writes_lost: media.map(|stats| stats.writes_lost).sum(),
        violations: outcome.violations,
        reads_judged: outcome.reads_judged,
    };
    end.violations.extend(unready(&mut run));
    if !end.violations.is_empty() {
        return end;
    }
    for load in loads {
        run.add_load(LoadSpec {
            requests: REQUESTS_AFTER,
            ..load
        });
    }
    let outcome = run.execute();
    end.violations = outcome.violations;
    end.reads_judged = outcome.reads_judged;
    end
}

/// Replicas that do not serve, though the media are healthy and there was time.
fn unready(run: &mut Run<RackFleet>) -> Vec<Violation> {
    let mut found = Vec::new();
    for i in 0..NODES {
        let index = run.fleet().node(i);
        let Some(RackHost::Node(node)) = run.world().host(index) else {
            let what = "the node is down".to_owned();
            found.push(Violation::Accounts { host: index, what });
            continue;
        };
        for unit in node.units().filter(|u| !u.is_serving() || u.is_latched()) {
            found.push(Violation::Accounts {
                host: index,
                what: format!("vSSD {} does not serve after the cut", unit.identity().vssd.0),
            });
        }
    }
    found
}

fn rack_options(shared: bool) -> RackOptions {
    let geometry = match shared {
        true => small::geometry(1, 2),
        false => small::geometry(2, 1),
    };
    let layout = |durability| Layout {
        sets: 1,
        pages_per_set: PAGES,
        replicas: 2,
        channels: 1,
        rows: u32::from(shared),
        durability,
    };
    let volumes = vec![layout(Durability::Memory), layout(Durability::Media)];
    let mut options = RackOptions {
        borrow_blocks: 2,
        ..small::options(NODES, geometry, volumes)
    };
    let gc = &mut options.unit.gc;
    gc.check_every = Duration::from_millis(1);
    if shared {
        // Late, so that one runs out before the group does.
        (gc.soft_ratio, gc.hard_ratio) = (0.12, 0.1);
    }
    options
}

fn run_spec(fleet: &RackFleet, seed: u64) -> RunSpec {
    let volumes = 0..fleet.options().volumes.len();
    let loads = volumes.map(|volume| load(fleet.gateway_of(volume), volume));
    let mut spec = small::spec(fleet, seed, small::LINK, loads.collect());
    spec.world.wire_check = false;
    RunSpec {
        calm_ns: CALM_NS,
        exam: false,
        ..spec
    }
}

fn load(gateway: usize, volume: usize) -> LoadSpec {
    LoadSpec {
        pace: Pace::Closed { depth: 4 },
        pattern: Pattern::Uniform,
        mix: Mix {
            flush: 0.06,
            trim: 0.08,
            zeroes: 0.03,
            ..Mix::writes(0.8)
        },
        shape: Shape {
            sub_page: 0.2,
            multi_page: 0.1,
            pages_max: 3,
        },
        fua: 0.1,
        start: Instant::from_nanos(MILLISECOND),
        ..LoadSpec::new(gateway, volume, REQUESTS)
    }
}
