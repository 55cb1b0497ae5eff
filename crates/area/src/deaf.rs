//! Threads that no signal reaches, in a process that waits for signals.

use std::io;
use std::mem;
use std::ptr;

/// Begins a thread of this process that no signal ever reaches, not even before its first step. A SIGCHLD that some thread does not block
/// may go there. Its default is to be ignored, so `files::run_to_end` would wait for ever.
///
/// # Errors
/// The system refuses a thread.
pub(crate) fn spawn_deaf(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let (_, before) = block_signals();
    let spawned = std::thread::Builder::new().name(name.into()).spawn(work);
    // SAFETY: `before` is a set.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &before, ptr::null_mut()) };
    spawned.map(drop)
}

/// Blocks all signals: the set of all, and those that were blocked before.
pub(crate) fn block_signals() -> (libc::sigset_t, libc::sigset_t) {
    // SAFETY: zeros are valid sets, which the calls fill.
    unsafe {
        let (mut all, mut before) = (mem::zeroed(), mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        (all, before)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blocked() -> Vec<bool> {
        // SAFETY: zeros are a valid set, which the call fills.
        unsafe {
            let mut set = mem::zeroed();
            libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &mut set);
            (1..32)
                .map(|signal| libc::sigismember(&set, signal) == 1)
                .collect()
        }
    }

    /// bug: `run` waited for ever for a program that had ended. cause: SIGCHLD reached a thread before that had blocked it, and was
    /// ignored. fix: the thread is born so.
    #[test]
    fn no_signal_reaches_a_deaf_thread_before_its_first_step() {
        let before = blocked();
        let (tell, told) = std::sync::mpsc::channel();
        spawn_deaf("deaf", move || tell.send(blocked()).expect("somebody asks")).expect("a thread");
        let born = told.recv().expect("an answer");
        let can_block = |signal: usize| ![libc::SIGKILL, libc::SIGSTOP].contains(&(signal as i32 + 1));
        assert!(
            (0..31)
                .filter(|&signal| can_block(signal))
                .all(|signal| born[signal])
        );
        assert_eq!(blocked(), before);
    }
}
