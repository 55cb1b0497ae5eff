//! The program of `switchyard run`: a child whose signals and end are those of its parent, so that the parent can settle the
//! area when the program has ended, however that was.

use crate::deaf::block_signals;
use base::sync::{AtomicBool, Ordering};
use std::collections::BTreeMap;
use std::ffi::{CString, OsStr, OsString};
use std::io;
use std::mem;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};
use std::ptr;

/// Variables of systemd that name the process which they are for (sd_listen_fds(3), sd_watchdog_enabled(3)).
const NAMES_OF_PIDS: [&str; 2] = ["LISTEN_PID", "WATCHDOG_PID"];
/// Names the same process by another number, and is optional. The program's is not known before it is there.
const NAME_OF_PIDFD: &str = "LISTEN_PIDFDID";
/// Bytes of a process's number as text, with a zero.
const PID_BYTES: usize = 11;

/// SIGPIPE was ignored when this process began: Rust ignores it before `main`, and makes it the default in children.
static IGNORES_PIPE: AtomicBool = AtomicBool::new(false);

extern "C" fn before_main() {
    // SAFETY: zeros are a valid `sigaction`, which the call fills.
    let handler = unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        libc::sigaction(libc::SIGPIPE, ptr::null(), &mut action);
        action.sa_sigaction
    };
    IGNORES_PIPE.store(handler == libc::SIG_IGN, Ordering::Relaxed);
}

#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_MAIN: extern "C" fn() = before_main;

/// Strings and a null at the end, as execve(2) takes them. They stay as long as this process, as the program does.
struct Words(Vec<*mut libc::c_char>);

// SAFETY: only a forked child, which has one thread, writes what the pointers lead to, and nobody frees it.
unsafe impl Send for Words {}
// SAFETY: the same.
unsafe impl Sync for Words {}

impl Words {
    fn new() -> Self {
        Self(vec![ptr::null_mut()])
    }

    /// Adds a string: where it is.
    fn push(&mut self, word: &[u8]) -> io::Result<*mut libc::c_char> {
        let word = CString::new(word)?.into_raw();
        self.0.insert(self.0.len() - 1, word);
        Ok(word)
    }

    fn as_ptr(&self) -> *const *const libc::c_char {
        self.0.as_ptr().cast()
    }
}

/// A command as execve(2) takes it.
struct Image {
    values: Words,
    environment: Words,
    /// Values of variables that get the program's number when it is known.
    pids: Words,
}

impl Image {
    fn new(command: &Command) -> io::Result<Self> {
        let (mut values, mut environment, mut pids) = (Words::new(), Words::new(), Words(Vec::new()));
        for word in [command.get_program()].into_iter().chain(command.get_args()) {
            values.push(word.as_bytes())?;
        }
        let mut variables: BTreeMap<OsString, OsString> = std::env::vars_os().collect();
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => drop(variables.insert(name.into(), value.into())),
                None => drop(variables.remove(name)),
            }
        }
        let own = std::process::id().to_string();
        let is_own = |name: &&str| variables.get(OsStr::new(name)).is_some_and(|it| *it == *own);
        let own: Vec<_> = NAMES_OF_PIDS.into_iter().filter(is_own).collect();
        for name in &own {
            variables.remove(OsStr::new(name));
            let at = environment.push(format!("{name}={:PID_BYTES$}", "").as_bytes())?;
            // SAFETY: the value is behind the name and a sign.
            pids.0.push(unsafe { at.add(name.len() + 1) });
        }
        if own.contains(&NAMES_OF_PIDS[0]) {
            variables.remove(OsStr::new(NAME_OF_PIDFD));
        }
        for (name, value) in &variables {
            environment.push(&[name.as_bytes(), b"=", value.as_bytes()].concat())?;
        }
        Ok(Self {
            values,
            environment,
            pids,
        })
    }

    /// Becomes the program. It may be called between fork and exec.
    fn start(&self) -> io::Error {
        // SAFETY: it takes nothing.
        let pid = unsafe { libc::getpid() };
        for &place in &self.pids.0 {
            let mut digits = [0; PID_BYTES];
            let first = digits_of(pid as u32, &mut digits);
            let text = &digits[first..];
            // SAFETY: the value has so much room, and nobody else looks at this process's copy.
            unsafe { ptr::copy_nonoverlapping(text.as_ptr(), place.cast(), text.len()) };
        }
        // SAFETY: arrays of strings that end with a null, and are not freed.
        unsafe {
            let values = self.values.as_ptr();
            libc::execvpe(*values, values, self.environment.as_ptr());
        }
        io::Error::last_os_error()
    }
}

/// The number as text, and a zero, at the end of the buffer: where it begins.
fn digits_of(mut number: u32, digits: &mut [u8; PID_BYTES]) -> usize {
    let mut first = PID_BYTES - 1;
    loop {
        first -= 1;
        digits[first] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            return first;
        }
    }
}

/// Runs the program to its end. From here on this process takes signals for the program: it passes on those that other processes
/// send. Those of the terminal reach the program as one of the same process group. It stops when the program stops. If this
/// process is killed, so is the program. The first process of a container, or a subreaper (prctl(2)), gets the orphans of its
/// descendants, and takes their ends, too.
///
/// # Errors
/// If the program does not start.
pub fn run_to_end(command: &mut Command) -> io::Result<ExitStatus> {
    let image = Image::new(command)?;
    let (all, before) = block_signals();
    // SAFETY: it takes nothing.
    let parent = unsafe { libc::getpid() };
    let start = move || {
        // SAFETY: `before` is a set; these calls may be made between fork and exec.
        unsafe {
            libc::sigprocmask(libc::SIG_SETMASK, &before, ptr::null_mut());
            if IGNORES_PIPE.load(Ordering::Relaxed) {
                libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            }
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            // The parent may have ended before it could be said.
            match libc::getppid() == parent {
                true => Err(image.start()),
                false => Err(io::Error::from_raw_os_error(libc::ESRCH)),
            }
        }
    };
    // SAFETY: it allocates nothing and takes no lock.
    let child = unsafe { command.pre_exec(start) }.spawn();
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
    use std::ffi::CStr;

    #[test]
    fn what_is_for_this_process_is_for_the_program() {
        let own = std::process::id().to_string();
        let mut command = Command::new("true");
        command
            .env("LISTEN_PID", &own)
            .env("WATCHDOG_PID", "1")
            .env("LISTEN_PIDFDID", "7");
        let image = Image::new(&command).expect("words");
        let (words, ends) = image.environment.0.split_at(image.environment.0.len() - 1);
        assert!(ends[0].is_null());
        // SAFETY: strings that are not freed.
        let words: Vec<_> = words
            .iter()
            .map(|&it| unsafe { CStr::from_ptr(it) }.to_string_lossy())
            .collect();
        let of = |name: &str| -> Vec<_> { words.iter().filter(|it| it.starts_with(name)).collect() };
        assert_eq!(of("LISTEN_PID"), ["LISTEN_PID=           "]);
        assert_eq!(of("WATCHDOG_PID"), ["WATCHDOG_PID=1"]);
        assert_eq!(image.pids.0.len(), 1);
    }

    #[test]
    fn digits_are_those_of_the_number() {
        for number in [0, 7, 4_194_304, u32::MAX] {
            let mut digits = [0; PID_BYTES];
            let first = digits_of(number, &mut digits);
            assert_eq!(digits[first..], *format!("{number}\0").as_bytes());
        }
    }
}
