//! Completions: a descriptor that can be read when a ticket is durable, and a thread that waits for tickets.
//!
//! The thread writes the records that it waits for, as every thread that waits does. So changes that nobody waits for become
//! durable by it, one write after the other, while programs hand over the next ones.

use crate::area::{OpenArea, known_ticket};
use crate::arguments::place;
use crate::board::{Board, Completion};
use crate::handles::{Handle, Target, close, give, look_up};
use crate::result::{Failure, OK, Result, SYSTEM, call, invalid};
use crate::sync::{Arc, Mutex, PoisonError, Wake, thread};
use area::{Area, Ticket, process_generation};
use std::ffi::c_int;
use std::{io, mem};

/// The board, and the thread that serves it.
pub struct Completions {
    area: Area,
    board: Arc<Board>,
    thread: Mutex<Option<thread::JoinHandle<()>>>,
    generation: u32,
}

impl Target for Completions {
    const KIND: u64 = 9;
    const NAME: &'static str = "completions object";
}

fn system(error: &io::Error) -> Failure {
    Failure(
        SYSTEM,
        format!("the system refuses a descriptor or a thread: {error}"),
    )
}

impl Completions {
    fn new(area: Area) -> Result<Self> {
        let board = Arc::new(Board::new(Wake::new().map_err(|error| system(&error))?));
        let (its_area, its_board) = (area.clone(), Arc::clone(&board));
        let serve = move || {
            its_board.serve(|ticket| match its_area.wait(Ticket(ticket)) {
                Ok(()) => Ok(its_area.durable().0),
                Err(error) => Err(Failure::from(error).0),
            });
        };
        let thread = thread::Builder::new().name("completions".into()).spawn(serve);
        Ok(Self {
            area,
            board,
            thread: Mutex::new(Some(thread.map_err(|error| system(&error))?)),
            generation: process_generation(),
        })
    }
}

impl Drop for Completions {
    fn drop(&mut self) {
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner);
        if self.generation != process_generation() {
            // A forked child has no such thread, and what the thread held stays.
            mem::forget(thread.take());
            return;
        }
        self.board.close();
        if let Some(thread) = thread.take() {
            // Its panic was reported by itself.
            let _ = thread.join();
        }
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_completions_open(area: Handle, completions: *mut Handle) -> c_int {
    call(|| {
        let place = place(completions)?;
        *place = std::ptr::null_mut();
        let area = look_up::<OpenArea>(area)?.area.clone();
        *place = give(Completions::new(area)?)?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_completions_descriptor(completions: Handle, descriptor: *mut c_int) -> c_int {
    call(|| {
        *place(descriptor)? = look_up::<Completions>(completions)?.board.wake().fd();
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_completions_add(completions: Handle, ticket: u64, tag: u64) -> c_int {
    call(|| {
        let completions = look_up::<Completions>(completions)?;
        known_ticket(&completions.area, ticket)?;
        completions.board.add(ticket, tag);
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_completions_collect(
    completions: Handle,
    ended: *mut Completion,
    capacity: usize,
    count: *mut usize,
) -> c_int {
    call(|| {
        let count = place(count)?;
        *count = 0;
        let completions = look_up::<Completions>(completions)?;
        if ended.is_null() {
            return Err(invalid("there is no place for completions"));
        }
        let mut next = ended;
        *count = completions.board.collect(capacity, |completion| {
            // SAFETY: the caller has room for `capacity` completions, and no more come.
            unsafe {
                next.write(completion);
                next = next.add(1);
            }
        });
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_completions_close(completions: Handle) -> c_int {
    close::<Completions>(completions, |_| Ok(()))
}
