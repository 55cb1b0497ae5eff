//! What threads share comes from one module, and docs/concurrency.md says how each file that does so is checked.

use std::collections::BTreeSet;
use std::fs;

use crate::names::paths;
use crate::{product, report, root};

/// Types by which threads share something, or wait for each other.
const SHARED: &[&str] = &[
    "Barrier", "Condvar", "Futex", "LazyLock", "Mutex", "Once", "OnceLock", "RwLock", "Wake", "mpsc",
];
/// The modules that have them. Nobody else names the standard library's but the edges.
const MODULES: &[&str] = &["crates/base/src/sync.rs", "crates/os/src/sync.rs"];
const EDGES: &[&str] = &[
    "crates/preload/",
    "crates/profile/",
    "crates/sim/src/eval/memo.rs",
    "crates/sim/src/threads.rs",
    "crates/switchyard/",
];

/// Whether the path leads to such a type, and whether it is the standard library's.
fn shared(path: &str) -> Option<bool> {
    let parts: Vec<&str> = path.split("::").collect();
    let at = parts.iter().position(|part| *part == "sync")?;
    let rest = &parts[at + 1..];
    let is_shared = rest
        .iter()
        .any(|part| SHARED.contains(part) || part.starts_with("Atomic") || *part == "atomic");
    let is_standard = matches!(parts[..at], ["std" | "core"]);
    is_shared.then_some(is_standard)
}

#[test]
fn what_threads_share_comes_from_one_module_and_is_listed() {
    let page = fs::read_to_string(root().join("docs/concurrency.md")).expect("the page exists");
    let mut problems = Vec::new();
    let mut sharing = BTreeSet::new();
    for (path, text) in product() {
        let named = paths(&text);
        let found: Vec<bool> = named.iter().filter_map(|name| shared(name)).collect();
        let calls = |call: &str| named.iter().any(|name| name.ends_with(call));
        if MODULES.contains(&path.as_str()) || !path.contains("/src/") || path.ends_with("_tests.rs") {
            continue;
        }
        if calls("libc::SYS_futex") || calls("libc::eventfd") {
            problems.push(format!("{path} calls the kernel's waits itself: use os::sync"));
        }
        let is_edge = EDGES.iter().any(|edge| path.starts_with(edge));
        if found.contains(&true) && !is_edge {
            problems.push(format!(
                "{path} names the standard library's: use os::sync or base::sync"
            ));
        }
        if !found.is_empty() {
            if !page.contains(&format!("`{path}`")) {
                problems.push(format!(
                    "{path} shares something and is not in docs/concurrency.md"
                ));
            }
            sharing.insert(path);
        }
    }
    let listed = page.lines().filter(|line| line.starts_with("| "));
    for listed in listed.flat_map(|line| line.split('`').skip(1).step_by(2)) {
        let exists = root().join(listed).exists();
        if listed.starts_with("crates/") && !exists {
            problems.push(format!("docs/concurrency.md names {listed}, which is gone"));
        }
        if listed.contains("/src/") && listed.ends_with(".rs") && exists && !sharing.contains(listed) {
            problems.push(format!(
                "docs/concurrency.md names {listed}, which shares nothing"
            ));
        }
    }
    assert!(sharing.len() > 20, "the files that share are found");
    report(
        "what threads share comes from one module and is listed",
        &problems,
    );
}

#[test]
fn shared_types_are_told_from_others() {
    assert_eq!(shared("std::sync::Mutex"), Some(true));
    assert_eq!(shared("core::sync::atomic::AtomicU64"), Some(true));
    assert_eq!(shared("super::sync::mpsc::channel"), Some(false));
    assert_eq!(shared("std::sync::Arc"), None);
    assert_eq!(shared("tokio::time::sleep"), None);
}
