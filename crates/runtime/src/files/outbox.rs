//! What a program sent outward and that waits for what it synced before (external synchrony: Nightingale, Veeraraghavan, Chen,
//! Flinn, "Rethink the Sync", OSDI 2006).
//!
//! One queue for all descriptors: what leaves does so in the order in which the program sent it. Each piece has the ticket of the
//! newest sync before it, and leaves when that is durable. One thread at a time sends, without the lock.
//!
//! A descriptor whose other end takes nothing more is *full*: what is held for it waits aside, and delays nobody else's.

use crate::area::Ticket;
use smallvec::SmallVec;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::RawFd;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Bytes held for one descriptor at most. As a socket's buffer: beyond, a writer waits.
pub const HELD_BYTES_MAX: usize = 256 << 10;
/// Bytes held for all.
const ALL_BYTES_MAX: usize = 16 << 20;
/// Pieces that are taken for sending at once.
const BATCH: usize = 32;

struct Held {
    after: Ticket,
    fd: RawFd,
    /// Most answers are short.
    data: SmallVec<[u8; 32]>,
}

/// What is held for a descriptor.
#[derive(Default)]
struct Line {
    pieces: usize,
    bytes: usize,
    /// Durable, and refused by a full descriptor.
    refused: VecDeque<u8>,
    is_full: bool,
}

#[derive(Default)]
struct State {
    held: VecDeque<Held>,
    lines: BTreeMap<RawFd, Line>,
    bytes: usize,
    synced: Ticket,
    is_sending: bool,
    waiting: usize,
}

/// Whether a piece is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// It is.
    Held,
    /// Nothing keeps it from being sent at once.
    Free,
    /// There is no room: settle first.
    Crowded,
    /// The descriptor is full, and nothing else keeps it.
    Full,
}

/// See the module.
#[derive(Default)]
pub struct Outbox {
    state: Mutex<State>,
    /// A batch has been sent.
    sent: Condvar,
}

impl Outbox {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The program was told that everything up to `ticket` is synced; `f` is called under the lock.
    pub fn synced(&self, ticket: Ticket, f: impl FnOnce()) {
        let mut state = self.lock();
        state.synced = state.synced.max(ticket);
        f();
    }

    /// The newest ticket that the program was told of.
    pub fn newest(&self) -> Ticket {
        self.lock().synced
    }

    /// True if something is held that waits for nothing any more.
    pub fn is_due(&self, durable: Ticket) -> bool {
        self.lock()
            .held
            .front()
            .is_some_and(|front| front.after <= durable)
    }

    /// Holds what is sent to a descriptor, if something it may tell of is not durable, or something is held before it.
    pub fn hold(&self, fd: RawFd, parts: &[&[u8]], durable: impl FnOnce() -> Ticket) -> Hold {
        let mut state = self.lock();
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let after = state.synced;
        let line = state.lines.get(&fd);
        let (held_bytes, is_full) = line.map_or((0, false), |it| (it.bytes, it.is_full));
        if line.is_none_or(|it| it.pieces == 0) && durable() >= after {
            return if is_full { Hold::Full } else { Hold::Free };
        }
        if held_bytes + bytes > HELD_BYTES_MAX || state.bytes + bytes > ALL_BYTES_MAX {
            return Hold::Crowded;
        }
        let mut data = SmallVec::with_capacity(bytes);
        parts.iter().for_each(|part| data.extend_from_slice(part));
        state.held.push_back(Held { after, fd, data });
        state.bytes += bytes;
        let line = state.lines.entry(fd).or_default();
        line.pieces += 1;
        line.bytes += bytes;
        Hold::Held
    }

