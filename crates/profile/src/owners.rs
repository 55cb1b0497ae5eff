//! Which threads are the program's.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The machine's own PID namespace, in which threads have the numbers that the trace has (linux/proc_ns.h:
/// `PROC_PID_INIT_INO`).
const INITIAL_NAMESPACE: &str = "pid:[4026531836]";

/// Tells the program's threads from others: those that were there when recording began, and all that they start. What
/// was not seen to start is looked up.
#[derive(Debug, Default)]
pub struct Owners {
    /// Everybody is the program.
    all: bool,
    processes: BTreeSet<u32>,
    known: BTreeMap<u32, bool>,
}

impl Owners {
    /// All threads of the system.
    pub fn everybody() -> Self {
        Self {
            all: true,
            ..Self::default()
        }
    }

    /// The threads of `process`, and what they start.
    pub fn of(process: u32) -> Self {
        Self {
            processes: BTreeSet::from([process]),
            known: threads_of(process)
                .into_iter()
                .map(|thread| (thread, true))
                .collect(),
            ..Self::default()
        }
    }

    /// A thread was seen to start another, which is whose the first is. Numbers of threads that ended are used again.
    pub fn start(&mut self, parent: u32, thread: u32) {
        if !self.all {
            let is_ours = self.owns(parent);
            self.known.insert(thread, is_ours);
        }
    }

    /// True if the thread is the program's.
    pub fn owns(&mut self, thread: u32) -> bool {
        if self.all {
            return true;
        }
        let processes = &self.processes;
        *self
            .known
            .entry(thread)
            .or_insert_with(|| process_of(thread).is_some_and(|process| processes.contains(&process)))
    }
}

/// The process of a thread that lives.
fn process_of(thread: u32) -> Option<u32> {
    if thread == 0 {
        return None;
    }
    let status = fs::read_to_string(format!("/proc/{thread}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Tgid:"))?;
    line.trim().parse().ok()
}

/// The threads of a process.
pub fn threads_of(process: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{process}/task"));
    tasks
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect()
}

/// True while a thread of the process runs. One that has ended is listed until somebody waits for it.
pub fn is_alive(process: u32) -> bool {
    threads_of(process).into_iter().any(|thread| {
        // `PID (NAME) STATE …`; the name may have anything in it.
        let stat = fs::read_to_string(format!("/proc/{process}/task/{thread}/stat")).unwrap_or_default();
        let state = stat.rsplit_once(") ").map(|(_, rest)| rest);
        state.is_some_and(|state| !state.starts_with(['Z', 'X']))
    })
}

/// True if threads have the same numbers here as in the trace. A kernel without namespaces has no such link.
pub fn can_be_told() -> bool {
    let namespace = fs::read_link("/proc/self/ns/pid");
    namespace.map_or(true, |namespace| namespace == Path::new(INITIAL_NAMESPACE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_nobody_has_waited_for_is_alive_until_it_ends() {
        assert!(is_alive(std::process::id()) && !is_alive(0));
        let mut child = std::process::Command::new("true").spawn().expect("a program");
        // SAFETY: all zeros are a valid siginfo_t, into which the kernel writes.
        unsafe {
            let mut info = std::mem::zeroed::<libc::siginfo_t>();
            libc::waitid(libc::P_PID, child.id(), &mut info, libc::WEXITED | libc::WNOWAIT);
        }
        assert!(!threads_of(child.id()).is_empty() && !is_alive(child.id()));
        child.wait().expect("it has ended");
    }

    #[test]
    fn threads_belong_to_their_process() {
        let me = std::process::id();
        let mut owners = Owners::of(me);
        // Threads of other tests end at any time: this test's own, and one that it holds, are looked for.
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let (say, said) = std::sync::mpsc::channel();
        let held = std::thread::spawn(move || {
            let link = fs::read_link("/proc/thread-self").expect("a thread has a name in /proc");
            let name = link.file_name().and_then(|name| name.to_str()).expect("a number");
            say.send(name.parse::<u32>().expect("a number"))
                .expect("the test waits");
            let _ = ended.recv();
        });
        let thread = said.recv().expect("the thread says its number");
        assert!(threads_of(me).contains(&thread) && owners.owns(thread));
        drop(end);
        held.join().expect("the thread ends");
        assert!(!owners.owns(1) && !owners.owns(0));
        assert!(Owners::everybody().owns(1));
        owners.start(me, u32::MAX);
        owners.start(2, u32::MAX - 1);
        assert!(owners.owns(u32::MAX) && !owners.owns(u32::MAX - 1));
    }
}
