//! How an end of several lanes sleeps: all lanes know of it, or none does.
//!
//! # Why no wake is lost
//! Each lane in turn gets the mark of a sleeper, and is looked at after that (`lane.rs`). So a frame that comes before its lane's look keeps the end
//! awake, and a frame that comes later finds the mark, and rings. All doorbells are in one set, which the end sleeps on.

/// A step for one lane.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The end sets the mark, and looks. False if there is something to do.
    Sleep,
    /// The end takes the mark away.
    Rise,
}

/// Has an end of `count` lanes sleep. False if one of them has something to do: the end stays awake.
#[inline]
pub fn sleep_at_all(count: usize, mut step: impl FnMut(usize, Step) -> bool) -> bool {
    let is_asleep = (0..count).all(|lane| step(lane, Step::Sleep));
    if !is_asleep {
        rise_from_all(count, step);
    }
    is_asleep
}

/// Says at all lanes that the end is awake.
#[inline]
pub fn rise_from_all(count: usize, mut step: impl FnMut(usize, Step) -> bool) {
    for lane in 0..count {
        step(lane, Step::Rise);
    }
}
