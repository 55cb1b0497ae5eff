//! Floods, applications that lie, limits, fairness, and flows that move.

use crate::common::{Behaviour, Host, MACS, Network, World, ip};
use base::{Duration, Instant, Rng};
use tcp::addr::{Endpoint, Ip};
use tcp::api::{Call, End, FlowId, News, Refused, Request, Rings};
use tcp::config::{AppLimits, Config, EcnMode, Rule};
use tcp::congestion::Kind;
use tcp::frame::segment::Segment;
use tcp::frame::{self, Flags, Hop};
use tcp::seq::Seq;
use tcp::stack::Bump;

const SIZES: Rings = Rings {
    receive: 16,
    transmit: 16,
};
const SERVER: Endpoint = Endpoint {
    ip: Ip::v4([10, 0, 0, 2]),
    port: 7000,
};

fn config(host: usize) -> Config {
    let mut config = Config::new(MACS[host], ip(host, false), 24);
    config.seed = host as u64 + 1;
    config
}

fn world(configs: [Config; 2], behaviours: [Behaviour; 2], network: Network) -> World {
    let mut behaviours = behaviours.into_iter();
    let hosts = configs.map(|config| {
        let behaviour = behaviours.next().expect("one for each host");
        Host::new(config, SIZES, behaviour)
    });
    World::new(hosts, network, 1)
}

/// So many connections of each host have ended, and all in order.
fn all_are_done(world: &World, count: usize) {
    for host in &world.hosts {
        assert_eq!(host.ends.len(), count);
        assert!(
            host.ends.iter().all(|(_, end)| *end == End::Done),
            "{:?}",
            host.ends
        );
    }
}

fn listen(world: &mut World, backlog: u32) {
    let call = Call::Listen {
        local: SERVER,
        backlog,
        rings: SIZES,
    };
    let now = world.now;
    world.hosts[1].call(now, call);
}

fn connect(world: &mut World) {
    let call = Call::Connect {
        remote: SERVER,
        port: 0,
        rings: SIZES,
    };
    let now = world.now;
    world.hosts[0].call(now, call);
}

fn near() -> Network {
    Network::perfect(Duration::from_micros(20))
}

fn idle() -> Behaviour {
    Behaviour {
        closes: false,
        ..Behaviour::sends(u64::MAX, u64::MAX)
    }
}

/// A SYN of a stranger, who is nowhere.
fn stranger(rng: &mut Rng) -> Vec<u8> {
    let source = Endpoint {
        ip: Ip::v4([10, 0, 0, rng.between(10, 250) as u8]),
        port: rng.next_u64() as u16,
    };
    let tuple = tcp::addr::Tuple {
        local: source,
        remote: SERVER,
    };
    let syn = Segment::new(tuple, Seq(rng.next_u64() as u32), Seq(0), Flags::SYN);
    let hop = Hop {
        source: MACS[0],
        target: MACS[1],
    };
    let mut frame = vec![0; 100];
    let length = frame::emit(hop, &syn, &mut frame, true);
    frame.truncate(length);
    frame
}

#[test]
fn a_flood_of_syns_keeps_nobody_out() {
    let behaviours = [Behaviour::sends(20_000, 20_000); 2];
    let mut configs = [config(0), config(1)];
    configs[1].flows_max = 64;
    let mut world = world(configs, behaviours, near());
    listen(&mut world, 16);
    let mut rng = Rng::new(5);
    for round in 0..200 {
        for _ in 0..50 {
            let frame = stranger(&mut rng);
            let host = &mut world.hosts[1];
            host.stack.receive(world.now, &frame, &mut host.memory);
        }
        if round % 10 == 5 {
            connect(&mut world);
        }
        world.run(Duration::from_millis(1));
        assert!(world.hosts[1].stack.flows() <= 64);
    }
    assert!(world.run_to_end(Duration::from_secs(100)));
    assert_eq!(world.hosts[0].ends.len(), 20);
    assert!(
        world
            .hosts
            .iter()
            .all(|host| host.ends.iter().all(|(_, end)| *end == End::Done))
    );
    let counters = *world.hosts[1].stack.counters();
    assert!(counters.cookies > 9000, "{counters:?}");
    // Strangers' handshakes time out.
    world.run(Duration::from_secs(400));
    assert_eq!(world.hosts[1].stack.flows(), 0);
}

