//! Sessions that are paused at any moment, taken out of their core, and put into another.

use crate::nvme_support::{DISK_BYTES, POOL_PAGES, Rig, Wire};
use crate::support;
use crate::support::{Reply, Server};
use base::{Pool, Rng};
use wire::Session as _;
use wire::nbd;
use wire::nbd::proto::{command, option};
use wire::nvme;
use wire::nvme::proto::{Sqe, Status};

/// Bytes back and forth once.
fn step(rig: &mut Rig, wire: &mut Wire) {
    wire.fetch();
    let piece = wire.piece(wire.to_session.len());
    let bytes = &wire.to_session[..piece];
    let taken = wire.session.receive(rig.now, bytes);
    wire.to_session.drain(..taken);
    rig.serve(&mut wire.session);
    wire.deliver();
}

/// Takes the session to another pool as soon as it can be; true if commands waited.
fn move_away(rig: &mut Rig, wire: &mut Wire, client: u32) -> bool {
    wire.session.pause();
    for _ in 0..100_000 {
        if wire.session.is_at_rest() {
            break;
        }
        step(rig, wire);
    }
    assert!(
        wire.session.is_at_rest(),
        "a host that goes on lets it come to rest"
    );
    let waited = wire.session.state().is_waiting;
    assert_eq!(rig.pool.available(), POOL_PAGES, "it holds no page");
    let other = rig.fresh();
    let parked = std::mem::replace(&mut wire.session, other).park();
    rig.pool = Pool::new(POOL_PAGES, 512);
    wire.session = nvme::Session::unpark(parked, client, rig.pool.clone());
    waited
}

#[test]
fn an_nvme_session_that_moves_at_any_moment_loses_nothing() {
    let mut waited = 0;
    for seed in 0..60 {
        let mut rig = Rig::new();
        let mut options = Rig::options();
        (options.header_digest, options.data_digest) = (seed % 2 == 0, seed % 3 == 0);
        options.sq_flow = seed % 4 == 0;
        let (_admin, mut wire) = rig.io(options);
        let mut random = Rng::new(seed);
        wire.rng = Some(Rng::new(seed + 1000));
        let mut model = rig.disk.clone();
        for round in 0..20 {
            let mut at = 0;
            let mut reads = Vec::new();
            let mut count = 0;
            while wire.host.has_room() {
                let length = [512, 4096, 8192, 40 << 10, 100 << 10][random.below(5) as usize];
                if at + length > DISK_BYTES {
                    break;
                }
                let held = &mut model[at..][..length];
                if random.chance(0.5) {
                    held.fill(random.next_u64() as u8);
                    rig.submit(&mut wire, Sqe::write(at as u64, length as u32, false), held);
                } else {
                    let cid = rig.submit(&mut wire, Sqe::read(at as u64, length as u32), &[]);
                    reads.push((cid, held.to_vec()));
                }
                count += 1;
                at += length + random.below(8) as usize * 512;
            }
            for _ in 0..random.below(200) {
                step(&mut rig, &mut wire);
            }
            waited += u32::from(move_away(&mut rig, &mut wire, round + 10));
            rig.pump(&mut wire);
            assert_eq!(wire.mail.ended.len(), count, "every command ends");
            assert!(
                wire.mail
                    .ended
                    .values()
                    .all(|ended| ended.status == Status::SUCCESS)
            );
            for (cid, data) in reads {
                assert!(wire.mail.ended[&cid].data == data);
            }
            wire.mail.ended.clear();
        }
        assert!(rig.disk == model);
    }
    assert!(
        waited > 20,
        "commands that wait for room have moved along: {waited}"
    );
}

#[test]
fn a_paused_session_that_resumes_goes_on_where_it_was() {
    let mut rig = Rig::new();
    let (_admin, mut wire) = rig.io(Rig::options());
    wire.session.pause();
    let cid = rig.submit(&mut wire, Sqe::write(0, 64 << 10, false), &[5; 64 << 10]);
    rig.pump(&mut wire);
    assert!(wire.session.state().is_blocked && wire.session.is_at_rest());
    assert!(wire.mail.ended.is_empty());
    wire.session.resume();
    assert!(!wire.session.is_at_rest(), "only a paused session rests");
    rig.pump(&mut wire);
    assert_eq!(wire.mail.ended[&cid].status, Status::SUCCESS);
}

/// Feeds a stream piece by piece, and moves the session after each.
fn travel(server: &mut Server, mut rest: &[u8], random: &mut Rng) {
    while !rest.is_empty() {
        let most = [1, 30, 9000][random.below(3) as usize].min(rest.len() as u64);
        let piece = random.between(1, most) as usize;
        let left = server.feed(&rest[..piece]).len();
        rest = &rest[piece - left..];
        server.session.pause();
        // The rest of a payload is still taken.
        rest = server.feed(rest);
        assert!(server.session.is_at_rest());
        assert_eq!(server.pool.available(), server.pool.capacity());
        server.pool = Pool::new(server.pool.capacity(), 512);
        let other = Server::new(support::limits()).session;
        let parked = std::mem::replace(&mut server.session, other).park();
        let client = random.next_u64() as u32;
        server.session = nbd::Session::unpark(parked, client, server.pool.clone());
    }
}

#[test]
fn an_nbd_session_that_moves_at_any_byte_says_what_one_that_stays_says() {
    let disk = 1 << 17;
    for seed in 0..200 {
        let mut random = Rng::new(seed);
        let mut stays = Server::greeted(support::limits());
        let mut moves = Server::greeted(support::limits());
        let structured = support::option(option::STRUCTURED_REPLY, &[]);
        let go = support::option(option::GO, &support::info_data("disk", &[]));
        let handshake = [structured, go].concat();
        assert!(stays.feed(&handshake).is_empty());
        travel(&mut moves, &handshake, &mut random);
        assert_eq!(moves.heard(), stays.heard());
        let mut stream = Vec::new();
        for cookie in 0..40 {
            let length = random.between(1, 24) * 512;
            let offset = random.below((disk - length) / 512) * 512;
            let data = vec![cookie as u8; length as usize];
            stream.extend(match random.below(4) {
                0 | 1 => support::write(0, cookie, offset, &data),
                2 => support::request(0, command::READ, cookie, offset, length as u32),
                // Refused, and its payload skipped.
                _ => support::write(1 << 9, cookie, offset, &data),
            });
        }
        assert!(stays.feed(&stream).is_empty());
        travel(&mut moves, &stream, &mut random);
        // Refusals go before answers that came in the same piece.
        let sorted = |server: &mut Server| {
            let mut replies = server.replies();
            replies.sort_by_key(|reply| match *reply {
                Reply::Simple { cookie, .. }
                | Reply::Chunk { cookie, .. }
                | Reply::Extended { cookie, .. } => cookie,
            });
            replies
        };
        let (moved, stayed) = (sorted(&mut moves), sorted(&mut stays));
        assert!(moved.len() == 40 && moved == stayed, "seed {seed}");
        assert!(moves.disk == stays.disk, "seed {seed}");
    }
}
