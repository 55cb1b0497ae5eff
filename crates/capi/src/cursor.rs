//! Cursors: the entries of a tree in order, and of a map.
//!
//! A cursor looks up a step of entries at once and lends one after the other. The first step is short, as many cursors are not
//! read to their end. Entries that come and go meanwhile may be there or not.

use crate::arguments::{Slice, Versioned, known_flags, name, place, read_sized};
use crate::follower::{OpenFollower, find, no_keys};
use crate::handles::{Handle, Target, close, give, look_up};
use crate::keyed::{OpenMap, OpenTree, key_of};
use crate::result::{NONE, OK, Result, call, invalid};
use crate::sync::{Mutex, PoisonError};
use area::{AreaError, Follower, Kind, Map, Moment, StructureId, Tree};
use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_void};
use std::ops::Bound;
use std::vec;

/// Entries of the first step, and of the longest.
const STEP_FIRST: usize = 16;
const STEP_MAX: usize = 256;
/// Bytes of values after which a step ends.
const STEP_BYTES_MAX: usize = 1 << 20;

/// `SWY_KEYS_ONLY`.
const KEYS_ONLY: u32 = 1;

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

/// The source of the entries.
enum Source {
    Tree {
        tree: Tree,
        /// The rest of the range.
        from: Bound<Box<[u8]>>,
        to: Bound<Box<[u8]>>,
    },
    Map {
        map: Map,
        keys: vec::IntoIter<Box<[u8]>>,
    },
    FollowedTree {
        follower: Followed,
        from: Bound<Box<[u8]>>,
        to: Bound<Box<[u8]>>,
    },
    FollowedMap {
        follower: Followed,
        keys: vec::IntoIter<Box<[u8]>>,
    },
}

/// A structure of another process.
struct Followed {
    follower: Follower,
    id: StructureId,
    /// When the cursor was opened: a steady follower shows no other.
    moment: Moment,
}

impl Followed {
    fn checked(&self) -> std::result::Result<&Follower, AreaError> {
        match self.follower.is_steady() && self.follower.moment() != self.moment {
            true => Err(AreaError::SnapshotGone),
            false => Ok(&self.follower),
        }
    }
}

impl Source {
    /// The next keys, at most `step`; none at the end.
    fn next_keys(&mut self, step: usize) -> std::result::Result<VecDeque<Entry>, AreaError> {
        let with_nothing = |key| (key, Vec::new());
        Ok(match self {
            Self::Tree { tree, from, to } => {
                let keys = tree.keys((as_slice(from), as_slice(to)), step)?;
                if let Some(last) = keys.last() {
                    *from = Bound::Excluded(last.clone());
                }
                keys.into_iter().map(with_nothing).collect()
            }
            Self::Map { keys, .. } | Self::FollowedMap { keys, .. } => {
                keys.by_ref().take(step).map(with_nothing).collect()
            }
            Self::FollowedTree { .. } => {
                let entries = self.next(step)?.into_iter();
                entries.map(|(key, _)| with_nothing(key)).collect()
            }
        })
    }

