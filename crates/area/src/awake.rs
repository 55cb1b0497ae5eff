//! Durable writes, and reads, whose thread stays awake, if that is faster. The thread yields the processor to others, but does not
//! sleep.
//!
//! To sleep and to be woken can cost as much time as the write of a fast device. So a thread has its own ring of the
//! kernel, and looks for the completion between calls of `sched_yield`. The kernel does not wake a thread that yields
//! when its write ends. So the thread sleeps for the rest of a write if others want the processor, or after a while ([`burst::watch`]).
//!
//! A thread measures both ways and takes the faster one. It tries the slower way now and then, less often after each
//! loss. Some threads answer a client after each write, and the client asks again at once. The scheduler puts such a
//! thread and its client on one processor if the thread sleeps, and on two if the thread stays awake. Two processors
//! have to wake each other. That costs more than staying awake gains, unless the device is fast.
//!
//! A killed program leaves such a write to the kernel, and the kernel keeps the file open until the write ends. So the
//! next owner of a medium must ask whether the medium is open, and must rely on no other file.

use crate::burst::{self, BURST_MAX, Wanted, watch};
use crate::own;
use crate::sync::{AtomicU32, Once, Ordering};
use io_uring::{opcode, types};
use os::{Ring, now};
use std::cell::RefCell;
use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::{mem, slice};

/// Writes of a trial, and how many of them come before those that count: the scheduler has to get used to it.
const TRIAL: u32 = 16;
const UNCOUNTED: u32 = 4;
/// Writes until the other way is tried: after it has won, doubled each time that it loses, and at most.
const TRIED_AFTER: u32 = 128;
const TRIED_AFTER_MAX: u32 = 1024;
/// Pauses between writes, in ns, of a thread that answers one who asks anew at once: for less there is nobody, for more several.
const TALKS_NS: Range<u64> = 15_000..120_000;
/// For such a thread writes that take less awake are of a fast device: a loop device over memory takes 45 µs, a virtual disk 85.
const FAST_NS: u64 = 65_000;
/// Longer pauses count as so long.
const PAUSE_NS_MAX: u64 = 1_000_000;
/// Longer writes are slept for.
const BYTES_MAX: usize = 128 << 10;
/// Descriptors of rings: above those that programs expect to get, and not so many that a program with many threads lacks them.
const DESCRIPTORS: Range<libc::c_int> = 512..576;

/// Grows in a forked child: what its parent had is not its own.
static GENERATION: AtomicU32 = AtomicU32::new(0);

/// Of one thread.
struct Awake {
    /// `None` where the kernel, or who confines us, has no rings, and for threads that always sleep.
    ring: Option<Ring>,
    generation: u32,
    /// Of writes.
    choice: Choice,
    /// Of reads of one piece.
    reads: Choice,
    /// When the last write or read ended, ns.
    ended_ns: u64,
}

/// Which way writes go.
#[derive(Debug, Default)]
struct Choice {
    is_awake: bool,
    is_trial: bool,
    /// Writes until this way's turn ends.
    left: u32,
    /// The next turn of the way that is preferred, in writes.
    tried_after: u32,
    /// Recent means, asleep and awake, ns; 0 before the first.
    means_ns: [u64; 2],
    /// Recent mean of the time before a write in which the thread neither wrote nor read, ns.
    pause_ns: u64,
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
        let awake = Awake::present(&mut awake);
        if bytes.len() > BYTES_MAX || awake.ring.is_none() {
            return None;
        }
        let stays = awake.choice.stays_awake();
        let began = now();
        let written = match stays {
            true => awake.write(file, offset, bytes)?,
            false => asleep.take()?(),
        };
        let pause_ns = awake.pause(began.as_nanos());
        awake.choice.took(pause_ns, awake.ended_ns - began.as_nanos());
        Some(written)
    });
    match (outcome.ok().flatten(), asleep) {
        (Some(written), _) => written,
        (None, Some(asleep)) => asleep(),
        (None, None) => unreachable!("who sleeps has a result"),
    }
}

