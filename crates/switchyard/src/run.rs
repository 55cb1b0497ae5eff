//! `switchyard run` and `export`: unmodified programs whose synced files are durable by a storage area
//! (docs/format/files.md). The work is done in the program itself, by the library of `crates/preload`.

use crate::failure::{Failure, IN_USE, code_of, told};
use crate::followed::obstacle;
use crate::size::Size;
use anyhow::{Context, anyhow, bail, ensure};
use area::files::{
    DEFAULT_PATTERNS, FilesError, Recovered, end_as, export as export_copies, forget, restore, run_to_end,
    serve,
};
use area::runs::stand;
use area::table::Table;
use area::{AreaError, OpenError, is_volatile};
use base::limits::PAGE_BYTES;
use clap::Args;
use runtime::MediaOpenError;
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use rustix::process::{Resource, getrlimit};
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The library that is loaded into the program.
const LIBRARY: &str = "libswitchyard_preload.so";

/// Options of AddressSanitizer. Its library, where a program has one, refuses to start behind ours unless it is told so.
const ASAN_OPTIONS: &str = "ASAN_OPTIONS";
const ASAN_BEHIND: &str = "verify_asan_link_order=0";

/// Size of a new area, unless it is chosen.
const AREA_SIZE: Size = Size(1 << 30);

/// `switchyard run`.
#[derive(Args)]
#[command(
    after_help = "A sync of a chosen file is one write to the area. The files follow in the background, and are complete when \
    the program ends. After a crash of the machine the next `run` or `export` brings the files up to date: do not use \
    the files before.\n\n\
    Examples:\n  switchyard run -- redis-server --appendonly yes --appendfsync always\n  \
    switchyard run --area /srv/app.area --match 'journal-*' -- ./app"
)]
pub struct RunArgs {
    /// File or block device of the area; a missing file is created
    #[arg(long, value_name = "FILE", default_value = "switchyard.area")]
    pub area: PathBuf,
    /// Size of a new area [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Files to follow: a glob for names, or for paths if it has a slash; repeat it for several
    /// [default: *.incr.aof, appendonly.aof, *-wal, and six digits with .log]
    #[arg(long = "match", value_name = "PATTERN")]
    pub patterns: Vec<String>,
    /// Use emulated NVM instead of the area, for measuring: NOTHING survives the program
    #[arg(long, conflicts_with = "area")]
    pub nvm: bool,
    /// Say only what went wrong
    #[arg(long, short)]
    pub quiet: bool,
    /// The program and its arguments
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    pub program: Vec<OsString>,
}

/// `switchyard export`.
#[derive(Args)]
#[command(
    after_help = "Examples:\n  switchyard export app.area /tmp/copies     copies at their whole paths below /tmp/copies, also while the program runs\n  \
    switchyard export app.area                 the files themselves, as the next `run` would\n  \
    switchyard export app.area --forget a.log  a.log stays as it is"
)]
pub struct ExportArgs {
    /// File or block device of the area
    #[arg(value_name = "AREA")]
    pub area: PathBuf,
    /// Directory for copies; without it the command updates the files themselves
    #[arg(value_name = "DIR")]
    pub directory: Option<PathBuf>,
    /// Forget what the area has of this file, which stays as it is; repeat it for several
    #[arg(long, value_name = "FILE", conflicts_with = "directory")]
    pub forget: Vec<PathBuf>,
}

