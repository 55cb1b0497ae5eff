//! A bound on the memory of a program, with the page cache of what it reads: a control group.

use anyhow::Context;
use rustix::fs::{Advice, fadvise};
use std::fs;
use std::path::{Path, PathBuf};

/// The memory controller's hierarchy of version 1, and that of version 2.
const ROOTS: [&str; 2] = ["/sys/fs/cgroup/memory", "/sys/fs/cgroup"];

/// A control group for one program. It is removed when it is dropped, after the program's end.
pub struct Cage {
    dir: PathBuf,
    is_first_version: bool,
}

impl Cage {
    /// A group whose processes, and the page cache that they fill, take `bytes` at most.
    pub fn new(bytes: u64) -> anyhow::Result<Self> {
        let is_first_version = Path::new(ROOTS[0]).join("memory.limit_in_bytes").exists();
        let root = Path::new(ROOTS[usize::from(!is_first_version)]);
        let dir = root.join(format!("switchyard-bench-{}", std::process::id()));
        let why = "--reads bounds the memory of each engine by a control group: run it as root, with the memory controller";
        if !is_first_version {
            // Harmless if it is on already.
            fs::write(root.join("cgroup.subtree_control"), "+memory").context(why)?;
        }
        if !dir.exists() {
            fs::create_dir(&dir).context(why)?;
        }
        let cage = Self {
            dir,
            is_first_version,
        };
        let (limit, swap) = match is_first_version {
            true => ("memory.limit_in_bytes", "memory.swappiness"),
            false => ("memory.max", "memory.swap.max"),
        };
        fs::write(cage.dir.join(limit), bytes.to_string()).context(why)?;
        // Where there is no swap there may be no such file.
        let _ = fs::write(cage.dir.join(swap), "0");
        Ok(cage)
    }

    /// A process that writes `0` here is in it from then on.
    pub fn door(&self) -> PathBuf {
        self.dir.join("cgroup.procs")
    }

    /// The most memory that the program took, with its page cache.
    pub fn peak_bytes(&self) -> Option<u64> {
        let name = match self.is_first_version {
            true => "memory.max_usage_in_bytes",
            false => "memory.peak",
        };
        fs::read_to_string(self.dir.join(name)).ok()?.trim().parse().ok()
    }
}

impl Drop for Cage {
    fn drop(&mut self) {
        // A process may still be at its end: another run makes the group anew, or uses it.
        let _ = fs::remove_dir(&self.dir);
    }
}

/// Takes the files of a directory out of the page cache: what others have read is not in the group's account.
pub fn forget(dir: &Path) -> anyhow::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            forget(&path)?;
            continue;
        }
        let file = fs::File::open(&path)?;
        file.sync_all()?;
        fadvise(&file, 0, None, Advice::DontNeed).with_context(|| path.display().to_string())?;
    }
    Ok(())
}
