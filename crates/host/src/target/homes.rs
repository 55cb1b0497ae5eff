//! Which core of a target each connection lives on, and when it is to live on another: application steering
//! ([`blockswitch::Balancer`]) for all cores together.
//!
//! The cores of a runtime share one `Homes` behind a lock. A core takes the lock when a connection comes, goes or moves.
//! A core that has work also tries the lock once in every balance interval, and does not wait for it. No core takes the
//! lock between a request and its answer.
//!
//! Invariants:
//! - A core never has more connections than it has room for, those included that are on their way to it.
//! - Nothing is sent on its way to a core that has closed: a stopping core closes first, and then takes in what is there.

use super::Config;
use base::{Duration, Instant, Slab};
use blockswitch::{AppId, AppView, Balancer, Class, CoreSet, Loads, Move};
use std::sync::Arc;

/// A connection and what it has done.
#[derive(Clone, Copy, Debug)]
pub struct Report {
    /// Which.
    pub app: AppId,
    /// From its classifier.
    pub class: Class,
    /// As in [`AppView::work`].
    pub work: u64,
}

/// A connection is to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Relocation {
    /// Which.
    pub app: AppId,
    /// The core where it is.
    pub from: usize,
    /// The core where it is to be.
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

/// Homes of all connections of a target.
#[derive(Debug)]
pub struct Homes {
    loads: Arc<Loads>,
    balancer: Balancer,
    /// By the number of the application.
    homes: Slab<Home>,
    places: Vec<Place>,
    views: Vec<AppView>,
    moves: Vec<Move>,
    /// The core of the next client that comes.
    next_place: usize,
    connections_max: usize,
    interval: Duration,
    /// A connection that could not move is left alone for so long.
    hold: Duration,
}

impl Homes {
    /// Of `cores` cores with `config.connections_max` connections each.
    pub fn new(config: &Config, cores: usize) -> Self {
        let apps = (cores * config.connections_max) as u32;
        Self {
            loads: Arc::new(Loads::new(cores, &config.switch)),
            balancer: Balancer::new(&config.switch, cores, apps),
            homes: Slab::with_capacity(apps as usize),
            places: vec![Place::default(); cores],
            views: Vec::with_capacity(apps as usize),
            moves: Vec::with_capacity(apps as usize),
            next_place: 0,
            connections_max: config.connections_max,
            interval: config.switch.balance_interval,
            hold: config.switch.idle_reset,
        }
    }

    /// What the cores share, for [`super::Dispatcher::new`].
    pub fn loads(&self) -> Arc<Loads> {
        Arc::clone(&self.loads)
    }

    /// The core of a client that has just come: the cores with room take turns.
    pub fn next_place(&mut self) -> usize {
        let count = self.places.len();
        let mut turns = (0..count).map(|turn| (self.next_place + turn) % count);
        let has_room = |&place: &usize| self.places[place].connections < self.connections_max;
        let place = turns.find(has_room).unwrap_or(self.next_place);
        self.next_place = (place + 1) % count;
        place
    }

    /// How often [`Homes::balance`] is to be called; `None` if never.
    pub fn interval(&self) -> Option<Duration> {
        let steers = self.places.len() > 1 && self.balancer.deadline().is_some();
        steers.then_some(self.interval)
    }

    /// A connection comes to a core, if that has room.
    pub fn join(&mut self, core: usize) -> Option<AppId> {
        if self.places[core].connections == self.connections_max {
            return None;
        }
        self.places[core].connections += 1;
        Some(AppId(self.homes.insert(Home {
            core,
            to: None,
            held_until: None,
            report: None,
        })))
    }

    /// A connection of a core has ended.
    pub fn leave(&mut self, core: usize, app: AppId) {
        self.places[core].connections -= 1;
        self.homes.remove(app.0);
        self.balancer.forget(app);
    }

    /// Takes what a core says of its connections, and adds to `orders` which are to move, on whatever core.
    pub fn balance(
        &mut self,
        now: Instant,
        reports: impl Iterator<Item = Report>,
        orders: &mut Vec<Relocation>,
    ) {
        for report in reports {
            if let Some(home) = self.homes.get_mut(report.app.0) {
                home.report = Some(report);
            }
        }
        if self.balancer.deadline().is_none_or(|at| now < at) {
            return;
        }
        self.views.clear();
        let views = self.homes.iter_mut().filter_map(|(_, home)| {
            home.held_until = home.held_until.filter(|&until| now < until);
            home.view()
        });
        self.views.extend(views);
        self.balancer.tick(now, &self.loads, &self.views, &mut self.moves);
        for Move { app, to } in self.moves.drain(..) {
            let home = &mut self.homes[app.0];
            if to != home.core && home.to.is_none() && home.held_until.is_none() {
                home.to = Some(to);
                let from = home.core;
                orders.push(Relocation { app, from, to });
            }
        }
    }

    /// A connection is to move for another reason; false if it is on its way already, or there is no such core.
    pub fn send_away(&mut self, app: AppId, to: usize) -> bool {
        let exists = to < self.places.len();
        let home = self.homes.get_mut(app.0);
        match home.filter(|home| exists && home.to.is_none() && home.core != to) {
            Some(home) => {
                home.to = Some(to);
                true
            }
            None => false,
        }
    }

    /// A connection stays where it is.
    pub fn stay(&mut self, now: Instant, app: AppId) {
        let home = &mut self.homes[app.0];
        (home.to, home.held_until) = (None, Some(now + self.hold));
    }

    /// Lets `send` send a connection from one core to another, if that takes it; true if it was sent.
    pub fn depart(&mut self, from: usize, to: usize, send: impl FnOnce() -> bool) -> bool {
        let place = &self.places[to];
        if place.is_closed || place.connections == self.connections_max || !send() {
            return false;
        }
        self.places[to].connections += 1;
        self.places[from].connections -= 1;
        true
    }

    /// A connection has arrived.
    pub fn arrive(&mut self, core: usize, app: AppId) {
        let home = &mut self.homes[app.0];
        (home.core, home.to) = (core, None);
    }

    /// A core takes nobody any more.
    pub fn close(&mut self, core: usize) {
        self.places[core].is_closed = true;
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
