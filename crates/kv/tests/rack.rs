//! Shards that tell each other things by queues in memory, whose pace a test chooses.

use kv::{About, KeyspaceOptions, SessionId, Shard, ShardOptions};
use std::collections::VecDeque;

/// Some shards, and what is on its way between them.
pub struct Rack {
    pub shards: Vec<Shard>,
    /// By sender and receiver.
    pub ways: Vec<Vec<VecDeque<Vec<u8>>>>,
}

/// Options of a keyspace without limits.
pub fn keys(keeps_changes: bool) -> KeyspaceOptions {
    KeyspaceOptions {
        memory_max: 1 << 30,
        value_bytes_max: 1 << 20,
        keeps_changes,
    }
}

impl Rack {
    pub fn new(shards: usize, keys: KeyspaceOptions) -> Self {
        let shard = |index| {
            let mut shard = Shard::new(ShardOptions {
                index,
                shards,
                seed: 1,
                keys,
                requests: Default::default(),
                copies: true,
                about: About::default(),
            });
            shard.set_now(1_000_000);
            shard
        };
        Self {
            shards: (0..shards).map(shard).collect(),
            ways: vec![vec![VecDeque::new(); shards]; shards],
        }
    }

    /// Puts what a shard says on its way.
    pub fn tell(&mut self, from: usize) {
        for to in 0..self.shards.len() {
            let outbox = self.shards[from].outbox(to);
            if !outbox.is_empty() {
                let bytes = std::mem::take(outbox);
                self.ways[from][to].push_back(bytes);
            }
        }
    }

    /// The receiver gets the next bytes of a way; false if there are none.
    pub fn deliver(&mut self, from: usize, to: usize) -> bool {
        let Some(bytes) = self.ways[from][to].pop_front() else {
            return false;
        };
        self.shards[to].hear(from, &bytes);
        self.tell(to);
        true
    }

    pub fn commit(&mut self, shard: usize) {
        self.shards[shard].committed();
        self.tell(shard);
    }

    /// Everything arrives and is committed.
    pub fn settle(&mut self) {
        let count = self.shards.len();
        let mut is_busy = true;
        while is_busy {
            is_busy = false;
            for shard in 0..count {
                self.tell(shard);
                if self.shards[shard].wants_commit() {
                    self.commit(shard);
                    is_busy = true;
                }
                for to in 0..count {
                    while self.deliver(shard, to) {
                        is_busy = true;
                    }
                }
            }
        }
    }

    /// Takes the replies of a connection that may go.
    pub fn replies(&mut self, shard: usize, session: SessionId) -> Vec<u8> {
        while self.shards[shard].next_ready().is_some() {}
        let replies = self.shards[shard].output(session).to_vec();
        self.shards[shard].sent(session, replies.len());
        replies
    }

    /// Sends a line to a shard, and waits for the reply.
    pub fn ask(&mut self, shard: usize, session: SessionId, line: &str) -> String {
        let bytes = format!("{line}\r\n");
        let received = self.shards[shard].receive(session, bytes.as_bytes());
        assert_eq!(received.consumed, bytes.len(), "{line}");
        self.settle();
        String::from_utf8(self.replies(shard, session)).expect("plain text")
    }
}
