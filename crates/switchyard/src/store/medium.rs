//! An area offline: how it is opened, judged, and what its keys look like.

use crate::failure::Failure;
use runtime::{MediaFile, MediaOpenError};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::Path;
use store::{EntryKey, LostPages, OpenError};

/// Damaged places of tables that people are told; the JSON has all.
const PAGES_TOLD: usize = 20;

/// Takes the medium, to read it; it may be immutable, or on a read-only file system.
pub(super) fn open(path: &Path) -> anyhow::Result<MediaFile> {
    let opened = match MediaFile::open(path, 0, false) {
        Err(MediaOpenError::Os { source, .. })
            if matches!(
                source.kind(),
                ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem
            ) =>
        {
            MediaFile::open_to_read(path)
        }
        opened => opened,
    };
    opened.map_err(|error| match error {
        MediaOpenError::InUse(_) => Failure::InUse(error.to_string()).into(),
        error => Failure::Uncheckable(error.to_string()).into(),
    })
}

/// Bytes at the end of an area of `area_bytes` that were never written, if it is in a file. An area is written from end to end when it is made, so a
/// file with such a hole was cut off and grown again, or copied by a program that leaves zeros out.
pub(super) fn hole_at_end(file: &File, area_bytes: u64) -> Option<u64> {
    file.metadata().ok().filter(fs::Metadata::is_file)?;
    let last = area_bytes.checked_sub(1)?;
    match rustix::fs::seek(file, SeekFrom::Data(last)) {
        Err(Errno::NXIO) => {}
        _ => return None,
    }
    // The hole begins where the last data end.
    let mut at = 0;
    loop {
        let hole = rustix::fs::seek(file, SeekFrom::Hole(at)).ok()?;
        match rustix::fs::seek(file, SeekFrom::Data(hole)) {
            Ok(data) => at = data,
            Err(Errno::NXIO) => return area_bytes.checked_sub(hole).filter(|&bytes| bytes > 0),
            Err(_) => return None,
        }
    }
}

/// An area that cannot be judged at all is another exit code than one that is damaged.
pub(super) fn judged(path: &Path, error: OpenError) -> anyhow::Error {
    let text = format!("{}: {error}", path.display());
    match error {
        OpenError::NotAnArea
        | OpenError::OtherVersion(_)
        | OpenError::TooSmall { .. }
        | OpenError::Medium(_) => Failure::Uncheckable(text).into(),
        _ => anyhow::Error::msg(text),
    }
}

/// Bytes as text if they are text, else in hexadecimal.
pub(super) fn text(bytes: &[u8]) -> Value {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.chars().any(char::is_control) => json!(text),
        _ => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            json!({ "hex": hex })
        }
    }
}

/// A key or position, for JSON and people.
pub(super) fn key(key: &EntryKey) -> Value {
    match key {
        EntryKey::Position(position) => json!(position),
        EntryKey::Bytes(bytes) => text(bytes),
    }
}

/// Structures and keys, for JSON.
pub(super) fn keys(entries: &[(String, EntryKey)]) -> Vec<Value> {
    let entry = |(name, it): &(String, EntryKey)| json!({ "structure": name, "key": key(it) });
    entries.iter().map(entry).collect()
}

/// Damaged parts of tables, for JSON.
pub(super) fn pages(pages: &[LostPages]) -> Vec<Value> {
    let place = |it: &(String, Vec<u8>)| json!({ "structure": it.0, "key": text(&it.1) });
    let page = |it: &LostPages| {
        let keys = it.keys.as_ref();
        json!({ "offset": it.offset, "from": keys.map(|keys| place(&keys[0])), "to": keys.map(|keys| place(&keys[1])) })
    };
    pages.iter().map(page).collect()
}

/// Tells people of damaged parts of tables: their keys `fate`.
pub(super) fn tell_pages(pages: &[LostPages], fate: &str) {
    for it in pages.iter().take(PAGES_TOLD) {
        match &it.keys {
            Some([from, to]) => println!(
                "  byte {}: keys from {} of {} to {} of {} {fate}",
                it.offset,
                text(&from.1),
                from.0,
                text(&to.1),
                to.0
            ),
            None => println!(
                "  byte {}: keys of a table that does not name them {fate}",
                it.offset
            ),
        }
    }
    if pages.len() > PAGES_TOLD {
        println!("  and {} more places: --json lists all", pages.len() - PAGES_TOLD);
    }
}
