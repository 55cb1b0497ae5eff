//! What `switchyard bench fs` is asked for.

use super::super::looped::MEMORY;
use crate::fs::ModeArg;
use crate::size::Size;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// `switchyard bench fs`.
#[derive(Args)]
#[command(
    after_help = "Needs root: for loop devices, and for `Y` in /sys/module/fuse/parameters/enable_uring, with which the mount is faster. \
    Peers that cannot be made, and programs that are not installed, are left out by name. Nothing else may run on the machine.\n\n\
    Examples:\n  switchyard bench fs --dir /srv --report fs.html\n  \
    switchyard bench fs --media ssd --mode sync --only create,append,varmail --peers ext4 --rounds 7"
)]
pub struct FilesArgs {
    /// Directory on the disk to measure, for files that the command removes again
    #[arg(long, value_name = "DIR", default_value = ".")]
    pub dir: PathBuf,
    /// Devices of all sides
    #[arg(
        long,
        value_name = "MEDIUM,…",
        value_delimiter = ',',
        default_value = "mem,ssd"
    )]
    pub media: Vec<Medium>,
    /// When calls of our mount return [default: sync on mem and nvm, ordered on ssd]
    #[arg(long)]
    pub mode: Option<ModeArg>,
    /// File systems of the kernel beside ours
    #[arg(
        long,
        value_name = "KIND,…",
        value_delimiter = ',',
        default_value = "ext4,xfs,btrfs"
    )]
    pub peers: Vec<Peer>,
    /// Measure ours alone
    #[arg(long, conflicts_with = "peers")]
    pub alone: bool,
    /// Only these tasks, by the names that --json has
    #[arg(long, value_name = "TASK,…", value_delimiter = ',')]
    pub only: Vec<String>,
    /// Size of each file system
    #[arg(long, value_name = "SIZE", default_value = "1GiB")]
    pub size: Size,
    /// Seconds of each case
    #[arg(long, value_name = "S", default_value_t = 0.5, allow_negative_numbers = true)]
    pub seconds: f64,
    /// Operations of each case of a database
    #[arg(long, value_name = "N", default_value_t = 1000)]
    pub count: u64,
    /// Rounds; the report has medians
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub rounds: usize,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
    /// Write a report as one HTML page
    #[arg(long, value_name = "FILE")]
    pub report: Option<PathBuf>,
}

/// A file system of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Peer {
    Ext4,
    Xfs,
    Btrfs,
}

impl Peer {
    /// As `mkfs` has it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// The one that a directory is on. The numbers are those of Linux' `magic.h`.
    pub(super) fn of(dir: &Path) -> Option<Self> {
        match rustix::fs::statfs(dir).ok()?.f_type as u64 {
            0xef53 => Some(Self::Ext4),
            0x5846_5342 => Some(Self::Xfs),
            0x9123_683e => Some(Self::Btrfs),
            _ => None,
        }
    }
}

/// The device of all sides.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Medium {
    /// Memory: ours with the time of NVM, peers on loop devices over memory
    Mem,
    /// A mapped file in memory, peers on loop devices over memory
    Nvm,
    /// A file in DIR, by direct I/O; peers on loop devices over files there, and DIR itself
    Ssd,
}

impl Medium {
    /// As arguments and reports have it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Mem => "mem",
            Self::Nvm => "nvm",
            Self::Ssd => "ssd",
        }
    }

    pub(super) fn mode(self, asked: Option<ModeArg>) -> ModeArg {
        let usual = match self {
            Self::Mem | Self::Nvm => ModeArg::Sync,
            Self::Ssd => ModeArg::Ordered,
        };
        asked.unwrap_or(usual)
    }

    /// Where files of devices are.
    pub(super) fn dir(self, args: &FilesArgs) -> &Path {
        match self {
            Self::Mem | Self::Nvm => Path::new(MEMORY),
            Self::Ssd => &args.dir,
        }
    }
}