/// Reads all that is wanted. One read alone goes as a write does: asleep, or awake by the thread's ring, whichever took less time
/// lately. Several go to the ring together, so that the device has all of them at once. `asleep` reads some of one's bytes by
/// sleeping: the file ends where it reads nothing.
pub(super) fn read(
    file: BorrowedFd<'_>,
    wanted: &mut [Wanted<'_>],
    asleep: impl Fn(u64, &mut [u8]) -> io::Result<usize>,
) -> io::Result<()> {
    // A thread that ends may read, and have nothing of its own any more.
    let _ = AWAKE.try_with(|awake| {
        // A signal's handler may come here while its thread is at a read.
        let mut awake = awake.try_borrow_mut().ok()?;
        Awake::present(&mut awake).read(file, wanted, &asleep);
        Some(())
    });
    // What the ring did not read, for whatever reason: where it is an error, it shows here again.
    for one in wanted {
        while !one.is_done() {
            match asleep(one.offset + one.done as u64, &mut one.bytes[one.done..]) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(read) => one.done += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }
    Ok(())
}

/// From now on this thread sleeps: nobody waits for its writes, and who is awake takes others' processor.
pub(crate) fn never() {
    AWAKE.set(Some(Awake {
        ring: None,
        generation: GENERATION.load(Ordering::Relaxed),
        choice: Choice::default(),
        reads: Choice::default(),
        ended_ns: 0,
    }));
}

/// A ring of one thread, out of the way of the program's descriptors.
fn new_ring() -> io::Result<Ring> {
    own::ring(|| Ring::new(BURST_MAX as u32)?.moved_to(DESCRIPTORS))
}

extern "C" fn after_fork() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

impl Choice {
    /// Whether the next write is waited for awake.
    fn stays_awake(&mut self) -> bool {
        if self.left == 0 {
            self.next_turn();
        }
        self.left -= 1;
        self.is_awake
    }

    fn next_turn(&mut self) {
        let [asleep_ns, awake_ns] = self.means_ns;
        let has_tried_both = asleep_ns > 0 && awake_ns > 0;
        if self.is_trial && has_tried_both {
            let is_apart = TALKS_NS.contains(&self.pause_ns) && awake_ns > FAST_NS;
            let prefers_awake = awake_ns <= asleep_ns && !is_apart;
            let has_won = prefers_awake == self.is_awake;
            self.turn_to(prefers_awake, has_won);
        } else {
            self.is_trial = true;
            self.is_awake = !self.is_awake;
            self.means_ns[usize::from(self.is_awake)] = 0;
            self.left = TRIAL;
        }
    }

    /// A turn of the preferred way, which is another than before if that `is_new`.
    fn turn_to(&mut self, awake: bool, is_new: bool) {
        self.is_trial = false;
        self.is_awake = awake;
        let twice = self.tried_after * 2;
        self.tried_after = if is_new {
            TRIED_AFTER
        } else {
            twice.clamp(TRIED_AFTER, TRIED_AFTER_MAX)
        };
        self.left = self.tried_after;
    }

    /// A write of this way took so long. One that was disturbed counts as four usual ones at most.
    fn took(&mut self, pause_ns: u64, ns: u64) {
        self.pause_ns = (self.pause_ns * 7 + pause_ns.min(PAUSE_NS_MAX)) / 8;
        if self.is_trial && self.left >= TRIAL - UNCOUNTED {
            return;
        }
        let way = usize::from(self.is_awake);
        let mean = match self.means_ns[way] {
            0 => ns,
            mean => (mean * 7 + ns.min(mean * 4)) / 8,
        };
        self.means_ns[way] = mean;
        if self.is_awake && !self.is_trial && mean > self.means_ns[0] * 5 / 4 {
            self.turn_to(false, true);
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
            ring: new_ring().ok(),
            generation,
            choice: Choice::default(),
            reads: Choice::default(),
            ended_ns: 0,
        }
    }

    /// A write or read that began at this time has just ended. The pause before it, since the last one ended.
    fn pause(&mut self, began_ns: u64) -> u64 {
        let before_ns = mem::replace(&mut self.ended_ns, now().as_nanos());
        began_ns.saturating_sub(before_ns)
    }

    /// This thread's, made anew in a forked child.
    fn present(awake: &mut Option<Self>) -> &mut Self {
        let generation = GENERATION.load(Ordering::Relaxed);
        if awake.as_ref().is_none_or(|awake| awake.generation != generation) {
            *awake = Some(Self::new(generation));
        }
        awake.as_mut().expect("made above")
    }

    fn take_ring(&mut self) -> Option<Ring> {
        let ring = self.ring.take()?;
        own::unmark(ring.fd());
        Some(ring)
    }

    /// `None` if the kernel takes nothing, or does not come to it.
    fn write(&mut self, file: BorrowedFd<'_>, offset: u64, bytes: &[u8]) -> Option<io::Result<usize>> {
        let ring = self.ring.as_mut()?;
        let entry = opcode::Write::new(types::Fd(file.as_raw_fd()), bytes.as_ptr(), bytes.len() as u32)
            .offset(offset)
            .rw_flags(libc::RWF_DSYNC)
            .build();
        // SAFETY: file and bytes are borrowed until the completion is here, which is waited for below whatever happens.
        unsafe { ring.push(&entry) };
        if ring.submit().ok() != Some(1) {
            // It never will: the program may have closed the ring's descriptor, and its number be another file's now. So it
            // is not closed again.
            if let Some(ring) = self.take_ring() {
                ring.leak();
            }
            return None;
        }
        watch(ring);
        let (_, result) = ring.next_end()?;
        match -result {
            // What would have to wait goes to a worker, of which there may be none as there may be no more tasks (RLIMIT_NPROC, pids.max).
            libc::ECANCELED | libc::EAGAIN => {
                drop(self.take_ring());
                None
            }
            error @ 1.. => Some(Err(io::Error::from_raw_os_error(error))),
            _ => Some(Ok(result as usize)),
        }
    }

    /// Reads what it can.
    fn read(
        &mut self,
        file: BorrowedFd<'_>,
        wanted: &mut [Wanted<'_>],
        asleep: &impl Fn(u64, &mut [u8]) -> io::Result<usize>,
    ) {
        if self.ring.is_none() {
            return;
        }
        let [one] = wanted else {
            wanted
                .chunks_mut(BURST_MAX)
                .for_each(|some| self.burst(file, some));
            return;
        };
        let stays = self.reads.stays_awake();
        let began = now();
        if stays {
            self.burst(file, slice::from_mut(one));
        } else {
            one.done = asleep(one.offset, one.bytes).unwrap_or(0);
        }
        let pause_ns = self.pause(began.as_nanos());
        self.reads.took(pause_ns, self.ended_ns - began.as_nanos());
    }

    fn burst(&mut self, file: BorrowedFd<'_>, some: &mut [Wanted<'_>]) {
        let serves = self
            .ring
            .as_mut()
            .is_none_or(|ring| burst::read(ring, file, some));
        // As for a write: the ring's descriptor may be another file's now.
        if !serves && let Some(ring) = self.take_ring() {
            ring.leak();
        }
    }
}

impl Drop for Awake {
    fn drop(&mut self) {
        // The program may have closed its descriptor, and the number be another file's now.
        if let Some(mut ring) = self.take_ring()
            && ring.submit().is_err()
        {
            ring.leak();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;

    /// Lets `count` writes take so long asleep and awake, with pauses between them; how many were waited for awake.
    fn awake_of(choice: &mut Choice, count: u32, took_ns: [u64; 2], pause_ns: u64) -> u32 {
        let mut awake = 0;
        for _ in 0..count {
            let way = choice.stays_awake();
            awake += u32::from(way);
            choice.took(pause_ns, took_ns[usize::from(way)]);
        }
        awake
    }

    #[test]
    fn the_faster_way_is_gone_and_the_other_tried_now_and_then() {
        let most = awake_of(&mut Choice::default(), 100_000, [60_000, 30_000], 3_000);
        assert!((98_000..100_000).contains(&most), "{most}");
        let few = awake_of(&mut Choice::default(), 100_000, [60_000, 3_000_000], 3_000);
        assert!((100..2_000).contains(&few), "{few}");
    }

    #[test]
    fn it_changes_its_mind_soon() {
        let mut choice = Choice::default();
        awake_of(&mut choice, 100_000, [60_000, 30_000], 3_000);
        // Awake has become much slower: that shows at once.
        let few = awake_of(&mut choice, 1_000, [60_000, 900_000], 3_000);
        assert!(few < 100, "{few}");
        // Asleep has become a little slower: that shows when the other is tried.
        awake_of(&mut choice, 2 * TRIED_AFTER_MAX, [60_000, 55_000], 3_000);
        let most = awake_of(&mut choice, 1_000, [60_000, 55_000], 3_000);
        assert!(most > 900, "{most}");
    }

    #[test]
    fn a_thread_that_answers_somebody_sleeps_unless_the_device_is_fast() {
        let of = |took_ns, pause_ns| awake_of(&mut Choice::default(), 10_000, took_ns, pause_ns);
        assert!(of([120_000, 85_000], 60_000) < 1_000);
        assert!(of([90_000, 45_000], 60_000) > 9_000);
        assert!(of([100_000, 85_000], 3_000) > 9_000);
        assert!(of([100_000, 85_000], 400_000) > 9_000);
    }

    /// bug: a thread that reads between its writes was taken for one that answers somebody, and slept for its writes. fix: the time of its
    /// reads is no pause.
    #[test]
    fn a_read_between_two_writes_is_no_pause() {
        let mut awake = Awake::new(0);
        awake.pause(0);
        let began = now().as_nanos();
        let while_reading = awake.ended_ns;
        awake.pause(began);
        let read_ended = awake.ended_ns;
        assert!(while_reading <= began && awake.pause(read_ended + 5) == 5);
    }

    #[test]
    fn both_ways_write_and_a_bad_file_is_an_error_of_either() {
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

    #[test]
    fn programs_keep_their_descriptors() {
        let rings: Vec<_> = (0..100).map_while(|_| new_ring().ok()).collect();
        assert!(rings.len() <= DESCRIPTORS.len());
        assert!(rings.iter().all(|ring| DESCRIPTORS.contains(&ring.fd())));
        let file = tempfile::tempfile().expect("a file");
        for (ring, writes) in rings.into_iter().zip([false, true]) {
            let number = ring.fd();
            let mut awake = Awake {
                ring: Some(ring),
                generation: 0,
                choice: Choice::default(),
                reads: Choice::default(),
                ended_ns: 0,
            };
            // SAFETY: no memory is involved.
            assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
            if writes {
                assert!(awake.write(file.as_fd(), 0, &[0; 512]).is_none());
            }
            drop(awake);
            // SAFETY: as above; the descriptor is this test's.
            assert_eq!(unsafe { libc::close(number) }, 0, "it is not the ring's any more");
        }
    }

    /// bug: the write of a program that may have no more tasks failed; cause: the kernel had no worker for it; fix: the thread
    /// makes it itself.
    #[test]
    fn a_write_needs_no_other_task() {
        // Here each write goes to a worker.
        let file = tempfile::tempfile_in("/dev/shm").expect("a file in memory");
        let confined = || {
            let limit = libc::rlimit {
                rlim_cur: 1,
                rlim_max: 1,
            };
            // SAFETY: of the child alone: the system call does not reach for other threads.
            let is_confined = unsafe {
                libc::setrlimit(libc::RLIMIT_NPROC, &raw const limit) == 0
                    && (libc::geteuid() != 0 || libc::syscall(libc::SYS_setresuid, 65534, 65534, 65534) == 0)
            };
            let written = write(file.as_fd(), 0, &[7; 512], || file.write_at(&[7; 512], 0));
            is_confined && written.is_ok_and(|bytes| bytes == 512)
        };
        // SAFETY: the child makes system calls, and memory of its own.
        match unsafe { libc::fork() } {
            // SAFETY: it ends here.
            0 => unsafe { libc::_exit(i32::from(!confined())) },
            child => {
                let mut status = 0;
                // SAFETY: the status is borrowed.
                assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
                assert_eq!(status, 0);
            }
        }
        let mut read = [0; 512];
        file.read_exact_at(&mut read, 0).expect("it is there");
        assert_eq!(read, [7; 512]);
    }

    const PIECE: usize = 512;

    fn file(pieces: usize) -> File {
        let file = tempfile::tempfile().expect("a file");
        for piece in 0..pieces {
            file.write_all_at(&[piece as u8; PIECE], (piece * PIECE) as u64)
                .expect("room");
        }
        file
    }

    fn read_pieces(file: &File, pieces: &[usize]) -> io::Result<Vec<Vec<u8>>> {
        let mut all = vec![vec![0; PIECE]; pieces.len()];
        let places = all.iter_mut().zip(pieces);
        let mut wanted: Vec<_> = places
            .map(|(bytes, piece)| Wanted::new((piece * PIECE) as u64, bytes))
            .collect();
        read(file.as_fd(), &mut wanted, |offset, bytes| {
            file.read_at(bytes, offset)
        })?;
        Ok(all)
    }

    #[test]
    fn many_pieces_arrive_in_their_places() {
        let file = file(200);
        let pieces: Vec<usize> = (0..3 * BURST_MAX + 1).map(|nth| nth * 7 % 200).collect();
        let read = read_pieces(&file, &pieces).expect("it is there");
        for (bytes, piece) in read.iter().zip(pieces) {
            assert_eq!(bytes, &vec![piece as u8; PIECE]);
        }
    }

    #[test]
    fn one_piece_is_read_either_way() {
        let file = file(100);
        for nth in 0..1000 {
            let read = read_pieces(&file, &[nth % 100]).expect("it is there");
            assert_eq!(read[0], vec![(nth % 100) as u8; PIECE]);
        }
    }

    #[test]
    fn the_end_of_the_file_is_an_error_of_the_whole() {
        let file = file(10);
        for pieces in [&[10][..], &[1, 2, 10, 3]] {
            let error = read_pieces(&file, pieces).expect_err("nothing is there");
            assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
        }
        read_pieces(&file, &[9, 8]).expect("the ring is of use still");
    }

    #[test]
    fn a_ring_that_the_program_has_closed_is_not_needed() {
        let file = file(10);
        let numbered = |awake: &std::cell::RefCell<Option<Awake>>| {
            let awake = awake.borrow();
            awake.as_ref().and_then(|awake| awake.ring.as_ref()).map(Ring::fd)
        };
        read_pieces(&file, &[1, 2]).expect("it is there");
        let Some(number) = AWAKE.with(numbered) else {
            return;
        };
        // SAFETY: no memory is involved.
        assert_eq!(unsafe { libc::dup2(file.as_raw_fd(), number) }, number);
        assert_eq!(
            read_pieces(&file, &[3, 4]).expect("it is there")[1],
            vec![4; PIECE]
        );
        assert_eq!(AWAKE.with(numbered), None);
        // SAFETY: as above; the descriptor is this test's.
        assert_eq!(unsafe { libc::close(number) }, 0, "it is not the ring's any more");
    }
}