#[test]
fn a_full_stack_forgets_time_wait_first() {
    let mut configs = [config(0), config(1)];
    configs[0].flows_max = 4;
    let mut world = world(configs, [Behaviour::sends(100, 100); 2], near());
    listen(&mut world, 16);
    for _ in 0..50 {
        connect(&mut world);
        world.run(Duration::from_millis(20));
        assert!(world.run_to_end(Duration::from_secs(1)));
    }
    assert_eq!(world.hosts[0].ends.len(), 50);
}

#[test]
fn an_application_that_lies_harms_nobody() {
    let behaviour = Behaviour {
        write_max: 2000,
        ..Behaviour::sends(300_000, 300_000)
    };
    let mut world = world([config(0), config(1)], [behaviour; 2], near());
    listen(&mut world, 16);
    (0..3).for_each(|_| connect(&mut world));
    let mut rng = Rng::new(9);
    let mut refused = 0;
    let until = world.now + Duration::from_secs(20);
    world.settle();
    while world.step(until) {
        for host in &mut world.hosts {
            // Another application's word about these flows, and impossible words of their own.
            let id = FlowId {
                index: rng.below(1100) as u32,
                generation: rng.below(4) as u32,
            };
            let some = |rng: &mut Rng| (rng.next_u64() >> rng.below(40)) as u32;
            let bump = Bump {
                read: some(&mut rng),
                written: some(&mut rng),
            };
            refused += u32::from(host.stack.bump(1, id, bump).is_err());
            let own = host.conns.keys().next().copied().unwrap_or(id);
            let beyond = Bump {
                read: (1 << 16) + 1 + some(&mut rng) / 2,
                written: 0,
            };
            assert!(host.stack.bump(0, own, beyond).is_err());
            let beyond = Bump {
                read: 0,
                written: (1 << 16) + 1 + some(&mut rng) / 2,
            };
            assert!(host.stack.bump(0, own, beyond).is_err());
            let calls = [Call::Abort(id), Call::Close(id), Call::Shutdown(id), Call::Leave];
            let request = Request {
                app: 1,
                opaque: 0,
                call: calls[rng.below(4) as usize],
            };
            host.stack.request(world.now, &request);
            let nobody = Request { app: 999, ..request };
            host.stack.request(world.now, &nobody);
        }
    }
    assert!(refused > 300, "{refused}");
    for host in &world.hosts {
        assert_eq!(host.ends.len(), 3);
        assert!(
            host.ends.iter().all(|(_, end)| *end == End::Done),
            "{:?}",
            host.ends
        );
        assert_eq!(host.read_total, 900_000);
    }
}

#[test]
fn access_control_and_limits_hold_at_set_up() {
    let mut configs = [config(0), config(1)];
    configs[0].rules = vec![Rule {
        app: Some(0),
        net: Ip::v4([10, 0, 0, 2]),
        bits: 32,
        ports: (8000, 9000),
        is_allowed: false,
    }];
    configs[0].app_limits = AppLimits {
        flows_max: 2,
        opens_per_second: 0,
    };
    let mut world = world(configs, [idle(); 2], near());
    listen(&mut world, 16);
    let now = world.now;
    let remote = Endpoint { port: 8080, ..SERVER };
    let rings = SIZES;
    world.hosts[0].call(
        now,
        Call::Connect {
            remote,
            port: 0,
            rings,
        },
    );
    (0..3).for_each(|_| connect(&mut world));
    world.run(Duration::from_millis(10));
    let refused: Vec<_> = world.hosts[0]
        .events
        .iter()
        .filter_map(|event| match event.news {
            News::Refused(refused) => Some(refused),
            _ => None,
        })
        .collect();
    assert_eq!(refused, [Refused::Denied, Refused::Limit]);
    assert_eq!(world.hosts[1].conns.len(), 2);
}

