//! Fabrics commands (Fabrics §3): Connect, and the controller's properties.

use super::limits::Shape;
use super::notices::Notices;
use super::proto::{
    CNTLID_DYNAMIC, CONNECT_DATA_BYTES, DISCOVERY_NQN, NQN_BYTES, NQN_BYTES_MAX, Sqe, Status, VERSION,
    fabrics, property, u16_at,
};
use super::target::{Controller, HOST_BEHAVIOR_BYTES, Handle, Target};

/// Offsets of the fields of Connect's data (Fabrics §3.3, figure 20).
const CNTLID_AT: usize = 16;
const SUBNQN_AT: usize = 256;
const HOSTNQN_AT: usize = 512;
/// Where SQSIZE, the queue id and CNTLID are in the command or data, for "invalid parameters".
const QID_OFFSET: u16 = 42;
const SQSIZE_OFFSET: u16 = 44;
/// `CAP.TO` in units of 500 ms: how long a host waits for the controller to be ready.
const TIMEOUT_UNITS: u64 = 20;
/// `CC.IOSQES` and `CC.IOCQES` that an enabled controller needs: 64 and 16 bytes.
const ENTRY_SIZES: u32 = 6 << 16 | 4 << 20;
/// The fields of CC that have to be `ENTRY_SIZES` or 0: both sizes, arbitration, page size, command set.
const FIXED_FIELDS: u32 = 0xff << 16 | 7 << 11 | 0xf << 7 | 7 << 4;

/// The role of a session after Connect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Connected {
    pub handle: Handle,
    /// Resets of the controller so far.
    pub resets: u32,
    pub qid: u16,
    /// Entries of the submission queue.
    pub entries: u16,
    /// Completions carry the queue's head.
    pub sq_flow: bool,
    pub discovery: bool,
    /// Number of an I/O queue whose volume may be reserved; 0 for others.
    pub attachment: u64,
    pub kato_ms: u32,
}

/// A refused Connect: the status and the result, which says where the mistake is.
pub(super) type Refused = (Status, u32);

/// "Invalid parameters" at an offset of the command (Fabrics §3.3, figure 21).
const fn bad_command(offset: u16) -> Refused {
    (Status::CONNECT_PARAMETERS.dnr(), offset as u32)
}

/// "Invalid parameters" at an offset of the data.
const fn bad_data(offset: usize) -> Refused {
    (Status::CONNECT_PARAMETERS.dnr(), 1 << 16 | offset as u32)
}

impl Target {
    /// Connect: makes a controller, or adds a queue to one (Fabrics §3.3).
    pub(super) fn connect(&mut self, sqe: &Sqe, data: &[u8], shape: &Shape) -> Result<Connected, Refused> {
        let format = u16_at(&sqe.0, 40);
        let (qid, size_0) = (u16_at(&sqe.0, 42), u16_at(&sqe.0, 44));
        if format != 0 {
            return Err((Status::CONNECT_FORMAT.dnr(), 0));
        }
        if data.len() != CONNECT_DATA_BYTES {
            return Err((Status::SGL_LENGTH.dnr(), 0));
        }
        if size_0 == 0 || size_0 >= shape.entries_max {
            return Err(bad_command(SQSIZE_OFFSET));
        }
        let subnqn = name(&data[SUBNQN_AT..][..NQN_BYTES]).ok_or(bad_data(SUBNQN_AT))?;
        // SPDK's tools have no name unless they are given one.
        let host_nqn = match data[HOSTNQN_AT] {
            0 => "",
            _ => name(&data[HOSTNQN_AT..][..NQN_BYTES]).ok_or(bad_data(HOSTNQN_AT))?,
        };
        let discovery = subnqn == DISCOVERY_NQN;
        if !discovery {
            let subsystem = self.subsystems.get(subnqn).ok_or(bad_data(SUBNQN_AT))?;
            if !Self::allows(subsystem, host_nqn) {
                return Err((Status::CONNECT_HOST.dnr(), 0));
            }
        }
        let mut host_id = [0; 16];
        host_id.copy_from_slice(&data[..16]);
        let asked = u16_at(data, CNTLID_AT);
        let kato_ms = sqe.dword(12);
        let handle = if qid == 0 {
            if asked != CNTLID_DYNAMIC {
                return Err(bad_data(CNTLID_AT));
            }
            self.create(subnqn, host_nqn, host_id, kato_ms)
                .ok_or((Status::CONNECT_BUSY, 0))?
        } else {
            let same = |controller: &Controller| {
                controller.nqn == subnqn && controller.host_nqn == host_nqn && controller.host_id == host_id
            };
            let found = self.controllers.get_mut(&asked);
            let controller = found
                .filter(|controller| same(controller))
                .ok_or(bad_data(CNTLID_AT))?;
            join(controller, qid)?;
            Handle {
                cntlid: asked,
                incarnation: controller.incarnation,
            }
        };
        let resets = self.held(handle).map_or(0, |controller| controller.resets);
        let reservable = self
            .subsystems
            .get(subnqn)
            .is_some_and(|subsystem| subsystem.reservable);
        let attachment = if qid > 0 && reservable {
            self.attach(subnqn, host_id)
        } else {
            0
        };
        Ok(Connected {
            handle,
            resets,
            qid,
            entries: size_0 + 1,
            sq_flow: sqe.0[46] & fabrics::DISABLE_SQ_FLOW == 0,
            discovery,
            attachment,
            kato_ms,
        })
    }

