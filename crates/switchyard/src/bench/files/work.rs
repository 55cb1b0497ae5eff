//! What a client process of `switchyard bench fs` does: it prepares its files, says so, waits for the word, works for a time, and prints
//! what it took. Every side runs this very program, and calls `fsync` wherever a program that wants its data to be kept does.

use super::workload::Workload;
use anyhow::{Context, ensure};
use base::Rng;
use clap::Args;
use hdrhistogram::Histogram;
use rustix::fs::{Advice, fadvise};
use serde::{Deserialize, Serialize};
use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, Read, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Latencies beyond are counted as this.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Bytes of a small write.
const SMALL: usize = 1024;
/// Bytes of a large one.
const LARGE: usize = 1 << 20;
/// Files of one directory, where files are made.
const DIRECTORY_FILES: u64 = 1000;
/// Files that are looked at, or deleted.
const FILES: u64 = 4000;
/// Bytes of the file that is overwritten, and read from the cache.
const CACHED_BYTES: u64 = 16 << 20;
/// Bytes of the file that is read and written in bulk.
const BULK_BYTES: u64 = 128 << 20;
/// An appended file begins anew at these bytes.
const APPENDED_BYTES_MAX: u64 = 64 << 20;
/// Filebench's varmail: files of all processes, mean bytes of a file, of an append.
const MAIL: (u64, u64, u64) = (1000, 16 << 10, 16 << 10);
/// Filebench's fileserver: files (a tenth of its own), mean bytes of a file, of an append.
const SERVED: (u64, u64, u64) = (1000, 128 << 10, 16 << 10);
/// Filebench's webserver: files, mean bytes of a file, of an append to its log; files that are read per append.
const WEB: (u64, u64, u64, u64) = (1000, 16 << 10, 16 << 10, 10);

/// A client, started by the command itself.
#[derive(Args)]
pub struct ClientArgs {
    #[arg(long)]
    workload: Workload,
    #[arg(long)]
    at: PathBuf,
    #[arg(long)]
    seconds: f64,
    /// Which of how many clients.
    #[arg(long)]
    place: u64,
    #[arg(long)]
    clients: u64,
    #[arg(long)]
    seed: u64,
}

/// What a client says at its end.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Told {
    pub count: u64,
    pub seconds: f64,
    pub cpu_s: f64,
    pub p50_us: f64,
    pub p99_us: f64,
}

/// Runs it.
pub fn run(args: &ClientArgs) -> anyhow::Result<()> {
    let mut work = Work::prepare(args).context("cannot prepare files")?;
    println!("ready");
    crate::out::flush();
    let mut word = String::new();
    std::io::stdin().lock().read_line(&mut word)?;
    let mut latency = Histogram::<u64>::new_with_bounds(1, LATENCY_NS_MAX, 3)?;
    let (begin, cpu, time) = (Instant::now(), cpu_s(), Duration::from_secs_f64(args.seconds));
    let mut count = 0;
    // Between operations, such as for a new directory.
    let mut aside = Duration::ZERO;
    while begin.elapsed() < time + aside && count < work.count_max {
        let pause = Instant::now();
        work.before(count)?;
        let start = Instant::now();
        aside += start - pause;
        work.operation(count)?;
        latency.saturating_record(start.elapsed().as_nanos() as u64);
        count += 1;
    }
    let us = |quantile| latency.value_at_quantile(quantile) as f64 / 1000.0;
    let told = Told {
        count,
        seconds: (begin.elapsed() - aside).as_secs_f64(),
        cpu_s: cpu_s() - cpu,
        p50_us: us(0.5),
        p99_us: us(0.99),
    };
    println!("{}", serde_json::to_string(&told)?);
    Ok(())
}

/// Processor time of this process, which has one thread: the first number of the scheduler's, in ns (Linux' `sched-stats.rst`).
fn cpu_s() -> f64 {
    let text = fs::read_to_string("/proc/self/schedstat").unwrap_or_default();
    let ns: Option<f64> = text.split_whitespace().next().and_then(|word| word.parse().ok());
    ns.unwrap_or_default() / 1e9
}

/// Makes everything durable that was done below a directory. `syncfs` does not reach a FUSE server, and `fsync` of a directory of
/// ours waits for all calls before it.
pub(super) fn settle(dir: &Path) -> anyhow::Result<()> {
    let dir = File::open(dir)?;
    rustix::fs::syncfs(&dir)?;
    dir.sync_all()?;
    Ok(())
}

