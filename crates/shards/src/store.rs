//! The storage area of a shard: changes in, keys out at the start (docs/format/kv.md).

use area::{Area, AreaError, AreaOptions, Map, Op, SubmitError};
use kv::keyspace::KEY_BYTES_MAX;
use kv::{Keyspace, KeyspaceOptions};
use std::path::Path;

/// The map that has the keys.
const MAP: &str = "kv";
/// Bytes before a value: when it ends.
pub const HEAD_BYTES: usize = 8;
/// Keys that are read at once.
const STEP: usize = 1024;
/// Bytes of an operation beside its key and value, with room to spare.
const OP_BYTES: usize = 64;

/// How long a reply waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// Until the change is durable.
    Always,
    /// Not; changes are durable a second later.
    EverySecond,
    /// Not; nothing is kept.
    None,
}

impl Durability {
    /// As commands and INFO name it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Always => "always",
            Self::EverySecond => "everysec",
            Self::None => "none",
        }
    }
}

/// A shard's area.
pub struct Store {
    area: Area,
    map: Map,
    waits: bool,
    batch_bytes_max: usize,
    area_bytes_max: u64,
    /// Values of the commit at hand.
    values: Vec<u8>,
}

/// An operation of a commit: its key, and where its value is; none to remove the key.
type Change = (Box<[u8]>, Option<(usize, usize)>);

impl Store {
    /// Opens the area at `path`, and makes it of `bytes` if it is not there. It may grow to `bytes_max`.
    ///
    /// # Errors
    /// Of the area.
    pub fn open(path: &Path, bytes: u64, bytes_max: u64, durability: Durability) -> Result<Self, AreaError> {
        let area = Area::open(path, &AreaOptions::new(bytes).with_memory(64 << 20))?;
        let map = area.map(MAP)?;
        Ok(Self {
            batch_bytes_max: area.batch_bytes_max(),
            area,
            map,
            waits: durability == Durability::Always,
            area_bytes_max: bytes_max,
            values: Vec::new(),
        })
    }

    /// The longest value that fits a commit with any key.
    pub fn value_bytes_max(&self) -> usize {
        self.batch_bytes_max - KEY_BYTES_MAX - HEAD_BYTES - OP_BYTES
    }

    /// The area, to be synced by another thread.
    pub fn area(&self) -> &Area {
        &self.area
    }

    /// Hands out all keys with their values and ends.
    ///
    /// # Errors
    /// The area cannot be read, or a value is none of ours.
    pub fn each(&self, mut f: impl FnMut(&[u8], &[u8], u64)) -> Result<(), LoadError> {
        let all = self.map.keys()?;
        for keys in all.chunks(STEP) {
            let keys: Vec<&[u8]> = keys.iter().map(|key| &**key).collect();
            let values = self.map.get_many(&keys)?;
            for (key, value) in keys.iter().zip(values) {
                // Nobody changes the area meanwhile: each key has its value.
                let value = value.as_deref().and_then(<[u8]>::split_first_chunk);
                let (head, value) = value.ok_or(LoadError::Value)?;
                f(key, value, u64::from_le_bytes(*head));
            }
        }
        Ok(())
    }

    /// Fills a keyspace that is empty. What has ended, or finds no room, is removed from the area.
    ///
    /// # Errors
    /// As of [`Store::each`].
    pub fn load(&mut self, keys: &mut Keyspace, seed: u64) -> Result<Loaded, LoadError> {
        let (mut loaded, mut gone) = (Loaded::default(), Vec::new());
        let now_ms = keys.now_ms();
        self.each(|key, value, ends_ms| {
            if ends_ms != 0 && ends_ms <= now_ms {
                loaded.ended += 1;
                gone.push(key.to_vec());
            } else if keys.load(kv::hash(seed, key), key, value, ends_ms).is_err() {
                loaded.left_out += 1;
                gone.push(key.to_vec());
            } else {
                loaded.keys += 1;
            }
        })?;
        for key in gone {
            let map = self.map.id();
            self.area.enter(&[Op::Remove { map, key: &key }])?;
        }
        self.area.sync()?;
        Ok(loaded)
    }

