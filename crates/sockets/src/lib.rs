//! TCP sockets in a program's own thread: the stack of `tcp`, the rings of its flows, and a link of `nic` for its frames.
//!
//! Nothing runs beside the program. Frames come in, go out, and are acknowledged or sent again while the thread is in
//! [`Sockets::poll`] or [`Sockets::wait`], or in a call that blocks. A thread that stays away longer than a round trip slows its
//! peers down; one that stays away for minutes loses its connections.
//!
//! ```no_run
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! use sockets::{Options, Sockets};
//! use tcp::addr::{Endpoint, Ip, Mac};
//! use tcp::config::Config;
//!
//! let link = nic::tap::open("tap0", 1)?.remove(0);
//! let config = Config::new(Mac([2, 0, 0, 0, 0, 1]), Ip::v4([10, 0, 0, 2]), 24);
//! let mut sockets = Sockets::new(Box::new(link), config, Options::default());
//! let listener = sockets.listen(Endpoint { ip: Ip::ANY, port: 7 }, 128)?;
//! let peer = sockets.wait_accept(listener, None)?;
//! let mut bytes = [0; 4096];
//! loop {
//!     match sockets.wait_receive(peer, &mut bytes, None)? {
//!         0 => break,
//!         count => sockets.wait_send(peer, &bytes[..count], None)?,
//!     }
//! }
//! # Ok(())
//! # }
//! ```

mod blocking;
mod calls;
mod driver;
mod error;
mod handle;
mod looks;
mod rings;
mod socket;

pub use driver::{Options, Parked, Sockets};
pub use error::SocketError;
pub use handle::Handle;
pub use socket::Readiness;
