//! What a hub tells a port by its doorbell, in the bytes of `docs/format/vnic.md`.

use super::doorbell::LETTER_BYTES;
use super::vnic::{Shape, Side};
use tcp::addr::Mac;

/// How messages begin, at the door and in letters.
pub(super) const MAGIC: [u8; 4] = *b"SWVN";
pub(super) const VERSION: u16 = 1;

/// News of the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// The port has a link of its own to another port. The memory and a doorbell come with the letter.
    Introduced {
        /// The other port.
        peer: Mac,
        /// The end of the link that this port has.
        side: Side,
        /// The sizes of the link.
        shape: Shape,
    },
    /// Another port has gone, and what it had has ended.
    Gone(Mac),
}

const INTRODUCED: u8 = 1;
const GONE: u8 = 2;

impl News {
    /// The letter.
    pub fn letter(&self) -> [u8; LETTER_BYTES] {
        let mut letter = [0; LETTER_BYTES];
        letter[..4].copy_from_slice(&MAGIC);
        letter[4..6].copy_from_slice(&VERSION.to_le_bytes());
        match self {
            Self::Introduced { peer, side, shape } => {
                letter[6] = INTRODUCED;
                letter[7] = u8::from(*side == Side::Taker);
                letter[8..14].copy_from_slice(&peer.0);
                letter[16..20].copy_from_slice(&shape.descriptors.to_le_bytes());
                letter[20..24].copy_from_slice(&shape.data_bytes.to_le_bytes());
            }
            Self::Gone(peer) => {
                letter[6] = GONE;
                letter[8..14].copy_from_slice(&peer.0);
            }
        }
        letter
    }

    /// Reads a letter. None if it is none of this version.
    pub fn parse(letter: &[u8; LETTER_BYTES]) -> Option<Self> {
        if letter[..4] != MAGIC || letter[4..6] != VERSION.to_le_bytes() {
            return None;
        }
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| letter[at + byte]));
        let peer = Mac([0, 1, 2, 3, 4, 5].map(|at: usize| letter[8 + at]));
        match (letter[6], letter[7]) {
            (INTRODUCED, side @ 0..=1) => {
                let shape = Shape {
                    queues: 1,
                    descriptors: word(16),
                    data_bytes: word(20),
                };
                let side = if side == 0 { Side::Maker } else { Side::Taker };
                shape.is_valid().then_some(Self::Introduced { peer, side, shape })
            }
            (GONE, _) => Some(Self::Gone(peer)),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_are_read_as_they_were_written_and_others_are_not_read() {
        let peer = Mac([2, 1, 2, 3, 4, 5]);
        let shape = Shape::default();
        let sides = [Side::Maker, Side::Taker].map(|side| News::Introduced { peer, side, shape });
        for news in [sides[0], sides[1], News::Gone(peer)] {
            assert_eq!(News::parse(&news.letter()), Some(news));
        }
        for (at, to) in [
            (0, 0),
            (4, 9),
            (6, 0),
            (6, 9),
            (7, 2),
            (16, 3),
            (20, 1),
            (23, 0x80),
        ] {
            let mut letter = sides[0].letter();
            letter[at] = to;
            assert_eq!(News::parse(&letter), None, "byte {at}");
        }
    }
}
