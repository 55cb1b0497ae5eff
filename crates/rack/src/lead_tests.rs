use super::*;

const A: Addr = Addr::new([10, 0, 2, 1], 8888);
const B: Addr = Addr::new([10, 0, 2, 2], 8888);
const C: Addr = Addr::new([10, 0, 2, 3], 8888);
const SILENT: Duration = Duration::from_millis(100);

fn at(ms: u64) -> Instant {
    Instant::from_nanos(ms * 1_000_000)
}

fn volume(id: u32) -> VolumeRecord {
    VolumeRecord {
        id,
        identity: Default::default(),
        name: format!("v{id}"),
        size_bytes: 4096,
        durability: Default::default(),
        read_only: false,
        ready: true,
        lead: None,
        sets: Vec::new(),
    }
}

/// Gateways that share a registry, as the test lets them hear each other.
struct Rack {
    stored: Snapshot,
    watches: Vec<Watch>,
    serves: Vec<BTreeMap<VolumeId, u32>>,
    up: BTreeSet<Addr>,
    reaches: bool,
    stores: u32,
}

impl Rack {
    fn new(gateways: &[Addr], volumes: u32) -> Self {
        let record = |addr: &Addr| crate::registry::GatewayRecord {
            software: None,
            addr: addr.to_string(),
            ..crate::registry::GatewayRecord::default()
        };
        Self {
            stored: Snapshot {
                gateways: gateways.iter().map(record).collect(),
                volumes: (1..=volumes).map(volume).collect(),
                ..Snapshot::default()
            },
            watches: gateways.iter().map(|addr| Watch::new(*addr, SILENT, 7)).collect(),
            serves: vec![BTreeMap::new(); gateways.len()],
            up: gateways.iter().copied().collect(),
            reaches: true,
            stores: 0,
        }
    }

    /// One looks; what it gives is given at once.
    fn look(&mut self, now: u64, who: usize) {
        let me = self.watches[who].me();
        if !self.up.contains(&me) {
            return;
        }
        for _ in 0..3 {
            let seen = self.watches[who].peers(&self.stored);
            let peer = |addr: Addr| {
                let up = self.up.contains(&addr);
                Seen {
                    addr,
                    heard: up.then(|| at(now)),
                    unanswered: if up { 0 } else { 9 },
                    ready: up,
                }
            };
            let peers: Vec<Seen> = seen.into_iter().map(peer).collect();
            let watch = &mut self.watches[who];
            let led = self.stored.volumes.iter();
            let led = led.filter_map(|volume| Some((volume.volume(), watch.session(volume)?)));
            self.serves[who] = led.collect();
            let sight = Sight {
                serves: &self.serves[who],
                busy: &BTreeSet::new(),
                peers: &peers,
                reaches_rack: self.reaches,
            };
            let plan = watch.look(at(now), &mut self.stored, &sight);
            if !plan.store {
                for (id, to) in plan.give {
                    let volume = self.stored.volume_mut(id).expect("it is there");
                    volume.lead.as_mut().expect("it was led").give_back(Some(to));
                }
                return;
            }
            self.stores += 1;
        }
        panic!("it does not come to rest");
    }

    fn look_all(&mut self, now: u64) {
        (0..self.watches.len()).for_each(|who| self.look(now, who));
    }

    fn led(&self, addr: Addr) -> usize {
        let volumes = self.stored.volumes.iter();
        volumes
            .filter(|volume| self.stored.leader_of(volume) == Some(addr))
            .count()
    }

    fn counts(&self) -> Vec<usize> {
        self.watches.iter().map(|watch| self.led(watch.me())).collect()
    }

    /// They look until then.
    fn run(&mut self, from: u64, until: u64) {
        for now in (from..until).step_by(10) {
            self.look_all(now);
        }
    }
}

