//! `switchyard run --fs`: programs whose calls on files below a mount point are served in the program itself, by the library of `crates/preload`. This
//! process becomes the program.

use crate::failure::Failure;
use crate::followed::obstacle;
use crate::run::{RunArgs, loaded};
use crate::run_tcp;
use anyhow::{Context, bail, ensure};
use libfs::FileSystem;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

/// Becomes the program.
pub fn run(args: &RunArgs, point: &Path) -> anyhow::Result<()> {
    let name = point.display();
    let absolute = point.canonicalize().with_context(|| format!("--fs {name}"))?;
    let control = control(&absolute)?;
    let device = absolute.metadata().with_context(|| format!("--fs {name}"))?.dev();
    if let Some(below) = mounted_below(&absolute)? {
        bail!(Failure::Usage(format!(
            "{} is mounted below {name}: the program would not see it",
            below.display()
        )));
    }
    if let Some(why) = obstacle(&args.program[0]).filter(|_| !args.quiet) {
        eprintln!("switchyard: {why}: its calls go to the mount");
    }
    let mut command = loaded(args)?;
    command
        .env_remove("SWITCHYARD_AREA")
        .env_remove("SWITCHYARD_BROKER")
        .env("SWITCHYARD_FS", &absolute)
        .env("SWITCHYARD_FS_CONTROL", control)
        .env("SWITCHYARD_FS_DEVICE", device.to_string());
    if args.tcp.is_some() {
        run_tcp::prepare(args, &mut command)?;
    }
    let source = command.exec();
    Err(Failure::NotStarted {
        program: args.program[0].clone(),
        source,
    }
    .into())
}

/// The socket of the mount.
fn control(point: &Path) -> anyhow::Result<PathBuf> {
    let found = FileSystem::socket_of(point).with_context(|| format!("--fs {}", point.display()))?;
    let missing = || {
        Failure::Usage(format!(
            "{0} is no mount that programs may have logs beside: mount it with `switchyard fs mount DEVICE {0} --control SOCKET`",
            point.display()
        ))
    };
    Ok(found.ok_or_else(missing)?)
}

/// A mount point below a directory.
fn mounted_below(point: &Path) -> anyhow::Result<Option<PathBuf>> {
    let mounts = fs::read("/proc/self/mountinfo").context("/proc/self/mountinfo")?;
    let points = mounts.split(|byte| *byte == b'\n').filter_map(|line| {
        let field = line.split(|byte| *byte == b' ').nth(4)?;
        Some(PathBuf::from(OsStr::from_bytes(field)))
    });
    let mut below = points.filter(|it| it.starts_with(point) && it != point);
    ensure!(
        point.parent().is_some(),
        Failure::Usage("--fs takes another directory than /".into())
    );
    Ok(below.next())
}
