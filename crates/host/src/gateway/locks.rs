//! The pages of a volume that are being changed, each with the parts that wait for it.

use super::merge::Part;
use base::Map;
use std::collections::VecDeque;

/// The locked pages.
#[derive(Debug, Default)]
pub(super) struct Locks(Map<u64, VecDeque<Part>>);

impl Locks {
    /// Locks a page for a part and returns the part, or lets the part wait.
    pub fn lock(&mut self, page: u64, part: Part) -> Option<Part> {
        match self.0.get_mut(&page) {
            Some(waiting) => {
                waiting.push_back(part);
                None
            }
            None => {
                self.0.insert(page, VecDeque::new());
                Some(part)
            }
        }
    }

    /// A change of a page ended: takes the parts that waited for the page, or unlocks it.
    pub fn next(&mut self, page: u64) -> Option<Vec<Part>> {
        let waiting = self.0.get_mut(&page)?;
        if waiting.is_empty() {
            self.0.remove(&page);
            return None;
        }
        Some(waiting.drain(..).collect())
    }

    /// Parts of a request wait no more.
    pub fn forget(&mut self, request: u32) {
        for page in self.0.sorted_keys() {
            if let Some(waiting) = self.0.get_mut(&page) {
                waiting.retain(|part| part.request != request);
            }
        }
    }
}
