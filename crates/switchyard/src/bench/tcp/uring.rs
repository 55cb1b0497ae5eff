//! Linux' TCP by io_uring: one standing receive for each connection, and sends that go to the kernel together.

use super::ends::{Ends, RPC_BYTES};
use super::linux::{Place, connections};
use anyhow::ensure;
use os::Streams;

/// Clients and servers.
struct Uring {
    clients: Streams,
    servers: Streams,
    count: usize,
}

/// TCP at a place.
pub fn open(count: usize, place: Place<'_>) -> anyhow::Result<Box<dyn Ends>> {
    let [clients, servers] = connections(count, place)?;
    Ok(Box::new(Uring {
        clients: Streams::new(clients.into_iter().map(Into::into).collect(), RPC_BYTES)?,
        servers: Streams::new(servers.into_iter().map(Into::into).collect(), RPC_BYTES)?,
        count,
    }))
}

impl Ends for Uring {
    fn turn(&mut self) -> anyhow::Result<()> {
        (0..self.count).for_each(|client| self.clients.send(client, &[7; RPC_BYTES]));
        self.clients.submit()?;
        let mut left = self.count * RPC_BYTES;
        let mut asked = Vec::with_capacity(self.count);
        while left > 0 {
            let mut is_whole = true;
            self.servers.wait(|server, bytes| {
                is_whole &= bytes.len() == RPC_BYTES;
                asked.push(server);
            })?;
            ensure!(is_whole, "a small message comes in parts");
            left -= asked.len() * RPC_BYTES;
            asked
                .drain(..)
                .for_each(|server| self.servers.send(server, &[7; RPC_BYTES]));
        }
        self.servers.submit()?;
        let mut left = self.count * RPC_BYTES;
        while left > 0 {
            self.clients.wait(|_, bytes| left -= bytes.len())?;
        }
        Ok(())
    }
}
