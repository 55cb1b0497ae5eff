//! Requests over io_uring (`Documentation/filesystems/fuse-io-uring.rst`): each processor has a queue of entries in the kernel,
//! and each thread here serves the queue of its own processor. A request comes to the queue of the processor where its caller
//! runs, so caller and server take turns on one processor, and no other processor is woken.
//!
//! An entry is a header and a payload. REGISTER gives it to the kernel, which fills in a request and ends the command.
//! COMMIT_AND_FETCH hands over the reply and waits for the next request. Processors on which this process may not run have
//! their queues with the other threads: the kernel wants all queues before it uses any.

use super::answered::{Answered, Next};
use super::call::{Call, Handler};
use super::channel::Channel;
use super::end::End;
use super::region::{Region, Slot};
use super::sync::Arc;
use crate::abi::{Plain, UringCmdReq, uring};
use os::{Buffer, Command, CommandRing};
use rustix::io::Errno;
use rustix::thread::CpuSet;
use std::io;
use std::os::fd::{AsFd, AsRawFd};

/// The number of the end that tells of a wake.
const WAKE: u64 = u64::MAX;

/// The sizes of a ring, and how it waits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Size {
    /// Of each queue.
    pub entries: usize,
    /// Of each entry.
    pub payload_bytes: usize,
    /// See [`Config`](super::Config).
    pub waits_for_itself: bool,
}

/// What a thread serves.
pub(crate) struct Part {
    /// The processor where the thread stays, if any.
    pub cpu: Option<usize>,
    /// The queues of the kernel, by processor.
    pub queues: Vec<u16>,
}

/// The parts of this machine for this process.
pub(crate) fn parts_here() -> io::Result<Vec<Part>> {
    Ok(parts(possible()?, &rustix::thread::sched_getaffinity(None)?))
}

/// Parts for all processors of the machine: the threads are on those where this process may run.
fn parts(possible: usize, allowed: &CpuSet) -> Vec<Part> {
    let own = |cpu: &usize| *cpu < CpuSet::MAX_CPU && allowed.is_set(*cpu);
    let mut parts: Vec<Part> = (0..possible).filter(own).map(Part::of).collect();
    if parts.is_empty() {
        parts.push(Part {
            cpu: None,
            queues: Vec::new(),
        });
    }
    let count = parts.len();
    for cpu in (0..possible)
        .filter(|cpu| parts.iter().all(|part| part.cpu != Some(*cpu)))
        .collect::<Vec<_>>()
    {
        parts[cpu % count].queues.push(cpu as u16);
    }
    parts
}

impl Part {
    fn of(cpu: usize) -> Self {
        Self {
            cpu: Some(cpu),
            queues: vec![cpu as u16],
        }
    }
}

/// How many processors the machine may ever have: the kernel has as many queues.
fn possible() -> io::Result<usize> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible")?;
    count(text.trim()).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// How many numbers a list like `0-3,8` has (`Documentation/admin-guide/cputopology.rst`).
fn count(list: &str) -> Option<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        (last + 1).checked_sub(first)
    };
    list.split(',').map(range).sum()
}

/// A thread's ring. It belongs to the thread that made it.
pub(crate) struct Worker {
    // The ring is dropped before the memory that its entries use.
    ring: CommandRing,
    region: Arc<Region>,
    answered: Arc<Answered>,
    channel: Arc<Channel>,
    /// The queue of each entry.
    queues: Vec<u16>,
    /// What REGISTER tells of each entry.
    buffers: Vec<[Buffer; 2]>,
    /// Entries that did not fail.
    alive: usize,
}

impl Worker {
    /// A ring for the entries of each queue of a part. The calling thread goes to the part's processor.
    pub fn new(part: &Part, size: Size, answered: Arc<Answered>, channel: Arc<Channel>) -> io::Result<Self> {
        if let Some(cpu) = part.cpu {
            let mut set = CpuSet::new();
            set.set(cpu);
            rustix::thread::sched_setaffinity(None, &set)?;
        }
        let queues: Vec<u16> = part
            .queues
            .iter()
            .flat_map(|queue| vec![*queue; size.entries])
            .collect();
        // One more for the watch of the wake.
        let places = u32::try_from(queues.len() + 1).map_err(|_| io::ErrorKind::InvalidInput)?;
        let ring = CommandRing::for_commands(places.next_power_of_two(), !size.waits_for_itself)?;
        let region = Region::new(queues.len(), size.payload_bytes)?;
        let buffer = |(base, bytes): (*mut u8, usize)| Buffer {
            iov_base: base.cast(),
            iov_len: bytes,
        };
        let buffers = (0..queues.len()).map(|index| region.buffers(index as u16).map(buffer));
        Ok(Self {
            ring,
            buffers: buffers.collect(),
            region: Arc::new(region),
            answered,
            channel,
            alive: queues.len(),
            queues,
        })
    }

