//! The decider of a vSSD's collection: its own agent, or its channel group's.

use base::Instant;
use rack::gc::{Action, Agent};
use std::collections::VecDeque;
use wire::rack::Code;

/// News of a member to its group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Report {
    /// A client's request arrived.
    Request,
    /// The ToR answered.
    Answered(Code),
    /// Collection is done.
    Finished,
    /// Collection began by itself.
    Forced,
    /// Writes wait for a block.
    Borrow,
    /// Borrowed blocks are not needed any more.
    Return,
}

/// A vSSD's side of its group.
#[derive(Debug, Default)]
pub struct Member {
    reports: VecDeque<Report>,
    orders: VecDeque<Action>,
    collecting: bool,
}

/// Decides, or knows who does.
#[derive(Debug)]
pub enum Collector {
    /// The vSSD has its channels for itself.
    Alone(Agent),
    /// It shares them.
    Member(Member),
}

impl Collector {
    /// A client's request arrived.
    pub fn note_request(&mut self, now: Instant) {
        match self {
            Self::Alone(agent) => agent.note_request(now),
            Self::Member(member) => member.reports.push_back(Report::Request),
        }
    }

    /// Free blocks changed, or time passed. A group looks by itself.
    pub fn check(&mut self, now: Instant, free_ratio: f64, written: bool) {
        if let Self::Alone(agent) = self {
            agent.check(now, free_ratio, written);
        }
    }

    /// The ToR answered.
    pub fn answered(&mut self, now: Instant, code: Code) {
        match self {
            Self::Alone(agent) => agent.answered(now, code),
            Self::Member(member) => member.reports.push_back(Report::Answered(code)),
        }
    }

    /// Collection started by itself.
    pub fn forced(&mut self, now: Instant) {
        match self {
            Self::Alone(agent) => agent.forced(now),
            Self::Member(member) => member.reports.push_back(Report::Forced),
        }
    }

    /// Collection is done.
    pub fn finished(&mut self, now: Instant) {
        match self {
            Self::Alone(agent) => agent.finished(now),
            Self::Member(member) => member.reports.push_back(Report::Finished),
        }
    }

    /// Blocks are wanted, or to be returned.
    pub fn exchange(&mut self, what: Report) {
        match self {
            Self::Alone(_) => unreachable!("whose channels are its own exchanges no blocks"),
            Self::Member(member) => member.reports.push_back(what),
        }
    }

    /// When to [`tick`](Collector::tick).
    pub fn deadline(&self) -> Option<Instant> {
        match self {
            Self::Alone(agent) => agent.deadline(),
            Self::Member(_) => None,
        }
    }

    /// The next time a check makes sense.
    pub fn check_deadline(&self) -> Option<Instant> {
        match self {
            Self::Alone(agent) => agent.check_deadline(),
            Self::Member(_) => None,
        }
    }

    /// Lets time pass.
    pub fn tick(&mut self, now: Instant) {
        if let Self::Alone(agent) = self {
            agent.tick(now);
        }
    }

    /// The next action.
    pub fn poll(&mut self) -> Option<Action> {
        match self {
            Self::Alone(agent) => agent.poll(),
            Self::Member(member) => member.orders.pop_front(),
        }
    }

    /// True while collecting; of a member, while its group is.
    pub fn is_collecting(&self) -> bool {
        match self {
            Self::Alone(agent) => agent.is_collecting(),
            Self::Member(member) => member.collecting,
        }
    }

    /// News that the group has not heard yet.
    pub fn report(&mut self) -> Option<Report> {
        match self {
            Self::Alone(_) => None,
            Self::Member(member) => member.reports.pop_front(),
        }
    }

    /// The group wants this done.
    pub fn order(&mut self, action: Action) {
        if let Self::Member(member) = self {
            member.orders.push_back(action);
        }
    }

    /// The group begins to collect, or is done.
    pub fn set_collecting(&mut self, collecting: bool) {
        if let Self::Member(member) = self {
            member.collecting = collecting;
        }
    }
}
