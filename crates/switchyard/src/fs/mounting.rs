//! `switchyard fs mount`: a mount from its opening to its end.

use super::common::{KEPT_BYTES, MountArgs, make_empty, not_opened, open, split_dir, tell_recovery};
use super::guard::Guard;
use super::serving::{listen, share};
use crate::failure::Failure;
use crate::launch::{Says, signals};
use anyhow::{Context, bail};
use fuse::mount::{MountOptions, UnmountError};
use fuse::transport::{Choice, End, Transport};
use mount::engine::{Engine, LOG_BYTES_MIN, Mode, Options};
use mount::media::{Access, Source};
use mount::posix::{Mounted, Settings};
use mount::serve::Server;
use serde_json::json;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Between two looks whether somebody has unmounted.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Programs that use a mount that is to end have so long. Then their calls fail.
const USERS_END: Duration = Duration::from_secs(10);

pub(super) fn run(args: &MountArgs) -> anyhow::Result<()> {
    let says = Says { json: args.json };
    if let Some(log) = args.log.filter(|log| log.0 < LOG_BYTES_MIN) {
        bail!(Failure::Usage(format!("--log takes at least 128 KiB, not {log}")));
    }
    let (devices, dir) = split_dir(&args.devices_and_dir)?;
    let memory = |source: &Source| matches!(source, Source::Memory(_));
    let in_memory = devices
        .iter()
        .filter(|device| memory(&device.spec.source))
        .count();
    if in_memory > 0 && in_memory < devices.len() {
        bail!(Failure::Usage(
            "mem: devices are gone with this program, so the others would be of no use: give all in memory, or none"
                .into()
        ));
    }
    let signals = signals()?;
    let disks = open(&devices, Access::Own, &says)?;
    if in_memory > 0 {
        make_empty(&devices, &disks)?;
        says.note("the files are in memory, and gone when this ends");
    }
    let options = Options {
        mode: args.mode.map(Mode::from),
        log_bytes: args.log.map(|log| log.0),
        checks_permissions: false,
        despite_damage: args.despite_damage,
        tell: Arc::new(|text| eprintln!("switchyard: {text}")),
        ..Options::default()
    };
    os::keep_freed(KEPT_BYTES);
    let (engine, recovery) = Engine::open(disks.clone(), &options).map_err(not_opened)?;
    tell_recovery(&recovery, &says);
    let settings = settings(args, &devices[0].text)?;
    let engine = Arc::new(engine);
    if settings.control.is_some() {
        share(&engine, args.programs.processes, None)?;
    }
    let mounted = Mounted::start(engine, &disks, &dir, &settings).context("nothing is mounted")?;
    let server = match &settings.control {
        Some(path) => Some(listen(
            mounted.engine(),
            Some(mounted.opener()?),
            path,
            &args.programs,
        )?),
        None => None,
    };
    if let Some(fallback) = mounted.fallback() {
        says.note(fallback);
    }
    // Only beside programs does a thread wait for the kernel.
    let _guard = server.as_ref().and_then(|_| Guard::start(&mounted, &says));
    signals.serving();
    tell_ready(&mounted, args.json);
    serve(mounted, server, &signals, &says)
}

fn settings(args: &MountArgs, source: &str) -> anyhow::Result<Settings> {
    let is_root = rustix::process::geteuid().is_root();
    // Neither the kernel nor the helper takes a comma in a name.
    let source = source.split(',').next().unwrap_or(source);
    // Programs find it from the mount on.
    let control = args.control.as_ref().map(std::path::absolute).transpose()?;
    Ok(Settings {
        mount: MountOptions {
            source: source.to_owned(),
            allow_other: args.allow_other || is_root,
            default_permissions: true,
            read_only: args.read_only,
            no_suid_no_dev: !args.suid_dev,
            ..MountOptions::default()
        },
        keeps_atime: !args.no_atime && !args.read_only,
        choice: if args.classic {
            Choice::Classic
        } else {
            Choice::Best
        },
        control,
    })
}

fn tell_ready(mounted: &Mounted, as_json: bool) {
    let dir = mounted.place();
    let mode = match mounted.engine().mode() {
        Mode::Sync => "sync",
        Mode::Ordered => "ordered",
    };
    let transport = match mounted.transport() {
        Transport::Ring => "io_uring",
        Transport::Classic => "/dev/fuse",
    };
    match as_json {
        true => println!(
            "{}",
            json!({ "mounted": dir, "mode": mode, "transport": transport })
        ),
        false => println!(
            "mounted on {}, mode {mode}, by {transport}: Ctrl-C or `umount {}` ends it",
            dir.display(),
            dir.display()
        ),
    }
}

/// Waits until somebody unmounts, or a signal comes, and ends the mount.
fn serve(
    mut mounted: Mounted,
    mut server: Option<Server>,
    signals: &crate::launch::Signals,
    says: &Says,
) -> anyhow::Result<()> {
    while !mounted.is_over() {
        if signals.wait(LOOK_EVERY)? {
            unmount(&mut mounted, signals, says)?;
            break;
        }
    }
    if let Some(server) = &mut server {
        server.stop();
    }
    let (end, closed) = mounted.finish();
    closed.context("the file system was not closed: what was acknowledged is in its log, and the next mount brings it back")?;
    match end {
        End::Unmounted | End::Stopped => Ok(()),
        End::Aborted => bail!("somebody has ended the connection; what was acknowledged is kept"),
        End::Failed(errno) => {
            bail!("the kernel has ended the connection: {errno}; what was acknowledged is kept")
        }
        End::Panicked => {
            bail!("a thread has panicked: please report what it said; what was acknowledged is kept")
        }
    }
}

/// Unmounts. Programs that use the mount have a while to end.
fn unmount(mounted: &mut Mounted, signals: &crate::launch::Signals, says: &Says) -> anyhow::Result<()> {
    match mounted.unmount() {
        Ok(()) => return Ok(()),
        Err(UnmountError::Busy(_)) => says.note(&format!(
            "{} is in use, as `fuser -m {}` shows: it is taken away, and its users have {} s",
            mounted.place().display(),
            mounted.place().display(),
            USERS_END.as_secs()
        )),
        Err(error) => return Err(error.into()),
    }
    mounted.unmount_lazily()?;
    let began = Instant::now();
    while !mounted.is_over() && began.elapsed() < USERS_END {
        if signals.wait(LOOK_EVERY)? {
            break;
        }
    }
    if !mounted.is_over() {
        says.note("its users go on without it: their calls fail");
        mounted.stop();
    }
    Ok(())
}
