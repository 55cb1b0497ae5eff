//! Collection of a channel group (RackBlox §3.5.2): all its vSSDs collect at the same time, since one that collects
//! delays the others on its channels anyway.
//!
//! The ToR knows nothing of groups. The server sends a packet for each member, and one member's delay delays all. One
//! [`Agent`] decides for the group, as if it were one vSSD; this wraps it.
//!
//! Soft requests go out one after the other, in an order that is the same on all servers (`order`, say the lowest
//! vSSD of the replica set): were they sent at once, two servers with replicas of each other's members could be
//! accepted for one each, refused for the other, and so on for ever.

use crate::gc::{Action, Agent, Config};
use base::event::{Collection, Grant};
use base::{Instant, VssdId};
use std::collections::VecDeque;
use wire::rack::Code;

#[derive(Clone, Copy, Debug)]
struct Member {
    order: u32,
    vssd: VssdId,
    /// Its bit at the ToR is, or may be, set.
    bit: bool,
    answered: bool,
    collecting: bool,
}

/// The pending question to the ToR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asking {
    Nothing,
    /// Members up to this one have been asked whether it suits.
    Soft {
        index: usize,
    },
    /// All have been told that it must be.
    All,
}

/// Decides when the vSSDs of one channel group collect.
#[derive(Debug)]
pub struct GroupAgent {
    agent: Agent,
    members: Vec<Member>,
    asking: Asking,
    actions: VecDeque<(VssdId, Action)>,
}

impl GroupAgent {
    /// A resting agent without members.
    pub fn new(config: Config) -> Self {
        Self {
            agent: Agent::new(config),
            members: Vec::new(),
            asking: Asking::Nothing,
            actions: VecDeque::new(),
        }
    }

    /// The configuration.
    pub fn config(&self) -> &Config {
        self.agent.config()
    }

    /// A vSSD joins; `order` is the same on every server for the vSSDs of one replica set.
    pub fn join(&mut self, vssd: VssdId, order: u32) {
        self.members.push(Member {
            order,
            vssd,
            bit: false,
            answered: false,
            collecting: false,
        });
        self.members.sort_by_key(|member| (member.order, member.vssd.0));
        self.withdraw();
    }

    /// A vSSD is gone.
    pub fn leave(&mut self, now: Instant, vssd: VssdId) {
        self.finished(now, vssd);
        self.members.retain(|member| member.vssd != vssd);
        self.withdraw();
    }

    /// A client's request to one of the members arrived.
    pub fn note_request(&mut self, now: Instant) {
        self.agent.note_request(now);
    }

    /// Free blocks changed, or time passed; `free_ratio` is that of the whole group.
    pub fn check(&mut self, now: Instant, free_ratio: f64, written: bool) {
        if self.members.is_empty() {
            return;
        }
        self.agent.check(now, free_ratio, written);
        self.relay();
    }

    /// The ToR answered a member's request.
    pub fn answered(&mut self, now: Instant, vssd: VssdId, code: Code) {
        let Some(index) = self.members.iter().position(|member| member.vssd == vssd) else {
            return;
        };
        match (self.asking, code) {
            (Asking::Soft { index: asked }, Code::Accept) if asked == index => {
                if index + 1 < self.members.len() {
                    self.asking = Asking::Soft { index: index + 1 };
                    self.tell(index + 1, Code::SoftOrOk);
                } else {
                    self.asking = Asking::Nothing;
                    self.agent.answered(now, Code::Accept);
                }
            }
            (Asking::Soft { index: asked }, Code::Delay) if asked == index => {
                // The ToR cleared the bit of this one; the others' must not stay.
                self.members[index].bit = false;
                self.withdraw();
                self.agent.answered(now, Code::Delay);
            }
            (Asking::All, Code::Accept) => {
                self.members[index].answered = true;
                if self.members.iter().all(|member| member.answered) {
                    self.asking = Asking::Nothing;
                    self.agent.answered(now, Code::Accept);
                }
            }
            _ => {}
        }
        self.relay();
    }

    /// A member began to collect by itself because it has no free block left: all of them do.
    pub fn forced(&mut self, now: Instant, vssd: VssdId) {
        if !self.agent.is_collecting() {
            self.agent.forced(now);
            return self.relay();
        }
        let again = |member: &&mut Member| member.vssd == vssd && !member.collecting;
        if let Some(member) = self.members.iter_mut().find(again) {
            member.collecting = true;
            let start = Action::Start(Collection::Regular, Grant::Forced);
            self.actions.push_back((vssd, start));
        }
    }