    /// Puts a key, without waiting: for a copy of a whole area. [`Area::sync`] ends it.
    ///
    /// # Errors
    /// Of the area.
    pub fn copy_in(&mut self, key: &[u8], value: &[u8], ends_ms: u64) -> Result<(), AreaError> {
        self.values.clear();
        self.values.extend_from_slice(&ends_ms.to_le_bytes());
        self.values.extend_from_slice(value);
        let change = [(key.into(), Some((0, self.values.len())))];
        self.submit(&change, false)
    }

    /// Writes the changes of a keyspace. They are durable on return, unless they are to be so later.
    ///
    /// # Errors
    /// The area has failed, or is full and cannot grow: whether the changes are there is not known.
    pub fn commit(&mut self, keys: &Keyspace) -> Result<(), AreaError> {
        if keys.changes().is_cleared {
            self.area.drop_structure(self.map.id())?;
            self.map = self.area.map(MAP)?;
        }
        self.values.clear();
        let mut changes: Vec<Change> = Vec::with_capacity(keys.changes().count());
        let values = &mut self.values;
        keys.each_change(|key, entry| {
            let value = entry.map(|entry| {
                let begin = values.len();
                values.extend_from_slice(&entry.expires_ms.to_le_bytes());
                values.extend_from_slice(entry.value());
                (begin, values.len())
            });
            changes.push((key.into(), value));
        });
        let mut rest = &changes[..];
        while !rest.is_empty() {
            let bytes =
                |(key, value): &Change| OP_BYTES + key.len() + value.map_or(0, |(begin, end)| end - begin);
            let (mut sum, mut count) = (0, 0);
            while count < rest.len() && (count == 0 || sum + bytes(&rest[count]) <= self.batch_bytes_max) {
                sum += bytes(&rest[count]);
                count += 1;
            }
            let (part, after) = rest.split_at(count);
            // Records become durable in their order: the last one stands for all.
            self.submit(part, self.waits && after.is_empty())?;
            rest = after;
        }
        Ok(())
    }

    fn submit(&self, changes: &[Change], waits: bool) -> Result<(), AreaError> {
        let map = self.map.id();
        let ops: Vec<Op<'_>> = changes
            .iter()
            .map(|(key, value)| match *value {
                Some((begin, end)) => Op::Put {
                    map,
                    key,
                    data: &self.values[begin..end],
                },
                None => Op::Remove { map, key },
            })
            .collect();
        loop {
            let result = match waits {
                true => self.area.commit(&ops),
                false => self.area.enter(&ops),
            };
            match result {
                Err(AreaError::Refused(SubmitError::NoSpace)) => self.grow()?,
                other => return other.map(drop),
            }
        }
    }

    /// The area becomes twice as large, as far as it may.
    fn grow(&self) -> Result<(), AreaError> {
        let bytes = self.area.layout().capacity_bytes();
        let wanted = (2 * bytes).min(self.area_bytes_max);
        if wanted <= bytes {
            return Err(AreaError::Refused(SubmitError::NoSpace));
        }
        self.area.grow(wanted).map(drop)
    }
}

/// What a start has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    /// Keys.
    pub keys: u64,
    /// Keys whose time was over.
    pub ended: u64,
    /// Keys for which there was no memory.
    pub left_out: u64,
}

/// Why keys cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The area.
    #[error(transparent)]
    Area(#[from] AreaError),
    /// A value without its head.
    #[error("it holds a value that this program has not written")]
    Value,
}

/// Options of a keyspace whose values fit an area.
pub fn fit(options: KeyspaceOptions, store: &Store) -> KeyspaceOptions {
    KeyspaceOptions {
        value_bytes_max: options.value_bytes_max.min(store.value_bytes_max()),
        keeps_changes: true,
        ..options
    }
}
