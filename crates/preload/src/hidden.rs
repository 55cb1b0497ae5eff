//! Changes that the library does not see as they happen: asynchronous I/O, clones, and system calls past the C library. The
//! library gives a file up before such a change.

use crate::write::give_up;
use crate::{
    answer, attributes, descriptors, exec, filters, fs, handlers, inside, net, present, real, rings, sync,
    write,
};
use libc::{aiocb, c_int, c_long, c_uint, c_ulong, c_void, sigevent, ssize_t};
use std::{io, slice};

/// File descriptors of requests to write.
unsafe fn give_up_list(list: *const *mut aiocb, count: c_int) -> io::Result<()> {
    if list.is_null() || count <= 0 {
        return Ok(());
    }
    // SAFETY: the program's list.
    let list = unsafe { slice::from_raw_parts(list, count as usize) };
    list.iter().try_for_each(|request| {
        // SAFETY: null, or the program's request.
        let request = unsafe { request.as_ref() };
        request.map_or(Ok(()), |it| give_up(it.aio_fildes))
    })
}

macro_rules! asynchronous {
    ($($write:ident, $fsync:ident, $list:ident;)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $write(request: *mut aiocb) -> c_int {
            // SAFETY: the caller's arguments.
            answer(unsafe { give_up_list(&request, 1).map(|()| real::$write(request)) })
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $fsync(operation: c_int, request: *mut aiocb) -> c_int {
            // SAFETY: the caller's arguments.
            answer(unsafe { give_up_list(&request, 1).map(|()| real::$fsync(operation, request)) })
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $list(
            mode: c_int,
            list: *const *mut aiocb,
            count: c_int,
            event: *mut sigevent,
        ) -> c_int {
            // SAFETY: the caller's arguments.
            answer(unsafe { give_up_list(list, count).map(|()| real::$list(mode, list, count, event)) })
        }
    )*};
}

asynchronous! {
    aio_write, aio_fsync, lio_listio;
    aio_write64, aio_fsync64, lio_listio64;
}

/// A request of the kernel's asynchronous I/O (linux/aio_abi.h), as far as it is looked at.
#[repr(C)]
struct Iocb {
    data: u64,
    key: u32,
    flags: i32,
    operation: u16,
    priority: i16,
    fd: u32,
}

/// Gives up the files of such requests, of which some may write.
unsafe fn give_up_requests(count: c_long, requests: *const *const Iocb) -> io::Result<()> {
    if requests.is_null() || count <= 0 {
        return Ok(());
    }
    // SAFETY: the program's list.
    let requests = unsafe { slice::from_raw_parts(requests, count as usize) };
    requests.iter().try_for_each(|request| {
        // SAFETY: null, or the program's request.
        let request = unsafe { request.as_ref() };
        request.map_or(Ok(()), |it| give_up(it.fd as c_int))
    })
}

/// Of libaio, which answers with the negative error number.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn io_submit(
    context: *mut c_void,
    count: c_long,
    requests: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's arguments.
    unsafe {
        match give_up_requests(count, requests.cast_const().cast()) {
            Ok(()) => real::io_submit(context, count, requests),
            Err(_) => -libc::EIO,
        }
    }
}

/// `struct file_dedupe_range` and its parts (linux/fs.h).
#[repr(C)]
struct Ranges {
    offset: u64,
    length: u64,
    count: u16,
    reserved: [u16; 3],
}

#[repr(C)]
struct Range {
    fd: i64,
    rest: [u64; 3],
}

