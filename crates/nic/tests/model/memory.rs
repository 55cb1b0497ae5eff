//! Memory of two processes, played by the checker: words that threads share, and bytes.

use crate::sync::AtomicU64;
use std::sync::Mutex;

/// Words of a lane that the ends share: their own three, and descriptors.
const OWN: usize = 3;
const DESCRIPTORS: usize = 16;
const DESCRIPTORS_AT: usize = 4096;

pub struct Memory {
    words: Vec<AtomicU64>,
    bytes: Mutex<Vec<u8>>,
}

impl Memory {
    pub fn new(bytes: usize) -> Self {
        Self {
            words: (0..OWN + DESCRIPTORS).map(|_| AtomicU64::new(0)).collect(),
            bytes: Mutex::new(vec![0; bytes]),
        }
    }

    pub fn word(&self, at: usize) -> &AtomicU64 {
        match at.checked_sub(DESCRIPTORS_AT) {
            None => &self.words[at / 64],
            Some(at) => &self.words[OWN + at / 8],
        }
    }

    pub fn write(&self, at: usize, bytes: &[u8]) {
        self.bytes.lock().expect("no panic")[at..at + bytes.len()].copy_from_slice(bytes);
    }

    pub fn read(&self, at: usize, bytes: &mut [u8]) {
        bytes.copy_from_slice(&self.bytes.lock().expect("no panic")[at..at + bytes.len()]);
    }
}

impl std::fmt::Debug for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Memory")
    }
}
