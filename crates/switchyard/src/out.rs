//! Output of commands: standard output and error, and files that arguments name.
//!
//! The standard library's `println!` panics where nothing can be written: at a pipe whose reader has left
//! (`switchyard … | head -1`), on a full disk. The macros here stand in its place in the whole crate. What cannot be
//! written is given up, the first failure is kept, as `ferror` keeps it, and [`end`] tells it in the exit code: a command
//! thus ends in its own way, with its children, temporary files and media looked after, and a server goes on serving. A
//! reader who has left is no failure.

use crate::datadir::write_durably;
use crate::failure::Failure;
use anyhow::Context;
use std::fmt::Arguments;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::OnceLock;

/// As that of the standard library, without its panic.
macro_rules! print {
    ($($text:tt)*) => { $crate::out::write(format_args!($($text)*)) };
}

/// As that of the standard library, without its panic.
macro_rules! println {
    () => { $crate::out::write(format_args!("\n")) };
    ($($text:tt)*) => { $crate::out::write(format_args!("{}\n", format_args!($($text)*))) };
}

/// As that of the standard library, without its panic.
macro_rules! eprint {
    ($($text:tt)*) => { $crate::out::write_error(format_args!($($text)*)) };
}

/// As that of the standard library, without its panic.
macro_rules! eprintln {
    ($($text:tt)*) => { $crate::out::write_error(format_args!("{}\n", format_args!($($text)*))) };
}

/// First error of standard output.
static FAILED: OnceLock<ErrorKind> = OnceLock::new();

/// Writes to standard output, unless that has failed before.
pub fn write(text: Arguments<'_>) {
    if !is_lost() {
        keep(io::stdout().lock().write_fmt(text));
    }
}

/// Writes to standard error; if that fails, there is nowhere left to tell it.
pub fn write_error(text: Arguments<'_>) {
    let _ = io::stderr().lock().write_fmt(text);
}

/// Hands on what is still buffered.
pub fn flush() {
    if !is_lost() {
        keep(io::stdout().lock().flush());
    }
}

/// Keeps the failure of a write to standard output that was not made here. The first is told at once, as a server may have
/// long to go until its end.
pub fn keep(result: io::Result<()>) {
    let Err(error) = result else { return };
    if FAILED.set(error.kind()).is_ok() && error.kind() != ErrorKind::BrokenPipe {
        eprintln!("switchyard: cannot write standard output: {error}");
    }
}

/// True if nobody gets what is printed: whoever does nothing but print may stop.
pub fn is_lost() -> bool {
    FAILED.get().is_some()
}

/// Hands on what is still buffered. False if something was lost for another reason than that its reader has left.
pub fn end() -> bool {
    flush();
    FAILED.get().is_none_or(|kind| *kind == ErrorKind::BrokenPipe)
}

/// Makes a directory for [`write_file`] and those it lies in, if they are not there.
pub fn make_dir(dir: &Path) -> anyhow::Result<()> {
    let refuse = |why: String| Failure::Usage(format!("{}: {why}", dir.display()));
    if dir.exists() && !dir.is_dir() {
        return Err(refuse("this is a file, and a directory is needed".to_owned()).into());
    }
    fs::create_dir_all(dir).map_err(|error| refuse(format!("cannot create it: {error}")).into())
}

/// Refuses a file that [`write_file`] could not write, before the work whose result it is to hold.
pub fn check_file(path: &Path) -> anyhow::Result<()> {
    let check = || match fs::metadata(path) {
        Ok(found) if found.is_dir() => Err(ErrorKind::IsADirectory.into()),
        // A pipe or a device; opening it now might be what its reader waits for.
        Ok(found) if !found.is_file() => Ok(()),
        _ => {
            let mut trial = path.as_os_str().to_owned();
            trial.push(".tmp");
            fs::File::create(&trial)?;
            fs::remove_file(&trial)
        }
    };
    check().map_err(|error: io::Error| {
        Failure::Usage(format!("cannot write {}: {error}", path.display())).into()
    })
}

/// Writes a file whole or not at all; a pipe or a device is written as it is.
pub fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    let written = match fs::metadata(path) {
        Ok(found) if !found.is_file() => fs::write(path, text),
        // What a link leads to is replaced, not the link.
        Ok(_) => fs::canonicalize(path).and_then(|path| write_durably(&path, text.as_bytes())),
        Err(_) => write_durably(path, text.as_bytes()),
    };
    written.with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn what_cannot_be_written_is_refused_before_and_a_trial_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let page = dir.path().join("page.html");
        check_file(&page).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        for (path, why) in [
            (dir.path().to_owned(), "directory"),
            (dir.path().join("none/page.html"), "No such file"),
            ("/proc/page.html".into(), "cannot write"),
        ] {
            let error = check_file(&path).unwrap_err().to_string();
            assert!(
                error.contains(why) && error.contains(path.to_str().unwrap()),
                "{error}"
            );
        }
        check_file(Path::new("/dev/null")).unwrap();
    }

    #[test]
    fn a_file_is_replaced_whole_through_a_link_and_a_device_stays_one() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        fs::write(&file, "old").unwrap();
        symlink(&file, &link).unwrap();
        let before = fs::File::open(&file).unwrap();
        write_file(&link, "new").unwrap();
        assert_eq!(fs::read_to_string(&file).unwrap(), "new");
        assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
        assert_eq!(
            io::read_to_string(before).unwrap(),
            "old",
            "it was not written over"
        );
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 2);
        write_file(Path::new("/dev/null"), "x").unwrap();
        assert!(!fs::metadata("/dev/null").unwrap().is_file());
    }
}