    /// A member is done. Its reads stay away until all are.
    pub fn finished(&mut self, now: Instant, vssd: VssdId) {
        for member in self.members.iter_mut().filter(|member| member.vssd == vssd) {
            member.collecting = false;
        }
        if self.agent.is_collecting() && self.members.iter().all(|member| !member.collecting) {
            self.agent.finished(now);
            self.relay();
        }
    }

    /// When to [`tick`](GroupAgent::tick).
    pub fn deadline(&self) -> Option<Instant> {
        self.agent.deadline()
    }

    /// The next time a check makes sense.
    pub fn check_deadline(&self) -> Option<Instant> {
        self.agent.check_deadline()
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Instant) {
        self.agent.tick(now);
        if !self.agent.is_asking() && !self.agent.is_collecting() {
            // The answer to a soft request did not come.
            self.withdraw();
        }
        self.relay();
    }

    /// The next action, and the member that it concerns.
    pub fn poll(&mut self) -> Option<(VssdId, Action)> {
        self.actions.pop_front()
    }

    /// True while the group collects.
    pub fn is_collecting(&self) -> bool {
        self.agent.is_collecting()
    }

    fn tell(&mut self, index: usize, code: Code) {
        let member = &mut self.members[index];
        member.bit = code != Code::Finish;
        self.actions.push_back((member.vssd, Action::Tell(code)));
    }

    fn tell_all(&mut self, code: Code) {
        for index in 0..self.members.len() {
            if code != Code::Finish || self.members[index].bit {
                self.tell(index, code);
            }
        }
    }

    /// The request is obsolete: bits that were set for it are cleared.
    fn withdraw(&mut self) {
        if matches!(self.asking, Asking::Soft { .. }) {
            self.tell_all(Code::Finish);
        }
        self.asking = Asking::Nothing;
    }

