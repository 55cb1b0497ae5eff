//! The return-latency predictor (RackBlox §3.4): the mean network latency of the 100 most recent incoming packets of
//! a vSSD, kept apart for reads and writes because their answers differ in size.

/// Packets in the window (RackBlox §3.4).
pub const WINDOW_PACKETS: usize = 100;

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

    /// The predicted latency of the answer in ns, 0 before the first packet.
    pub fn predict_ns(&self) -> u64 {
        self.sum.checked_div(self.count as u64).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mean_covers_the_last_hundred_packets_only() {
        let mut predictor = Predictor::default();
        assert_eq!(predictor.predict_ns(), 0);
        predictor.observe(300);
        assert_eq!(predictor.predict_ns(), 300);
        for _ in 0..WINDOW_PACKETS {
            predictor.observe(100);
        }
        assert_eq!(predictor.predict_ns(), 100);
    }
}
