//! Get and Set Features (Base §5.15, §5.27).

use super::proto::{NSID, NSID_ALL, Sqe, Status, event, feature, put};
use super::target::{Controller, HOST_BEHAVIOR_BYTES, Handle, Target, WARNING_KELVIN};

/// The value asked for (`SEL`, Base §5.15).
#[derive(Clone, Copy, PartialEq, Eq)]
enum Select {
    Current,
    /// The default, also the saved value: nothing is saved.
    Default,
    /// Capabilities of the feature.
    Capabilities,
}

/// A feature's capabilities (Base §5.15, figure 195): nothing is saved; this one can be changed; it is a namespace's.
const CHANGEABLE: u32 = 1 << 2;
const OF_NAMESPACE: u32 = 1 << 1;
/// Bits of the reservation notification mask: the three notices there are (Base §5.27.1.26).
const NOTICES: u32 = 0b1110;
/// Most queues that a host can ask for, 0's based: 0xffff is not allowed (Base §5.27.1.5).
const QUEUES_FORBIDDEN: u32 = 0xffff;
/// Temperature sensors: only the composite one has thresholds (Base §5.27.1.3).
const COMPOSITE_SENSOR: u32 = 0;

/// Data of Host Behavior Support (Base §5.27.1.18).
const HOST_BEHAVIOR_DATA_BYTES: usize = 512;
/// Features that every controller has.
const ALL: [u8; 3] = [feature::ASYNC_EVENTS, feature::KEEP_ALIVE, feature::HOST_ID];
/// Features that a controller with a namespace has besides.
const IO: [u8; 8] = [
    feature::ARBITRATION,
    feature::POWER,
    feature::TEMPERATURE,
    feature::ERROR_RECOVERY,
    feature::WRITE_CACHE,
    feature::QUEUES,
    feature::WRITE_ATOMICITY,
    feature::HOST_BEHAVIOR,
];
/// Features of a namespace that can be reserved.
const RESERVATIONS: [u8; 2] = [feature::RESERVATION_MASK, feature::RESERVATION_PERSISTENCE];
/// Feature Identifiers Supported and Effects (Base §5.16.1.17): there is such a feature; its scope.
const SUPPORTED: u32 = 1;
const NAMESPACE_SCOPE: u32 = 1 << 20;
const CONTROLLER_SCOPE: u32 = 1 << 21;

/// The log of the features that there are.
pub(super) fn log_page(is_discovery: bool, reservable: bool) -> Vec<u8> {
    let mut page = vec![0; 1024];
    let io = IO.iter().filter(|_| !is_discovery);
    let own = ALL.iter().chain(io).map(|&id| (id, CONTROLLER_SCOPE));
    let reservations = RESERVATIONS.iter().filter(|_| reservable);
    for (id, scope) in own.chain(reservations.map(|&id| (id, NAMESPACE_SCOPE))) {
        put(&mut page, 4 * usize::from(id), &(SUPPORTED | scope).to_le_bytes());
    }
    page
}

impl Target {
    /// Get Features: the result and the data.
    pub(super) fn get_feature(&self, handle: Handle, sqe: &Sqe) -> Result<(u32, Vec<u8>), Status> {
        let controller = self.held(handle).ok_or(Status::INTERNAL)?;
        let (dw10, dw11) = (sqe.dword(10), sqe.dword(11));
        let id = self.known(controller, dw10 as u8, sqe.nsid(), false)?;
        let select = match dw10 >> 8 & 7 {
            0 => Select::Current,
            1 | 2 => Select::Default,
            3 => Select::Capabilities,
            _ => return Err(Status::INVALID_FIELD.dnr()),
        };
        if select == Select::Capabilities {
            let capabilities = match id {
                feature::POWER | feature::HOST_ID => 0,
                feature::RESERVATION_MASK => CHANGEABLE | OF_NAMESPACE,
                feature::RESERVATION_PERSISTENCE => OF_NAMESPACE,
                _ => CHANGEABLE,
            };
            return Ok((capabilities, Vec::new()));
        }
        let now = select == Select::Current;
        let queues = u32::from(if now {
            controller.io_queues
        } else {
            self.options.io_queues_max
        }) - 1;
        let stored = |value: u32| if now { value } else { 0 };
        let value = match id {
            feature::ARBITRATION => stored(controller.arbitration),
            feature::POWER => 0,
            feature::TEMPERATURE => self.threshold(controller, dw11, now)?,
            feature::ERROR_RECOVERY => stored(controller.error_recovery),
            feature::WRITE_CACHE => u32::from(controller.write_cache || !now),
            feature::QUEUES => queues << 16 | queues,
            feature::WRITE_ATOMICITY => stored(controller.write_atomicity),
            feature::ASYNC_EVENTS => stored(controller.event_mask),
            feature::KEEP_ALIVE => stored(controller.kato_ms),
            feature::HOST_ID => return host_id(controller, dw11),
            feature::HOST_BEHAVIOR => {
                let mut data = vec![0; HOST_BEHAVIOR_DATA_BYTES];
                if now {
                    data[..HOST_BEHAVIOR_BYTES].copy_from_slice(&controller.host_behavior);
                }
                return Ok((0, data));
            }
            feature::RESERVATION_MASK => {
                let reservations = self.reservations.get(&controller.nqn);
                stored(reservations.map_or(0, |reservations| reservations.mask))
            }
            feature::RESERVATION_PERSISTENCE => 0,
            _ => return Err(Status::INVALID_FIELD.dnr()),
        };
        Ok((value, Vec::new()))
    }

