//! Where load goes: an NBD export, or a file or block device with O_DIRECT.

use super::nbd::{Address, Connection};
use crate::failure::Failure;
use anyhow::{Context, bail};
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

/// What O_DIRECT may ask for.
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
    Nbd(Address),
    File(PathBuf),
}

/// One thread's way to a target.
pub enum Way {
    /// A connection.
    Nbd(Box<Connection>),
    /// A file.
    File(File),
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::Nbd(address) => write!(f, "nbd://{}/{}", address.server, address.export),
            Kind::File(path) => write!(f, "file:{}", path.display()),
        }
    }
}

impl Target {
    /// Of `nbd://…` or `file:…`; `span` limits how much of it is used.
    pub fn open(text: &str, span: Option<u64>) -> anyhow::Result<Self> {
        let kind = if let Some(path) = text.strip_prefix("file:") {
            Kind::File(path.into())
        } else if let Some(address) = Address::parse(text) {
            Kind::Nbd(address)
        } else {
            bail!(Failure::Usage(format!(
                "`{text}` is not a target: write nbd://HOST:PORT/NAME or file:PATH"
            )));
        };
        let mut target = Self { kind, span_bytes: 0 };
        let size = match &mut target.way(false)? {
            Way::Nbd(connection) => connection.size_bytes,
            Way::File(file) => file.seek(SeekFrom::End(0))?,
        };
        target.span_bytes = span.map_or(size, |span| span.min(size));
        Ok(target)
    }

    /// Another way to the target.
    pub fn way(&self, writes: bool) -> anyhow::Result<Way> {
        match &self.kind {
            Kind::Nbd(address) => {
                let connection = Connection::open(address)?;
                if writes && connection.is_read_only() {
                    bail!("{self} is read-only");
                }
                Ok(Way::Nbd(Box::new(connection)))
            }
            Kind::File(path) => {
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
                Ok(Way::File(file.with_context(|| {
                    format!("{} cannot be opened", path.display())
                })?))
            }
        }
    }

    /// True if many requests go over one way at a time.
    pub fn is_pipelined(&self) -> bool {
        matches!(self.kind, Kind::Nbd(_))
    }
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
