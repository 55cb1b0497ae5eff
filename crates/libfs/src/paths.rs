//! Paths: from a directory to an inode, as Linux walks.

use fs::client::{Call, Client, Failure};
use fs::errno::Errno;
use fs::format::ROOT_INODE;
use fs::inode::{Inode, TYPE_LINK, TYPE_MASK};
use fs::walks::Walk;
use std::cell::Cell;

/// Symbolic links of one path, at most: `MAXSYMLINKS` of Linux.
const LINKS_MAX: usize = 40;
/// Bytes of a path, at most: `PATH_MAX` of Linux.
const PATH_BYTES_MAX: usize = 4096;

/// Where a path ends.
pub(crate) struct Walked {
    /// The directory with the last name.
    pub parent: u64,
    /// The last name. None if the path ends with a directory's dots, or is the root's.
    pub name: Option<Vec<u8>>,
    /// What is there.
    pub found: Option<(u64, Inode)>,
    /// The path says that it is a directory.
    pub is_directory: bool,
}

impl Walked {
    /// What is there, if something is.
    pub fn there(&self) -> Result<(u64, Inode), Failure> {
        let (number, inode) = self.found.ok_or(Errno::NoEntry)?;
        match self.is_directory && !inode.is_directory() {
            true => Err(Errno::NotDirectory.into()),
            false => Ok((number, inode)),
        }
    }

    /// The directory and the last name.
    pub fn entry(&self, without: Errno) -> Result<(u64, &[u8]), Failure> {
        match &self.name {
            Some(name) => Ok((self.parent, name)),
            None => Err(without.into()),
        }
    }
}

/// A path from a directory on. One that begins with `/` is from the root on, whatever the directory.
#[derive(Clone, Copy, Debug)]
pub struct Place<'p> {
    /// The directory's inode.
    pub directory: u64,
    /// The path.
    pub path: &'p [u8],
}

impl<'p> Place<'p> {
    /// From the root on.
    pub fn new(path: &'p (impl AsRef<[u8]> + ?Sized)) -> Self {
        Self::at(ROOT_INODE, path)
    }

    /// From a directory on.
    pub fn at(directory: u64, path: &'p (impl AsRef<[u8]> + ?Sized)) -> Self {
        let path = path.as_ref();
        Self { directory, path }
    }
}

/// How a path is walked.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Manner<'c> {
    /// A symbolic link at the end is followed.
    pub follows: bool,
    /// There is more than this file system: absolute links, and `..` of the root, lead to [`Errno::CrossDevice`].
    pub is_mounted: bool,
    /// Where the walk says whether it looks for the last name.
    pub is_last: Option<&'c Cell<bool>>,
}

/// Walks.
pub(crate) fn walk(
    calls: &Client,
    call: &mut Call<'_, '_>,
    (base, path): (u64, &[u8]),
    manner: Manner<'_>,
) -> Result<Walked, Failure> {
    if let Some(walk) = call.below.walked(base, manner.follows, path) {
        return Ok(Walked {
            parent: walk.parent,
            name: walk.name.as_deref().map(<[u8]>::to_vec),
            found: Some(walk.found),
            is_directory: walk.is_directory,
        });
    }
    let walked = walk_all(calls, call, (base, path), manner)?;
    if let Some(found) = walked.found {
        call.below.note_walk(|| Walk {
            base,
            follows: manner.follows,
            path: path.into(),
            parent: walked.parent,
            name: walked.name.as_deref().map(Box::from),
            found,
            is_directory: walked.is_directory,
        });
    }
    Ok(walked)
}

fn walk_all(
    calls: &Client,
    call: &mut Call<'_, '_>,
    (base, path): (u64, &[u8]),
    manner: Manner<'_>,
) -> Result<Walked, Failure> {
    let mut owned: Option<Vec<u8>> = None;
    let mut directory = base;
    for _ in 0..=LINKS_MAX {
        let path = owned.as_deref().unwrap_or(path);
        match path.len() {
            0 => return Err(Errno::NoEntry.into()),
            1..=PATH_BYTES_MAX => {}
            _ => return Err(Errno::NameTooLong.into()),
        }
        match walk_to_link(calls, call, (directory, path), manner)? {
            Step::End(walked) => return Ok(walked),
            Step::Link(at, path) => (directory, owned) = (at, Some(path)),
        }
    }
    Err(Errno::Loop.into())
}

enum Step {
    End(Walked),
    /// The path goes on from a directory.
    Link(u64, Vec<u8>),
}

fn walk_to_link(
    calls: &Client,
    call: &mut Call<'_, '_>,
    (base, path): (u64, &[u8]),
    manner: Manner<'_>,
) -> Result<Step, Failure> {
    let mut at = if path[0] == b'/' { ROOT_INODE } else { base };
    let is_directory = path.last() == Some(&b'/');
    let mut names = path.split(|byte| *byte == b'/').filter(|name| !name.is_empty());
    let mut next = names.next();
    let mut last = None;
    while let Some(name) = next {
        next = names.next();
        let is_last = next.is_none();
        if name == b"." || name == b".." {
            if manner.is_mounted && at == ROOT_INODE && name == b".." {
                return Err(Errno::CrossDevice.into());
            }
            at = calls.lookup(call, (at, name))?.0;
            continue;
        }
        if let Some(at_last) = manner.is_last {
            at_last.set(is_last);
        }
        let (number, inode) = match calls.lookup(call, (at, name)) {
            Ok(found) => found,
            Err(Failure::Posix(Errno::NoEntry)) if is_last => {
                last = Some((name, None));
                continue;
            }
            Err(failure) => return Err(failure),
        };
        let is_link = inode.mode & TYPE_MASK == TYPE_LINK;
        if is_link && (!is_last || manner.follows || is_directory) {
            let mut rest = calls.readlink(call.below, number)?;
            if manner.is_mounted && rest.first() == Some(&b'/') {
                return Err(Errno::CrossDevice.into());
            }
            for name in next.into_iter().chain(names.by_ref()) {
                rest.push(b'/');
                rest.extend_from_slice(name);
            }
            if is_directory {
                rest.push(b'/');
            }
            return Ok(Step::Link(at, rest));
        }
        match is_last {
            true => last = Some((name, Some((number, inode)))),
            false => at = number,
        }
    }
    Ok(Step::End(match last {
        Some((name, found)) => Walked {
            parent: at,
            name: Some(name.to_vec()),
            found,
            is_directory,
        },
        None => Walked {
            parent: at,
            name: None,
            found: Some((at, calls.stat(call.below, at)?)),
            is_directory: true,
        },
    }))
}
