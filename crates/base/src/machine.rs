//! The contract of every policy: a deterministic state machine without clock, system call or thread.

use crate::time::Instant;

/// A deterministic state machine driven by a world: the simulator or the runtime.
///
/// After each call of [`handle`](Machine::handle) or [`tick`](Machine::tick) the world drains
/// [`poll`](Machine::poll) to `None`, carries the outputs out, and calls `tick` again no later than
/// [`deadline`](Machine::deadline) (late and spurious calls are harmless).
pub trait Machine {
    /// News from the world.
    type Input;
    /// Requests to the world.
    type Output;
    /// Takes one input: bounded work, never blocks.
    fn handle(&mut self, now: Instant, input: Self::Input);
    /// The next thing to do, `None` when there is nothing more.
    fn poll(&mut self) -> Option<Self::Output>;
    /// When it wants to be ticked, if at all.
    fn deadline(&self) -> Option<Instant>;
    /// Lets time pass; a call before the deadline does nothing.
    fn tick(&mut self, now: Instant);
}
