//! The return-latency predictor (RackBlox §3.4): the mean network latency of the 100 most recent incoming packets of
//! a vSSD, kept apart for reads and writes because their answers differ in size.
//!
//! The mean alone is wrong for up to 100 packets when the path's latency moves, and for all packets where clients with
//! different paths share a vSSD. So a packet that lies far from the mean is predicted to go back as it came.

/// Packets in the window (RackBlox §3.4).
pub const WINDOW_PACKETS: usize = 100;

/// What differs more from the mean is not noise: the accuracy that RackBlox states for its predictions (§3.4), which
/// the residuals of the published trace exceed by 1 in 100.
pub const NEAR_NS: u64 = 25_000;

/// Sliding-window mean of network latencies, in ns.
#[derive(Clone, Debug)]
pub struct Predictor {
    window: [u32; WINDOW_PACKETS],
    count: usize,
    next: usize,
    sum: u64,
}

impl Default for Predictor {
    fn default() -> Self {
        Self {
            window: [0; WINDOW_PACKETS],
            count: 0,
            next: 0,
            sum: 0,
        }
    }
}

impl Predictor {
    /// Takes the latency of an incoming packet.
    pub fn observe(&mut self, lat_ns: u32) {
        self.sum -= u64::from(self.window[self.next]);
        self.window[self.next] = lat_ns;
        self.sum += u64::from(lat_ns);
        self.next = (self.next + 1) % WINDOW_PACKETS;
        self.count = (self.count + 1).min(WINDOW_PACKETS);
    }

    /// The predicted latency, in ns, of the answer to a packet that was itself on the way for `own_ns`: the mean, unless
    /// the packet lies far from it. Then it came over another path than the others, or the path has just changed, and
    /// its own latency tells more.
    pub fn predict_ns(&self, own_ns: u32) -> u64 {
        let own_ns = u64::from(own_ns);
        match self.sum.checked_div(self.count as u64) {
            Some(mean_ns) if mean_ns.abs_diff(own_ns) <= NEAR_NS => mean_ns,
            _ => own_ns,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_covers_the_last_hundred_packets_only() {
        let mut predictor = Predictor::default();
        assert_eq!(predictor.predict_ns(300), 300);
        predictor.observe(300);
        assert_eq!(predictor.predict_ns(290), 300);
        for _ in 0..WINDOW_PACKETS {
            predictor.observe(100);
        }
        assert_eq!(predictor.predict_ns(290), 100);
    }

    #[test]
    fn a_packet_far_from_the_mean_is_believed() {
        let mut predictor = Predictor::default();
        for _ in 0..WINDOW_PACKETS {
            predictor.observe(100_000);
        }
        assert_eq!(predictor.predict_ns(125_000), 100_000);
        assert_eq!(predictor.predict_ns(125_001), 125_001);
        assert_eq!(predictor.predict_ns(74_999), 74_999);
    }
}
