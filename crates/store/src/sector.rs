//! Sectors that check themselves (docs/format/store.md, "Sector").

use crate::layout::SECTOR_HEADER_BYTES;

/// The structure that a sector begins. Not stored, but part of its checksum.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(crate) enum Role {
    Inner = 0,
    Record = 1,
    Segment = 2,
    /// Of a checkpoint, of a table's header, and inside of a page.
    Checkpoint = 3,
    /// The first of a page.
    Page = 4,
}

/// Content of the place of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Written in this generation of the segment.
    New,
    /// Not written in this generation.
    Old,
    /// Neither: no cut leaves this behind.
    Damaged,
}

fn checksum(sector: &[u8], role: Role, tag: u32, number: u64) -> u32 {
    let mut prefix = [0; 16];
    prefix[..4].copy_from_slice(&tag.to_le_bytes());
    prefix[4..8].copy_from_slice(&(role as u32).to_le_bytes());
    prefix[8..].copy_from_slice(&number.to_le_bytes());
    crc32c::crc32c_append(crc32c::crc32c(&prefix), &sector[SECTOR_HEADER_BYTES as usize..])
}

/// Writes the checking bytes of a sector whose payload is complete.
pub(crate) fn seal(sector: &mut [u8], role: Role, tag: u32, number: u64) {
    sector[4..8].copy_from_slice(&tag.to_le_bytes());
    let crc = checksum(sector, role, tag, number);
    sector[..4].copy_from_slice(&crc.to_le_bytes());
}

fn word(sector: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(sector[at..at + 4].try_into().expect("four bytes"))
}

/// The tag of a sector that is intact in this role.
pub(crate) fn tag_of(sector: &[u8], role: Role, number: u64) -> Option<u32> {
    let tag = word(sector, 4);
    (tag != 0 && word(sector, 0) == checksum(sector, role, tag, number)).then_some(tag)
}

/// The tag of a sector that is intact in any role.
pub(crate) fn any_tag_of(sector: &[u8], number: u64) -> Option<u32> {
    let roles = [
        Role::Inner,
        Role::Record,
        Role::Segment,
        Role::Checkpoint,
        Role::Page,
    ];
    roles.into_iter().find_map(|role| tag_of(sector, role, number))
}

/// True where nothing was written, or erased.
pub(crate) fn is_blank(sector: &[u8]) -> bool {
    sector[..SECTOR_HEADER_BYTES as usize]
        .iter()
        .all(|&byte| byte == 0)
}

/// Judges a sector that should have `role` and `tag`.
pub(crate) fn judge(sector: &[u8], role: Role, tag: u32, number: u64) -> State {
    if is_blank(sector) {
        return State::Old;
    }
    match tag_of(sector, role, number) {
        Some(found) if found == tag => State::New,
        Some(_) => State::Old,
        None => match any_tag_of(sector, number) {
            Some(found) if found != tag => State::Old,
            _ => State::Damaged,
        },
    }
}

/// Judges the first sector of a record where a cut leaves eight bytes old or new: its first eight are written last.
pub(crate) fn judge_first(sector: &[u8], tag: u32, number: u64) -> State {
    let is_meant = word(sector, 4) == tag || word(sector, 0) == checksum(sector, Role::Record, tag, number);
    match judge(sector, Role::Record, tag, number) {
        State::Damaged if !is_meant => State::Old,
        state => state,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_is_new_old_or_damaged() {
        let mut sector = vec![7; 64];
        seal(&mut sector, Role::Record, 3, 11);
        assert_eq!(judge(&sector, Role::Record, 3, 11), State::New);
        assert_eq!(judge(&sector, Role::Inner, 3, 11), State::Damaged, "another role");
        assert_eq!(
            judge(&sector, Role::Record, 3, 12),
            State::Damaged,
            "another place"
        );
        assert_eq!(judge(&sector, Role::Inner, 4, 11), State::Old);
        assert_eq!(judge(&[0; 64], Role::Record, 3, 11), State::Old);
    }

    #[test]
    fn every_flipped_bit_is_damage() {
        let mut sector = vec![0; 64];
        sector[20] = 9;
        seal(&mut sector, Role::Inner, 3, 11);
        for bit in 0..64 * 8 {
            let mut flipped = sector.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(judge(&flipped, Role::Inner, 3, 11), State::Damaged, "bit {bit}");
        }
    }
}