    /// Translates what the agent wants of its one vSSD.
    fn relay(&mut self) {
        while let Some(action) = self.agent.poll() {
            match action {
                Action::Tell(Code::SoftOrOk) => {
                    self.asking = Asking::Soft { index: 0 };
                    self.tell(0, Code::SoftOrOk);
                }
                Action::Tell(Code::Finish) => {
                    self.asking = Asking::Nothing;
                    self.tell_all(Code::Finish);
                }
                Action::Tell(code) => {
                    if self.agent.is_asking() {
                        self.asking = Asking::All;
                        for member in &mut self.members {
                            member.answered = false;
                        }
                    }
                    self.tell_all(code);
                }
                Action::Start(..) => {
                    self.asking = Asking::Nothing;
                    for member in &mut self.members {
                        member.collecting = true;
                        self.actions.push_back((member.vssd, action));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: VssdId = VssdId(1);
    const B: VssdId = VssdId(3);

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn group() -> GroupAgent {
        let mut group = GroupAgent::new(Config {
            soft_ratio: 0.35,
            hard_ratio: 0.25,
            background_ratio: 0.55,
            restore_ratio: 0.4,
            ..Config::for_spare(0.5)
        });
        group.join(B, 3);
        group.join(A, 1);
        group
    }

    fn actions(group: &mut GroupAgent) -> Vec<(VssdId, Action)> {
        core::iter::from_fn(|| group.poll()).collect()
    }

    const SOFT: Action = Action::Tell(Code::SoftOrOk);
    const FINISH: Action = Action::Tell(Code::Finish);
    const REGULAR: Action = Action::Tell(Code::Regular);

    #[test]
    fn all_members_are_asked_for_in_order_and_start_together() {
        let mut group = group();
        group.check(at(100), 0.30, true);
        assert_eq!(actions(&mut group), [(A, SOFT)]);
        group.answered(at(101), A, Code::Accept);
        assert_eq!(actions(&mut group), [(B, SOFT)]);
        group.answered(at(102), B, Code::Accept);
        let start = Action::Start(Collection::Soft, Grant::Accepted);
        assert_eq!(actions(&mut group), [(A, start), (B, start)]);
        group.finished(at(110), B);
        assert_eq!(actions(&mut group), [], "its reads stay away until all are done");
        group.finished(at(120), A);
        assert_eq!(actions(&mut group), [(A, FINISH), (B, FINISH)]);
        assert!(!group.is_collecting());
    }

    #[test]
    fn the_delay_of_one_member_delays_all_and_leaves_no_bit() {
        let mut group = group();
        group.check(at(100), 0.30, true);
        group.answered(at(101), A, Code::Accept);
        actions(&mut group);
        group.answered(at(102), B, Code::Delay);
        assert_eq!(actions(&mut group), [(A, FINISH)]);
        assert!(!group.is_collecting());
        group.check(at(110), 0.30, true);
        assert_eq!(actions(&mut group), [(A, SOFT)]);
    }

    #[test]
    fn a_soft_request_without_answer_is_withdrawn() {
        let mut group = group();
        group.check(at(100), 0.30, true);
        group.answered(at(101), A, Code::Accept);
        actions(&mut group);
        group.tick(at(105));
        assert_eq!(actions(&mut group), [(A, FINISH), (B, FINISH)]);
        group.answered(at(106), B, Code::Accept);
        assert_eq!(actions(&mut group), [], "too late");
    }

    #[test]
    fn below_the_hard_threshold_all_are_told_and_silence_does_not_stop_them() {
        let mut group = group();
        group.check(at(100), 0.20, true);
        assert_eq!(actions(&mut group), [(A, REGULAR), (B, REGULAR)]);
        group.answered(at(101), B, Code::Accept);
        group.tick(at(105));
        group.tick(at(110));
        actions(&mut group);
        group.tick(at(115));
        let start = Action::Start(Collection::Regular, Grant::Unanswered);
        assert_eq!(actions(&mut group), [(A, start), (B, start)]);
    }

    #[test]
    fn a_member_without_free_blocks_makes_all_collect() {
        let mut group = group();
        group.forced(at(0), B);
        let start = Action::Start(Collection::Regular, Grant::Forced);
        let expected = [(A, REGULAR), (B, REGULAR), (A, start), (B, start)];
        assert_eq!(actions(&mut group), expected);
        group.finished(at(5), B);
        group.forced(at(6), B);
        assert_eq!(actions(&mut group), [(B, start)], "it has to go on");
        group.finished(at(7), A);
        assert!(group.is_collecting());
        let renew_at = group.deadline().unwrap();
        group.tick(renew_at);
        assert_eq!(actions(&mut group), [(A, REGULAR), (B, REGULAR)]);
        group.leave(at(50), B);
        assert!(!group.is_collecting());
    }

    /// Two servers with replicas of each other's members, all orders of the messages: never do both collect by soft
    /// requests, and never do both give up.
    #[test]
    fn of_two_groups_that_ask_at_once_exactly_one_collects() {
        use crate::tor::{Registration, Tor};
        use base::{Addr, Duration};
        use wire::rack::{Header, Op};
        for order in 0..1u32 << 12 {
            let mut tor = Tor::new(Duration::from_millis(200));
            let addr = |server: u8| Addr::new([10, 0, 0, server], 1);
            for (vssd, peer, server) in [(1, 2, 1), (2, 1, 2), (3, 4, 1), (4, 3, 2)] {
                let replicas = [Some((VssdId(peer), addr(3 - server))), None];
                let (vssd, server) = (VssdId(vssd), addr(server));
                tor.register(
                    at(0),
                    &Registration {
                        vssd,
                        server,
                        replicas,
                    },
                );
            }
            let mut groups: Vec<GroupAgent> = [[1, 3], [4, 2]]
                .map(|vssds| {
                    let mut group = GroupAgent::new(*group().config());
                    for vssd in vssds {
                        group.join(VssdId(vssd), (vssd - 1) / 2);
                    }
                    group.check(at(1000), 0.30, true);
                    group
                })
                .into();
            let mut sent = [0; 2];
            for step in 0..12 {
                let who = (order >> step & 1) as usize;
                let Some((vssd, Action::Tell(code))) = groups[who].poll() else {
                    continue;
                };
                sent[who] += 1;
                let mut header = Header {
                    code,
                    request: sent[who],
                    ..Header::new(Op::GcOp, vssd)
                };
                tor.process(at(1001), &mut header, &[]);
                groups[who].answered(at(1001), vssd, header.code);
            }
            let collecting = groups.iter().filter(|group| group.is_collecting()).count();
            let both_had_turns = order.count_ones() >= 4 && order.count_ones() <= 8;
            assert!(collecting < 2, "order {order:b}");
            assert!(collecting == 1 || !both_had_turns, "order {order:b}");
        }
    }
}
