//! The workloads of `switchyard bench fs`, and what is told of each.

use clap::ValueEnum;
use serde::Serialize;

/// A workload of our own clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Workload {
    Create,
    Append,
    Overwrite,
    Replace,
    Mkdir,
    Unlink,
    Stat,
    Open,
    #[value(name = "read-4k")]
    Read4k,
    #[value(name = "read-1m")]
    Read1m,
    #[value(name = "write-1m")]
    Write1m,
    Varmail,
    #[value(name = "varmail-16")]
    Varmail16,
    Fileserver,
    Webserver,
}

impl Workload {
    /// What one operation is.
    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Create => "create, write 1 KiB, fsync",
            Self::Append => "append 1 KiB, fsync",
            Self::Overwrite => "overwrite 1 KiB, fsync",
            Self::Replace => "write, rename, two fsyncs",
            Self::Mkdir => "mkdir, fsync of its directory",
            Self::Unlink => "unlink, fsync of its directory",
            Self::Stat => "stat",
            Self::Open => "open, close",
            Self::Read4k => "read 4 KiB, cached",
            Self::Read1m => "read 1 MiB, in order, not cached",
            Self::Write1m => "append 1 MiB, fsync",
            Self::Varmail => "varmail, 1 process",
            Self::Varmail16 => "varmail, 16 processes",
            Self::Fileserver => "fileserver, each write with fsync",
            Self::Webserver => "webserver, each append with fsync",
        }
    }

    /// Processes at the same time.
    pub(super) fn clients(self) -> u64 {
        match self {
            Self::Varmail16 => 16,
            _ => 1,
        }
    }

    /// Calls of several kinds are told by their mean, and one kind by its median.
    pub(super) fn is_told_by_mean(self) -> bool {
        matches!(
            self,
            Self::Read1m
                | Self::Write1m
                | Self::Varmail
                | Self::Varmail16
                | Self::Fileserver
                | Self::Webserver
        )
    }
}