    /// An I/O connection has ended: its queue may be connected again.
    pub(super) fn leave(&mut self, handle: Handle, resets: u32, qid: u16) {
        let controller = self.held_mut(handle);
        if let Some(controller) = controller.filter(|controller| controller.resets == resets) {
            controller.connected.retain(|&connected| connected != qid);
        }
    }

    /// Property Get (Fabrics §3.5): the value.
    pub(super) fn property(&self, handle: Handle, sqe: &Sqe, shape: &Shape) -> Result<u64, Status> {
        let controller = self.held(handle).ok_or(Status::INTERNAL)?;
        let wide = sqe.0[40] & 7;
        match (wide, sqe.dword(11)) {
            (1, property::CAP) => {
                let last = u64::from(shape.entries_max) - 1;
                // MQES, contiguous queues, timeout, the NVM command set, ready with media only (CRWMS).
                Ok(last | 1 << 16 | TIMEOUT_UNITS << 24 | 1 << 37 | 1 << 59)
            }
            (0, property::VS) => Ok(u64::from(VERSION)),
            (0, property::CC) => Ok(u64::from(controller.cc)),
            (0, property::CSTS) => Ok(u64::from(controller.csts)),
            (0, property::NSSR) => Ok(0),
            (0, property::CRTO) => Ok(TIMEOUT_UNITS),
            _ => Err(Status::INVALID_FIELD.dnr()),
        }
    }

    /// Property Set (Fabrics §3.6): only the configuration can be set.
    pub(super) fn set_property(&mut self, handle: Handle, sqe: &Sqe) -> Result<(), Status> {
        let controller = self.held_mut(handle).ok_or(Status::INTERNAL)?;
        if sqe.0[40] & 7 != 0 || sqe.dword(11) != property::CC {
            return Err(Status::INVALID_FIELD.dnr());
        }
        let (before, after) = (controller.cc, sqe.dword(12));
        controller.cc = after;
        let enabled = |cc: u32| cc & property::CC_ENABLE != 0;
        match (enabled(before), enabled(after)) {
            (false, true) => {
                // Discovery controllers have no I/O queues and take any entry size.
                let sizes = after & FIXED_FIELDS == ENTRY_SIZES;
                let fits = sizes || controller.is_discovery() && after & FIXED_FIELDS & !(0xff << 16) == 0;
                // CSTS.CFS: the controller cannot be enabled like this.
                controller.csts = if fits { property::CSTS_READY } else { 1 << 1 };
            }
            (true, false) => reset(controller),
            _ => {}
        }
        if after & property::CC_SHUTDOWN != 0 && before & property::CC_SHUTDOWN == 0 {
            controller.csts |= property::CSTS_SHUTDOWN_DONE;
        }
        self.touch();
        Ok(())
    }
}

/// `CC.EN` goes to 0: the controller's state is as after Connect, its I/O queues are gone (Base §3.7.2).
fn reset(controller: &mut Controller) {
    controller.csts = 0;
    controller.resets += 1;
    controller.connected.clear();
    controller.event_mask = 0;
    controller.pending = 0;
    controller.unread = 0;
    controller.notices = Notices::default();
    controller.write_cache = true;
    controller.host_behavior = [0; HOST_BEHAVIOR_BYTES];
}

/// Adds an I/O queue to a controller.
fn join(controller: &mut Controller, qid: u16) -> Result<(), Refused> {
    if controller.is_discovery() || qid > controller.io_queues {
        return Err(bad_command(QID_OFFSET));
    }
    if !controller.is_ready() || controller.connected.contains(&qid) {
        return Err((Status::SEQUENCE.dnr(), 0));
    }
    controller.connected.push(qid);
    Ok(())
}

/// A qualified name that ends with a zero byte; `None` if it does not, or is empty or not ASCII.
fn name(field: &[u8]) -> Option<&str> {
    let end = field.iter().position(|&byte| byte == 0)?;
    let name = core::str::from_utf8(&field[..end]).ok()?;
    let fits = !name.is_empty() && end <= NQN_BYTES_MAX && name.bytes().all(|byte| byte.is_ascii_graphic());
    fits.then_some(name)
}
