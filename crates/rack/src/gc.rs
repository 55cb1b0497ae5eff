//! The server's side of coordinated garbage collection (RackBlox §3.5, Algorithm 2 lines 9–19): when to ask the ToR,
//! what to do with its answer, and when to collect anyway.
//!
//! One [`Agent`] per vSSD. It never collects itself: it says [`Action::Start`] and is told when collection is done.

use base::event::{Collection, Grant};
use base::{Duration, Instant, time::earliest};
use std::collections::VecDeque;
use wire::rack::Code;

/// How collection is decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Coordination {
    /// Through the ToR (RackBlox).
    #[default]
    Rack,
    /// Through a controller on a server of its own, which says where reads can go; the server sends them there
    /// (RackBlox (Software), RackBlox §4.1).
    Controller,
    /// Each server by itself at the hard threshold: the baseline.
    None,
}

/// Thresholds and times of one vSSD's agent. Ratios are free blocks over all blocks.
#[derive(Clone, Copy, Debug)]
pub struct Config {
    /// The decider.
    pub coordination: Coordination,
    /// Below this a soft request is sent (paper: 0.35).
    pub soft_ratio: f64,
    /// Below this collection cannot be refused (paper: 0.25).
    pub hard_ratio: f64,
    /// Below this idle time is used (artifact: 0.55).
    pub background_ratio: f64,
    /// Collection ends at this ratio.
    pub restore_ratio: f64,
    /// Time between checks (paper: 30 s for vSSDs of 32 GB and more; smaller ones fill faster).
    pub check_every: Duration,
    /// How long an answer of the ToR is awaited.
    pub answer_within: Duration,
    /// Unanswered regular requests before collecting anyway (paper: 3).
    pub retries: u32,
    /// A collecting server renews its GC bit this often; well below the ToR's lease.
    pub renew_every: Duration,
    /// Predicted idle time from which background collection starts (paper: 30 ms).
    pub idle_threshold: Duration,
    /// Weight of the last idle time in the prediction (paper: 0.5).
    pub idle_alpha: f64,
}

impl Config {
    /// Thresholds for a vSSD whose live data, when full, leave `spare_ratio` of its blocks free: the paper's
    /// 0.35/0.25/0.55 assume a half-empty device and would never be cleared on a full one.
    pub fn for_spare(spare_ratio: f64) -> Self {
        Self {
            coordination: Coordination::Rack,
            soft_ratio: spare_ratio * 0.5,
            hard_ratio: spare_ratio * 0.3,
            background_ratio: spare_ratio * 0.7,
            restore_ratio: spare_ratio * 0.6,
            check_every: Duration::from_millis(20),
            answer_within: Duration::from_millis(5),
            retries: 3,
            renew_every: Duration::from_millis(40),
            idle_threshold: Duration::from_millis(30),
            idle_alpha: 0.5,
        }
    }
}

/// GC bits at the ToR lapse this long after they were last set; servers renew well before.
pub const TOR_LEASE: Duration = Duration::from_millis(200);

/// Work of the host for the agent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Send a `gc_op` with this code to the ToR.
    Tell(Code),
    /// Collect until the free ratio reaches [`Config::restore_ratio`].
    Start(Collection, Grant),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Resting,
    Asked {
        kind: Code,
        attempts: u32,
        until: Instant,
    },
    Collecting {
        kind: Code,
        renew_at: Instant,
    },
}

/// Decides when one vSSD collects.
#[derive(Debug)]
pub struct Agent {
    config: Config,
    state: State,
    check_at: Instant,
    last_request: Option<Instant>,
    idle_predicted_ns: f64,
    actions: VecDeque<Action>,
}

