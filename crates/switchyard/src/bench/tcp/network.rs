//! Two network namespaces with `veth` pairs between them, removed at the end. They take root.

use anyhow::{Context, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::fs::File;
use std::os::fd::AsFd;
use std::process::Command;

/// The pairs, by their ends.
pub const LINUX: [&str; 2] = ["la", "lb"];
pub const NATIVE: [&str; 2] = ["na", "nb"];
pub const SKB: [&str; 2] = ["sa", "sb"];
pub const PACKET: [&str; 2] = ["pa", "pb"];

/// Two namespaces.
pub struct Network {
    names: [String; 2],
}

impl Network {
    /// Makes them. Linux' pair has the addresses 10.9.0.1 and 10.9.0.2, the others have none.
    pub fn make() -> anyhow::Result<Self> {
        let name = |end| format!("switchyard-bench-{}-{end}", std::process::id());
        let network = Self {
            names: [name("a"), name("b")],
        };
        let [a, b] = &network.names;
        ip(&format!("netns add {a}"))?;
        ip(&format!("netns add {b}"))?;
        for [one, other] in [LINUX, NATIVE, SKB, PACKET] {
            ip(&format!(
                "-n {a} link add {one} type veth peer name {other} netns {b}"
            ))?;
            ip(&format!("-n {a} link set {one} addrgenmode none up"))?;
            ip(&format!("-n {b} link set {other} addrgenmode none up"))?;
        }
        ip(&format!("-n {a} addr add 10.9.0.1/24 dev {}", LINUX[0]))?;
        ip(&format!("-n {b} addr add 10.9.0.2/24 dev {}", LINUX[1]))?;
        Ok(network)
    }

    /// Runs something in the first or the second namespace. Sockets that it opens stay there.
    pub fn within<T>(&self, end: usize, work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let home = File::open("/proc/thread-self/ns/net").context("cannot open the own network namespace")?;
        let path = format!("/run/netns/{}", self.names[end]);
        let there = File::open(&path).with_context(|| format!("cannot open {path}"))?;
        let kind = Some(LinkNameSpaceType::Network);
        move_into_link_name_space(there.as_fd(), kind)?;
        let result = work();
        move_into_link_name_space(home.as_fd(), kind).expect("the way back is open");
        result
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in &self.names {
            // It may not be made yet.
            let _ = ip(&format!("netns del {name}"));
        }
    }
}

fn ip(arguments: &str) -> anyhow::Result<()> {
    let output = Command::new("ip").args(arguments.split(' ')).output();
    let output = output.context("cannot run `ip` (iproute2)")?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(
        output.status.success(),
        "`ip {arguments}` fails: {}",
        error.trim()
    );
    Ok(())
}
