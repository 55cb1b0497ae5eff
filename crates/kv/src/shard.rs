//! One shard: its keys, its connections, and what it tells other shards.
//!
//! The driver gives it the bytes of connections ([`Shard::receive`]) and of other shards ([`Shard::hear`]), and takes away replies
//! ([`Shard::next_ready`]), messages ([`Shard::outbox`]) and changes ([`Shard::wants_commit`]). When the changes are durable it says so
//! ([`Shard::committed`]). Messages between two shards arrive in their order, each once; nothing else is asked of their way.
//!
//! # Copies of hot keys, and why each key stays linearizable
//!
//! The owner of a key that others ask for often sends them copies. A shard with a copy answers GET from it. Only the owner
//! writes. When a key with copies changes, the owner sends `Forget` to every shard and counts their answers.
//!
//! A batch is *complete* when it is durable, and every shard has answered each `Forget` of this batch and of those before. The
//! reply of a write, and of each read at the owner that tells of the write, needs the batch of the write.
//!
//! Take a write W of a key, and a read R that begins after a reply has gone out which tells of W: W's own, or another read's. That
//! reply needed W's batch. So every shard had answered `Forget` before R began, and had no copy then that is older than W. If R
//! finds a copy, the owner sent it after `Forget`, as messages keep their order. A copy has the value of a complete batch, so
//! it has W or a later write. If R goes to the owner, the owner has W already. Either way R tells of W or of a later write. So the
//! moment of W is the one at which its batch is complete, or the first reply that tells of it.
//!
//! A connection may send its next request before it has the reply to the last. A shard does not answer from a copy while a reply
//! for the same key is to come from the owner: the copy could be older than what the owner answers.
//!
//! Keys with an end get no copies: two shards may see the end at different moments.
//!
//! # Several keys
//! A command of several keys is carried out as one command for each key. Each key is linearizable; together they are no
//! transaction.

use crate::command::{self, Command, Known, Way};
use crate::execute::{self, Call, Failed, Scan};
use crate::gather::{Context, Gather};
use crate::hot::{COPIED_MAX, COPY_BYTES_MAX, Copies, READS_TO_RENEW, Sketch};
use crate::info::{About, Counters};
use crate::keyspace::{Keyspace, KeyspaceOptions};
use crate::local::{self, Settings};
use crate::message::{Message, Place, Reader};
use crate::parse::{Parsed, RequestLimits, Words};
use crate::reply;
use crate::session::Session;
use base::Slab;
use std::collections::VecDeque;

/// Bits of a cursor of SCAN for the bucket; the shard is above.
const BUCKET_BITS: u32 = 48;

/// How a shard behaves.
#[derive(Clone, Debug)]
pub struct ShardOptions {
    /// Which shard it is.
    pub index: usize,
    /// Of how many.
    pub shards: usize,
    /// Of the keys' hashes; the same for all shards.
    pub seed: u64,
    /// Of its keys.
    pub keys: KeyspaceOptions,
    /// Of requests.
    pub requests: RequestLimits,
    /// Hot keys get copies at other shards.
    pub copies: bool,
    /// For INFO.
    pub about: About,
}

/// A connection's name. One that was closed is not taken for the next one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SessionId(u64);

