//! A process that may open no more files. Its limit is the whole process's: one test, alone in its binary.

mod common;

use common::nbd::{Client, READ};
use common::{ANY_TCP, MemoryGateway, small, spec};
use runtime::start_core;
use std::fs::File;
use std::io::Read;
use std::net::TcpStream;

const VOLUME_BYTES: usize = 1 << 20;
/// Enough for a core, and little enough to fill.
const FILES_MAX: u64 = 64;

fn limit_files() {
    let limit = libc::rlimit {
        rlim_cur: FILES_MAX,
        rlim_max: FILES_MAX,
    };
    // SAFETY: `limit` outlives the call.
    let code = unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &limit) };
    assert_eq!(code, 0, "a lower limit is always allowed");
}

fn is_served(client: &mut Client) {
    client.request(READ, 7, 0, 512);
    assert_eq!(client.reply(), (0, 7));
    client.take::<512>();
}

/// Bug: at the limit of open files a core looped for ever over its listener. `accept` says EMFILE also if nobody waits, and
/// the refusal then met an empty line and began anew. Cause: only the first `accept` could end the loop. Fix: the refusal
/// ends the loop, too, if it meets nobody.
#[test]
fn a_core_at_its_limit_of_files_refuses_clients_and_serves_the_others() {
    limit_files();
    let gateway = spec(None, &[ANY_TCP], |site| {
        MemoryGateway::new(site.pool, VOLUME_BYTES)
    });
    let core = start_core(small(), vec![gateway]).expect("loopback is there");
    let address = core.listening(0, wire::nbd::NAME)[0];
    let mut client = Client::new(address);

    let mut files: Vec<File> = Vec::new();
    while let Ok(file) = File::open("/dev/null") {
        files.push(file);
    }
    for _ in 0..3 {
        // The client's own end needs one.
        drop(files.pop());
        let mut refused = TcpStream::connect(address).expect("the kernel takes it into the line");
        assert_eq!(refused.read(&mut [0; 8]).expect("an orderly end"), 0);
        is_served(&mut client);
        drop(refused);
        files.push(File::open("/dev/null").expect("the refused client's"));
    }

    files.truncate(files.len() - 2);
    is_served(&mut Client::new(address));
    is_served(&mut client);
}
