//! Sessions and packets as their other ends see them.

mod golden;
mod nbd;
mod nvme;
mod nvme_control;
mod nvme_reservations;
mod nvme_support;
mod park;
mod support;