impl Agent {
    /// A resting agent.
    pub fn new(config: Config) -> Self {
        Self {
            config,
            state: State::Resting,
            check_at: Instant::ZERO,
            last_request: None,
            idle_predicted_ns: 0.0,
            actions: VecDeque::with_capacity(4),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// A client's request arrived: the idle time before it feeds the prediction
    /// `T_i = α · T_real + (1 − α) · T_(i−1)` (RackBlox §3.5.1).
    pub fn note_request(&mut self, now: Instant) {
        if let Some(last) = self.last_request {
            let alpha = self.config.idle_alpha;
            self.idle_predicted_ns =
                alpha * now.nanos_since(last) as f64 + (1.0 - alpha) * self.idle_predicted_ns;
        }
        self.last_request = Some(now);
    }

    fn idle_is_predicted(&self, now: Instant) -> bool {
        let threshold = self.config.idle_threshold.as_nanos() as f64;
        let idle_for = self
            .last_request
            .map_or(f64::INFINITY, |last| now.nanos_since(last) as f64);
        self.idle_predicted_ns >= threshold || idle_for >= threshold
    }

    /// Free blocks changed, or time passed: Algorithm 2's `trigger_gc`. `written` is false when nothing was written
    /// since the last collection, so that a full but quiet vSSD rests.
    pub fn check(&mut self, now: Instant, free_ratio: f64, written: bool) {
        if self.state != State::Resting || now < self.check_at {
            return;
        }
        self.check_at = now + self.config.check_every;
        let config = &self.config;
        let kind = if free_ratio < config.hard_ratio {
            Code::Regular
        } else if config.coordination == Coordination::None {
            return;
        } else if free_ratio < config.soft_ratio {
            Code::SoftOrOk
        } else if free_ratio < config.background_ratio && written && self.idle_is_predicted(now) {
            Code::Background
        } else {
            return;
        };
        match (config.coordination, kind) {
            (Coordination::None, _) => self.collect(now, kind, Grant::Unasked),
            // Background collection does not wait for approval (RackBlox §3.5.1).
            (_, Code::Background) => {
                self.push(Action::Tell(kind));
                self.collect(now, kind, Grant::Unasked);
            }
            (_, kind) => self.ask(now, kind, 1),
        }
    }

    fn ask(&mut self, now: Instant, kind: Code, attempts: u32) {
        self.push(Action::Tell(kind));
        self.state = State::Asked {
            kind,
            attempts,
            until: now + self.config.answer_within,
        };
    }

    fn collect(&mut self, now: Instant, kind: Code, grant: Grant) {
        let collection = match kind {
            Code::SoftOrOk => Collection::Soft,
            Code::Background => Collection::Background,
            _ => Collection::Regular,
        };
        self.push(Action::Start(collection, grant));
        self.state = State::Collecting {
            kind,
            renew_at: now + self.config.renew_every,
        };
    }

    fn push(&mut self, action: Action) {
        self.actions.push_back(action);
    }

    /// The ToR answered.
    pub fn answered(&mut self, now: Instant, code: Code) {
        let State::Asked { kind, .. } = self.state else {
            return;
        };
        match code {
            Code::Accept => self.collect(now, kind, Grant::Accepted),
            Code::Delay => {
                self.state = State::Resting;
                self.check_at = now + self.config.answer_within;
            }
            _ => {}
        }
    }

    /// Collection started by itself because no free block was left; the ToR is told so that reads go elsewhere.
    pub fn forced(&mut self, now: Instant) {
        if matches!(self.state, State::Collecting { .. }) {
            return;
        }
        if self.config.coordination != Coordination::None {
            self.push(Action::Tell(Code::Regular));
        }
        self.collect(now, Code::Regular, Grant::Forced);
    }

    /// Collection is done.
    pub fn finished(&mut self, now: Instant) {
        if matches!(self.state, State::Collecting { .. }) && self.config.coordination != Coordination::None {
            self.push(Action::Tell(Code::Finish));
        }
        self.state = State::Resting;
        self.check_at = now + self.config.answer_within;
    }

    /// When to [`tick`](Agent::tick) for an unanswered request or a renewal.
    pub fn deadline(&self) -> Option<Instant> {
        match self.state {
            State::Resting => None,
            State::Asked { until, .. } => Some(until),
            State::Collecting { .. } if self.config.coordination == Coordination::None => None,
            State::Collecting { renew_at, .. } => Some(renew_at),
        }
    }

    /// The next time a check makes sense, for a host with nothing else to wake it.
    pub fn check_deadline(&self) -> Option<Instant> {
        earliest(
            (self.state == State::Resting).then_some(self.check_at),
            self.deadline(),
        )
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Instant) {
        match self.state {
            State::Asked {
                kind,
                attempts,
                until,
            } if now >= until => match kind {
                Code::Regular if attempts < self.config.retries => self.ask(now, kind, attempts + 1),
                // The ToR is not reached, and collection cannot wait (RackBlox §3.5.1).
                Code::Regular => self.collect(now, kind, Grant::Unanswered),
                _ => self.state = State::Resting,
            },
            State::Collecting { kind, renew_at } if now >= renew_at => {
                if self.config.coordination != Coordination::None {
                    // A renewal must not be refused: the collection is under way.
                    let renewal = if kind == Code::Background {
                        kind
                    } else {
                        Code::Regular
                    };
                    self.push(Action::Tell(renewal));
                }
                self.state = State::Collecting {
                    kind,
                    renew_at: now + self.config.renew_every,
                };
            }
            _ => {}
        }
    }

    /// The next action.
    pub fn poll(&mut self) -> Option<Action> {
        self.actions.pop_front()
    }

    /// True while an answer of the ToR is awaited.
    pub fn is_asking(&self) -> bool {
        matches!(self.state, State::Asked { .. })
    }

    /// True while collecting.
    pub fn is_collecting(&self) -> bool {
        matches!(self.state, State::Collecting { .. })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn agent(coordination: Coordination) -> Agent {
        Agent::new(Config {
            coordination,
            soft_ratio: 0.35,
            hard_ratio: 0.25,
            background_ratio: 0.55,
            restore_ratio: 0.4,
            ..Config::for_spare(0.5)
        })
    }

    fn actions(agent: &mut Agent) -> Vec<Action> {
        core::iter::from_fn(|| agent.poll()).collect()
    }

    #[test]
    fn below_the_soft_threshold_the_tor_is_asked_and_a_delay_is_respected() {
        let mut agent = agent(Coordination::Rack);
        agent.check(at(100), 0.30, true);
        assert_eq!(actions(&mut agent), [Action::Tell(Code::SoftOrOk)]);
        agent.answered(at(101), Code::Delay);
        assert!(!agent.is_collecting());
        agent.check(at(110), 0.30, true);
        assert_eq!(actions(&mut agent), [Action::Tell(Code::SoftOrOk)]);
        agent.answered(at(111), Code::Accept);
        let start = Action::Start(Collection::Soft, Grant::Accepted);
        assert_eq!(actions(&mut agent), [start]);
        agent.finished(at(120));
        assert_eq!(actions(&mut agent), [Action::Tell(Code::Finish)]);
    }

    #[test]
    fn below_the_hard_threshold_three_silent_requests_end_in_collection() {
        let mut agent = agent(Coordination::Rack);
        agent.check(at(100), 0.20, true);
        let mut told = actions(&mut agent).len();
        for ms in (105..=115).step_by(5) {
            agent.tick(at(ms));
            let step = actions(&mut agent);
            told += step
                .iter()
                .filter(|action| matches!(action, Action::Tell(Code::Regular)))
                .count();
            let start = Action::Start(Collection::Regular, Grant::Unanswered);
            assert_eq!(step.contains(&start), ms == 115);
        }
        assert_eq!(told, 3);
    }

    #[test]
    fn an_unanswered_soft_request_is_dropped() {
        let mut agent = agent(Coordination::Rack);
        agent.check(at(100), 0.30, true);
        actions(&mut agent);
        agent.tick(at(105));
        assert!(actions(&mut agent).is_empty() && !agent.is_collecting());
    }

    #[test]
    fn idle_time_is_used_without_approval_and_busy_time_is_not() {
        let mut agent = agent(Coordination::Rack);
        for ms in 0..100 {
            agent.note_request(at(ms));
        }
        agent.check(at(100), 0.50, true);
        assert!(actions(&mut agent).is_empty());
        agent.note_request(at(300));
        agent.check(at(301), 0.50, true);
        assert_eq!(
            actions(&mut agent),
            [
                Action::Tell(Code::Background),
                Action::Start(Collection::Background, Grant::Unasked)
            ]
        );
    }

    #[test]
    fn a_collecting_server_renews_its_bit() {
        let mut agent = agent(Coordination::Rack);
        agent.forced(at(0));
        let start = Action::Start(Collection::Regular, Grant::Forced);
        assert_eq!(actions(&mut agent), [Action::Tell(Code::Regular), start]);
        let renew_at = agent.deadline().unwrap();
        assert!(renew_at.nanos_since(at(0)) < TOR_LEASE.as_nanos() as u64 / 2);
        agent.tick(renew_at);
        assert_eq!(actions(&mut agent), [Action::Tell(Code::Regular)]);
    }

    #[test]
    fn without_coordination_nobody_is_told() {
        let mut agent = agent(Coordination::None);
        agent.check(at(100), 0.30, true);
        assert!(actions(&mut agent).is_empty());
        agent.check(at(200), 0.20, true);
        assert_eq!(
            actions(&mut agent),
            [Action::Start(Collection::Regular, Grant::Unasked)]
        );
        agent.finished(at(300));
        assert!(actions(&mut agent).is_empty());
    }
}
