//! Durable writes whose writer stays awake, where that is faster: it gives the processor to whoever wants it, but does not
//! sleep.
//!
//! To sleep until a write is done and to be woken can cost as much as a fast device takes. So a thread has a ring of the
//! kernel's of its own, and looks for the completion between calls of `sched_yield`. Where others want the processor that
//! is a loss, as who yields is not woken for what it waits for: then, or when a write does not end within [`WATCH`], the
//! rest of it is slept for. Which way is faster is measured: a thread goes the faster one, and tries the other now and
//! then, staying awake the less often the more often that has lost.

use crate::clock;
use base::Duration;
use io_uring::{IoUring, opcode, types};
use std::cell::RefCell;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

/// Longest time for which a thread stays awake.
const WATCH: Duration = Duration::from_micros(200);
/// Somebody else ran meanwhile, for longer than workers of the kernel do.
const LONG_YIELD: Duration = Duration::from_micros(50);
/// Writes of one way before the other is tried: at first, as long as it pays to stay awake, and at most.
const FIRST: u32 = 8;
const TRIED_AFTER: u32 = 64;
const TRIED_AFTER_MAX: u32 = 4096;
/// Longer writes are slept for.
const BYTES_MAX: usize = 128 << 10;

/// Grows in a forked child: what its parent had is not its own.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Of one thread.
struct Awake {
    /// `None` where the kernel, or who confines us, has no rings.
    ring: Option<IoUring>,
    generation: u32,
    choice: Choice,
}

/// Which way writes go.
#[derive(Debug)]
struct Choice {
    /// Recent means of a write, ns; 0 before the first.
    awake_ns: u64,
    asleep_ns: u64,
    /// Writes until the other way is tried.
    left: u32,
    /// The same after staying awake was tried in vain.
    tried_after: u32,
}

thread_local! {
    static AWAKE: RefCell<Option<Awake>> = const { RefCell::new(None) };
}

/// Writes what it can of `bytes`, durable when it returns; `asleep` does the same by sleeping.
pub(super) fn write(
    file: BorrowedFd<'_>,
    offset: u64,
    bytes: &[u8],
    asleep: impl FnOnce() -> io::Result<usize>,
) -> io::Result<usize> {
    let mut asleep = Some(asleep);
    // A thread that ends may have a last write to make, and nothing of its own any more.
    let outcome = AWAKE.try_with(|awake| {
        // A signal's handler may come here while its thread is at a write.
        let mut awake = awake.try_borrow_mut().ok()?;
        let generation = GENERATION.load(Ordering::Relaxed);
        if awake.as_ref().is_none_or(|awake| awake.generation != generation) {
            *awake = Some(Awake::new(generation));
        }
        let awake = awake.as_mut()?;
        if bytes.len() > BYTES_MAX || awake.ring.is_none() {
            return None;
        }
        let stays = awake.choice.stays_awake();
        let began = clock::now();
        let written = match stays {
            true => awake.write(file, offset, bytes)?,
            false => asleep.take()?(),
        };
        awake
            .choice
            .took(stays, clock::now().since(began).as_nanos() as u64);
        Some(written)
    });
    match (outcome.ok().flatten(), asleep) {
        (Some(written), _) => written,
        (None, Some(asleep)) => asleep(),
        (None, None) => unreachable!("who sleeps has a result"),
    }
}

extern "C" fn after_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

impl Choice {
    fn new() -> Self {
        Self {
            awake_ns: 0,
            asleep_ns: 0,
            left: FIRST,
            tried_after: TRIED_AFTER,
        }
    }

    fn prefers_awake(&self) -> bool {
        self.awake_ns <= self.asleep_ns || self.asleep_ns == 0
    }

    /// Whether the next write is waited for awake.
    fn stays_awake(&mut self) -> bool {
        let prefers = self.prefers_awake();
        if self.left > 0 {
            self.left -= 1;
            return prefers;
        }
        self.left = if prefers { TRIED_AFTER } else { self.tried_after };
        !prefers
    }

    /// A write took so long. One that was disturbed counts as four usual ones at most.
    fn took(&mut self, awake: bool, ns: u64) {
        let preferred = self.prefers_awake();
        let mean = match awake {
            true => &mut self.awake_ns,
            false => &mut self.asleep_ns,
        };
        *mean = match *mean {
            0 => ns,
            mean => (mean * 7 + ns.min(mean * 4)) / 8,
        };
        if !preferred {
            if self.prefers_awake() {
                self.tried_after = TRIED_AFTER;
            } else if awake {
                self.tried_after = (self.tried_after * 2).min(TRIED_AFTER_MAX);
                self.left = self.tried_after;
            }
        }
    }
}

