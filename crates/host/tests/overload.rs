//! Nobody slows down further what is slow: a gateway asks about a write that is not answered, and sends its page again only if the node does
//! not have it.

use crate::support::{VOLUME, World, poll_all};
use base::{BlockOp, BlockRequest, Instant, Machine, Pages, Pool, SectorRange, VssdId};
use host::{Gateway, Input};
use wire::rack::{Code, Header, Op, Packet};

/// A gateway whose one vSSD is open.
fn gateway(pool: &Pool) -> Gateway {
    let (mut gateway, opened) = crate::support::gateway(pool, &[1]);
    let open = opened
        .iter()
        .find(|header| header.op == Op::Open)
        .expect("it opens the vSSD");
    let answer = Packet::bare(open.reply(Code::SoftOrOk));
    gateway.handle(Instant::ZERO, Input::Packet(answer));
    gateway
}

fn write(gateway: &mut Gateway, pool: &Pool) -> Header {
    let mut pages = Pages::new();
    pages.push(pool.alloc_zeroed().expect("the pool is large"));
    pages[0].with_mut(|bytes| bytes.fill(7));
    let request = BlockRequest {
        client: 0,
        tag: 1,
        volume: VOLUME,
        op: BlockOp::Write,
        range: SectorRange::new(0, 4096, u64::MAX).expect("whole sectors"),
        fua: false,
        bulk: false,
        pages,
    };
    gateway.handle(Instant::ZERO, Input::Request(request));
    let sent = poll_all(gateway).0;
    let write = sent.into_iter().find(|header| header.op == Op::Write);
    write.expect("a write is sent")
}

/// The next sending of the write, once time has passed.
fn next_sending(gateway: &mut Gateway) -> (Instant, Header) {
    loop {
        let now = gateway.deadline().expect("it is sent again");
        gateway.tick(now);
        let sent = poll_all(gateway).0;
        if let Some(&sent) = sent
            .iter()
            .find(|header| matches!(header.op, Op::Write | Op::Ask))
        {
            return (now, sent);
        }
    }
}

#[test]
fn an_overdue_write_is_asked_about_ever_later() {
    let pool = Pool::new(64, 512);
    let mut gateway = gateway(&pool);
    let written = write(&mut gateway, &pool);
    let mut sent = Vec::new();
    let mut waits = Vec::new();
    let mut last = Instant::ZERO;
    for _ in 0..9 {
        let (now, sending) = next_sending(&mut gateway);
        assert_eq!((sending.request, sending.lba), (written.request, written.lba));
        sent.push(sending.op);
        waits.push(now.since(last).as_millis());
        last = now;
    }
    // A node of an earlier version knows the page alone.
    assert_eq!(sent, [Op::Ask, Op::Ask, Op::Write].repeat(3));
    assert!(
        waits.is_sorted() && waits[0] >= 20 && waits[8] == 2_000,
        "{waits:?}"
    );
}

#[test]
fn a_node_that_lacks_the_write_gets_it_at_once_and_the_answer_to_the_question_ends_it() {
    let pool = Pool::new(64, 512);
    let mut gateway = gateway(&pool);
    write(&mut gateway, &pool);
    let (now, asked) = next_sending(&mut gateway);
    gateway.handle(now, Input::Packet(Packet::bare(asked.reply(Code::Absent))));
    let sent = poll_all(&mut gateway).0;
    assert_eq!(
        sent.iter().map(|header| header.op).collect::<Vec<_>>(),
        [Op::Write]
    );
    let (now, asked) = next_sending(&mut gateway);
    assert_eq!(asked.op, Op::Ask);
    gateway.handle(now, Input::Packet(Packet::bare(asked.reply(Code::SoftOrOk))));
    let replies = poll_all(&mut gateway).1;
    assert!(replies.len() == 1 && replies[0].result.is_ok(), "{replies:?}");
}

#[test]
fn a_node_says_how_a_write_ended_or_that_it_lacks_it() {
    let mut world = World::fresh();
    let question = |world: &World, request| Header {
        request,
        source: world.gateway.0,
        session: world.gateway.1,
        epoch: world.replies.last().expect("a write was answered").epoch,
        ..Header::new(Op::Ask, VssdId(1))
    };
    world.write(2, 3);
    for (request, expected) in [(2, Code::SoftOrOk), (3, Code::Absent)] {
        world.send(Packet::bare(question(&world, request)));
        let answer = world.replies.last().expect("it answers");
        assert_eq!((answer.request, answer.code), (request, expected));
    }
    let written = world.written();
    world.write(3, 4);
    assert_eq!(
        world.written(),
        written + 1,
        "a question is not taken for the write"
    );
    let stale = Header {
        epoch: 77,
        ..question(&world, 4)
    };
    world.send(Packet::bare(stale));
    assert_eq!(world.replies.last().expect("it answers").code, Code::Stale);
}