/// Refuses an area that would lose what was synced, or end the program, before anything is made or opened.
fn check(area: &Path, args: &RunArgs, size: Size) -> anyhow::Result<()> {
    ensure!(
        size.0 > 0,
        Failure::Usage("--size: an area of 0 bytes has no room".into())
    );
    ensure!(
        !is_volatile(area),
        Failure::Usage(format!(
            "{} is in memory, and a power cut would take what the program has synced: put --area on a disk, or use --nvm if nothing \
             has to survive the program",
            area.display()
        ))
    );
    let found = area.metadata().ok();
    if found.as_ref().is_some_and(|it| !it.is_file()) {
        // A block device has its size, and no limit.
        return Ok(());
    }
    let has = found.map_or(0, |it| it.len());
    let (bytes, remedy) = match has {
        0 => (size.0, "raise the limit, or give a smaller --size"),
        _ => (has, "raise the limit"),
    };
    if let Some(limit) = getrlimit(Resource::Fsize).current.filter(|&limit| limit < bytes) {
        bail!(Failure::Usage(format!(
            "files have {} at most here (`ulimit -f`), and the area {} has {}: {remedy}",
            Size(limit),
            area.display(),
            Size(bytes)
        )));
    }
    // A file has whole pages.
    let is_other = |asked: Size| asked.0.abs_diff(has) >= PAGE_BYTES as u64;
    if has > 0 && args.size.is_some_and(is_other) && !args.quiet {
        eprintln!(
            "switchyard: {0} has {1}, and keeps its size: --size is for a new area, and `switchyard store grow {0}` makes one larger",
            area.display(),
            Size(has)
        );
    }
    Ok(())
}

fn is_damage(error: &AreaError) -> bool {
    match error {
        AreaError::Damaged { .. } => true,
        AreaError::Open(error) => !matches!(
            error,
            OpenError::NotAnArea
                | OpenError::OtherVersion(_)
                | OpenError::TooSmall { .. }
                | OpenError::Medium(_)
        ),
        _ => false,
    }
}

fn judged(area: &Path, error: FilesError) -> anyhow::Error {
    match error {
        FilesError::Area(error) if is_damage(&error) => anyhow!(
            "{0}: {error}: `switchyard store repair {0}` says what can be kept",
            area.display()
        ),
        FilesError::Area(AreaError::Media(MediaOpenError::InUse(path))) => Failure::InUse(format!(
            "the area {} is in use by a running program: wait for its end (`switchyard export AREA DIR` makes copies of its files now)",
            path.display()
        ))
        .into(),
        // Of a medium's errors some name it.
        error if error.to_string().contains(&*area.to_string_lossy()) => error.into(),
        error => anyhow::Error::from(error).context(area.display().to_string()),
    }
}

/// The library is beside the program, or where packages put libraries.
fn library() -> anyhow::Result<PathBuf> {
    let program = std::env::current_exe().context("cannot find this program's own file")?;
    let directory = program.parent().unwrap_or(Path::new("/"));
    let places = [directory.join(LIBRARY), directory.join("../lib").join(LIBRARY)];
    let found = places.iter().find(|place| place.is_file());
    let missing = || {
        format!(
            "cannot find {LIBRARY} beside {}: run `make build`, which builds both",
            program.display()
        )
    };
    found.cloned().with_context(missing)
}

/// The user's, and ours.
fn options_of_asan() -> OsString {
    let mut options = std::env::var_os(ASAN_OPTIONS).unwrap_or_default();
    if !options.is_empty() {
        options.push(":");
    }
    options.push(ASAN_BEHIND);
    options
}

fn tell(recovered: &Recovered) {
    if recovered.replayed + recovered.removed > 0 {
        eprintln!(
            "switchyard: recovered from a crash: wrote {1} bytes to {0} files, removed {2} files",
            recovered.replayed, recovered.bytes, recovered.removed
        );
    }
}

