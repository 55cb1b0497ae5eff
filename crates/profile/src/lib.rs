//! The time of an I/O, layer by layer: application, system call, file system, block layer, scheduler, device, completion.
//!
//! | module | its job |
//! | --- | --- |
//! | [`tracefs`] | the kernel's trace buffers: instances, filters, pages |
//! | [`event`] | what the tracepoints tell, decoded |
//! | [`collect`] | events of a program and of devices, in order of time, losses counted |
//! | [`attribute`] | pure: events in, operations with their layers out |
//! | [`calibrate`] | what a probe costs here |
//! | [`stacks`] | kernel stacks at the ticks of a clock |
//! | [`heat`] | pure: latencies over time |
//! | [`owners`], [`devices`] | whose a thread is, what a device is called |
//! | [`session`] | profiles a command or a process |
//! | [`layers`] | pure: histograms by kind of operation, size and layer |
//! | [`summary`] | what a profile says, readable by scripts |
//!
//! Static tracepoints only, which stock kernels have even where they are locked down against probes.

#![warn(missing_docs)]
// This crate is an edge: it reads the kernel's files and its clock.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

pub mod attribute;
pub mod calibrate;
pub mod clock;
pub mod collect;
pub mod devices;
pub mod event;
pub mod heat;
pub mod layers;
pub mod owners;
pub mod session;
pub mod stacks;
pub mod summary;
pub mod tracefs;
