//! Notifications: what a server tells the kernel of its own accord.

use super::constants::{expire, notify};
use super::layout::*;
use super::plain::{Plain, put};

/// A change that the kernel's caches do not know of. The kernel answers ENOENT for what it does not have in its caches.
///
/// The kernel takes locks of the inode: a notification from a thread that serves requests can wait for a request that this
/// very thread is to serve. Send notifications from a thread that serves none. INVAL_INODE of attributes alone takes no such lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Notification<'a> {
    /// An inode's attributes have changed, and its data from `offset` on: `bytes`, or all if that is 0. With a negative
    /// `offset` only the attributes.
    #[allow(missing_docs, reason = "said above")]
    InvalInode { inode: u64, offset: i64, bytes: i64 },
    /// A name of a directory has changed.
    #[allow(missing_docs, reason = "said above")]
    InvalEntry { parent: u64, name: &'a [u8] },
    /// A name is to be looked up again (HAS_EXPIRE_ONLY).
    #[allow(missing_docs, reason = "said above")]
    ExpireEntry { parent: u64, name: &'a [u8] },
    /// A name of inode `child` was deleted: whoever has it open or as working directory sees it as deleted.
    #[allow(missing_docs, reason = "said above")]
    Delete { parent: u64, child: u64, name: &'a [u8] },
    /// All names of all directories are to be looked up again (Linux 6.16). It takes no locks.
    IncEpoch,
    /// Data of a file for the kernel's cache.
    #[allow(missing_docs, reason = "said above")]
    Store { inode: u64, offset: u64, data: &'a [u8] },
}

/// Room for the head of any notification; DELETE and STORE have the largest.
pub const NOTIFICATION_HEAD_BYTES_MAX: usize = OutHeader::BYTES + NotifyDeleteOut::BYTES;

impl<'a> Notification<'a> {
    /// The notification in three parts, as `/dev/fuse` takes it: a head, of which the count of bytes in `head` is told, a name
    /// or data, and what ends it.
    pub fn parts(&self, head: &mut [u8; NOTIFICATION_HEAD_BYTES_MAX]) -> (usize, &'a [u8], &'static [u8]) {
        const NUL: &[u8] = &[0];
        let place = &mut head[OutHeader::BYTES..];
        let (code, argument_bytes, data, end): (_, _, &[u8], &[u8]) = match *self {
            Notification::InvalInode {
                inode: ino,
                offset: off,
                bytes: len,
            } => {
                let argument = NotifyInvalInodeOut { ino, off, len };
                (notify::INVAL_INODE, put(&argument, place), &[], &[])
            }
            Notification::InvalEntry { parent, name } => {
                let argument = inval_entry(parent, name, 0);
                (notify::INVAL_ENTRY, put(&argument, place), name, NUL)
            }
            Notification::ExpireEntry { parent, name } => {
                let argument = inval_entry(parent, name, expire::EXPIRE_ONLY);
                (notify::INVAL_ENTRY, put(&argument, place), name, NUL)
            }
            Notification::Delete { parent, child, name } => {
                let argument = NotifyDeleteOut {
                    parent,
                    child,
                    namelen: name.len() as u32,
                    padding: 0,
                };
                (notify::DELETE, put(&argument, place), name, NUL)
            }
            Notification::IncEpoch => (notify::INC_EPOCH, 0, &[], &[]),
            Notification::Store { inode, offset, data } => {
                let argument = NotifyStoreOut {
                    nodeid: inode,
                    offset,
                    size: data.len() as u32,
                    padding: 0,
                };
                (notify::STORE, put(&argument, place), data, &[])
            }
        };
        let head_bytes = OutHeader::BYTES + argument_bytes;
        let header = OutHeader {
            len: (head_bytes + data.len() + end.len()) as u32,
            error: code as i32,
            unique: 0,
        };
        put(&header, head);
        (head_bytes, data, end)
    }
}

fn inval_entry(parent: u64, name: &[u8], flags: u32) -> NotifyInvalEntryOut {
    NotifyInvalEntryOut {
        parent,
        namelen: name.len() as u32,
        flags,
    }
}
