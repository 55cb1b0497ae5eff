//! `switchyard run` and `export`: unmodified programs whose synced files are durable by a storage area
//! (docs/format/files.md). The work is done in the program itself, by the library of `crates/preload`.

use crate::failure::{Failure, IN_USE, code_of, told};
use crate::followed::obstacle;
use crate::network::Address;
use crate::size::Size;
use anyhow::{Context, anyhow, bail, ensure};
use area::files::{
    DEFAULT_PATTERNS, FilesError, Recovered, end_as, export as export_copies, forget, restore, run_to_end,
};
use area::keeper::{Desks, keep};
use area::runs::{Users, users};
use area::{AreaError, OpenError, is_volatile};
use base::limits::PAGE_BYTES;
use clap::Args;
use runtime::MediaOpenError;
use rustix::process::{Resource, getrlimit};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// The library that is loaded into the program.
const LIBRARY: &str = "libswitchyard_preload.so";

/// Options of AddressSanitizer. Its library, where a program has one, refuses to start behind ours unless it is told so.
const ASAN_OPTIONS: &str = "ASAN_OPTIONS";
const ASAN_BEHIND: &str = "verify_asan_link_order=0";

/// Size of a new area, unless it is chosen.
const AREA_SIZE: Size = Size(1 << 30);

/// Processes that end with their program get so many looks before `run` takes them for processes in the background.
const ENDING_LOOKS: u32 = 3;
/// Programs that it has just started are looked for so often before `run` takes them for none.
const STARTING_LOOKS: u32 = 2;
const ENDING_LOOK_EVERY: Duration = Duration::from_millis(4);