/// The C library's is variadic: the argument, if any, is a word. Only clones change a file's data. Some requests change its attributes, which
/// the log has not.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn ioctl(fd: c_int, request: c_ulong, argument: *mut c_void) -> c_int {
    const FICLONE: c_ulong = 0x4004_9409;
    const FICLONERANGE: c_ulong = 0x4020_940d;
    const FIDEDUPERANGE: c_ulong = 0xc018_9436;
    const FS_IOC_SETFLAGS: c_ulong = 0x4008_6602;
    const FS_IOC_SETFLAGS_OF_32_BITS: c_ulong = 0x4004_6602;
    const FS_IOC_FSSETXATTR: c_ulong = 0x401c_5820;
    if let Some(result) = fs::leave::ioctl(fd, request) {
        return result;
    }
    // SAFETY: the caller's arguments.
    if let Some(result) = unsafe { net::options::ioctl(fd, request, argument) } {
        return result;
    }
    let prepared = match request {
        FICLONE | FICLONERANGE => fs::leave(argument as c_int).and_then(|()| give_up(fd)),
        FIDEDUPERANGE if !argument.is_null() => {
            // SAFETY: the program's ranges, which follow their count.
            let ranges = unsafe {
                let head = argument.cast::<Ranges>();
                slice::from_raw_parts(head.add(1).cast::<Range>(), usize::from((*head).count))
            };
            ranges.iter().try_for_each(|range| give_up(range.fd as c_int))
        }
        _ => Ok(()),
    };
    // SAFETY: the caller's arguments.
    let result = answer(prepared.map(|()| unsafe { real::ioctl(fd, request, argument) }));
    match request {
        FS_IOC_SETFLAGS | FS_IOC_SETFLAGS_OF_32_BITS | FS_IOC_FSSETXATTR => attributes::touched(fd, result),
        _ => result,
    }
}

