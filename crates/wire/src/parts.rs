//! Rack packets that came in parts: a path whose datagrams are shorter than a packet gets each packet in several.
//!
//! Every part has the whole header, so nothing else says which parts belong together. The same packet sent twice may be put
//! together from parts of both sendings: its header has the payload's checksum, so they have the same bytes.

use crate::rack::{Header, Packet, Part, Payload};
use std::collections::VecDeque;

/// Packets of which some parts have come.
#[derive(Debug)]
pub struct Assembler {
    waiting: VecDeque<Waiting>,
    most: usize,
}

#[derive(Debug)]
struct Waiting {
    /// LAT is the highest of the parts that have come.
    header: Header,
    payload: Payload,
    /// A bit for each part that has come.
    have: u32,
}

impl Assembler {
    /// One that keeps parts of `most` packets: of more, those of the oldest go.
    pub fn new(most: usize) -> Self {
        assert!(most > 0, "a packet has room");
        Self {
            waiting: VecDeque::with_capacity(most),
            most,
        }
    }

    /// True if a part of the header's packet has come before.
    pub fn knows(&self, header: &Header) -> bool {
        self.find(header).is_some()
    }

    /// Makes room for the header's packet, of which no part has come yet, in `payload`. True if another packet went for it.
    pub fn begin(&mut self, header: Header, payload: Payload) -> bool {
        let is_full = self.waiting.len() == self.most;
        if is_full {
            self.waiting.pop_front();
        }
        self.waiting.push_back(Waiting {
            header,
            payload,
            have: 0,
        });
        is_full
    }

    /// Takes a part of a packet that was begun, with its bytes; the packet, if it was the last one.
    pub fn take(&mut self, header: &Header, part: Part, bytes: &[u8]) -> Option<Packet> {
        let index = self.find(header)?;
        let waiting = &mut self.waiting[index];
        let range = part.range(header.length as usize);
        match &mut waiting.payload {
            Payload::Page(page) => page.with_mut(|page| page[range].copy_from_slice(bytes)),
            Payload::Record(record) => record[range].copy_from_slice(bytes),
            Payload::None => unreachable!("a packet in parts has a payload"),
        }
        waiting.have |= 1 << part.number();
        waiting.header.lat_ns = waiting.header.lat_ns.max(header.lat_ns);
        let all = (2 << part.further()) - 1;
        if waiting.have != all {
            return None;
        }
        let Waiting { header, payload, .. } = self.waiting.remove(index)?;
        Some(Packet { header, payload })
    }

    /// Parts of a packet mostly come one after the other.
    fn find(&self, header: &Header) -> Option<usize> {
        let is_same = |waiting: &Waiting| {
            let lat_ns = header.lat_ns;
            Header {
                lat_ns,
                ..waiting.header
            } == *header
        };
        self.waiting.iter().rposition(is_same)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rack::Op;
    use base::VssdId;
    use proptest::prelude::*;

    const MOST: usize = 8;

    /// A record whose every byte tells where it belongs.
    fn packet(number: u64, length: usize) -> Packet {
        let record = (0..length).map(|at| (at as u64 * 7 + number) as u8).collect();
        let header = Header {
            request: number,
            ..Header::new(Op::Status, VssdId(1))
        };
        Packet::with_record(header, record)
    }

    fn take(assembler: &mut Assembler, sent: &Packet, part: Part, lat_ns: u32) -> Option<Packet> {
        let header = Header {
            lat_ns,
            ..sent.header
        };
        let length = header.length as usize;
        if !assembler.knows(&header) {
            let _ = assembler.begin(header, Payload::Record(vec![0; length].into()));
        }
        assembler.take(&header, part, &sent.record()[part.range(length)])
    }

    proptest! {
        #[test]
        fn parts_in_any_order_and_repeated_make_their_packets(
            length in 1000_usize..4096,
            room in 300_usize..1400,
            order in prop::collection::vec((0..4_u64, any::<prop::sample::Index>()), 1..400),
        ) {
            let mut assembler = Assembler::new(MOST);
            let parts: Vec<_> = Part::all(length, room).collect();
            let mut seen = vec![Vec::new(); 4];
            for (number, index) in order {
                let sent = packet(number, length);
                let part = *index.get(&parts);
                let made = take(&mut assembler, &sent, part, 0);
                let have = &mut seen[number as usize];
                if !have.contains(&part) {
                    have.push(part);
                }
                let whole = have.len() == parts.len();
                prop_assert_eq!(made.is_some(), whole);
                if let Some(made) = made {
                    have.clear();
                    prop_assert_eq!(made.header, sent.header);
                    prop_assert!(made.payload_is_intact());
                }
            }
        }
    }

    #[test]
    fn the_oldest_is_given_up_for_a_newer_one() {
        let mut assembler = Assembler::new(2);
        let parts: Vec<_> = Part::all(2000, 1400).collect();
        for number in 0..3 {
            assert!(take(&mut assembler, &packet(number, 2000), parts[0], 0).is_none());
        }
        assert!(take(&mut assembler, &packet(2, 2000), parts[1], 0).is_some());
        assert!(take(&mut assembler, &packet(1, 2000), parts[1], 0).is_some());
        assert!(take(&mut assembler, &packet(0, 2000), parts[1], 0).is_none());
    }

    #[test]
    fn the_latency_is_that_of_the_slowest_part() {
        let mut assembler = Assembler::new(MOST);
        let parts: Vec<_> = Part::all(4000, 1400).collect();
        let sent = packet(1, 4000);
        assert!(take(&mut assembler, &sent, parts[1], 5).is_none());
        assert!(take(&mut assembler, &sent, parts[0], 9).is_none());
        let made = take(&mut assembler, &sent, parts[2], 3).expect("that was the last");
        assert_eq!(made.header.lat_ns, 9);
    }
}