impl SessionId {
    fn new(index: u32, generation: u32) -> Self {
        Self(u64::from(generation) << 32 | u64::from(index))
    }
    /// Its place, for the driver's tables.
    pub fn index(self) -> u32 {
        self.0 as u32
    }
    fn generation(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// What became of a connection's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// So many are done with.
    pub consumed: usize,
    /// The rest is to come again when replies of the connection have gone.
    pub is_stalled: bool,
    /// Bytes that the request at hand has at least.
    pub wanted: usize,
}

/// A reply for another shard that needs a batch.
#[derive(Debug)]
struct HeldReply {
    needs: u64,
    to: usize,
    place: Place,
    bytes: Vec<u8>,
}

/// Answers to `Forget` that are to come.
#[derive(Debug)]
struct Unanswered {
    batch: u64,
    left: usize,
    /// The keys, and how often their copies were read.
    keys: Vec<(u64, Box<[u8]>, u64)>,
}

/// One shard.
#[derive(Debug)]
pub struct Shard {
    options: ShardOptions,
    keys: Keyspace,
    sessions: Slab<Session>,
    opened: u64,
    outboxes: Vec<Vec<u8>>,
    held: VecDeque<HeldReply>,
    unanswered: VecDeque<Unanswered>,
    /// The last batch that is durable, and the last one that is complete.
    durable: u64,
    complete: u64,
    /// A reply needs the batch that is open.
    is_batch_needed: bool,
    sketch: Sketch,
    copies: Copies,
    /// Own keys that have copies, the first copied first.
    copied: VecDeque<(u64, Box<[u8]>)>,
    /// Own keys that are to get copies.
    to_copy: Vec<(u64, Box<[u8]>)>,
    /// Connections whose next reply needs a batch.
    waiting: Vec<SessionId>,
    ready: VecDeque<SessionId>,
    counters: Counters,
    scratch: Vec<u8>,
    spans: Vec<(u32, u32)>,
}

impl Shard {
    /// A shard without keys.
    pub fn new(options: ShardOptions) -> Self {
        Self {
            keys: Keyspace::new(options.keys),
            sessions: Slab::new(),
            opened: 0,
            outboxes: vec![Vec::new(); options.shards],
            held: VecDeque::new(),
            unanswered: VecDeque::new(),
            durable: 0,
            complete: 0,
            is_batch_needed: false,
            sketch: Sketch::default(),
            copies: Copies::default(),
            copied: VecDeque::new(),
            to_copy: Vec::new(),
            waiting: Vec::new(),
            ready: VecDeque::new(),
            counters: Counters::default(),
            scratch: Vec::new(),
            spans: Vec::new(),
            options,
        }
    }

    /// Its keys, to be loaded, and for their changes.
    pub fn keys(&self) -> &Keyspace {
        &self.keys
    }

    /// The same, to load.
    pub fn keys_mut(&mut self) -> &mut Keyspace {
        &mut self.keys
    }

    /// It is this Unix time.
    pub fn set_now(&mut self, now_ms: u64) {
        self.keys.set_now(now_ms);
    }

    /// A connection begins.
    pub fn open(&mut self) -> SessionId {
        self.opened += 1;
        let id = (self.opened - 1) * self.options.shards as u64 + self.options.index as u64 + 1;
        let generation = self.opened as u32;
        let index = self
            .sessions
            .insert(Session::new(id, generation, self.options.requests));
        self.counters.connections += 1;
        SessionId::new(index, generation)
    }

    /// A connection has ended. What it has asked for is done all the same.
    pub fn close(&mut self, id: SessionId) {
        if self.session(id).is_some() {
            self.sessions.remove(id.index());
        }
    }

    /// A connection sends no more. It is over when its replies have gone.
    pub fn finish(&mut self, id: SessionId) {
        self.known(id).is_closing = true;
        self.let_go(id);
    }

    fn session(&mut self, id: SessionId) -> Option<&mut Session> {
        let session = self.sessions.get_mut(id.index())?;
        (session.generation == id.generation()).then_some(session)
    }

    fn known(&mut self, id: SessionId) -> &mut Session {
        self.session(id).expect("the connection is open")
    }

    /// Bytes of a connection, from those on that were not consumed before.
    pub fn receive(&mut self, id: SessionId, bytes: &[u8]) -> Received {
        let mut parser = std::mem::take(&mut self.known(id).parser);
        let mut at = 0;
        let (mut is_stalled, mut wanted) = (false, 0);
        loop {
            let session = self.known(id);
            if session.is_full() || session.is_closing {
                is_stalled = true;
                break;
            }
            match parser.parse(&bytes[at..]) {
                Ok(Parsed::Request(length)) => {
                    self.dispatch(id, parser.words(&bytes[at..]));
                    at += length;
                }
                Ok(Parsed::Nothing(length)) => at += length,
                Ok(Parsed::Partial) => {
                    wanted = parser.bytes_wanted();
                    break;
                }
                Err(error) => {
                    let mut told = Vec::new();
                    reply::error(&mut told, format!("ERR Protocol error: {error}").as_bytes());
                    self.reply(id, &told, 0);
                    self.known(id).is_closing = true;
                }
            }
        }
        parser.shrink();
        self.known(id).parser = parser;
        Received {
            consumed: at,
            is_stalled,
            wanted,
        }
    }

    /// True if the connection is to end when its replies have gone, and they have.
    pub fn is_over(&mut self, id: SessionId) -> bool {
        self.session(id)
            .is_none_or(|session| session.is_closing && session.is_told() && session.out.is_empty())
    }

