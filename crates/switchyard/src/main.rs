//! `switchyard`: a software-defined rack of flash, in one command.
//!
//! | command | what it does |
//! | --- | --- |
//! | `up` | a whole rack in this process |
//! | `serve` | volumes of this machine on memory, files or block devices |
//! | `node`, `tor`, `gateway` | one part of a rack that spans machines |
//! | `node list`, `add`, `drain`, `remove`, … | nodes of a running rack |
//! | `volume` | create, list, show, resize, delete volumes of a running rack |
//! | `registry` | show, back up, restore a rack's records |
//! | `status`, `top` | look at a running rack |
//! | `bench` | load against a rack, any NBD server, a file or a device |
//! | `sim` | experiments and the swarm of the deterministic simulator |
//! | `profile` | where the time of an I/O goes |
//! | `verify` | check media offline |
//! | `store` | check, list, repair storage areas |
//! | `areas` | serve storage areas to many programs |
//! | `tcp` | connect programs by virtual NICs in shared memory |
//! | `kv` | a key-value store that speaks RESP |
//! | `run`, `export` | programs whose files are durable by a storage area |
//!
//! This is an edge: clocks, threads, files and sockets are allowed here. The data path is in `runtime` and in the
//! pure crates; nothing in here is on it.
#![forbid(unsafe_code)]
// The ban list protects the pure crates; this one is the edge where time and threads come from.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

// First, as its macros are in force from here on.
#[macro_use]
mod out;

mod areas;
mod bench;
mod cli;
mod config;
mod control;
mod datadir;
mod emulated;
mod events;
mod failure;
mod followed;
mod foreign;
mod fs;
mod identity;
mod inventory;
mod kv;
mod launch;
mod machine;
mod metrics;
mod network;
mod nodes;
mod operator;
mod profile;
mod records;
mod registry;
mod report;
mod role;
mod run;
mod run_fs;
mod run_tcp;
mod serve;
mod sim;
mod size;
mod status;
mod store;
mod target;
mod tcp;
mod top;
mod verify;
mod volume;

use std::process::ExitCode;

fn main() -> ExitCode {
    let code = match cli::run() {
        Ok(()) => None,
        Err(error) => {
            eprintln!("switchyard: {}", failure::told(&error));
            Some(failure::code_of(&error))
        }
    };
    events::end();
    let printed = out::end();
    match code.or((!printed).then_some(failure::FAILED)) {
        None => ExitCode::SUCCESS,
        Some(code) => ExitCode::from(code),
    }
}
