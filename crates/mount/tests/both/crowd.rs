//! Programs and processes of the mount in the same directories for a while: what each was told has happened, once, and in its order.

use super::{APPEND, Both, WRITE};
use crate::yard::{Process, say};
use base::Rng;
use libfs::{Errno, FileSystem, Open, Place, Rename, Wanted};
use std::collections::BTreeMap;
use std::fs;
use std::io::{Error, ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const TOKENS: u64 = 12;
/// Programs, and as many processes of the mount.
const EACH: usize = 4;

/// The calls of a member, by whichever way. What is there or is not is an answer, all else ends the member.
trait Calls {
    fn append(&self, name: &str, data: &[u8]) -> Result<(), Error>;
    fn write(&self, name: &str, data: &[u8]) -> Result<(), Error>;
    fn read(&self, name: &str) -> Result<Vec<u8>, Error>;
    fn rename(&self, from: &str, to: &str) -> Result<(), Error>;
    fn unlink(&self, name: &str) -> Result<(), Error>;
    fn mkdir(&self, name: &str) -> Result<(), Error>;
    fn rmdir(&self, name: &str) -> Result<(), Error>;
    fn size(&self, name: &str) -> Result<u64, Error>;
}

struct ByKernel(PathBuf);

impl Calls for ByKernel {
    fn append(&self, name: &str, data: &[u8]) -> Result<(), Error> {
        let mut options = fs::OpenOptions::new();
        options
            .append(true)
            .create(true)
            .open(self.0.join(name))?
            .write_all(data)
    }

    fn write(&self, name: &str, data: &[u8]) -> Result<(), Error> {
        fs::write(self.0.join(name), data)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, Error> {
        fs::read(self.0.join(name))
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        fs::rename(self.0.join(from), self.0.join(to))
    }

    fn unlink(&self, name: &str) -> Result<(), Error> {
        fs::remove_file(self.0.join(name))
    }

    fn mkdir(&self, name: &str) -> Result<(), Error> {
        fs::create_dir(self.0.join(name))
    }

    fn rmdir(&self, name: &str) -> Result<(), Error> {
        fs::remove_dir(self.0.join(name))
    }

    fn size(&self, name: &str) -> Result<u64, Error> {
        Ok(fs::metadata(self.0.join(name))?.len())
    }
}

struct ByLog(FileSystem);

fn failed(errno: Errno) -> Error {
    Error::from_raw_os_error(errno.code())
}

impl Calls for ByLog {
    fn append(&self, name: &str, data: &[u8]) -> Result<(), Error> {
        let file = self.0.open(Place::new(name), APPEND).map_err(failed)?;
        file.append(data).map(|_| ()).map_err(failed)
    }

    fn write(&self, name: &str, data: &[u8]) -> Result<(), Error> {
        let how = Open {
            truncates: true,
            ..WRITE
        };
        let file = self.0.open(Place::new(name), how).map_err(failed)?;
        file.write_at(0, data).map(|_| ()).map_err(failed)
    }

    fn read(&self, name: &str) -> Result<Vec<u8>, Error> {
        let file = self.0.open(Place::new(name), Open::READ).map_err(failed)?;
        let mut bytes = vec![0; file.stat().map_err(failed)?.inode.size as usize];
        let count = file.read_at(0, &mut bytes).map_err(failed)?;
        bytes.truncate(count);
        Ok(bytes)
    }

    fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        let renamed = self.0.rename(Place::new(from), Place::new(to), Rename::default());
        renamed.map_err(failed)
    }

    fn unlink(&self, name: &str) -> Result<(), Error> {
        self.0.unlink(Place::new(name)).map_err(failed)
    }

    fn mkdir(&self, name: &str) -> Result<(), Error> {
        self.0.mkdir(Place::new(name), 0o755).map_err(failed)
    }

    fn rmdir(&self, name: &str) -> Result<(), Error> {
        self.0.rmdir(Place::new(name)).map_err(failed)
    }

    fn size(&self, name: &str) -> Result<u64, Error> {
        let stat = self.0.stat(Place::new(name), true).map_err(failed)?;
        Ok(stat.inode.size)
    }
}

/// A member of the crowd, until its input ends. Says what was acknowledged.
pub fn member(directory: &Path, kind: &str, (name, end): (&str, &str)) {
    let is_killed = end != "Well";
    let (ends, ended) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ends.send(())
    });
    let calls: Box<dyn Calls> = match kind {
        "program" => Box::new(ByLog(
            FileSystem::connect(&directory.join("control")).expect("it is served"),
        )),
        _ => Box::new(ByKernel(directory.join("mnt"))),
    };
    say("ready");
    let (mut lines, mut counted) = (0, 0);
    let mut rng = Rng::new(os::seed());
    for round in 0u64.. {
        if ended.try_recv().is_ok() {
            break;
        }
        let result = act(
            &*calls,
            (name, is_killed),
            (round, &mut rng),
            (&mut lines, &mut counted),
        );
        if let Err(error) = result {
            say(&format!(
                "failed in round {round} after {lines} {counted}: {error}"
            ));
            return;
        }
    }
    say(&format!("{lines} {counted}"));
}

