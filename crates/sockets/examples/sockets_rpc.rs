//! Remote calls of 64 bytes between the sockets of two stacks in one thread, over shared memory: for counting what a call costs.
//!
//! `cargo run --release -p switchyard-sockets --example sockets_rpc -- CALLS [CONNECTIONS]`. Each call polls both ends once, as programs
//! do. With callgrind, the difference of two numbers of calls is without the start.

use anyhow::{Context, ensure};
use base::Duration;
use nic::shared;
use sockets::{Handle, Options, Sockets};
use tcp::addr::{Endpoint, Ip, Mac};
use tcp::api::Rings;
use tcp::config::Config;

const BYTES: usize = 64;
const PORT: u16 = 7;
const SECOND: Duration = Duration::from_secs(1);
/// Polls that a handshake takes at most.
const POLLS_MAX: u32 = 1000;

fn ip(host: u8) -> Ip {
    Ip::v4([10, 0, 0, host])
}

/// The sockets of a host.
fn sockets(link: shared::Vnic, host: u8) -> Sockets {
    let mut config = Config::new(Mac([2, 0, 0, 0, 0, host]), ip(host), 24);
    config.seed = u64::from(host);
    // Callgrind takes some fifty times as long: what depends on the clock is to be as rare as without it, also with many connections.
    config.control_interval_min = SECOND;
    config.ack_delay = SECOND;
    let options = Options {
        rings: Rings {
            receive: 14,
            transmit: 14,
        },
        ..Options::default()
    };
    Sockets::new(Box::new(link), config, options)
}

/// Connects both ends. Answers the client's socket.
fn connect(client: &mut Sockets, server: &mut Sockets, listener: Handle) -> anyhow::Result<Handle> {
    let stream = client.connect(Endpoint {
        ip: ip(2),
        port: PORT,
    })?;
    for _ in 0..POLLS_MAX {
        client.poll()?;
        server.poll()?;
        if let Ok(accepted) = server.accept(listener) {
            server.set_no_delay(accepted, true)?;
            client.set_no_delay(stream, true)?;
            return Ok(stream);
        }
    }
    anyhow::bail!("the handshake does not end")
}

/// A request on each connection, and its answer.
fn call(client: &mut Sockets, server: &mut Sockets, streams: &[Handle]) -> anyhow::Result<()> {
    for stream in streams {
        client.send(*stream, &[7; BYTES])?;
    }
    client.push()?;
    let mut bytes = [0; BYTES];
    let mut left = streams.len() * BYTES;
    while left > 0 {
        server.poll()?;
        while let Some((stream, ready)) = server.next_ready() {
            if ready.readable {
                let count = server.receive(stream, &mut bytes)?;
                server.send(stream, &bytes[..count])?;
            }
        }
        server.push()?;
        client.poll()?;
        while let Some((stream, ready)) = client.next_ready() {
            if ready.readable {
                left -= client.receive(stream, &mut bytes)?;
            }
        }
    }
    ensure!(bytes == [7; BYTES], "the answer is the request");
    Ok(())
}

fn main() -> anyhow::Result<()> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<usize>());
    let calls = numbers.next().context("how many calls?")??;
    let connections = numbers.next().unwrap_or(Ok(1))?;
    let (mut one, mut other) = shared::pair(shared::Shape::default(), 1500)?;
    let (mut client, mut server) = (sockets(one.remove(0), 1), sockets(other.remove(0), 2));
    let listener = server.listen(
        Endpoint {
            ip: ip(2),
            port: PORT,
        },
        connections as u32,
    )?;
    let streams: Vec<Handle> = (0..connections)
        .map(|_| connect(&mut client, &mut server, listener))
        .collect::<anyhow::Result<_>>()?;
    for _ in 0..calls.div_ceil(connections) {
        call(&mut client, &mut server, &streams)?;
    }
    let slow = client.counters().slow + server.counters().slow;
    println!("{calls} calls; {slow} segments went the slow path");
    Ok(())
}