    /// A discovery controller has the features of its few commands only (Fabrics §5); those of reservations are a
    /// namespace's that may be reserved, which only `sets` may call by the id of all (Base §5.27.1.26).
    fn known(&self, controller: &Controller, id: u8, nsid: u32, sets: bool) -> Result<u8, Status> {
        let is_known = match id {
            _ if ALL.contains(&id) => true,
            _ if RESERVATIONS.contains(&id) => {
                let subsystem = self.subsystems.get(&controller.nqn);
                let named = nsid == NSID || sets && nsid == NSID_ALL;
                named && subsystem.is_some_and(|subsystem| subsystem.reservable)
            }
            _ => IO.contains(&id) && !controller.is_discovery(),
        };
        is_known.then_some(id).ok_or(Status::INVALID_FIELD.dnr())
    }

    fn threshold(&self, controller: &Controller, dw11: u32, now: bool) -> Result<u32, Status> {
        let kind = threshold_kind(dw11)?;
        let value = if now {
            controller.temperature[kind]
        } else {
            [WARNING_KELVIN, 0][kind]
        };
        Ok(u32::from(value))
    }

    /// Set Features: the result.
    pub(super) fn set_feature(&mut self, handle: Handle, sqe: &Sqe, data: &[u8]) -> Result<u32, Status> {
        let granted = self.options.io_queues_max;
        let controller = self.held(handle).ok_or(Status::INTERNAL)?;
        let (dw10, dw11) = (sqe.dword(10), sqe.dword(11));
        let id = self.known(controller, dw10 as u8, sqe.nsid(), true)?;
        let controller = self.held_mut(handle).ok_or(Status::INTERNAL)?;
        if dw10 & 1 << 31 != 0 {
            return Err(Status::NOT_SAVEABLE.dnr());
        }
        match id {
            feature::ARBITRATION => controller.arbitration = dw11,
            feature::POWER if dw11 & 0x1f == 0 => {}
            feature::TEMPERATURE => controller.temperature[threshold_kind(dw11)?] = dw11 as u16,
            // Neither time limits nor errors for deallocated blocks are offered; the value is kept.
            feature::ERROR_RECOVERY if dw11 & 1 << 16 == 0 => controller.error_recovery = dw11,
            feature::WRITE_CACHE => {
                controller.write_cache = dw11 & 1 != 0;
                self.touch();
            }
            feature::QUEUES => {
                let (submission, completion) = (dw11 & 0xffff, dw11 >> 16);
                if submission == QUEUES_FORBIDDEN || completion == QUEUES_FORBIDDEN {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                if !controller.connected.is_empty() {
                    return Err(Status::SEQUENCE.dnr());
                }
                let count = (submission.min(completion) + 1).min(u32::from(granted));
                controller.io_queues = count as u16;
                return Ok((count - 1) << 16 | (count - 1));
            }
            feature::WRITE_ATOMICITY => controller.write_atomicity = dw11 & 1,
            feature::ASYNC_EVENTS => {
                let offered = if controller.is_discovery() {
                    event::MASK_DISCOVERY
                } else {
                    // The low byte asks for health warnings, of which there are none.
                    event::MASK_NAMESPACE | event::MASK_ANA | 0xff
                };
                if dw11 & !offered != 0 {
                    return Err(Status::INVALID_FIELD.dnr());
                }
                controller.event_mask = dw11;
                self.touch();
            }
            feature::KEEP_ALIVE => controller.kato_ms = dw11,
            // It came with Connect and stays (Base §5.27.1.25).
            feature::HOST_ID => return Err(Status::SEQUENCE.dnr()),
            feature::HOST_BEHAVIOR => controller.host_behavior = host_behavior(data)?,
            feature::RESERVATION_MASK if dw11 & !NOTICES == 0 => {
                let nqn = controller.nqn.clone();
                self.reservations.entry(nqn).or_default().mask = dw11;
            }
            // There is nowhere to keep them.
            feature::RESERVATION_PERSISTENCE if dw11 & 1 != 0 => {
                return Err(Status::NOT_CHANGEABLE.dnr());
            }
            feature::RESERVATION_PERSISTENCE => {}
            _ => return Err(Status::INVALID_FIELD.dnr()),
        }
        Ok(0)
    }
}

/// Over- or under-temperature threshold of the composite sensor (Base §5.27.1.3).
fn threshold_kind(dw11: u32) -> Result<usize, Status> {
    let (sensor, kind) = (dw11 >> 16 & 0xf, dw11 >> 20 & 3);
    if sensor != COMPOSITE_SENSOR || kind > 1 {
        return Err(Status::INVALID_FIELD.dnr());
    }
    Ok(kind as usize)
}

/// The host identifier has 128 bits over fabrics, always (Base §5.27.1.25).
fn host_id(controller: &Controller, dw11: u32) -> Result<(u32, Vec<u8>), Status> {
    if dw11 & 1 == 0 {
        return Err(Status::INVALID_FIELD.dnr());
    }
    Ok((0, controller.host_id.to_vec()))
}

/// Reads a host's behavior. The host may understand delays before a retry, of which the target asks for none. There are neither
/// telemetry areas nor formats that a host would have to know.
fn host_behavior(data: &[u8]) -> Result<[u8; HOST_BEHAVIOR_BYTES], Status> {
    if data.len() != HOST_BEHAVIOR_DATA_BYTES {
        return Err(Status::SGL_LENGTH.dnr());
    }
    let [delays, telemetry, formats] = [data[0], data[1], data[2]];
    if delays > 1 || telemetry != 0 || formats != 0 {
        return Err(Status::INVALID_FIELD.dnr());
    }
    Ok([delays, telemetry, formats])
}
