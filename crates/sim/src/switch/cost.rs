//! What work costs on a modelled core, in ns. The same for every policy.
//!
//! Processor costs are fitted to what SPDK 26.05's NVMe/TCP target does on one core of a small server, in memory:
//! 470,000 4 KiB reads a second at depth 32 (2.1 µs each), 4.1 GB/s at 128 KiB, and 13 µs for one 4 KiB read at a time
//! with a polling client. The rest is from the literature, as said.

/// Receiving and parsing a command.
pub const PARSE_NS: u64 = 700;
/// Beginning a request: its medium is asked, or its answer is put together.
pub const WORK_NS: u64 = 150;
/// Sending: one call to the socket.
pub const SEND_NS: u64 = 350;
/// What an answer takes on the wire besides its data: the header of a data PDU.
pub const ANSWER_BYTES: usize = 24;
/// Bytes that a core copies and sends, or receives and copies, in a thousand ns: 4 GB/s.
pub const BYTES_PER_US: u64 = 4_000;
/// Taking up the other class's work: three cache lines of another connection at about 100 ns each.
pub const CHANGE_NS: u64 = 300;
/// Asking who is ready, and reading where nothing has come: a system call.
pub const LOOK_NS: u64 = 300;
/// Handing a request to another core, both sides together: four cache lines that move at about 100 ns each, and the
/// bookkeeping.
pub const TAKE_NS: u64 = 600;
/// On its way between two cores.
pub const HANDOFF_NS: u64 = 500;
/// A core that sleeps takes this long to wake up (a futex or eventfd wake-up, with the exit from a shallow idle state).
pub const WAKE_NS: u64 = 5_000;
/// From the client's call to the target's core, and back: with the parse, a slice and 4 KiB this makes 13 µs.
pub const ONE_WAY_NS: u64 = 5_000;
/// A client's time between an answer and its next request is uniform between 0 and this. It keeps closed loops from
/// running in step.
pub const THINK_NS_MAX: u64 = 2_000;
/// A read of flash, 4 KiB, in the class of the drives of 2021 (80 µs, a tenth more or less).
pub const SSD_READ_NS: u64 = 80_000;
/// A write of flash: into the drive's buffer.
pub const SSD_WRITE_NS: u64 = 20_000;
/// Largest piece that one flow sends before the next one's turn: network cards take turns among their queues by a few
/// packets.
pub const SEGMENT_BYTES: u32 = 16 << 10;

/// Every piece of work takes up to this much more or less, evenly distributed, so that cores do not run in step. Half or
/// twice as much changes nothing that the tests hold.
pub const SPREAD_PERCENT: u64 = 10;

/// Time to move `bytes` with a core.
pub const fn bytes_ns(bytes: usize) -> u64 {
    bytes as u64 * 1_000 / BYTES_PER_US
}
