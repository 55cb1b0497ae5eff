//! Two stacks across a network that does everything that networks do, with applications that check every byte.
//! `TCP_SEEDS=first..last` runs other seeds: `TCP_SEEDS=0..10000 cargo test --release -p switchyard-tcp --test all network`.

use crate::common::{Behaviour, Host, MACS, Network, World, ip};
use base::{Duration, Instant, Rng};
use tcp::addr::Endpoint;
use tcp::api::{Call, End, Rings};
use tcp::config::{Config, EcnMode, Segmentation};
use tcp::congestion::Kind;

const PORT: u16 = 7000;

fn config(host: usize, is_v6: bool) -> Config {
    let mut config = Config::new(MACS[host], ip(host, is_v6), if is_v6 { 64 } else { 24 });
    config.seed = host as u64 + 10;
    config
}

fn behaviour(rng: &mut Rng, totals: [u64; 2]) -> Behaviour {
    let sizes = [1, 100, 1448, 20_000, 1 << 20];
    let gap = [0, 0, 1, 10, 300][rng.below(5) as usize];
    Behaviour {
        total: totals[0],
        expected: totals[1],
        write_max: sizes[rng.between(1, 4) as usize],
        // What is read slowly is read in large pieces, or a run takes a day.
        read_max: if gap > 1 {
            1 << 20
        } else {
            sizes[rng.between(1, 4) as usize]
        },
        read_gap: Duration::from_millis(gap),
        abort_after: rng.chance(0.05).then(|| rng.below(totals[1] + 1)),
        closes: rng.chance(0.7),
        no_delay: rng.chance(0.5),
    }
}

fn network(rng: &mut Rng) -> Network {
    let delays = [1, 20, 200, 5_000, 40_000];
    let delay = Duration::from_micros(delays[rng.below(5) as usize]);
    let some = |rng: &mut Rng, most: f64| if rng.chance(0.5) { 0.0 } else { rng.unit() * most };
    Network {
        jitter: if rng.chance(0.5) {
            Duration::ZERO
        } else {
            delay * rng.between(1, 3) as u32 / 2
        },
        loss: some(rng, 0.1),
        duplicate: some(rng, 0.1),
        corrupt: some(rng, 0.05),
        mark: some(rng, 0.2),
        mtu: if rng.chance(0.7) {
            70_000
        } else {
            rng.between(1280, 1499) as usize
        },
        rate: if rng.chance(0.5) { 0 } else { rng.between(1, 1000) },
        queue_bytes: rng.between(20_000, 200_000),
        ..Network::perfect(delay)
    }
}

/// A run of a seed: everything about it is random. Answers a hash of what happened.
fn run(seed: u64) -> u64 {
    let mut rng = Rng::new(seed);
    let is_v6 = rng.chance(0.3);
    let totals = [0, 1].map(|_| [0, 1, 5000, 60_000, 300_000][rng.below(5) as usize] + rng.below(1000));
    let ecn = [EcnMode::Off, EcnMode::Classic, EcnMode::Accurate][rng.below(3) as usize];
    let kinds = [Kind::Dctcp, Kind::Timely, Kind::Cubic];
    let hosts = [0, 1].map(|host| {
        let mut config = config(host, is_v6);
        config.ecn = ecn;
        config.congestion = kinds[rng.below(3) as usize];
        config.timestamps = rng.chance(0.8);
        config.flows_max = 16;
        config.user_timeout = Duration::from_secs(1200);
        config.rto_max = Duration::from_secs(10);
        config.syn_retries = 30;
        // An application may read for longer than a peer that has closed would wait.
        config.fin_wait = Duration::from_secs(3000);
        config.time_wait = Duration::from_secs(rng.between(1, 60));
        config.ack_delay = Duration::from_micros([0, 500, 40_000][rng.below(3) as usize]);
        if rng.chance(0.3) {
            config.mtu = 9000;
        }
        if rng.chance(0.3) {
            let payload_bytes_max = rng.between(1448, 65_000) as u16;
            config.segmentation = Segmentation::Link { payload_bytes_max };
        }
        if rng.chance(0.1) {
            config.mtu = 65_000;
        }
        let mine = [totals[host], totals[1 - host]];
        let sizes = Rings {
            receive: rng.between(10, 20) as u8,
            transmit: rng.between(10, 20) as u8,
        };
        Host::new(config, sizes, behaviour(&mut rng, mine))
    });
    let mut world = World::new(hosts, network(&mut rng), rng.next_u64());
    world.app_gap = Duration::from_micros(rng.between(50, 5000));
    let rings = [0, 1].map(|host: usize| world.hosts[host].memory.sizes.expect("set above"));
    let local = Endpoint {
        ip: ip(1, is_v6),
        port: PORT,
    };
    // A client that only listens, and whose acknowledgement of a cookie is lost, waits for ever (RFC 4987 §3.6).
    let backlog = if totals[0] < 1000 { 4 } else { rng.below(4) as u32 };
    let listen = Call::Listen {
        local,
        backlog,
        rings: rings[1],
    };
    let now = world.now;
    world.hosts[1].call(now, listen);
    let flows = rng.between(1, 4);
    for _ in 0..flows {
        let connect = Call::Connect {
            remote: local,
            port: 0,
            rings: rings[0],
        };
        let now = world.now;
        world.hosts[0].call(now, connect);
        world.run(Duration::from_micros(rng.below(3000)));
    }
    finish(&mut world, seed, flows)
}

