//! Logical to physical and back.
//!
//! Invariants: a mapped physical page names its logical page in `owner`; `buffered` names the operation that holds the
//! newest accepted data of a page whose program is not finished, so that reads see it.

use base::Version;

/// No physical page, no owner, no operation.
pub(crate) const NONE: u32 = u32::MAX;
/// Owner of a page of trim records.
pub(crate) const RECORD: u32 = u32::MAX - 1;

/// State of a logical page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mapped {
    pub(crate) version: Version,
    /// Place of the data, [`NONE`] when zeroed or never written.
    pub(crate) ppn: u32,
    pub(crate) crc: u32,
}

impl Mapped {
    pub(crate) const EMPTY: Self = Self {
        version: Version::NONE,
        ppn: NONE,
        crc: 0,
    };
}

/// One row of the table: together, so that a request touches one cache line of it.
#[derive(Clone, Copy, Debug)]
struct Row {
    mapped: Mapped,
    buffered: u32,
}

/// The tables.
#[derive(Debug)]
pub(crate) struct Mapping {
    rows: Vec<Row>,
    /// Per block: of its pages. Empty before any of them had one: of a channel group's blocks a member has few.
    owner: Vec<Box<[u32]>>,
    pages_per_block: u32,
    damaged: Vec<u64>,
    damaged_count: u32,
    mapped_count: u32,
}

impl Mapping {
    pub(crate) fn new(logical_pages: u32, blocks: u32, pages_per_block: u32) -> Self {
        Self {
            rows: vec![
                Row {
                    mapped: Mapped::EMPTY,
                    buffered: NONE
                };
                logical_pages as usize
            ],
            owner: vec![Box::default(); blocks as usize],
            pages_per_block,
            damaged: vec![0; (logical_pages as usize).div_ceil(64)],
            damaged_count: 0,
            mapped_count: 0,
        }
    }

    pub(crate) fn len(&self) -> u32 {
        self.rows.len() as u32
    }

    pub(crate) fn get(&self, lpn: u32) -> Mapped {
        self.rows[lpn as usize].mapped
    }

    /// The states from page `first` on.
    pub(crate) fn from(&self, first: u32) -> impl Iterator<Item = &Mapped> {
        self.rows[first as usize..].iter().map(|row| &row.mapped)
    }

    /// Replaces the state of a page and returns the physical page that is dead now, if any.
    pub(crate) fn set(&mut self, lpn: u32, mapped: Mapped) -> Option<u32> {
        let old = core::mem::replace(&mut self.rows[lpn as usize].mapped, mapped);
        if mapped.ppn != NONE {
            self.set_owner(mapped.ppn, lpn);
            self.mapped_count += 1;
        }
        if old.ppn == NONE {
            return None;
        }
        self.mapped_count -= 1;
        assert_eq!(self.owner(old.ppn), lpn, "a mapped page names its owner");
        if old.ppn != mapped.ppn {
            self.set_owner(old.ppn, NONE);
        }
        Some(old.ppn)
    }

    /// Content of a physical page: a logical page, [`RECORD`] or [`NONE`].
    pub(crate) fn owner(&self, ppn: u32) -> u32 {
        let of_block = &self.owner[(ppn / self.pages_per_block) as usize];
        let owner = of_block.get((ppn % self.pages_per_block) as usize);
        owner.copied().unwrap_or(NONE)
    }

    fn set_owner(&mut self, ppn: u32, owner: u32) {
        let of_block = &mut self.owner[(ppn / self.pages_per_block) as usize];
        if of_block.is_empty() {
            *of_block = vec![NONE; self.pages_per_block as usize].into();
        }
        of_block[(ppn % self.pages_per_block) as usize] = owner;
    }

    pub(crate) fn set_record(&mut self, ppn: u32, live: bool) {
        self.set_owner(ppn, if live { RECORD } else { NONE });
    }

    pub(crate) fn buffered(&self, lpn: u32) -> Option<u32> {
        let op = self.rows[lpn as usize].buffered;
        (op != NONE).then_some(op)
    }

    pub(crate) fn set_buffered(&mut self, lpn: u32, op: Option<u32>) {
        self.rows[lpn as usize].buffered = op.unwrap_or(NONE);
    }

    pub(crate) fn set_damaged(&mut self, lpn: u32, damaged: bool) {
        let word = &mut self.damaged[lpn as usize / 64];
        let bit = 1 << (lpn % 64);
        match (*word & bit != 0, damaged) {
            (false, true) => self.damaged_count += 1,
            (true, false) => self.damaged_count -= 1,
            _ => return,
        }
        *word ^= bit;
    }

    pub(crate) fn damaged_count(&self) -> u32 {
        self.damaged_count
    }

    pub(crate) fn mapped_count(&self) -> u32 {
        self.mapped_count
    }
}