/// Runs `flows` flows without end for a time after they have settled, and answers the bytes that each has brought.
fn share(configs: [Config; 2], network: Network, flows: usize, time: Duration) -> Vec<f64> {
    let reads = Behaviour {
        total: 0,
        closes: false,
        ..idle()
    };
    let mut world = world(configs, [idle(), reads], network);
    world.hosts[0].behaviour.expected = 0;
    world.app_gap = Duration::from_micros(500);
    listen(&mut world, 10_000);
    for _ in 0..flows {
        connect(&mut world);
        world.run(Duration::from_micros(100));
    }
    world.run(time);
    let before: Vec<u64> = world.hosts[1].conns.values().map(|conn| conn.input.at).collect();
    assert_eq!(before.len(), flows, "all are open");
    world.run(time);
    let after = world.hosts[1].conns.values().map(|conn| conn.input.at);
    after
        .zip(before)
        .map(|(after, before)| (after - before) as f64)
        .collect()
}

/// Jain, Chiu, Hawe 1984: 1 if all have the same, 1/n if one has all.
fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    sum * sum / (shares.len() as f64 * squares)
}

#[test]
fn flows_share_a_bottleneck_fairly() {
    for (kind, ecn, least) in [
        (Kind::Dctcp, EcnMode::Accurate, 0.9),
        (Kind::Cubic, EcnMode::Off, 0.8),
        (Kind::Timely, EcnMode::Off, 0.8),
    ] {
        let configs = [0, 1].map(|host| {
            let mut config = config(host);
            config.congestion = kind;
            config.ecn = ecn;
            if kind == Kind::Timely {
                // It takes the delay of an acknowledgement for a queue.
                config.ack_delay = Duration::ZERO;
            }
            config
        });
        // Queues of 1.6 ms that are marked from 0.24 ms on. TIMELY's thresholds are made for ten gigabits.
        let gigabits = if kind == Kind::Timely { 10 } else { 1 };
        let network = Network {
            rate: 125 * gigabits,
            queue_bytes: 200_000 * gigabits,
            mark_at: 30_000 * gigabits,
            ..near()
        };
        let time = Duration::from_secs(1) / gigabits as u32;
        let shares = share(configs, network, 8, time);
        let total = shares.iter().sum::<f64>() * 8e-9 / time.as_secs_f64();
        println!(
            "{kind:?}: Jain {:.3}, {total:.2} of {gigabits} Gbit/s",
            jain(&shares)
        );
        assert!(jain(&shares) >= least, "{kind:?}: {shares:?}");
        assert!(total > 0.5 * gigabits as f64, "{kind:?} fills the way: {total}");
    }
}

#[test]
fn four_hundred_flows_without_congestion_reach_their_least_rate() {
    let configs = [0, 1].map(|host| {
        let mut config = config(host);
        config.congestion = Kind::Dctcp;
        config.ecn = EcnMode::Accurate;
        config
    });
    // 40 Gbit/s for 400 flows: each can have 100 Mbit/s, and the least rate is 10 Mbit/s.
    let network = Network { rate: 5000, ..near() };
    let shares = share(configs, network, 400, Duration::from_millis(30));
    let least = shares.iter().copied().fold(f64::MAX, f64::min) * 8.0 / 0.03 / 1e6;
    println!(
        "the least of 400 flows: {least:.1} Mbit/s, Jain {:.3}",
        jain(&shares)
    );
    assert!(least >= 10.0, "{least} Mbit/s");
}

