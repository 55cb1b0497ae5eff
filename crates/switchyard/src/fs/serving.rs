//! `switchyard fs serve`: the files of a file system for processes that have logs of their own.

use super::common::{KEPT_BYTES, ProgramArgs, ServeArgs, make_empty, not_opened, open, tell_recovery};
use crate::failure::Failure;
use crate::launch::{Says, signals};
use crate::size::Size;
use anyhow::{Context, bail};
use mount::engine::{Engine, LOG_BYTES_MIN, Mode, Options, ShareError};
use mount::media::{Access, Source};
use mount::serve::{Opener, Server};
use serde_json::json;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Between two looks for a signal.
const LOOK_EVERY: Duration = Duration::from_millis(100);

pub(super) fn run(args: &ServeArgs) -> anyhow::Result<()> {
    let says = Says { json: args.json };
    if let Some(log) = args.log.filter(|log| log.0 < LOG_BYTES_MIN) {
        bail!(Failure::Usage(format!("--log takes at least 128 KiB, not {log}")));
    }
    let in_memory = |source: &Source| matches!(source, Source::Memory(_));
    let count = args
        .devices
        .iter()
        .filter(|device| in_memory(&device.spec.source))
        .count();
    if count > 0 && count < args.devices.len() {
        bail!(Failure::Usage(
            "mem: devices are gone with this program, so the others would be of no use: give all in memory, or none"
                .into()
        ));
    }
    let signals = signals()?;
    let disks = open(&args.devices, Access::Own, &says)?;
    if count > 0 {
        make_empty(&args.devices, &disks)?;
        says.note("the files are in memory, and gone when this ends");
    }
    let options = Options {
        mode: Some(Mode::Sync),
        // Nobody uses the log of this process.
        log_bytes: Some(LOG_BYTES_MIN),
        despite_damage: args.despite_damage,
        tell: Arc::new(|text| eprintln!("switchyard: {text}")),
        ..Options::default()
    };
    os::keep_freed(KEPT_BYTES);
    let (engine, recovery) = Engine::open(disks.clone(), &options).map_err(not_opened)?;
    tell_recovery(&recovery, &says);
    let engine = Arc::new(engine);
    let (path, processes) = (&args.control, args.programs.processes);
    share(&engine, processes, args.log)?;
    let mut server = listen(&engine, None, path, &args.programs)?;
    signals.serving();
    match args.json {
        true => println!("{}", json!({ "serving": path, "processes": processes })),
        false => println!(
            "serving at {}, for {processes} processes: Ctrl-C ends it",
            path.display()
        ),
    }
    while !signals.wait(LOOK_EVERY)? {}
    server.stop();
    engine
        .close()
        .context("the file system was not closed: what was acknowledged is in the logs, and the next opening brings it back")
}

/// Lets so many programs have logs of their own.
pub(super) fn share(engine: &Engine, processes: u64, log: Option<Size>) -> anyhow::Result<()> {
    let shared = engine.share(processes, log.map(|log| log.0));
    Ok(shared.map_err(|error: ShareError| Failure::Usage(error.to_string()))?)
}

/// Listens for them.
pub(super) fn listen(
    engine: &Arc<Engine>,
    opener: Option<Arc<dyn Opener>>,
    path: &Path,
    programs: &ProgramArgs,
) -> anyhow::Result<Server> {
    let processes = usize::try_from(programs.processes).context("so many processes do not fit")?;
    let limits = (programs.control_mode, processes);
    let server = Server::start_beside(Arc::clone(engine), opener, path, limits);
    Ok(server.map_err(|error| match error.kind() {
        std::io::ErrorKind::AddrInUse => Failure::InUse(format!(
            "{}: somebody serves there: name another --control",
            path.display()
        )),
        _ => Failure::Usage(format!("--control {}: {error}", path.display())),
    })?)
}
