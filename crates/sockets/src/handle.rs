//! Names of sockets.

/// A socket's name. One that was closed is refused, also when its place has the next socket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Handle {
    pub(crate) index: u32,
    pub(crate) generation: u32,
}

impl Handle {
    /// The socket's place, for tables of the program: below the largest number of sockets at a time.
    pub const fn index(self) -> usize {
        self.index as usize
    }

    /// As the stack keeps it.
    pub(crate) const fn word(self) -> u64 {
        (self.generation as u64) << 32 | self.index as u64
    }

    pub(crate) const fn of_word(word: u64) -> Self {
        Self {
            index: word as u32,
            generation: (word >> 32) as u32,
        }
    }
}