    /// Sends, by `send`, what waits for nothing up to `durable`, unless another thread is at it. `send` tells how much was
    /// taken; by an error other than `WouldBlock` the descriptor is of no more use, and what is held for it is dropped.
    /// `f` is called under the lock at the end if nothing is held and everything synced is durable.
    pub fn flush(
        &self,
        durable: impl Fn() -> Ticket,
        send: impl Fn(RawFd, &[u8]) -> io::Result<usize>,
        f: impl FnOnce(),
    ) {
        let mut state = self.lock();
        if state.is_sending {
            return;
        }
        state.is_sending = true;
        loop {
            let limit = durable();
            let mut batch: SmallVec<[Held; BATCH]> = SmallVec::new();
            while batch.len() < BATCH && state.held.front().is_some_and(|front| front.after <= limit) {
                let held = state.held.pop_front().expect("just seen");
                match state.lines.get_mut(&held.fd).filter(|line| line.is_full) {
                    Some(line) => {
                        line.pieces -= 1;
                        line.refused.extend(&held.data);
                    }
                    None => batch.push(held),
                }
            }
            if batch.is_empty() {
                break;
            }
            drop(state);
            let results: SmallVec<[io::Result<usize>; BATCH]> = deliver(&batch, &send);
            state = self.lock();
            for (held, result) in batch.iter().zip(results) {
                state.account(held, result);
            }
        }
        state.is_sending = false;
        if state.held.is_empty() && state.lines.is_empty() && durable() >= state.synced {
            f();
        }
        if state.waiting > 0 {
            self.sent.notify_all();
        }
    }

    /// Waits until everything that waited for tickets up to `ticket` is sent, or waits aside. Whoever calls has flushed.
    pub fn await_sent(&self, ticket: Ticket) {
        let mut state = self.lock();
        while state.is_sending || state.held.front().is_some_and(|front| front.after <= ticket) {
            if !state.is_sending {
                return;
            }
            state.waiting += 1;
            state = self.sent.wait(state).unwrap_or_else(PoisonError::into_inner);
            state.waiting -= 1;
        }
    }

