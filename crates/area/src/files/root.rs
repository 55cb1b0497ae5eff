//! The root of this process. The area has paths as those who recover it see them.

use os::sync::{Mutex, PoisonError};
use std::path::{Path, PathBuf};

/// The root, if it is not the one that this process began with. Nobody waits while he has the lock, so the model checks, which run side by
/// side in one process, need not know it.
static ROOT: Mutex<Option<PathBuf>> = Mutex::new(None);

/// The process has another root now, which had this path before.
pub fn change_root(path: &Path) {
    let path = whole(path);
    *ROOT.lock().unwrap_or_else(PoisonError::into_inner) = Some(path);
}

/// True if paths of this process are not those of the area.
pub(super) fn is_another() -> bool {
    ROOT.lock().unwrap_or_else(PoisonError::into_inner).is_some()
}

/// An absolute path of this process as the area has it.
pub fn whole(path: &Path) -> PathBuf {
    let root = ROOT.lock().unwrap_or_else(PoisonError::into_inner);
    match (&*root, path.strip_prefix("/")) {
        (Some(root), Ok(rest)) if rest.as_os_str().is_empty() => root.clone(),
        (Some(root), Ok(rest)) => root.join(rest),
        _ => path.to_owned(),
    }
}
