//! Faults strike a run: what each does, and whom it endangers.

use super::{Fleet, Role, Run, TOKEN_CALM_AGAIN, TOKEN_RESUME, TOKEN_SPEED, TOKEN_START};
use crate::check::Loss;
use crate::check::memory::Lost;
use crate::fault::{FOR_EVER, Fault};
use crate::media::SimMedium;
use crate::net::NetFaults;
use crate::reached::Situation;
use crate::world::World;
use base::limits::SECTORS_PER_PAGE;
use base::{Duration, Instant, Machine, VssdId};
use host::{Input, Output};

impl<F: Fleet> Run<F> {
    pub(super) fn strike(&mut self, fault: Fault) {
        let now = self.world.now().as_nanos();
        match fault {
            Fault::Crash { host, down_ns } => _ = self.crash(host, down_ns),
            Fault::Gone { host } => {
                if self.world.is_up(host) {
                    self.go_down(host);
                    self.judge_losses();
                }
            }
            Fault::Blank { host, down_ns } => {
                if self.lose_medium(host, down_ns) {
                    medium(&mut self.world, host).wipe();
                }
            }
            Fault::Rollback { host, down_ns } => {
                if self.lose_medium(host, down_ns) {
                    medium(&mut self.world, host).put_image_back();
                }
            }
            Fault::Image { host } => medium(&mut self.world, host).keep_image(),
            Fault::PowerLoss { down_ns } => {
                for host in 0..self.sites.len() {
                    if self.world.is_up(host) {
                        let delay = self.rng.below(down_ns + 1);
                        self.take_down(host, now + down_ns + delay);
                    }
                }
                self.world.drop_packets();
                self.judge_losses();
            }
            Fault::Partition {
                host,
                for_ns,
                inbound,
                outbound,
            } => {
                let until = self.trouble_until(for_ns);
                self.world.net().partition(host, until, inbound, outbound);
            }
            Fault::Cut { pair: [a, b], for_ns } => {
                let until = self.trouble_until(for_ns);
                self.world.cut(a, b, until);
                self.world.cut(b, a, until);
            }
            Fault::CutOneWay { pair: [a, b], for_ns } => {
                let until = self.trouble_until(for_ns);
                self.world.cut(a, b, until);
            }
            Fault::ClockRate { host, ppm } => self.world.set_rate(host, ppm),
            Fault::FullQueues { packets } => self.world.bound_queues(packets),
            Fault::Burst { loss, for_ns } => {
                let until = self.trouble_until(for_ns);
                let usual = self.spec.net_faults;
                self.world.net().set_faults(NetFaults { loss, ..usual });
                self.burst_until = self.burst_until.max(until);
                self.world.wake_at(until, TOKEN_CALM_AGAIN);
            }
            Fault::Corrupt { .. }
            | Fault::CorruptMetadata { .. }
            | Fault::Hang { .. }
            | Fault::Slow { .. }
            | Fault::FailWrite { .. }
            | Fault::FailFlush { .. } => self.strike_medium(fault),
        }
    }

    /// A trouble that begins now is over then.
    fn trouble_until(&mut self, for_ns: u64) -> Instant {
        let until = self.world.now() + Duration::from_nanos(for_ns);
        self.calm_since = self.calm_since.max(until);
        until
    }

    /// A host goes down; false if it was down.
    fn crash(&mut self, host: usize, down_ns: u64) -> bool {
        let is_up = self.world.is_up(host);
        if is_up {
            self.take_down(host, self.world.now().as_nanos() + down_ns);
            self.judge_losses();
        }
        is_up
    }

    /// A host goes down, and will have another medium; false if it was down.
    fn lose_medium(&mut self, host: usize, down_ns: u64) -> bool {
        if !self.world.is_up(host) {
            return false;
        }
        // What others copy from it is not what it had.
        self.memories.damaged(host);
        self.reached.note(Situation::OtherMedium);
        self.crash(host, down_ns)
    }

