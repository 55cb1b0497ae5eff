//! Pages of the kernel's ring buffer, as `trace_pipe_raw` gives them.
//!
//! Source: Documentation/trace/ring-buffer-design.rst, `events/header_event` and `events/header_page`. A record begins with
//! 5 bits of type or length and 27 bits of time since the one before:
//!
//! | type | then | meaning |
//! | --- | --- | --- |
//! | 0 | u32 length, which counts itself; data | a long record |
//! | 1 to 28 | data of type × 4 bytes | a record |
//! | 29 | u32 length of the rest, if the time is not 0 | padding; with time 0, to the end of the page |
//! | 30 | u32, time of 2²⁷ ns each | more time than 27 bits hold |
//! | 31 | u32, as 30 | the time itself, its lower 59 bits |

use super::format::PageLayout;

/// Set above the bytes in use: events before this page were lost.
const MISSED: u64 = 1 << 31;
/// Set as well: their number stands behind the records.
const MISSED_STORED: u64 = 1 << 30;
const BYTES_MASK: u64 = (1 << 30) - 1;
const ABSOLUTE_BITS: u64 = (1 << 59) - 1;

const PADDING: u32 = 29;
const TIME_EXTEND: u32 = 30;
const TIME_STAMP: u32 = 31;

/// A page was not what the kernel's description says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a page of the trace buffer is malformed at byte {0}")]
pub struct Malformed(pub usize);

/// Facts of a page beside its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageSummary {
    /// Records.
    pub records: u64,
    /// Records lost before this page; at least 1 if some were and the kernel does not say how many.
    pub lost: u64,
}

fn word(bytes: &[u8], at: usize) -> Result<u32, Malformed> {
    let bytes = at.checked_add(4).and_then(|end| bytes.get(at..end));
    let bytes = bytes.ok_or(Malformed(at))?;
    Ok(u32::from_ne_bytes(bytes.try_into().expect("four bytes")))
}

/// Calls `each` with the time (ns of the trace's clock) and the bytes of every record.
pub fn parse(
    layout: &PageLayout,
    page: &[u8],
    mut each: impl FnMut(u64, &[u8]),
) -> Result<PageSummary, Malformed> {
    let mut time = layout.timestamp.read(page).ok_or(Malformed(0))?;
    let commit = layout.commit.read(page).ok_or(Malformed(0))?;
    let bytes = (commit & BYTES_MASK) as usize;
    let data = page.get(layout.data.offset..).ok_or(Malformed(0))?;
    let records = data.get(..bytes).ok_or(Malformed(bytes))?;
    let mut summary = PageSummary::default();
    if commit & MISSED != 0 {
        summary.lost = 1;
        if commit & MISSED_STORED != 0
            && let Some(count) = data.get(bytes..bytes + 8)
        {
            summary.lost = u64::from_ne_bytes(count.try_into().expect("eight bytes"));
        }
    }
    let mut at = 0;
    while at < records.len() {
        let head = word(records, at)?;
        let (kind, delta) = (head & 31, u64::from(head >> 5));
        let from = at + 4;
        let (begin, end) = match kind {
            0 => {
                let length = word(records, from)? as usize;
                if length < 4 {
                    return Err(Malformed(from));
                }
                (from + 4, from + length)
            }
            PADDING if delta == 0 => break,
            PADDING => {
                let length = word(records, from)? as usize;
                time = time.wrapping_add(delta);
                at = from + length.max(4);
                continue;
            }
            TIME_EXTEND | TIME_STAMP => {
                let stamp = delta + (u64::from(word(records, from)?) << 27);
                time = match kind {
                    TIME_EXTEND => time.wrapping_add(stamp),
                    _ => time & !ABSOLUTE_BITS | stamp & ABSOLUTE_BITS,
                };
                at = from + 4;
                continue;
            }
            words => (from, from + words as usize * 4),
        };
        let record = records.get(begin..end).ok_or(Malformed(at))?;
        time = time.wrapping_add(delta);
        each(time, record);
        summary.records += 1;
        at = end.next_multiple_of(4);
    }
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use super::super::format::Field;
    use super::*;
    use proptest::prelude::*;

    const LAYOUT: PageLayout = PageLayout {
        timestamp: Field { offset: 0, size: 8 },
        commit: Field { offset: 8, size: 8 },
        data: Field {
            offset: 16,
            size: 4080,
        },
    };

    fn page(time: u64, flags: u64, words: &[u32]) -> Vec<u8> {
        let mut page = vec![0; 4096];
        page[..8].copy_from_slice(&time.to_ne_bytes());
        page[8..16].copy_from_slice(&(flags | (words.len() as u64 * 4)).to_ne_bytes());
        for (place, word) in page[16..].chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        page
    }

    type Records = Vec<(u64, Vec<u8>)>;

    fn read(page: &[u8]) -> Result<(Records, PageSummary), Malformed> {
        let mut found = Vec::new();
        let summary = parse(&LAYOUT, page, |time, record| found.push((time, record.to_vec())))?;
        Ok((found, summary))
    }

    #[test]
    fn records_have_their_time_and_length() {
        let words = [
            10 << 5 | 2, // two words, 10 ns later
            0xaaaa_aaaa,
            0xbbbb_bbbb,
            5 << 5 | TIME_EXTEND,
            3,
            7 << 5, // long: a word and its length
            8,
            0xcccc_cccc,
            9 << 5 | PADDING,
            8,
            0,
            1 << 5 | 1,
            0xdddd_dddd,
            PADDING,
            0xffff_ffff,
        ];
        let (found, summary) = read(&page(1000, 0, &words)).expect("well formed");
        let extended = 1010 + 5 + (3 << 27) + 7;
        let times: Vec<u64> = found.iter().map(|(time, _)| *time).collect();
        assert_eq!(times, [1010, extended, extended + 10]);
        assert_eq!(found[0].1, [[0xaa; 4], [0xbb; 4]].concat());
        assert_eq!(found[1].1, [0xcc; 4]);
        assert_eq!(found[2].1, [0xdd; 4]);
        assert_eq!(summary, PageSummary { records: 3, lost: 0 });
    }

    #[test]
    fn an_absolute_time_keeps_the_upper_bits() {
        let words = [1 << 5 | TIME_STAMP, 2, 1, 0];
        let (found, _) = read(&page(1 << 60, 0, &words)).expect("well formed");
        assert_eq!(found[0].0, (1 << 60) + 1 + (2 << 27));
    }

    #[test]
    fn losses_are_told_with_their_number_if_it_is_known() {
        let words = [1, 0];
        assert_eq!(read(&page(0, MISSED, &words)).expect("well formed").1.lost, 1);
        let mut counted = page(0, MISSED | MISSED_STORED, &words);
        counted[16 + 8..16 + 16].copy_from_slice(&77u64.to_ne_bytes());
        assert_eq!(read(&counted).expect("well formed").1.lost, 77);
    }

    #[test]
    fn a_record_beyond_the_page_is_an_error() {
        assert_eq!(read(&page(0, 0, &[28, 0])), Err(Malformed(0)));
        assert_eq!(read(&page(0, 0, &[0, 0])), Err(Malformed(4)));
        assert_eq!(read(&[0; 12]), Err(Malformed(0)));
    }

    proptest! {
        #[test]
        fn no_page_makes_it_panic(words in prop::collection::vec(any::<u32>(), 0..1020), flags in any::<u64>()) {
            let _ = read(&page(0, flags, &words));
        }
    }
}
