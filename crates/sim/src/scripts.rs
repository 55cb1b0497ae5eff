//! Faults that belong together: each next to what the one before has begun. Drawn one by one they hardly ever meet.

use crate::check::memory::Set;
use crate::draw::pick;
use crate::fault::Fault;
use crate::rack::RackFleet;
use crate::run::Fleet;
use base::Rng;

const MILLISECOND: u64 = 1_000_000;

/// What scripts are drawn for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scene {
    /// Faults begin before this, in ns.
    pub(crate) span_ns: u64,
    /// Members that are lost are expelled: outages last for seconds, or for ever.
    pub(crate) heals: bool,
    /// A node may go for ever, or lose its medium.
    pub(crate) takes_medium: bool,
}

impl Scene {
    /// How long a host is away: mostly about as long as what waits for it.
    fn outage(&self, rng: &mut Rng) -> u64 {
        let short = [5, 30, 70, 200, 400];
        // Beyond the longest pause between retransmissions, a node's silence, and a lease.
        let long = [400, 1_200, 1_500, 2_300, 2_700, 4_000];
        MILLISECOND
            * match self.heals {
                true => pick(rng, &long),
                false => pick(rng, &short),
            }
    }
}

/// Draws a script for a rack; none if it has no replicas.
pub(crate) fn draw(fleet: &RackFleet, scene: Scene, rng: &mut Rng) -> Vec<(u64, Fault)> {
    let sets: Vec<Set> = fleet.sets();
    let replicated: Vec<&Set> = sets.iter().filter(|set| set.members.len() > 1).collect();
    if replicated.is_empty() {
        return Vec::new();
    }
    let set = pick(rng, &replicated);
    let first = rng.below(set.members.len() as u64) as usize;
    let (a, b) = (
        set.members[first].1,
        set.members[(first + 1) % set.members.len()].1,
    );
    let at = rng.between(scene.span_ns / 10, scene.span_ns / 2);
    let cast = Cast {
        pair: [a, b],
        gateway: fleet.gateway(rng.below(u64::from(fleet.options().gateways)) as u32),
        other: fleet.node(rng.below(u64::from(fleet.options().nodes)) as u32),
    };
    let mut faults = match rng.below(10) {
        0 | 1 => then_its_peer(cast, at, scene, rng),
        2 => both(cast, at, scene, rng),
        3 => power_amid_catching_up(cast, at, scene, rng),
        4 | 5 => lead_amid_a_loss(cast, at, scene, rng),
        6 => one_way(cast, at, scene, rng),
        7 => burst(cast, at, scene, rng),
        8 => storm(cast, at, scene, rng),
        _ => other_medium(cast, at, scene, rng),
    };
    faults.sort_by_key(|fault| fault.0);
    faults
}

/// Hosts of a script.
#[derive(Clone, Copy, Debug)]
struct Cast {
    /// Two members of a set.
    pair: [usize; 2],
    gateway: usize,
    other: usize,
}

type Script = Vec<(u64, Fault)>;

/// A member is down, then its peer while it joins again, or just before.
fn then_its_peer(cast: Cast, at: u64, scene: Scene, rng: &mut Rng) -> Script {
    let [a, b] = cast.pair;
    let (first, second) = (scene.outage(rng), scene.outage(rng));
    let shift = pick(rng, &[0, 1, 5, 20, 100]) * MILLISECOND;
    let then = match rng.chance(0.3) {
        true => (at + first).saturating_sub(shift),
        false => at + first + shift,
    };
    vec![
        (
            at,
            Fault::Crash {
                host: a,
                down_ns: first,
            },
        ),
        (
            then,
            Fault::Crash {
                host: b,
                down_ns: second,
            },
        ),
    ]
}

/// Both members are down at once; a third one may follow.
fn both(cast: Cast, at: u64, scene: Scene, rng: &mut Rng) -> Script {
    let mut faults = Vec::new();
    for host in cast.pair.into_iter().chain(rng.chance(0.4).then_some(cast.other)) {
        let down_ns = scene.outage(rng);
        faults.push((at + rng.below(60) * MILLISECOND, Fault::Crash { host, down_ns }));
    }
    faults
}

