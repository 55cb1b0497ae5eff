//! The memory of a ring's entries: for each a header and a payload, which the kernel and this process use in turn.
//!
//! A [`Slot`] is the right to use an entry's memory. The kernel has the entry between its submission and its end, and no slot
//! exists then. So nobody writes what another reads.

use crate::abi::{InHeader, OutHeader, Plain, UringEntInOut, UringReqHeader, protocol};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::io;
use std::ptr::NonNull;
use std::slice;

use super::sync::Arc;

/// A header has a page, so that payloads begin at one.
const PAGE_BYTES: usize = 4096;
/// Where the argument of an operation is in a header.
const ARGUMENT_AT: usize = protocol::URING_IN_OUT_HEADER_SZ as usize;
/// Where the entry's own part is in a header.
const ENTRY_AT: usize = ARGUMENT_AT + protocol::URING_OP_IN_OUT_SZ as usize;

/// Memory of `count` entries.
pub(crate) struct Region {
    base: NonNull<u8>,
    count: usize,
    payload_bytes: usize,
}

// SAFETY: memory has no thread; who may use which part of it is the slots' matter.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Memory that takes room when it is first used.
    pub fn new(count: usize, payload_bytes: usize) -> io::Result<Self> {
        let payload_bytes = payload_bytes.next_multiple_of(PAGE_BYTES);
        let bytes = count * (PAGE_BYTES + payload_bytes);
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: new memory, at a place that the kernel chooses.
        let base = unsafe { mmap_anonymous(std::ptr::null_mut(), bytes, protection, flags) }?;
        Ok(Self {
            base: NonNull::new(base.cast()).expect("the kernel maps nothing at zero unasked"),
            count,
            payload_bytes,
        })
    }

    /// Header and payload of an entry, as the kernel is told of them.
    pub fn buffers(&self, index: u16) -> [(*mut u8, usize); 2] {
        let at = usize::from(index);
        assert!(at < self.count, "an entry of this ring");
        // SAFETY: inside the mapping, by the assertion.
        unsafe {
            let header = self.base.as_ptr().add(at * (PAGE_BYTES + self.payload_bytes));
            [(header, PAGE_BYTES), (header.add(PAGE_BYTES), self.payload_bytes)]
        }
    }
}

impl Region {
    /// The request's number for the kernel, of an entry that was answered.
    pub fn commit_id(&self, index: u16) -> u64 {
        let [(header, _), _] = self.buffers(index);
        // SAFETY: inside the header. Neither the kernel nor a slot has the entry: the ring's thread, which asks, is to submit it.
        let entry = unsafe { slice::from_raw_parts(header.add(ENTRY_AT), UringEntInOut::BYTES) };
        UringEntInOut::read(entry).expect("it has this length").commit_id
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        let bytes = self.count * (PAGE_BYTES + self.payload_bytes);
        // SAFETY: the mapping of `new`. Slots hold the region, and so does the ring's thread while the kernel has entries.
        let unmapped = unsafe { munmap(self.base.as_ptr().cast(), bytes) };
        assert!(unmapped.is_ok(), "what was mapped can be unmapped");
    }
}

/// The right to use an entry's memory.
pub(crate) struct Slot {
    region: Arc<Region>,
    index: u16,
}

impl Slot {
    /// The entry's memory.
    ///
    /// # Safety
    /// The kernel has given the entry back, and there is no other slot of it.
    pub unsafe fn new(region: Arc<Region>, index: u16) -> Self {
        assert!(usize::from(index) < region.count, "an entry of this ring");
        Self { region, index }
    }

    fn header(&self) -> &[u8] {
        let [(header, _), _] = self.region.buffers(self.index);
        // SAFETY: a slot has its memory alone, and a header is inside its page.
        unsafe { slice::from_raw_parts(header, UringReqHeader::BYTES) }
    }

    fn header_mut(&mut self) -> &mut [u8] {
        let [(header, _), _] = self.region.buffers(self.index);
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(header, UringReqHeader::BYTES) }
    }

    fn entry(&self) -> UringEntInOut {
        UringEntInOut::read(&self.header()[ENTRY_AT..]).expect("a header has this part")
    }

    /// The request's header.
    pub fn request(&self) -> InHeader {
        InHeader::read(self.header()).expect("a header has room for a request's")
    }

    /// The place for the operation's argument, and what the request has behind it.
    pub fn argument_and_payload(&self) -> (&[u8], &[u8]) {
        let argument = &self.header()[ARGUMENT_AT..ENTRY_AT];
        let [_, (payload, bytes)] = self.region.buffers(self.index);
        let count = bytes.min(self.entry().payload_sz as usize);
        // SAFETY: a slot has its memory alone.
        (argument, unsafe { slice::from_raw_parts(payload, count) })
    }

    /// The place for the reply.
    pub fn reply(&mut self) -> &mut [u8] {
        let [_, (payload, bytes)] = self.region.buffers(self.index);
        // SAFETY: as above.
        unsafe { slice::from_raw_parts_mut(payload, bytes) }
    }

    /// The entry becomes the reply, of which `payload_bytes` are in the place for it. The slot ends: its number is for the
    /// ring's thread.
    pub fn answer(mut self, reply: OutHeader, payload_bytes: usize) -> u16 {
        let mut entry = self.entry();
        entry.payload_sz = payload_bytes as u32;
        let header = self.header_mut();
        reply.write(header).expect("a header has room for a reply's");
        entry
            .write(&mut header[ENTRY_AT..])
            .expect("a header has this part");
        self.index
    }
}
