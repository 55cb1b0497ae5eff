//! Model check of the board of completions: `shuttle` runs the shipped source under many schedules (docs/concurrency.md).

#[path = "../../../os/tests/model/check.rs"]
mod check;
#[path = "../../../os/tests/model/sync.rs"]
mod sync;

#[allow(dead_code, reason = "the descriptor is the bindings'")]
#[path = "../../src/board.rs"]
mod board;

use board::{Board, Completion};
use check::{SCHEDULES, check, finds, finds_that};
use shuttle::sync::Mutex as ModelMutex;
use shuttle::thread;
use std::sync::Arc;
use sync::{Fault, Wake};

/// Tickets of each thread that asks.
const TICKETS: u64 = 3;
const THREADS: u64 = 2;

/// An area: tickets become durable in order, when somebody waits for them.
#[derive(Default)]
struct Area(ModelMutex<u64>);

impl Area {
    fn wait(&self, ticket: u64, failed_from: u64) -> Result<u64, i32> {
        thread::yield_now();
        let mut durable = self.0.lock().expect("no panic");
        if ticket >= failed_from {
            return Err(-3);
        }
        *durable = (*durable).max(ticket);
        Ok(*durable)
    }

    fn durable(&self) -> u64 {
        *self.0.lock().expect("no panic")
    }
}

/// Threads ask for tickets, in no order; one collects all of them, and then closes the board.
fn scenario(failed_from: u64) {
    let board = Arc::new(Board::new(Wake::new().expect("it takes nothing")));
    let area = Arc::new(Area::default());
    let served = {
        let (board, area) = (Arc::clone(&board), Arc::clone(&area));
        thread::spawn(move || board.serve(|ticket| area.wait(ticket, failed_from)))
    };
    let ask = |number: u64| {
        let board = Arc::clone(&board);
        thread::spawn(move || {
            for index in 0..TICKETS {
                let ticket = 1 + index * THREADS + number;
                board.add(ticket, ticket);
            }
        })
    };
    let asking: Vec<_> = (0..THREADS).map(ask).collect();
    let mut found = Vec::new();
    while found.len() < (TICKETS * THREADS) as usize {
        board.wake().wait();
        let count = board.collect(2, |completion: Completion| found.push(completion));
        assert!(
            count > 0,
            "the descriptor can be read without anything to collect"
        );
    }
    assert_eq!(board.collect(2, |completion| found.push(completion)), 0);
    let mut tags: Vec<u64> = found.iter().map(|completion| completion.tag).collect();
    tags.sort_unstable();
    assert!(tags.iter().copied().eq(1..=TICKETS * THREADS), "{tags:?}");
    for completion in found {
        let expected = if completion.ticket >= failed_from { -3 } else { 0 };
        assert_eq!(completion.code, expected);
        assert!(completion.code != 0 || completion.ticket <= area.durable());
    }
    for thread in asking {
        thread.join().expect("no panic");
    }
    board.close();
    served.join().expect("no panic");
}

/// A board that is closed while tickets are waited for.
fn closed_early() {
    let board = Arc::new(Board::new(Wake::new().expect("it takes nothing")));
    let area = Arc::new(Area::default());
    let served = {
        let (board, area) = (Arc::clone(&board), Arc::clone(&area));
        thread::spawn(move || board.serve(|ticket| area.wait(ticket, u64::MAX)))
    };
    board.add(2, 2);
    board.add(1, 1);
    board.close();
    served.join().expect("no panic");
}

#[test]
fn every_ticket_is_told_once() {
    check(None, SCHEDULES, || scenario(u64::MAX));
}

#[test]
fn failures_are_told_for_the_tickets_that_failed() {
    check(None, SCHEDULES, || scenario(4));
}

#[test]
fn a_board_ends_when_it_is_closed() {
    check(None, SCHEDULES, closed_early);
}

#[test]
fn a_condition_that_wakes_nobody_is_found() {
    finds(Some(Fault::NotifiesNone), || scenario(u64::MAX));
}

#[test]
fn a_descriptor_that_nobody_wakes_is_found() {
    finds(Some(Fault::WakesNoCore), || scenario(u64::MAX));
}

/// The descriptor is cleared as long as something is left to collect.
mod early_clear {
    /// As [`super::board::Board::collect`], mistaken.
    pub fn collect(board: &super::Board, found: &mut Vec<super::Completion>) {
        board.collect(1, |completion| found.push(completion));
        board.wake().clear();
    }
}

#[test]
fn a_descriptor_that_is_cleared_too_early_is_found() {
    let mistaken = || {
        let board = Arc::new(Board::new(Wake::new().expect("it takes nothing")));
        let served = {
            let board = Arc::clone(&board);
            thread::spawn(move || board.serve(Ok))
        };
        (1..=3).for_each(|ticket| board.add(ticket, ticket));
        let mut found = Vec::new();
        while found.len() < 3 {
            board.wake().wait();
            early_clear::collect(&board, &mut found);
        }
        board.close();
        served.join().expect("no panic");
    };
    finds_that(None, "deadlock", mistaken);
}
