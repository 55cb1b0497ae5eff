//! SYN cookies (RFC 4987 §3.6): a handshake of which nothing is kept. The layout is in `docs/format/tcp.md`.

use crate::addr::Tuple;
use crate::seq::Seq;
use crate::siphash::Key;
use base::{Duration, Instant};

/// Segment lengths that a cookie can tell; the largest that is not longer than the peer's is told.
const MSS: [u16; 8] = [536, 1220, 1400, 1448, 1460, 4312, 8948, 9000];
/// The unit of a cookie's time.
const UNIT_NS: u64 = 64_000_000_000;
/// How long a listener that has sent a cookie takes cookies.
pub const LIFE: Duration = Duration::from_secs(128);

/// Makes and checks cookies.
#[derive(Clone, Copy, Debug)]
pub struct Cookies(pub Key);

impl Cookies {
    /// The number with which a SYN is answered.
    pub fn make(self, now: Instant, tuple: &Tuple, irs: Seq, mss: u16) -> Seq {
        let index = MSS.iter().rposition(|known| *known <= mss).unwrap_or(0);
        let unit = now.as_nanos() / UNIT_NS;
        Seq(self.word(unit, tuple, irs) | (index as u32) << 24)
    }

    /// The segment length in the cookie `iss`, if it is one of the last 128 seconds.
    pub fn check(self, now: Instant, tuple: &Tuple, irs: Seq, iss: Seq) -> Option<u16> {
        let unit = now.as_nanos() / UNIT_NS;
        let is_of = |unit: &u64| self.word(*unit, tuple, irs) == iss.0 & !(7 << 24);
        let units = [unit, unit.saturating_sub(1)];
        units.iter().find(|unit| is_of(unit))?;
        Some(MSS[(iss.0 >> 24 & 7) as usize])
    }

    fn word(self, unit: u64, tuple: &Tuple, irs: Seq) -> u32 {
        let hash = hash(self.0, tuple, u64::from(irs.0) << 32 | unit & 0xffff_ffff);
        ((unit as u32 & 31) << 27) | (hash as u32 & 0xff_ffff)
    }
}

/// The hash of a connection with something else.
pub fn hash(key: Key, tuple: &Tuple, more: u64) -> u64 {
    let [local0, local1] = tuple.local.ip.halves();
    let [remote0, remote1] = tuple.remote.ip.halves();
    let ports = u64::from(tuple.local.port) << 16 | u64::from(tuple.remote.port);
    key.hash(&[local0, local1, remote0, remote1, ports, more])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cookie_is_good_for_two_units_and_one_connection() {
        let cookies = Cookies(Key([1, 2]));
        let mut tuple = Tuple::default();
        let at = |seconds: u64| Instant::from_nanos(seconds * 1_000_000_000);
        let iss = cookies.make(at(1000), &tuple, Seq(7), 1459);
        assert_eq!(cookies.check(at(1000), &tuple, Seq(7), iss), Some(1448));
        assert_eq!(cookies.check(at(1060), &tuple, Seq(7), iss), Some(1448));
        assert_eq!(cookies.check(at(1000 + 128), &tuple, Seq(7), iss), None);
        assert_eq!(cookies.check(at(1000), &tuple, Seq(8), iss), None);
        assert_eq!(cookies.check(at(1000), &tuple, Seq(7), iss + 1), None);
        tuple.remote.port = 1;
        assert_eq!(cookies.check(at(1000), &tuple, Seq(7), iss), None);
    }
}