    /// The next connection with replies that may go.
    pub fn next_ready(&mut self) -> Option<SessionId> {
        while let Some(id) = self.ready.pop_front() {
            if let Some(session) = self.session(id) {
                session.is_ready = false;
                return Some(id);
            }
        }
        None
    }

    /// Replies of a connection that may go.
    pub fn output(&mut self, id: SessionId) -> &[u8] {
        &self.known(id).out
    }

    /// So many bytes of them have gone.
    pub fn sent(&mut self, id: SessionId, bytes: usize) {
        self.known(id).sent(bytes);
    }

    /// Messages for another shard. The driver takes them, and leaves an empty buffer.
    pub fn outbox(&mut self, shard: usize) -> &mut Vec<u8> {
        &mut self.outboxes[shard]
    }

    /// True if replies wait for the changes so far to be durable.
    pub fn wants_commit(&self) -> bool {
        self.is_batch_needed
    }

    /// The changes that [`Keyspace::changes`] tells are durable, or nobody keeps them.
    pub fn committed(&mut self) {
        self.counters.commits += u64::from(!self.keys.changes().is_empty());
        self.counters.committed_keys += self.keys.changes().count() as u64;
        self.durable = self.keys.close_batch();
        self.is_batch_needed = false;
        self.advance();
    }

    /// Now and then: removes keys whose time is over.
    pub fn tick(&mut self) {
        self.keys.sweep();
        self.forget_outdated();
    }

    /// Messages of another shard.
    pub fn hear(&mut self, from: usize, bytes: &[u8]) {
        let mut spans = std::mem::take(&mut self.spans);
        let mut reader = Reader::new(bytes);
        while let Some(message) = reader.next(&mut spans) {
            match message {
                Message::Call {
                    place,
                    command,
                    protocol,
                    hash,
                    words,
                } => {
                    let call = Call {
                        command,
                        words,
                        hash,
                        protocol,
                    };
                    self.serve(from, place, &call);
                }
                Message::Reply { place, bytes } => self.fill(place, bytes, 0),
                Message::Copy { hash, key, value } => self.copies.insert(hash, key, value),
                Message::Forget { batch, hash } => {
                    let reads = self.copies.remove(hash);
                    Message::Forgotten { batch, hash, reads }.put(&mut self.outboxes[from]);
                }
                Message::Forgotten { batch, hash, reads } => self.forgotten(batch, hash, reads),
            }
        }
        self.spans = spans;
        self.advance();
    }

    /// A command of another shard's connection.
    fn serve(&mut self, from: usize, place: Place, call: &Call<'_>) {
        let is_read = matches!(call.command, Command::Get | Command::MGet);
        if is_read && self.options.copies && self.sketch.note(call.hash) {
            self.to_copy.push((call.hash, call.words.word(0).into()));
        }
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let needs = self.execute(call, &mut scratch);
        if needs <= self.complete {
            let bytes = &scratch;
            Message::Reply { place, bytes }.put(&mut self.outboxes[from]);
        } else {
            self.held.push_back(HeldReply {
                needs,
                to: from,
                place,
                bytes: scratch.clone(),
            });
        }
        self.scratch = scratch;
    }

    /// A reply has come, or a part.
    fn fill(&mut self, place: Place, bytes: &[u8], needs: u64) {
        let id = SessionId(place.session);
        if let Some(session) = self.session(id) {
            session.fill(place.number, place.part, bytes, needs);
            self.let_go(id);
        }
    }

    /// Lets replies of a connection go that may.
    fn let_go(&mut self, id: SessionId) {
        let Some(session) = self.sessions.get_mut(id.index()) else {
            return;
        };
        let context = Context {
            about: &self.options.about,
            now_ms: self.keys.now_ms(),
        };
        let waits = session.advance(self.complete, context);
        if waits.is_some() && !std::mem::replace(&mut session.is_listed, true) {
            self.waiting.push(id);
        }
        let has_news = !session.out.is_empty() || session.is_closing && session.is_told();
        if has_news && !std::mem::replace(&mut session.is_ready, true) {
            self.ready.push_back(id);
        }
    }

    /// A reply of this shard.
    fn reply(&mut self, id: SessionId, bytes: &[u8], needs: u64) {
        let complete = self.complete;
        self.known(id).reply(bytes, needs, complete);
        self.let_go(id);
    }

    fn refuse(&mut self, id: SessionId, Failed(text): &Failed) {
        let mut told = Vec::new();
        reply::error(&mut told, text.as_bytes());
        self.reply(id, &told, 0);
    }

