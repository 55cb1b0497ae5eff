//! The root of this process. The area has paths as those who recover it see them.

use crate::renewed::Renewed;
use std::path::{Path, PathBuf};

/// The root, if it is not the one that this process began with.
static ROOT: Renewed<Option<PathBuf>> = Renewed::new(None);

/// The process has another root now, which had this path before.
pub fn change_root(path: &Path) {
    let path = whole(path);
    *ROOT.lock() = Some(path);
}

/// True if paths of this process are not those of the area.
pub(super) fn is_another() -> bool {
    ROOT.lock().is_some()
}

/// An absolute path of this process as the area has it.
pub fn whole(path: &Path) -> PathBuf {
    let root = ROOT.lock();
    match (&*root, path.strip_prefix("/")) {
        (Some(root), Ok(rest)) if rest.as_os_str().is_empty() => root.clone(),
        (Some(root), Ok(rest)) => root.join(rest),
        _ => path.to_owned(),
    }
}

/// In a forked child: no other thread has the root's lock.
///
/// # Safety
/// The process has one thread, which is not in this module.
pub unsafe fn forked() {
    // SAFETY: the caller's word. A program that changes its root in one thread and forks in another has no root to rely on.
    unsafe { ROOT.renew() };
}
