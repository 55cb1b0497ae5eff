//! Which runs there are, and where replay goes on behind them (docs/format/store.md, "Runs").

use super::{Address, Run};
use crate::entry::{DESCRIPTION_BYTES, Description, StructureId};
use crate::format::{u32_at, u64_at};
use crate::space::Start;

const MAGIC: &[u8; 4] = b"RUNS";

/// The content of a manifest.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Manifest {
    /// Replay continues here.
    pub start: Start,
    /// The runs may have entries of all records up to this one.
    pub seen: u64,
    pub next_structure: u32,
    pub structures: Vec<(StructureId, String, Description)>,
    /// Oldest first.
    pub runs: Vec<Run>,
}

impl Manifest {
    /// Slots of all runs.
    pub(crate) fn slots(&self) -> Vec<u32> {
        let parts = self.runs.iter().flat_map(|run| &run.parts);
        parts.map(|&(slot, _)| slot).collect()
    }

    pub(crate) fn emit(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        for word in [
            self.start.record,
            self.start.generation,
            u64::from(self.start.end),
            self.seen,
        ] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(self.next_structure.to_le_bytes());
        bytes.extend((self.structures.len() as u32).to_le_bytes());
        for (id, name, description) in &self.structures {
            bytes.extend(id.0.to_le_bytes());
            bytes.extend((name.len() as u32).to_le_bytes());
            bytes.extend(description.emit());
            bytes.extend(name.as_bytes());
        }
        bytes.extend((self.runs.len() as u32).to_le_bytes());
        for run in &self.runs {
            bytes.extend(run.base.to_le_bytes());
            bytes.extend(run.entries.to_le_bytes());
            let root = run.root.map_or([0; 3], |it| [it.part, it.block, it.blocks]);
            let count = [run.parts.len() as u32];
            root.iter()
                .chain(&count)
                .for_each(|word| bytes.extend(word.to_le_bytes()));
            for (slot, generation) in &run.parts {
                bytes.extend(slot.to_le_bytes());
                bytes.extend(generation.to_le_bytes());
            }
        }
        bytes
    }

    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader(bytes);
        (reader.bytes(4)? == MAGIC).then_some(())?;
        let start = Start {
            record: reader.long()?,
            generation: reader.long()?,
            end: u32::try_from(reader.long()?).ok()?,
        };
        let (seen, next_structure) = (reader.long()?, reader.word()?);
        let structures = (0..reader.word()?).map(|_| reader.description());
        let structures = structures.collect::<Option<_>>()?;
        let runs = (0..reader.word()?).map(|_| reader.run()).collect::<Option<_>>()?;
        Some(Self {
            start,
            seen,
            next_structure,
            structures,
            runs,
        })
    }
}

/// Takes bytes from the front.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    fn word(&mut self) -> Option<u32> {
        self.bytes(4).map(|bytes| u32_at(bytes, 0))
    }

    fn long(&mut self) -> Option<u64> {
        self.bytes(8).map(|bytes| u64_at(bytes, 0))
    }

    fn description(&mut self) -> Option<(StructureId, String, Description)> {
        let id = StructureId(self.word()?);
        let name_bytes = self.word()? as usize;
        let description = Description::parse(self.bytes(DESCRIPTION_BYTES)?)?;
        let name = core::str::from_utf8(self.bytes(name_bytes)?).ok()?;
        Some((id, name.to_owned(), description))
    }

    fn run(&mut self) -> Option<Run> {
        let (base, entries) = (self.long()?, self.long()?);
        let root = Address {
            part: self.word()?,
            block: self.word()?,
            blocks: self.word()?,
        };
        let parts = (0..self.word()?).map(|_| Some((self.word()?, self.long()?)));
        Some(Run {
            base,
            entries,
            root: (root.blocks > 0).then_some(root),
            parts: parts.collect::<Option<_>>()?,
        })
    }
}