    /// A request of a connection.
    fn dispatch(&mut self, id: SessionId, words: Words<'_>) {
        self.counters.commands += 1;
        let Some(known) = command::find(words.word(0)) else {
            return self.refuse(id, &unknown(words));
        };
        if !known.takes(words.count()) {
            return self.refuse(id, &local::wrong_count(known.name));
        }
        let rest = words.behind(1);
        match known.way {
            Way::Here => self.here(id, known.command, rest),
            Way::Key => self.one_key(id, known.command, rest),
            Way::Keys => self.several(id, known, rest, 1),
            Way::Pairs if !rest.count().is_multiple_of(2) => self.refuse(id, &local::wrong_count(known.name)),
            Way::Pairs => self.several(id, known, rest, 2),
            Way::Cursor => self.scan(id, rest),
            Way::All => self.all(id, known.command, rest),
        }
    }

    fn here(&mut self, id: SessionId, command: Command, words: Words<'_>) {
        let mut scratch = std::mem::take(&mut self.scratch);
        scratch.clear();
        let settings = Settings {
            about: &self.options.about,
            memory_max: self.options.keys.memory_max * self.options.shards as u64,
            value_bytes_max: self.options.keys.value_bytes_max,
        };
        let session = self.sessions.get_mut(id.index()).expect("the connection is open");
        local::run(command, words, session, settings, &mut scratch);
        self.reply(id, &scratch, 0);
        self.scratch = scratch;
    }

    fn hash(&self, key: &[u8]) -> u64 {
        crate::hash(self.options.seed, key)
    }

    fn owner(&self, hash: u64) -> usize {
        crate::shard_of(hash, self.options.shards)
    }

    fn one_key(&mut self, id: SessionId, command: Command, words: Words<'_>) {
        let key = words.word(0);
        let hash = self.hash(key);
        let owner = self.owner(hash);
        let protocol = self.known(id).protocol;
        let call = Call {
            command,
            words,
            hash,
            protocol,
        };
        if owner == self.options.index {
            let mut scratch = std::mem::take(&mut self.scratch);
            scratch.clear();
            let needs = self.execute(&call, &mut scratch);
            self.reply(id, &scratch, needs);
            self.scratch = scratch;
            return;
        }
        if command == Command::Get && self.may_copy(id, hash, key) {
            let mut scratch = std::mem::take(&mut self.scratch);
            scratch.clear();
            self.read_copy(hash, key, &mut scratch);
            self.reply(id, &scratch, 0);
            self.scratch = scratch;
            return;
        }
        let number = self.known(id).await_reply(hash);
        self.send(owner, id, (number, 0), &call);
    }

    /// True if a copy may answer the connection.
    fn may_copy(&mut self, id: SessionId, hash: u64, key: &[u8]) -> bool {
        self.copies.has(hash, key) && !self.known(id).awaits(hash)
    }

    fn read_copy(&mut self, hash: u64, key: &[u8], out: &mut Vec<u8>) {
        let value = self.copies.read(hash, key).expect("it has one");
        reply::bulk(out, value);
    }

    fn send(&mut self, owner: usize, id: SessionId, (number, part): (u64, u32), call: &Call<'_>) {
        self.counters.steered += 1;
        let place = Place {
            session: id.0,
            number,
            part,
        };
        let &Call {
            command,
            words,
            hash,
            protocol,
        } = call;
        let message = Message::Call {
            place,
            command,
            protocol,
            hash,
            words,
        };
        message.put(&mut self.outboxes[owner]);
    }

    /// A command of several keys, each with `step` words.
    fn several(&mut self, id: SessionId, known: &Known, words: Words<'_>, step: usize) {
        let parts = words.count() / step;
        let protocol = self.known(id).protocol;
        let of_part = |shard: &Self, part: usize| {
            let spans = words.part(part * step, step);
            let hash = shard.hash(spans.word(0));
            (spans, hash)
        };
        let mut gather = Gather::new(known.command, parts, [].into_iter());
        let mut away = Vec::new();
        let mut scratch = std::mem::take(&mut self.scratch);
        for part in 0..parts {
            let (words, hash) = of_part(self, part);
            let call = Call {
                command: known.command,
                words,
                hash,
                protocol,
            };
            let owner = self.owner(hash);
            scratch.clear();
            if owner == self.options.index {
                let needs = self.execute(&call, &mut scratch);
                gather.needs = gather.needs.max(needs);
            } else if known.command == Command::MGet && self.may_copy(id, hash, words.word(0)) {
                self.read_copy(hash, words.word(0), &mut scratch);
            } else {
                away.push((owner, part as u32, call));
                continue;
            }
            gather.add(part as u32, &scratch);
        }
        self.scratch = scratch;
        let number = self.known(id).await_parts(gather);
        for (owner, part, call) in away {
            self.send(owner, id, (number, part), &call);
        }
        self.let_go(id);
    }

