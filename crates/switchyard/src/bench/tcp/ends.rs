//! The work that every side of the bench does.

/// Bytes of a request and of its answer.
pub const RPC_BYTES: usize = 64;

/// Both ends of some connections.
pub trait Ends {
    /// Sends a request and its answer on each connection.
    fn turn(&mut self) -> anyhow::Result<()>;
}
