//! Identify (Base §5.17, NVM §4.1.5): what a controller says of itself and of its namespace.

use super::limits::Shape;
use super::proto::{
    self, BLOCK_SHIFT, IDENTIFY_BYTES, NSID, NSID_ALL, Sqe, Status, VERSION, cns, event, put,
};
use super::reservation;
use super::target::{
    CRITICAL_KELVIN, Controller, ERRORS_MAX, EVENT_REQUESTS_MAX, Handle, Subsystem, Target, WARNING_KELVIN,
};

/// Keep-alive granularity in units of 100 ms (`KAS`): a second.
const KEEP_ALIVE_GRANULARITY: u16 = 10;
/// Longest time that an ANA state is "change", in seconds (`ANATT`).
const ANA_TRANSITION_SECONDS: u8 = 10;
/// Logical blocks of a page, 0's based: what writes, and deallocations, are best multiples of (`NPWG` and others).
const PAGE_BLOCKS_0: u16 = 7;
/// `log2` of Write Zeroes' limit in pages of 4096 bytes (`WZSL`): 32 MiB.
const WRITE_ZEROES_SHIFT: u8 = 13;

impl Target {
    /// The data of Identify.
    pub(super) fn identify(&self, handle: Handle, sqe: &Sqe, shape: &Shape) -> Result<Vec<u8>, Status> {
        let controller = self.held(handle).ok_or(Status::INTERNAL)?;
        let (what, csi) = (sqe.dword(10) as u8, (sqe.dword(11) >> 24) as u8);
        if sqe.sgl().length as usize != IDENTIFY_BYTES {
            return Err(Status::SGL_LENGTH.dnr());
        }
        let mut data = vec![0; IDENTIFY_BYTES];
        if what == cns::CONTROLLER {
            self.identify_controller(handle.cntlid, controller, shape, &mut data);
            return Ok(data);
        }
        // A discovery controller has no namespaces (Fabrics §5).
        let Some(subsystem) = self.subsystems.get(&controller.nqn) else {
            return Err(Status::INVALID_FIELD.dnr());
        };
        let nsid = sqe.nsid();
        match what {
            cns::NAMESPACE | cns::ALLOCATED => {
                one_namespace(nsid)?;
                identify_namespace(subsystem, &mut data);
            }
            cns::ACTIVE_LIST | cns::ALLOCATED_LIST => namespace_list(nsid, &mut data)?,
            cns::CSI_ACTIVE_LIST if csi == 0 => namespace_list(nsid, &mut data)?,
            cns::DESCRIPTORS => {
                one_namespace(nsid)?;
                describe_namespace(subsystem, &mut data);
            }
            // Nothing of the namespace is specific to the NVM command set: no protection, one format.
            cns::CSI_NAMESPACE if csi == 0 => one_namespace(nsid)?,
            cns::CSI_CONTROLLER if csi == 0 => data[1] = WRITE_ZEROES_SHIFT,
            cns::INDEPENDENT => {
                one_namespace(nsid)?;
                identify_independent(subsystem, &mut data);
            }
            cns::ATTACHED_CONTROLLERS => {
                one_namespace(nsid)?;
                self.controller_list(controller, sqe, &mut data);
            }
            cns::CONTROLLER_LIST => self.controller_list(controller, sqe, &mut data),
            // One combination: the NVM command set alone.
            cns::COMMAND_SETS => data[0] = 1,
            _ => return Err(Status::INVALID_FIELD.dnr()),
        }
        Ok(data)
    }

