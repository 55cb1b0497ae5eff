//! The program of `switchyard run`: a child whose signals and end are those of its parent, so that the parent can settle the
//! area when the program has ended, however that was.

use std::io;
use std::mem;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::ptr;

/// Runs the program to its end. From here on this process takes signals for the program: it passes on those that other processes
/// send. Those of the terminal reach the program as one of the same process group. It stops when the program stops. If this
/// process is killed, so is the program.
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
    loop {
        // SAFETY: zeros are a valid `siginfo_t`.
        let mut info: libc::siginfo_t = unsafe { mem::zeroed() };
        // SAFETY: a set, and room for the answer.
        let signal = unsafe { libc::sigwaitinfo(&all, &mut info) };
        if signal == libc::SIGCHLD {
            if let Some(status) = changed(child) {
                return Ok(status);
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
    std::process::exit(status.code().unwrap_or(1))
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
