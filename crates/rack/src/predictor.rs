//! The return-latency predictor (RackBlox §3.4): a sliding window of the network latencies of the 100 most recent
//! incoming packets of a vSSD, kept apart for reads and writes because their answers differ in size.
//!
//! RackBlox predicts the mean. The mean is wrong for up to 100 packets when the path's latency moves. If clients with
//! different paths share a vSSD, it is wrong for nearly all packets. So the mean here covers the packets that took about as
//! long as the packet to be answered: the packets of its path, since the path last moved.

/// Packets in the window (RackBlox §3.4).
pub const WINDOW_PACKETS: usize = 100;
/// Packets that differ by no more than this took about as long: the accuracy that RackBlox states for its predictions
/// (§3.4), which the residuals of the published trace exceed by 1 in 100.
pub const NEAR_NS: u32 = 25_000;

/// Latencies are told apart up to 2.1 s, half of the field's range, so that their differences do not wrap.
const LATENCY_NS_MAX: u32 = u32::MAX / 2;

/// Sliding window of network latencies, in ns.
#[derive(Clone, Debug)]
pub struct Predictor {
    window: [u32; WINDOW_PACKETS],
    count: usize,
    next: usize,
}

impl Default for Predictor {
    fn default() -> Self {
        Self {
            window: [0; WINDOW_PACKETS],
            count: 0,
            next: 0,
        }
    }
}

impl Predictor {
    /// Takes the latency of an incoming packet.
    pub fn observe(&mut self, lat_ns: u32) {
        self.window[self.next] = lat_ns.min(LATENCY_NS_MAX);
        self.next = (self.next + 1) % WINDOW_PACKETS;
        self.count = (self.count + 1).min(WINDOW_PACKETS);
    }

    /// The predicted latency, in ns, of the answer to a packet that was itself on the way for `own_ns`: the mean of the
    /// packets that took about as long, or `own_ns` without such packets.
    pub fn predict_ns(&self, own_ns: u32) -> u64 {
        let own_ns = own_ns.min(LATENCY_NS_MAX);
        // Done for every read, so without branches and in lanes of 32 bits: what a latency is above the lowest near one,
        // which cannot overflow.
        let (mut above, mut count) = (0u32, 0u32);
        for &lat_ns in &self.window[..self.count] {
            let more = lat_ns.wrapping_sub(own_ns).wrapping_add(NEAR_NS);
            let near = u32::from(more <= 2 * NEAR_NS);
            above += near * more;
            count += near;
        }
        match above.checked_div(count) {
            Some(above) => (u64::from(own_ns) + u64::from(above)) - u64::from(NEAR_NS),
            None => u64::from(own_ns),
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
    fn the_mean_is_that_of_packets_that_took_about_as_long() {
        let mut predictor = Predictor::default();
        for lat_ns in [100_000, 110_000, 125_000, 200_000, 210_000] {
            predictor.observe(lat_ns);
        }
        assert_eq!(predictor.predict_ns(100_000), 111_666);
        assert_eq!(predictor.predict_ns(99_999), 105_000);
        assert_eq!(predictor.predict_ns(205_000), 205_000);
        assert_eq!(predictor.predict_ns(300_000), 300_000);
    }

    #[test]
    fn latencies_at_the_ends_of_the_field_are_far_apart() {
        let mut predictor = Predictor::default();
        predictor.observe(u32::MAX);
        assert_eq!(predictor.predict_ns(0), 0);
        predictor.observe(0);
        assert_eq!(predictor.predict_ns(u32::MAX), u64::from(u32::MAX / 2));
        assert_eq!(predictor.predict_ns(10), 0);
    }
}