    fn strike_medium(&mut self, fault: Fault) {
        match fault {
            Fault::Corrupt { host } => {
                let range = self.fleet.corruptible(host);
                if self.world.corrupt(host, range) {
                    self.memories.damaged(host);
                }
            }
            Fault::CorruptMetadata { host, part } => {
                let range = self.fleet.metadata(host, part);
                if self.world.corrupt(host, range) {
                    self.memories.damaged(host);
                }
            }
            Fault::Hang { host, for_ns } => {
                if fault.fails_medium(self.spec.world.media.limit) {
                    self.memories.damaged(host);
                }
                if let Some(medium) = self.world.medium(host) {
                    medium.faults().hang();
                    if for_ns != FOR_EVER {
                        let at = self.world.now() + Duration::from_nanos(for_ns);
                        self.world.wake_at(at, TOKEN_RESUME | host as u64);
                    }
                }
            }
            Fault::Slow { host, factor, for_ns } => {
                let until = self.trouble_until(for_ns);
                if let Some(medium) = self.world.medium(host) {
                    medium.slow_down(factor);
                    self.world.wake_at(until, TOKEN_SPEED | host as u64);
                }
            }
            Fault::FailWrite { host } => {
                self.memories.damaged(host);
                if let Some(medium) = self.world.medium(host) {
                    medium.faults().fail_writes(1);
                }
            }
            Fault::FailFlush { host } => {
                self.memories.damaged(host);
                if let Some(medium) = self.world.medium(host) {
                    medium.faults().fail_flushes(1);
                }
            }
            _ => unreachable!("it is none of a medium"),
        }
    }

    fn take_down(&mut self, host: usize, until_ns: u64) {
        self.go_down(host);
        self.troubles += 1;
        self.world
            .wake_at(Instant::from_nanos(until_ns), TOKEN_START | host as u64);
    }

    fn go_down(&mut self, host: usize) {
        self.note_crash(host);
        self.world.crash(host);
        match self.sites[host].1 {
            Role::Gateway => {
                self.clients.gateway_lost(host);
                let now = self.world.now();
                for load in self.clients.reroute(host) {
                    self.world.wake_at(now, super::TOKEN_LOAD | load as u64);
                }
            }
            Role::Server => self.clients.gateway_lost(host),
            Role::Tor | Role::Node => {}
        }
        self.memories.crashed(host);
        self.gc.crashed(host);
        self.told.crashed(host);
    }

    /// A member of a set says that it serves.
    pub(super) fn serves(&mut self, host: usize, vssd: VssdId) {
        let sets = self.fleet.sets();
        self.note_serving(host, vssd, &sets);
        if let Some(lost) = self.memories.serves(host, vssd, &sets) {
            self.reached.note(Situation::MemoryGivenUp);
            self.tell_losses(&[lost]);
        }
    }

    /// Tells the checkers which blocks have no replica left that kept its memory.
    fn judge_losses(&mut self) {
        let world = &self.world;
        let lost = self.memories.judge(&self.fleet.sets(), |host| world.is_up(host));
        self.reached.note_if(!lost.is_empty(), Situation::MemoryLost);
        self.tell_losses(&lost);
    }

    fn tell_losses(&mut self, lost: &[Lost]) {
        let now = self.world.now();
        for volume in 0..self.spec.volumes.len() {
            let mine: Vec<&Lost> = lost.iter().filter(|lost| lost.0 == volume).collect();
            if mine.is_empty() || !self.spec.volumes[volume].durability {
                continue;
            }
            if let Some(checker) = self.clients.checker(volume) {
                checker.power_loss(now, |block| {
                    let page = block / SECTORS_PER_PAGE as u64;
                    let here = mine.iter().find(|(_, pages, _)| pages.contains(&page));
                    here.map_or(Loss::None, |(_, _, loss)| *loss)
                });
            }
        }
    }
}

fn medium<H: Machine<Input = Input, Output = Output>>(world: &mut World<H>, host: usize) -> &mut SimMedium {
    world.medium(host).expect("a node has a medium")
}
