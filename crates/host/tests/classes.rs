//! The class goes with the request: what a bulk client has waiting at a set does not stand before a request that waits for latency.

use crate::support::{VOLUME, gateway, poll_all};
use base::{BlockOp, BlockRequest, Instant, Machine, Pages, Pool, SectorRange};
use host::{Gateway, Input};
use wire::rack::{Code, Header, Op, Packet};

/// More reads of a page than a set has in flight.
const MANY: u64 = 1000;

fn read(gateway: &mut Gateway, tag: u64, bulk: bool) {
    let request = BlockRequest {
        client: 0,
        tag,
        volume: VOLUME,
        op: BlockOp::Read,
        range: SectorRange::new(tag % 8 * 4096, 4096, u64::MAX).expect("whole sectors"),
        fua: false,
        bulk,
        pages: Pages::new(),
    };
    gateway.handle(Instant::ZERO, Input::Request(request));
}

fn reads(gateway: &mut Gateway) -> Vec<Header> {
    let sent = poll_all(gateway).0;
    sent.into_iter().filter(|header| header.op == Op::Read).collect()
}

/// Tags in the order of their answers, if an urgent read comes behind many bulk ones.
fn order(urgent_is_bulk: bool) -> Vec<u64> {
    let pool = Pool::new(64, 512);
    let mut gateway = gateway(&pool, &[1]).0;
    (1..MANY).for_each(|tag| read(&mut gateway, tag, true));
    read(&mut gateway, MANY, urgent_is_bulk);
    let mut in_flight = std::collections::VecDeque::from(reads(&mut gateway));
    assert!(in_flight.len() < MANY as usize, "some wait");
    let mut tags = Vec::new();
    while let Some(asked) = in_flight.pop_front() {
        let answer = Packet::with_page(asked.reply(Code::SoftOrOk), None, 0);
        gateway.handle(Instant::ZERO, Input::Packet(answer));
        let (sent, replies) = poll_all(&mut gateway);
        in_flight.extend(sent.into_iter().filter(|header| header.op == Op::Read));
        tags.extend(replies.iter().map(|reply| reply.tag));
    }
    tags
}

#[test]
fn an_urgent_read_overtakes_the_bulk_reads_that_wait() {
    let place = |tags: &[u64]| tags.iter().position(|&tag| tag == MANY).expect("it is answered");
    let last = order(true);
    assert_eq!((last.len() as u64, place(&last) as u64), (MANY, MANY - 1));
    let urgent = order(false);
    assert_eq!(urgent.len() as u64, MANY, "everything is answered");
    // The first place that falls free is its own: nothing is before it but what was in flight.
    assert!(place(&urgent) <= 256, "{}", place(&urgent));
}
