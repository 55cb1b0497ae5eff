//! Requests: their bytes as an [`Operation`].

use super::constants::opcode;
use super::layout::*;
use super::plain::Plain;
use rustix::io::Errno;
use thiserror::Error;

/// A request that does not follow the protocol, or that this crate does not know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// There is no header, or its `len` is not the count of bytes.
    #[error("a request's length is not what its header says")]
    Length,
    /// The argument of the operation is not as long as it must be.
    #[error("operation {0} has an argument of another length")]
    Argument(u32),
    /// A name is empty, has a slash, or does not end with a NUL.
    #[error("operation {0} has a name that is none")]
    Name(u32),
    /// The data are not as long as the argument says, or something follows.
    #[error("operation {0} has data of another length")]
    Data(u32),
    /// No operation that this crate serves.
    #[error("operation {0} is unknown")]
    Unknown(u32),
}

impl Malformed {
    /// The error for the kernel: ENOSYS for what is unknown, so that it need not ask again, and EIO else.
    pub fn errno(self) -> Errno {
        match self {
            Malformed::Unknown(_) => Errno::NOSYS,
            _ => Errno::IO,
        }
    }
}

/// A request: who asks, of which inode, and for what.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Request<'a> {
    /// Number, inode, and the caller's user, group and process.
    pub header: InHeader,
    /// The operation with its arguments.
    pub operation: Operation<'a>,
}