/// A workload under way.
struct Work {
    workload: Workload,
    dir: PathBuf,
    /// Names of this client's files begin with this.
    mine: String,
    files: u64,
    count_max: u64,
    data: Vec<u8>,
    buffer: Vec<u8>,
    rng: Rng,
    file: Option<File>,
    parent: File,
}

impl Work {
    fn prepare(args: &ClientArgs) -> anyhow::Result<Self> {
        let shared = |all: u64| (all / args.clients).max(8);
        let (files, bytes) = match args.workload {
            Workload::Stat | Workload::Open => (FILES, SMALL as u64),
            Workload::Unlink => (FILES, SMALL as u64),
            Workload::Varmail | Workload::Varmail16 => (shared(MAIL.0), MAIL.1),
            Workload::Fileserver => (shared(SERVED.0), SERVED.1),
            Workload::Webserver => (shared(WEB.0), WEB.1),
            _ => (0, 0),
        };
        let mut work = Self {
            workload: args.workload,
            dir: args.at.clone(),
            mine: format!("{}-", args.place),
            files,
            count_max: if args.workload == Workload::Unlink {
                FILES
            } else {
                u64::MAX
            },
            data: (0..2 * LARGE).map(|at| (at % 251) as u8).collect(),
            buffer: vec![0; 2 * LARGE],
            rng: Rng::new(args.seed ^ args.place << 32),
            file: None,
            parent: File::open(&args.at)?,
        };
        for number in 0..files {
            let bytes = work.size(bytes);
            fs::write(work.path(number), &work.data[..bytes])?;
        }
        work.prepare_file()?;
        settle(&args.at)?;
        Ok(work)
    }

    /// The one file of workloads that have one.
    fn prepare_file(&mut self) -> anyhow::Result<()> {
        let bytes = match self.workload {
            Workload::Overwrite | Workload::Read4k => CACHED_BYTES,
            Workload::Read1m => BULK_BYTES,
            Workload::Append | Workload::Write1m | Workload::Webserver => 0,
            _ => return Ok(()),
        };
        let path = self.dir.join(format!("{}file", self.mine));
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create_new(true)
            .open(path)?;
        for _ in 0..bytes / LARGE as u64 {
            file.write_all(&self.data[..LARGE])?;
        }
        file.sync_all()?;
        match self.workload {
            Workload::Read1m => fadvise(&file, 0, None, Advice::DontNeed)?,
            _ => self.read_all(&file)?,
        }
        self.file = Some(file);
        Ok(())
    }

    fn read_all(&mut self, file: &File) -> anyhow::Result<()> {
        let mut at = 0;
        loop {
            match file.read_at(&mut self.buffer[..LARGE], at)? {
                0 => return Ok(()),
                count => at += count as u64,
            }
        }
    }

    /// Filebench's sizes vary about their mean; at most four times that.
    fn size(&mut self, mean: u64) -> usize {
        match self.workload {
            Workload::Varmail | Workload::Varmail16 | Workload::Fileserver | Workload::Webserver => {
                let bytes = self.rng.exponential(mean as f64) as u64;
                bytes.clamp(1, 4 * mean) as usize
            }
            _ => mean as usize,
        }
    }

    fn path(&self, number: u64) -> PathBuf {
        self.dir.join(format!("{}{number}", self.mine))
    }

    fn any(&mut self) -> PathBuf {
        let number = self.rng.below(self.files);
        self.path(number)
    }

    fn own(&self) -> &File {
        self.file.as_ref().expect("the workload has a file")
    }

    /// What is not counted as part of an operation.
    fn before(&mut self, count: u64) -> anyhow::Result<()> {
        match self.workload {
            Workload::Create | Workload::Mkdir if count.is_multiple_of(DIRECTORY_FILES) => {
                let name = format!("{}{}", self.mine, count / DIRECTORY_FILES);
                let base = match count {
                    0 => self.dir.clone(),
                    _ => self
                        .dir
                        .parent()
                        .context("a directory in a directory")?
                        .to_path_buf(),
                };
                self.dir = base.join(name);
                fs::create_dir(&self.dir)?;
                settle(&base)?;
                self.parent = File::open(&self.dir)?;
            }
            Workload::Append if (count * SMALL as u64).is_multiple_of(APPENDED_BYTES_MAX) => {
                self.own().set_len(0)?;
                self.own().sync_all()?;
            }
            Workload::Read1m if (count * LARGE as u64).is_multiple_of(BULK_BYTES) => {
                fadvise(self.own(), 0, None, Advice::DontNeed)?;
            }
            Workload::Write1m if (count * LARGE as u64).is_multiple_of(BULK_BYTES) => {
                self.own().set_len(0)?;
                self.own().sync_all()?;
            }
            _ => {}
        }
        Ok(())
    }

