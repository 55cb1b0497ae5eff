//! Cursors: the entries of a tree in either order, and of a map.
//!
//! A cursor looks up a step of entries at once and lends one after the other. The first step is short, as many cursors are not
//! read to their end. Entries that come and go meanwhile may be there or not.

use crate::arguments::{Slice, Versioned, known_flags, name, place, read_sized};
use crate::follower::{OpenFollower, find, no_keys};
use crate::handles::{Handle, Target, close, give, look_up};
use crate::keyed::{OpenMap, OpenTree, Read, key_of};
use crate::result::{NONE, OK, Result, call, invalid};
use crate::snapshot::OpenSnapshot;
use crate::sync::{Arc, Mutex, PoisonError};
use area::{AreaError, Follower, Kind, Moment, StructureId};
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::ops::Bound;
use std::vec;
use store::Way;

/// Entries of the first step, and of the longest.
const STEP_FIRST: usize = 16;
const STEP_MAX: usize = 256;
/// Bytes of values after which a step ends.
const STEP_BYTES_MAX: usize = 1 << 20;
/// Values of a map that are read together: few, as each may have many bytes.
const VALUES_AT_ONCE: usize = 16;

/// `SWY_KEYS_ONLY`.
const KEYS_ONLY: u32 = 1;
/// `SWY_REVERSE`.
const REVERSE: u32 = 2;

const UNBOUNDED: u32 = 0;
const INCLUDED: u32 = 1;
const EXCLUDED: u32 = 2;

type Entry = (Box<[u8]>, Vec<u8>);

/// `swy_range`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct CRange {
    size: usize,
    from: *const c_void,
    from_length: usize,
    to: *const c_void,
    to_length: usize,
    from_bound: u32,
    to_bound: u32,
    flags: u64,
}

impl Default for CRange {
    fn default() -> Self {
        // SAFETY: zeros are integers and null pointers.
        unsafe { std::mem::zeroed() }
    }
}

// SAFETY: integers and pointers, which may have any value, 8 bytes each but for two of 4.
unsafe impl Versioned for CRange {
    const NAME: &'static str = "swy_range";
    const BYTES_MIN: usize = 56;
}
const _: () = assert!(size_of::<CRange>() == CRange::BYTES_MIN);

fn bound(kind: u32, key: *const c_void, length: usize) -> Result<Bound<Box<[u8]>>> {
    match kind {
        UNBOUNDED if key.is_null() && length == 0 => Ok(Bound::Unbounded),
        UNBOUNDED => Err(invalid("a bound with a key is SWY_INCLUDED or SWY_EXCLUDED")),
        INCLUDED => Ok(Bound::Included(key_of(key, length)?.into())),
        EXCLUDED => Ok(Bound::Excluded(key_of(key, length)?.into())),
        _ => Err(invalid("a bound is SWY_UNBOUNDED, SWY_INCLUDED or SWY_EXCLUDED")),
    }
}

fn as_slice(bound: &Bound<Box<[u8]>>) -> Bound<&[u8]> {
    bound.as_ref().map(|key| &**key)
}

/// The flags of a caller.
fn known(flags: u64, known: u32) -> Result<u32> {
    let flags = u32::try_from(flags).map_err(|_| invalid("a flag of the cursor is not known"))?;
    known_flags(flags, known)?;
    Ok(flags)
}

/// A range of keys, and the way through it.
struct Range {
    from: Bound<Box<[u8]>>,
    to: Bound<Box<[u8]>>,
    way: Way,
}

impl Range {
    /// That of a caller, and if values are wanted.
    fn read(range: *const CRange) -> Result<(Self, bool)> {
        let range = read_sized(range)?;
        let from = bound(range.from_bound, range.from, range.from_length)?;
        let to = bound(range.to_bound, range.to, range.to_length)?;
        let flags = known(range.flags, KEYS_ONLY | REVERSE)?;
        let way = match flags & REVERSE {
            0 => Way::Up,
            _ => Way::Down,
        };
        Ok((Self { from, to, way }, flags & KEYS_ONLY == 0))
    }

    fn bounds(&self) -> Bounds<'_> {
        (as_slice(&self.from), as_slice(&self.to))
    }

    /// The rest is behind this key.
    fn go_on_behind(&mut self, key: &[u8]) {
        let end = match self.way {
            Way::Up => &mut self.from,
            Way::Down => &mut self.to,
        };
        *end = Bound::Excluded(key.into());
    }

    fn is_all(&self) -> bool {
        matches!((&self.from, &self.to), (Bound::Unbounded, Bound::Unbounded))
    }
}

type Bounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// A question to a tree: for the next entries of a range, or for the next keys, which have empty values then.
struct Step<'a> {
    bounds: Bounds<'a>,
    way: Way,
    entries_max: usize,
    has_values: bool,
}

