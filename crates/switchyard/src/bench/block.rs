//! Where load goes: an NBD export, or a file or block device with O_DIRECT.

use super::socket::Client;
use super::{nbd, nvme};
use crate::failure::Failure;
use anyhow::{Context, bail};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Alignment that O_DIRECT may ask for.
const ALIGNMENT: usize = 4096;

/// A target that exists.
#[derive(Clone, Debug)]
pub struct Target {
    kind: Kind,
    /// Bytes that are used of it.
    pub span_bytes: u64,
}

#[derive(Clone, Debug)]
enum Kind {
    Nbd(nbd::Address),
    Nvme(nvme::Address),
    File(PathBuf),
}

/// One thread's way to a target.
pub enum Way {
    /// A connection.
    Client(Box<dyn Client>),
    /// A file.
    File(File),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Nbd(address) => write!(f, "nbd://{}/{}", address.server, address.export),
            Kind::Nvme(address) => write!(f, "nvme://{}/{}", address.server, address.nqn),
            Kind::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

impl Target {
    /// Of `nbd://…` or `file:…`; `span` limits how much of it is used.
    pub fn open(text: &str, span: Option<u64>) -> anyhow::Result<Self> {
        let kind = if let Some(path) = text.strip_prefix("file:") {
            Kind::File(path.into())
        } else if let Some(address) = nbd::Address::parse(text) {
            Kind::Nbd(address)
        } else if let Some(address) = nvme::Address::parse(text) {
            Kind::Nvme(address)
        } else {
            bail!(Failure::Usage(format!(
                "`{text}` is not a target: name nbd://HOST:PORT/NAME, nvme://HOST:PORT/NAME or file:PATH"
            )));
        };
        let size = match &kind {
            Kind::Nbd(address) => nbd::Connection::open(address, false)?.size_bytes,
            Kind::Nvme(address) => nvme::Connection::open(address, false)?.size_bytes,
            Kind::File(path) if path.is_dir() => bail!(Failure::Usage(format!(
                "{text} is a directory: name a file or a block device"
            ))),
            Kind::File(path) => open_file(path, false)?.seek(SeekFrom::End(0))?,
        };
        let span_bytes = span.map_or(size, |span| span.min(size));
        Ok(Self { kind, span_bytes })
    }

    /// Another way to the target, whose client `polls` for answers or sleeps.
    pub fn way(&self, writes: bool, polls: bool) -> anyhow::Result<Way> {
        let (client, is_read_only): (Box<dyn Client>, bool) = match &self.kind {
            Kind::Nbd(address) => {
                let connection = nbd::Connection::open(address, polls)?;
                let is_read_only = connection.is_read_only();
                (Box::new(connection), is_read_only)
            }
            Kind::Nvme(address) => {
                let connection = nvme::Connection::open(address, polls)?;
                let is_read_only = connection.is_read_only;
                (Box::new(connection), is_read_only)
            }
            Kind::File(path) => return Ok(Way::File(open_file(path, writes)?)),
        };
        if writes && is_read_only {
            bail!("{self} is read-only");
        }
        Ok(Way::Client(client))
    }

    /// True if many requests go over one way at a time.
    pub fn is_pipelined(&self) -> bool {
        !matches!(self.kind, Kind::File(_))
    }
}

fn open_file(path: &Path, writes: bool) -> anyhow::Result<File> {
    let open = |flags| {
        OpenOptions::new()
            .read(true)
            .write(writes)
            .custom_flags(flags)
            .open(path)
    };
    let file = match open(libc::O_DIRECT) {
        // The file system has no O_DIRECT: the page cache is measured too.
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => open(0),
        other => other,
    };
    file.with_context(|| format!("cannot open {}", path.display()))
}

/// Memory that O_DIRECT takes.
pub struct Aligned {
    bytes: Vec<u8>,
    start: usize,
    length: usize,
}

impl Aligned {
    /// `length` bytes.
    pub fn new(length: usize) -> Self {
        let bytes = vec![0; length + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        assert!(start < ALIGNMENT, "a byte pointer can be aligned");
        Self { bytes, start, length }
    }

    /// The bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..][..self.length]
    }
}
