//! The kernel's numbers: operations, notifications, and bits of flags, under the kernel's names without `FUSE_`.
//!
//! `tests/abi.rs` compares each with the table `tests/abi/layout.txt` and with the header of the machine.

/// Makes modules of constants, and a list of all of them for the comparison with the kernel's header.
macro_rules! constants {
    ($($(#[$meta:meta])* $module:ident: $type:ty = $prefix:literal {
        $($(#[$constant_meta:meta])* $name:ident = $value:expr;)+
    })+) => {
        $(
            $(#[$meta])*
            pub mod $module {
                $($(#[$constant_meta])* pub const $name: $type = $value;)+
            }
        )+

        /// Every constant: its name in C, and its value.
        pub const CONSTANTS: &[(&str, u64)] = &[
            $($((concat!($prefix, stringify!($name)), $module::$name as u64),)+)+
        ];
    };
}

constants! {
    /// Versions, and sizes that do not change.
    protocol: u32 = "FUSE_" {
        /// Major version.
        KERNEL_VERSION = 7;
        /// The minor version that this crate knows, of Linux 6.18.
        KERNEL_MINOR_VERSION = 45;
        /// The root's inode.
        ROOT_ID = 1;
        /// A buffer for requests over `/dev/fuse` is at least this large.
        MIN_READ_BUFFER = 8192;
        /// The place of a request's header in an entry of a ring.
        URING_IN_OUT_HEADER_SZ = 128;
        /// The place of an operation's argument in an entry of a ring.
        URING_OP_IN_OUT_SZ = 128;
    }

    /// Operations: `opcode` of a request.
    opcode: u32 = "FUSE_" {
        /// Find a name in a directory.
        LOOKUP = 1;
        /// Lookups of an inode end. No reply.
        FORGET = 2;
        /// Tell attributes.
        GETATTR = 3;
        /// Change attributes.
        SETATTR = 4;
        /// Tell a symbolic link's target.
        READLINK = 5;
        /// Make a symbolic link.
        SYMLINK = 6;
        /// Make a file, device, socket or FIFO.
        MKNOD = 8;
        /// Make a directory.
        MKDIR = 9;
        /// Remove a name that is no directory's.
        UNLINK = 10;
        /// Remove a directory.
        RMDIR = 11;
        /// Give a name to another inode, or take it elsewhere.
        RENAME = 12;
        /// Make a hard link.
        LINK = 13;
        /// Open a file.
        OPEN = 14;
        /// Read of a file.
        READ = 15;
        /// Write to a file.
        WRITE = 16;
        /// Tell room.
        STATFS = 17;
        /// The last descriptor of an opened file is gone.
        RELEASE = 18;
        /// Make a file durable.
        FSYNC = 20;
        /// Set an extended attribute.
        SETXATTR = 21;
        /// Tell an extended attribute.
        GETXATTR = 22;
        /// Tell the names of extended attributes.
        LISTXATTR = 23;
        /// Remove an extended attribute.
        REMOVEXATTR = 24;
        /// A descriptor of a file was closed.
        FLUSH = 25;
        /// The first request: versions and flags.
        INIT = 26;
        /// Open a directory.
        OPENDIR = 27;
        /// Tell entries of a directory.
        READDIR = 28;
        /// An opened directory is gone.
        RELEASEDIR = 29;
        /// Make a directory durable.
        FSYNCDIR = 30;
        /// Tell who has a lock.
        GETLK = 31;
        /// Take a lock, or fail.
        SETLK = 32;
        /// Take a lock, and wait for it.
        SETLKW = 33;
        /// Tell whether an access is allowed.
        ACCESS = 34;
        /// Make and open a file.
        CREATE = 35;
        /// The caller of a request has a signal. No reply.
        INTERRUPT = 36;
        /// Tell a file's block on the device.
        BMAP = 37;
        /// The last request.
        DESTROY = 38;
        /// ioctl(2).
        IOCTL = 39;
        /// poll(2).
        POLL = 40;
        /// The answer to a notification. No reply.
        NOTIFY_REPLY = 41;
        /// As FORGET, of several inodes. No reply.
        BATCH_FORGET = 42;
        /// fallocate(2).
        FALLOCATE = 43;
        /// As READDIR, with a lookup of each entry.
        READDIRPLUS = 44;
        /// As RENAME, with the flags of renameat2(2).
        RENAME2 = 45;
        /// Find data or holes.
        LSEEK = 46;
        /// copy_file_range(2); the reply has 32 bits.
        COPY_FILE_RANGE = 47;
        /// syncfs(2).
        SYNCFS = 50;
        /// Make and open a file without a name.
        TMPFILE = 51;
        /// statx(2).
        STATX = 52;
        /// copy_file_range(2); the reply has 64 bits.
        COPY_FILE_RANGE_64 = 53;
    }

    /// Notifications: the code in `error` of a header whose `unique` is 0.
    notify: u32 = "FUSE_NOTIFY_" {
        /// An inode's attributes or data have changed.
        INVAL_INODE = 2;
        /// A name has changed.
        INVAL_ENTRY = 3;
        /// Data for the cache.
        STORE = 4;
        /// A name was deleted.
        DELETE = 6;
        /// All names may have changed.
        INC_EPOCH = 8;
    }

    /// Abilities of kernel and server: `flags` (bits 0 to 31) and `flags2` (bits 32 to 63) of INIT.
    init: u64 = "FUSE_" {
        /// Several reads of a file at once.
        ASYNC_READ = 1 << 0;
        /// GETLK, SETLK and SETLKW for fcntl(2); without it the kernel keeps these locks.
        POSIX_LOCKS = 1 << 1;
        /// OPEN has `O_TRUNC`; without it a SETATTR follows.
        ATOMIC_O_TRUNC = 1 << 3;
        /// LOOKUP finds `.` and `..`.
        EXPORT_SUPPORT = 1 << 4;
        /// Writes over 4 KiB.
        BIG_WRITES = 1 << 5;
        /// The server applies the umask.
        DONT_MASK = 1 << 6;
        /// SETLK and SETLKW for flock(2); without it the kernel keeps these locks.
        FLOCK_LOCKS = 1 << 10;
        /// IOCTL of directories.
        HAS_IOCTL_DIR = 1 << 11;
        /// The kernel forgets data when it sees another mtime or size.
        AUTO_INVAL_DATA = 1 << 12;
        /// READDIRPLUS.
        DO_READDIRPLUS = 1 << 13;
        /// READDIRPLUS where it pays.
        READDIRPLUS_AUTO = 1 << 14;
        /// Direct reads and writes in parts at once.
        ASYNC_DIO = 1 << 15;
        /// Writes stay in the cache until later.
        WRITEBACK_CACHE = 1 << 16;
        /// After ENOSYS to OPEN the kernel opens without asking.
        NO_OPEN_SUPPORT = 1 << 17;
        /// Lookups and listings of a directory at once.
        PARALLEL_DIROPS = 1 << 18;
        /// The kernel keeps and checks ACLs; the server stores them.
        POSIX_ACL = 1 << 20;
        /// A read of the device tells an abort by ECONNABORTED.
        ABORT_ERROR = 1 << 21;
        /// `max_pages` counts.
        MAX_PAGES = 1 << 22;
        /// Targets of symbolic links are cached.
        CACHE_SYMLINKS = 1 << 23;
        /// After ENOSYS to OPENDIR the kernel opens directories without asking.
        NO_OPENDIR_SUPPORT = 1 << 24;
        /// The kernel forgets data only if it is told to.
        EXPLICIT_INVAL_DATA = 1 << 25;
        /// The server removes set-user-ID and set-group-ID bits, and capabilities, where Linux does.
        HANDLE_KILLPRIV_V2 = 1 << 28;
        /// SETXATTR has flags.
        SETXATTR_EXT = 1 << 29;
        /// `flags2` counts.
        INIT_EXT = 1 << 30;
        /// A name can be made to expire.
        HAS_EXPIRE_ONLY = 1 << 35;
        /// Shared mappings of files that are opened for direct access.
        DIRECT_IO_ALLOW_MMAP = 1 << 36;
        /// Requests over io_uring.
        OVER_IO_URING = 1 << 41;
    }

    /// `valid` of SETATTR.
    fattr: u32 = "FATTR_" {
        /// `mode` counts.
        MODE = 1 << 0;
        /// `uid` counts.
        UID = 1 << 1;
        /// `gid` counts.
        GID = 1 << 2;
        /// `size` counts.
        SIZE = 1 << 3;
        /// `atime` counts.
        ATIME = 1 << 4;
        /// `mtime` counts.
        MTIME = 1 << 5;
        /// `fh` counts.
        FH = 1 << 6;
        /// The time of access becomes the present.
        ATIME_NOW = 1 << 7;
        /// The time of change becomes the present.
        MTIME_NOW = 1 << 8;
        /// `lock_owner` counts.
        LOCKOWNER = 1 << 9;
        /// `ctime` counts.
        CTIME = 1 << 10;
        /// Set-user-ID and set-group-ID bits go (HANDLE_KILLPRIV_V2).
        KILL_SUIDGID = 1 << 11;
    }

    /// `open_flags` of a reply to OPEN, OPENDIR and CREATE.
    fopen: u32 = "FOPEN_" {
        /// Past the page cache.
        DIRECT_IO = 1 << 0;
        /// Cached data of the file stay.
        KEEP_CACHE = 1 << 1;
        /// No lseek(2).
        NONSEEKABLE = 1 << 2;
        /// Entries of the directory are cached.
        CACHE_DIR = 1 << 3;
        /// No position at all.
        STREAM = 1 << 4;
        /// close(2) sends no FLUSH.
        NOFLUSH = 1 << 5;
        /// Direct writes to one file at once.
        PARALLEL_DIRECT_WRITES = 1 << 6;
    }

    /// `open_flags` of an argument of OPEN and CREATE.
    open: u32 = "FUSE_OPEN_" {
        /// `O_TRUNC` removes set-user-ID and set-group-ID bits.
        KILL_SUIDGID = 1 << 0;
    }

    /// `write_flags`.
    write: u32 = "FUSE_WRITE_" {
        /// Of the cache: the handle is any of the inode's.
        CACHE = 1 << 0;
        /// `lock_owner` counts.
        LOCKOWNER = 1 << 1;
        /// Set-user-ID and set-group-ID bits go.
        KILL_SUIDGID = 1 << 2;
    }

    /// `getattr_flags`.
    getattr: u32 = "FUSE_GETATTR_" {
        /// `fh` counts.
        FH = 1 << 0;
    }

    /// `release_flags`.
    release: u32 = "FUSE_RELEASE_" {
        /// Locks of `lock_owner` go.
        FLUSH = 1 << 0;
        /// Locks of flock(2) go.
        FLOCK_UNLOCK = 1 << 1;
    }

    /// `fsync_flags`.
    fsync: u32 = "FUSE_FSYNC_" {
        /// Data, and what is needed to read them.
        FDATASYNC = 1 << 0;
    }

    /// `lk_flags`.
    lock: u32 = "FUSE_LK_" {
        /// A lock of flock(2).
        FLOCK = 1 << 0;
    }

    /// `setxattr_flags`.
    setxattr: u32 = "FUSE_SETXATTR_" {
        /// The set-group-ID bit goes.
        ACL_KILL_SGID = 1 << 0;
    }

    /// `flags` of a notification of a name.
    expire: u32 = "FUSE_" {
        /// The name is looked up again, and a mount on it stays.
        EXPIRE_ONLY = 1 << 0;
    }

    /// `cmd_op` of entries of the submission queue.
    uring: u32 = "FUSE_IO_URING_CMD_" {
        /// Give the kernel an entry's buffers, and wait for a request.
        REGISTER = 1;
        /// Reply, and wait for the next request.
        COMMIT_AND_FETCH = 2;
    }
}