/// `switchyard run`.
#[derive(Args)]
#[command(
    after_help = "A sync of a chosen file is one write to the area. The files follow in the background, and are complete when \
    the program ends. After a crash of the machine the next `run` or `export` brings the files up to date: do not use \
    the files before.\n\n\
    Examples:\n  switchyard run -- redis-server --appendonly yes --appendfsync always\n  \
    switchyard run --area /srv/app.area --match 'journal-*' -- ./app\n  \
    switchyard run --fs /mnt/files -- sqlite3 /mnt/files/a.db\n  \
    switchyard run --tcp --address 10.9.0.2/24 -- redis-server --protected-mode no"
)]
pub struct RunArgs {
    /// File or block device of the area; a missing file is created
    #[arg(long, value_name = "FILE", default_value = "switchyard.area")]
    pub area: PathBuf,
    /// Size of a new area [default: 1GiB]
    #[arg(long, value_name = "SIZE")]
    pub size: Option<Size>,
    /// Files to follow: a glob for names, as `*-wal`; for the ends of paths, as `pg_wal/*`; or for whole paths, as `/srv/*/journal`; repeat it for several
    /// [default: *.incr.aof, appendonly.aof, *-wal, and six digits with .log]
    #[arg(long = "match", value_name = "PATTERN")]
    pub patterns: Vec<String>,
    /// Use emulated NVM instead of the area, for measuring: NOTHING survives the program
    #[arg(long, conflicts_with = "area")]
    pub nvm: bool,
    /// Serve calls on all files below this mount point in the program itself, by a log of its own; the mount is one of `fs mount … --control`
    #[arg(long, value_name = "MNT", conflicts_with_all = ["area", "size", "patterns", "nvm"])]
    pub fs: Option<PathBuf>,
    /// Serve TCP sockets in the program itself, by the hub with this socket: those that connect to addresses of the hub's network, and those
    /// that listen at all addresses or at --address. All others are the kernel's
    #[arg(long, value_name = "HUB", num_args = 0..=1, requires = "address", conflicts_with_all = ["area", "size", "patterns", "nvm"])]
    pub tcp: Option<Option<PathBuf>>,
    /// The program's address, and the bits of the hub's network, as 10.9.0.2/24. One process at a time has an address
    #[arg(long, value_name = "IP/BITS", requires = "tcp")]
    pub address: Option<Address>,
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

/// The process that `run` leaves behind.
#[derive(Args)]
pub struct KeeperArgs {
    /// The area of the run
    #[arg(long, value_name = "FILE")]
    area: PathBuf,
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

/// What keeps others out of an area, and what to do.
fn in_use(area: &Path, users: Option<Users>) -> String {
    let copies = "(`switchyard export AREA DIR` makes copies of its files now)";
    let area = area.display();
    let Some(Users {
        run,
        owner,
        is_keeper,
    }) = users
    else {
        return format!("the area {area} is in use by a running program: wait for its end {copies}");
    };
    let name = std::fs::read_to_string(format!("/proc/{owner}/comm")).unwrap_or_default();
    let program = match name.trim() {
        "" => format!("process {owner}"),
        name => format!("process {owner} ({name})"),
    };
    match is_keeper {
        false => format!(
            "the area {area} is in use by {program} of the `switchyard run` with number {run}: wait for its end {copies}"
        ),
        true => format!(
            "the area {area} is in use by {program}, which a `switchyard run` has left in the background: end that program. The keeper \
             of the run, process {run}, settles the area then, and ends by itself {copies}"
        ),
    }
}

fn judged(area: &Path, error: FilesError) -> anyhow::Error {
    match error {
        FilesError::Area(error) if is_damage(&error) => anyhow!(
            "{0}: {error}: `switchyard store repair {0}` says what can be kept",
            area.display()
        ),
        FilesError::Area(AreaError::Media(MediaOpenError::InUse(path))) => {
            Failure::InUse(in_use(&path, users(area))).into()
        }
        FilesError::Area(AreaError::Media(error @ MediaOpenError::NoSpace { .. })) => {
            anyhow!("{error}: give a smaller --size, or another --area")
        }
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
    let library = found.with_context(missing)?;
    // The loader takes LD_PRELOAD apart there, and has no escape (ld.so(8)).
    let is_cut = library
        .as_os_str()
        .as_encoded_bytes()
        .iter()
        .any(|byte| b" :".contains(byte));
    ensure!(
        !is_cut,
        Failure::Usage(format!(
            "{} cannot be loaded into programs, as its path has a blank or a colon: move `switchyard` and {LIBRARY} to another directory",
            library.display()
        ))
    );
    Ok(library.clone())
}

/// The patterns of `--match`, one a line, or the usual ones.
fn patterns(args: &RunArgs) -> anyhow::Result<String> {
    let own = &args.patterns;
    let is_malformed = |it: &String| it.is_empty() || it.contains(['\0', '\n']);
    ensure!(
        !own.iter().any(is_malformed),
        Failure::Usage("--match takes a file name with *, ? and [...]".into())
    );
    // Paths are compared without such parts.
    let has_dot = |it: &&String| it.split('/').any(|part| part == ".");
    if let Some(never) = own.iter().find(has_dot) {
        bail!(Failure::Usage(format!(
            "--match {never} would follow nothing: write the pattern without `.`"
        )));
    }
    Ok(match &own[..] {
        [] => DEFAULT_PATTERNS.join("\n"),
        own => own.join("\n"),
    })
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

/// The program, with the library loaded into it.
pub fn loaded(args: &RunArgs) -> anyhow::Result<Command> {
    let mut preload = OsString::from(library()?);
    if let Some(others) = std::env::var_os("LD_PRELOAD").filter(|it| !it.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut command = Command::new(&args.program[0]);
    command
        .args(&args.program[1..])
        .env("LD_PRELOAD", preload)
        .env(ASAN_OPTIONS, options_of_asan());
    Ok(command)
}

/// Runs the program, and settles the area at its end, which is that of this process.
pub fn run(args: &RunArgs) -> anyhow::Result<()> {
    let mut command = loaded(args)?;
    let patterns = patterns(args)?;
    let size = args.size.unwrap_or(AREA_SIZE);
    let area = if args.nvm {
        PathBuf::from("nvm")
    } else {
        let area = std::path::absolute(&args.area).context("--area")?;
        check(&area, args, size)?;
        tell(&restore(&area, size.0).map_err(|error| judged(&area, error))?);
        area
    };
    command
        .env("SWITCHYARD_AREA", &area)
        .env("SWITCHYARD_AREA_BYTES", size.0.to_string())
        .env("SWITCHYARD_MATCH", &patterns);
    let obstacle = obstacle(&args.program[0]);
    if !args.quiet {
        tell_start(&patterns, &area, obstacle.as_deref());
    }
    let desks = Desks::open(&area).context("the program would have nobody to ask for its area")?;
    tell_desks(&desks);
    command.env("SWITCHYARD_BROKER", desks.broker().text());
    let status = run_to_end(&mut command);
    let status = status.map_err(|source| {
        desks.close();
        Failure::NotStarted {
            program: args.program[0].clone(),
            source,
        }
    })?;
    let is_left = !args.nvm && goes_on(&desks);
    if !args.nvm && desks.owner().is_none() {
        settle(&area);
    }
    if is_left {
        leave(&desks, &area, args.quiet);
    } else {
        desks.close();
    }
    if !args.quiet && !is_left && obstacle.is_none() && desks.followed() == 0 {
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

/// Who will not find this run.
fn tell_desks(desks: &Desks) {
    if !desks.is_found() {
        eprintln!(
            "switchyard: too many runs at once: a file that this run and another one write is not noticed"
        );
    }
    if desks.broker().path().is_none() {
        eprintln!(
            "switchyard: neither /run nor /tmp has room for a socket: programs with a network of their own (`unshare -n`) must not write \
             files that are followed"
        );
    }
}

/// True if processes of the program go on. Those that end with it have a moment for that, and those that it has just started to say that
/// they are there.
fn goes_on(desks: &Desks) -> bool {
    let is_needed_later = |_| {
        std::thread::sleep(ENDING_LOOK_EVERY);
        desks.is_needed()
    };
    let is_seen = desks.is_needed() || (0..STARTING_LOOKS).any(is_needed_later);
    is_seen && (0..ENDING_LOOKS).all(is_needed_later)
}

/// The program has left processes in the background: another process answers them from now on.
fn leave(desks: &Desks, area: &Path, is_quiet: bool) {
    let mut command = Command::new("/proc/self/exe");
    command
        .arg0("switchyard")
        .arg("run-keeper")
        .arg("--area")
        .arg(area);
    match desks.hand_over(&mut command) {
        Ok(keeper) if !is_quiet => eprintln!(
            "switchyard: processes of the program go on in the background: the keeper, process {keeper}, settles the area when they have ended"
        ),
        Ok(_) => {}
        Err(error) => {
            desks.close();
            eprintln!(
                "switchyard: no keeper for the processes in the background ({error}): programs that they start must not write files that \
                 they follow"
            );
        }
    }
}

/// The keeper, in the place of a run that has ended.
pub fn keeper(args: &KeeperArgs) -> anyhow::Result<()> {
    ensure!(
        keep(&args.area).context("the keeper of a run")?,
        Failure::Usage("`switchyard run` starts this process when it is needed".into())
    );
    Ok(())
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
    let copies = export_copies(&args.area, directory).map_err(|error| judged(&args.area, error))?;
    for copy in &copies {
        println!("{}", copy.display());
    }
    if copies.is_empty() {
        eprintln!(
            "switchyard: no copies: {} has nothing of any file, and the file system has all of them",
            args.area.display()
        );
    }
    Ok(())
}
