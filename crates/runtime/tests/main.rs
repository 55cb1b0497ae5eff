//! Cores with real sockets and real media.

mod common;
mod core;
mod events;
mod moving;
mod nbd;
mod stream;
mod target;
