//! Readers of a resource that another user owns.

/// The users that may read something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Everybody.
    All,
    /// A user, by number.
    User(u32),
    /// A group, by number.
    Group(u32),
}

impl Readers {
    /// True if a user whose group is this one is among them.
    pub fn have(self, user: u32, group: u32) -> bool {
        match self {
            Self::All => true,
            Self::User(its) => its == user,
            Self::Group(its) => its == group,
        }
    }
}
