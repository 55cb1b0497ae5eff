//! A registry in etcd: one key, changed by compare-and-swap.
//!
//! Invariant: a store is one transaction that compares the key's `mod_revision` with that of the records that were
//! read under this epoch. So a store that is late conflicts with every store since.

mod access;
mod client;
mod url;

pub use url::{EtcdUrl, SCHEME};

use super::format::{emit_compact, parse};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use client::Client;
use rack::registry::{Registry, RegistryError, Snapshot};
use serde::Deserialize;
use serde_json::{Value, json};
use std::cell::Cell;
use std::time::{Duration, Instant};
use uuid::Uuid;

/// A start waits this long for an etcd that does not serve.
const OPEN_WITHIN: Duration = Duration::from_secs(10);
/// Between two attempts.
const OPEN_EVERY: Duration = Duration::from_millis(250);

#[derive(Deserialize)]
struct Range {
    #[serde(default)]
    kvs: Vec<KeyValue>,
}

/// etcd leaves fields out that are zero or empty, and writes 64-bit numbers as text.
#[derive(Deserialize)]
struct KeyValue {
    mod_revision: String,
    #[serde(default)]
    value: String,
}

#[derive(Deserialize)]
struct Header {
    revision: String,
}

#[derive(Deserialize)]
struct Transaction {
    header: Header,
    #[serde(default)]
    succeeded: bool,
}

/// A key's bytes, and the revision of etcd that changed them last.
struct Kept {
    bytes: Vec<u8>,
    revision: u64,
}

/// A registry in etcd.
#[derive(Debug)]
pub struct EtcdRegistry {
    url: EtcdUrl,
    client: Client,
    /// Epoch and revision of the records that were read or stored last.
    seen: Cell<Option<(u64, u64)>>,
}

impl EtcdRegistry {
    /// The registry at this address, which may be missing.
    pub fn at(url: EtcdUrl) -> Self {
        Self {
            client: Client::new(&url),
            url,
            seen: Cell::new(None),
        }
    }

    /// The registry at this address; an empty one is made if there is none.
    pub fn open(url: EtcdUrl) -> Result<Self, RegistryError> {
        let registry = Self::at(url);
        let until = Instant::now() + OPEN_WITHIN;
        let mut is_told = false;
        loop {
            match registry.read().and_then(|kept| registry.make_if_missing(kept)) {
                Ok(()) => break,
                Err(error @ RegistryError::Unavailable(_)) if Instant::now() < until => {
                    if !is_told {
                        is_told = true;
                        let within = OPEN_WITHIN.as_secs();
                        eprintln!("switchyard: waits up to {within} s for the registry: {error}");
                    }
                    std::thread::sleep(OPEN_EVERY);
                }
                Err(error) => return Err(error),
            }
        }
        registry.load()?;
        Ok(registry)
    }

    fn make_if_missing(&self, kept: Option<Kept>) -> Result<(), RegistryError> {
        if kept.is_some() {
            return Ok(());
        }
        let empty = Snapshot {
            rack: Uuid::new_v4(),
            ..Snapshot::default()
        };
        // Another gateway may have made it first.
        self.swap(&empty, 0).map(drop)
    }

    /// The bytes that are kept, `None` if there are none.
    pub fn bytes(&self) -> Result<Option<Vec<u8>>, RegistryError> {
        Ok(self.read()?.map(|kept| kept.bytes))
    }

    /// Puts records in the place of those that there are, damaged ones too.
    pub fn replace<E: From<RegistryError>>(
        &self,
        next: impl FnOnce(Option<Snapshot>) -> Result<Snapshot, E>,
    ) -> Result<(), E> {
        let kept = self.read()?;
        let revision = kept.as_ref().map_or(0, |kept| kept.revision);
        let snapshot = next(kept.and_then(|kept| parse(&kept.bytes).ok()))?;
        match self.swap(&snapshot, revision)? {
            Some(_) => Ok(()),
            None => Err(RegistryError::Conflict.into()),
        }
    }

    fn key(&self) -> String {
        BASE64_STANDARD.encode(self.url.key())
    }

    fn read(&self) -> Result<Option<Kept>, RegistryError> {
        let range: Range = self.client.read("/v3/kv/range", &json!({ "key": self.key() }))?;
        let Some(found) = range.kvs.into_iter().next() else {
            return Ok(None);
        };
        let bytes = BASE64_STANDARD.decode(&found.value);
        Ok(Some(Kept {
            bytes: bytes.map_err(|error| self.fail(error))?,
            revision: found.mod_revision.parse().map_err(|error| self.fail(error))?,
        }))
    }

    /// Stores the records if the key has this revision, 0 if it is to be missing; returns the new revision.
    fn swap(&self, snapshot: &Snapshot, revision: u64) -> Result<Option<u64>, RegistryError> {
        let done: Transaction = self
            .client
            .write("/v3/kv/txn", &transaction(&self.key(), snapshot, revision))?;
        match done.succeeded {
            true => Ok(Some(
                done.header.revision.parse().map_err(|error| self.fail(error))?,
            )),
            false => Ok(None),
        }
    }

    fn fail(&self, why: impl std::fmt::Display) -> RegistryError {
        RegistryError::Unavailable(format!("{}: {why}", self.url))
    }
}

fn transaction(key: &str, snapshot: &Snapshot, revision: u64) -> Value {
    let value = BASE64_STANDARD.encode(emit_compact(snapshot));
    json!({
        "compare": [{ "key": key, "target": "MOD", "result": "EQUAL", "mod_revision": revision.to_string() }],
        "success": [{ "request_put": { "key": key, "value": value } }],
    })
}

impl Registry for EtcdRegistry {
    fn load(&self) -> Result<Snapshot, RegistryError> {
        let kept = self.read()?.ok_or_else(|| {
            let key = self.url.key();
            self.fail(format!(
                "etcd has no key {key}: restore it with `switchyard registry restore`"
            ))
        })?;
        let snapshot = parse(&kept.bytes).map_err(|error| self.fail(error))?;
        self.seen.set(Some((snapshot.epoch, kept.revision)));
        Ok(snapshot)
    }

    fn store(&mut self, snapshot: &Snapshot) -> Result<(), RegistryError> {
        let seen = self.seen.get().filter(|(epoch, _)| *epoch == snapshot.epoch);
        let revision = match seen {
            Some((_, revision)) => revision,
            None if self.load()?.epoch != snapshot.epoch => return Err(RegistryError::Conflict),
            None => self.seen.get().expect("it was loaded").1,
        };
        let next = Snapshot {
            epoch: snapshot.epoch + 1,
            ..snapshot.clone()
        };
        self.seen.set(None);
        match self.swap(&next, revision)? {
            Some(revision) => {
                self.seen.set(Some((next.epoch, revision)));
                Ok(())
            }
            None => Err(RegistryError::Conflict),
        }
    }
}
