//! The kernel's structures, field for field: `include/uapi/linux/fuse.h` of protocol 7.45 (Linux 6.18).
//!
//! `tests/abi.rs` compares every size and every offset with the table `tests/abi/layout.txt`, which was made from that header, and
//! with the header of the machine.

use super::plain::{Field, Layout, Plain, layouts};

layouts! {
    /// An inode's attributes. Times are seconds since 1970 with nanoseconds beside, `blocks` are of 512 bytes.
    Attr = "fuse_attr" {
        ino: u64,
        size: u64,
        blocks: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        blksize: u32,
        flags: u32,
    }
    /// A time of statx(2).
    SxTime = "fuse_sx_time" {
        tv_sec: i64,
        tv_nsec: u32,
        reserved as "__reserved": i32,
    }
    /// An inode's attributes as statx(2) has them.
    Statx = "fuse_statx" {
        mask: u32,
        blksize: u32,
        attributes: u64,
        nlink: u32,
        uid: u32,
        gid: u32,
        mode: u16,
        spare0 as "__spare0": [u16; 1],
        ino: u64,
        size: u64,
        blocks: u64,
        attributes_mask: u64,
        atime: SxTime,
        btime: SxTime,
        ctime: SxTime,
        mtime: SxTime,
        rdev_major: u32,
        rdev_minor: u32,
        dev_major: u32,
        dev_minor: u32,
        spare2 as "__spare2": [u64; 14],
    }
    /// The answer of statfs(2).
    Kstatfs = "fuse_kstatfs" {
        blocks: u64,
        bfree: u64,
        bavail: u64,
        files: u64,
        ffree: u64,
        bsize: u32,
        namelen: u32,
        frsize: u32,
        padding: u32,
        spare: [u32; 6],
    }
    /// A lock: bytes `start` to `end` inclusive, `kind` is `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    FileLock = "fuse_file_lock" {
        start: u64,
        end: u64,
        kind as "type": u32,
        pid: u32,
    }
    /// A name's inode. `nodeid` 0 is a negative entry: the kernel remembers for `entry_valid` that there is none.
    EntryOut = "fuse_entry_out" {
        nodeid: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_nsec: u32,
        attr_valid_nsec: u32,
        attr: Attr,
    }
    /// How many lookups of an inode the kernel forgets.
    ForgetIn = "fuse_forget_in" {
        nlookup: u64,
    }
    /// An inode of a batch, and how many of its lookups the kernel forgets.
    ForgetOne = "fuse_forget_one" {
        nodeid: u64,
        nlookup: u64,
    }
    /// How many [`ForgetOne`] follow.
    BatchForgetIn = "fuse_batch_forget_in" {
        count: u32,
        dummy: u32,
    }
    /// Argument of GETATTR.
    GetattrIn = "fuse_getattr_in" {
        getattr_flags: u32,
        dummy: u32,
        fh: u64,
    }
    /// Reply to GETATTR and SETATTR: attributes, and for how long the kernel may keep them.
    AttrOut = "fuse_attr_out" {
        attr_valid: u64,
        attr_valid_nsec: u32,
        dummy: u32,
        attr: Attr,
    }
    /// Argument of STATX.
    StatxIn = "fuse_statx_in" {
        getattr_flags: u32,
        reserved: u32,
        fh: u64,
        sx_flags: u32,
        sx_mask: u32,
    }
    /// Reply to STATX.
    StatxOut = "fuse_statx_out" {
        attr_valid: u64,
        attr_valid_nsec: u32,
        flags: u32,
        spare: [u64; 2],
        stat: Statx,
    }
    /// Argument of MKNOD; the name follows.
    MknodIn = "fuse_mknod_in" {
        mode: u32,
        rdev: u32,
        umask: u32,
        padding: u32,
    }
    /// Argument of MKDIR; the name follows.
    MkdirIn = "fuse_mkdir_in" {
        mode: u32,
        umask: u32,
    }
    /// Argument of RENAME; the old and the new name follow.
    RenameIn = "fuse_rename_in" {
        newdir: u64,
    }
    /// Argument of RENAME2; the old and the new name follow.
    Rename2In = "fuse_rename2_in" {
        newdir: u64,
        flags: u32,
        padding: u32,
    }
    /// Argument of LINK; the new name follows.
    LinkIn = "fuse_link_in" {
        oldnodeid: u64,
    }
    /// Argument of SETATTR. `valid` has the `FATTR_` bits of the fields that count.
    SetattrIn = "fuse_setattr_in" {
        valid: u32,
        padding: u32,
        fh: u64,
        size: u64,
        lock_owner: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }
    /// Argument of OPEN and OPENDIR.
    OpenIn = "fuse_open_in" {
        flags: u32,
        open_flags: u32,
    }
    /// Argument of CREATE and TMPFILE; the name follows.
    CreateIn = "fuse_create_in" {
        flags: u32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    }
    /// Reply to OPEN and OPENDIR. `open_flags` are `FOPEN_` bits.
    OpenOut = "fuse_open_out" {
        fh: u64,
        open_flags: u32,
        backing_id: i32,
    }
    /// Argument of RELEASE and RELEASEDIR.
    ReleaseIn = "fuse_release_in" {
        fh: u64,
        flags: u32,
        release_flags: u32,
        lock_owner: u64,
    }
    /// Argument of FLUSH.
    FlushIn = "fuse_flush_in" {
        fh: u64,
        unused: u32,
        padding: u32,
        lock_owner: u64,
    }
    /// Argument of READ, READDIR and READDIRPLUS.
    ReadIn = "fuse_read_in" {
        fh: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    /// Argument of WRITE; `size` bytes follow.
    WriteIn = "fuse_write_in" {
        fh: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }
    /// Reply to WRITE and COPY_FILE_RANGE.
    WriteOut = "fuse_write_out" {
        size: u32,
        padding: u32,
    }
    /// Reply to STATFS.
    StatfsOut = "fuse_statfs_out" {
        st: Kstatfs,
    }
    /// Argument of FSYNC and FSYNCDIR.
    FsyncIn = "fuse_fsync_in" {
        fh: u64,
        fsync_flags: u32,
        padding: u32,
    }
    /// Argument of SETXATTR as of FUSE_SETXATTR_EXT; the name and `size` bytes follow.
    SetxattrIn = "fuse_setxattr_in" {
        size: u32,
        flags: u32,
        setxattr_flags: u32,
        padding: u32,
    }
    /// Argument of GETXATTR and LISTXATTR. With `size` 0 the caller wants the size only.
    GetxattrIn = "fuse_getxattr_in" {
        size: u32,
        padding: u32,
    }
    /// Reply to GETXATTR and LISTXATTR that want the size.
    GetxattrOut = "fuse_getxattr_out" {
        size: u32,
        padding: u32,
    }
    /// Argument of GETLK, SETLK and SETLKW.
    LkIn = "fuse_lk_in" {
        fh: u64,
        owner: u64,
        lk: FileLock,
        lk_flags: u32,
        padding: u32,
    }
    /// Reply to GETLK.
    LkOut = "fuse_lk_out" {
        lk: FileLock,
    }
    /// Argument of ACCESS.
    AccessIn = "fuse_access_in" {
        mask: u32,
        padding: u32,
    }
    /// Argument of INIT.
    InitIn = "fuse_init_in" {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        flags2: u32,
        unused: [u32; 11],
    }
    /// Reply to INIT.
    InitOut = "fuse_init_out" {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        time_gran: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        request_timeout: u16,
        unused: [u16; 11],
    }
    /// Argument of INTERRUPT.
    InterruptIn = "fuse_interrupt_in" {
        unique: u64,
    }
    /// Argument of IOCTL; `in_size` bytes follow.
    IoctlIn = "fuse_ioctl_in" {
        fh: u64,
        flags: u32,
        cmd: u32,
        arg: u64,
        in_size: u32,
        out_size: u32,
    }
    /// Reply to IOCTL; data follow.
    IoctlOut = "fuse_ioctl_out" {
        result: i32,
        flags: u32,
        in_iovs: u32,
        out_iovs: u32,
    }
    /// Argument of POLL.
    PollIn = "fuse_poll_in" {
        fh: u64,
        kh: u64,
        flags: u32,
        events: u32,
    }
    /// Reply to POLL.
    PollOut = "fuse_poll_out" {
        revents: u32,
        padding: u32,
    }
    /// Argument of FALLOCATE.
    FallocateIn = "fuse_fallocate_in" {
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
        padding: u32,
    }
    /// Header of a request. `len` counts the header, too; `total_extlen` is in units of 8 bytes.
    InHeader = "fuse_in_header" {
        len: u32,
        opcode: u32,
        unique: u64,
        nodeid: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        total_extlen: u16,
        padding: u16,
    }
    /// Header of a reply or notification. `error` is 0 or a negative errno; a notification has its code there.
    OutHeader = "fuse_out_header" {
        len: u32,
        error: i32,
        unique: u64,
    }
    /// An entry of a directory; the name and padding to 8 bytes follow.
    Dirent = "fuse_dirent" {
        ino: u64,
        off: u64,
        namelen: u32,
        kind as "type": u32,
    }
    /// The kernel forgets attributes, and data from `off` on: `len` bytes, all if 0 or less; with a negative `off` no data.
    NotifyInvalInodeOut = "fuse_notify_inval_inode_out" {
        ino: u64,
        off: i64,
        len: i64,
    }
    /// The kernel forgets a name; the name and a NUL follow.
    NotifyInvalEntryOut = "fuse_notify_inval_entry_out" {
        parent: u64,
        namelen: u32,
        flags: u32,
    }
    /// A name was deleted; the name and a NUL follow.
    NotifyDeleteOut = "fuse_notify_delete_out" {
        parent: u64,
        child: u64,
        namelen: u32,
        padding: u32,
    }
    /// Data for the kernel's cache; `size` bytes follow.
    NotifyStoreOut = "fuse_notify_store_out" {
        nodeid: u64,
        offset: u64,
        size: u32,
        padding: u32,
    }
    /// Head of NOTIFY_REPLY: data from the kernel's cache follow.
    NotifyRetrieveIn = "fuse_notify_retrieve_in" {
        dummy1: u64,
        offset: u64,
        size: u32,
        dummy2: u32,
        dummy3: u64,
        dummy4: u64,
    }
    /// Argument of LSEEK.
    LseekIn = "fuse_lseek_in" {
        fh: u64,
        offset: u64,
        whence: u32,
        padding: u32,
    }
    /// Reply to LSEEK.
    LseekOut = "fuse_lseek_out" {
        offset: u64,
    }
    /// Argument of COPY_FILE_RANGE and COPY_FILE_RANGE_64.
    CopyFileRangeIn = "fuse_copy_file_range_in" {
        fh_in: u64,
        off_in: u64,
        nodeid_out: u64,
        fh_out: u64,
        off_out: u64,
        len: u64,
        flags: u64,
    }
    /// Reply to COPY_FILE_RANGE_64.
    CopyFileRangeOut = "fuse_copy_file_range_out" {
        bytes_copied: u64,
    }
    /// Argument of SYNCFS.
    SyncfsIn = "fuse_syncfs_in" {
        padding: u64,
    }
    /// The part of a ring's entry beside the request (fuse-io-uring.rst).
    UringEntInOut = "fuse_uring_ent_in_out" {
        flags: u64,
        commit_id: u64,
        payload_sz: u32,
        padding: u32,
        reserved: u64,
    }
    /// Header buffer of an entry of a ring: the request's or reply's header, the operation's argument, and the entry's own.
    UringReqHeader = "fuse_uring_req_header" {
        in_out: [u64; 16],
        op_in: [u64; 16],
        ring_ent_in_out: UringEntInOut,
    }
    /// The command in an entry of the submission queue.
    UringCmdReq = "fuse_uring_cmd_req" {
        flags: u64,
        commit_id: u64,
        qid: u16,
        padding: [u8; 6],
    }
}