/// Runs to the end, and checks that it is one.
fn finish(world: &mut World, seed: u64, flows: u64) -> u64 {
    let started = world.now;
    // The handshakes first: until then an application has no connection.
    let begun = |host: &Host| host.conns.len() + host.ends.len() + host.unopened;
    while begun(&world.hosts[0]) < flows as usize {
        assert!(
            world.now < started + Duration::from_secs(3000),
            "seed {seed}: handshakes end"
        );
        world.run(Duration::from_millis(100));
    }
    let is_done = world.run_to_end(Duration::from_secs(100_000));
    let left: Vec<_> = world.hosts.iter().map(|host| host.conns.len()).collect();
    assert!(
        is_done,
        "seed {seed}: connections end, left are {left:?} at {:?}",
        world.now
    );
    let aborts = world
        .hosts
        .iter()
        .any(|host| host.behaviour.abort_after.is_some());
    for host in &world.hosts {
        for (tuple, end) in &host.ends {
            assert!(
                aborts || *end == End::Done,
                "seed {seed}: {tuple:?} ends by {end:?}"
            );
        }
    }
    // Nothing is left when TIME-WAIT is over.
    world.run(Duration::from_secs(4000));
    for host in &world.hosts {
        assert_eq!(host.stack.flows(), 0, "seed {seed}: every slot is free again");
    }
    let now = world.now.as_nanos();
    world.hosts.iter().fold(now ^ world.frames, |hash, host| {
        hash.rotate_left(9).wrapping_mul(31) ^ host.read_total ^ host.ends.len() as u64
    })
}

fn seeds() -> std::ops::Range<u64> {
    let text = std::env::var("TCP_SEEDS").unwrap_or_else(|_| "0..300".to_string());
    let (first, last) = text.split_once("..").expect("TCP_SEEDS is first..last");
    first.parse().expect("a number")..last.parse().expect("a number")
}

#[test]
fn every_byte_arrives_across_any_network() {
    for seed in seeds() {
        run(seed);
    }
}

#[test]
fn a_seed_runs_twice_alike() {
    for seed in 0..20 {
        assert_eq!(run(seed), run(seed), "seed {seed}");
    }
}

#[test]
fn time_does_not_run_backwards_for_a_world_that_sleeps_too_long() {
    let hosts = [0, 1].map(|host| {
        let sizes = Rings {
            receive: 16,
            transmit: 16,
        };
        Host::new(config(host, false), sizes, Behaviour::sends(100_000, 100_000))
    });
    let mut world = World::new(hosts, Network::perfect(Duration::from_micros(10)), 1);
    let local = Endpoint {
        ip: ip(1, false),
        port: PORT,
    };
    let rings = world.hosts[0].memory.sizes.expect("set above");
    let now = world.now;
    world.hosts[1].call(
        now,
        Call::Listen {
            local,
            backlog: 1,
            rings,
        },
    );
    world.hosts[0].call(
        now,
        Call::Connect {
            remote: local,
            port: 0,
            rings,
        },
    );
    world.run(Duration::from_millis(1));
    // Nobody ticks for an hour: what is overdue is done once.
    world.now = Instant::from_nanos(3600 * 1_000_000_000);
    assert!(world.run_to_end(Duration::from_secs(100)));
    assert_eq!([world.hosts[0].ends.len(), world.hosts[1].ends.len()], [1, 1]);
}
