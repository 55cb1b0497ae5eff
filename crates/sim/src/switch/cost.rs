//! Costs of work on a modelled core, in ns. The same for every policy, but for [`change_ns`]: blk-switch has a thread
//! for each class.
//!
//! Processor costs are fitted to what SPDK 26.05's NVMe/TCP target does on one core of a small server, in memory:
//! 470,000 4 KiB reads a second at depth 32 (2.1 µs each), 4.1 GB/s at 128 KiB, and 13 µs for one 4 KiB read at a time
//! with a polling client. The rest is from the literature, as said.

use blockswitch::policy::Order;

/// Receiving and parsing a command.
pub const PARSE_NS: u64 = 700;
/// A slice: submitting, and one call to the socket.
pub const SLICE_NS: u64 = 500;
/// Bytes that a core copies and sends, or receives and copies, in a thousand ns: 4 GB/s.
pub const BYTES_PER_US: u64 = 4_000;
/// Taking up the other class's work where each class has a thread: a switch of threads costs 1 to 2 µs directly (Li,
/// Ding and Shen, ExpCS'07).
pub const THREAD_SWITCH_NS: u64 = 1_500;
/// The same where one thread serves both: three cache lines of another connection at about 100 ns each.
pub const CHANGE_NS: u64 = 300;
/// Hearing of a device's completion, or of data that has come.
pub const READY_NS: u64 = 300;
/// Handing a request to another core, both sides together: four cache lines that move at about 100 ns each, and the
/// bookkeeping.
pub const TAKE_NS: u64 = 600;
/// On its way between two cores.
pub const HANDOFF_NS: u64 = 500;
/// A core without work for this long sleeps,
pub const SLEEP_AFTER_NS: u64 = 50_000;
/// and takes this long to wake up (a futex or eventfd wake-up, with the exit from a shallow idle state).
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

/// Time to take up the other class's work. blk-switch gives each class a kernel thread of its own on every core
/// (`io_work` and `io_work_lat`, the latter in a workqueue of high priority). Linux has one worker for a queue that both
/// classes share; SPDK's reactor and Switchyard's core are one thread.
pub const fn change_ns(order: Order) -> u64 {
    match order {
        Order::Strict => THREAD_SWITCH_NS,
        _ => CHANGE_NS,
    }
}

/// Time to move `bytes` with a core.
pub const fn bytes_ns(bytes: u32) -> u64 {
    bytes as u64 * 1_000 / BYTES_PER_US
}
