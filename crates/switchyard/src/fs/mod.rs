//! `switchyard fs`: file systems made, mounted, checked and shown.

mod check;
mod device;
mod mounting;
mod status;

use crate::failure::Failure;
use crate::foreign;
use crate::launch::Says;
use crate::size::Size;
use ::fs::inode::Time;
use ::fs::make::Make;
use ::fs::media::Media;
use anyhow::{Context, bail};
use clap::{Args, Subcommand, ValueEnum};
use device::DeviceArg;
use mount::engine::{Mode, make};
use mount::media::{Access, DeviceError, Disks, Source};
use runtime::{MediaFile, MediaOpenError};
use serde_json::json;
use std::path::PathBuf;
use std::time::SystemTime;
use uuid::Uuid;

const EXAMPLES: &str = "\
Devices are given in their order, the fastest one first. The first one has the log and all names:
  nvm:PATH    persistent memory, or any file: it is mapped
  ssd:PATH    a block device or file on flash
  hdd:PATH    a block device or file on a disk
  mem:SIZE    memory, gone with the program; ,latency=500ns,rate=20GB/s makes it as slow as NVM

Examples:
  switchyard fs make ssd:/dev/nvme0n1p3             make a file system on a partition
  switchyard fs mount ssd:/dev/nvme0n1p3 /mnt/files  serve it until Ctrl-C or `umount /mnt/files`
  switchyard fs make nvm:/dev/pmem0 ssd:/dev/sdb     on persistent memory and an SSD
  switchyard fs mount mem:2GiB /mnt/scratch          a new file system in memory
  switchyard fs status /mnt/files                    what a mount does
  switchyard fs check ssd:/dev/nvme0n1p3 --data      read all there is, and compare checksums

Exit codes: 0 done or clean, 1 failed or damaged, 2 wrong usage or no file system, 4 a device is in use.";

/// `switchyard fs`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct FsArgs {
    #[command(subcommand)]
    command: FsCommand,
}

#[derive(Subcommand)]
enum FsCommand {
    /// Make a file system; devices with data are refused
    Make(MakeArgs),
    /// Mount a file system, and serve it until it is unmounted
    Mount(MountArgs),
    /// Check a file system that is not mounted; changes nothing
    Check(CheckArgs),
    /// Show a mount, or what the devices of a file system say
    Status(StatusArgs),
}