    /// Identify Controller (Base §5.17.2.1, figure 275).
    fn identify_controller(&self, cntlid: u16, controller: &Controller, shape: &Shape, data: &mut [u8]) {
        let subsystem = self.subsystems.get(&controller.nqn);
        let (serial, model) = match subsystem {
            Some(subsystem) => (subsystem.serial.as_str(), subsystem.model.as_str()),
            None => ("discovery", "Switchyard discovery"),
        };
        text(&mut data[4..24], serial);
        text(&mut data[24..64], model);
        text(&mut data[64..72], &self.options.firmware);
        // MDTS in pages of 4096 bytes, as a power of two.
        data[77] = (shape.request_bytes_max / 4096).ilog2() as u8;
        put(data, 78, &cntlid.to_le_bytes());
        put(data, 80, &VERSION.to_le_bytes());
        // CTRATT: host identifiers have 128 bits.
        put(data, 96, &1u32.to_le_bytes());
        data[258] = 3; // ACL
        data[259] = EVENT_REQUESTS_MAX as u8 - 1;
        // FRMW: one slot, read only.
        data[260] = 0x03;
        data[262] = ERRORS_MAX as u8 - 1;
        put(data, 320, &KEEP_ALIVE_GRANULARITY.to_le_bytes());
        put(data, 514, &shape.entries_max.to_le_bytes());
        // SGLS: any alignment, offsets into the capsule, transport data blocks.
        put(data, 536, &(1u32 | 1 << 20 | 1 << 21).to_le_bytes());
        put(data, 768, controller.nqn.as_bytes());
        put(
            data,
            1792,
            &((proto::SQE_BYTES as u32 + shape.in_capsule_bytes) / 16).to_le_bytes(),
        );
        put(data, 1796, &(proto::CQE_BYTES as u32 / 16).to_le_bytes());
        data[1803] = 1; // MSDBD
        // OFCS: Disconnect.
        data[1804] = 1;
        match subsystem {
            Some(subsystem) => self.identify_io_controller(subsystem, data),
            None => {
                data[111] = 2;
                put(data, 92, &event::MASK_DISCOVERY.to_le_bytes());
                // LPA: effects log, offsets into log pages, the logs of supported pages and features.
                data[261] = 0x26;
            }
        }
    }

    /// Fields that only a controller with a namespace has.
    fn identify_io_controller(&self, subsystem: &Subsystem, data: &mut [u8]) {
        // CMIC: several ports, several controllers, ANA.
        data[76] = 0x0b;
        put(data, 92, &(event::MASK_NAMESPACE | event::MASK_ANA).to_le_bytes());
        data[111] = 1; // CNTRLTYPE: I/O
        // LPA: SMART of a namespace, effects log, offsets into log pages, the logs of supported pages and features.
        data[261] = 0x27;
        put(data, 266, &WARNING_KELVIN.to_le_bytes()); // WCTEMP
        put(data, 268, &CRITICAL_KELVIN.to_le_bytes()); // CCTEMP
        data[342] = ANA_TRANSITION_SECONDS;
        // ANACAP: every state is reported, groups do not change while attached.
        data[343] = 0x5f;
        put(data, 344, &self.options.ana_group_max.to_le_bytes());
        put(data, 348, &self.options.ana_group_max.to_le_bytes());
        data[512] = 0x66; // SQES
        data[513] = 0x44; // CQES
        put(data, 516, &1u32.to_le_bytes()); // NN
        // ONCS: Compare, Dataset Management, Write Zeroes; reservations.
        let oncs = 0x000d_u16 | u16::from(subsystem.reservable) << 5;
        put(data, 520, &oncs.to_le_bytes());
        // VWC: present, and Flush takes the broadcast id.
        data[525] = 0x07;
        put(data, 540, &1u32.to_le_bytes()); // MNAN
    }

    /// Controllers of the same subsystem from an id on (Base §5.17.2.13, figure 137).
    fn controller_list(&self, controller: &Controller, sqe: &Sqe, data: &mut [u8]) {
        let first = (sqe.dword(10) >> 16) as u16;
        let ids = self.controllers.range(first..);
        let same = ids.filter(|(_, other)| other.nqn == controller.nqn);
        let mut count = 0u16;
        for (&id, _) in same.take(2047) {
            count += 1;
            put(data, 2 * usize::from(count), &id.to_le_bytes());
        }
        put(data, 0, &count.to_le_bytes());
    }
}