/// Entries that a range begins with, as far as a step goes. An entry that cannot be read ends the step, and is the error of the next one.
fn gather(entries_max: usize, entries: impl Iterator<Item = Read<Entry>>) -> Read<VecDeque<Entry>> {
    let (mut found, mut bytes) = (VecDeque::new(), 0);
    for entry in entries.take(entries_max) {
        match entry {
            Ok(entry) => {
                bytes += entry.1.len();
                found.push_back(entry);
            }
            Err(error) if found.is_empty() => return Err(error),
            Err(_) => break,
        }
        if bytes >= STEP_BYTES_MAX {
            break;
        }
    }
    Ok(found)
}

fn bare(keys: impl Iterator<Item = Box<[u8]>>) -> VecDeque<Entry> {
    keys.map(|key| (key, Vec::new())).collect()
}

/// Asks a tree, of whomever.
type AskTree = Box<dyn Fn(&Step<'_>) -> Read<VecDeque<Entry>> + Send>;
/// Asks a map, of whomever, for values.
type AskMap = Box<dyn Fn(&[&[u8]]) -> Read<Vec<Option<Vec<u8>>>> + Send>;

/// The source of the entries.
enum Source {
    Tree {
        ask: AskTree,
        /// The rest of the range.
        left: Range,
    },
    Map {
        ask: AskMap,
        /// The rest of the keys.
        left: vec::IntoIter<Box<[u8]>>,
    },
}

impl Source {
    /// The next entries, at most `entries_max`, or about as many; none at the end. Each comes once.
    fn next(&mut self, entries_max: usize, has_values: bool) -> Read<VecDeque<Entry>> {
        match self {
            Self::Tree { ask, left } => {
                let found = ask(&Step {
                    bounds: left.bounds(),
                    way: left.way,
                    entries_max,
                    has_values,
                })?;
                if let Some((last, _)) = found.back() {
                    left.go_on_behind(last);
                }
                Ok(found)
            }
            Self::Map { left, .. } if !has_values => Ok(bare(left.by_ref().take(entries_max))),
            Self::Map { ask, left } => {
                let (mut found, mut bytes, mut at_once) = (VecDeque::new(), 0, VALUES_AT_ONCE);
                while found.len() < entries_max && bytes < STEP_BYTES_MAX && left.len() > 0 {
                    let some = &left.as_slice()[..left.len().min(at_once)];
                    let wanted: Vec<&[u8]> = some.iter().map(|key| &**key).collect();
                    let values = match ask(&wanted) {
                        Ok(values) => values,
                        // One of them cannot be read: those before it come first.
                        Err(_) if some.len() > 1 => {
                            at_once = 1;
                            continue;
                        }
                        Err(error) if found.is_empty() => return Err(error),
                        Err(_) => break,
                    };
                    let there = values.into_iter().zip(left.by_ref());
                    // A key that was removed since is left out.
                    found.extend(there.filter_map(|(value, key)| {
                        bytes += value.as_ref().map_or(0, Vec::len);
                        Some((key, value?))
                    }));
                }
                Ok(found)
            }
        }
    }
}

/// A structure of another process.
struct Followed {
    follower: Follower,
    id: StructureId,
    /// When the cursor was opened: a steady follower shows no other.
    moment: Moment,
}

impl Followed {
    fn checked(&self) -> Read<&Follower> {
        match self.follower.is_steady() && self.follower.moment() != self.moment {
            true => Err(AreaError::SnapshotGone),
            false => Ok(&self.follower),
        }
    }

    fn entries(&self, step: &Step<'_>) -> Read<VecDeque<Entry>> {
        let entries = self.checked()?.entries_at(self.id, step.bounds, step.way);
        let found = gather(step.entries_max, entries)?;
        Ok(match step.has_values {
            true => found,
            false => bare(found.into_iter().map(|(key, _)| key)),
        })
    }
}

struct State {
    source: Source,
    found: VecDeque<Entry>,
    step: usize,
    has_values: bool,
    /// The entry that is lent.
    lent: Option<Entry>,
}

/// A cursor of one thread at a time: the lock is for programs that break the rule.
pub struct Cursor(Mutex<State>);

impl Target for Cursor {
    const KIND: u64 = 6;
    const NAME: &'static str = "cursor";
}

impl State {
    fn next(&mut self) -> Read<Option<&Entry>> {
        self.lent = None;
        if self.found.is_empty() {
            self.found = self.source.next(self.step, self.has_values)?;
            self.step = (2 * self.step).min(STEP_MAX);
        }
        self.lent = self.found.pop_front();
        Ok(self.lent.as_ref())
    }
}

/// Hands out a cursor over the source that `open` opens, with values if these are wanted.
fn hand_out(cursor: *mut Handle, open: impl FnOnce() -> Result<(Source, bool)>) -> c_int {
    call(|| {
        let place = place(cursor)?;
        *place = std::ptr::null_mut();
        let (source, has_values) = open()?;
        *place = give(Cursor(Mutex::new(State {
            source,
            found: VecDeque::new(),
            step: STEP_FIRST,
            has_values,
            lent: None,
        })))?;
        Ok(OK)
    })
}

/// Hands out a cursor over a range of a tree as it is now, or as a snapshot has it.
fn hand_out_tree(
    cursor: *mut Handle,
    range: *const CRange,
    find: impl FnOnce() -> Result<(Option<Arc<OpenSnapshot>>, Arc<OpenTree>)>,
) -> c_int {
    hand_out(cursor, || {
        let (left, has_values) = Range::read(range)?;
        let (at, tree) = find()?;
        let ask: AskTree = Box::new(move |step| {
            let (tree, at) = (&tree.it, at.as_ref().map(|at| &at.it));
            let (bounds, way, max) = (step.bounds, step.way, step.entries_max);
            match step.has_values {
                true => gather(max, tree.entries_at(at, bounds, way)),
                false => Ok(bare(tree.keys_at(at, bounds, way, max)?.into_iter())),
            }
        });
        Ok((Source::Tree { ask, left }, has_values))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_tree_cursor_open(
    tree: Handle,
    range: *const CRange,
    cursor: *mut Handle,
) -> c_int {
    hand_out_tree(cursor, range, || Ok((None, look_up(tree)?)))
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_snapshot_tree_cursor_open(
    snapshot: Handle,
    tree: Handle,
    range: *const CRange,
    cursor: *mut Handle,
) -> c_int {
    hand_out_tree(cursor, range, || {
        let (at, tree) = OpenSnapshot::with(snapshot, tree)?;
        Ok((Some(at), tree))
    })
}

/// Hands out a cursor over a map: over its keys, and a function that asks for their values.
fn hand_out_map(
    cursor: *mut Handle,
    flags: u32,
    find: impl FnOnce() -> Result<(Vec<Box<[u8]>>, AskMap)>,
) -> c_int {
    hand_out(cursor, || {
        let has_values = known(u64::from(flags), KEYS_ONLY)? & KEYS_ONLY == 0;
        let (keys, ask) = find()?;
        let left = keys.into_iter();
        Ok((Source::Map { ask, left }, has_values))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_map_cursor_open(map: Handle, flags: u32, cursor: *mut Handle) -> c_int {
    hand_out_map(cursor, flags, || {
        let map = look_up::<OpenMap>(map)?;
        Ok((map.it.keys()?, Box::new(move |keys| map.it.get_many(keys))))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_snapshot_map_cursor_open(
    snapshot: Handle,
    map: Handle,
    flags: u32,
    cursor: *mut Handle,
) -> c_int {
    hand_out_map(cursor, flags, || {
        let (at, map): (_, Arc<OpenMap>) = OpenSnapshot::with(snapshot, map)?;
        let keys = at.it.keys(&map.it)?;
        Ok((keys, Box::new(move |keys| at.it.get_many(&map.it, keys))))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_follower_cursor_open(
    follower: Handle,
    name: *const c_char,
    range: *const CRange,
    cursor: *mut Handle,
) -> c_int {
    hand_out(cursor, || {
        let (left, has_values) = Range::read(range)?;
        let follower = look_up::<OpenFollower>(follower)?.0.clone();
        let moment = follower.moment();
        let (id, kind) = find(&follower, self::name(name)?)?;
        let keys = match kind {
            Kind::Tree => None,
            Kind::Map if left.is_all() && left.way == Way::Up => Some(follower.keys(id)?.into_iter()),
            Kind::Map => return Err(invalid("a map has no order, so it has no range and no reverse")),
            Kind::Log | Kind::Queue => return Err(no_keys(self::name(name)?)),
        };
        let followed = Followed { follower, id, moment };
        let source = match keys {
            Some(left) => Source::Map {
                ask: Box::new(move |keys| followed.checked()?.get_many(id, keys)),
                left,
            },
            None => Source::Tree {
                ask: Box::new(move |step| followed.entries(step)),
                left,
            },
        };
        Ok((source, has_values))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_cursor_next(cursor: Handle, key: *mut Slice, value: *mut Slice) -> c_int {
    call(|| {
        let (key_place, value_place) = (place(key)?, place(value)?);
        (*key_place, *value_place) = (Slice::NONE, Slice::NONE);
        let cursor = look_up::<Cursor>(cursor)?;
        let mut state = cursor.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((key, value)) = state.next()? else {
            return Ok(NONE);
        };
        (*key_place, *value_place) = (Slice::of(key), Slice::of(value));
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_cursor_close(cursor: Handle) -> c_int {
    close::<Cursor>(cursor, |_| Ok(()))
}
