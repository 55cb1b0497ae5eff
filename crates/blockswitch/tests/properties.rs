//! Properties of the switch under any sequence of pushes, pops and cancellations, and of whole cores.

use base::{Duration, Instant, Rng};
use blockswitch::class::ClassConfig;
use blockswitch::{
    AppId, Class, ClassHint, Classifier, Config, Egress, Item, Kind, Limits, Loads, Policy, Slice, Steering,
};
use proptest::prelude::*;
use std::collections::BTreeMap;

const APPS: u32 = 6;
const LIMITS: Limits = Limits {
    apps: APPS,
    app_requests: 16,
    requests: 48,
};

#[derive(Clone, Debug)]
enum Step {
    Push {
        app: u32,
        latency: bool,
        bytes: u32,
        kind: u8,
    },
    Pop,
    Cancel {
        app: u32,
    },
    Wait {
        us: u64,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let bytes = prop_oneof![Just(0u32), Just(4096), Just(65536), 1u32..3_000_000];
    prop_oneof![
        8 => (0..APPS, any::<bool>(), bytes, 0u8..3)
            .prop_map(|(app, latency, bytes, kind)| Step::Push { app, latency, bytes, kind }),
        10 => Just(Step::Pop),
        1 => (0..APPS).prop_map(|app| Step::Cancel { app }),
        3 => (0u64..2_000).prop_map(|us| Step::Wait { us }),
    ]
}

fn policy() -> impl Strategy<Value = Policy> {
    prop::sample::select(Policy::ALL.to_vec())
}

/// The model's view of a waiting request: bytes, bytes seen so far, application.
type Waiting = BTreeMap<u64, (u32, u32, u32)>;

/// Takes a slice off the model; false if it does not fit.
fn fits(waiting: &mut Waiting, slice: &Slice) -> bool {
    let Some((bytes, done, app)) = waiting.get_mut(&slice.tag) else {
        return false;
    };
    let good = *done == slice.from_byte && *app == slice.app.0 && *done + slice.bytes <= *bytes;
    *done += slice.bytes;
    let complete = *done == *bytes;
    if complete {
        waiting.remove(&slice.tag);
    }
    good && complete == slice.last
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn every_byte_that_is_pushed_is_popped_or_cancelled_exactly_once(
        policy in policy(),
        steps in prop::collection::vec(step(), 1..300),
    ) {
        let mut egress = Egress::new(&Config::of(policy), LIMITS);
        let mut waiting = Waiting::new();
        let mut now = Instant::ZERO;
        let mut tag = 0;
        for step in steps {
            match step {
                Step::Push { app, latency, bytes, kind } => {
                    tag += 1;
                    let class = if latency { Class::Latency } else { Class::Throughput };
                    let kind = [Kind::Read, Kind::Write, Kind::Control][usize::from(kind)];
                    let item = Item { app: AppId(app), class, tag, bytes, kind };
                    let of_app = waiting.values().filter(|request| request.2 == app).count();
                    let fits = of_app < LIMITS.app_requests as usize && waiting.len() < LIMITS.requests as usize;
                    prop_assert_eq!(egress.push(now, item).is_ok(), fits);
                    if fits {
                        waiting.insert(tag, (bytes, 0, app));
                    }
                }
                Step::Pop => match egress.pop(now) {
                    Some(slice) => prop_assert!(fits(&mut waiting, &slice), "{:?}", slice),
                    None => prop_assert!(waiting.is_empty() || egress.deadline().is_some_and(|at| at > now)),
                },
                Step::Cancel { app } => {
                    let before = waiting.len();
                    let mut cancelled = 0;
                    while let Some(tag) = egress.cancel(AppId(app)) {
                        prop_assert_eq!(waiting.remove(&tag).map(|request| request.2), Some(app));
                        cancelled += 1;
                    }
                    prop_assert_eq!(before - cancelled, waiting.len());
                    prop_assert_eq!(egress.waiting_of(AppId(app)), 0);
                }
                Step::Wait { us } => now += Duration::from_micros(us),
            }
            prop_assert_eq!(egress.len(), waiting.len());
        }
        // All that is left comes out once the doorbell has had its time.
        now += Duration::from_millis(10);
        while let Some(slice) = egress.pop(now) {
            prop_assert!(fits(&mut waiting, &slice));
        }
        prop_assert!(waiting.is_empty() && egress.is_empty());
    }

    #[test]
    fn l_waits_only_for_one_slice_or_the_starvation_bound(
        pushes in prop::collection::vec((0..APPS, any::<bool>(), 1u32..2_000_000, 0u64..30), 1..200),
    ) {
        let config = Config::of(Policy::Switchyard);
        let mut egress = Egress::new(&config, Limits { apps: APPS, app_requests: 1000, requests: 1000 });
        let mut now = Instant::ZERO;
        let (mut throughput_at, mut latency_bytes) = (None, 0u64);
        for (tag, (app, latency, bytes, us)) in pushes.into_iter().enumerate() {
            let (class, bytes) = match latency {
                true => (Class::Latency, bytes % 65536),
                false => (Class::Throughput, bytes),
            };
            let item = Item { app: AppId(app), class, tag: tag as u64, bytes, kind: Kind::Read };
            if class == Class::Throughput && egress.waiting(class) == 0 {
                (throughput_at, latency_bytes) = (Some(now), 0);
            }
            egress.push(now, item).unwrap();
            now += Duration::from_micros(us);
            let waits = egress.waiting(Class::Latency) > 0;
            let bulk_waits = egress.waiting(Class::Throughput) > 0;
            let since = throughput_at.map_or(Duration::ZERO, |at| now.since(at));
            let bound = latency_bytes >= u64::from(config.starvation_bytes) || since >= config.starvation_delay;
            let slice = egress.pop(now).unwrap();
            if waits && bulk_waits {
                prop_assert_eq!(slice.class == Class::Throughput, bound, "strict, up to the bound");
            }
            if slice.class == Class::Throughput {
                prop_assert!(!waits || slice.bytes <= config.slice_bytes);
                (throughput_at, latency_bytes) = (Some(now), 0);
            } else {
                latency_bytes += u64::from(slice.bytes.max(1));
            }
        }
    }

    #[test]
    fn load_is_where_the_work_is_and_returns_to_zero(
        policy in policy(),
        seed in any::<u64>(),
        requests in prop::collection::vec((0usize..4, any::<bool>(), 0u32..200_000), 1..300),
    ) {
        let config = Config::of(policy);
        let loads = Loads::new(4, &config);
        let mut rng = Rng::new(seed);
        let mut steering: Vec<_> = (0..4).map(|home| Steering::new(&config, home, 4, rng.fork())).collect();
        let mut charges = Vec::new();
        let mut requests_at = [0u64; 4];
        for (home, latency, bytes) in requests {
            let class = if latency { Class::Latency } else { Class::Throughput };
            let core = steering[home].steer(&loads, class);
            prop_assert!(core < 4 && (!latency || core == home));
            charges.push(loads.charge(home, core, class, bytes));
            requests_at[core] += 1;
            if rng.chance(0.4) {
                let charge = charges.swap_remove(rng.below(charges.len() as u64) as usize);
                requests_at[charge.core()] -= 1;
                loads.release(charge);
            }
            for (core, requests) in requests_at.iter().enumerate() {
                let counted = loads.requests(core, Class::Latency) + loads.requests(core, Class::Throughput);
                prop_assert_eq!(counted, *requests);
            }
        }
        for charge in charges {
            loads.release(charge);
        }
        for core in 0..4 {
            for class in [Class::Latency, Class::Throughput] {
                prop_assert_eq!(loads.requests(core, class), 0);
            }
        }
    }
}

/// One core at 4 GB/s beside an honest L application (4 KiB, one at a time, 20 µs apart) and another application that
/// keeps 32 requests of `bytes` outstanding and claims `claim`: mean and largest wait of the honest one in µs, and the
/// other's bytes, in 50 ms.
fn beside(claim: ClassHint, bytes: u32) -> (f64, f64, u64) {
    let config = Config::of(Policy::Switchyard);
    let mut egress = Egress::new(&config, LIMITS_WIDE);
    let class_config = ClassConfig::DEFAULT;
    let mut honest = Classifier::new(class_config, ClassHint::Fixed(Class::Latency), true);
    let mut other = Classifier::new(class_config, claim, true);
    let mut now = Instant::ZERO;
    let mut next_honest = Some(Instant::from_nanos(1));
    let (mut waits_ns, mut taken, mut started) = (Vec::new(), 0u64, false);
    let push = |egress: &mut Egress, now, app, class, bytes| {
        let item = Item {
            app: AppId(app),
            class,
            tag: 0,
            bytes,
            kind: Kind::Read,
        };
        egress.push(now, item).expect("the limits are wide");
    };
    while now.as_nanos() < 50_000_000 {
        if !started {
            started = true;
            for _ in 0..32 {
                let class = other.arrive(now, bytes, false);
                push(&mut egress, now, 1, class, bytes);
            }
        }
        let Some(slice) = egress.pop(now) else {
            unreachable!("the other application always waits")
        };
        now += Duration::from_nanos(1000 + u64::from(slice.bytes) / 4);
        // What came during the slice was there before what its end brings.
        if let Some(due) = next_honest.take_if(|at| *at <= now) {
            let class = honest.arrive(now, 4096, false);
            push(&mut egress, due, 0, class, 4096);
        }
        if slice.app == AppId(0) {
            waits_ns.push(now.nanos_since(slice.queued_at));
            honest.finish(4096, slice.class);
            next_honest = Some(now + Duration::from_micros(20));
        } else {
            taken += u64::from(slice.bytes);
            if slice.last {
                other.finish(bytes, slice.class);
                let class = other.arrive(now, bytes, false);
                push(&mut egress, now, 1, class, bytes);
            }
        }
    }
    let mean = waits_ns.iter().sum::<u64>() as f64 / waits_ns.len() as f64;
    let largest = waits_ns.iter().max().copied().unwrap_or(0) as f64;
    (mean / 1e3, largest / 1e3, taken)
}

const LIMITS_WIDE: Limits = Limits {
    apps: 2,
    app_requests: 64,
    requests: 128,
};

#[test]
fn a_liar_harms_only_itself() {
    for bytes in [16 << 10, 64 << 10, 128 << 10, 1 << 20] {
        let (mean, largest, rate) = beside(ClassHint::Fixed(Class::Throughput), bytes);
        let (lied_mean, lied_largest, lied_rate) = beside(ClassHint::Fixed(Class::Latency), bytes);
        // The honest application waits for one slice of bulk, or for the liar's turn: never for its 32 requests.
        assert!(
            lied_mean <= mean * 1.25 && lied_largest <= largest + 18.0 * 2.0,
            "{bytes}: {mean} {lied_mean}"
        );
        assert!(
            lied_rate as f64 <= rate as f64 * 1.05,
            "{bytes}: a lie gains nothing, {rate} {lied_rate}"
        );
    }
}
