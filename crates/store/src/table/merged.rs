//! The newest entry of each key of some tables, in order.

use super::levels::View;
use super::page::Held;
use super::reader::{ReadError, Stream};
use crate::damage::FetchError;
use base::Device;

/// Pages of a table that cannot be read, one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Gap {
    /// Of the first one, in the area.
    pub offset: u64,
    /// No key below, and no key above was in there. Keys of tables; empty ones if that is not known.
    pub from: Vec<u8>,
    pub to: Vec<u8>,
}

/// Entries of a view, in order.
struct Input {
    view: View,
    /// Opened when its turn comes.
    stream: Option<Stream>,
    key: Vec<u8>,
    /// Of two entries with one key that of the input with the lower age counts.
    age: u64,
}

impl Input {
    fn order(&self) -> (&[u8], u64) {
        (&self.key, self.age)
    }

    /// Goes to the first entry, if it is not there yet, or else to the next one. False at the end.
    fn advance(
        &mut self,
        medium: &dyn Device,
        lost: Option<&mut Vec<Gap>>,
        by_version: bool,
    ) -> Result<bool, ReadError> {
        let stream = match &mut self.stream {
            Some(stream) => {
                stream.advance();
                stream
            }
            none => none.insert(match &self.view.from {
                // The way to the bound may be damaged: whoever takes what is left goes through all of it.
                Some(from) if lost.is_none() => self.view.table.stream_from(medium, from)?,
                _ => self.view.table.stream(),
            }),
        };
        let Some(lost) = lost else {
            return Ok(stream.fill(medium)? && take_key(&mut self.key, stream)?);
        };
        // The first key behind a gap may be one that does not count.
        let mut is_open = false;
        loop {
            let filled = stream.fill(medium);
            if let (true, Ok(has_entry), Some(gap)) = (is_open, &filled, lost.last_mut()) {
                let next = stream.entry().filter(|_| *has_entry);
                gap.to = next.map_or(self.view.last(), |(key, _)| key).to_vec();
                is_open = false;
            }
            match filled {
                Ok(false) => return Ok(false),
                Ok(true) if take_key(&mut self.key, stream)? && self.view.has(&self.key) => {
                    if let (true, Some((_, held))) = (by_version, stream.entry()) {
                        self.age = u64::MAX - held.version;
                    }
                    return Ok(true);
                }
                Ok(true) => stream.advance(),
                Err(_) => {
                    lost.push(Gap {
                        offset: stream.offset(),
                        from: self.key.clone(),
                        to: Vec::new(),
                    });
                    is_open = true;
                    stream.skip_damage(medium);
                }
            }
        }
    }
}

fn take_key(key: &mut Vec<u8>, stream: &Stream) -> Result<bool, ReadError> {
    let offset = stream.offset();
    let (found, _) = stream.entry().ok_or(FetchError::Damaged { offset })?;
    key.clear();
    key.extend(found);
    Ok(true)
}

/// See the module.
pub(crate) struct Merged {
    /// The one with the next entry is last.
    inputs: Vec<Input>,
    /// Of the entry that is shown.
    shown: Option<Input>,
    /// Pages that were left out as they are damaged. `None`: a damaged page is an error.
    lost: Option<Vec<Gap>>,
    /// The entry that was made last counts, whichever table has it.
    by_version: bool,
    /// The place that was read when reading failed, in the area.
    failed_at: u64,
}

impl Merged {
    /// Newer tables come first.
    pub(crate) fn new<'a>(views: impl Iterator<Item = &'a View>) -> Self {
        let input = |(age, view): (usize, &View)| Input {
            view: view.clone(),
            stream: None,
            key: view.first().to_vec(),
            age: age as u64,
        };
        let mut inputs: Vec<Input> = views.enumerate().map(input).collect();
        inputs.sort_by(|a, b| b.order().cmp(&a.order()));
        let (shown, lost) = (None, None);
        Self {
            inputs,
            shown,
            lost,
            by_version: false,
            failed_at: 0,
        }
    }

    /// The same, without what is damaged.
    pub(crate) fn lenient<'a>(views: impl Iterator<Item = &'a View>) -> Self {
        Self {
            lost: Some(Vec::new()),
            ..Self::new(views)
        }
    }

    /// The same of tables of which nobody knows the order: what they have tells, if it is so.
    pub(crate) fn by_version(mut self, is_so: bool) -> Self {
        self.by_version = is_so;
        self
    }

    /// Goes to the next key; false at the end.
    pub(crate) fn next(&mut self, medium: &dyn Device) -> Result<bool, ReadError> {
        let before = self.shown.take().map(|shown| {
            let key = shown.key.clone();
            self.go_on(shown, medium).map(|()| key)
        });
        let before = before.transpose()?;
        while let Some(input) = self.inputs.pop() {
            if input.stream.is_some() && before.as_ref() != Some(&input.key) {
                self.shown = Some(input);
                return Ok(true);
            }
            self.go_on(input, medium)?;
        }
        Ok(false)
    }

    fn go_on(&mut self, mut input: Input, medium: &dyn Device) -> Result<(), ReadError> {
        let advanced = input.advance(medium, self.lost.as_mut(), self.by_version);
        if advanced.is_err() {
            self.failed_at = match &input.stream {
                Some(stream) => stream.offset(),
                None => input.view.table.offset(),
            };
        }
        if advanced? {
            let at = self.inputs.partition_point(|it| it.order() > input.order());
            self.inputs.insert(at, input);
        }
        Ok(())
    }

    /// The place where [`Merged::next`] failed, in the area.
    pub(crate) fn failed_at(&self) -> u64 {
        self.failed_at
    }

    /// The pages that were left out.
    pub(crate) fn gaps(self) -> Vec<Gap> {
        let mut gaps = self.lost.unwrap_or_default();
        // Bounds of views hide what was below.
        gaps.retain(|gap| gap.to.is_empty() || gap.from <= gap.to);
        gaps.sort_by(|a, b| (&a.from, a.offset).cmp(&(&b.from, b.offset)));
        gaps
    }

    /// The present key and its entry.
    pub(crate) fn entry(&self) -> Result<(&[u8], Held<'_>), ReadError> {
        let shown = self.shown.as_ref().expect("there is a next one");
        let stream = shown.stream.as_ref().expect("only what was opened is shown");
        let offset = stream.offset();
        Ok(stream.entry().ok_or(FetchError::Damaged { offset })?)
    }
}
