//! Where the bytes of a read are. To find out takes the tree; to read them does not, and may take a while.

use crate::errno::Errno;
use crate::format::{BLOCK_BYTES, Place};
use crate::media::{Error, Media, read_block};
use std::sync::Arc;

const BYTES: u64 = BLOCK_BYTES as u64;

/// Why something cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// As Linux calls it.
    #[error("{0}")]
    Posix(#[from] Errno),
    /// A medium failed, or is damaged.
    #[error("{0}")]
    Tree(#[from] Error),
}

/// Where the bytes of a read are. The caller sees to it that no block of them is written meanwhile.
#[derive(Clone, Debug, Default)]
pub struct Pieces {
    bytes: usize,
    /// In order; zeros are between them.
    found: Vec<(usize, usize, Spot)>,
}

#[derive(Clone, Debug)]
pub(crate) enum Spot {
    /// In memory: which, and from where on.
    Memory(Arc<[u8]>, usize),
    /// In blocks that follow each other: the first, the checksum of each, and from which byte on.
    Blocks(Place, Arc<[u32]>, u64),
}

impl Pieces {
    pub(crate) fn new(bytes: usize) -> Self {
        Self {
            bytes,
            found: Vec::new(),
        }
    }

    /// Adds a piece: where in what is read, and how long. It is behind all others.
    pub(crate) fn add(&mut self, at: usize, bytes: usize, from: Spot) {
        self.found.push((at, bytes, from));
    }

    /// Where blocks are read, and from which byte of what is read on, in order.
    pub fn places(&self) -> impl Iterator<Item = (usize, Place)> {
        self.found.iter().filter_map(|(at, _, spot)| match spot {
            Spot::Memory(..) => None,
            Spot::Blocks(place, ..) => Some((*at, *place)),
        })
    }

    /// Bytes that are read.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Reads them if all are in memory. False if they are not.
    pub(crate) fn read_memory(&self, bytes: &mut [u8]) -> bool {
        let bytes = &mut bytes[..self.bytes];
        let mut end = 0;
        for (at, count, from) in &self.found {
            bytes[end..*at].fill(0);
            end = at + count;
            match from {
                Spot::Memory(data, from) => bytes[*at..end].copy_from_slice(&data[*from..from + count]),
                Spot::Blocks(..) => return false,
            }
        }
        bytes[end..].fill(0);
        true
    }

    /// Reads them to the beginning of `bytes`, which has room for them.
    ///
    /// # Errors
    /// A medium failed, or a block is not what its checksum says.
    pub fn read(&self, media: &dyn Media, bytes: &mut [u8]) -> Result<(), ReadError> {
        let bytes = &mut bytes[..self.bytes];
        let mut end = 0;
        for (at, count, from) in &self.found {
            bytes[end..*at].fill(0);
            end = at + count;
            let to = &mut bytes[*at..end];
            match from {
                Spot::Memory(data, from) => to.copy_from_slice(&data[*from..from + count]),
                Spot::Blocks(place, sums, from) => read_blocks(media, (*place, sums), *from, to)?,
            }
        }
        bytes[end..].fill(0);
        Ok(())
    }
}

/// Reads bytes of blocks that follow each other, checked: whole blocks at once, and those of which a part is read one by one.
fn read_blocks(
    media: &dyn Media,
    (place, sums): (Place, &[u32]),
    from: u64,
    bytes: &mut [u8],
) -> Result<(), ReadError> {
    let (mut at, mut rest) = (from, bytes);
    while !rest.is_empty() {
        let (index, inside) = (at / BYTES, (at % BYTES) as usize);
        let place = place.plus(index);
        let sums = sums.get(index as usize..).ok_or(Errno::Io)?;
        let whole = rest.len() / BLOCK_BYTES * BLOCK_BYTES;
        let count = match inside {
            0 if whole > 0 => whole,
            _ => rest.len().min(BLOCK_BYTES - inside),
        };
        let (piece, behind) = rest.split_at_mut(count);
        if inside == 0 && whole > 0 {
            media
                .read(place, piece)
                .map_err(|error| Error::Media { place, error })?;
            let (blocks, _) = piece.as_chunks::<BLOCK_BYTES>();
            let are_right = blocks.len() <= sums.len()
                && blocks
                    .iter()
                    .zip(sums)
                    .all(|(block, sum)| crc32c::crc32c(block) == *sum);
            if !are_right {
                return Err(Errno::Io.into());
            }
        } else {
            let block = read_block(media, place)?;
            if sums.first() != Some(&crc32c::crc32c(&block[..])) {
                return Err(Errno::Io.into());
            }
            piece.copy_from_slice(&block[inside..inside + count]);
        }
        (at, rest) = (at + count as u64, behind);
    }
    Ok(())
}
