//! The kernel's table of mounts (`/proc/self/mountinfo`, proc_pid_mountinfo(5)).

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// A mount, as far as it tells mounts apart. The kernel gives the number of a mount that is gone to the next one, so the number
/// alone does not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    id: u64,
    device: Vec<u8>,
    fs_type: Vec<u8>,
    source: Vec<u8>,
}

impl Entry {
    /// The number of the connection behind it: the minor number of its device, whose major one is 0.
    pub fn connection(&self) -> Option<u32> {
        let minor = self.device.strip_prefix(b"0:")?;
        std::str::from_utf8(minor).ok()?.parse().ok()
    }
}

/// The topmost mount on `place`, an absolute path without links.
pub(crate) fn entry_of(place: &Path) -> Option<Entry> {
    find(
        &std::fs::read("/proc/self/mountinfo").ok()?,
        place.as_os_str().as_bytes(),
    )
}

/// The last mount on `place` in a table: later mounts cover earlier ones.
fn find(table: &[u8], place: &[u8]) -> Option<Entry> {
    let entry = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b' ');
        let id = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
        let device = fields.nth(1)?.to_vec();
        // The root inside the file system is between.
        let on = fields.nth(1)?;
        // Optional fields end with a dash.
        let mut rest = fields.skip_while(|field| *field != b"-");
        let (fs_type, source) = (rest.nth(1)?.to_vec(), rest.next()?.to_vec());
        let entry = Entry {
            id,
            device,
            fs_type,
            source,
        };
        (plain(on) == place).then_some(entry)
    };
    table.split(|byte| *byte == b'\n').rev().find_map(entry)
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
        let entry = |id, device: &str, fs_type: &str, source: &str| Entry {
            id,
            device: device.into(),
            fs_type: fs_type.into(),
            source: source.into(),
        };
        assert_eq!(find(table, b"/mnt/a b"), Some(entry(31, "0:41", "fuse.x", "x")));
        assert_eq!(find(table, b"/mnt/a"), Some(entry(32, "0:42", "tmpfs", "t")));
        assert_eq!(
            find(table, b"/mnt/a b").and_then(|entry| entry.connection()),
            Some(41)
        );
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
