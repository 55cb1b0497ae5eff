//! What `switchyard run` can follow of a program, as far as its file tells.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Bytes of a program's file that say what it is.
const HEAD_BYTES: u64 = 4096;
/// Interpreters of interpreters at most, as of the kernel.
const INTERPRETERS_MAX: usize = 4;
/// ELF: where the header says where the program headers are, their size and their number (64 bits, little-endian).
const PHOFF: usize = 32;
const PHENTSIZE: usize = 54;
const PHNUM: usize = 56;
const PT_INTERP: u32 = 3;
/// A note's lengths of name and content, type (its ID of the build), and name.
const GO: &[u8] = b"\x04\0\0\0\x53\0\0\0\x04\0\0\0Go\0\0";

/// Why nothing of a program can be followed; `None` if its file shows no reason.
pub fn obstacle(program: &OsStr) -> Option<String> {
    let mut path = find(program)?;
    for _ in 0..INTERPRETERS_MAX {
        let data = path.metadata().ok()?;
        let user = rustix::process::geteuid().as_raw();
        let group = rustix::process::getegid().as_raw();
        let changes_user = data.mode() & libc::S_ISUID != 0 && data.uid() != user;
        let changes_group = data.mode() & libc::S_ISGID != 0 && data.gid() != group;
        if changes_user || changes_group {
            return Some(format!("{} runs as another user (setuid)", path.display()));
        }
        let mut head = Vec::new();
        File::open(&path)
            .ok()?
            .take(HEAD_BYTES)
            .read_to_end(&mut head)
            .ok()?;
        if let Some(line) = head.strip_prefix(b"#!") {
            let line = line.split(|&byte| byte == b'\n').next()?.trim_ascii();
            let name = line.split(|byte| byte.is_ascii_whitespace()).next()?;
            path = PathBuf::from(OsStr::from_bytes(name));
            continue;
        }
        if !head.starts_with(b"\x7fELF") {
            return None;
        }
        let why = match (has_loader(&head)?, is_go(&head)) {
            (false, _) => "is statically linked",
            (true, true) => "is a program of Go, which makes its system calls itself",
            (true, false) => return None,
        };
        return Some(format!("{} {why}", path.display()));
    }
    None
}

/// The file that a program's name means, as execvp(3) finds it.
fn find(program: &OsStr) -> Option<PathBuf> {
    if program.as_bytes().contains(&b'/') {
        return Some(Path::new(program).to_owned());
    }
    let places = std::env::var_os("PATH")?;
    let mut paths = std::env::split_paths(&places).map(|it| it.join(program));
    paths.find(|it| it.is_file())
}

/// True if a note is there that Go gives its programs, behind the headers.
fn is_go(head: &[u8]) -> bool {
    head.windows(GO.len()).any(|bytes| bytes == GO)
}

/// True if the program asks for a loader, which loads libraries. `None` if the header is longer than what was read.
fn has_loader(head: &[u8]) -> Option<bool> {
    let number = |at: usize, bytes: usize| -> Option<usize> {
        let mut word = [0; 8];
        word[..bytes].copy_from_slice(head.get(at..at + bytes)?);
        usize::try_from(u64::from_le_bytes(word)).ok()
    };
    let (first, size, count) = (number(PHOFF, 8)?, number(PHENTSIZE, 2)?, number(PHNUM, 2)?);
    for index in 0..count {
        let kind = number(first.checked_add(index * size)?, 4)?;
        if kind == PT_INTERP as usize {
            return Some(true);
        }
    }
    Some(false)
}
