//! The program of `switchyard run`: a child whose signals and end are those of its parent, so that the parent can settle the
//! area when the program has ended, however that was.

use std::io;
use std::mem;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::ptr;

/// Runs the program to its end. From here on this process takes signals for the program: it passes on those that other processes
/// send. Those of the terminal reach the program as one of the same process group. It stops when the program stops. If this
/// process is killed, so is the program. The first process of a container, or a subreaper (prctl(2)), gets the orphans of its
/// descendants, and takes their ends, too.
///
/// # Errors
/// If the program does not start.
pub fn run_to_end(command: &mut Command) -> io::Result<ExitStatus> {
    let (all, before) = block_signals();
    // SAFETY: it takes nothing.
    let parent = unsafe { libc::getpid() };
    let prepare = move || {
        // SAFETY: `before` is a set; these calls may be made between fork and exec.
        unsafe {
            libc::sigprocmask(libc::SIG_SETMASK, &before, ptr::null_mut());
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // The parent may have ended before it could be said.
            match libc::getppid() == parent {
                true => Ok(()),
                false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            }
        }
    };
    // SAFETY: it allocates nothing and takes no lock.
    let child = unsafe { command.pre_exec(prepare) }.spawn();
    let child = child.inspect_err(|_| {
        // SAFETY: `before` is a set.
        unsafe { libc::sigprocmask(libc::SIG_SETMASK, &before, ptr::null_mut()) };
    })?;
    let child = child.id() as libc::pid_t;
    let gets_orphans = gets_orphans();
    loop {
        // SAFETY: zeros are a valid `siginfo_t`.
        let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
        // SAFETY: a set, and room for the answer.
        let signal = unsafe { libc::sigwaitinfo(&all, &mut info) };
        if signal == libc::SIGCHLD {
            if let Some(status) = changed(child) {
                return Ok(status);
            }
            if gets_orphans {
                bury_orphans(child);
            }
        } else if signal > 0 && info.si_code <= 0 {
            // SAFETY: a child that was not waited for keeps its number.
            unsafe { libc::kill(child, signal) };
        }
    }
}

/// Begins a thread of this process that no signal ever reaches, not even before its first step. A SIGCHLD that some thread does not block
/// may go there. Its default is to be ignored, so [`run_to_end`] would wait for ever.
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
fn block_signals() -> (libc::sigset_t, libc::sigset_t) {
    // SAFETY: zeros are valid sets, which the calls fill.
    unsafe {
        let (mut all, mut before) = (mem::zeroed(), mem::zeroed());
        libc::sigfillset(&mut all);
        libc::pthread_sigmask(libc::SIG_SETMASK, &all, &mut before);
        (all, before)
    }
}

/// How the child ended, if it has. If the terminal stopped it, this process stops, too: the shell waits for that, and continues both.
/// A process that stops the child by its number continues the child by its number, and would leave this process stopped.
fn changed(child: libc::pid_t) -> Option<ExitStatus> {
    loop {
        let mut status = 0;
        // SAFETY: room for the answer.
        let found = unsafe { libc::waitpid(child, &mut status, libc::WNOHANG | libc::WUNTRACED) };
        if found <= 0 {
            return None;
        }
        if !libc::WIFSTOPPED(status) {
            return Some(ExitStatus::from_raw(status));
        }
        if matches!(
            libc::WSTOPSIG(status),
            libc::SIGTSTP | libc::SIGTTIN | libc::SIGTTOU
        ) {
            // SAFETY: whoever has started this process sees that it has stopped, and continues it.
            unsafe { libc::raise(libc::SIGSTOP) };
        }
    }
}

/// True if the children of descendants that end become children of this process.
fn gets_orphans() -> bool {
    let mut is_subreaper: libc::c_int = 0;
    // SAFETY: room for the answer; the other call takes nothing.
    unsafe {
        libc::prctl(libc::PR_GET_CHILD_SUBREAPER, &raw mut is_subreaper);
        is_subreaper != 0 || libc::getpid() == 1
    }
}

/// Takes the ends of other children than the program, of which none was begun by this process. They would stay as zombies.
fn bury_orphans(program: libc::pid_t) {
    loop {
        // SAFETY: zeros are a valid `siginfo_t`, and room for the answer. The child is only looked at.
        let ended = unsafe {
            let mut info: libc::siginfo_t = mem::zeroed();
            let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
            match libc::waitid(libc::P_ALL, 0, &mut info, flags) {
                0 => info.si_pid(),
                _ => 0,
            }
        };
        if ended == 0 || ended == program {
            // The program's own end came after the look at it: its signal is pending.
            return;
        }
        // SAFETY: it has ended, and nobody else waits for it.
        unsafe { libc::waitpid(ended, ptr::null_mut(), libc::WNOHANG) };
    }
}

/// Ends this process as the program has ended.
pub fn end_as(status: ExitStatus) -> ! {
    if let Some(signal) = status.signal() {
        // SAFETY: no memory but a set of this function. There is no second core, beside the program's.
        unsafe {
            libc::prctl(libc::PR_SET_DUMPABLE, 0);
            libc::signal(signal, libc::SIG_DFL);
            let mut set = mem::zeroed();
            libc::sigemptyset(&mut set);
            libc::sigaddset(&mut set, signal);
            libc::sigprocmask(libc::SIG_UNBLOCK, &set, ptr::null_mut());
            libc::raise(signal);
        }
    }
    // The first process of a container cannot be killed by itself: shells tell of a signal so.
    let code = status.code().or_else(|| Some(128 + status.signal()?));
    std::process::exit(code.unwrap_or(1))
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
