//! Profiles a command, a process, or the whole system.

use crate::attribute::{Attribution, Finding, Unclear};
use crate::calibrate::Calibration;
use crate::clock::now_ns;
use crate::collect::{Collector, Losses};
use crate::devices::Devices;
use crate::event::{Dev, What};
use crate::heat::HeatMap;
use crate::layers::Tables;
use crate::owners::{self, Owners, threads_of};
use crate::stacks::{Sampler, Stacks};
use crate::tracefs::{self, TraceError};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;
use thiserror::Error;

/// How often the kernel's buffers are emptied.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// How long a program that is told to end may take.
const TERMINATE_WITHIN: Duration = Duration::from_secs(5);

/// Subject of the profile.
#[derive(Clone, Debug)]
pub enum Target {
    /// A program that is started for it, with its arguments, and what it starts.
    Command(Vec<OsString>),
    /// A process that runs, and what it starts.
    Process(u32),
    /// Everybody.
    System,
}

/// How to profile.
#[derive(Clone, Debug)]
pub struct Options {
    /// The program or machine to profile.
    pub target: Target,
    /// Only this device.
    pub device: Option<Dev>,
    /// Until then; else until the target ends.
    pub limit: Option<Duration>,
    /// Sample the target's kernel stacks.
    pub stacks: bool,
    /// Output of a started program goes to standard error.
    pub quiet_output: bool,
}

/// Why there is no profile.
#[derive(Debug, Error)]
pub enum ProfileError {
    /// Tracing failed.
    #[error(transparent)]
    Trace(#[from] TraceError),
    /// The program cannot be started.
    #[error("{program}: {source}")]
    Start {
        /// Its name.
        program: String,
        /// Why.
        source: io::Error,
    },
    /// No such process.
    #[error("process {0} does not exist")]
    NoProcess(u32),
    /// Threads have other numbers here than in the trace.
    #[error(
        "this is a PID namespace of its own, and the kernel's events have other process numbers: profile from outside (as a \
         container with --pid=host), or profile every process (--seconds N alone)"
    )]
    Namespace,
    /// Not even begun.
    #[error("stopped before the program was started")]
    Stopped,
}

/// Findings of a session.
#[derive(Debug)]
pub struct Profile {
    /// The tables.
    pub tables: Tables,
    /// Cost of the probes.
    pub calibration: Calibration,
    /// Events, and those lost.
    pub losses: Losses,
    /// Doubts: counts of things that the attribution could not decide.
    pub unclear: Unclear,
    /// Latencies of the target's operations over time.
    pub heat: HeatMap,
    /// Kernel stacks, if they were wanted.
    pub stacks: Option<Stacks>,
    /// How long was recorded.
    pub recorded: Duration,
    /// How the program ended, if one was started and has ended by itself.
    pub status: Option<ExitStatus>,
    /// The devices as they were.
    pub devices: Devices,
}

/// Profiles until the target ends, the limit is reached or `stop` is set. `each` is given every finding.
pub fn run(
    options: &Options,
    stop: &AtomicBool,
    mut each: impl FnMut(&Finding),
) -> Result<Profile, ProfileError> {
    tracefs::check_quiet(&tracefs::root()?)?;
    let calibration = Calibration::measure()?;
    let devices = Devices::read();
    let (mut program, process) = find(options)?;
    let threads = process.map(threads_of);
    let sampler = options.stacks.then(|| Sampler::new(threads.as_deref()));
    let sampler = sampler.transpose()?;
    let collector = Collector::new(options.device)?;
    collector.start()?;
    let mut pipeline = Pipeline {
        sampler,
        attribution: Attribution::new(devices.wholes.clone(), devices.uppers.clone()),
        collector,
        // What was there when recording began is looked up; what starts from then on is seen to.
        owners: process.map_or_else(Owners::everybody, Owners::of),
        tables: Tables::default(),
        heat: HeatMap::new(now_ns()),
        found: Vec::new(),
    };
    pipeline.sampler.iter().for_each(Sampler::start);
    if program.is_some() && stop.load(Ordering::Relaxed) {
        return Err(ProfileError::Stopped);
    }
    let begin_ns = now_ns();
    let mut child = program.as_mut().map(Held::let_go).transpose()?;
    let mut status = None;
    let recorded = loop {
        if let Some(child) = child.as_mut() {
            status = child.try_wait().ok().flatten();
        }
        let elapsed = Duration::from_nanos(now_ns() - begin_ns);
        let over = status.is_some()
            || options.limit.is_some_and(|limit| elapsed >= limit)
            || stop.load(Ordering::Relaxed)
            || matches!(options.target, Target::Process(process) if !owners::is_alive(process));
        if over {
            pipeline.collector.stop()?;
        }
        pipeline.step(if over { u64::MAX } else { now_ns() }, &mut each)?;
        if over {
            break elapsed;
        }
        std::thread::sleep(POLL_EVERY);
    };
    if let Some(child) = child.as_mut()
        && status.is_none()
    {
        terminate(child);
    }
    Ok(Profile {
        calibration,
        losses: pipeline.collector.losses()?,
        unclear: pipeline.attribution.unclear(),
        tables: pipeline.tables,
        heat: pipeline.heat,
        stacks: pipeline.sampler.map(Sampler::finish),
        recorded,
        status,
        devices,
    })
}