    fn scan(&mut self, id: SessionId, words: Words<'_>) {
        let digits = std::str::from_utf8(words.word(0)).ok();
        let is_number = |text: &&str| text.bytes().all(|byte| byte.is_ascii_digit());
        let cursor = digits.filter(is_number).and_then(|text| text.parse::<u64>().ok());
        let Some(cursor) = cursor else {
            return self.refuse(id, &"ERR invalid cursor".into());
        };
        if let Err(failed) = Scan::read(words) {
            return self.refuse(id, &failed);
        }
        // A cursor that this server has not given ends the scan.
        let shard = ((cursor >> BUCKET_BITS) as usize).min(self.options.shards - 1);
        let protocol = self.known(id).protocol;
        let call = Call {
            command: Command::Scan,
            words,
            hash: cursor & ((1 << BUCKET_BITS) - 1),
            protocol,
        };
        if shard == self.options.index {
            let mut scratch = Vec::new();
            let needs = self.execute(&call, &mut scratch);
            return self.reply(id, &scratch, needs);
        }
        let number = self.known(id).await_reply(call.hash);
        self.send(shard, id, (number, 0), &call);
    }

    /// A command that all shards carry out.
    fn all(&mut self, id: SessionId, command: Command, words: Words<'_>) {
        if matches!(command, Command::FlushAll | Command::FlushDb) {
            let is_way =
                |word: &[u8]| word.eq_ignore_ascii_case(b"async") || word.eq_ignore_ascii_case(b"sync");
            if words.count() > 1 || !words.from(0).all(is_way) {
                return self.refuse(id, &"ERR syntax error".into());
            }
        }
        let call = Call {
            command,
            words,
            hash: 0,
            protocol: self.known(id).protocol,
        };
        let mut own = Vec::new();
        let needs = self.execute(&call, &mut own);
        let gather = Gather::new(command, self.options.shards, words.from(0));
        let number = self.known(id).await_parts(gather);
        for shard in 0..self.options.shards {
            if shard != self.options.index {
                self.send(shard, id, (number, shard as u32), &call);
            }
        }
        let index = self.options.index as u32;
        self.known(id).fill(number, index, &own, needs);
        self.let_go(id);
    }

    /// Carries a command out on this shard's keys. Answers the batch that the reply needs.
    fn execute(&mut self, call: &Call<'_>, out: &mut Vec<u8>) -> u64 {
        let keys = &mut self.keys;
        match call.command {
            Command::DbSize => {
                keys.needs_all();
                reply::integer(out, keys.count() as i64);
            }
            Command::FlushAll | Command::FlushDb => {
                keys.clear();
                out.extend_from_slice(reply::OK);
            }
            Command::Keys => {
                out.extend_from_slice(&[0; 4]);
                let count = execute::keys_like(keys, call.words.word(0), out);
                out[..4].copy_from_slice(&(count as u32).to_le_bytes());
            }
            Command::Info => self.counters().put(out),
            Command::Scan => {
                let (index, shards) = (self.options.index, self.options.shards);
                let scan = Scan::read(call.words).expect("its shard has read it");
                let mut found = Vec::new();
                let next = scan.run(keys, call.hash as usize, &mut found);
                let cursor = match next {
                    Some(bucket) => (index as u64) << BUCKET_BITS | bucket as u64,
                    None if index + 1 < shards => (index as u64 + 1) << BUCKET_BITS,
                    None => 0,
                };
                reply::array(out, 2);
                reply::bulk(out, cursor.to_string().as_bytes());
                out.extend_from_slice(&found);
            }
            _ => execute::on_key(keys, call, out),
        }
        if self.keys.has_outdated() {
            self.forget_outdated();
        }
        let needs = self.keys.take_needs();
        self.is_batch_needed |= needs == self.keys.batch();
        needs
    }

