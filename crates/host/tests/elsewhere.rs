//! Reads under a central controller that decides about collection (RackBlox (Software), RackBlox §4.1): a server that
//! collects names the replica that does not, and the client asks there.

use crate::support::{VOLUME, gateway, poll_all};
use base::{BlockOp, BlockRequest, Instant, Machine, Page, Pages, Pool, SectorRange, VssdId};
use host::{Gateway, Input};
use wire::rack::{Code, Header, Op, Packet, flags};

fn read(gateway: &mut Gateway) -> Header {
    let request = BlockRequest {
        client: 0,
        tag: 1,
        volume: VOLUME,
        op: BlockOp::Read,
        range: SectorRange::new(0, 4096, u64::MAX).expect("whole sectors"),
        fua: false,
        bulk: false,
        pages: Pages::new(),
    };
    gateway.handle(Instant::ZERO, Input::Request(request));
    let (sent, _) = poll_all(gateway);
    sent.into_iter()
        .find(|header| header.op == Op::Read)
        .expect("a read is sent")
}

/// The answer of a server that collects and names a replica.
fn named(asked: &Header, replica: u32) -> Packet {
    Packet::bare(Header {
        lba: u64::from(replica),
        ..asked.reply(Code::Elsewhere)
    })
}

#[test]
fn a_read_goes_on_to_the_replica_that_was_named_and_is_answered_there() {
    let pool = Pool::new(64, 512);
    let mut gateway = gateway(&pool, &[1, 2]).0;
    let asked = read(&mut gateway);
    assert_eq!((asked.vssd, asked.has(flags::PINNED)), (VssdId(1), false));
    gateway.handle(Instant::ZERO, Input::Packet(named(&asked, 2)));
    let (sent, replies) = poll_all(&mut gateway);
    assert_eq!((sent.len(), replies.len()), (1, 0));
    assert_eq!((sent[0].vssd, sent[0].request), (VssdId(2), asked.request));
    assert!(sent[0].has(flags::PINNED), "nobody sends it on again");
    let page: Option<Page> = None;
    let answer = Packet::with_page(sent[0].reply(Code::SoftOrOk), page, 0);
    gateway.handle(Instant::ZERO, Input::Packet(answer));
    let (_, replies) = poll_all(&mut gateway);
    assert!(replies.len() == 1 && replies[0].result.is_ok(), "{replies:?}");
}

#[test]
fn a_replica_that_does_not_answer_is_left_for_the_primary() {
    let pool = Pool::new(64, 512);
    let mut gateway = gateway(&pool, &[1, 2]).0;
    let asked = read(&mut gateway);
    gateway.handle(Instant::ZERO, Input::Packet(named(&asked, 2)));
    poll_all(&mut gateway);
    let read = loop {
        gateway.tick(gateway.deadline().expect("it is sent again"));
        let (sent, _) = poll_all(&mut gateway);
        if let Some(read) = sent.into_iter().find(|header| header.op == Op::Read) {
            break read;
        }
    };
    assert_eq!((read.vssd, read.has(flags::PINNED)), (VssdId(1), true));
}

#[test]
fn a_stranger_is_not_followed_and_who_named_it_answers() {
    let pool = Pool::new(64, 512);
    let mut gateway = gateway(&pool, &[1, 2]).0;
    let asked = read(&mut gateway);
    gateway.handle(Instant::ZERO, Input::Packet(named(&asked, 7)));
    let (sent, replies) = poll_all(&mut gateway);
    assert!(sent.len() == 1 && replies.is_empty(), "{sent:?} {replies:?}");
    assert_eq!((sent[0].vssd, sent[0].has(flags::PINNED)), (VssdId(1), true));
}
