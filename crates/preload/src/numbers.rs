//! Numbers of descriptors. If the hard limit leaves none above the program's, the library's descriptors take some of the program's. The
//! program gets them when it needs them.

use crate::net;
use crate::over::end;
use crate::real;
use crate::state::{FOLLOWED, inside, present, set_errno};
use area::files::{FileId, Journal};
use area::own;
use libc::{c_int, c_uint, sockaddr, socklen_t};
use std::io;
use std::sync::atomic::Ordering;

/// Closes our descriptors of files that were given up. A thread that still takes one for followed writes and syncs by the program's.
pub(crate) fn let_go(journal: &Journal) -> io::Result<()> {
    for place in &FOLLOWED {
        let value = place.swap(0, Ordering::Relaxed);
        if value != 0 {
            journal.close_file(FileId(value >> 1));
        }
    }
    // Those of directories go with a checkpoint.
    journal.sync_all()
}

/// Makes a descriptor by `make`. If the program has no number left, and the library has some of the program's, the program gets them.
pub(crate) fn numbered<R: PartialEq>(refused: R, make: impl Fn() -> R) -> R {
    let made = make();
    if made != refused || io::Error::last_os_error().raw_os_error() != Some(libc::EMFILE) {
        return made;
    }
    match present().filter(|_| own::takes_numbers()) {
        None => made,
        Some(journal) => {
            let given = inside(|| {
                let why = "the program needs all descriptors of its hard limit (`ulimit -Hn`)";
                end(Some(journal), why).and_then(|()| let_go(journal))
            });
            // A failure is kept, and told to whoever syncs next.
            given.is_ok().then(&make).unwrap_or_else(|| {
                set_errno(libc::EMFILE);
                made
            })
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn socket(domain: c_int, kind: c_int, protocol: c_int) -> c_int {
    // SAFETY: the caller's arguments.
    let made = numbered(-1, || unsafe { real::socket(domain, kind, protocol) });
    net::open::opened(made, domain, kind, protocol);
    made
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept(fd: c_int, address: *mut sockaddr, bytes: *mut socklen_t) -> c_int {
    // SAFETY: the caller's arguments.
    numbered(-1, || unsafe {
        let served = net::open::accept(fd, address, bytes, 0);
        served.unwrap_or_else(|| net::open::accept_by_kernel(fd, address, bytes, 0))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn accept4(
    fd: c_int,
    address: *mut sockaddr,
    bytes: *mut socklen_t,
    flags: c_int,
) -> c_int {
    // SAFETY: the caller's arguments.
    numbered(-1, || unsafe {
        let served = net::open::accept(fd, address, bytes, flags);
        served.unwrap_or_else(|| net::open::accept_by_kernel(fd, address, bytes, flags))
    })
}

macro_rules! numbers {
    ($($name:ident($($argument:ident: $type:ty),*);)*) => {$(
        #[unsafe(no_mangle)]
        pub unsafe extern "C-unwind" fn $name($($argument: $type),*) -> c_int {
            // SAFETY: the caller's arguments.
            numbered(-1, || unsafe { real::$name($($argument),*) })
        }
    )*};
}

numbers! {
    socketpair(domain: c_int, kind: c_int, protocol: c_int, fds: *mut c_int);
    pipe(fds: *mut c_int);
    pipe2(fds: *mut c_int, flags: c_int);
    epoll_create1(flags: c_int);
    eventfd(count: c_uint, flags: c_int);
}
