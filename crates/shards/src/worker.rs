//! The thread of a shard: bytes of connections and of other shards in, replies and messages out, and commits between them.
//!
//! A round takes what has come, lets replies go that need no commit, commits what the others need, and lets those go. So all
//! requests that come while a write is under way share the next write, and a read waits for the write under way at most.

use crate::kernel::Handed;
use crate::lane::{Bell, Lane};
use crate::store::Store;
use crate::sync::{Arc, AtomicBool, Ordering};
use crate::transport::{News, Transport};
use area::AreaError;
use kv::{SessionId, Shard};
use std::io::{self, ErrorKind};
use std::time::Duration;

/// Between two looks for keys whose time is over.
const TICK_MS: u64 = 100;
/// Bytes that are asked for at once.
const READ_BYTES: usize = 16 << 10;
/// Bytes of a connection in one round.
const ROUND_BYTES: usize = 256 << 10;
/// An empty buffer of a connection is kept up to so many bytes.
const KEPT_BYTES_MAX: usize = 64 << 10;
/// Changes that nobody waits for are committed when there are so many, or at a tick.
const IDLE_CHANGES_MAX: usize = 1000;

/// What the threads of a server share.
pub struct Peers {
    /// By writer and reader.
    pub lanes: Vec<Vec<Lane>>,
    /// By reader.
    pub bells: Vec<Bell>,
    /// Connections that were accepted, by thread; none with user-level TCP.
    pub handed: Vec<Arc<Handed>>,
    /// The server ends.
    pub ends: AtomicBool,
}

