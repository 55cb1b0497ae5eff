//! Who may connect, how many, how fast: looked at when a connection is set up, and never again (TAS §3.3).

use crate::addr::Ip;
use crate::api::Refused;
use crate::config::{AppLimits, Rule};
use base::{Duration, Instant};

/// Access control and the limits of applications.
#[derive(Debug)]
pub struct Access {
    rules: Vec<Rule>,
    apps: Vec<App>,
}

#[derive(Clone, Copy, Debug)]
struct App {
    limits: AppLimits,
    flows: u32,
    /// When its openings up to now would have been due at their rate.
    due: Instant,
}

/// A connection to be.
#[derive(Clone, Copy, Debug)]
pub struct Opening {
    /// The application.
    pub app: u16,
    /// The peer.
    pub remote: Ip,
    /// The port that rules look at.
    pub port: u16,
}

impl Access {
    /// The rules, and `apps` applications of the same limits.
    pub fn new(rules: Vec<Rule>, apps: u16, limits: AppLimits) -> Self {
        let app = App {
            limits,
            flows: 0,
            due: Instant::ZERO,
        };
        Self {
            rules,
            apps: vec![app; usize::from(apps)],
        }
    }

    /// Changes the limits of an application.
    pub fn limit(&mut self, app: u16, limits: AppLimits) {
        self.apps[usize::from(app)].limits = limits;
    }

    /// Whether there is such an application.
    pub fn has(&self, app: u16) -> bool {
        usize::from(app) < self.apps.len()
    }

    /// Whether rules allow a connection.
    pub fn is_allowed(&self, opening: &Opening) -> bool {
        let fits = |rule: &&Rule| {
            rule.app.is_none_or(|app| app == opening.app)
                && opening.remote.is_within(rule.net, rule.bits)
                && (rule.ports.0..=rule.ports.1).contains(&opening.port)
        };
        self.rules.iter().find(fits).is_none_or(|rule| rule.is_allowed)
    }

    /// Counts a connection that is set up, if rules and limits allow it.
    pub fn open(&mut self, now: Instant, opening: &Opening) -> Result<(), Refused> {
        if !self.is_allowed(opening) {
            return Err(Refused::Denied);
        }
        let app = &mut self.apps[usize::from(opening.app)];
        if app.flows >= app.limits.flows_max {
            return Err(Refused::Limit);
        }
        if app.limits.opens_per_second > 0 {
            // A bucket of one second's openings: what lies more than a second ahead has to wait.
            let gap = Duration::from_secs(1) / app.limits.opens_per_second;
            let due = app.due.max(now) + gap;
            if due > now + Duration::from_secs(1) {
                return Err(Refused::Limit);
            }
            app.due = due;
        }
        app.flows += 1;
        Ok(())
    }

    /// Counts a connection without asking: it has come from another stack.
    pub fn take_in(&mut self, app: u16) {
        self.apps[usize::from(app)].flows += 1;
    }

    /// A connection is gone.
    pub fn close(&mut self, app: u16) {
        self.apps[usize::from(app)].flows -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: AppLimits = AppLimits {
        flows_max: 1000,
        opens_per_second: 10,
    };

    #[test]
    fn the_first_rule_that_fits_decides() {
        let rule = |bits, is_allowed| Rule {
            app: Some(1),
            net: Ip::v4([10, 0, 0, 0]),
            bits,
            ports: (80, 90),
            is_allowed,
        };
        let access = Access::new(vec![rule(16, true), rule(8, false)], 2, LIMITS);
        let opening = |app, octets, port| Opening {
            app,
            remote: Ip::v4(octets),
            port,
        };
        assert!(access.is_allowed(&opening(1, [10, 0, 1, 1], 80)));
        assert!(!access.is_allowed(&opening(1, [10, 1, 1, 1], 80)));
        assert!(access.is_allowed(&opening(1, [10, 1, 1, 1], 91)));
        assert!(access.is_allowed(&opening(0, [10, 1, 1, 1], 80)));
    }

    #[test]
    fn openings_follow_their_rate() {
        let mut access = Access::new(Vec::new(), 1, LIMITS);
        let opening = Opening {
            app: 0,
            remote: Ip::v4([10, 0, 0, 1]),
            port: 1,
        };
        let mut opened = 0;
        for ms in 0..5000 {
            let now = Instant::from_nanos(ms * 1_000_000);
            opened += u32::from(access.open(now, &opening).is_ok());
        }
        assert!(
            (59..=61).contains(&opened),
            "a second's worth at once, then the rate: {opened}"
        );
    }
}
