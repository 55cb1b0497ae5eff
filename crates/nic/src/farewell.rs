//! What a hub says on behalf of a port that has gone, to peers behind the uplink: no kernel resets the connections of a process that has its own stack.
//!
//! A host that knows nothing of a connection answers its segments with a reset (RFC 9293 §3.10.7.1), and so does the hub for ports that are no more. So
//! that a peer that waits learns of it, too, the hub sends it a segment that is out of order. The peer answers with an acknowledgement (RFC 5961
//! §5.2), to which the reset has the right number. The hub needs to know only which connections there were.

use crate::frames::ETHERNET_BYTES;
use std::collections::VecDeque;
use tcp::addr::{Mac, Tuple};
use tcp::frame::segment::Segment;
use tcp::frame::{self, Flags, Hop, Packet, ether, ip};
use tcp::seq::Seq;

/// Connections of a port that are remembered. Peers of older ones notice by their own keep-alives.
const FLOWS_MAX: usize = 1024;
/// The place of the flags in a TCP header, and that of the protocol in an IP header.
const FLAGS_AT: usize = 13;
const PROTOCOL4_AT: usize = ETHERNET_BYTES + 9;
const PROTOCOL6_AT: usize = ETHERNET_BYTES + 6;

/// Bytes of the longest frame that is said here.
pub const BYTES_MAX: usize = frame::HEADERS_BYTES_MAX;

/// Connections of a port to peers behind the uplink, the youngest ones.
#[derive(Debug, Default)]
pub struct Flows(VecDeque<(Mac, Tuple)>);

/// Whether a frame begins a connection, or answers that it does.
#[inline]
fn is_opening(frame: &[u8]) -> bool {
    let kind = [frame[12], frame[13]];
    let flags_at = if kind == ether::IPV4.to_be_bytes() && frame.get(PROTOCOL4_AT) == Some(&ip::TCP) {
        ETHERNET_BYTES + usize::from(frame[ETHERNET_BYTES] & 15) * 4 + FLAGS_AT
    } else if kind == ether::IPV6.to_be_bytes() && frame.get(PROTOCOL6_AT) == Some(&ip::TCP) {
        ETHERNET_BYTES + ip::BYTES6 + FLAGS_AT
    } else {
        return false;
    };
    frame
        .get(flags_at)
        .is_some_and(|flags| Flags(*flags).any(Flags::SYN))
}

impl Flows {
    /// Looks at a frame that a port sends to the uplink.
    #[inline]
    pub fn note(&mut self, frame: &[u8]) {
        if is_opening(frame) {
            self.add(frame);
        }
    }

    #[cold]
    fn add(&mut self, frame: &[u8]) {
        let Ok((ether, Packet::Tcp(segment, _))) = frame::parse(frame, false) else {
            return;
        };
        if self.0.len() == FLOWS_MAX {
            self.0.pop_front();
        }
        let tuple = Tuple {
            local: segment.source,
            remote: segment.target,
        };
        self.0.push_back((ether.target, tuple));
    }

    /// Writes the next question on behalf of the port, which had the card `source`. None if all were asked.
    pub fn ask(&mut self, source: Mac, frame: &mut [u8]) -> Option<usize> {
        let (target, tuple) = self.0.pop_front()?;
        let question = Segment::new(tuple, Seq(0), Seq(0), Flags::ACK);
        Some(frame::emit(Hop { source, target }, &question, frame, false))
    }
}

/// Writes the answer to a frame for a port that has gone. None if there is none: a peer that begins a connection tries again, perhaps at a port that has the
/// address by then.
pub fn reject(received: &[u8], frame: &mut [u8]) -> Option<usize> {
    let Ok((ether, Packet::Tcp(segment, _))) = frame::parse(received, false) else {
        return None;
    };
    if segment.flags.any(Flags::RST | Flags::SYN) || !segment.flags.any(Flags::ACK) {
        return None;
    }
    let reset = Segment::new(segment.tuple(), segment.ack, Seq(0), Flags::RST);
    let hop = Hop {
        source: ether.target,
        target: ether.source,
    };
    Some(frame::emit(hop, &reset, frame, false))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tcp::addr::{Endpoint, Ip};

    const PORT: Mac = Mac([2, 0, 0, 0, 0, 1]);
    const PEER: Mac = Mac([2, 0, 0, 0, 0, 2]);

    fn tuple(is_v6: bool, port: u16) -> Tuple {
        let ip = |host: u8| match is_v6 {
            true => Ip::v6([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, host]),
            false => Ip::v4([10, 9, 0, host]),
        };
        let end = |host, port| Endpoint { ip: ip(host), port };
        Tuple {
            local: end(1, port),
            remote: end(2, 80),
        }
    }

    fn written(tuple: Tuple, flags: Flags) -> Vec<u8> {
        let mut frame = vec![0; BYTES_MAX];
        let hop = Hop {
            source: PORT,
            target: PEER,
        };
        let bytes = frame::emit(
            hop,
            &Segment::new(tuple, Seq(7), Seq(9), flags),
            &mut frame,
            false,
        );
        frame.truncate(bytes);
        frame
    }

    fn read(frame: &[u8]) -> (Mac, Segment) {
        match frame::parse(frame, false) {
            Ok((ether, Packet::Tcp(segment, _))) => (ether.target, segment),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_connection_that_began_is_asked_about_once_and_the_answer_is_reset() {
        let mut flows = Flows::default();
        for is_v6 in [false, true] {
            flows.note(&written(tuple(is_v6, 5), Flags::SYN));
            flows.note(&written(tuple(is_v6, 6), Flags::ACK));
            flows.note(&written(tuple(is_v6, 7), Flags::SYN | Flags::ACK));
        }
        flows.note(&[0xff; 14]);
        let mut frame = [0; BYTES_MAX];
        let mut asked = Vec::new();
        while let Some(bytes) = flows.ask(PORT, &mut frame) {
            let (target, segment) = read(&frame[..bytes]);
            assert_eq!((target, segment.flags), (PEER, Flags::ACK));
            asked.push(segment.source.port);
        }
        assert_eq!(asked, [5, 7, 5, 7]);
        let bytes = reject(&written(tuple(false, 5), Flags::ACK | Flags::PSH), &mut frame);
        let (target, segment) = read(&frame[..bytes.expect("an answer")]);
        assert_eq!((target, segment.flags, segment.seq), (PORT, Flags::RST, Seq(9)));
        assert_eq!(segment.target, tuple(false, 5).local);
        for flags in [
            Flags::SYN,
            Flags::RST,
            Flags::RST | Flags::ACK,
            Flags::SYN | Flags::ACK,
        ] {
            assert_eq!(reject(&written(tuple(false, 5), flags), &mut frame), None);
        }
    }

    #[test]
    fn only_so_many_connections_are_remembered() {
        let mut flows = Flows::default();
        for port in 0..FLOWS_MAX as u16 + 10 {
            flows.note(&written(tuple(false, port), Flags::SYN));
        }
        let mut frame = [0; BYTES_MAX];
        let bytes = flows.ask(PORT, &mut frame).expect("a question");
        assert_eq!(read(&frame[..bytes]).1.source.port, 10);
        assert_eq!(
            std::iter::from_fn(|| flows.ask(PORT, &mut frame)).count(),
            FLOWS_MAX - 1
        );
    }
}
