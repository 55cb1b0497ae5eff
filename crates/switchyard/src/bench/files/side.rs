//! The sides of `switchyard bench fs`: our mount, and the kernel's file systems on the same kind of device, each with a directory.

use super::super::looped::{Loop, fill, tool};
use super::super::store::{Scratch, scratch};
use super::args::{FilesArgs, Medium, Peer};
use super::work::settle;
use crate::fs::ModeArg;
use anyhow::{Context, ensure};
use mount::posix::STATUS;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::any::Any;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// The paper's NVDIMM: 500 ns for 1 KiB.
const NVM: &str = "latency=500ns,rate=20GB/s";
/// Programs with logs of their own at once: each of the clients of a task, and some that have just ended.
const LOGS: &str = "31";
/// The engine digests what it has after two seconds without a call. A mount without a digest for longer is at rest.
const QUIET: Duration = Duration::from_millis(2500);
/// A digest that has not ended by then is not waited for.
const REST_TIME_MAX: Duration = Duration::from_secs(20);
/// A mounted file system that is taken away at the end.
pub(super) struct Side {
    pub name: String,
    /// Of the device and of the way to it.
    pub about: String,
    pub directory: PathBuf,
    /// What programs are started by.
    by: Vec<OsString>,
    /// Ends when this does.
    _kept: Box<dyn Any>,
}

impl Side {
    /// A program that uses the directory.
    pub(super) fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let Some((first, rest)) = self.by.split_first() else {
            return Command::new(program);
        };
        let mut command = Command::new(first);
        command.args(rest).arg(program);
        command
    }

    /// Waits until it does nothing in the background any more, for the side that comes next.
    pub(super) fn rest(&self) -> anyhow::Result<()> {
        settle(&self.directory)?;
        let (begin, mut same_since) = (Instant::now(), Instant::now());
        let Some(mut before) = self.digests() else {
            return Ok(());
        };
        while same_since.elapsed() < QUIET && begin.elapsed() < REST_TIME_MAX {
            std::thread::sleep(Duration::from_millis(100));
            let now = self.digests();
            if now != Some(before) {
                before = now.unwrap_or(before);
                same_since = Instant::now();
            }
        }
        Ok(())
    }

    /// Commits of our mount. The kernel's file systems have done all when they have synced.
    fn digests(&self) -> Option<u64> {
        let mut bytes = vec![0; 1 << 14];
        let count = rustix::fs::getxattr(&self.directory, STATUS, &mut bytes[..]).ok()?;
        let status: Value = serde_json::from_slice(&bytes[..count]).ok()?;
        status["commits"].as_u64()
    }
}

/// All sides on a medium, ours first, and why others are left out.
pub(super) fn sides(args: &FilesArgs, medium: Medium) -> anyhow::Result<(Vec<Side>, Vec<String>)> {
    let mut sides = vec![ours(args, medium, false)?];
    // Logs of programs are for what is durable at once.
    if medium != Medium::Ssd && medium.mode(args.mode) == ModeArg::Sync {
        sides.push(ours(args, medium, true)?);
    }
    let mut left_out = Vec::new();
    let here = match medium {
        Medium::Ssd => Peer::of(&args.dir),
        Medium::Mem | Medium::Nvm => None,
    };
    let peers = if args.alone { &[] } else { &args.peers[..] };
    for peer in peers {
        let name = peer.name();
        if here == Some(*peer) {
            let directory = Directory(scratch(&args.dir, "files").0.clone());
            fs::create_dir(&directory.0)
                .with_context(|| format!("cannot create {}", directory.0.display()))?;
            sides.push(Side {
                name: name.into(),
                about: "a directory".into(),
                directory: directory.0.clone(),
                by: Vec::new(),
                _kept: Box::new(directory),
            });
            continue;
        }
        match Loop::make(name, medium.dir(args), args.size.0) {
            Ok(looped) => sides.push(Side {
                name: name.into(),
                about: match medium {
                    Medium::Ssd => "a loop device over a file, by direct I/O".into(),
                    Medium::Mem | Medium::Nvm => "a loop device over memory".into(),
                },
                directory: looped.directory.clone(),
                by: Vec::new(),
                _kept: Box::new(looped),
            }),
            Err(error) => left_out.push(format!("{name}: {error:#}")),
        }
    }
    Ok((sides, left_out))
}