/// The target: the program if one is started, and the process unless it is everybody.
fn find(options: &Options) -> Result<(Option<Held>, Option<u32>), ProfileError> {
    match &options.target {
        Target::System => Ok((None, None)),
        _ if !owners::can_be_told() => Err(ProfileError::Namespace),
        Target::Command(words) => {
            let program = Held::start(words, options.quiet_output)?;
            let process = program.process;
            Ok((Some(program), Some(process)))
        }
        Target::Process(process) if !owners::is_alive(*process) => Err(ProfileError::NoProcess(*process)),
        Target::Process(process) => Ok((None, Some(*process))),
    }
}

/// From the kernel's buffers to the tables.
struct Pipeline {
    collector: Collector,
    owners: Owners,
    attribution: Attribution,
    tables: Tables,
    heat: HeatMap,
    sampler: Option<Sampler>,
    found: Vec<Finding>,
}

impl Pipeline {
    /// Takes what is there and older than `until_ns`.
    fn step(&mut self, until_ns: u64, each: &mut impl FnMut(&Finding)) -> Result<(), TraceError> {
        let (owners, attribution, found) = (&mut self.owners, &mut self.attribution, &mut self.found);
        self.collector.poll(until_ns, |event| {
            let ours = match event.what {
                What::NewThread { thread } => {
                    owners.start(event.thread, thread);
                    false
                }
                What::Enter { .. }
                | What::Exit { .. }
                | What::BioQueue { .. }
                | What::Submit { .. }
                | What::DirectBegin { .. }
                | What::SyncBegin { .. } => owners.owns(event.thread),
                _ => false,
            };
            attribution.handle(&event, ours, found);
        })?;
        if let Some(sampler) = &mut self.sampler {
            sampler.poll(|thread| owners.owns(thread));
        }
        for finding in found.drain(..) {
            if let Finding::Operation(operation) = &finding
                && operation.reached_device
                && operation.interface.is_programs()
            {
                let end_ns = operation.begin_ns + operation.total_ns;
                self.heat.add(end_ns, operation.total_ns);
            }
            self.tables.add(&finding);
            each(&finding);
        }
        Ok(())
    }
}

/// Lets the program end with the thread that starts it, however that ends.
pub fn end_with_us(command: &mut Command) {
    // SAFETY: between fork and exec there is one system call, which takes no pointer.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

/// Ends a program that goes on, in the end by force.
fn terminate(child: &mut Child) {
    // SAFETY: the child has not been waited for, so its number is its own.
    unsafe { libc::kill(child.id() as i32, libc::SIGTERM) };
    let begin_ns = now_ns();
    while matches!(child.try_wait(), Ok(None)) {
        if Duration::from_nanos(now_ns() - begin_ns) >= TERMINATE_WITHIN {
            let _ = child.kill();
            let _ = child.wait();
            return;
        }
        std::thread::sleep(POLL_EVERY);
    }
}

/// A program that is started but has not yet executed: its number is known, so that nothing of it is missed.
struct Held {
    process: u32,
    name: String,
    gate: Option<io::PipeWriter>,
    starting: Option<JoinHandle<io::Result<Child>>>,
}

impl Held {
    fn start(words: &[OsString], quiet_output: bool) -> Result<Self, ProfileError> {
        let name = words[0].to_string_lossy().into_owned();
        let fail = |source| ProfileError::Start {
            program: words[0].to_string_lossy().into_owned(),
            source,
        };
        let (mut told, mut tells) = io::pipe().map_err(fail)?;
        let (mut waits, gate) = io::pipe().map_err(fail)?;
        let gate_here = gate.as_raw_fd();
        let mut command = Command::new(&words[0]);
        command.args(&words[1..]);
        if quiet_output {
            command.stdout(io::stderr());
        }
        // SAFETY: between fork and exec only a file is closed, a number written and a byte read, all async-signal-safe. The
        // file is the child's copy of the gate, without which it notices the end of this process; nothing else closes it.
        unsafe {
            command.pre_exec(move || {
                libc::close(gate_here);
                tells.write_all(&std::process::id().to_ne_bytes())?;
                waits.read_exact(&mut [0])
            });
        }
        // `spawn` returns when the program executes, which it does when it is let go.
        let starting = std::thread::spawn(move || command.spawn());
        let mut process = [0; 4];
        if let Err(error) = told.read_exact(&mut process) {
            // Nothing was started. Why not is known to who tried.
            let tried = starting.join().expect("spawning does not panic");
            return Err(fail(tried.err().unwrap_or(error)));
        }
        Ok(Self {
            process: u32::from_ne_bytes(process),
            name,
            gate: Some(gate),
            starting: Some(starting),
        })
    }

    fn let_go(&mut self) -> Result<Child, ProfileError> {
        let fail = |source| ProfileError::Start {
            program: self.name.clone(),
            source,
        };
        let mut gate = self.gate.take().expect("let go once");
        gate.write_all(&[1]).map_err(fail)?;
        let starting = self.starting.take().expect("let go once");
        let child = starting.join().expect("spawning does not panic");
        child.map_err(fail)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_cannot_even_be_tried_is_refused_with_the_reason() {
        let refused = Held::start(&["no\0program".into()], false)
            .err()
            .expect("no name of a file");
        assert!(refused.to_string().contains("nul byte"), "{refused}");
    }
}
