//! A key-value store on a storage area: every change is durable when the command returns.
//!
//! ```text
//! cargo run --release -p switchyard-area --example kv -- kv.area put colour blue
//! cargo run --release -p switchyard-area --example kv -- kv.area get colour
//! cargo run --release -p switchyard-area --example kv -- kv.area rename colour color
//! cargo run --release -p switchyard-area --example kv -- kv.area list c
//! cargo run --release -p switchyard-area --example kv -- kv.area history
//! ```
//!
//! The store has two structures in one area: a tree with the values, and a log with the history. A batch changes both,
//! so a crash leaves either both changes or none. `switchyard store verify kv.area` checks the file.

use area::{Area, AreaError, AreaOptions, Batch, Log, Tree};
use std::ops::Bound;
use std::path::Path;
use std::process::ExitCode;

/// Size of a new store. Live data may take 80 % of an area.
const AREA_BYTES: u64 = 64 << 20;
/// Changes that the history keeps.
const HISTORY_MAX: u64 = 1000;

/// The store. Clones of an area share it, so a server may give each thread its own `Store`.
struct Store {
    area: Area,
    values: Tree,
    history: Log,
}

impl Store {
    /// Opens the store and creates a missing file. A second process that opens the file gets an error.
    fn open(path: &Path) -> Result<Self, AreaError> {
        let area = Area::open(path, &AreaOptions::new(AREA_BYTES))?;
        let (values, history) = (area.tree("values")?, area.log("history")?);
        Ok(Self {
            area,
            values,
            history,
        })
    }

    fn get(&self, key: &str) -> Result<Option<Vec<u8>>, AreaError> {
        self.values.get(key.as_bytes())
    }

    /// Sets a value. One write makes the value and its line of history durable.
    fn put(&self, key: &str, value: &[u8]) -> Result<(), AreaError> {
        let batch = Batch::new().put(&self.values, key.as_bytes(), value);
        self.change(batch, &format!("put {key}"))
    }

    fn remove(&self, key: &str) -> Result<(), AreaError> {
        let batch = Batch::new().remove(&self.values, key.as_bytes());
        self.change(batch, &format!("remove {key}"))
    }

    /// Moves a value to another key. No reader after a crash finds the value twice, or not at all.
    fn rename(&self, from: &str, to: &str) -> Result<bool, AreaError> {
        let Some(value) = self.get(from)? else {
            return Ok(false);
        };
        let batch = Batch::new()
            .put(&self.values, to.as_bytes(), &value)
            .remove(&self.values, from.as_bytes());
        self.change(batch, &format!("rename {from} {to}"))?;
        Ok(true)
    }

    /// Commits a batch with its line of history, and drops history that is too old.
    fn change(&self, batch: Batch, what: &str) -> Result<(), AreaError> {
        let floor = self.history.positions()?.end.saturating_sub(HISTORY_MAX);
        let batch = batch
            .append(&self.history, what.as_bytes())
            .trim(&self.history, floor);
        batch.commit(&self.area)?;
        Ok(())
    }

    /// The keys that begin with `prefix` and their values, in order.
    fn list<'a>(&'a self, prefix: &'a str) -> impl Iterator<Item = Result<(Box<[u8]>, Vec<u8>), AreaError>> {
        let from = (Bound::Included(prefix.as_bytes()), Bound::Unbounded);
        let begins = move |key: &[u8]| key.starts_with(prefix.as_bytes());
        let entries = self.values.range(from);
        entries.take_while(move |entry| entry.as_ref().map_or(true, |(key, _)| begins(key)))
    }
}

/// Carries out one command. `None` says that the command is unknown.
fn execute(store: &Store, words: &[&str]) -> Result<Option<String>, AreaError> {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Some(match *words {
        ["put", key, value] => store.put(key, value.as_bytes()).map(|()| String::new())?,
        ["get", key] => store
            .get(key)?
            .map_or("(none)\n".to_owned(), |value| text(&value) + "\n"),
        ["remove", key] => store.remove(key).map(|()| String::new())?,
        ["rename", from, to] => match store.rename(from, to)? {
            true => String::new(),
            false => "(none)\n".to_owned(),
        },
        ["list"] | ["list", _] => {
            let entries = store.list(words.get(1).copied().unwrap_or_default());
            let line = |entry: Result<(Box<[u8]>, Vec<u8>), _>| {
                entry.map(|(key, value)| format!("{} = {}\n", text(&key), text(&value)))
            };
            entries.map(line).collect::<Result<_, _>>()?
        }
        ["history"] => {
            let lines = store.history.iter(0);
            let line =
                |entry: Result<(u64, Vec<u8>), _>| entry.map(|(at, what)| format!("{at} {}\n", text(&what)));
            lines.map(line).collect::<Result<_, _>>()?
        }
        _ => return Ok(None),
    }))
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let answer = match words.split_first() {
        Some((path, command)) => Store::open(Path::new(path)).and_then(|store| execute(&store, command)),
        None => Ok(None),
    };
    match answer {
        Ok(Some(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Ok(None) => {
            eprintln!(
                "usage: kv FILE put KEY VALUE | get KEY | remove KEY | rename FROM TO | list [PREFIX] | history"
            );
            ExitCode::from(2)
        }
        Err(error) => {
            eprintln!("kv: {error}");
            ExitCode::FAILURE
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_history_are_there_after_a_restart() -> Result<(), AreaError> {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("kv.area");
        let store = Store::open(&path)?;
        for words in [
            &["put", "colour", "blue"][..],
            &["put", "shape", "round"],
            &["rename", "colour", "color"],
            &["remove", "shape"],
        ] {
            assert!(execute(&store, words)?.is_some());
        }
        assert_eq!(execute(&store, &["get", "colour"])?.as_deref(), Some("(none)\n"));
        drop(store);
        let store = Store::open(&path)?;
        assert_eq!(
            execute(&store, &["list", "c"])?.as_deref(),
            Some("color = blue\n")
        );
        assert_eq!(
            execute(&store, &["history"])?.as_deref(),
            Some("0 put colour\n1 put shape\n2 rename colour color\n3 remove shape\n")
        );
        assert_eq!(execute(&store, &["burn"])?, None);
        Ok(())
    }
}