    fn operation(&mut self, count: u64) -> anyhow::Result<()> {
        match self.workload {
            Workload::Create => self.create(&self.path(count), SMALL),
            Workload::Append => {
                let at = count * SMALL as u64 % APPENDED_BYTES_MAX;
                self.put(&self.data[..SMALL], at)
            }
            Workload::Overwrite => {
                let at = self.rng.below(CACHED_BYTES / SMALL as u64) * SMALL as u64;
                self.put(&self.data[..SMALL], at)
            }
            Workload::Replace => {
                let new = self.dir.join(format!("{}new", self.mine));
                self.create(&new, SMALL)?;
                fs::rename(new, self.path(0))?;
                Ok(self.parent.sync_all()?)
            }
            Workload::Mkdir => {
                fs::create_dir(self.path(count))?;
                Ok(self.parent.sync_all()?)
            }
            Workload::Unlink => {
                fs::remove_file(self.path(count))?;
                Ok(self.parent.sync_all()?)
            }
            Workload::Stat => {
                let about = fs::metadata(self.any())?;
                ensure!(about.len() == SMALL as u64, "a file has another size");
                Ok(())
            }
            Workload::Open => {
                File::open(self.any())?;
                Ok(())
            }
            Workload::Read4k => {
                let at = self.rng.below(CACHED_BYTES / 4096) * 4096;
                self.get(4096, at)
            }
            Workload::Read1m => self.get(LARGE, count * LARGE as u64 % BULK_BYTES),
            Workload::Write1m => self.put(&self.data[..LARGE], count * LARGE as u64 % BULK_BYTES),
            Workload::Varmail | Workload::Varmail16 => self.mail(),
            Workload::Fileserver => self.serve_files(),
            Workload::Webserver => self.serve_pages(),
        }
    }

    fn put(&self, data: &[u8], at: u64) -> anyhow::Result<()> {
        self.own().write_all_at(data, at)?;
        Ok(self.own().sync_all()?)
    }

    fn get(&mut self, bytes: usize, at: u64) -> anyhow::Result<()> {
        let file = self.file.as_ref().expect("the workload has a file");
        Ok(file.read_exact_at(&mut self.buffer[..bytes], at)?)
    }

    fn create(&self, path: &Path, bytes: usize) -> anyhow::Result<()> {
        let mut file = File::create(path)?;
        file.write_all(&self.data[..bytes])?;
        Ok(file.sync_all()?)
    }

    fn append(&self, path: &Path, bytes: usize) -> anyhow::Result<()> {
        let mut file = OpenOptions::new().append(true).open(path)?;
        file.write_all(&self.data[..bytes])?;
        Ok(file.sync_all()?)
    }

    fn read_whole(&mut self, path: &Path) -> anyhow::Result<()> {
        let mut file = File::open(path)?;
        while file.read(&mut self.buffer)? > 0 {}
        Ok(())
    }

    /// One loop of varmail: delete a mail, write one, answer one, read one.
    fn mail(&mut self) -> anyhow::Result<()> {
        let (gone, answered, read) = (self.any(), self.any(), self.any());
        let (new, answer) = (self.size(MAIL.2), self.size(MAIL.2));
        fs::remove_file(&gone)?;
        self.create(&gone, new)?;
        self.read_whole(&answered)?;
        self.append(&answered, answer)?;
        self.read_whole(&read)
    }

    /// One loop of fileserver: write a file, append to one, read one, write one anew, look at one.
    fn serve_files(&mut self) -> anyhow::Result<()> {
        let (appended, read, anew, seen) = (self.any(), self.any(), self.any(), self.any());
        let (new, more) = (self.size(SERVED.1), self.size(SERVED.2));
        self.append(&appended, more)?;
        self.read_whole(&read)?;
        fs::remove_file(&anew)?;
        self.create(&anew, new)?;
        fs::metadata(seen)?;
        Ok(())
    }

    /// One loop of webserver: read ten pages, append to the log.
    fn serve_pages(&mut self) -> anyhow::Result<()> {
        for _ in 0..WEB.3 {
            let page = self.any();
            self.read_whole(&page)?;
        }
        let bytes = self.size(WEB.2);
        let file = self.file.as_mut().expect("the workload has a file");
        file.write_all(&self.data[..bytes])?;
        Ok(file.sync_all()?)
    }
}
