//! Which core of a target each connection lives on, and when it is to live on another: application steering
//! ([`blockswitch::Balancer`]) for all cores together.
//!
//! The cores share this behind a lock. It is taken when a connection comes, goes or moves; every balance interval by each
//! core that has work, unless another has it just then; never between a request and its answer. An idle core takes no
//! part and is not woken for it.
//!
//! Invariants:
//! - A core never has more connections than it has room for, those included that are on their way to it.
//! - Nothing is sent on its way to a core that has closed: a stopping core closes first, and then takes in what is there.

use base::{Duration, Instant};
use blockswitch::{AppId, AppView, Balancer, Class, Config, CoreSet, Loads, Move};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A connection and what it has done.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Report {
    pub app: AppId,
    pub class: Class,
    /// As in [`AppView::work`].
    pub work: u64,
}

/// A connection is to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub app: AppId,
    pub from: usize,
    pub to: usize,
}

/// Of a connection.
#[derive(Clone, Copy, Debug)]
struct Home {
    /// Where it is, or was before it set out.
    core: usize,
    /// Where it is to be.
    to: Option<usize>,
    /// It could not move and is not asked again before.
    held_until: Option<Instant>,
    /// None before its first request.
    report: Option<Report>,
}

/// Of a core.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    connections: usize,
    is_closed: bool,
}

#[derive(Debug)]
struct Inner {
    balancer: Balancer,
    /// By the number of the application.
    homes: Vec<Option<Home>>,
    free: Vec<u32>,
    places: Vec<Place>,
    views: Vec<AppView>,
    moves: Vec<Move>,
}

/// Homes of all connections of a target.
#[derive(Debug)]
pub(crate) struct Homes {
    inner: Mutex<Inner>,
    connections_max: usize,
    interval: Duration,
    /// How long a connection that could not move is left alone.
    hold: Duration,
}

impl Homes {
    /// Of `cores` cores with `connections_max` connections each.
    pub fn new(config: &Config, cores: usize, connections_max: usize) -> Self {
        let apps = (cores * connections_max) as u32;
        Self {
            inner: Mutex::new(Inner {
                balancer: Balancer::new(config, cores, apps),
                homes: vec![None; apps as usize],
                free: (0..apps).rev().collect(),
                places: vec![Place::default(); cores],
                views: Vec::new(),
                moves: Vec::new(),
            }),
            connections_max,
            interval: config.balance_interval,
            hold: config.idle_reset,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // A panic of another core in here is a bug that ends the process; until then the others go on.
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How often [`Homes::balance`] is to be called; `None` if never.
    pub fn interval(&self) -> Option<Duration> {
        let inner = self.lock();
        let steers = inner.places.len() > 1 && inner.balancer.deadline().is_some();
        steers.then_some(self.interval)
    }

    /// A connection comes to a core, if that has room.
    pub fn join(&self, core: usize) -> Option<AppId> {
        let mut inner = self.lock();
        if inner.places[core].connections == self.connections_max {
            return None;
        }
        inner.places[core].connections += 1;
        let app = inner.free.pop().expect("as many as all cores have room for");
        inner.homes[app as usize] = Some(Home {
            core,
            to: None,
            held_until: None,
            report: None,
        });
        Some(AppId(app))
    }

    /// A connection of a core has ended.
    pub fn leave(&self, core: usize, app: AppId) {
        let mut inner = self.lock();
        inner.places[core].connections -= 1;
        inner.homes[app.0 as usize] = None;
        inner.balancer.forget(app);
        inner.free.push(app.0);
    }

    /// Takes what a core says of its connections, and adds to `orders` which are to move, on whatever core. False if the
    /// lock is taken: the core does not wait.
    pub fn balance(
        &self,
        now: Instant,
        loads: &Loads,
        reports: impl Iterator<Item = Report>,
        orders: &mut Vec<Order>,
    ) -> bool {
        let Ok(mut inner) = self.inner.try_lock() else {
            return false;
        };
        let inner = &mut *inner;
        for report in reports {
            if let Some(home) = &mut inner.homes[report.app.0 as usize] {
                home.report = Some(report);
            }
        }
        if inner.balancer.deadline().is_none_or(|at| now < at) {
            return true;
        }
        inner.views.clear();
        let views = inner.homes.iter_mut().flatten().filter_map(|home| {
            home.held_until = home.held_until.filter(|&until| now < until);
            home.view()
        });
        inner.views.extend(views);
        inner.balancer.tick(now, loads, &inner.views, &mut inner.moves);
        for Move { app, to } in inner.moves.drain(..) {
            let home = inner.homes[app.0 as usize]
                .as_mut()
                .expect("it was seen just now");
            if to != home.core && home.to.is_none() && home.held_until.is_none() {
                home.to = Some(to);
                let from = home.core;
                orders.push(Order { app, from, to });
            }
        }
        true
    }

    /// A connection is to move for another reason; false if it is on its way already, or there is no such core.
    pub fn send_away(&self, app: AppId, to: usize) -> bool {
        let mut inner = self.lock();
        let exists = to < inner.places.len();
        let home = inner.homes[app.0 as usize].as_mut();
        match home.filter(|home| exists && home.to.is_none() && home.core != to) {
            Some(home) => {
                home.to = Some(to);
                true
            }
            None => false,
        }
    }

    /// A connection stays where it is.
    pub fn stay(&self, now: Instant, app: AppId) {
        let mut inner = self.lock();
        let home = inner.homes[app.0 as usize].as_mut().expect("an open connection");
        (home.to, home.held_until) = (None, Some(now + self.hold));
    }

    /// Lets `send` send a connection from one core to another, if that takes it; true if it was sent.
    pub fn depart(&self, from: usize, to: usize, send: impl FnOnce() -> bool) -> bool {
        let mut inner = self.lock();
        let place = &inner.places[to];
        if place.is_closed || place.connections == self.connections_max || !send() {
            return false;
        }
        inner.places[to].connections += 1;
        inner.places[from].connections -= 1;
        true
    }

    /// A connection has arrived.
    pub fn arrive(&self, core: usize, app: AppId) {
        let mut inner = self.lock();
        let home = inner.homes[app.0 as usize].as_mut().expect("an open connection");
        (home.core, home.to) = (core, None);
    }

    /// A core takes nobody any more.
    pub fn close(&self, core: usize) {
        self.lock().places[core].is_closed = true;
    }
}

impl Home {
    /// As the balancer sees it: at its new home as soon as that is decided. None before its first request.
    fn view(&self) -> Option<AppView> {
        let core = self.to.unwrap_or(self.core);
        self.report.map(|report| AppView {
            app: report.app,
            class: report.class,
            core,
            allowed: match self.held_until {
                Some(_) => CoreSet::one(core),
                None => CoreSet::ALL,
            },
            work: report.work,
        })
    }
}
