//! What processes of `switchyard run` ask, and the process that answers them: `run` itself, and after its program has ended the *keeper*.
//!
//! Programs that have gone into the background outlive `run`. They, and the programs that they start later, still have to be told who follows
//! which file. So `run` leaves a process behind that has its sockets and its table. The keeper answers until the last process of the run is
//! gone, settles the area of an owner that is dead, and ends.
//!
//! | who lives | known by |
//! | --- | --- |
//! | a program that has the table, and its forked children | the lock of the table's opening (`files::is_shared`) |
//! | a process between two programs, or with one that does not know the table | its number in the table (`Table::starts`) |
//!
//! The keeper has a session of its own, no terminal, no descriptor of the program's, and `/` as its directory. It ignores signals that a
//! terminal or a service manager sends to all processes: the processes that ask end after it has them.

use crate::desk::Desk;
use crate::files::{Broker, is_shared, restore, serve, serve_at};
use crate::runs;
use crate::sync::Futex;
use crate::table::{Table, is_alive};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Where the keeper finds what was handed over: numbers of descriptors, and the broker's text.
const HANDED: &str = "SWITCHYARD_KEEPER";
/// Variables that are about the program of a run, which the keeper is not.
const OF_PROGRAMS: [&str; 5] = [
    "LD_PRELOAD",
    "SWITCHYARD_BROKER",
    "SWITCHYARD_AREA",
    "SWITCHYARD_AREA_BYTES",
    "SWITCHYARD_MATCH",
];
/// Between two looks of the keeper at who lives.
const LOOK_EVERY_NS: u64 = 500_000_000;
/// A process may be between two programs without having said so: the keeper looks as often before it ends.
const LAST_LOOKS: u32 = 3;
/// Signals that go to all processes of a terminal or a service.
const IGNORED: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// What processes of a run ask.
pub struct Desks {
    area: PathBuf,
    table: OwnedFd,
    mapped: &'static Table,
    broker: Broker,
    programs: Desk,
    /// Not there if there are too many runs.
    runs: Option<Desk>,
}

impl Desks {
    /// Answers from now on, in threads that end with this process.
    ///
    /// # Errors
    /// If the system refuses memory, sockets or threads.
    pub fn open(area: &Path) -> io::Result<Self> {
        let table = memfd_create("switchyard run", MemfdFlags::CLOEXEC)?;
        ftruncate(&table, Table::BYTES)?;
        let mapped = Table::map(Some(File::from(table.try_clone()?)))?;
        mapped.ask_at(std::process::id());
        let runs = runs::stand(mapped, area.into())?;
        let (broker, programs) = serve(area.into(), table.try_clone()?, mapped)?;
        Ok(Self {
            area: area.into(),
            table,
            mapped,
            broker,
            programs,
            runs,
        })
    }

    /// Where programs ask.
    pub fn broker(&self) -> &Broker {
        &self.broker
    }

    /// False if other runs do not find this one.
    pub fn is_found(&self) -> bool {
        self.runs.is_some()
    }

    /// Files that were followed so far.
    pub fn followed(&self) -> u64 {
        self.mapped.count()
    }

    /// True if a process of the run lives.
    pub fn is_needed(&self) -> bool {
        is_shared(self.table.as_fd()) || self.mapped.has_starts()
    }

    /// The process that has the area, if it lives.
    pub fn owner(&self) -> Option<u32> {
        Some(self.mapped.owner()).filter(|&it| it != 0 && is_alive(it))
    }

    /// Nobody is answered any more.
    pub fn close(&self) {
        self.stop();
        self.broker.remove();
    }

    fn stop(&self) {
        self.programs.close();
        self.runs.iter().for_each(Desk::close);
    }

