//! Connections of one thread, whoever carries their bytes.

use crate::lane::Bell;
use std::io;
use std::time::Duration;

/// Something has happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum News {
    /// A connection has come.
    Open(u32),
    /// Reads or writes of a connection may do more than before. It is told once: read and write until the call would wait.
    Ready(u32),
}

/// Connections of one thread. A connection's number is used again after it was closed.
pub trait Transport {
    /// Waits until there is news, the bell has rung, or the limit is over. It may return earlier.
    ///
    /// # Errors
    /// No connection can be used any more.
    fn wait(&mut self, limit: Duration, bell: &Bell) -> io::Result<()>;

    /// The next news.
    fn next(&mut self) -> Option<News>;

    /// Adds what has come to the end of `bytes`, `wanted` bytes of it at most. 0: the peer sends no more. The flag is true if there may be
    /// more.
    ///
    /// # Errors
    /// `WouldBlock`, or the connection is over.
    fn read(&mut self, connection: u32, bytes: &mut Vec<u8>, wanted: usize) -> io::Result<(usize, bool)>;

    /// Takes bytes from the begin of `bytes`; answers how many.
    ///
    /// # Errors
    /// `WouldBlock`, or the connection is over.
    fn write(&mut self, connection: u32, bytes: &[u8]) -> io::Result<usize>;

    /// Ends a connection.
    fn close(&mut self, connection: u32);

    /// Sends what was written, if writing alone does not.
    ///
    /// # Errors
    /// No connection can be used any more.
    fn push(&mut self) -> io::Result<()> {
        Ok(())
    }
}
