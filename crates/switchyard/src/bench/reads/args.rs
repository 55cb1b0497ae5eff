//! What `switchyard bench store --reads` is told.

use super::drive::{Distribution, Work};
use crate::size::{Size, SizeError};
use clap::Args;
use std::path::PathBuf;
use std::str::FromStr;

/// The memory of each engine's cache.
#[derive(Clone, Copy, Debug)]
pub enum CacheSize {
    /// A part of the data, in hundredths.
    Percent(u64),
    /// Bytes.
    Bytes(Size),
    /// More than the data.
    All,
}

impl FromStr for CacheSize {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        match text.strip_suffix('%').map(str::parse) {
            Some(Ok(percent @ 1..=1000)) => Ok(Self::Percent(percent)),
            Some(_) => Err(format!("`{text}` is not 1% to 1000%")),
            None => text
                .parse()
                .map(Self::Bytes)
                .map_err(|error: SizeError| error.to_string()),
        }
    }
}

/// What `--reads` takes.
#[derive(Args)]
pub struct ReadsArgs {
    /// Measure reads: point reads, ranges of 100 entries, and reads beside durable writes
    #[arg(long)]
    pub reads: bool,
    /// Keys that are loaded, of 16 bytes, in no order
    #[arg(long, value_name = "N", default_value_t = 10_000_000, requires = "reads")]
    pub keys: u64,
    /// Memory of each engine's cache: a part of the data, a size, or `all` for more than the data
    #[arg(long, value_name = "SIZE", default_value = "10%", requires = "reads")]
    pub cache: CacheSize,
    /// Memory that each engine has beside its cache: for its program, threads and write buffers, and the page cache of its files
    #[arg(long, value_name = "SIZE", default_value = "256MiB", requires = "reads")]
    pub beside: Size,
    /// Which keys are asked for: each equally often, or few of them often (exponent 0.99)
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "uniform,zipfian", value_parser = distribution, requires = "reads")]
    pub distribution: Vec<Distribution>,
    /// What is measured
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', default_value = "point,range,mix", value_parser = work, requires = "reads")]
    pub work: Vec<Work>,
    /// Engines of --peers beside Switchyard
    #[arg(
        long,
        value_name = "NAME,…",
        value_delimiter = ',',
        default_value = "redb,fjall,sled,rocksdb,sqlite,lmdb",
        requires = "reads"
    )]
    pub engines: Vec<String>,
    /// Seconds of reads that fill the caches before the first case
    #[arg(long, value_name = "S", default_value_t = 5.0, requires = "reads")]
    pub warm: f64,
    /// Keep the loaded data in DIR, and use those that are there
    #[arg(long, value_name = "DIR", requires = "reads")]
    pub keep: Option<PathBuf>,
    /// Do not bound the memory of these engines
    #[arg(long, value_name = "NAME,…", value_delimiter = ',', requires = "reads")]
    pub unbounded: Vec<String>,
    /// The work of one engine's process, as JSON
    #[arg(long, hide = true)]
    pub plan: Option<String>,
}

fn distribution(name: &str) -> Result<Distribution, String> {
    serde_json::from_value(name.into()).map_err(|_| "uniform or zipfian".into())
}

fn work(name: &str) -> Result<Work, String> {
    serde_json::from_value(name.into()).map_err(|_| "point, range or mix".into())
}
