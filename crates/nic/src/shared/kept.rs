//! Descriptors whose owner decides what numbers they have: a library has to, in a program that knows nothing of it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// What is done with each descriptor that stays.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// Gives it another number.
    pub keep: fn(OwnedFd) -> io::Result<OwnedFd>,
    /// Closes what was kept.
    pub give_back: fn(OwnedFd),
}

impl Keep {
    /// Nothing.
    pub const AS_IT_IS: Self = Self {
        keep: Ok,
        give_back: drop,
    };

    pub(super) fn keep(self, fd: OwnedFd) -> io::Result<Kept> {
        Ok(Kept {
            fd: Some((self.keep)(fd)?),
            give_back: self.give_back,
        })
    }
}

/// A descriptor that is kept.
#[derive(Debug)]
pub struct Kept {
    fd: Option<OwnedFd>,
    give_back: fn(OwnedFd),
}

impl From<OwnedFd> for Kept {
    fn from(fd: OwnedFd) -> Self {
        Self {
            fd: Some(fd),
            give_back: drop,
        }
    }
}

impl AsFd for Kept {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_ref().expect("it goes with its owner").as_fd()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if let Some(fd) = self.fd.take() {
            (self.give_back)(fd);
        }
    }
}