/// Why a thread has ended.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Its connections.
    #[error("connections cannot be served: {0}")]
    Transport(#[from] io::Error),
    /// Its area.
    #[error("changes cannot be made durable: {0}")]
    Area(#[from] AreaError),
}

/// The wall clock.
pub fn unix_ms() -> u64 {
    os::since_1970().as_millis() as u64
}

struct Connection {
    session: SessionId,
    input: Vec<u8>,
    /// There may be something to read.
    is_readable: bool,
    /// Its requests wait for room for replies.
    is_stalled: bool,
    /// It is among those with more to read.
    is_listed: bool,
    /// Bytes that the request at hand has at least.
    wanted: usize,
}

/// The thread of a shard.
pub struct Worker<T> {
    index: usize,
    shard: Shard,
    store: Option<Store>,
    transport: T,
    peers: Arc<Peers>,
    /// By the transport's number.
    connections: Vec<Option<Connection>>,
    by_session: Vec<Option<u32>>,
    /// Connections with more to read than a round takes.
    more: Vec<u32>,
    messages: Vec<u8>,
    ticked_ms: u64,
}

impl<T: Transport> Worker<T> {
    /// A shard's thread, to be run.
    pub fn new(index: usize, shard: Shard, store: Option<Store>, transport: T, peers: Arc<Peers>) -> Self {
        Self {
            index,
            shard,
            store,
            transport,
            peers,
            connections: Vec::new(),
            by_session: Vec::new(),
            more: Vec::new(),
            messages: Vec::new(),
            ticked_ms: 0,
        }
    }

    /// Serves until the server ends.
    ///
    /// # Errors
    /// Nothing more can be served.
    pub fn run(mut self) -> Result<(), WorkerError> {
        while !self.peers.ends.load(Ordering::Acquire) {
            self.round()?;
        }
        Ok(())
    }

    fn round(&mut self) -> Result<(), WorkerError> {
        let has_heard = self.hear();
        let limit = self.sleep_limit(has_heard);
        self.transport.wait(limit, &self.peers.bells[self.index])?;
        self.peers.bells[self.index].rise();
        let now_ms = unix_ms();
        self.shard.set_now(now_ms);
        if now_ms >= self.ticked_ms + TICK_MS {
            self.ticked_ms = now_ms;
            self.shard.tick();
        }
        for number in std::mem::take(&mut self.more) {
            if let Some(connection) = self.connection(number) {
                connection.is_listed = false;
                self.read(number);
            }
        }
        while let Some(news) = self.transport.next() {
            match news {
                News::Open(number) => self.open(number),
                News::Ready(number) => self.ready(number),
            }
        }
        self.tell()?;
        let idle = self.shard.keys().changes().count();
        let is_due = idle > IDLE_CHANGES_MAX || idle > 0 && self.ticked_ms == now_ms;
        if self.shard.wants_commit() || is_due {
            if let Some(store) = &mut self.store {
                store.commit(self.shard.keys())?;
            }
            self.shard.committed();
            self.tell()?;
        }
        Ok(())
    }

    /// Takes what other shards have left; true if there was something.
    fn hear(&mut self) -> bool {
        let mut has_heard = false;
        for from in 0..self.peers.lanes.len() {
            let lane = &self.peers.lanes[from][self.index];
            if lane.has_some() {
                has_heard = true;
                lane.take(&mut self.messages);
                self.shard.hear(from, &self.messages);
                self.messages.clear();
            }
        }
        has_heard
    }

    /// How long the thread may sleep. It has said that it does when this is not zero.
    fn sleep_limit(&mut self, is_busy: bool) -> Duration {
        if is_busy || !self.more.is_empty() {
            return Duration::ZERO;
        }
        self.peers.bells[self.index].doze();
        let has_message =
            (0..self.peers.lanes.len()).any(|from| self.peers.lanes[from][self.index].has_some());
        let is_handed = self
            .peers
            .handed
            .get(self.index)
            .is_some_and(|handed| handed.has_some());
        if has_message || is_handed || self.peers.ends.load(Ordering::SeqCst) {
            return Duration::ZERO;
        }
        let now_ms = unix_ms();
        // Without keys that end, nothing but news has to wake the thread; it looks now and then all the same.
        let tick_ms = if self.shard.keys().mortal() > 0 || !self.shard.keys().changes().is_empty() {
            (self.ticked_ms + TICK_MS).saturating_sub(now_ms)
        } else {
            10 * TICK_MS
        };
        Duration::from_millis(tick_ms.max(1))
    }

    /// Messages to the other shards, and replies to connections.
    fn tell(&mut self) -> Result<(), WorkerError> {
        while let Some(session) = self.shard.next_ready() {
            let number = self.by_session.get(session.index() as usize).copied().flatten();
            if let Some(number) = number {
                self.write(number);
            }
        }
        self.transport.push()?;
        for to in 0..self.peers.bells.len() {
            let outbox = self.shard.outbox(to);
            if !outbox.is_empty() {
                self.peers.lanes[self.index][to].put(outbox);
                self.peers.bells[to].ring();
            }
        }
        Ok(())
    }

    fn connection(&mut self, number: u32) -> Option<&mut Connection> {
        self.connections.get_mut(number as usize)?.as_mut()
    }

    fn open(&mut self, number: u32) {
        let session = self.shard.open();
        let place = number as usize;
        if self.connections.len() <= place {
            self.connections.resize_with(place + 1, || None);
        }
        self.connections[place] = Some(Connection {
            session,
            input: Vec::new(),
            is_readable: true,
            is_stalled: false,
            is_listed: false,
            wanted: 0,
        });
        let place = session.index() as usize;
        if self.by_session.len() <= place {
            self.by_session.resize(place + 1, None);
        }
        self.by_session[place] = Some(number);
        self.read(number);
    }

    fn ready(&mut self, number: u32) {
        if let Some(connection) = self.connection(number) {
            connection.is_readable = true;
            self.write(number);
            self.read(number);
        }
    }

    fn close(&mut self, number: u32) {
        let connection = self.connections[number as usize].take().expect("it is open");
        self.by_session[connection.session.index() as usize] = None;
        self.shard.close(connection.session);
        self.transport.close(number);
    }

    /// Reads what has come, and has it carried out.
    fn read(&mut self, number: u32) {
        let mut taken = 0;
        loop {
            let Some(connection) = self.connections.get_mut(number as usize).and_then(Option::as_mut) else {
                return;
            };
            if connection.is_stalled || !connection.is_readable {
                return;
            }
            if taken >= ROUND_BYTES {
                if !std::mem::replace(&mut connection.is_listed, true) {
                    self.more.push(number);
                }
                return;
            }
            let wanted = READ_BYTES.max(connection.wanted.saturating_sub(connection.input.len()));
            match self.transport.read(number, &mut connection.input, wanted) {
                Ok((0, _)) => {
                    // Its replies still go.
                    connection.is_readable = false;
                    return self.shard.finish(connection.session);
                }
                Ok((count, has_more)) => {
                    taken += count;
                    connection.is_readable = has_more;
                    self.carry_out(number);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    connection.is_readable = false;
                    return;
                }
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return self.close(number),
            }
        }
    }

    /// Has the requests of a connection carried out.
    fn carry_out(&mut self, number: u32) {
        let connection = self.connections[number as usize].as_mut().expect("it is open");
        let received = self.shard.receive(connection.session, &connection.input);
        connection.is_stalled = received.is_stalled;
        connection.wanted = received.wanted;
        if received.consumed == connection.input.len() {
            connection.input.clear();
            if connection.input.capacity() > KEPT_BYTES_MAX {
                connection.input = Vec::new();
            }
        } else {
            connection.input.drain(..received.consumed);
        }
    }

    /// Lets replies of a connection go, and goes on with requests that waited for that.
    fn write(&mut self, number: u32) {
        let Some(connection) = self.connection(number) else {
            return;
        };
        let session = connection.session;
        loop {
            let output = self.shard.output(session);
            if output.is_empty() {
                break;
            }
            match self.transport.write(number, output) {
                Ok(count) => self.shard.sent(session, count),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(_) => return self.close(number),
            }
        }
        if self.shard.is_over(session) {
            return self.close(number);
        }
        let connection = self.connection(number).expect("it is open");
        if std::mem::take(&mut connection.is_stalled) {
            self.carry_out(number);
            self.read(number);
        }
    }
}
