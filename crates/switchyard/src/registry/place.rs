//! Where a registry is, as `--registry` names it: a directory, or an etcd.

use super::etcd::{EtcdRegistry, EtcdUrl, SCHEME};
use super::file::{FILE_NAME, FileRegistry};
use super::format::parse;
use crate::datadir::DataDir;
use anyhow::{Context, bail};
use rack::registry::{Registry, Snapshot};
use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

/// Where a registry is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In a file in this directory.
    Dir(PathBuf),
    /// In etcd.
    Etcd(EtcdUrl),
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once("://") {
            Some(_) if EtcdUrl::is_named(text) => Ok(Self::Etcd(text.parse()?)),
            Some((scheme, _)) => Err(format!(
                "`{scheme}://` is no kind of registry: name a directory, or {SCHEME}HOST:PORT,HOST:PORT,HOST:PORT"
            )),
            None if text.is_empty() => Err("name a directory".into()),
            None => Ok(Self::Dir(text.into())),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Dir(dir) => dir.join(FILE_NAME).display().fmt(f),
            Self::Etcd(url) => url.fmt(f),
        }
    }
}

impl Place {
    /// Opens the registry; an empty one is made if there is none.
    pub fn open(&self) -> anyhow::Result<Box<dyn Registry + Send>> {
        self.create()?;
        Ok(match self {
            Self::Dir(dir) => Box::new(FileRegistry::open(dir)?),
            Self::Etcd(url) => Box::new(EtcdRegistry::open(url.clone())?),
        })
    }

    /// True if there are records, damaged ones too.
    pub fn exists(&self) -> anyhow::Result<bool> {
        match self {
            Self::Dir(dir) => Ok(dir.join(FILE_NAME).exists()),
            Self::Etcd(url) => Ok(EtcdRegistry::at(url.clone()).bytes()?.is_some()),
        }
    }

    /// Makes the directory if it is missing.
    pub fn create(&self) -> anyhow::Result<()> {
        match self {
            Self::Dir(dir) => std::fs::create_dir_all(dir)
                .with_context(|| format!("cannot create the directory {} (--registry)", dir.display())),
            Self::Etcd(_) => Ok(()),
        }
    }

    /// The bytes that are kept there.
    pub fn bytes(&self) -> anyhow::Result<Vec<u8>> {
        match self {
            Self::Dir(dir) => {
                let path = dir.join(FILE_NAME);
                std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))
            }
            Self::Etcd(url) => match EtcdRegistry::at(url.clone()).bytes()? {
                Some(bytes) => Ok(bytes),
                None => bail!("{url}: etcd has no key {}: correct the prefix", url.key()),
            },
        }
    }

    /// The records that are kept there.
    pub fn load(&self) -> anyhow::Result<Snapshot> {
        parse(&self.bytes()?).with_context(|| self.to_string())
    }

    /// Puts records in the place of those that there are, if these can be read; nobody else may use the registry.
    pub fn restore(
        &self,
        next: impl FnOnce(Option<Snapshot>) -> anyhow::Result<Snapshot>,
    ) -> anyhow::Result<()> {
        match self {
            Self::Dir(dir) => {
                let _taken = DataDir::lock(dir)?;
                FileRegistry::restore(dir, next)
            }
            Self::Etcd(url) => EtcdRegistry::at(url.clone()).replace(next),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_registry_is_in_a_directory_or_in_etcd() {
        let place = |text: &str| text.parse::<Place>();
        assert_eq!(place("/shared/rack").unwrap(), Place::Dir("/shared/rack".into()));
        assert!(matches!(place("etcd://a:1,b:2/x").unwrap(), Place::Etcd(_)));
        assert!(matches!(
            place("etcds://a:1/x?ca=ca.pem").unwrap(),
            Place::Etcd(_)
        ));
        for text in ["http://a:1", "etcd://a", ""] {
            assert!(place(text).is_err(), "{text}");
        }
    }
}
