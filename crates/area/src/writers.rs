//! Looks at the descriptors of other processes, as `/proc` tells them: who else has a file open for writing.

use crate::own;
use crate::table::FileKey;
use rustix::fs::{Dir, Mode, OFlags, openat};
use std::os::fd::AsRawFd;

/// True if the process has the file open for writing. Of a process of another user nobody may tell, and it counts as one that has not.
pub fn is_written_by(pid: u32, key: FileKey) -> bool {
    let look = || -> Option<bool> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let directory = openat(own::proc()?, format!("{pid}/fd"), flags, Mode::empty()).ok()?;
        let entries = Dir::read_from(&directory).ok()?;
        let written = entries.flatten().any(|entry| {
            let name = entry.file_name();
            FileKey::at(directory.as_raw_fd(), name, 0) == Some(key)
                && name.to_str().is_ok_and(|number| is_for_writing(pid, number))
        });
        Some(written)
    };
    look().unwrap_or(false)
}

/// True unless the descriptor's flags say that it only reads.
fn is_for_writing(pid: u32, number: &str) -> bool {
    let Ok(text) = own::read_proc(&format!("{pid}/fdinfo/{number}")) else {
        return false;
    };
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    let flags = flags.and_then(|it| i32::from_str_radix(it.trim(), 8).ok());
    flags.is_none_or(|it| it & libc::O_ACCMODE != libc::O_RDONLY && it & libc::O_PATH == 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsRawFd;

    #[test]
    fn who_writes_a_file_is_told_from_who_reads_it() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        let key = FileKey::of(file.as_file().as_raw_fd()).expect("regular");
        let own = std::process::id();
        assert!(is_written_by(own, key));
        let path = file.into_temp_path();
        let read = File::open(&path).expect("there");
        assert!(!is_written_by(own, key));
        let written = OpenOptions::new().append(true).open(&path).expect("there");
        assert!(is_written_by(own, key));
        drop((read, written));
        assert!(!is_written_by(own, key) && !is_written_by(u32::MAX / 2, key));
    }
}
