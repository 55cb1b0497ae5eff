//! Sockets at which others ask this process. A thread answers one asker after the other, until another process is to answer at the same
//! sockets. That one answers whoever has come meanwhile. An asker that has asked nothing yet is cut off, and asks again.
//!
//! Nobody waits for an asker who says nothing.

use crate::deaf::spawn_deaf;
use crate::sync::{Arc, Futex, Mutex, PoisonError};
use base::{Duration, Instant};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, ioctl_fionbio};
use rustix::net::{SocketFlags, accept_with};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Between two attempts to answer if the system refuses, as when there is no descriptor left.
const REFUSED_NS: u64 = 200_000_000;
/// An asker that says nothing for so long is let go, and earlier if so many say nothing.
const SILENCE_MAX: Duration = Duration::from_secs(2);
const SILENT_MAX: usize = 128;
/// Between two looks for those.
const LOOK_EVERY: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 500_000_000,
};

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
        let mut silent: Vec<(OwnedFd, Instant)> = Vec::new();
        loop {
            let askers = silent.iter().map(|(asker, _)| asker);
            let all = self.sockets.iter().chain(askers);
            let mut asked: Vec<_> = all.map(|it| PollFd::new(it, PollFlags::IN)).collect();
            let polled = poll(&mut asked, Some(&LOOK_EVERY).filter(|_| !silent.is_empty()));
            let speaks: Vec<bool> = asked.iter().map(|it| !it.revents().is_empty()).collect();
            let is_open = self.is_open.lock().unwrap_or_else(PoisonError::into_inner);
            if !*is_open {
                return;
            }
            let mut speaks = speaks.into_iter().skip(self.sockets.len());
            let spoken = silent.extract_if(.., |_| speaks.next().unwrap_or(false));
            spoken.for_each(|(asker, _)| answer(asker));
            silent.retain(|(_, since)| os::now().since(*since) < SILENCE_MAX);
            let is_refused = polled.is_err() | self.accept(&mut silent);
            drop(is_open);
            if is_refused {
                Futex::new().wait(0, Some(REFUSED_NS));
            }
        }
    }

    /// Takes who has come; true if the system refuses.
    fn accept(&self, silent: &mut Vec<(OwnedFd, Instant)>) -> bool {
        let mut is_refused = false;
        for socket in &self.sockets {
            loop {
                match accept_with(socket, SocketFlags::CLOEXEC) {
                    Ok(asker) => silent.push((asker, os::now())),
                    Err(Errno::INTR | Errno::CONNABORTED) => {}
                    Err(Errno::AGAIN) => break,
                    Err(_) => {
                        is_refused = true;
                        break;
                    }
                }
                if silent.len() > SILENT_MAX {
                    silent.remove(0);
                    break;
                }
            }
        }
        if is_refused && !silent.is_empty() {
            silent.remove(0);
        }
        is_refused
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
        let say = |word: &'static [u8]| {
            move |asker| {
                let mut asker = UnixStream::from(asker);
                asker
                    .read_exact(&mut [0])
                    .and_then(|()| asker.write_all(word))
                    .expect("it waits");
            }
        };
        let come = || UnixStream::connect_addr(&address).expect("somebody listens");
        let ask = || {
            let mut asker = come();
            asker.write_all(b"?").expect("it goes on");
            asker
        };
        let told = |mut asker: UnixStream| {
            let mut word = String::new();
            asker.read_to_string(&mut word).expect("an answer");
            word
        };
        let first = Desk::open("first", vec![listener.into()], say(b"first")).expect("a thread");
        let silent: Vec<UnixStream> = (0..2 * SILENT_MAX).map(|_| come()).collect();
        assert_eq!(told(ask()), "first", "nobody waits for who is silent");
        drop(silent);
        first.close();
        let asker = ask();
        let _second = Desk::open("second", vec![again], say(b"second")).expect("a thread");
        assert_eq!(told(asker), "second");
    }
}