/// Gives up the files whose descriptors a message takes to other processes (SCM_RIGHTS).
unsafe fn give_up_message(message: *const libc::msghdr) -> io::Result<()> {
    // SAFETY: null, or the program's message, whose control part is as long as it says.
    unsafe {
        if message.is_null() || (*message).msg_controllen == 0 {
            return Ok(());
        }
        let mut part = libc::CMSG_FIRSTHDR(message);
        while let Some(head) = part.as_ref() {
            if (head.cmsg_level, head.cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = head.cmsg_len.saturating_sub(libc::CMSG_LEN(0) as usize);
                let fds = libc::CMSG_DATA(part).cast::<c_int>();
                for index in 0..bytes / size_of::<c_int>() {
                    give_up(fds.add(index).read_unaligned())?;
                }
            }
            part = libc::CMSG_NXTHDR(message, part);
        }
    }
    Ok(())
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmsg(
    socket: c_int,
    message: *const libc::msghdr,
    flags: c_int,
) -> ssize_t {
    // SAFETY: the caller's arguments.
    if let Some(result) = unsafe { net::data::send_message(socket, message, flags) } {
        return result;
    }
    // SAFETY: the caller's arguments.
    let sent = unsafe { give_up_message(message).map(|()| real::sendmsg(socket, message, flags) as i64) };
    answer(sent) as ssize_t
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn sendmmsg(
    socket: c_int,
    messages: *mut libc::mmsghdr,
    count: c_uint,
    flags: c_int,
) -> c_int {
    if !messages.is_null() && count > 0 {
        // SAFETY: one of the program's messages.
        let sent = unsafe { net::data::send_message(socket, &raw const (*messages).msg_hdr, flags) };
        if let Some(sent) = sent {
            // SAFETY: as above.
            unsafe { (*messages).msg_len = sent.max(0) as c_uint };
            return if sent < 0 { -1 } else { 1 };
        }
    }
    let give_up = |index: c_uint| {
        // SAFETY: one of the program's messages.
        unsafe { give_up_message(&raw const (*messages.add(index as usize)).msg_hdr) }
    };
    let prepared = match messages.is_null() {
        true => Ok(()),
        false => (0..count).try_for_each(give_up),
    };
    // SAFETY: the caller's arguments.
    answer(prepared.map(|()| unsafe { real::sendmmsg(socket, messages, count, flags) }))
}

/// Operations of seccomp(2).
const SECCOMP_STRICT: c_long = libc::SECCOMP_SET_MODE_STRICT as c_long;
const SECCOMP_FILTER: c_long = libc::SECCOMP_SET_MODE_FILTER as c_long;

/// System calls by their number. The usual ones that change or sync files are as those of the C library.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn syscall(
    number: c_long,
    a: c_long,
    b: c_long,
    c: c_long,
    d: c_long,
    e: c_long,
    f: c_long,
) -> c_long {
    // SAFETY: the caller's arguments.
    unsafe {
        let make = || real::syscall(number, a, b, c, d, e, f);
        let fd = a as c_int;
        let prepared = match number {
            libc::SYS_write => return write::write(fd, b as *const c_void, c as usize) as c_long,
            libc::SYS_pwrite64 => return write::pwrite(fd, b as *const c_void, c as usize, d) as c_long,
            libc::SYS_fsync => return c_long::from(sync::fsync(fd)),
            libc::SYS_fdatasync => return c_long::from(sync::fdatasync(fd)),
            libc::SYS_ftruncate => return c_long::from(write::ftruncate(fd, b)),
            libc::SYS_close => return c_long::from(descriptors::close(fd)),
            libc::SYS_close_range => {
                return c_long::from(descriptors::close_range(a as c_uint, b as c_uint, c as c_int));
            }
            #[cfg(target_arch = "x86_64")]
            libc::SYS_dup2 => return c_long::from(descriptors::dup2(fd, b as c_int)),
            libc::SYS_dup3 => return c_long::from(descriptors::dup3(fd, b as c_int, c as c_int)),
            libc::SYS_execve => {
                let values = |word: c_long| word as *const *const libc::c_char;
                return c_long::from(exec::execve(a as *const libc::c_char, values(b), values(c)));
            }
            libc::SYS_ioctl => return c_long::from(ioctl(fd, b as c_ulong, c as *mut c_void)),
            libc::SYS_prctl => {
                let [b, c, d, e] = [b, c, d, e].map(|word| word as c_ulong);
                return c_long::from(filters::prctl(a as c_int, b, c, d, e));
            }
            libc::SYS_seccomp if a == SECCOMP_STRICT || (a == SECCOMP_FILTER && c != 0) => {
                filters::before_filter()
            }
            libc::SYS_rt_sigaction => match handlers::by_system_call([a, b, c, d, e, f]) {
                Some(result) => return result,
                None => Ok(()),
            },
            libc::SYS_io_uring_setup => made_ring(),
            libc::SYS_io_submit => give_up_requests(b, c as *const *const Iocb),
            libc::SYS_writev | libc::SYS_pwritev | libc::SYS_pwritev2 | libc::SYS_fallocate => give_up(fd),
            libc::SYS_sendfile => give_up(fd),
            libc::SYS_splice | libc::SYS_copy_file_range => give_up(c as c_int),
            _ if !fs::is_on() => return make(),
            _ => Ok(()),
        };
        let prepared = prepared.and_then(|()| fs::leave::before_syscall(number, [a, b, c, d, e, f]));
        answer(prepared.map(|()| make()))
    }
}

fn made_ring() -> io::Result<()> {
    match crate::is_passive() {
        // It is the library's own, or nothing is followed.
        true => Ok(()),
        false => {
            fs::end();
            let journal = present();
            inside(|| rings::made(journal))
        }
    }
}

/// Of liburing, which calls the kernel itself, and answers with the negative error number.
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn io_uring_setup(entries: c_uint, parameters: *mut c_void) -> c_int {
    match made_ring() {
        // SAFETY: the caller's arguments.
        Ok(()) => unsafe { real::io_uring_setup(entries, parameters) },
        Err(_) => -libc::EIO,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn io_uring_queue_init(
    entries: c_uint,
    ring: *mut c_void,
    flags: c_uint,
) -> c_int {
    match made_ring() {
        // SAFETY: the caller's arguments.
        Ok(()) => unsafe { real::io_uring_queue_init(entries, ring, flags) },
        Err(_) => -libc::EIO,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn io_uring_queue_init_params(
    entries: c_uint,
    ring: *mut c_void,
    parameters: *mut c_void,
) -> c_int {
    match made_ring() {
        // SAFETY: the caller's arguments.
        Ok(()) => unsafe { real::io_uring_queue_init_params(entries, ring, parameters) },
        Err(_) => -libc::EIO,
    }
}
