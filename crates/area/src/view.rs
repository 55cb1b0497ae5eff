//! Maps and trees as they are now, or were at the time of a snapshot: values, keys, and the way through ranges.

use crate::area::Area;
use crate::error::AreaError;
use crate::read::{Reading, Value, found};
use std::ops::{Bound, ControlFlow, RangeBounds};
use store::{Engine, Fetch, RangeEnd, RangePart, RangeValue, Scan, SnapshotId, StructureId, Way};

/// Entries of a tree that a range looks up at once.
const RANGE_STEP_MAX: usize = 256;
/// Of the first look: most ranges are short, or are not read to their end.
const RANGE_STEP_FIRST: usize = 16;
/// The same where reading several values at once gains nothing.
const RANGE_STEP_MAPPED: usize = 4;

/// A map or tree at a time.
#[derive(Clone, Copy)]
pub(crate) struct View<'a> {
    pub area: &'a Area,
    pub structure: StructureId,
    /// `None`: now.
    pub at: Option<SnapshotId>,
}

/// Key and value of a range.
pub(crate) type Entry = (Box<[u8]>, Vec<u8>);

impl<'a> View<'a> {
    fn fetch(&self, engine: &Engine, key: &[u8]) -> Result<Option<Fetch>, AreaError> {
        match self.at {
            None => found(engine, self.structure, engine.get(self.structure, key)),
            Some(id) => Ok(engine.snapshot_get(id, self.structure, key)?),
        }
    }

    /// Refuses a structure that was dropped, unless a snapshot has it.
    fn check(&self, engine: &Engine) -> Result<(), AreaError> {
        match self.at {
            None => found(engine, self.structure, None::<()>).map(drop),
            Some(_) => Ok(()),
        }
    }

    /// The value of a key.
    pub(crate) fn value(&self, key: &[u8]) -> Result<Option<Value>, AreaError> {
        let reading = self.area.reading()?;
        reading.value(|engine| self.fetch(engine, key))
    }

    /// The values of some keys, in their order.
    pub(crate) fn values(&self, keys: &[&[u8]]) -> Result<Vec<Option<Vec<u8>>>, AreaError> {
        let reading = self.area.reading()?;
        let values = reading.values(keys.len(), |engine, nth| self.fetch(engine, keys[nth]))?;
        Ok(values
            .into_iter()
            .map(|value| value.map(Value::into_vec))
            .collect())
    }

    /// All keys, in order.
    pub(crate) fn keys(&self) -> Result<Vec<Box<[u8]>>, AreaError> {
        let mut reading = self.area.reading()?.ahead();
        let guard = reading.shared().lock();
        self.check(&guard.engine)?;
        let part = match self.at {
            None => guard.engine.keys(self.structure),
            Some(id) => guard.engine.snapshot_keys(id, self.structure)?,
        };
        drop(guard);
        let mut keys = Vec::new();
        part.visit(&mut reading, |key, _| {
            keys.push(key.into());
            ControlFlow::Continue(())
        })?;
        Ok(keys)
    }

    /// Entries of a range of a tree, one after the other.
    pub(crate) fn entries(
        self,
        range: impl RangeBounds<[u8]>,
        way: Way,
    ) -> impl Iterator<Item = Result<Entry, AreaError>> + 'a {
        let mut walk = Walk::new(range, way, self.first_step(usize::MAX));
        let mut ready = Vec::new().into_iter();
        std::iter::from_fn(move || {
            loop {
                if let Some(entry) = ready.next() {
                    return Some(entry);
                }
                if walk.is_over() {
                    return None;
                }
                let mut found = Vec::new();
                let wanted = walk.wanted;
                let mut take = |key: &[u8], value: Result<&[u8], AreaError>| {
                    found.push(value.map(|value| (key.into(), value.to_vec())));
                    match found.len() < wanted {
                        true => ControlFlow::Continue(()),
                        false => ControlFlow::Break(()),
                    }
                };
                let went_on = walk.part(self, true, &mut take);
                found.extend(went_on.err().map(Err));
                ready = found.into_iter();
            }
        })
    }

    /// Calls `f` with `limit` entries of a range of a tree at most.
    pub(crate) fn visit(
        self,
        (range, way): (impl RangeBounds<[u8]>, Way),
        limit: usize,
        mut f: impl FnMut(&[u8], &[u8]) -> ControlFlow<()>,
    ) -> Result<(), AreaError> {
        let mut walk = Walk::new(range, way, self.first_step(limit));
        let (mut left, mut failed) = (limit, None);
        while left > 0 && !walk.is_over() {
            walk.part(self, true, &mut |key, value| match value {
                Ok(value) => {
                    left -= 1;
                    match f(key, value) {
                        ControlFlow::Continue(()) if left > 0 => ControlFlow::Continue(()),
                        _ => {
                            left = 0;
                            ControlFlow::Break(())
                        }
                    }
                }
                Err(error) => {
                    (left, failed) = (0, Some(error));
                    ControlFlow::Break(())
                }
            })?;
        }
        failed.map_or(Ok(()), Err)
    }

    /// Entries of the first part of a range, of which `limit` are wanted.
    fn first_step(&self, limit: usize) -> usize {
        let has_cache = || self.area.reading().is_ok_and(|reading| reading.cache.is_there());
        match limit {
            usize::MAX if has_cache() => RANGE_STEP_FIRST,
            usize::MAX => RANGE_STEP_MAPPED,
            _ => limit,
        }
    }

    /// The values of a part that memory has the places of, in order.
    fn memory(&self, reading: &Reading<'_>, part: &RangePart) -> Vec<Read> {
        let is_elsewhere = |(_, fetch): &(&[u8], &Fetch)| !matches!(fetch, Fetch::Ready(_));
        let all: Vec<_> = part.memory().filter(is_elsewhere).collect();
        if all.is_empty() {
            return Vec::new();
        }
        let mut firsts: Vec<Option<&Fetch>> = all.iter().map(|(_, fetch)| Some(*fetch)).collect();
        let values = reading.values(all.len(), |engine, nth| match firsts[nth].take() {
            Some(fetch) => Ok(Some(fetch.clone())),
            None => self.fetch(engine, all[nth].0),
        });
        match values {
            Ok(values) => {
                let own = values.into_iter().map(|value| Some(Ok(value?.into_vec())));
                own.collect()
            }
            // One of them is damaged: the others are not lost with it.
            Err(_) => all
                .iter()
                .map(|(key, _)| Some(self.value(key).transpose()?.map(Value::into_vec)))
                .collect(),
        }
    }

    /// Some entries of a range, as of one moment.
    fn part(
        &self,
        reading: &Reading<'_>,
        way: Way,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        wanted: usize,
        tables: Option<Scan>,
    ) -> Result<RangePart, AreaError> {
        let mut guard = reading.shared.lock();
        self.check(&guard.engine)?;
        let Some(id) = self.at else {
            let part = guard.engine.range(way, self.structure, bounds, wanted, tables);
            reading.shared.scanned(&mut guard);
            return Ok(part);
        };
        let part = guard
            .engine
            .snapshot_range((id, way), self.structure, bounds, wanted, tables);
        Ok(part?)
    }
}