    /// Tries full descriptors again; true if one still is. `done` is called for each that is not.
    pub fn retry(
        &self,
        send: impl Fn(RawFd, &[u8]) -> io::Result<usize>,
        mut done: impl FnMut(RawFd),
    ) -> bool {
        let mut state = self.lock();
        if state.is_sending {
            return true;
        }
        let State { lines, bytes, .. } = &mut *state;
        lines.retain(|&fd, line| {
            if !line.is_full {
                return true;
            }
            line.refused.make_contiguous();
            match send(fd, line.refused.as_slices().0) {
                Ok(count) => {
                    line.refused.drain(..count);
                    line.bytes -= count;
                    *bytes -= count;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(_) => {
                    line.bytes -= line.refused.len();
                    *bytes -= line.refused.len();
                    line.refused.clear();
                }
            }
            line.is_full = !line.refused.is_empty();
            if !line.is_full {
                done(fd);
            }
            line.is_full || line.pieces > 0
        });
        state.lines.values().any(|line| line.is_full)
    }

    /// True if something waits aside for the descriptor.
    pub fn is_full(&self, fd: RawFd) -> bool {
        self.lock().lines.get(&fd).is_some_and(|line| line.is_full)
    }

    /// What waits aside for `fd` is for its copy `to` now. Only after everything before was sent.
    pub fn rename(&self, fd: RawFd, to: RawFd) {
        let mut state = self.lock();
        if let Some(line) = state.lines.remove(&fd) {
            state.lines.insert(to, line);
        }
    }
}

/// Each piece in order; after one that its descriptor did not take whole, no other one for it.
fn deliver(
    batch: &[Held],
    send: impl Fn(RawFd, &[u8]) -> io::Result<usize>,
) -> SmallVec<[io::Result<usize>; BATCH]> {
    let mut refused: SmallVec<[RawFd; 4]> = SmallVec::new();
    let one = |held: &Held| {
        if refused.contains(&held.fd) {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let result = send(held.fd, &held.data);
        let is_full = match &result {
            Ok(count) => *count < held.data.len(),
            Err(error) => error.kind() == io::ErrorKind::WouldBlock,
        };
        if is_full {
            refused.push(held.fd);
        }
        result
    };
    batch.iter().map(one).collect()
}

impl State {
    /// A piece was sent as `result` says.
    fn account(&mut self, held: &Held, result: io::Result<usize>) {
        let line = self.lines.get_mut(&held.fd).expect("it has a piece");
        line.pieces -= 1;
        let kept = match result {
            Ok(count) => &held.data[count.min(held.data.len())..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => &held.data[..],
            Err(_) => &[],
        };
        line.refused.extend(kept);
        line.is_full |= !kept.is_empty();
        let gone = held.data.len() - kept.len();
        line.bytes -= gone;
        self.bytes -= gone;
        if line.pieces == 0 && !line.is_full {
            self.lines.remove(&held.fd);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn sink(sent: &RefCell<Vec<(RawFd, Vec<u8>)>>) -> impl Fn(RawFd, &[u8]) -> io::Result<usize> + '_ {
        |fd, data| {
            sent.borrow_mut().push((fd, data.to_vec()));
            Ok(data.len())
        }
    }

    #[test]
    fn nothing_leaves_before_what_was_synced_before_it_is_durable() {
        let outbox = Outbox::default();
        let sent = RefCell::default();
        let flush = |durable| outbox.flush(|| Ticket(durable), sink(&sent), || {});
        assert_eq!(outbox.hold(5, &[b"free"], || Ticket(0)), Hold::Free);
        outbox.synced(Ticket(3), || {});
        assert_eq!(outbox.hold(5, &[b"a", b"b"], || Ticket(2)), Hold::Held);
        outbox.synced(Ticket(4), || {});
        assert_eq!(outbox.hold(6, &[b"c"], || Ticket(2)), Hold::Held);
        // In order per descriptor, though it need not wait for a sync itself.
        assert_eq!(outbox.hold(5, &[b"d"], || Ticket(4)), Hold::Held);
        flush(2);
        assert!(sent.borrow().is_empty());
        flush(3);
        assert_eq!(*sent.borrow(), [(5, b"ab".to_vec())]);
        flush(4);
        assert_eq!(sent.borrow()[1..], [(6, b"c".to_vec()), (5, b"d".to_vec())]);
        assert_eq!(outbox.hold(5, &[b"e"], || Ticket(4)), Hold::Free);
    }

    #[test]
    fn a_full_descriptor_keeps_its_order_and_delays_nobody() {
        let outbox = Outbox::default();
        let sent = RefCell::default();
        let room = RefCell::new(3);
        let send = |fd, data: &[u8]| {
            let count = if fd == 5 {
                data.len().min(*room.borrow())
            } else {
                data.len()
            };
            if count == 0 {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            if fd == 5 {
                *room.borrow_mut() -= count;
            }
            sink(&sent)(fd, &data[..count])
        };
        outbox.synced(Ticket(1), || {});
        for (fd, data) in [(5, b"12"), (5, b"34"), (6, b"ab"), (5, b"56")] {
            assert_eq!(outbox.hold(fd, &[data], || Ticket(0)), Hold::Held);
        }
        outbox.flush(|| Ticket(1), send, || panic!("something is held"));
        assert_eq!(
            *sent.borrow(),
            [(5, b"12".to_vec()), (5, b"3".to_vec()), (6, b"ab".to_vec())]
        );
        assert_eq!(outbox.hold(5, &[b"x"], || Ticket(1)), Hold::Full);
        assert!(outbox.retry(send, |_| {}));
        *room.borrow_mut() = 9;
        outbox.rename(5, 5);
        assert!(!outbox.retry(send, |fd| assert_eq!(fd, 5)));
        assert_eq!(sent.borrow()[3..], [(5, b"456".to_vec())]);
        assert_eq!(outbox.hold(5, &[b"x"], || Ticket(1)), Hold::Free);
        let mut is_settled = false;
        outbox.flush(|| Ticket(1), send, || is_settled = true);
        assert!(is_settled);
    }

    #[test]
    fn what_is_held_is_bounded() {
        let outbox = Outbox::default();
        outbox.synced(Ticket(1), || {});
        let half = vec![0; HELD_BYTES_MAX / 2];
        for expected in [Hold::Held, Hold::Held, Hold::Crowded] {
            assert_eq!(outbox.hold(5, &[&half], || Ticket(0)), expected);
        }
        // The other end is gone.
        let gone = |_, _: &[u8]| Err(io::ErrorKind::BrokenPipe.into());
        let mut is_settled = false;
        outbox.flush(|| Ticket(1), gone, || is_settled = true);
        assert!(is_settled);
        assert_eq!(outbox.hold(5, &[&half], || Ticket(1)), Hold::Free);
    }
}