#[test]
fn volumes_are_spread_and_then_stay() {
    for (volumes, gateways) in [(6, 3), (7, 3), (1, 2), (2, 2), (5, 2)] {
        let mut rack = Rack::new(&[A, B, C][..gateways], volumes);
        rack.run(0, 1_500);
        let counts = rack.counts();
        let (most, least) = (counts.iter().max().unwrap(), counts.iter().min().unwrap());
        assert!(most - least <= 1, "{counts:?}");
        assert_eq!(counts.iter().sum::<usize>() as u32, volumes);
        let stores = rack.stores;
        rack.run(1_500, 3_000);
        assert_eq!(rack.stores, stores, "nothing moves for nothing");
    }
}

#[test]
fn volumes_of_a_gateway_that_dies_go_to_the_others_and_come_back() {
    let mut rack = Rack::new(&[A, B, C], 6);
    rack.run(0, 1_500);
    rack.up.remove(&A);
    rack.run(1_500, 1_590);
    assert_eq!(rack.led(A), 2, "its silence is borne for a while");
    rack.run(1_590, 1_800);
    assert_eq!(rack.counts(), [0, 3, 3]);
    assert_ne!(
        rack.stored.lead.as_ref().unwrap().addr(),
        Some(A),
        "nor does it lead the rack"
    );
    rack.up.insert(A);
    rack.watches[0] = Watch::new(A, SILENT, 7);
    rack.run(1_800, 2_100);
    assert_eq!(rack.counts(), [0, 3, 3], "it may be gone again");
    rack.run(2_100, 3_000);
    assert_eq!(rack.counts(), [2, 2, 2]);
}

#[test]
fn each_lead_has_a_session_higher_than_any_before() {
    let mut rack = Rack::new(&[A, B], 4);
    let mut known: BTreeMap<(VolumeId, u32), Addr> = BTreeMap::new();
    for round in 0..6 {
        rack.run(round * 1_500, round * 1_500 + 1_500);
        for volume in &rack.stored.volumes {
            let lead = volume.lead.clone().expect("it is led");
            assert!(lead.session >= 7);
            let addr = lead.addr().expect("it is led");
            let same = known.insert((volume.volume(), lead.session), addr);
            assert!(same.is_none_or(|same| same == addr), "one session, two leads");
        }
        let gone = [A, B][round as usize % 2];
        rack.up = [A, B].into_iter().filter(|addr| *addr != gone).collect();
    }
    assert!(rack.stored.last_session >= rack.stored.session_max());
}

#[test]
fn one_that_is_cut_off_itself_takes_nothing() {
    let mut rack = Rack::new(&[A, B], 2);
    rack.run(0, 1_000);
    (rack.reaches, rack.up) = (false, BTreeSet::from([B]));
    let before = rack.stored.clone();
    rack.run(1_000, 2_000);
    assert_eq!(rack.stored, before);
    // Back again, it gives the other one the whole time to answer.
    rack.reaches = true;
    rack.run(2_000, 2_090);
    assert_eq!(rack.stored, before);
    rack.run(2_090, 2_300);
    assert_eq!(rack.led(B), 2);
}

#[test]
fn one_that_slept_does_not_take_the_others_for_gone() {
    let mut rack = Rack::new(&[A, B], 2);
    rack.run(0, 1_000);
    let mut next = rack.stored.clone();
    // The last answer is old, and no question since is unanswered.
    let peers = [Seen {
        addr: A,
        heard: Some(at(990)),
        unanswered: 1,
        ready: true,
    }];
    let sight = Sight {
        serves: &rack.serves[1].clone(),
        busy: &BTreeSet::new(),
        peers: &peers,
        reaches_rack: true,
    };
    assert!(!rack.watches[1].look(at(9_000), &mut next, &sight).store);
}

#[test]
fn a_restart_takes_its_own_in_new_sessions_and_waits_for_nobody() {
    let mut rack = Rack::new(&[A, B], 2);
    rack.run(0, 1_000);
    let before: Vec<LeadRecord> = rack
        .stored
        .volumes
        .iter()
        .filter_map(|v| v.lead.clone())
        .collect();
    rack.watches[0] = Watch::new(A, SILENT, 7);
    rack.reaches = false;
    rack.look(1_000, 0);
    for (volume, before) in rack.stored.volumes.iter().zip(before) {
        let lead = volume.lead.as_ref().unwrap();
        match before.is_of(A) {
            true => assert!(lead.is_of(A) && lead.session > before.session),
            false => assert_eq!(*lead, before),
        }
    }
}