/// Our mount; or one beside which programs have logs of their own, by `run --fs`.
fn ours(args: &FilesArgs, medium: Medium, has_logs: bool) -> anyhow::Result<Side> {
    let (device_name, mount_name) = match has_logs {
        true => ("device-logs", "mount-logs"),
        false => ("device", "mount"),
    };
    let image = scratch(medium.dir(args), device_name);
    let path = image.0.display();
    let device = match medium {
        Medium::Mem => format!("mem:{},{NVM}", args.size.0),
        Medium::Nvm => format!("nvm:{path}"),
        Medium::Ssd => format!("ssd:{path}"),
    };
    let own = std::env::current_exe()?;
    if medium != Medium::Mem {
        fill(&image.0, args.size.0)?;
        tool(Command::new(&own).args(["fs", "make", &device]))?;
    }
    let directory = scratch(&std::env::temp_dir(), mount_name).0.clone();
    fs::create_dir(&directory)?;
    let mode = medium.mode(args.mode);
    let mut server = Server {
        process: None,
        directory: directory.clone(),
        _image: image,
    };
    let mut command = Command::new(&own);
    command.args(["fs", "mount", &device]).arg(&directory);
    command.args(["--json", "--mode", mode_name(mode)]);
    let control = scratch(&std::env::temp_dir(), "control");
    let mut by = Vec::new();
    if has_logs {
        command
            .arg("--control")
            .arg(&control.0)
            .args(["--processes", LOGS]);
        by = vec![own.into(), "run".into(), "--quiet".into(), "--fs".into()];
        by.extend([directory.clone().into(), "--".into()]);
    }
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let process = server.process.insert(command.spawn()?);
    let mut line = String::new();
    BufReader::new(process.stdout.take().context("its output is piped")?).read_line(&mut line)?;
    if line.is_empty() {
        let mut said = String::new();
        process
            .stderr
            .take()
            .context("its output is piped")?
            .read_to_string(&mut said)?;
        ensure!(!line.is_empty(), "{device} is not mounted: {}", said.trim());
    }
    let ready: Value = serde_json::from_str(&line)?;
    let transport = ready["transport"].as_str().unwrap_or_default().to_owned();
    Ok(Side {
        name: if has_logs { "run --fs" } else { "switchyard" }.into(),
        about: match has_logs {
            true => format!("{}, by logs of the programs", shown(medium)),
            false => format!("{}, mode {}, by {transport}", shown(medium), mode_name(mode)),
        },
        directory,
        by,
        _kept: Box::new((server, control)),
    })
}

/// Our device without the name of its file.
fn shown(medium: Medium) -> String {
    match medium {
        Medium::Mem => format!("mem:…,{NVM}"),
        Medium::Nvm => "nvm:FILE in memory".into(),
        Medium::Ssd => "ssd:FILE".into(),
    }
}

pub(super) fn mode_name(mode: ModeArg) -> &'static str {
    match mode {
        ModeArg::Sync => "sync",
        ModeArg::Ordered => "ordered",
    }
}

/// The process of our mount.
struct Server {
    process: Option<Child>,
    directory: PathBuf,
    _image: Scratch,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(mut process) = self.process.take() {
            if let Some(pid) = Pid::from_raw(process.id() as i32) {
                // It may have ended by itself.
                let _ = kill_process(pid, Signal::TERM);
            }
            match process.wait() {
                Ok(status) if status.success() => {}
                ended => eprintln!("the mount ended badly: {ended:?}"),
            }
        }
        // It may not have come to be.
        let _ = fs::remove_dir(&self.directory);
    }
}

/// A directory that is removed with all that is in it.
pub(super) struct Directory(pub PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        // It may not have come to be.
        let _ = fs::remove_dir_all(&self.0);
    }
}