/// Passes the namespace's own id only.
fn one_namespace(nsid: u32) -> Result<(), Status> {
    if nsid == NSID {
        Ok(())
    } else {
        Err(Status::INVALID_NAMESPACE.dnr())
    }
}

/// Ids above the one given (Base §5.17.2.2).
fn namespace_list(after: u32, data: &mut [u8]) -> Result<(), Status> {
    if after >= NSID_ALL - 1 {
        return Err(Status::INVALID_NAMESPACE.dnr());
    }
    if after < NSID {
        put(data, 0, &NSID.to_le_bytes());
    }
    Ok(())
}

/// Identify Namespace (NVM §4.1.5.1, figure 97).
fn identify_namespace(subsystem: &Subsystem, data: &mut [u8]) {
    let blocks = subsystem.size_bytes >> BLOCK_SHIFT;
    let used = subsystem.allocation.as_ref().map_or(blocks, |allocation| {
        allocation.data_bytes().div_ceil(1 << BLOCK_SHIFT).min(blocks)
    });
    for (at, count) in [(0, blocks), (8, blocks), (16, used)] {
        put(data, at, &count.to_le_bytes()); // NSZE, NCAP, NUSE
    }
    // NSFEAT: the optimal sizes are given; so is the atomicity, below. NUSE follows what hosts write and deallocate.
    data[24] = 1 << 4 | 1 << 1 | u8::from(subsystem.allocation.is_some());
    data[30] = 1; // NMIC: shared
    data[31] = capabilities(subsystem);
    // DLFEAT: deallocated blocks read as zeros, Write Zeroes may deallocate.
    data[33] = 0x09;
    let atomic_0 = (subsystem.atomic_bytes >> BLOCK_SHIFT) as u16 - 1;
    for at in [34, 36] {
        put(data, at, &atomic_0.to_le_bytes()); // NAWUN, NAWUPF
    }
    // NABSN and NABSPF: that holds inside aligned stretches of the same size.
    for at in [40, 44] {
        put(data, at, &atomic_0.to_le_bytes());
    }
    put(data, 48, &u128::from(subsystem.size_bytes).to_le_bytes());
    for at in [64, 66, 68, 70, 72] {
        put(data, at, &PAGE_BLOCKS_0.to_le_bytes()); // NPWG, NPWA, NPDG, NPDA, NOWS
    }
    put(data, 92, &subsystem.ana_group.to_le_bytes());
    data[99] = u8::from(subsystem.read_only);
    put(data, 104, &subsystem.identity);
    data[130] = BLOCK_SHIFT as u8; // LBADS of the one format
}

/// Identify Namespace, independent of the command set (Base §5.17.2.8, figure 280).
fn identify_independent(subsystem: &Subsystem, data: &mut [u8]) {
    data[1] = 1; // NMIC: shared
    data[2] = capabilities(subsystem);
    put(data, 4, &subsystem.ana_group.to_le_bytes());
    data[8] = u8::from(subsystem.read_only);
    data[14] = 1; // NSTAT: ready
}

/// `RESCAP`: reservations of a namespace.
fn capabilities(subsystem: &Subsystem) -> u8 {
    if subsystem.reservable {
        reservation::CAPABILITIES
    } else {
        0
    }
}

/// Identification descriptors (Base §5.17.2.3, figure 277): NGUID, UUID, command set.
fn describe_namespace(subsystem: &Subsystem, data: &mut [u8]) {
    let descriptors: [(u8, &[u8]); 3] = [(2, &subsystem.identity), (3, &subsystem.identity), (4, &[0])];
    let mut at = 0;
    for (kind, value) in descriptors {
        put(data, at, &[kind, value.len() as u8]);
        put(data, at + 4, value);
        at += 4 + value.len();
    }
}

/// ASCII padded with spaces.
pub(super) fn text(target: &mut [u8], value: &str) {
    let count = value.len().min(target.len());
    target[..count].copy_from_slice(&value.as_bytes()[..count]);
    target[count..].fill(b' ');
}