#[test]
fn a_flow_moves_between_stacks_without_loss() {
    let behaviours = [Behaviour::sends(400_000, 400_000); 2];
    let mut network = near();
    network.loss = 0.02;
    network.jitter = Duration::from_micros(50);
    let mut configs = [config(0), config(1)];
    configs
        .iter_mut()
        .for_each(|config| config.rto_min = Duration::from_millis(5));
    let other = configs[1].clone();
    let mut world = world(configs, behaviours, network);
    listen(&mut world, 16);
    (0..3).for_each(|_| connect(&mut world));
    let mut spare = tcp::stack::Stack::new(other);
    let mut moves = 0;
    let until = world.now + Duration::from_secs(100);
    world.settle();
    while world.step(until) {
        if world.hosts[1].conns.len() < 3 || moves > 500 {
            continue;
        }
        // The stack of the second host hands all its flows to another one, as if its core went away.
        let host = &mut world.hosts[1];
        let flows: Vec<FlowId> = host.conns.keys().copied().collect();
        let mut moved = Vec::new();
        for id in flows {
            let Some(moving) = host.stack.export(0, id) else {
                continue;
            };
            let new = spare.import(world.now, moving).expect("there is room");
            moved.push((
                host.conns.remove(&id).expect("it has it"),
                host.memory.rings.remove(&id),
                new,
            ));
            moves += 1;
        }
        if moved.len() == 3 {
            core::mem::swap(&mut host.stack, &mut spare);
            for (conn, rings, id) in moved {
                host.conns.insert(id, conn);
                rings.and_then(|rings| host.memory.rings.insert(id, rings));
            }
            world.settle();
        } else {
            // Some are closing: they go back.
            for (conn, rings, id) in moved {
                let moving = spare.export(0, id).expect("it has just come");
                let id = host.stack.import(world.now, moving).expect("there was room");
                host.conns.insert(id, conn);
                rings.and_then(|rings| host.memory.rings.insert(id, rings));
            }
        }
    }
    assert!(moves > 300, "{moves} moves");
    all_are_done(&world, 3);
}

#[test]
fn noise_instead_of_frames_harms_nobody() {
    let behaviours = [Behaviour::sends(200_000, 200_000); 2];
    let mut world = world([config(0), config(1)], behaviours, near());
    listen(&mut world, 16);
    (0..2).for_each(|_| connect(&mut world));
    let mut rng = Rng::new(77);
    let until = world.now + Duration::from_secs(30);
    world.settle();
    while world.step(until) {
        for host in &mut world.hosts {
            // A blind attacker, who knows the ends of a flow and guesses the rest.
            let Some(conn) = host.conns.values().next() else {
                continue;
            };
            let tuple = tcp::addr::Tuple {
                local: conn.tuple.remote,
                remote: conn.tuple.local,
            };
            let mut guess = Segment::new(
                tuple,
                Seq(rng.next_u64() as u32),
                Seq(rng.next_u64() as u32),
                Flags(rng.next_u64() as u8),
            );
            guess.window = rng.next_u64() as u16;
            guess.payload_bytes = rng.below(100) as u32;
            let hop = Hop {
                source: MACS[0],
                target: host.mac,
            };
            let mut frame = vec![0; 300];
            let length = frame::emit(hop, &guess, &mut frame, true);
            host.stack.receive(world.now, &frame[..length], &mut host.memory);
        }
    }
    all_are_done(&world, 2);
}

#[test]
fn a_neighbour_that_is_away_is_told_to_who_wants_it() {
    let mut network = near();
    network.loss = 1.0;
    let mut world = world([config(0), config(1)], [idle(); 2], network);
    connect(&mut world);
    let until = world.now + Duration::from_secs(4);
    world.run(until.since(world.now));
    let is_end = |event: &tcp::api::Event| {
        matches!(
            event.news,
            News::Closed {
                end: End::Unreachable,
                ..
            }
        )
    };
    assert!(
        world.hosts[0].events.iter().any(is_end),
        "{:?}",
        world.hosts[0].events
    );
    assert_eq!(world.hosts[0].stack.flows(), 0);
    assert!(Instant::ZERO < world.now);
}
