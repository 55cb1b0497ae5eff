//! The notification log of a controller (Base §5.16.1, log page 80h): what reservations did to its host.

use std::collections::VecDeque;

use super::proto::{NSID, put};
use super::reservation::Notice;

/// Notices kept for a controller; of more only the number is known.
const NOTICES_MAX: usize = 64;
/// Bytes of the notification log page.
const NOTICE_BYTES: usize = 64;

/// The notification log of a controller.
#[derive(Debug, Default)]
pub(super) struct Notices {
    /// Each with its number.
    queue: VecDeque<(u64, Notice)>,
    /// The last number given.
    count: u64,
}

impl Notices {
    pub fn add(&mut self, notice: Notice) {
        self.count = self.count.checked_add(1).unwrap_or(1);
        let is_full = self.queue.len() == NOTICES_MAX;
        match self.queue.back_mut() {
            Some((count, _)) if is_full => *count = self.count,
            _ => self.queue.push_back((self.count, notice)),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    pub fn drop_first(&mut self) {
        self.queue.pop_front();
    }

    /// The log page of the oldest one; zeros if there is none.
    pub fn page(&self) -> Vec<u8> {
        let mut page = vec![0; NOTICE_BYTES];
        if let Some(&(count, notice)) = self.queue.front() {
            put(&mut page, 0, &count.to_le_bytes());
            page[8] = notice as u8;
            page[9] = (self.queue.len() - 1) as u8;
            put(&mut page, 12, &NSID.to_le_bytes());
        }
        page
    }
}

const _: () = assert!(NOTICES_MAX <= 256, "those behind the first fit a byte");
