//! Counters of shards, their sum, and the text of INFO.

use std::fmt::Write;

/// Counters of a shard, or of all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Connections that are open.
    pub clients: u64,
    /// Connections so far.
    pub connections: u64,
    /// Commands so far.
    pub commands: u64,
    /// Keys.
    pub keys: u64,
    /// Keys that have an end.
    pub mortal: u64,
    /// Memory of entries.
    pub memory: u64,
    /// Limit of that.
    pub memory_max: u64,
    /// Reads that found their key.
    pub hits: u64,
    /// Reads that did not.
    pub misses: u64,
    /// Keys whose time was over.
    pub expired: u64,
    /// Keys that went for want of memory.
    pub evicted: u64,
    /// Commands that another shard carried out.
    pub steered: u64,
    /// Copies of other shards' keys.
    pub copies: u64,
    /// Reads that these answered.
    pub copy_reads: u64,
    /// Batches that were made durable.
    pub commits: u64,
    /// Keys in these.
    pub committed_keys: u64,
}

const COUNT: usize = 16;

impl Counters {
    fn words(&self) -> [u64; COUNT] {
        [
            self.clients,
            self.connections,
            self.commands,
            self.keys,
            self.mortal,
            self.memory,
            self.memory_max,
            self.hits,
            self.misses,
            self.expired,
            self.evicted,
            self.steered,
            self.copies,
            self.copy_reads,
            self.commits,
            self.committed_keys,
        ]
    }

    fn from_words(words: [u64; COUNT]) -> Self {
        let [
            clients,
            connections,
            commands,
            keys,
            mortal,
            memory,
            memory_max,
            hits,
            misses,
            expired,
            evicted,
            steered,
            copies,
            copy_reads,
            commits,
            committed_keys,
        ] = words;
        Self {
            clients,
            connections,
            commands,
            keys,
            mortal,
            memory,
            memory_max,
            hits,
            misses,
            expired,
            evicted,
            steered,
            copies,
            copy_reads,
            commits,
            committed_keys,
        }
    }

    /// As another shard gets them.
    pub fn put(&self, out: &mut Vec<u8>) {
        self.words()
            .iter()
            .for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    }

    /// Adds those of a shard.
    pub fn add(&mut self, bytes: &[u8]) {
        let mut sums = self.words();
        for (sum, word) in sums.iter_mut().zip(bytes.chunks_exact(8)) {
            *sum += u64::from_le_bytes(word.try_into().expect("eight bytes"));
        }
        *self = Self::from_words(sums);
    }
}

/// What INFO tells beside the counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// Version of the program.
    pub version: String,
    /// The process.
    pub process: u32,
    /// Port of the kernel's socket; 0 for none.
    pub port: u16,
    /// Threads.
    pub shards: u32,
    /// `always`, `everysec` or `none`.
    pub durability: String,
    /// When the process began, in Unix ms.
    pub began_ms: u64,
}

/// A section of INFO: its name, and its lines.
type Section = (&'static str, Vec<(&'static str, String)>);

/// The text of INFO: the named sections, or all without a name. Names are Redis' where Redis has the figure.
pub fn text(counters: &Counters, about: &About, now_ms: u64, wanted: &[Vec<u8>]) -> String {
    let everything = ["all", "default", "everything"];
    let is_wanted = |name: &str| {
        let is = |word: &Vec<u8>, name: &str| word.eq_ignore_ascii_case(name.as_bytes());
        let mut wanted_words = wanted.iter();
        wanted.is_empty()
            || wanted_words.any(|word| is(word, name) || everything.iter().any(|all| is(word, all)))
    };
    let mut out = String::new();
    for (name, lines) in sections(counters, about, now_ms) {
        if !is_wanted(name) {
            continue;
        }
        let gap = if out.is_empty() { "" } else { "\r\n" };
        let (first, rest) = name.split_at(1);
        let _ = write!(out, "{gap}# {}{rest}\r\n", first.to_uppercase());
        for (key, value) in lines {
            let _ = write!(out, "{key}:{value}\r\n");
        }
    }
    out
}

fn sections(counters: &Counters, about: &About, now_ms: u64) -> [Section; 6] {
    let of = |number: u64| number.to_string();
    let uptime = now_ms.saturating_sub(about.began_ms) / 1000;
    let server = vec![
        ("redis_version", "7.0.0".into()),
        ("redis_mode", "standalone".into()),
        ("switchyard_version", about.version.clone()),
        ("process_id", about.process.to_string()),
        ("tcp_port", about.port.to_string()),
        ("uptime_in_seconds", of(uptime)),
        ("shards", about.shards.to_string()),
    ];
    let memory = vec![
        ("used_memory", of(counters.memory)),
        ("maxmemory", of(counters.memory_max)),
        ("maxmemory_policy", "allkeys-lru".into()),
    ];
    let persistence = vec![
        ("loading", "0".into()),
        ("durability", about.durability.clone()),
        ("commits", of(counters.commits)),
        ("committed_keys", of(counters.committed_keys)),
    ];
    let stats = vec![
        ("total_connections_received", of(counters.connections)),
        ("total_commands_processed", of(counters.commands)),
        ("keyspace_hits", of(counters.hits)),
        ("keyspace_misses", of(counters.misses)),
        ("expired_keys", of(counters.expired)),
        ("evicted_keys", of(counters.evicted)),
        ("steered_commands", of(counters.steered)),
        ("copies", of(counters.copies)),
        ("copy_reads", of(counters.copy_reads)),
    ];
    let keys = format!("keys={},expires={},avg_ttl=0", counters.keys, counters.mortal);
    let has_keys = counters.keys > 0;
    [
        ("server", server),
        ("clients", vec![("connected_clients", of(counters.clients))]),
        ("memory", memory),
        ("persistence", persistence),
        ("stats", stats),
        (
            "keyspace",
            has_keys.then_some(("db0", keys)).into_iter().collect(),
        ),
    ]
}
