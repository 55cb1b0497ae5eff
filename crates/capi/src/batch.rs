//! Batches: changes of several structures that become durable together, or not at all.

use crate::area::{OpenArea, Structure, store_ticket, structure_of};
use crate::arguments::{Bytes, bytes, bytes_place, give_bytes, place, store};
use crate::handles::{Handle, Target, close, give, look_up};
use crate::keyed::{OpenMap, OpenTree, key_of};
use crate::log::OpenLog;
use crate::queue::OpenQueue;
use crate::result::{Failure, NONE, OK, Result, TOO_LARGE, call, invalid};
use crate::sync::{Arc, Mutex, MutexGuard, PoisonError};
use area::{Area, AreaError, Expected, Keyed, Op, StructureId, Version};
use std::ffi::{c_int, c_void};
use store::OwnedOp;

/// A batch, and the area that it is for.
pub struct OpenBatch {
    area: Area,
    number: u64,
    /// Bytes that it may have.
    bytes_max: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    ops: Vec<OwnedOp>,
    bytes: usize,
    /// Appends and pushes, each of which gets a position.
    additions: usize,
    expected: Vec<(StructureId, Box<[u8]>, Option<Version>)>,
    /// Structure and key that were not as expected when the batch was handed over last.
    conflict: Option<(Box<str>, Box<[u8]>)>,
}

impl Target for OpenBatch {
    const KIND: u64 = 8;
    const NAME: &'static str = "batch";
}

impl OpenBatch {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A structure of the batch's area.
    fn structure<T>(&self, handle: Handle) -> Result<Arc<Structure<T>>>
    where
        Structure<T>: Target,
    {
        structure_of(handle, self.number, Self::NAME)
    }

    fn add(&self, op: OwnedOp) -> Result<c_int> {
        let mut state = self.lock();
        let bytes = state.bytes + op.op().bytes();
        if bytes > self.bytes_max {
            let text = format!("a batch has {} bytes at most, not {bytes}", self.bytes_max);
            return Err(Failure(TOO_LARGE, text));
        }
        state.bytes = bytes;
        state.additions += usize::from(matches!(op, OwnedOp::Append(..) | OwnedOp::Push(..)));
        state.ops.push(op);
        Ok(OK)
    }

    /// Hands the batch over by `submit`, and empties it if that succeeds.
    fn hand_over<R>(
        &self,
        (positions, capacity): (*mut u64, usize),
        submit: impl FnOnce(&[Op<'_>], &[Expected<'_>]) -> std::result::Result<(area::Receipt, R), AreaError>,
    ) -> Result<R> {
        let mut state = self.lock();
        if !positions.is_null() && capacity < state.additions {
            let text = format!(
                "the batch gets {} positions: there is no place for them",
                state.additions
            );
            return Err(invalid(&text));
        }
        let ops: Vec<_> = state.ops.iter().map(OwnedOp::op).collect();
        let expected = state.expected.iter();
        let expected = expected.map(|&(map, ref key, version)| Expected { map, key, version });
        let outcome = submit(&ops, &expected.collect::<Vec<_>>());
        state.conflict = match &outcome {
            Err(AreaError::Conflict { structure, key }) => Some((structure.clone(), key.clone())),
            _ => None,
        };
        let (receipt, result) = outcome?;
        for (index, position) in receipt.positions.iter().enumerate() {
            if !positions.is_null() {
                // SAFETY: the caller has room for `capacity` positions, and they are no more.
                store(unsafe { positions.add(index) }, *position);
            }
        }
        *state = State::default();
        Ok(result)
    }
}

