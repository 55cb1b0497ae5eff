//! `switchyard run --tcp`: TCP sockets of the program, served in the program by a stack of its own (`sockets`) over a virtual NIC of a hub.
//!
//! A served socket has a number of the kernel's, which refers to a socket of the kernel's that is not connected: what is not served fails there. A socket is
//! served from the call on that says so: when it connects to an address of the hub's network, or listens at the program's address there. One that listens at
//! all addresses is the kernel's, too. Each function answers `None` if the kernel is to make the call.
//!
//! | module | what |
//! | --- | --- |
//! | `settings` | what `switchyard run` says |
//! | `known` | which descriptors are served |
//! | `address` | addresses as programs have them |
//! | `file`, `files`, `set` | a socket, all of them, and a set of epoll(7) |
//! | `stack` | all of them, and the stack, under one lock |
//! | `beds`, `rest`, `keeper` | how threads wait, and the thread that carries frames while the program computes |
//! | `open`, `data`, `options`, `poll`, `epoll` | calls |
//! | `bridge`, `pipe`, `names` | sockets that the kernel has to have |
//! | `forked`, `inherit` | forks of the program, and what a child does with its parent's sockets |
//! | `exported` | functions of the C library that nothing else here stands in for |

mod address;
mod beds;
mod bridge;
pub(crate) mod data;
pub(crate) mod epoll;
mod exported;
mod file;
mod files;
mod forked;
mod inherit;
mod keeper;
mod known;
mod names;
pub(crate) mod open;
pub(crate) mod options;
mod pipe;
pub(crate) mod poll;
mod rest;
mod set;
mod settings;
mod stack;

use os::sync;

pub(crate) use inherit::{before_program, leave};
pub(crate) use rest::until;
pub(crate) use settings::is_run;