/// A value of a range, or why it cannot be read; `None` if its key is gone by now.
type Read = Option<Result<Vec<u8>, AreaError>>;

type Bounds = (Bound<Vec<u8>>, Bound<Vec<u8>>);

/// The way through a range, part by part.
pub(crate) struct Walk {
    /// The rest of the range; `None` at the end.
    left: Option<Bounds>,
    way: Way,
    tables: Option<Scan>,
    /// Entries of the next part, about.
    wanted: usize,
}

/// A function that takes the entries of a range.
pub(crate) type Take<'a> = &'a mut dyn FnMut(&[u8], Result<&[u8], AreaError>) -> ControlFlow<()>;

impl Walk {
    pub(crate) fn new(range: impl RangeBounds<[u8]>, way: Way, wanted: usize) -> Self {
        let owned = |bound: Bound<&[u8]>| bound.map(<[u8]>::to_vec);
        Self {
            left: Some((owned(range.start_bound()), owned(range.end_bound()))),
            way,
            tables: None,
            wanted: wanted.clamp(1, RANGE_STEP_MAX),
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.left.is_none()
    }

    /// Hands the next entries over. If `take` wants no more, it goes on behind the last one. Without `reads`, values that memory does not
    /// have are empty.
    pub(crate) fn part(&mut self, view: View<'_>, reads: bool, take: Take<'_>) -> Result<(), AreaError> {
        let Some((from, to)) = self.left.take() else {
            return Ok(());
        };
        let reading = view.area.reading()?;
        let bounds = (as_slice(&from), as_slice(&to));
        let tables = self.tables.take();
        let part = view.part(&reading, self.way, bounds, self.wanted, tables)?;
        self.wanted = (2 * self.wanted).min(RANGE_STEP_MAX);
        let memory = if reads {
            view.memory(&reading, &part)
        } else {
            Vec::new()
        };
        let mut memory = memory.into_iter();
        let mut last = None;
        let end = part.visit(&mut reading.ahead(), |key, value| {
            let flow = match value {
                RangeValue::Table(value) => take(key, Ok(value)),
                RangeValue::Memory(Fetch::Ready(value)) => take(key, Ok(value)),
                RangeValue::Memory(_) if !reads => take(key, Ok(&[])),
                RangeValue::Memory(_) => match memory.next().flatten() {
                    Some(Ok(value)) => take(key, Ok(&value)),
                    Some(Err(error)) => take(key, Err(error)),
                    // It is gone by now.
                    None => ControlFlow::Continue(()),
                },
            };
            if flow.is_break() {
                last = Some(key.to_vec());
            }
            flow
        })?;
        let after = match end {
            RangeEnd::Over => None,
            RangeEnd::Stopped => last,
            RangeEnd::More { after, tables } => {
                self.tables = tables;
                Some(after.into_vec())
            }
        };
        self.left = after.map(Bound::Excluded).map(|after| match self.way {
            Way::Up => (after, to),
            Way::Down => (from, after),
        });
        Ok(())
    }
}

fn as_slice(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    bound.as_ref().map(Vec::as_slice)
}
