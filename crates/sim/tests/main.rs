//! Whole racks, targets and their parts in virtual time: experiments, faults, and checkers.

mod amplification;
mod apps;
mod control;
mod disk;
mod exchange;
mod failover;
mod fakes;
mod files;
mod heal;
mod leases;
mod level;
mod moves;
mod rack;
mod rebuild;
mod scrub;
mod slow;
mod storage;
mod swarm;
mod switch;
mod tors;