    /// Tells the other shards of keys whose copies are out of date.
    fn forget_outdated(&mut self) {
        let batch = self.keys.batch();
        for (hash, key) in self.keys.take_outdated() {
            self.copied.retain(|(_, copied)| *copied != key);
            for shard in (0..self.options.shards).filter(|shard| *shard != self.options.index) {
                Message::Forget { batch, hash }.put(&mut self.outboxes[shard]);
            }
            if self.unanswered.back().is_none_or(|last| last.batch != batch) {
                self.unanswered.push_back(Unanswered {
                    batch,
                    left: 0,
                    keys: Vec::new(),
                });
            }
            let last = self.unanswered.back_mut().expect("it was just made");
            last.left += self.options.shards - 1;
            last.keys.push((hash, key, 0));
            // Somebody has to end the batch, so that the key may get copies again.
            self.is_batch_needed = true;
        }
    }

    fn forgotten(&mut self, batch: u64, hash: u64, reads: u64) {
        let found = self.unanswered.iter_mut().find(|it| it.batch == batch);
        let found = found.expect("it was asked for");
        found.left -= 1;
        if let Some(key) = found.keys.iter_mut().find(|(of, ..)| *of == hash) {
            key.2 += reads;
        }
    }

    /// Finds which batches are complete, and does what waits for that.
    fn advance(&mut self) {
        while self
            .unanswered
            .front()
            .is_some_and(|first| first.left == 0 && first.batch <= self.durable)
        {
            let first = self.unanswered.pop_front().expect("it is there");
            let renewed = first
                .keys
                .into_iter()
                .filter(|(_, _, reads)| *reads >= READS_TO_RENEW);
            self.to_copy.extend(renewed.map(|(hash, key, _)| (hash, key)));
        }
        let before = self.complete;
        let first = self.unanswered.front().map_or(u64::MAX, |first| first.batch - 1);
        self.complete = self.durable.min(first);
        if self.complete > before {
            while self.held.front().is_some_and(|held| held.needs <= self.complete) {
                let held = self.held.pop_front().expect("it is there");
                let (place, bytes) = (held.place, &held.bytes[..]);
                Message::Reply { place, bytes }.put(&mut self.outboxes[held.to]);
            }
            for id in std::mem::take(&mut self.waiting) {
                if let Some(session) = self.session(id) {
                    session.is_listed = false;
                    self.let_go(id);
                }
            }
        }
        if !self.to_copy.is_empty() {
            self.copy();
        }
    }

    /// Sends copies of the keys that are to have them. One that may have none now can become hot again.
    fn copy(&mut self) {
        for (hash, key) in std::mem::take(&mut self.to_copy) {
            let Some(entry) = self.keys.lasting(hash, &key, self.complete) else {
                continue;
            };
            if entry.has_copies || entry.value().len() > COPY_BYTES_MAX {
                continue;
            }
            for shard in (0..self.options.shards).filter(|shard| *shard != self.options.index) {
                let (key, value) = (entry.key(), entry.value());
                Message::Copy { hash, key, value }.put(&mut self.outboxes[shard]);
            }
            self.keys.mark_copied(hash, &key);
            self.copied.push_back((hash, key));
        }
        while self.copied.len() > COPIED_MAX {
            let (hash, key) = self.copied.pop_front().expect("there are some");
            self.keys.outdate(hash, &key);
            self.forget_outdated();
        }
    }

    /// Counters of this shard.
    pub fn counters(&self) -> Counters {
        let keys = self.keys.counters();
        Counters {
            clients: self.sessions.len() as u64,
            keys: self.keys.count() as u64,
            mortal: self.keys.mortal() as u64,
            memory: self.keys.memory(),
            memory_max: self.options.keys.memory_max,
            hits: keys.hits + self.copies.reads(),
            misses: keys.misses,
            expired: keys.expired,
            evicted: keys.evicted,
            copies: self.copies.count() as u64,
            copy_reads: self.copies.reads(),
            ..self.counters
        }
    }
}

/// The error of a command that is not there, as Redis words it.
fn unknown(words: Words<'_>) -> Failed {
    let mut told = String::new();
    for word in words.from(1) {
        if told.len() >= 128 {
            break;
        }
        told.push_str(&format!("'{}' ", execute::shown(word, 128 - told.len())));
    }
    let name = execute::shown(words.word(0), 128);
    Failed(format!("ERR unknown command '{name}', with args beginning with: {told}").into())
}