fn act(
    calls: &dyn Calls,
    (name, is_killed): (&str, bool),
    (round, rng): (u64, &mut Rng),
    (lines, counted): (&mut u64, &mut u64),
) -> Result<(), Error> {
    let is_there = |result: Result<(), Error>, kinds: &[ErrorKind]| match result {
        Ok(()) => Ok(true),
        Err(error) if kinds.contains(&error.kind()) => Ok(false),
        Err(error) => Err(error),
    };
    match rng.below(4) {
        0 => {
            let line = format!("{name} {lines}\n");
            let before = calls.size("s/all")?;
            calls.append("s/all", line.as_bytes())?;
            *lines += 1;
            assert!(calls.size("s/all")? >= before + line.len() as u64, "it shrinks");
        }
        1 => {
            if !is_there(calls.mkdir("s/lock"), &[ErrorKind::AlreadyExists])? {
                return Ok(());
            }
            // Nobody else is here.
            let text = String::from_utf8(calls.read("s/count")?).expect("it is text");
            let count: u64 = text
                .trim_end()
                .parse()
                .unwrap_or_else(|_| panic!("a count: {text:?}"));
            let next = format!("{}\n", count + 1);
            // Not at once: who is killed leaves it empty.
            match rng.chance(0.5) && !is_killed {
                true => calls.write("s/count", next.as_bytes())?,
                false => {
                    calls.write("s/count.new", next.as_bytes())?;
                    calls.rename("s/count.new", "s/count")?;
                }
            }
            *counted += 1;
            calls.rmdir("s/lock")?;
        }
        2 => {
            let token = rng.below(TOKENS);
            let (from, to) = if rng.chance(0.5) { ("a", "b") } else { ("b", "a") };
            let [from, to] = [from, to].map(|at| format!("s/{at}/{token}"));
            is_there(calls.rename(&from, &to), &[ErrorKind::NotFound])?;
        }
        _ => {
            let own = format!("s/a/{name}-{round}");
            calls.write(&own, own.as_bytes())?;
            assert_eq!(calls.read(&own)?, own.as_bytes());
            calls.unlink(&own)?;
            let is_gone = !is_there(calls.size(&own).map(|_| ()), &[ErrorKind::NotFound])?;
            assert!(is_gone, "{own} is there");
        }
    }
    Ok(())
}

/// What members were told, and how many of their last calls may have happened without that.
struct Told {
    members: BTreeMap<String, (u64, u64)>,
    slack: u64,
}

fn assert_sound(calls: &dyn Calls, told: &Told) {
    let all = String::from_utf8(calls.read("s/all").expect("it is there")).expect("it is text");
    let mut seen: BTreeMap<&str, u64> = BTreeMap::new();
    for line in all.lines() {
        let (name, number) = line.split_once(' ').unwrap_or_else(|| panic!("torn: {line:?}"));
        let next = seen.entry(name).or_default();
        assert_eq!(number, next.to_string(), "of {name}");
        *next += 1;
    }
    let is_near = |least: u64, slack: u64, found: u64| (least..=least + slack).contains(&found);
    for (name, (lines, _)) in &told.members {
        let seen = seen.get(&**name).copied().unwrap_or(0);
        assert!(is_near(*lines, told.slack, seen), "{name}: {lines} {seen}");
    }
    let count = String::from_utf8(calls.read("s/count").expect("it is there")).expect("it is text");
    let count: u64 = count.trim_end().parse().unwrap_or_else(|_| panic!("{count:?}"));
    let counted: u64 = told.members.values().map(|(_, counted)| counted).sum();
    // Who was killed is not among those that were told.
    let slack = told.slack * count.max(1);
    assert!(is_near(counted, slack, count), "{counted} {count}");
    for token in 0..TOKENS {
        let there = ["a", "b"].map(|at| calls.size(&format!("s/{at}/{token}")).is_ok());
        assert!(there[0] != there[1], "token {token}: {there:?}");
    }
}

/// How it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    /// Well.
    Well,
    /// Half of the members are killed before.
    SomeKilled,
    /// The daemon is killed.
    DaemonKilled,
}

