//! Reads that a collecting server has a replica answer, under a controller (RackBlox (Software), RackBlox §4.1). The
//! client talks to its server, so the answer comes back the way that the read went: the round trip between servers that
//! RackBlox §4.4 finds unnecessary with a switch that decides.

use base::Addr;
use rack::replica::Member;
use wire::rack::{Header, Packet, flags};

/// Reads under way at replicas at once; the oldest is forgotten for one more, and its client asks again.
const READS_MAX: usize = 4096;

/// Who asked for what is read elsewhere.
#[derive(Debug, Default)]
pub(super) struct Proxy {
    /// By number modulo [`READS_MAX`]: the number, and the client's header.
    reads: Vec<Option<(u64, Header)>>,
    next: u64,
}

impl Proxy {
    /// Makes a client's read one of this server, at `me` in its incarnation `boot`, for a replica.
    pub fn ask(&mut self, packet: &mut Packet, me: Addr, boot: u32, peer: &Member) {
        let number = self.next;
        self.next += 1;
        let place = number as usize % READS_MAX;
        if self.reads.len() <= place {
            self.reads.push(None);
        }
        self.reads[place] = Some((number, packet.header));
        packet.header = Header {
            vssd: peer.vssd,
            target: peer.addr,
            source: me,
            session: boot,
            request: number,
            flags: packet.header.flags | flags::REDIRECTED,
            ..packet.header
        };
    }

    /// Makes a replica's answer the client's; false if nobody waits for it.
    pub fn answer(&mut self, packet: &mut Packet, boot: u32) -> bool {
        let header = packet.header;
        let place = header.request as usize % READS_MAX;
        let Some(entry) = self.reads.get_mut(place).filter(|_| header.session == boot) else {
            return false;
        };
        let Some((_, client)) = entry.take_if(|(number, _)| *number == header.request) else {
            return false;
        };
        packet.header.target = client.source;
        packet.header.session = client.session;
        packet.header.request = client.request;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use base::{NodeId, VssdId};
    use wire::rack::{Code, Op};

    #[test]
    fn an_answer_goes_to_who_asked_and_once() {
        let addr = |last| Addr::new([10, 0, 0, last], 1);
        let peer = Member {
            vssd: VssdId(2),
            node: NodeId(2),
            addr: addr(2),
        };
        let asked = Header {
            request: 77,
            session: 5,
            source: addr(9),
            ..Header::new(Op::Read, VssdId(1))
        };
        let mut proxy = Proxy::default();
        let mut packet = Packet::bare(asked);
        proxy.ask(&mut packet, addr(1), 3, &peer);
        let sent = packet.header;
        assert_eq!(
            (sent.vssd, sent.target, sent.source),
            (VssdId(2), addr(2), addr(1))
        );
        assert!(sent.has(flags::REDIRECTED));
        let answer = || Packet::bare(sent.reply(Code::SoftOrOk));
        assert!(!proxy.answer(&mut answer(), 2), "not of an earlier incarnation");
        let mut first = answer();
        assert!(proxy.answer(&mut first, 3));
        let got = first.header;
        assert_eq!((got.target, got.request, got.session), (addr(9), 77, 5));
        assert!(!proxy.answer(&mut answer(), 3), "a copy has nobody to go to");
    }
}
