//! One direction of the host's link: every application's connection is a flow, and flows take turns by segment, as the
//! queues of a network card do.

use super::cost::SEGMENT_BYTES;
use std::collections::VecDeque;

/// Bytes of one flow to be sent, and what they complete.
#[derive(Clone, Copy, Debug)]
struct Piece {
    bytes: u32,
    request: Option<u32>,
}

/// One direction of a link.
#[derive(Debug)]
pub struct Link {
    gbps: u64,
    flows: Vec<VecDeque<Piece>>,
    turns: VecDeque<u32>,
    /// The flow, length and completion of the segment on the wire.
    sending: Option<Option<u32>>,
}

impl Link {
    /// Idle, for flows numbered below `flows`.
    pub fn new(gbps: u64, flows: usize) -> Self {
        Self {
            gbps,
            flows: vec![VecDeque::new(); flows],
            turns: VecDeque::new(),
            sending: None,
        }
    }

    /// Queues bytes of a flow. The time in ns until [`Self::sent`] is to be called, if the link was idle.
    pub fn push(&mut self, flow: usize, bytes: u32, request: Option<u32>) -> Option<u64> {
        if self.flows[flow].is_empty() {
            self.turns.push_back(flow as u32);
        }
        self.flows[flow].push_back(Piece { bytes, request });
        match self.sending {
            None => self.start(),
            Some(_) => None,
        }
    }

    /// The segment on the wire is sent: the request that it completes, and the time until the next is sent.
    pub fn sent(&mut self) -> (Option<u32>, Option<u64>) {
        let request = self.sending.take().expect("a segment is on the wire");
        (request, self.start())
    }

    fn start(&mut self) -> Option<u64> {
        let flow = self.turns.pop_front()?;
        let queue = &mut self.flows[flow as usize];
        let piece = queue
            .front_mut()
            .expect("flows with a turn have something to send");
        let bytes = piece.bytes.min(SEGMENT_BYTES);
        piece.bytes -= bytes;
        let request = match piece.bytes {
            0 => queue.pop_front().and_then(|piece| piece.request),
            _ => None,
        };
        if !queue.is_empty() {
            self.turns.push_back(flow);
        }
        self.sending = Some(request);
        Some((u64::from(bytes) * 8).div_ceil(self.gbps))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_take_turns_by_segment_and_all_bytes_take_their_time() {
        let mut link = Link::new(100, 2);
        let mut total_ns = link.push(0, 1 << 20, Some(1)).unwrap();
        assert_eq!(total_ns, 1311);
        assert_eq!(link.push(1, 4096, Some(2)), None);
        let mut done = Vec::new();
        while link.sending.is_some() {
            let (request, next_ns) = link.sent();
            if request == Some(2) {
                // The segment on the wire and the next one, whose turn came before.
                assert_eq!(total_ns, 2 * 1311 + 328);
            }
            done.extend(request);
            total_ns += next_ns.unwrap_or(0);
        }
        assert_eq!(done, [2, 1]);
        let exact = ((1 << 20) + 4096) * 8 / 100;
        assert!(total_ns.abs_diff(exact) < 80, "{total_ns} {exact}");
    }
}