/// The power goes while a member catches up, or while a copy is made elsewhere.
fn power_amid_catching_up(cast: Cast, at: u64, scene: Scene, rng: &mut Rng) -> Script {
    let host = cast.pair[0];
    let down_ns = scene.outage(rng);
    let loss = match scene.takes_medium && rng.chance(0.5) {
        true => Fault::Gone { host },
        false => Fault::Crash { host, down_ns },
    };
    let after = match scene.heals {
        true => rng.between(500, 7_000) * MILLISECOND,
        false => down_ns + rng.below(50) * MILLISECOND,
    };
    let down_ns = scene.outage(rng) / 4;
    vec![(at, loss), (at + after, Fault::PowerLoss { down_ns })]
}

/// A gateway goes, or is not heard, while a member is expelled.
fn lead_amid_a_loss(cast: Cast, at: u64, scene: Scene, rng: &mut Rng) -> Script {
    let (host, gateway) = (cast.pair[0], cast.gateway);
    let (down_ns, for_ns) = (scene.outage(rng), scene.outage(rng));
    let away = match rng.below(3) {
        0 => Fault::Crash {
            host: gateway,
            down_ns: for_ns / 10,
        },
        way => Fault::Partition {
            host: gateway,
            for_ns,
            inbound: true,
            outbound: way == 1,
        },
    };
    let mut faults = vec![
        (at, Fault::Crash { host, down_ns }),
        (at + rng.below(down_ns + 300 * MILLISECOND), away),
    ];
    if rng.chance(0.3) {
        let host = RackFleet::TOR;
        let down_ns = scene.outage(rng) / 4;
        faults.push((at + rng.below(down_ns + 1), Fault::Crash { host, down_ns }));
    }
    faults
}

/// A member hears another one and is not heard by it; the rest of the rack hears both.
fn one_way(cast: Cast, at: u64, scene: Scene, rng: &mut Rng) -> Script {
    let [a, b] = cast.pair;
    let for_ns = scene.outage(rng);
    let cut = match rng.below(4) {
        0 => Fault::Cut { pair: [a, b], for_ns },
        1 => Fault::CutOneWay {
            pair: [cast.gateway, a],
            for_ns,
        },
        _ => Fault::CutOneWay { pair: [a, b], for_ns },
    };
    let mut faults = vec![(at, cut)];
    if rng.chance(0.6) {
        let host = pick(rng, &[a, b, cast.other, cast.gateway]);
        let down_ns = scene.outage(rng) / 2;
        faults.push((at + rng.below(for_ns), Fault::Crash { host, down_ns }));
    }
    faults
}

/// Most packets are lost for a while, and a member is down meanwhile.
fn burst(cast: Cast, at: u64, scene: Scene, rng: &mut Rng) -> Script {
    let for_ns = scene.outage(rng);
    let loss = pick(rng, &[0.3, 0.6, 0.95]);
    let (host, down_ns) = (cast.pair[0], scene.outage(rng) / 2);
    vec![
        (at, Fault::Burst { loss, for_ns }),
        (at + rng.below(for_ns), Fault::Crash { host, down_ns }),
    ]
}

/// Hosts start again and again.
fn storm(cast: Cast, mut at: u64, scene: Scene, rng: &mut Rng) -> Script {
    let mut faults = Vec::new();
    for _ in 0..rng.between(3, 8) {
        let host = pick(rng, &[cast.pair[0], cast.pair[0], cast.pair[1], cast.gateway]);
        let down_ns = rng.between(1, 80) * MILLISECOND;
        faults.push((at, Fault::Crash { host, down_ns }));
        at += down_ns + rng.below(if scene.heals { 900 } else { 120 }) * MILLISECOND;
    }
    faults
}

/// A member's medium is another one, or an older one, and something else happens while it is mended.
fn other_medium(cast: Cast, at: u64, scene: Scene, rng: &mut Rng) -> Script {
    if !scene.takes_medium {
        return then_its_peer(cast, at, scene, rng);
    }
    let [host, peer] = cast.pair;
    let down_ns = pick(rng, &[5, 50, 400, 1_500]) * MILLISECOND;
    let mut faults = match rng.below(4) {
        0 => vec![(at, Fault::Gone { host })],
        1 => vec![(at, Fault::Blank { host, down_ns })],
        _ => vec![
            (at / 2, Fault::Image { host }),
            (at, Fault::Rollback { host, down_ns }),
        ],
    };
    if rng.chance(0.5) {
        let host = pick(rng, &[peer, cast.gateway, cast.other]);
        let later = rng.between(0, 5_000) * MILLISECOND;
        let down_ns = scene.outage(rng) / 2;
        faults.push((at + later, Fault::Crash { host, down_ns }));
    }
    faults
}