/// Adds to a batch what `op` makes.
fn add(batch: Handle, op: impl FnOnce(&OpenBatch) -> Result<OwnedOp>) -> c_int {
    call(|| {
        let batch = look_up::<OpenBatch>(batch)?;
        batch.add(op(&batch)?)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_batch_open(area: Handle, batch: *mut Handle) -> c_int {
    call(|| {
        let place = place(batch)?;
        *place = std::ptr::null_mut();
        let open = look_up::<OpenArea>(area)?;
        *place = give(OpenBatch {
            area: open.area.clone(),
            number: open.number,
            bytes_max: open.area.batch_bytes_max(),
            state: Mutex::default(),
        })?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_batch_append(
    batch: Handle,
    log: Handle,
    data: *const c_void,
    length: usize,
) -> c_int {
    add(batch, |batch| {
        let log: Arc<OpenLog> = batch.structure(log)?;
        Ok(OwnedOp::Append(log.it.id(), bytes(data, length)?.into()))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_batch_trim(batch: Handle, log: Handle, floor: u64) -> c_int {
    add(batch, |batch| {
        let log: Arc<OpenLog> = batch.structure(log)?;
        Ok(OwnedOp::Trim(log.it.id(), floor))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_batch_push(
    batch: Handle,
    queue: Handle,
    data: *const c_void,
    length: usize,
) -> c_int {
    add(batch, |batch| {
        let queue: Arc<OpenQueue> = batch.structure(queue)?;
        Ok(OwnedOp::Push(queue.it.id(), bytes(data, length)?.into()))
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_batch_acknowledge(batch: Handle, queue: Handle, position: u64) -> c_int {
    add(batch, |batch| {
        let queue: Arc<OpenQueue> = batch.structure(queue)?;
        Ok(OwnedOp::Acknowledge(queue.it.id(), position))
    })
}

macro_rules! keyed {
    ($open:ident, $put:ident, $remove:ident, $expect:ident) => {
        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $put(
            batch: Handle,
            structure: Handle,
            key: *const c_void,
            key_length: usize,
            data: *const c_void,
            length: usize,
        ) -> c_int {
            add(batch, |batch| {
                let structure: Arc<$open> = batch.structure(structure)?;
                let (key, data) = (key_of(key, key_length)?, bytes(data, length)?);
                Ok(OwnedOp::Put(structure.it.number(), key.into(), data.into()))
            })
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $remove(
            batch: Handle,
            structure: Handle,
            key: *const c_void,
            key_length: usize,
        ) -> c_int {
            add(batch, |batch| {
                let structure: Arc<$open> = batch.structure(structure)?;
                Ok(OwnedOp::Remove(
                    structure.it.number(),
                    key_of(key, key_length)?.into(),
                ))
            })
        }

        #[unsafe(no_mangle)]
        pub unsafe extern "C" fn $expect(
            batch: Handle,
            structure: Handle,
            key: *const c_void,
            key_length: usize,
            version: u64,
        ) -> c_int {
            call(|| {
                let batch = look_up::<OpenBatch>(batch)?;
                let structure: Arc<$open> = batch.structure(structure)?;
                let (number, key) = (structure.it.number(), key_of(key, key_length)?);
                let expected = (number, key.into(), Version::new(version));
                batch.lock().expected.push(expected);
                Ok(OK)
            })
        }
    };
}

keyed!(
    OpenMap,
    swy_batch_map_put,
    swy_batch_map_remove,
    swy_batch_map_expect
);
keyed!(
    OpenTree,
    swy_batch_tree_put,
    swy_batch_tree_remove,
    swy_batch_tree_expect
);

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_batch_conflict(batch: Handle, structure: *mut Bytes, key: *mut Bytes) -> c_int {
    call(|| {
        let (structure_place, key_place) = (bytes_place(structure)?, bytes_place(key)?);
        let batch = look_up::<OpenBatch>(batch)?;
        let state = batch.lock();
        let Some((structure, key)) = &state.conflict else {
            return Ok(NONE);
        };
        give_bytes(structure_place, Some(structure.as_bytes()))?;
        give_bytes(key_place, Some(key)).inspect_err(|_| structure_place.free())?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_batch_length(
    batch: Handle,
    changes: *mut usize,
    additions: *mut usize,
) -> c_int {
    call(|| {
        let batch = look_up::<OpenBatch>(batch)?;
        let state = batch.lock();
        store(changes, state.ops.len());
        store(additions, state.additions);
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_batch_clear(batch: Handle) -> c_int {
    call(|| {
        *look_up::<OpenBatch>(batch)?.lock() = State::default();
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_batch_commit(batch: Handle, positions: *mut u64, capacity: usize) -> c_int {
    call(|| {
        let batch = look_up::<OpenBatch>(batch)?;
        batch.hand_over((positions, capacity), |ops, expected| {
            Ok((batch.area.commit_if(ops, expected)?, ()))
        })?;
        Ok(OK)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_batch_submit(
    batch: Handle,
    positions: *mut u64,
    capacity: usize,
    ticket: *mut u64,
) -> c_int {
    call(|| {
        let batch = look_up::<OpenBatch>(batch)?;
        let pending = batch.hand_over((positions, capacity), |ops, expected| {
            batch.area.submit_if(ops, expected)
        })?;
        store_ticket(ticket, &pending)
    })
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn swy_batch_close(batch: Handle) -> c_int {
    close::<OpenBatch>(batch, |_| Ok(()))
}
