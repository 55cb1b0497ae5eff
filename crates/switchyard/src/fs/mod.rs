//! `switchyard fs`: file systems made, mounted, checked and shown.

mod check;
mod common;
mod device;
mod guard;
mod mounting;
mod serving;
mod status;

use crate::failure::Failure;
use crate::foreign;
use crate::launch::Says;
use crate::size::Size;
use ::fs::media::Media;
use anyhow::{Context, bail};
use clap::{Args, Subcommand};
pub use common::ModeArg;
use common::{CheckArgs, MountArgs, ServeArgs, StatusArgs, make_empty, open, refused};
use device::DeviceArg;
use mount::media::{Access, Source};
use runtime::MediaFile;
use serde_json::json;

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
  switchyard fs serve nvm:/srv/pool --control /run/files.sock   for programs with logs of their own
  switchyard fs mount nvm:/srv/pool /mnt/files --control /run/files.sock   both: a mount, and programs beside it
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
    /// Serve a file system to programs that have operation logs of their own
    Serve(ServeArgs),
    /// Check a file system that is not mounted; changes nothing
    Check(CheckArgs),
    /// Show a mount, or what the devices of a file system say
    Status(StatusArgs),
    /// Stands beside a mount's process, which starts it
    #[command(hide = true)]
    Guard(guard::GuardArgs),
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

/// Does it.
pub fn run(args: FsArgs) -> anyhow::Result<()> {
    match args.command {
        FsCommand::Make(args) => make_on(&args),
        FsCommand::Mount(args) => mounting::run(&args),
        FsCommand::Serve(args) => serving::run(&args),
        FsCommand::Check(args) => check::run(&args),
        FsCommand::Status(args) => status::run(&args),
        FsCommand::Guard(args) => guard::run(&args),
    }
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