/// The directories of a crowd.
fn make(kernel: &ByKernel) {
    for name in ["s", "s/a", "s/b"] {
        kernel.mkdir(name).expect("it is new");
    }
    for token in 0..TOKENS {
        kernel
            .write(&format!("s/a/{token}"), b"token")
            .expect("it is new");
    }
    kernel.write("s/count", b"0\n").expect("it is new");
    kernel.write("s/all", b"").expect("it is new");
}

fn said(name: &str, line: &str, end: End) -> (u64, u64) {
    let line = match line.split_once(" after ") {
        // The write of the counter is not atomic, and a call may be half done, but what was told has happened.
        Some((_, rest)) if end != End::Well => rest.split_once(": ").expect("it says why").0,
        _ => line,
    };
    let numbers = line
        .split_once(' ')
        .and_then(|(lines, counted)| Some((lines.parse().ok()?, counted.parse().ok()?)));
    numbers.unwrap_or_else(|| panic!("{name}: {line}"))
}

fn crowd(transport: &str, seconds: f64, end: End) {
    let Some(mut both) = Both::by(transport) else {
        return;
    };
    let kernel = ByKernel(both.path(""));
    make(&kernel);
    let start = |number: usize| {
        let kind = if number < EACH { "program" } else { "shell" };
        let name = format!("{kind}{number}");
        let process = Process::start(
            "member",
            both.yard.directory.path(),
            &[kind, &name, &format!("{end:?}")],
            None,
        );
        (name, process)
    };
    let mut members: Vec<_> = (0..2 * EACH).map(start).collect();
    for (name, member) in &mut members {
        assert_eq!(member.line().as_deref(), Some("ready"), "{name}");
    }
    let began = Instant::now();
    while began.elapsed().as_secs_f64() < seconds {
        std::thread::sleep(Duration::from_millis(20));
    }
    match end {
        End::Well => {}
        End::SomeKilled => {
            let mut number = 0;
            members.retain_mut(|(_, member)| {
                number += 1;
                if number % 2 == 0 {
                    member.kill();
                }
                number % 2 == 1
            });
            std::thread::sleep(Duration::from_millis(300));
        }
        End::DaemonKilled => both.kill(),
    }
    for (_, member) in &mut members {
        drop(member.child.stdin.take());
    }
    let mut told = Told {
        members: BTreeMap::new(),
        slack: u64::from(end != End::Well),
    };
    for (name, member) in &mut members {
        let line = member.line().unwrap_or_else(|| panic!("{name} has panicked"));
        told.members.insert(name.clone(), said(name, &line, end));
    }
    drop(members);
    if end == End::DaemonKilled {
        both.start(transport);
    }
    assert_sound(&kernel, &told);
    let files = both.connect();
    files
        .set(Place::new("/s/all"), &Wanted::default(), true)
        .expect("it is there");
    assert_sound(&ByLog(files), &told);
    assert_sound(&kernel, &told);
    both.end();
}

#[test]
fn a_crowd_of_programs_and_processes_of_the_mount_loses_nothing() {
    for transport in ["best", "classic"] {
        crowd(transport, 3.0, End::Well);
    }
}

#[test]
fn what_was_acknowledged_in_a_crowd_is_there_after_kills() {
    for round in 0..2 {
        let transport = ["best", "classic"][round % 2];
        crowd(transport, 0.7, End::SomeKilled);
        crowd(transport, 0.7, End::DaemonKilled);
    }
}

#[test]
fn a_stopped_program_keeps_the_mount_waiting_for_a_while_and_loses_its_log() {
    let Some(both) = Both::new() else {
        return;
    };
    let kernel = ByKernel(both.path(""));
    make(&kernel);
    let directory = both.yard.directory.path();
    let mut program = Process::start("member", directory, &["program", "stopped", "Well"], None);
    assert_eq!(program.line().as_deref(), Some("ready"));
    while kernel.size("s/all").expect("it is there") == 0 {
        std::thread::sleep(Duration::from_millis(1));
    }
    program.signal(rustix::process::Signal::STOP);
    for name in ["s/all", "s/count"] {
        kernel.append(name, b"of the mount\n").expect("its lease comes");
    }
    kernel.rename("s/all", "s/moved").expect("its lease comes");
    program.signal(rustix::process::Signal::CONT);
    let line = program.line().expect("it goes on");
    // It may have been stopped when it had none of the leases. Then it has its log yet, and the file is not where it was.
    let ends = ["os error 5", "os error 2"];
    assert!(
        line.starts_with("failed") && ends.iter().any(|end| line.contains(end)),
        "{line}"
    );
    drop(program);
    let text = String::from_utf8(kernel.read("s/moved").expect("it is there")).expect("it is text");
    assert!(text.ends_with("of the mount\n"), "{text}");
    both.end();
}