    /// Gives all entries to the kernel, after INIT was answered. A request may be there already: [`Worker::run`] serves it.
    ///
    /// # Errors
    /// If the kernel does not take an entry: then it uses no ring at all.
    pub fn register(&mut self) -> io::Result<Vec<u16>> {
        for index in 0..self.queues.len() {
            let buffers = (self.buffers[index].as_ptr(), 2);
            self.push(index as u16, uring::REGISTER, 0, buffers);
        }
        self.ring.push_watch(self.answered.wake().fd(), WAKE);
        self.ring.submit()?;
        let mut early = Vec::new();
        while let Some((number, result)) = self.ring.next_end() {
            match result {
                _ if number == WAKE => self.ring.push_watch(self.answered.wake().fd(), WAKE),
                0 => early.push(number as u16),
                error => return Err(io::Error::from_raw_os_error(-error)),
            }
        }
        Ok(early)
    }

    /// Serves requests until the connection ends or the session stops. `early` are entries with requests.
    pub fn run(mut self, early: Vec<u16>, handler: &Handler) -> End {
        for index in early {
            self.serve(index, handler);
        }
        let mut slots = Vec::with_capacity(self.queues.len());
        loop {
            match self.answered.take(&mut slots) {
                Next::Stop => return End::Stopped,
                Next::Submit => {
                    slots.drain(..).for_each(|index| self.commit(index));
                    continue;
                }
                Next::Sleep => {}
            }
            // Hands over what was answered, and waits, in one system call.
            let waited = self.ring.wait(None);
            self.answered.awake();
            if let Err(error) = waited
                && error.kind() != io::ErrorKind::Interrupted
            {
                return End::Failed(Errno::from_io_error(&error).unwrap_or(Errno::IO));
            }
            while let Some((number, result)) = self.ring.next_end() {
                if number == WAKE {
                    self.answered.wake().clear();
                    self.ring.push_watch(self.answered.wake().fd(), WAKE);
                } else if result == 0 {
                    self.serve(number as u16, handler);
                } else {
                    self.alive -= 1;
                    if self.alive == 0 {
                        return End::of(Errno::from_raw_os_error(-result));
                    }
                }
            }
        }
    }

    fn serve(&self, index: u16, handler: &Handler) {
        // SAFETY: the kernel has just given the entry back, and gets it again only by `commit`, when its slot has ended.
        let slot = unsafe { Slot::new(Arc::clone(&self.region), index) };
        if let Some(call) = Call::of_entry(slot, &self.answered) {
            handler(call);
        }
    }

    /// Hands a reply to the kernel with the next system call.
    fn commit(&mut self, index: u16) {
        let commit_id = self.region.commit_id(index);
        self.push(index, uring::COMMIT_AND_FETCH, commit_id, (std::ptr::null(), 0));
    }

    fn push(&mut self, index: u16, operation: u32, commit_id: u64, buffers: (*const Buffer, u32)) {
        let request = UringCmdReq {
            commit_id,
            qid: self.queues[usize::from(index)],
            ..UringCmdReq::default()
        };
        let mut bytes = [0; 80];
        request.write(&mut bytes).expect("a command has room for it");
        let command = Command {
            operation,
            bytes,
            buffers,
        };
        let device = self.channel.as_fd().as_raw_fd();
        // SAFETY: this thread has the entry: its slot has ended. Channel, region and list live as long as the ring.
        unsafe { self.ring.push_command(device, &command, u64::from(index)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_processors_are_counted() {
        for (list, expected) in [
            ("0", Some(1)),
            ("0-1", Some(2)),
            ("0-3,8,10-11", Some(7)),
            ("", None),
            ("3-1", None),
            ("x", None),
        ] {
            assert_eq!(count(list), expected, "{list}");
        }
    }

    #[test]
    fn each_queue_has_one_thread_and_threads_are_where_the_process_may_run() {
        for (possible, allowed) in [(4, vec![0, 1, 2, 3]), (8, vec![2, 5]), (3, vec![]), (1, vec![0])] {
            let mut set = CpuSet::new();
            allowed.iter().for_each(|cpu| set.set(*cpu));
            let parts = parts(possible, &set);
            let cpus: Vec<_> = parts.iter().filter_map(|part| part.cpu).collect();
            assert_eq!(cpus, allowed);
            for part in &parts {
                assert!(part.cpu.is_none_or(|cpu| part.queues[0] == cpu as u16));
            }
            let mut queues: Vec<_> = parts.iter().flat_map(|part| part.queues.clone()).collect();
            queues.sort_unstable();
            assert!(queues.iter().copied().eq(0..possible as u16));
        }
    }
}