    /// Starts the keeper, which is to call [`keep`], by a command: its number.
    ///
    /// # Errors
    /// If it does not start: then nobody is answered any more.
    pub fn hand_over(&self, command: &mut Command) -> io::Result<u32> {
        self.stop();
        let runs = self.runs.iter().flat_map(Desk::sockets);
        let sockets: Vec<BorrowedFd<'_>> = self.programs.sockets().chain(runs).collect();
        let count = self.programs.sockets().count();
        let fds: Vec<RawFd> = [self.table.as_fd()]
            .iter()
            .chain(&sockets)
            .map(AsRawFd::as_raw_fd)
            .collect();
        let numbers: Vec<String> = fds.iter().map(ToString::to_string).collect();
        let handed = format!("{count} {} {}", numbers.join(" "), self.broker.text());
        for name in OF_PROGRAMS {
            command.env_remove(name);
        }
        command
            .env(HANDED, handed)
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let leave = move || {
            // SAFETY: no memory is involved. These calls may be made between fork and exec.
            unsafe {
                libc::setsid();
                for signal in IGNORED {
                    libc::signal(signal, libc::SIG_IGN);
                }
                let all_above = libc::c_uint::MAX;
                let is_closed =
                    libc::syscall(libc::SYS_close_range, 3, all_above, libc::CLOSE_RANGE_CLOEXEC) == 0;
                let has_kept = || fds.iter().all(|&fd| libc::fcntl(fd, libc::F_SETFD, 0) == 0);
                match is_closed && has_kept() {
                    true => Ok(()),
                    false => Err(io::Error::last_os_error()),
                }
            }
        };
        // SAFETY: it allocates nothing and takes no lock.
        let child = unsafe { command.pre_exec(leave) }.spawn()?.id();
        self.mapped.ask_at(child);
        Ok(child)
    }

    /// Takes what [`Desks::hand_over`] has handed to this process. `None` if that is nothing.
    fn taken(area: &Path) -> Option<io::Result<Self>> {
        let text = std::env::var(HANDED).ok()?;
        let mut words = text.split(' ');
        let count: usize = words.next()?.parse().ok()?;
        let broker = Broker::parse(words.next_back()?)?;
        let numbers: Vec<RawFd> = words.map(|it| it.parse().ok()).collect::<Option<_>>()?;
        // SAFETY: no memory is involved.
        let is_there =
            |&fd: &RawFd| fd > 2 && unsafe { libc::fcntl(fd, libc::F_SETFD, libc::FD_CLOEXEC) } == 0;
        if !numbers.iter().all(is_there) {
            return None;
        }
        // SAFETY: whoever has started this process has left them to it, once each.
        let mut fds = numbers.into_iter().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
        let table = fds.next()?;
        let sockets: Vec<OwnedFd> = fds.by_ref().take(count).collect();
        let runs = fds.next();
        let open = || {
            let mapped = Table::map(Some(File::from(table.try_clone()?)))?;
            mapped.keep();
            let area = area.to_owned();
            let runs = runs.map(|socket| runs::stand_at(socket, mapped, area.clone()));
            let programs = serve_at(broker.clone(), sockets, area.clone(), table.try_clone()?, mapped)?;
            Ok(Self {
                area,
                runs: runs.transpose()?,
                table,
                mapped,
                broker,
                programs,
            })
        };
        Some(open())
    }

    /// Settles the area of an owner that is dead. If that is impossible, the area keeps what it has, for the next run.
    fn settle_dead(&self, tried: &mut u32) {
        let owner = self.mapped.owner();
        if owner == 0 || owner == *tried || is_alive(owner) {
            return;
        }
        *tried = owner;
        if restore(&self.area, 0).is_ok() {
            self.mapped.disown(owner);
        }
    }
}

/// The keeper: answers in the place of the `run` that has started this process, until nobody of that run lives. False if no run has.
///
/// # Errors
/// If the system refuses memory or threads.
pub fn keep(area: &Path) -> io::Result<bool> {
    let Some(desks) = Desks::taken(area) else {
        return Ok(false);
    };
    let desks = desks?;
    // Else it would be called by the link that it was started by.
    rustix::thread::set_name(c"switchyard")?;
    let (mut tried, mut looks) = (0, 0);
    while looks < LAST_LOOKS {
        desks.settle_dead(&mut tried);
        looks = if desks.is_needed() { 0 } else { looks + 1 };
        Futex::new().wait(0, Some(LOOK_EVERY_NS));
    }
    desks.close();
    // Nothing is lost if it fails: the next run says why.
    let _ = restore(area, 0);
    Ok(true)
}
