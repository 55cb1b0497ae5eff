//! A process beside that of a mount: if the mount's process is killed while one of its threads waits for the kernel, the guard ends the connection.
//!
//! Such a thread waits for pages that the kernel writes back or reads. The process itself would answer these requests, so the thread would wait for ever, and with it
//! everyone who uses the mount: the kernel ends a connection when the last thread that has it is gone.

use crate::launch::Says;
use clap::Args;
use mount::posix::Mounted;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, getppid, pidfd_open};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Between two looks at the mount's process.
const LOOK_EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000_000,
};

/// What the mount's process tells its guard.
#[derive(Args)]
pub struct GuardArgs {
    /// The mount's process
    #[arg(long)]
    pid: i32,
    /// The number of its connection
    #[arg(long)]
    connection: Option<u32>,
    /// Where it is mounted
    place: PathBuf,
}

/// The guard of this process's mount. It ends when this is dropped, or with the process.
pub struct Guard(Child);

impl Guard {
    /// Starts it. Without one the mount is served all the same.
    pub fn start(mounted: &Mounted, says: &Says) -> Option<Self> {
        let spawn = || {
            let mut command = Command::new(std::env::current_exe()?);
            command.args(["fs", "guard", "--pid", &std::process::id().to_string()]);
            if let Some(connection) = mounted.connection() {
                command.args(["--connection", &connection.to_string()]);
            }
            command.arg("--").arg(mounted.place());
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            // Ctrl-C is for the mount, which ends its guard.
            command.current_dir("/").process_group(0).spawn()
        };
        match spawn() {
            Ok(child) => Some(Self(child)),
            Err(error) => {
                says.note(&format!(
                    "no guard could be started ({error}): if this is killed, the mount may hang until `umount -f`"
                ));
                None
            }
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Watches the mount's process until it is gone.
pub fn run(args: &GuardArgs) -> anyhow::Result<()> {
    let daemon = Pid::from_raw(args.pid).filter(|daemon| getppid() == Some(*daemon));
    // Otherwise it has ended already.
    let Some(Ok(watched)) = daemon.map(|daemon| pidfd_open(daemon, PidfdFlags::empty())) else {
        return Ok(());
    };
    let mut was_killed = false;
    while !has_ended(&watched) {
        let is_killed = is_killed(args.pid);
        // Its other threads have had a while to end.
        if is_killed && was_killed {
            fuse::mount::abort(args.connection, &args.place)?;
        }
        was_killed = is_killed;
    }
    Ok(())
}

/// Waits a while for a process: true if all its threads have ended.
fn has_ended(process: &OwnedFd) -> bool {
    let mut events = [PollFd::new(process, PollFlags::IN)];
    matches!(poll(&mut events, Some(&LOOK_EVERY)), Ok(1..))
}

/// Whether the first thread of a process has ended, which serves until the process ends.
fn is_killed(pid: i32) -> bool {
    let stat = std::fs::read(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before may have brackets of its own (proc_pid_stat(5)).
    let state = stat
        .iter()
        .rposition(|byte| *byte == b')')
        .and_then(|at| stat.get(at + 2));
    matches!(state, Some(b'Z' | b'X'))
}
