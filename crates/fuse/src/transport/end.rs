//! Why a session is over.

use rustix::io::Errno;

/// Why a session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The mount is gone.
    Unmounted,
    /// Somebody has ended the connection (`/sys/fs/fuse/connections`).
    Aborted,
    /// [`Session::stop`](super::Session::stop).
    Stopped,
    /// The kernel refused to go on.
    Failed(Errno),
    /// A thread of the session panicked.
    Panicked,
}

impl End {
    /// Of the ends of a session's threads the largest says why: the others ended because of it.
    pub(crate) fn rank(self) -> u8 {
        match self {
            End::Stopped => 0,
            End::Unmounted => 1,
            End::Aborted => 2,
            End::Failed(_) => 3,
            End::Panicked => 4,
        }
    }

    /// What an error of the device or of a ring's command means.
    pub(crate) fn of(errno: Errno) -> Self {
        match errno {
            // ENOTCONN and ECANCELED are what commands of a ring end with.
            Errno::NODEV | Errno::NOTCONN | Errno::CANCELED => End::Unmounted,
            Errno::CONNABORTED => End::Aborted,
            errno => End::Failed(errno),
        }
    }
}
