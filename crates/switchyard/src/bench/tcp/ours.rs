//! Our sockets, over each link.

use super::ends::{Ends, RPC_BYTES};
use super::network::{self, Network};
use anyhow::{Context, ensure};
use nic::{Frames, packet, shared, xdp};
use sockets::{Handle, Options, Sockets};
use std::io::ErrorKind;
use std::time::{Duration, Instant};
use tcp::addr::{Endpoint, Ip, Mac};
use tcp::api::Rings;
use tcp::config::Config;

const PORT: u16 = 7;
/// How long a handshake may take.
const LIMIT: Duration = Duration::from_secs(10);
/// How long the kernel may take to free the queue of the last bench.
const FREE_WITHIN: Duration = Duration::from_secs(5);

/// The stacks of both ends.
pub struct Ours {
    ends: [Sockets; 2],
    clients: Vec<Handle>,
    servers: Vec<Handle>,
}

/// The rings of small requests.
pub const SMALL: Rings = Rings {
    receive: 14,
    transmit: 14,
};

/// Memory of one process stands for that of two.
pub fn shared(connections: usize, rings: Rings) -> anyhow::Result<Ours> {
    let (mut one, mut other) = shared::pair(shared::Shape::default(), 1500)?;
    Ours::connect(
        connections,
        rings,
        [Box::new(one.remove(0)), Box::new(other.remove(0))],
    )
}

/// AF_XDP at both ends of a veth.
pub fn xdp(connections: usize, network: &Network, is_native: bool, rings: Rings) -> anyhow::Result<Ours> {
    let (mode, names) = match is_native {
        true => (xdp::Mode::Native, network::NATIVE),
        false => (xdp::Mode::Skb, network::SKB),
    };
    let options = xdp::Options {
        mode,
        ..xdp::Options::default()
    };
    let open = |end: usize| network.within(end, || open_xdp(names[end], options));
    Ours::connect(connections, rings, [open(0)?, open(1)?])
}

fn open_xdp(name: &str, options: xdp::Options) -> anyhow::Result<Box<dyn Frames>> {
    let until = Instant::now() + FREE_WITHIN;
    loop {
        match xdp::open(name, 1, options) {
            Ok(mut queues) => return Ok(Box::new(queues.remove(0))),
            Err(error) if error.kind() == ErrorKind::ResourceBusy && Instant::now() < until => {
                std::thread::sleep(Duration::from_millis(5));
            }
            Err(error) => return Err(error).context("this kernel has no AF_XDP here"),
        }
    }
}

/// AF_PACKET at both ends of a veth.
pub fn packet(connections: usize, network: &Network, rings: Rings) -> anyhow::Result<Ours> {
    let open = |end: usize| -> anyhow::Result<Box<dyn Frames>> {
        let name = network::PACKET[end];
        let mut queues = network.within(end, || Ok(packet::open(name, 1)?))?;
        Ok(Box::new(queues.remove(0)))
    };
    Ours::connect(connections, rings, [open(0)?, open(1)?])
}

impl Ours {
    fn connect(connections: usize, rings: Rings, links: [Box<dyn Frames>; 2]) -> anyhow::Result<Self> {
        let ip = |host| Ip::v4([10, 9, 1, host]);
        let mut host = 0;
        let ends = links.map(|link| {
            host += 1;
            let config = Config::new(Mac([2, 0, 0, 0, 9, host]), ip(host), 24);
            let options = Options {
                rings,
                spin: Duration::ZERO,
            };
            Sockets::new(link, config, options)
        });
        let mut ours = Self {
            ends,
            clients: Vec::new(),
            servers: Vec::new(),
        };
        let remote = Endpoint {
            ip: ip(2),
            port: PORT,
        };
        let listener = ours.ends[1].listen(remote, connections as u32)?;
        let until = Instant::now() + LIMIT;
        for _ in 0..connections {
            let client = ours.ends[0].connect(remote)?;
            loop {
                ours.ends[0].poll()?;
                ours.ends[1].poll()?;
                if let Ok(server) = ours.ends[1].accept(listener) {
                    ours.ends[1].set_no_delay(server, true)?;
                    ours.servers.push(server);
                    break;
                }
                ensure!(Instant::now() < until, "a handshake takes too long");
            }
            while !ours.ends[0].readiness(client)?.writable {
                ours.ends[0].poll()?;
                ensure!(Instant::now() < until, "a handshake takes too long");
            }
            ours.ends[0].set_no_delay(client, true)?;
            ours.clients.push(client);
        }
        Ok(ours)
    }

    /// Both ends of the first connection.
    pub fn into_ends(self) -> [(Sockets, Handle); 2] {
        let [client, server] = self.ends;
        [(client, self.clients[0]), (server, self.servers[0])]
    }
}

impl Ends for Ours {
    fn turn(&mut self) -> anyhow::Result<()> {
        let [client, server] = &mut self.ends;
        for handle in &self.clients {
            client.send(*handle, &[7; RPC_BYTES])?;
        }
        client.push()?;
        let mut bytes = [0; RPC_BYTES];
        let mut left = self.clients.len() * RPC_BYTES;
        while left > 0 {
            server.poll()?;
            while let Some((handle, ready)) = server.next_ready() {
                if ready.readable
                    && let Ok(count) = server.receive(handle, &mut bytes)
                {
                    server.send(handle, &bytes[..count])?;
                }
            }
            server.push()?;
            client.poll()?;
            while let Some((handle, ready)) = client.next_ready() {
                if ready.readable
                    && let Ok(count) = client.receive(handle, &mut bytes)
                {
                    ensure!(count > 0, "the other end has gone");
                    left -= count;
                }
            }
        }
        Ok(())
    }
}
