//! A network namespace of its own for a test's thread.
#![allow(dead_code, reason = "each test takes its part")]

use std::process::Command;

/// Moves this thread into a new network namespace. Without root there is none: says so, and answers false.
pub fn enter() -> bool {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a network namespace needs root");
        return false;
    }
    // SAFETY: descriptors stay shared; only the network of this thread becomes another one.
    let moved = unsafe { rustix::thread::unshare_unsafe(rustix::thread::UnshareFlags::NEWNET) };
    if let Err(error) = moved {
        eprintln!("skipped: the kernel makes no network namespace: {error}");
        return false;
    }
    ip("link set lo up");
    true
}

/// Runs `ip` in the namespace of this thread.
pub fn ip(arguments: &str) {
    let output = Command::new("ip")
        .args(arguments.split(' '))
        .output()
        .expect("iproute2 is installed");
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "ip {arguments}: {error}");
}

/// Makes the pair `va` and `vb`. The kernel has 10.9.0.1 at `vb`, and nothing at `va`.
pub fn veth() {
    // Without IPv6 nothing is sent that nobody has asked for.
    for which in ["all", "default"] {
        let path = format!("/proc/sys/net/ipv6/conf/{which}/disable_ipv6");
        let _ = std::fs::write(path, "1");
    }
    ip("link add va type veth peer name vb");
    ip("addr add 10.9.0.1/24 dev vb");
    ip("link set va up");
    ip("link set vb up");
}
