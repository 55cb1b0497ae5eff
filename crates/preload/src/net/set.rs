//! Sets of epoll(7) that have served sockets. The kernel's set of the same number has all other descriptors.

use base::Instant;
use libc::c_int;
use std::collections::VecDeque;

/// Flags of epoll_ctl(2) beside events.
const EDGE: u32 = libc::EPOLLET as u32;
const ONCE: u32 = libc::EPOLLONESHOT as u32;
/// Events that are told whether asked for or not.
const ALWAYS: u32 = (libc::EPOLLERR | libc::EPOLLHUP) as u32;
const OUT: u32 = libc::EPOLLOUT as u32;

/// One descriptor of a set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Interest {
    /// The socket.
    pub file: u32,
    /// Events asked for, and flags.
    pub events: u32,
    /// The program's word.
    pub data: u64,
    /// The kernel's set has the descriptor, too.
    pub is_kernels_too: bool,
    /// Its ticket in the queue of those to look at; 0 if it is not there.
    ticket: u64,
    /// It was told once, and waits to be asked for again.
    is_off: bool,
}

impl Interest {
    pub fn new(file: u32, events: u32, data: u64) -> Self {
        Self {
            file,
            events,
            data,
            is_kernels_too: false,
            ticket: 0,
            is_off: false,
        }
    }
}

/// The served part of a set.
#[derive(Debug, Default)]
pub(crate) struct Set {
    /// By descriptor.
    interests: Vec<Option<Interest>>,
    /// Descriptors to look at, with their tickets. One with an old ticket has left the set.
    queue: VecDeque<(c_int, u64)>,
    /// Tickets that there ever were.
    tickets: u64,
    /// When the kernel's part was looked at last.
    pub looked_at: Instant,
}

impl Set {
    pub fn get(&self, fd: c_int) -> Option<&Interest> {
        self.interests.get(usize::try_from(fd).ok()?)?.as_ref()
    }

    fn get_mut(&mut self, fd: c_int) -> Option<&mut Interest> {
        self.interests.get_mut(usize::try_from(fd).ok()?)?.as_mut()
    }

    pub fn all(&self) -> impl Iterator<Item = (c_int, &Interest)> {
        let all = self.interests.iter().enumerate();
        all.filter_map(|(fd, interest)| Some((fd as c_int, interest.as_ref()?)))
    }

    pub fn has_queued(&self) -> bool {
        !self.queue.is_empty()
    }

    /// Adds a descriptor, or asks for other events of it.
    pub fn put(&mut self, fd: c_int, mut interest: Interest) {
        interest.ticket = self.get(fd).map_or(0, |before| before.ticket);
        let place = usize::try_from(fd).expect("it is a descriptor");
        if self.interests.len() <= place {
            self.interests.resize(place + 1, None);
        }
        self.interests[place] = Some(interest);
        self.queue(fd);
    }

    pub fn remove(&mut self, fd: c_int) -> Option<Interest> {
        self.interests.get_mut(usize::try_from(fd).ok()?)?.take()
    }

    /// The kernel's set does not have the descriptor any more.
    pub fn leave_kernel(&mut self, fd: c_int) -> bool {
        self.get_mut(fd)
            .is_some_and(|it| std::mem::take(&mut it.is_kernels_too))
    }

    /// A descriptor has news.
    pub fn queue(&mut self, fd: c_int) {
        let ticket = self.tickets + 1;
        if let Some(interest) = self.get_mut(fd)
            && interest.ticket == 0
        {
            interest.ticket = ticket;
            self.tickets = ticket;
            self.queue.push_back((fd, ticket));
        }
    }

    /// Looks at descriptors that have news until `told` has had `count_max` of them. `look` says what a socket can do, and whether room is news. Descriptors
    /// without edges are looked at again next time, as long as there is something to tell.
    pub fn take(
        &mut self,
        count_max: usize,
        mut look: impl FnMut(&Interest) -> (u32, bool),
        mut tell: impl FnMut(&Interest, u32),
    ) -> usize {
        let mut count = 0;
        for _ in 0..self.queue.len() {
            if count == count_max {
                break;
            }
            let Some((fd, ticket)) = self.queue.pop_front() else {
                break;
            };
            let interest = self.interests.get_mut(fd as usize).and_then(Option::as_mut);
            let Some(interest) = interest.filter(|interest| interest.ticket == ticket) else {
                continue;
            };
            interest.ticket = 0;
            if interest.is_off {
                continue;
            }
            let is_edge = interest.events & EDGE != 0;
            let (can, is_room_news) = look(interest);
            let mut events = can & (interest.events | ALWAYS);
            if is_edge && events == OUT && !is_room_news {
                events = 0;
            }
            if events == 0 {
                continue;
            }
            tell(interest, events);
            count += 1;
            if interest.events & ONCE != 0 {
                interest.is_off = true;
            } else if !is_edge {
                self.tickets += 1;
                interest.ticket = self.tickets;
                self.queue.push_back((fd, self.tickets));
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const IN: u32 = libc::EPOLLIN as u32;

    fn told(set: &mut Set, can: u32) -> Vec<u64> {
        let mut found = Vec::new();
        set.take(8, |_| (can, false), |interest, _| found.push(interest.data));
        found
    }

    #[test]
    fn a_level_is_told_as_long_as_it_lasts_an_edge_once_and_a_shot_until_it_is_loaded_again() {
        let mut set = Set::default();
        set.put(5, Interest::new(1, IN, 50));
        set.put(6, Interest::new(2, IN | EDGE, 60));
        set.put(7, Interest::new(3, IN | ONCE, 70));
        assert_eq!(told(&mut set, IN), [50, 60, 70]);
        assert_eq!(told(&mut set, IN), [50]);
        [5, 6, 7].into_iter().for_each(|fd| set.queue(fd));
        assert_eq!(told(&mut set, IN), [50, 60]);
        assert_eq!(told(&mut set, 0), []);
        set.put(7, Interest::new(3, IN | ONCE, 71));
        assert_eq!(told(&mut set, IN), [71]);
        set.remove(5);
        assert_eq!(told(&mut set, IN), []);
    }

    #[test]
    fn room_is_told_to_an_edge_only_if_it_was_wanted() {
        let mut set = Set::default();
        set.put(5, Interest::new(1, IN | OUT | EDGE, 50));
        assert_eq!(told(&mut set, OUT), []);
        set.queue(5);
        assert_eq!(told(&mut set, IN | OUT), [50]);
        set.queue(5);
        let mut count = 0;
        set.take(8, |_| (OUT, true), |_, _| count += 1);
        assert_eq!(count, 1);
    }

    #[test]
    fn a_descriptor_that_comes_back_is_told_once_and_one_that_has_left_never() {
        let mut set = Set::default();
        set.put(5, Interest::new(1, IN, 50));
        set.put(6, Interest::new(2, IN, 60));
        assert!(set.remove(5).is_some() && set.remove(5).is_none());
        set.put(5, Interest::new(3, IN, 51));
        assert_eq!(told(&mut set, IN), [60, 51]);
        set.remove(6);
        assert_eq!(told(&mut set, IN), [51]);
        set.remove(5);
        assert_eq!(told(&mut set, IN), []);
        assert!(!set.has_queued() && set.all().count() == 0);
    }
}