/// An operation with its arguments. Names are without their NUL, and neither empty nor with a slash. fuse(4) says what the
/// fields mean.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs, reason = "names, targets and values are what they are called")]
pub enum Operation<'a> {
    /// Reply: [`EntryOut`](super::Reply::Entry).
    Lookup { name: &'a [u8] },
    /// No reply.
    Forget(ForgetIn),
    /// No reply.
    BatchForget(Forgets<'a>),
    /// Reply: attributes.
    Getattr(GetattrIn),
    /// Reply: attributes.
    Setattr(SetattrIn),
    /// Reply: attributes as of statx(2).
    Statx(StatxIn),
    /// Reply: the target without a NUL.
    Readlink,
    /// Reply: an entry.
    Symlink { name: &'a [u8], target: &'a [u8] },
    /// Reply: an entry.
    Mknod { argument: MknodIn, name: &'a [u8] },
    /// Reply: an entry.
    Mkdir { argument: MkdirIn, name: &'a [u8] },
    /// Reply: empty.
    Unlink { name: &'a [u8] },
    /// Reply: empty.
    Rmdir { name: &'a [u8] },
    /// RENAME and RENAME2; `flags` are those of renameat2(2). Reply: empty.
    Rename {
        argument: Rename2In,
        name: &'a [u8],
        new_name: &'a [u8],
    },
    /// The header's inode is the directory. Reply: an entry.
    Link { argument: LinkIn, name: &'a [u8] },
    /// Reply: opened; ENOSYS for no-open mode.
    Open(OpenIn),
    /// Reply: created.
    Create { argument: CreateIn, name: &'a [u8] },
    /// A file without a name, in the header's directory. Reply: created.
    Tmpfile(CreateIn),
    /// Reply: data, fewer than `size` only at the file's end.
    Read(ReadIn),
    /// Reply: written.
    Write { argument: WriteIn, data: &'a [u8] },
    /// Reply: an offset.
    Lseek(LseekIn),
    /// Reply: copied.
    CopyFileRange(CopyFileRangeIn),
    /// Reply: room.
    Statfs,
    /// Reply: empty.
    Release(ReleaseIn),
    /// Reply: empty.
    Fsync(FsyncIn),
    /// Reply: empty; ENOSYS if no FLUSH is to come any more.
    Flush(FlushIn),
    /// Reply: empty.
    Fsyncdir(FsyncIn),
    /// Reply: empty.
    Setxattr {
        argument: SetxattrIn,
        name: &'a [u8],
        value: &'a [u8],
    },
    /// Reply: the value, or its size if `size` is 0.
    Getxattr { argument: GetxattrIn, name: &'a [u8] },
    /// Reply: the names, each with a NUL, or their size if `size` is 0.
    Listxattr(GetxattrIn),
    /// Reply: empty.
    Removexattr { name: &'a [u8] },
    /// Answered by the transport.
    Init(InitIn),
    /// Reply: empty.
    Destroy,
    /// Reply: opened; ENOSYS for no-open mode.
    Opendir(OpenIn),
    /// Reply: data, of [`Directory`](super::Directory).
    Readdir(ReadIn),
    /// Reply: data, of [`Directory`](super::Directory).
    Readdirplus(ReadIn),
    /// Reply: empty.
    Releasedir(ReleaseIn),
    /// `mask` is that of access(2). Reply: empty.
    Access(AccessIn),
    /// Reply: a lock.
    Getlk(LkIn),
    /// Reply: empty.
    Setlk(LkIn),
    /// Reply: empty, when the lock is there.
    Setlkw(LkIn),
    /// The caller of request `unique` has a signal. No reply.
    Interrupt(InterruptIn),
    /// Reply: a result and data.
    Ioctl { argument: IoctlIn, data: &'a [u8] },
    /// Reply: events.
    Poll(PollIn),
    /// `mode` is that of fallocate(2). Reply: empty.
    Fallocate(FallocateIn),
    /// Reply: empty.
    Syncfs,
    /// No reply.
    NotifyReply {
        argument: NotifyRetrieveIn,
        data: &'a [u8],
    },
}

/// Inodes that the kernel forgets, with the counts of their lookups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Forgets<'a>(&'a [u8]);

impl Iterator for Forgets<'_> {
    type Item = ForgetOne;

    fn next(&mut self) -> Option<ForgetOne> {
        let next = ForgetOne::read(self.0)?;
        self.0 = &self.0[ForgetOne::BYTES..];
        Some(next)
    }
}

/// Whether the kernel waits for a reply to an operation.
pub fn wants_reply(code: u32) -> bool {
    let silent = [
        opcode::FORGET,
        opcode::BATCH_FORGET,
        opcode::INTERRUPT,
        opcode::NOTIFY_REPLY,
    ];
    !silent.contains(&code)
}

/// Bytes of an operation's argument, the part of a request between its header and its names and data; `None` for an
/// operation that is unknown.
pub fn argument_bytes(code: u32) -> Option<usize> {
    Some(match code {
        opcode::LOOKUP | opcode::READLINK | opcode::SYMLINK | opcode::UNLINK | opcode::RMDIR => 0,
        opcode::STATFS | opcode::REMOVEXATTR | opcode::DESTROY => 0,
        opcode::FORGET => ForgetIn::BYTES,
        opcode::BATCH_FORGET => BatchForgetIn::BYTES,
        opcode::GETATTR => GetattrIn::BYTES,
        opcode::SETATTR => SetattrIn::BYTES,
        opcode::STATX => StatxIn::BYTES,
        opcode::MKNOD => MknodIn::BYTES,
        opcode::MKDIR => MkdirIn::BYTES,
        opcode::RENAME => RenameIn::BYTES,
        opcode::RENAME2 => Rename2In::BYTES,
        opcode::LINK => LinkIn::BYTES,
        opcode::OPEN | opcode::OPENDIR => OpenIn::BYTES,
        opcode::CREATE | opcode::TMPFILE => CreateIn::BYTES,
        opcode::READ | opcode::READDIR | opcode::READDIRPLUS => ReadIn::BYTES,
        opcode::WRITE => WriteIn::BYTES,
        opcode::LSEEK => LseekIn::BYTES,
        opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => CopyFileRangeIn::BYTES,
        opcode::RELEASE | opcode::RELEASEDIR => ReleaseIn::BYTES,
        opcode::FSYNC | opcode::FSYNCDIR => FsyncIn::BYTES,
        opcode::FLUSH => FlushIn::BYTES,
        opcode::SETXATTR => SetxattrIn::BYTES,
        opcode::GETXATTR | opcode::LISTXATTR => GetxattrIn::BYTES,
        opcode::INIT => InitIn::BYTES,
        opcode::ACCESS => AccessIn::BYTES,
        opcode::GETLK | opcode::SETLK | opcode::SETLKW => LkIn::BYTES,
        opcode::INTERRUPT => InterruptIn::BYTES,
        opcode::IOCTL => IoctlIn::BYTES,
        opcode::POLL => PollIn::BYTES,
        opcode::FALLOCATE => FallocateIn::BYTES,
        opcode::SYNCFS => SyncfsIn::BYTES,
        opcode::NOTIFY_REPLY => NotifyRetrieveIn::BYTES,
        _ => return None,
    })
}

impl<'a> Request<'a> {
    /// A request in one piece, as `/dev/fuse` has it: header, argument, names and data.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn parse(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let header = InHeader::read(bytes).ok_or(Malformed::Length)?;
        if header.len as usize != bytes.len() {
            return Err(Malformed::Length);
        }
        let rest = &bytes[InHeader::BYTES..];
        let wanted = argument_bytes(header.opcode).ok_or(Malformed::Unknown(header.opcode))?;
        let parts = rest.split_at_checked(wanted);
        let (argument, payload) = parts.ok_or(Malformed::Argument(header.opcode))?;
        Self::of_parts(header, argument, payload)
    }

    /// A request in parts, as an entry of a ring has it. `argument` is the whole place for arguments, of which the operation's
    /// count of bytes matters.
    ///
    /// # Errors
    /// [`Malformed`].
    pub fn of_entry(header: InHeader, place: &'a [u8], payload: &'a [u8]) -> Result<Self, Malformed> {
        let wanted = argument_bytes(header.opcode).ok_or(Malformed::Unknown(header.opcode))?;
        if header.len as usize != InHeader::BYTES + wanted + payload.len() {
            return Err(Malformed::Length);
        }
        let argument = place.get(..wanted).ok_or(Malformed::Argument(header.opcode))?;
        Self::of_parts(header, argument, payload)
    }

    /// `argument` has the length of the operation's.
    fn of_parts(header: InHeader, argument: &'a [u8], payload: &'a [u8]) -> Result<Self, Malformed> {
        // What this crate does not ask for in INIT, security contexts and groups, comes behind the rest.
        let extension = usize::from(header.total_extlen) * 8;
        let payload_bytes = payload.len().checked_sub(extension);
        let payload = &payload[..payload_bytes.ok_or(Malformed::Length)?];
        let parts = Parts {
            code: header.opcode,
            argument,
            payload,
        };
        let named = parts.named()?;
        let operation = match named {
            Some(operation) => operation,
            None => parts.with_data()?.map_or_else(|| parts.plain(), Ok)?,
        };
        Ok(Request { header, operation })
    }
}

/// The parts of a request behind its header.
struct Parts<'a> {
    code: u32,
    argument: &'a [u8],
    payload: &'a [u8],
}

impl<'a> Parts<'a> {
    fn argument<T: Plain>(&self) -> Result<T, Malformed> {
        T::read(self.argument).ok_or(Malformed::Argument(self.code))
    }

    /// The only thing behind the argument is a name.
    fn name(&self) -> Result<&'a [u8], Malformed> {
        let (name, rest) = self.next_name(self.payload)?;
        self.no_more(rest)?;
        Ok(name)
    }

    /// Two names, and nothing else. The second may be a path.
    fn name_and_text(&self) -> Result<(&'a [u8], &'a [u8]), Malformed> {
        let (name, rest) = self.next_name(self.payload)?;
        let (text, rest) = self.next_text(rest)?;
        self.no_more(rest)?;
        Ok((name, text))
    }

    fn next_name(&self, bytes: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), Malformed> {
        let (name, rest) = self.next_text(bytes)?;
        match name.contains(&b'/') {
            true => Err(Malformed::Name(self.code)),
            false => Ok((name, rest)),
        }
    }

    /// Bytes up to a NUL, at least one, and what comes behind it.
    fn next_text(&self, bytes: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), Malformed> {
        let end = bytes.iter().position(|byte| *byte == 0).filter(|end| *end > 0);
        let end = end.ok_or(Malformed::Name(self.code))?;
        Ok((&bytes[..end], &bytes[end + 1..]))
    }

    fn no_more(&self, rest: &[u8]) -> Result<(), Malformed> {
        match rest {
            [] => Ok(()),
            _ => Err(Malformed::Data(self.code)),
        }
    }

    /// All that is left, which is as long as the argument says.
    fn data(&self, rest: &'a [u8], bytes: u32) -> Result<&'a [u8], Malformed> {
        match rest.len() == bytes as usize {
            true => Ok(rest),
            false => Err(Malformed::Data(self.code)),
        }
    }

    /// Operations with names.
    fn named(&self) -> Result<Option<Operation<'a>>, Malformed> {
        Ok(Some(match self.code {
            opcode::LOOKUP => Operation::Lookup { name: self.name()? },
            opcode::UNLINK => Operation::Unlink { name: self.name()? },
            opcode::RMDIR => Operation::Rmdir { name: self.name()? },
            opcode::REMOVEXATTR => {
                let (name, rest) = self.next_text(self.payload)?;
                self.no_more(rest)?;
                Operation::Removexattr { name }
            }
            opcode::SYMLINK => {
                let (name, target) = self.name_and_text()?;
                Operation::Symlink { name, target }
            }
            opcode::MKNOD => Operation::Mknod {
                argument: self.argument()?,
                name: self.name()?,
            },
            opcode::MKDIR => Operation::Mkdir {
                argument: self.argument()?,
                name: self.name()?,
            },
            opcode::LINK => Operation::Link {
                argument: self.argument()?,
                name: self.name()?,
            },
            opcode::CREATE => Operation::Create {
                argument: self.argument()?,
                name: self.name()?,
            },
            opcode::RENAME | opcode::RENAME2 => self.rename()?,
            opcode::GETXATTR => {
                let (name, rest) = self.next_text(self.payload)?;
                self.no_more(rest)?;
                let argument = self.argument()?;
                Operation::Getxattr { argument, name }
            }
            // The kernel has a name of its own for a file without one.
            opcode::TMPFILE => {
                let (_, rest) = self.next_text(self.payload)?;
                self.no_more(rest)?;
                Operation::Tmpfile(self.argument()?)
            }
            _ => return Ok(None),
        }))
    }

    fn rename(&self) -> Result<Operation<'a>, Malformed> {
        let (name, rest) = self.next_name(self.payload)?;
        let (new_name, rest) = self.next_name(rest)?;
        self.no_more(rest)?;
        let argument = match self.code {
            opcode::RENAME2 => self.argument()?,
            _ => Rename2In {
                newdir: self.argument::<RenameIn>()?.newdir,
                ..Rename2In::default()
            },
        };
        Ok(Operation::Rename {
            argument,
            name,
            new_name,
        })
    }

    /// Operations with data.
    fn with_data(&self) -> Result<Option<Operation<'a>>, Malformed> {
        Ok(Some(match self.code {
            opcode::WRITE => {
                let argument: WriteIn = self.argument()?;
                let data = self.data(self.payload, argument.size)?;
                Operation::Write { argument, data }
            }
            opcode::SETXATTR => {
                let argument: SetxattrIn = self.argument()?;
                let (name, rest) = self.next_text(self.payload)?;
                let value = self.data(rest, argument.size)?;
                Operation::Setxattr {
                    argument,
                    name,
                    value,
                }
            }
            opcode::IOCTL => {
                let argument: IoctlIn = self.argument()?;
                let data = self.data(self.payload, argument.in_size)?;
                Operation::Ioctl { argument, data }
            }
            opcode::NOTIFY_REPLY => {
                let argument: NotifyRetrieveIn = self.argument()?;
                let data = self.data(self.payload, argument.size)?;
                Operation::NotifyReply { argument, data }
            }
            opcode::BATCH_FORGET => {
                let argument: BatchForgetIn = self.argument()?;
                let bytes = u64::from(argument.count) * ForgetOne::BYTES as u64;
                if bytes != self.payload.len() as u64 {
                    return Err(Malformed::Data(self.code));
                }
                Operation::BatchForget(Forgets(self.payload))
            }
            _ => return Ok(None),
        }))
    }

    /// Operations with an argument only.
    fn plain(&self) -> Result<Operation<'a>, Malformed> {
        self.no_more(self.payload)?;
        Ok(match self.code {
            opcode::FORGET => Operation::Forget(self.argument()?),
            opcode::GETATTR => Operation::Getattr(self.argument()?),
            opcode::SETATTR => Operation::Setattr(self.argument()?),
            opcode::STATX => Operation::Statx(self.argument()?),
            opcode::READLINK => Operation::Readlink,
            opcode::OPEN => Operation::Open(self.argument()?),
            opcode::READ => Operation::Read(self.argument()?),
            opcode::LSEEK => Operation::Lseek(self.argument()?),
            opcode::COPY_FILE_RANGE | opcode::COPY_FILE_RANGE_64 => {
                Operation::CopyFileRange(self.argument()?)
            }
            opcode::STATFS => Operation::Statfs,
            opcode::RELEASE => Operation::Release(self.argument()?),
            opcode::FSYNC => Operation::Fsync(self.argument()?),
            opcode::FLUSH => Operation::Flush(self.argument()?),
            opcode::FSYNCDIR => Operation::Fsyncdir(self.argument()?),
            opcode::LISTXATTR => Operation::Listxattr(self.argument()?),
            opcode::INIT => Operation::Init(self.argument()?),
            opcode::DESTROY => Operation::Destroy,
            opcode::OPENDIR => Operation::Opendir(self.argument()?),
            opcode::READDIR => Operation::Readdir(self.argument()?),
            opcode::READDIRPLUS => Operation::Readdirplus(self.argument()?),
            opcode::RELEASEDIR => Operation::Releasedir(self.argument()?),
            opcode::ACCESS => Operation::Access(self.argument()?),
            opcode::GETLK => Operation::Getlk(self.argument()?),
            opcode::SETLK => Operation::Setlk(self.argument()?),
            opcode::SETLKW => Operation::Setlkw(self.argument()?),
            opcode::INTERRUPT => Operation::Interrupt(self.argument()?),
            opcode::POLL => Operation::Poll(self.argument()?),
            opcode::FALLOCATE => Operation::Fallocate(self.argument()?),
            opcode::SYNCFS => Operation::Syncfs,
            code => return Err(Malformed::Unknown(code)),
        })
    }
}
