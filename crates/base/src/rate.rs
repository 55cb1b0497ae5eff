//! How fast something may be read and written.

/// Operations and bytes allowed in a second, for reading and for writing each. 0 stands for no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rate {
    /// Operations a second.
    pub operations: u32,
    /// Bytes a second.
    pub bytes: u64,
}

impl Rate {
    /// Nothing is limited.
    pub const UNLIMITED: Self = Self {
        operations: 0,
        bytes: 0,
    };

    /// True if anything is limited.
    pub fn is_limited(self) -> bool {
        self != Self::UNLIMITED
    }
}