#[test]
fn a_lead_that_is_lost_again_at_once_is_taken_ever_later() {
    let mut watch = Watch::new(A, SILENT, 7);
    let mut stored = Rack::new(&[A], 1).stored;
    let (nothing, busy) = (BTreeMap::new(), BTreeSet::new());
    let mut takes = Vec::new();
    for now in 0..10_000 {
        let sight = Sight {
            serves: &nothing,
            busy: &busy,
            peers: &[],
            reaches_rack: true,
        };
        if watch.look(at(now), &mut stored, &sight).store {
            takes.push(now);
        }
    }
    assert!((5..20).contains(&takes.len()), "{takes:?}");
}

#[test]
fn records_of_one_lead_are_read_and_a_volume_keeps_it_until_it_is_gone() {
    // A registry of the version before has one lead for everything.
    let mut rack = Rack::new(&[A, B], 2);
    rack.stored.lead = Some(LeadRecord::new(A, 40));
    rack.look(0, 1);
    assert_eq!((rack.led(A), rack.stores), (2, 0), "the lead may be there");
    rack.up.remove(&A);
    rack.run(10, 300);
    assert_eq!(rack.led(B), 2);
    assert!(
        rack.stored
            .volumes
            .iter()
            .all(|v| v.lead.as_ref().unwrap().session > 40)
    );
}

#[test]
fn gathered_volumes_come_to_one_gateway_and_only_while_it_is_there() {
    let mut rack = Rack::new(&[A, B], 4);
    rack.run(0, 1_000);
    let mine = |rack: &Rack, addr| {
        let volumes = rack.stored.volumes.iter();
        let led = volumes.filter(|volume| rack.stored.leader_of(volume) == Some(addr));
        led.map(|volume| volume.id).collect::<Vec<u32>>()
    };
    let volumes = vec![mine(&rack, A)[0], mine(&rack, B)[0]];
    rack.stored.gathering = Some(crate::registry::GatheringRecord {
        gateway: A.to_string(),
        volumes: volumes.clone(),
    });
    rack.run(1_000, 1_500);
    assert!(volumes.iter().all(|id| mine(&rack, A).contains(id)));
    assert!(rack.stored.gathering.is_some(), "it waits for its exchange");
    rack.up.remove(&A);
    rack.run(1_500, 2_000);
    assert_eq!((rack.led(B), rack.stored.gathering.is_none()), (4, true));
}

#[test]
fn a_gift_that_is_not_taken_goes_to_whoever_sees_it() {
    let mut rack = Rack::new(&[A, B], 2);
    rack.run(0, 1_000);
    rack.up.remove(&B);
    let id = rack
        .stored
        .volumes
        .iter()
        .find(|v| rack.stored.leader_of(v) == Some(A));
    let id = id.expect("it leads one").volume();
    let volume = rack.stored.volume_mut(id).unwrap();
    volume.lead.as_mut().unwrap().give_back(Some(B));
    rack.run(1_000, 1_300);
    assert_eq!(rack.led(A), 2);
}

#[test]
fn leftovers_are_deleted_in_a_session_above_that_of_their_lead() {
    let mut rack = Rack::new(&[A], 1);
    rack.run(0, 100);
    rack.stored.volumes[0].lead.as_mut().unwrap().session = 90;
    rack.stored.last_session = 90;
    rack.stored.volumes.clear();
    rack.stored.leftovers = vec![crate::registry::LeftRecord {
        vssd: 1,
        node: 1,
        set: Default::default(),
    }];
    rack.look(100, 0);
    assert_eq!(rack.stored.lead.as_ref().unwrap().session, 91);
    let stores = rack.stores;
    rack.look(110, 0);
    assert_eq!(rack.stores, stores);
}
