//! What the commands of `switchyard fs` have in common: their arguments, and how they open devices.

use super::device::DeviceArg;
use crate::failure::Failure;
use crate::launch::Says;
use crate::size::Size;
use ::fs::make::Make;
use anyhow::bail;
use clap::{Args, ValueEnum};
use mount::engine::{Mode, OpenError, Recovery, make};
use mount::media::{Access, DeviceError, Disks};
use runtime::MediaOpenError;
use std::path::PathBuf;
use uuid::Uuid;

/// Freed memory that a daemon keeps: several times what a digest of a program's log takes.
pub(super) const KEPT_BYTES: usize = 64 << 20;

/// When calls return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum ModeArg {
    /// When they are durable: fsync has nothing to do
    Sync,
    /// At once, and in order: a crash leaves all calls up to one, and fsync waits
    Ordered,
}

impl From<ModeArg> for Mode {
    fn from(mode: ModeArg) -> Self {
        match mode {
            ModeArg::Sync => Self::Sync,
            ModeArg::Ordered => Self::Ordered,
        }
    }
}

#[derive(Args)]
pub(super) struct MountArgs {
    /// Devices in their order, then the directory
    #[arg(required = true, num_args = 1.., value_name = "DEVICE… DIR")]
    pub devices_and_dir: Vec<String>,
    /// When calls return [default: sync if the first device is memory, else ordered]
    #[arg(long)]
    pub mode: Option<ModeArg>,
    /// Size of the log, at least 128 KiB [default: an eighth of the first device, at most 64 MiB]
    #[arg(long, value_name = "SIZE")]
    pub log: Option<Size>,
    /// Take no changes; a log of a mount before is digested all the same
    #[arg(long)]
    pub read_only: bool,
    /// Leave access times alone [default: as relatime; a read-only mount leaves them]
    #[arg(long)]
    pub no_atime: bool,
    /// Let other users in, whom permissions then keep apart [default: as root]
    #[arg(long)]
    pub allow_other: bool,
    /// Let set-user-ID bits and device files count; takes root
    #[arg(long)]
    pub suid_dev: bool,
    /// Serve by /dev/fuse although the kernel has io_uring for it
    #[arg(long)]
    pub classic: bool,
    /// Socket for programs that have logs of their own beside the mount, as of `fs serve`
    #[arg(long, value_name = "SOCKET", conflicts_with = "read_only")]
    pub control: Option<PathBuf>,
    #[command(flatten)]
    pub programs: ProgramArgs,
    /// Mount although a log is damaged: the acknowledged calls behind the damage are LOST
    #[arg(long)]
    pub despite_damage: bool,
    /// Print one JSON line when it is mounted
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub(super) struct ServeArgs {
    /// Devices in their order; the first one is mem: or nvm: on a file
    #[arg(required = true, value_name = "DEVICE")]
    pub devices: Vec<DeviceArg>,
    /// Socket for programs that use the files
    #[arg(long, value_name = "SOCKET")]
    pub control: PathBuf,
    #[command(flatten)]
    pub programs: ProgramArgs,
    /// Size of each program's log, at least 128 KiB [default: a 64th of the first device, at most 16 MiB]
    #[arg(long, value_name = "SIZE")]
    pub log: Option<Size>,
    /// Serve although a log is damaged: the acknowledged calls behind the damage are LOST
    #[arg(long)]
    pub despite_damage: bool,
    /// Print one JSON line when it serves
    #[arg(long)]
    pub json: bool,
}

/// Programs that have logs of their own.
#[derive(Args)]
pub(super) struct ProgramArgs {
    /// Mode of the socket, in octal: who may connect
    #[arg(long, value_name = "MODE", default_value = "600", value_parser = mode_of)]
    pub control_mode: u32,
    /// Programs that may use the files at once: each may fill as large a part of the devices
    #[arg(long, value_name = "COUNT", default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=4096))]
    pub processes: u64,
}

fn mode_of(text: &str) -> Result<u32, String> {
    match u32::from_str_radix(text, 8) {
        Ok(mode @ 0..=0o777) => Ok(mode),
        _ => Err(format!("{text}: write permissions in octal, such as 660")),
    }
}

#[derive(Args)]
pub(super) struct CheckArgs {
    /// Devices in their order
    #[arg(required = true, value_name = "DEVICE")]
    pub devices: Vec<DeviceArg>,
    /// Read the data of all files, too
    #[arg(long)]
    pub data: bool,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub(super) struct StatusArgs {
    /// Directory of a mount, or all devices of a file system in their order
    #[arg(required = true, value_name = "DIR|DEVICE")]
    pub places: Vec<String>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// A device that cannot be opened, with the exit code that fits.
pub(super) fn refused(error: DeviceError) -> anyhow::Error {
    match error {
        DeviceError::Open(MediaOpenError::InUse(_)) => Failure::InUse(format!(
            "{error}: it is mounted, or checked; `switchyard fs status DIR` shows a mount"
        ))
        .into(),
        DeviceError::Open(MediaOpenError::Missing(_)) => Failure::Usage(format!(
            "{error}: name a device that exists, or let `switchyard fs make` create a file, as in ssd:FILE:10GiB"
        ))
        .into(),
        error => Failure::Usage(error.to_string()).into(),
    }
}

pub(super) fn open(devices: &[DeviceArg], access: Access, says: &Says) -> anyhow::Result<Disks> {
    let specs: Vec<_> = devices.iter().map(|device| device.spec.clone()).collect();
    let (disks, warnings) = Disks::open(&specs, access).map_err(refused)?;
    for (device, warning) in devices.iter().zip(warnings) {
        if let Some(warning) = warning.filter(|_| access == Access::Own) {
            says.note(&format!("{}: {warning}", device.text));
        }
    }
    Ok(disks)
}

/// Makes an empty file system on devices, whatever they hold.
pub(super) fn make_empty(devices: &[DeviceArg], disks: &Disks) -> anyhow::Result<Uuid> {
    let uuid = Uuid::new_v4();
    let new = Make {
        uuid,
        devices: devices
            .iter()
            .map(|device| (device.spec.tier, Uuid::new_v4()))
            .collect(),
        time: os::since_1970().into(),
        owner: (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        ),
    };
    make(disks, &new).map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(uuid)
}

/// Devices as they are in messages.
pub(super) fn devices_of(texts: &[String]) -> anyhow::Result<Vec<DeviceArg>> {
    let parse = |text: &String| text.parse::<DeviceArg>().map_err(Failure::Usage);
    Ok(texts.iter().map(parse).collect::<Result<_, _>>()?)
}

/// The directory at the end of the arguments of `mount`.
pub(super) fn split_dir(all: &[String]) -> anyhow::Result<(Vec<DeviceArg>, PathBuf)> {
    let (dir, devices) = all.split_last().expect("there is one at least");
    if devices.is_empty() {
        bail!(Failure::Usage(format!(
            "{dir} is alone: name the devices, then the directory to mount on"
        )));
    }
    if dir.parse::<DeviceArg>().is_ok() && !PathBuf::from(dir).is_dir() {
        bail!(Failure::Usage(format!(
            "{dir} is a device: end with the directory to mount on"
        )));
    }
    Ok((devices_of(devices)?, PathBuf::from(dir)))
}

pub(super) fn not_opened(error: OpenError) -> anyhow::Error {
    match error {
        OpenError::Tree(error) => Failure::Usage(error.to_string()).into(),
        OpenError::NoRoom(_) => Failure::Usage(error.to_string()).into(),
        error => error.into(),
    }
}

pub(super) fn tell_recovery(recovery: &Recovery, says: &Says) {
    if recovery.operations > 0 {
        says.note(&format!(
            "the log had {} operations that were not in the tree: they are now",
            recovery.operations
        ));
    }
    if recovery.refused > 0 {
        says.note(&format!(
            "{} operations of the log could not be done: run `switchyard fs check` when it is unmounted",
            recovery.refused
        ));
    }
    if recovery.orphans > 0 {
        says.note(&format!(
            "{} files that had no name any more are deleted",
            recovery.orphans
        ));
    }
    for (log, position) in &recovery.damaged {
        says.note(&format!(
            "log {log} is damaged at position {position}: acknowledged calls behind it are lost"
        ));
    }
}
