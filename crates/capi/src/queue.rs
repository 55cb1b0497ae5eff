//! Queues.

use crate::area::{Structure, open_structure, store_length, store_ticket};
use crate::arguments::{Bytes, bytes, bytes_place, give_bytes, place, store};
use crate::handles::{Handle, Target, close, look_up};
use crate::result::{NONE, OK, call};
use area::{Area, Kind, Op, Queue};
use std::ffi::{c_char, c_int, c_void};

pub type OpenQueue = Structure<Queue>;

impl Target for OpenQueue {
    const KIND: u64 = 3;
    const NAME: &'static str = "queue";
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_queue_open(
    area: Handle,
    name: *const c_char,
    flags: u32,
    queue: *mut Handle,
) -> c_int {
    open_structure((area, name, flags, queue), Kind::Queue, Area::queue)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_queue_push(
    queue: Handle,
    data: *const c_void,
    length: usize,
    position: *mut u64,
) -> c_int {
    call(|| {
        let queue = look_up::<OpenQueue>(queue)?;
        store(position, queue.it.push(bytes(data, length)?)?);
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_queue_push_async(
    queue: Handle,
    data: *const c_void,
    length: usize,
    position: *mut u64,
    ticket: *mut u64,
) -> c_int {
    call(|| {
        let queue = &look_up::<OpenQueue>(queue)?.it;
        let op = Op::Push {
            queue: queue.id(),
            data: bytes(data, length)?,
        };
        let (receipt, pending) = queue.area().submit(&[op])?;
        store(position, receipt.positions[0]);
        store_ticket(ticket, &pending)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_queue_pop(queue: Handle, position: *mut u64, value: *mut Bytes) -> c_int {
    call(|| {
        let (at, place) = (place(position)?, bytes_place(value)?);
        let queue = look_up::<OpenQueue>(queue)?;
        let Some((position, value)) = queue.it.pop()? else {
            return Ok(NONE);
        };
        if let Err(failure) = give_bytes(place, Some(&value)) {
            queue.it.give_up(position);
            return Err(failure);
        }
        *at = position;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_queue_acknowledge(queue: Handle, position: u64) -> c_int {
    call(|| {
        let queue = look_up::<OpenQueue>(queue)?;
        queue.it.acknowledge(position)?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_queue_acknowledge_async(
    queue: Handle,
    position: u64,
    ticket: *mut u64,
) -> c_int {
    call(|| {
        let queue = &look_up::<OpenQueue>(queue)?.it;
        let op = Op::Acknowledge {
            queue: queue.id(),
            position,
        };
        let (_, pending) = queue.area().submit(&[op])?;
        store_ticket(ticket, &pending)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_queue_give_up(queue: Handle, position: u64) -> c_int {
    call(|| {
        let is_given_up = look_up::<OpenQueue>(queue)?.it.give_up(position);
        Ok(if is_given_up { OK } else { NONE })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_queue_read(queue: Handle, position: u64, value: *mut Bytes) -> c_int {
    call(|| {
        let place = bytes_place(value)?;
        let value = look_up::<OpenQueue>(queue)?.it.read(position)?;
        give_bytes(place, value.as_deref())?;
        Ok(if value.is_some() { OK } else { NONE })
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_queue_positions(queue: Handle, first: *mut u64, next: *mut u64) -> c_int {
    call(|| {
        let range = look_up::<OpenQueue>(queue)?.it.positions()?;
        store(first, range.start);
        store(next, range.end);
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_queue_length(queue: Handle, entries: *mut u64) -> c_int {
    store_length(queue, entries, Queue::len)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_queue_close(queue: Handle) -> c_int {
    close::<OpenQueue>(queue, |_| Ok(()))
}