#[derive(Args)]
struct MakeArgs {
    /// Devices, the fastest one first
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<DeviceArg>,
    /// Make it also if a device holds this, which is DESTROYED
    #[arg(long, value_name = "NAME")]
    erase: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// When calls return.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ModeArg {
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
struct MountArgs {
    /// Devices in their order, then the directory
    #[arg(required = true, num_args = 2.., value_name = "DEVICE… DIR")]
    devices_and_dir: Vec<String>,
    /// When calls return [default: sync if the first device is memory, else ordered]
    #[arg(long)]
    mode: Option<ModeArg>,
    /// Size of the log, at least 128 KiB [default: an eighth of the first device, at most 64 MiB]
    #[arg(long, value_name = "SIZE")]
    log: Option<Size>,
    /// Let other users in, whom permissions then keep apart [default: as root]
    #[arg(long)]
    allow_other: bool,
    /// Let set-user-ID bits and device files count; takes root
    #[arg(long)]
    suid_dev: bool,
    /// Serve by /dev/fuse although the kernel has io_uring for it
    #[arg(long)]
    classic: bool,
    /// Mount although a log is damaged: the acknowledged calls behind the damage are LOST
    #[arg(long)]
    despite_damage: bool,
    /// Print one JSON line when it is mounted
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct CheckArgs {
    /// Devices in their order
    #[arg(required = true, value_name = "DEVICE")]
    devices: Vec<DeviceArg>,
    /// Read the data of all files, too
    #[arg(long)]
    data: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct StatusArgs {
    /// Directory of a mount, or all devices of a file system in their order
    #[arg(required = true, value_name = "DIR|DEVICE")]
    places: Vec<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// Does it.
pub fn run(args: FsArgs) -> anyhow::Result<()> {
    match args.command {
        FsCommand::Make(args) => make_on(&args),
        FsCommand::Mount(args) => mounting::run(&args),
        FsCommand::Check(args) => check::run(&args),
        FsCommand::Status(args) => status::run(&args),
    }
}

/// A device that cannot be opened, with the exit code that fits.
fn refused(error: DeviceError) -> anyhow::Error {
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

fn open(devices: &[DeviceArg], access: Access, says: &Says) -> anyhow::Result<Disks> {
    let specs: Vec<_> = devices.iter().map(|device| device.spec.clone()).collect();
    let (disks, warnings) = Disks::open(&specs, access).map_err(refused)?;
    for (device, warning) in devices.iter().zip(warnings) {
        if let Some(warning) = warning.filter(|_| access == Access::Own) {
            says.note(&format!("{}: {warning}", device.text));
        }
    }
    Ok(disks)
}

fn now() -> Time {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let since = since.unwrap_or_default();
    Time {
        seconds: since.as_secs() as i64,
        ns: since.subsec_nanos(),
    }
}

/// Makes an empty file system on devices, whatever they hold.
fn make_empty(devices: &[DeviceArg], disks: &Disks) -> anyhow::Result<Uuid> {
    let uuid = Uuid::new_v4();
    let new = Make {
        uuid,
        devices: devices
            .iter()
            .map(|device| (device.spec.tier, Uuid::new_v4()))
            .collect(),
        time: now(),
        owner: (
            rustix::process::geteuid().as_raw(),
            rustix::process::getegid().as_raw(),
        ),
    };
    make(disks, &new).map_err(|error| Failure::Usage(error.to_string()))?;
    Ok(uuid)
}

fn make_on(args: &MakeArgs) -> anyhow::Result<()> {
    let says = Says { json: args.json };
    for device in &args.devices {
        let Source::File(path) = &device.spec.source else {
            bail!(Failure::Usage(format!(
                "{}: memory is gone when this command ends: mount it, and it is made then",
                device.text
            )));
        };
        let is_missing = !path.exists();
        let bytes = device.bytes.filter(|_| is_missing).unwrap_or(0);
        let opened = MediaFile::open(path, bytes, is_missing && bytes > 0);
        let mut medium = opened.map_err(|error| refused(error.into()))?;
        foreign::permit(path, &mut medium, args.erase.as_deref())?;
    }
    let disks = open(&args.devices, Access::Own, &says)?;
    let uuid = make_empty(&args.devices, &disks).context("no file system was made")?;
    let bytes: u64 = (0..disks.devices() as u8)
        .map(|device| disks.capacity_bytes(device))
        .sum();
    let names: Vec<_> = args.devices.iter().map(|device| &device.text).collect();
    match args.json {
        true => println!("{}", json!({ "made": names, "uuid": uuid, "bytes": bytes })),
        false => {
            let all: Vec<_> = names.iter().map(|name| name.as_str()).collect();
            println!(
                "a file system of {}, {uuid}: mount it with `switchyard fs mount {} DIR`",
                Size(bytes),
                all.join(" ")
            );
        }
    }
    Ok(())
}

/// Devices as they are in messages.
fn devices_of(texts: &[String]) -> anyhow::Result<Vec<DeviceArg>> {
    let parse = |text: &String| text.parse::<DeviceArg>().map_err(Failure::Usage);
    Ok(texts.iter().map(parse).collect::<Result<_, _>>()?)
}

/// The directory at the end of the arguments of `mount`.
fn split_dir(all: &[String]) -> anyhow::Result<(Vec<DeviceArg>, PathBuf)> {
    let (dir, devices) = all.split_last().expect("there are two at least");
    if dir.parse::<DeviceArg>().is_ok() && !PathBuf::from(dir).is_dir() {
        bail!(Failure::Usage(format!(
            "{dir} is a device: end with the directory to mount on"
        )));
    }
    Ok((devices_of(devices)?, PathBuf::from(dir)))
}