    /// The next entries, at most `step`; none at the end.
    fn next(&mut self, step: usize) -> std::result::Result<VecDeque<Entry>, AreaError> {
        let mut found = VecDeque::new();
        let mut bytes = 0;
        match self {
            Self::Tree { tree, from, to } => {
                let entries = tree.range((as_slice(from), as_slice(to))).take(step);
                for entry in entries {
                    let entry = entry?;
                    bytes += entry.1.len();
                    found.push_back(entry);
                    if bytes >= STEP_BYTES_MAX {
                        break;
                    }
                }
                if let Some((last, _)) = found.back() {
                    *from = Bound::Excluded(last.clone());
                }
            }
            Self::Map { map, keys } => {
                while found.len() < step && bytes < STEP_BYTES_MAX {
                    let Some(key) = keys.next() else {
                        break;
                    };
                    // A key that was removed since is left out.
                    if let Some(value) = map.get(&key)? {
                        bytes += value.len();
                        found.push_back((key, value));
                    }
                }
            }
            Self::FollowedTree { follower, from, to } => {
                let entries = follower
                    .checked()?
                    .range(follower.id, (as_slice(from), as_slice(to)));
                for entry in entries.take(step) {
                    found.push_back(entry?);
                }
                if let Some((last, _)) = found.back() {
                    *from = Bound::Excluded(last.clone());
                }
            }
            Self::FollowedMap { follower, keys } => {
                while found.is_empty() && keys.len() > 0 {
                    let some: Vec<_> = keys.by_ref().take(step).collect();
                    let wanted: Vec<&[u8]> = some.iter().map(|key| &**key).collect();
                    let values = follower.checked()?.get_many(follower.id, &wanted)?;
                    // A key that was removed since is left out.
                    let there = some.into_iter().zip(values);
                    found.extend(there.filter_map(|(key, value)| Some((key, value?))));
                }
            }
        }
        Ok(found)
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

impl Cursor {
    fn hand_out(source: Source, flags: u64) -> Result<Handle> {
        let flags = u32::try_from(flags).map_err(|_| invalid("a flag of the cursor is not known"))?;
        known_flags(flags, KEYS_ONLY)?;
        give(Self(Mutex::new(State {
            source,
            found: VecDeque::new(),
            step: STEP_FIRST,
            has_values: flags & KEYS_ONLY == 0,
            lent: None,
        })))
    }
}

impl State {
    fn next(&mut self) -> std::result::Result<Option<&Entry>, AreaError> {
        self.lent = None;
        if self.found.is_empty() {
            self.found = match self.has_values {
                true => self.source.next(self.step)?,
                false => self.source.next_keys(self.step)?,
            };
            self.step = (2 * self.step).min(STEP_MAX);
        }
        self.lent = self.found.pop_front();
        Ok(self.lent.as_ref())
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_tree_cursor_open(
    tree: Handle,
    range: *const CRange,
    cursor: *mut Handle,
) -> c_int {
    call(|| {
        let place = place(cursor)?;
        *place = std::ptr::null_mut();
        let range = read_sized(range)?;
        let source = Source::Tree {
            tree: look_up::<OpenTree>(tree)?.it.clone(),
            from: bound(range.from_bound, range.from, range.from_length)?,
            to: bound(range.to_bound, range.to, range.to_length)?,
        };
        *place = Cursor::hand_out(source, range.flags)?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_map_cursor_open(map: Handle, flags: u32, cursor: *mut Handle) -> c_int {
    call(|| {
        let place = place(cursor)?;
        *place = std::ptr::null_mut();
        let map = look_up::<OpenMap>(map)?.it.clone();
        let keys = map.keys()?.into_iter();
        *place = Cursor::hand_out(Source::Map { map, keys }, u64::from(flags))?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_follower_cursor_open(
    follower: Handle,
    name: *const c_char,
    range: *const CRange,
    cursor: *mut Handle,
) -> c_int {
    call(|| {
        let place = place(cursor)?;
        *place = std::ptr::null_mut();
        let range = read_sized(range)?;
        let (from, to) = (
            bound(range.from_bound, range.from, range.from_length)?,
            bound(range.to_bound, range.to, range.to_length)?,
        );
        let follower = look_up::<OpenFollower>(follower)?.0.clone();
        let moment = follower.moment();
        let (id, kind) = find(&follower, self::name(name)?)?;
        let all = |bound: &Bound<_>| matches!(bound, Bound::Unbounded);
        let followed = |follower: Follower| Followed { follower, id, moment };
        let source = match kind {
            Kind::Tree => Source::FollowedTree {
                follower: followed(follower),
                from,
                to,
            },
            Kind::Map if all(&from) && all(&to) => Source::FollowedMap {
                keys: follower.keys(id)?.into_iter(),
                follower: followed(follower),
            },
            Kind::Map => return Err(invalid("a map has no order, so it has no range")),
            Kind::Log | Kind::Queue => return Err(no_keys(self::name(name)?)),
        };
        *place = Cursor::hand_out(source, range.flags)?;
        Ok(OK)
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