impl Awake {
    fn new(generation: u32) -> Self {
        static ONCE: Once = Once::new();
        ONCE.call_once(|| {
            // SAFETY: the handler only counts.
            unsafe { libc::pthread_atfork(None, None, Some(after_fork)) };
        });
        Self {
            ring: IoUring::new(2).ok(),
            generation,
            choice: Choice::new(),
        }
    }

    /// `None` if the kernel takes nothing.
    fn write(&mut self, file: BorrowedFd<'_>, offset: u64, bytes: &[u8]) -> Option<io::Result<usize>> {
        let ring = self.ring.as_mut()?;
        let entry = opcode::Write::new(types::Fd(file.as_raw_fd()), bytes.as_ptr(), bytes.len() as u32)
            .offset(offset)
            .rw_flags(libc::RWF_DSYNC)
            .build();
        // SAFETY: file and bytes are borrowed until the completion is here, which is waited for below whatever happens.
        let pushed = unsafe { ring.submission().push(&entry) }.is_ok();
        if !pushed || ring.submit().ok() != Some(1) {
            // It never will: the program may have closed the ring's descriptor, and its number be another file's now. So it
            // is not closed again.
            std::mem::forget(self.ring.take());
            return None;
        }
        let began = clock::now();
        let mut last = began;
        let mut pays = true;
        while ring.completion().is_empty() {
            if pays {
                std::thread::yield_now();
                let now = clock::now();
                pays = now.since(last) < LONG_YIELD && now.since(began) < WATCH;
                last = now;
            } else {
                // However it ends, the completion is looked for.
                let _ = ring.submit_and_wait(1);
            }
        }
        let result = ring.completion().next()?.result();
        Some(match usize::try_from(result) {
            Ok(written) => Ok(written),
            Err(_) => Err(io::Error::from_raw_os_error(-result)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of 100,000 writes, those that were waited for awake, if they take so long that way and the other.
    fn awake_of(awake_ns: u64, asleep_ns: u64) -> u32 {
        let mut choice = Choice::new();
        let mut count = 0;
        for _ in 0..100_000 {
            let awake = choice.stays_awake();
            count += u32::from(awake);
            choice.took(awake, if awake { awake_ns } else { asleep_ns });
        }
        count
    }

    #[test]
    fn the_faster_way_is_gone_and_the_other_tried_now_and_then() {
        let most = awake_of(30_000, 60_000);
        assert!((98_000..100_000).contains(&most), "{most}");
        let few = awake_of(3_000_000, 60_000);
        assert!((20..50).contains(&few), "{few}");
    }

    #[test]
    fn it_changes_its_mind() {
        let mut choice = Choice::new();
        let mut last = 0;
        for (awake_ns, asleep_ns) in [(30_000, 60_000), (90_000, 60_000), (30_000, 60_000)] {
            last = 0;
            for _ in 0..50_000 {
                let awake = choice.stays_awake();
                last = if awake { last + 1 } else { 0 };
                choice.took(awake, if awake { awake_ns } else { asleep_ns });
            }
            assert_eq!(choice.prefers_awake(), awake_ns < asleep_ns, "{choice:?}");
        }
        assert!(last <= TRIED_AFTER);
    }

    #[test]
    fn both_ways_write_and_a_bad_file_is_an_error_of_either() {
        use std::os::fd::AsFd;
        let file = tempfile::tempfile().expect("a file");
        let slept = std::cell::Cell::new(0);
        for round in 0..200_u64 {
            let bytes = [round as u8; 512];
            let asleep = || {
                slept.set(slept.get() + 1);
                std::os::unix::fs::FileExt::write_at(&file, &bytes, round * 512)
            };
            let written = write(file.as_fd(), round * 512, &bytes, asleep).expect("it is written");
            assert_eq!(written, 512);
            let mut read = [0; 512];
            std::os::unix::fs::FileExt::read_exact_at(&file, &mut read, round * 512).expect("it is there");
            assert_eq!(read, bytes);
        }
        assert!(slept.get() > 0, "the other way is tried, too");
        let read_only = std::fs::File::open("/dev/null").expect("a file");
        let refused = || Err(io::Error::from_raw_os_error(libc::EBADF));
        for _ in 0..20 {
            let error =
                write(read_only.as_fd(), 0, &[0; 512], refused).expect_err("it is not open for writing");
            assert_eq!(error.raw_os_error(), Some(libc::EBADF));
        }
    }
}
