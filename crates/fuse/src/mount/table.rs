//! The kernel's table of mounts (`/proc/self/mountinfo`, proc_pid_mountinfo(5)).

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The number of the topmost mount on `place`, an absolute path without links.
pub(crate) fn id_of(place: &Path) -> Option<u64> {
    find(
        &std::fs::read("/proc/self/mountinfo").ok()?,
        place.as_os_str().as_bytes(),
    )
}

/// The number of the last mount on `place` in a table: later mounts cover earlier ones.
fn find(table: &[u8], place: &[u8]) -> Option<u64> {
    let id = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        // Parent, device and root are between.
        let on = fields.nth(3)?;
        (plain(on) == place).then_some(id)
    };
    table.split(|byte| *byte == b'\n').rev().find_map(id)
}

/// Text without the escapes of the table: a blank is `\040`.
fn plain(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, after)) = rest.split_first() {
        match rest {
            [
                b'\\',
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ] => {
                plain.push((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'));
                rest = after;
            }
            _ => {
                plain.push(byte);
                rest = after;
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_topmost_mount_at_a_place_is_found() {
        let table =
            b"21 1 0:1 / / rw - ext4 /dev/vda rw\n30 21 0:40 / /mnt/a\\040b rw shared:1 - fuse.x x rw\n\
                      31 30 0:41 / /mnt/a\\040b rw - fuse.x x rw\nodd\n32 21 0:42 / /mnt/a rw - tmpfs t rw\n";
        assert_eq!(find(table, b"/mnt/a b"), Some(31));
        assert_eq!(find(table, b"/mnt/a"), Some(32));
        assert_eq!(find(table, b"/mnt"), None);
        assert_eq!(find(b"", b"/"), None);
    }

    #[test]
    fn escapes_are_undone_and_backslashes_stay() {
        for (text, expected) in [
            ("a\\040b", "a b"),
            ("\\134040", "\\040"),
            ("a\\", "a\\"),
            ("\\9", "\\9"),
            ("\\04", "\\04"),
        ] {
            assert_eq!(plain(text.as_bytes()), expected.as_bytes(), "{text}");
        }
    }
}
