//! Who sleeps, and who wakes whom, in a program whose threads share a link. All of it is under the stack's lock.
//!
//! A thread lies down after a look that found nothing, with the lock held since then. One sleeper at most, the *watch*, sleeps on the link's doorbell, too.
//!
//! # Why no wake is lost
//! Frames are carried by threads that hold the lock, and whoever carries wakes those that wait for the news. So a sleeper misses no news that somebody
//! carries. Somebody carries all frames: the link rings for the watch, who gets up, and wakes another sleeper before it leaves. That one looks for itself, and
//! becomes the watch. If nobody else sleeps, the keeper is woken, and looks from time to time.

use super::sync::{Arc, Wake};
use base::Instant;

/// The news that a sleeping thread waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum On {
    /// News of a file.
    File(u32),
    /// News of a set's descriptors.
    Set(i32),
    /// News of any.
    Any,
    /// Nothing but its time, and the keeper's other work.
    Keeper,
}

/// A thread that sleeps.
#[derive(Debug)]
struct Sleeper {
    number: u64,
    on: On,
    wake: Arc<Wake>,
}

/// The thread that sleeps on the doorbell.
#[derive(Debug)]
struct Watch {
    number: u64,
    is_keeper: bool,
    /// It gets up then.
    deadline: Option<Instant>,
}

/// A place to sleep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    pub number: u64,
    /// The thread is the watch.
    pub is_watch: bool,
    /// The watch gets up then.
    pub deadline: Option<Instant>,
}

/// All sleepers.
#[derive(Debug)]
pub(crate) struct Beds {
    sleepers: Vec<Sleeper>,
    watch: Option<Watch>,
    made: u64,
    /// The keeper's wake, once there is a keeper, and whether it sleeps until it is woken.
    keeper: Option<Arc<Wake>>,
    is_keeper_asleep: bool,
}

impl Beds {
    pub const fn new() -> Self {
        Self {
            sleepers: Vec::new(),
            watch: None,
            made: 0,
            keeper: None,
            is_keeper_asleep: false,
        }
    }

    /// The thread is to sleep until its wake. If the link is up and nobody is at its doorbell, `park` tells the link, and when the stack has something to do.
    /// None if there is something to do first.
    pub fn lie_down<P>(&mut self, on: On, wake: Arc<Wake>, park: Option<P>) -> Option<Place>
    where
        P: FnOnce() -> Option<Option<Instant>>,
    {
        self.made += 1;
        let mut place = Place {
            number: self.made,
            is_watch: false,
            deadline: None,
        };
        if self.watch.is_none()
            && let Some(park) = park
        {
            place.deadline = park()?;
            place.is_watch = true;
            self.watch = Some(Watch {
                number: place.number,
                is_keeper: on == On::Keeper,
                deadline: place.deadline,
            });
        }
        self.sleepers.push(Sleeper {
            number: place.number,
            on,
            wake,
        });
        Some(place)
    }

    /// The thread is awake again. Its wake, and whether it was the watch: the link is told then.
    pub fn get_up(&mut self, number: u64) -> Option<(Arc<Wake>, bool)> {
        let place = self.sleepers.iter().position(|it| it.number == number)?;
        let sleeper = self.sleepers.swap_remove(place);
        sleeper.wake.clear();
        let was_watch = self.watch.as_ref().is_some_and(|watch| watch.number == number);
        if was_watch {
            self.watch = None;
        }
        // This one may have been woken to become the watch, and has something else to do now.
        if self.watch.is_none() {
            let is_program = |sleeper: &&Sleeper| sleeper.on != On::Keeper;
            if let Some(next) = self.sleepers.iter().find(is_program) {
                next.wake.wake();
            } else if self.is_keeper_asleep {
                self.wake_keeper();
            }
        }
        Some((sleeper.wake, was_watch))
    }

    /// Wakes those that wait for it.
    pub fn wake(&self, is_meant: impl Fn(On) -> bool) {
        for sleeper in &self.sleepers {
            if is_meant(sleeper.on) {
                sleeper.wake.wake();
            }
        }
    }

    /// A thread of the program is here: the keeper need not be woken for frames. True if it was the watch: the link is told then.
    pub fn relieve(&mut self) -> bool {
        let is_keeper = self.watch.as_ref().is_some_and(|watch| watch.is_keeper);
        if is_keeper {
            self.watch = None;
            self.wake_keeper();
        }
        is_keeper
    }

    /// The stack has something to do then: a watch that would get up later is woken.
    pub fn hurry(&self, deadline: Instant) {
        if let Some(watch) = &self.watch
            && watch.deadline.is_none_or(|until| deadline < until)
        {
            let number = watch.number;
            let watch = self.sleepers.iter().filter(|it| it.number == number);
            watch.for_each(|watch| watch.wake.wake());
        }
    }

    /// Whether anybody sleeps on the doorbell.
    pub fn has_watch(&self) -> bool {
        self.watch.is_some()
    }

    /// Whether a thread of the program does.
    pub fn has_program_watch(&self) -> bool {
        self.watch.as_ref().is_some_and(|watch| !watch.is_keeper)
    }

    /// There is a keeper from now on.
    pub fn set_keeper(&mut self, wake: Arc<Wake>) {
        self.keeper = Some(wake);
    }

    pub fn has_keeper(&self) -> bool {
        self.keeper.is_some()
    }

    /// The keeper sleeps until it is woken.
    pub fn keeper_sleeps(&mut self) {
        self.is_keeper_asleep = true;
    }

    pub fn wake_keeper(&mut self) {
        self.is_keeper_asleep = false;
        if let Some(keeper) = &self.keeper {
            keeper.wake();
        }
    }
}
