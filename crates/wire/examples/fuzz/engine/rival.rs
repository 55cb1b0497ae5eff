//! A second host of the fuzzed volume, which reserves it and is never damaged.
//!
//! Whatever the fuzzed host does, stalls and how it ends, the rival's commands are answered: they wait for nothing but
//! what the volume has to answer.

use super::offer::Offer;
use std::sync::Arc;

use base::{Instant, Pool, Rng};
use wire::nvme::host::{Data, Host, HostOptions, Sink};
use wire::nvme::proto::{Cqe, Sqe, Status, io};
use wire::nvme::{Session, SessionLimits};
use wire::{Outgoing, Session as _};

use super::nvme::enable;

/// The volume's second host.
pub struct Rival {
    admin: Session,
    session: Session,
    host: Host,
    said: Vec<u8>,
}

/// Keys of zeros, and the statuses that such commands may have.
struct Keys;

impl Sink for Keys {
    fn data(&mut self, _cid: u16, _offset: u32, _bytes: &[u8]) {}

    fn fill(&mut self, _cid: u16, _offset: u32, target: &mut [u8]) {
        target.fill(0);
    }

    fn done(&mut self, _cid: u16, completion: &Cqe) {
        let status = completion.status.code();
        let known = [
            Status::SUCCESS,
            Status::RESERVATION_CONFLICT,
            Status::INVALID_FIELD,
            Status::PREEMPTED,
        ];
        assert!(known.contains(&status), "{status:?}");
    }
}

/// Any of the reservation commands, mostly with valid fields.
pub fn reservation(rng: &mut Rng) -> (Sqe, Data) {
    let kind = if rng.chance(0.9) {
        rng.between(1, 6) as u32
    } else {
        rng.below(256) as u32
    };
    let actions = if rng.chance(0.9) { 3 } else { 8 };
    let action = rng.below(actions) as u32;
    let flags = u32::from(rng.chance(0.1)) << 3;
    match rng.below(8) {
        0..3 => Sqe::reservation(io::RESERVATION_REGISTER, action | flags),
        3..6 => Sqe::reservation(io::RESERVATION_ACQUIRE, action | flags | kind << 8),
        6 => Sqe::reservation(io::RESERVATION_RELEASE, action | flags | kind << 8),
        _ => Sqe::reservation_report(4 * rng.between(1, 100) as u32),
    }
}

impl Rival {
    /// Connects it.
    pub fn new(target: &Arc<Offer>, pool: &Pool, limits: &SessionLimits, options: &HostOptions) -> Self {
        let options = HostOptions {
            host_id: [0x52; 16],
            host_nqn: format!("{}-rival", options.host_nqn),
            ..options.clone()
        };
        let (admin, cntlid) = enable(target, pool, limits, &options);
        let mut this = Self {
            admin,
            session: Session::new(2, pool.clone(), *limits, target.clone()),
            host: Host::new(options.io(cntlid, 1, limits.in_flight_max as u16)),
            said: Vec::new(),
        };
        this.speak(Instant::ZERO);
        this.speak(Instant::ZERO);
        assert!(this.host.is_connected());
        this
    }

    /// Sends a command, perhaps, and lets the session look at what changed.
    pub fn act(&mut self, rng: &mut Rng, now: Instant) {
        if rng.chance(0.3) && self.host.has_room() {
            let (sqe, data) = reservation(rng);
            self.host
                .submit(sqe, data, &mut Keys)
                .expect("there is room for the command");
        }
        self.speak(now);
    }

    fn speak(&mut self, now: Instant) {
        loop {
            let count = self.host.outgoing().len();
            let taken = self.session.receive(now, self.host.outgoing());
            assert_eq!(taken, count, "what is answered at once is taken at once");
            self.host.sent(count);
            assert!(
                self.session.asks().requests.pop_front().is_none(),
                "reservations are no business of the volume"
            );
            self.said.clear();
            self.session
                .transmit(&mut Outgoing::copy(&mut self.said, usize::MAX));
            self.session.sent(self.said.len());
            self.host.receive(&self.said, &mut Keys);
            assert_eq!(self.host.failed(), None);
            if count == 0 && self.said.is_empty() {
                return;
            }
        }
    }

    /// The other host is gone, and with it whatever a command could wait for.
    pub fn end(&mut self) {
        self.speak(Instant::ZERO);
        assert_eq!((self.host.in_flight(), self.session.state().in_flight), (0, 0));
        assert!(self.session.detach().is_none());
        self.admin.detach();
    }
}
