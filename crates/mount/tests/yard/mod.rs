//! A device, a daemon and processes for the tests: each process is the test program in another role.

use fs::format::Tier;
use fs::inode::Time;
use mount::engine::make;
use mount::media::{Access, DeviceSpec, Disks, Source};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Says which role this program has.
pub const ROLE: &str = "SWITCHYARD_TEST_ROLE";
/// The user of processes that may not do everything.
pub const NOBODY: u32 = 65_534;

/// A place for a device and a socket. Memory, if there is such: a test is about kills, and not about a disk.
pub struct Yard {
    pub directory: tempfile::TempDir,
}

impl Yard {
    pub fn new() -> Self {
        let directory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
        let directory = directory.expect("a temporary directory");
        std::fs::set_permissions(directory.path(), PermissionsExt::from_mode(0o755)).expect("it is ours");
        let place = Self { directory };
        let file = File::create(place.device()).expect("a new file");
        file.set_len(128 << 20).expect("there is room");
        let uuid = || {
            let [high, low] = [os::seed(), os::seed()];
            uuid::Uuid::from_u64_pair(high, low)
        };
        let new = fs::make::Make {
            uuid: uuid(),
            devices: vec![(Tier::Memory, uuid())],
            time: Time::default(),
            owner: (0, 0),
        };
        make(&disks(&place.device()), &new).expect("it has room");
        place
    }

    pub fn device(&self) -> PathBuf {
        self.directory.path().join("nvm")
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("control")
    }

    /// Starts a daemon, and waits until it serves.
    pub fn serve(&self) -> Process {
        let mut daemon = Process::start("daemon", self.directory.path(), &[], None);
        assert_eq!(daemon.line().as_deref(), Some("serving"));
        daemon
    }

    pub fn check(&self) {
        let report = fs::check::check_to(&disks(&self.device()), fs::check::Depth::Data);
        assert!(report.is_clean(), "{:?}", report.findings);
    }

    pub fn windows(&self) -> usize {
        let entries = std::fs::read_dir(self.directory.path()).expect("it is there");
        let names = entries.flatten().map(|entry| entry.file_name());
        names
            .filter(|name| name.to_string_lossy().contains(".log-"))
            .count()
    }
}

pub fn disks(path: &Path) -> Disks {
    let spec = DeviceSpec {
        source: Source::File(path.to_owned()),
        tier: Tier::Memory,
        timing: None,
    };
    Disks::open(&[spec], Access::Own).expect("it is ours").0
}

/// A process in a role. It is killed if it is dropped.
pub struct Process {
    pub child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Process {
    pub fn start(role: &str, directory: &Path, arguments: &[&str], uid: Option<u32>) -> Self {
        let mut command = Command::new(std::env::current_exe().expect("it runs"));
        command
            .args(["role_of_a_process", "--exact", "--nocapture", "--ignored"])
            .env(
                ROLE,
                [&[role, &directory.to_string_lossy()], arguments]
                    .concat()
                    .join(" "),
            )
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        if let Some(uid) = uid {
            command.uid(uid).gid(uid);
        }
        let mut child = command.spawn().expect("it starts");
        let lines = BufReader::new(child.stdout.take().expect("it is piped"));
        Self { child, lines }
    }

    /// The next line that it says to the test.
    pub fn line(&mut self) -> Option<String> {
        let mut line = String::new();
        loop {
            line.clear();
            if self.lines.read_line(&mut line).expect("it is a pipe") == 0 {
                return None;
            }
            if let Some(said) = line.strip_prefix("! ") {
                return Some(said.trim_end().to_owned());
            }
        }
    }

    /// All lines up to its end.
    pub fn rest(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.line()).collect()
    }

    pub fn kill(&mut self) {
        self.child.kill().expect("it is ours");
        self.child.wait().expect("it is ours");
    }

    pub fn signal(&self, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, signal).expect("it is ours");
    }

    /// Ends it in good order.
    pub fn end(mut self) {
        drop(self.child.stdin.take());
        assert!(self.child.wait().expect("it is ours").success());
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn say(text: &str) {
    let mut out = std::io::stdout().lock();
    writeln!(out, "\n! {text}")
        .and_then(|()| out.flush())
        .expect("somebody hears");
}