/// Runs the program, and settles the area at its end, which is that of this process.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    let library = library()?;
    let patterns = match &args.patterns[..] {
        [] => DEFAULT_PATTERNS.join("\n"),
        own => own.join("\n"),
    };
    if patterns.contains('\0') || args.patterns.iter().any(|it| it.is_empty() || it.contains('\n')) {
        bail!(Failure::Usage(
            "--match takes a file name with *, ? and [...]".into()
        ));
    }
    let size = args.size.unwrap_or(AREA_SIZE);
    let area = if args.nvm {
        PathBuf::from("nvm")
    } else {
        let area = std::path::absolute(&args.area).context("--area")?;
        check(&area, args, size)?;
        tell(&restore(&area, size.0).map_err(|error| judged(&area, error))?);
        area
    };
    let mut preload = OsString::from(library);
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|it| !it.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut command = Command::new(&args.program[0]);
    command
        .args(&args.program[1..])
        .env("LD_PRELOAD", preload)
        .env(ASAN_OPTIONS, options_of_asan())
        .env("SWITCHYARD_AREA", &area)
        .env("SWITCHYARD_AREA_BYTES", size.0.to_string())
        .env("SWITCHYARD_MATCH", &patterns);
    let obstacle = obstacle(&args.program[0]);
    if !args.quiet {
        tell_start(&patterns, &area, obstacle.as_deref());
    }
    let table = table()?;
    let followed = Table::map(Some(table.try_clone().context("a descriptor")?.into())).context("memory")?;
    if !stand(followed, area.clone()).context("other runs would not find this one")? {
        eprintln!(
            "switchyard: too many runs at once: a file that this run and another one write is not noticed"
        );
    }
    let broker =
        serve(area.clone(), table, followed).context("the program would have nobody to ask for its area")?;
    command.env("SWITCHYARD_BROKER", broker.text());
    let status = run_to_end(&mut command);
    let status = status.map_err(|source| Failure::NotStarted {
        program: args.program[0].clone(),
        source,
    })?;
    if !args.nvm {
        settle(&area);
    }
    if !args.quiet && obstacle.is_none() && followed.count() == 0 {
        let names = patterns.replace('\n', ", ");
        eprintln!("switchyard: nothing was followed: no file that was opened for writing is called {names}");
    }
    end_as(status)
}

/// One line: what is followed, or why nothing is.
fn tell_start(patterns: &str, area: &Path, obstacle: Option<&str>) {
    let (names, area) = (patterns.replace('\n', ", "), area.display());
    match obstacle {
        None => eprintln!(
            "switchyard: syncs of {names} go to {area}; those of statically linked and setuid programs, and of programs with an \
             io_uring, go to the file system"
        ),
        Some(why) => {
            eprintln!("switchyard: {why}: run cannot follow it, and its syncs go to the file system")
        }
    }
}

/// The memory by which the processes of this run tell each other which files they follow.
fn table() -> anyhow::Result<OwnedFd> {
    let make = || {
        let table = memfd_create("switchyard run", MemfdFlags::CLOEXEC)?;
        ftruncate(&table, Table::BYTES)?;
        Ok::<_, rustix::io::Errno>(table)
    };
    make().context("the system refuses shared memory")
}

/// The program has ended: the kernel has all of its files, and the area shall have nothing.
fn settle(area: &Path) {
    match restore(area, 0).map_err(|error| judged(area, error)) {
        Ok(_) => {}
        // The program has gone into the background, and has it.
        Err(error) if code_of(&error) == IN_USE => {}
        Err(error) => eprintln!("switchyard: the area keeps what the files lack: {}", told(&error)),
    }
}

/// The path without links, as far as there are files and directories.
fn resolved(file: &Path) -> PathBuf {
    for above in file.ancestors() {
        if let (Ok(found), Ok(rest)) = (above.canonicalize(), file.strip_prefix(above)) {
            return found.components().chain(rest.components()).collect();
        }
    }
    file.to_owned()
}

/// Copies, brings up to date, or forgets.
pub fn export(args: &ExportArgs) -> anyhow::Result<()> {
    for file in &args.forget {
        let file = std::path::absolute(file).context("--forget")?;
        let forget = |file| forget(&args.area, file).map_err(|error| judged(&args.area, error));
        // The area has names without links; but what is a link now may have been a file.
        let is_known = forget(&file)? || forget(&resolved(&file))?;
        ensure!(is_known, "the area has nothing of {}", file.display());
        println!("{} stays as it is", file.display());
    }
    if !args.forget.is_empty() {
        return Ok(());
    }
    let Some(directory) = &args.directory else {
        let recovered = restore(&args.area, 0).map_err(|error| judged(&args.area, error))?;
        println!(
            "{} files were complete, {} brought up to date with {} bytes, {} removed again",
            recovered.complete, recovered.replayed, recovered.bytes, recovered.removed
        );
        return Ok(());
    };
    for copy in export_copies(&args.area, directory).map_err(|error| judged(&args.area, error))? {
        println!("{}", copy.display());
    }
    Ok(())
}
