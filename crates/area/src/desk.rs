//! Sockets at which others ask this process. A thread answers one asker after the other, until another process is to answer at the same
//! sockets. Whoever has come meanwhile is answered by that one.

use crate::deaf::spawn_deaf;
use crate::sync::{Arc, Futex, Mutex, PoisonError};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{SocketFlags, accept_with};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Between two attempts to answer if the system refuses, as when there is no descriptor left.
const REFUSED_NS: u64 = 200_000_000;

/// Sockets that listen, and the thread that answers there.
pub struct Desk(Arc<Shared>);

struct Shared {
    sockets: Vec<OwnedFd>,
    /// Held while somebody is answered.
    is_open: Mutex<bool>,
}

impl Desk {
    /// Answers all who ask at the sockets, in a thread that ends with this process.
    ///
    /// # Errors
    /// If there is no thread.
    pub fn open(
        name: &str,
        sockets: Vec<OwnedFd>,
        answer: impl Fn(OwnedFd) + Send + 'static,
    ) -> io::Result<Self> {
        for socket in &sockets {
            ioctl_fionbio(socket, true)?;
        }
        let shared = Arc::new(Shared {
            sockets,
            is_open: Mutex::new(true),
        });
        let own = Arc::clone(&shared);
        spawn_deaf(name, move || own.serve(answer))?;
        Ok(Self(shared))
    }

    /// Nobody is answered here from now on. Waits for the answer that is under way.
    pub fn close(&self) {
        *self.0.is_open.lock().unwrap_or_else(PoisonError::into_inner) = false;
    }

    /// The sockets.
    pub fn sockets(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.0.sockets.iter().map(AsFd::as_fd)
    }
}

impl Shared {
    fn serve(&self, answer: impl Fn(OwnedFd)) {
        loop {
            let ask = |socket| PollFd::new(socket, PollFlags::IN);
            let mut askers: Vec<_> = self.sockets.iter().map(ask).collect();
            let polled = poll(&mut askers, None);
            let is_open = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
            if !*is_open {
                return;
            }
            let mut is_refused = polled.is_err();
            for socket in &self.sockets {
                match accept_with(socket, SocketFlags::CLOEXEC) {
                    Ok(asker) => answer(asker),
                    Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {}
                    Err(_) => is_refused = true,
                }
            }
            drop(is_open);
            if is_refused {
                Futex::new().wait(0, Some(REFUSED_NS));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    /// Nobody who asks while one process takes the place of another gets lost.
    #[test]
    fn whoever_asks_at_a_closed_desk_is_answered_at_the_next_one() {
        let name = format!("switchyard-desk-test-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).expect("short");
        let listener = UnixListener::bind_addr(&address).expect("free");
        let again = OwnedFd::from(listener.try_clone().expect("a descriptor"));
        let say = |word: &'static [u8]| move |asker| drop(UnixStream::from(asker).write_all(word));
        let ask = || UnixStream::connect_addr(&address).expect("somebody listens");
        let told = |mut asker: UnixStream| {
            let mut word = String::new();
            asker.read_to_string(&mut word).expect("an answer");
            word
        };
        let first = Desk::open("first", vec![listener.into()], say(b"first")).expect("a thread");
        assert_eq!(told(ask()), "first");
        first.close();
        let asker = ask();
        let _second = Desk::open("second", vec![again], say(b"second")).expect("a thread");
        assert_eq!(told(asker), "second");
    }
}
