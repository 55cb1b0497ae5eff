//! Get Log Page (Base §5.16) and the discovery log (Fabrics §5.3).

use core::net::IpAddr;

use super::features;
use super::identify::text;
use super::proto::{CNTLID_DYNAMIC, NSID, NSID_ALL, Sqe, Status, admin, event, fabrics, io, log, put};
use super::target::{Address, Controller, Handle, TEMPERATURE_KELVIN, Target};

/// Bytes of the discovery log's header and of each of its entries (Fabrics §5.3, figures 36 and 37).
const DISCOVERY_BYTES: usize = 1024;
/// Transport type TCP (`TRTYPE`).
const TRANSPORT_TCP: u8 = 3;
/// Nothing said of a secure channel; hosts may disable flow control (`TREQ`). As Linux' target has it: nvme-cli 2.3 does
/// not know the value that also says "not required".
const REQUIREMENTS: u8 = 0x04;
/// Subsystem types (`SUBTYPE`).
const REFERRAL: u8 = 1;
const NVM: u8 = 2;
/// A command is supported, and the one that changes data says so (Base §5.16.1.6, figure 211).
const SUPPORTED: u32 = 1;
const CHANGES_DATA: u32 = 1 << 1;
/// Scope of a command: the controller. I/O commands have none here: Linux (6.1) warns of each scope as an unusual effect.
const CONTROLLER_SCOPE: u32 = 1 << 21;
/// An admin queue that the discovery log tells hosts to make (`ASQSZ`): the least that is allowed.
const ADMIN_QUEUE_ENTRIES: u16 = 32;
/// Bytes of the ANA log's header, and of a group's descriptor without namespaces (Base §5.16.1.13, figures 221 and 222).
const ANA_HEADER_BYTES: usize = 16;
const ANA_GROUP_BYTES: usize = 32;
/// SMART counts in thousands of 512 bytes (Base §5.16.1.3).
const DATA_UNIT_BYTES: u64 = 512_000;

impl Target {
    /// The data of Get Log Page: what there is from the offset on, at most as much as was asked for.
    pub(super) fn log_page(
        &mut self,
        handle: Handle,
        sqe: &Sqe,
        via: Option<IpAddr>,
    ) -> Result<Vec<u8>, Status> {
        let controller = self.held(handle).ok_or(Status::INTERNAL)?;
        let discovery = controller.is_discovery();
        let subsystem = self.subsystems.get(&controller.nqn);
        let reservable = subsystem.is_some_and(|subsystem| subsystem.reservable);
        let (dw10, dw11) = (sqe.dword(10), sqe.dword(11));
        let dwords = u64::from(dw10 >> 16) + (u64::from(dw11 & 0xffff) << 16) + 1;
        if dwords * 4 != u64::from(sqe.sgl().length) {
            return Err(Status::SGL_LENGTH.dnr());
        }
        let retain = dw10 & 1 << 15 != 0;
        let specific = (dw10 >> 8) as u8 & 0x7f;
        let csi = sqe.dword(14) >> 24;
        let page = match dw10 as u8 {
            log::SUPPORTED => supported(discovery, reservable),
            log::ERROR => errors(controller),
            log::FEATURES => features::log_page(discovery, reservable),
            // There is no management interface: no command of it is supported.
            log::MANAGEMENT => vec![0; 4096],
            log::EFFECTS if csi == 0 => effects(discovery, reservable),
            log::EFFECTS => return Err(Status::INVALID_FIELD.dnr()),
            log::DISCOVERY if discovery => self.discovery_log(&controller.host_nqn, via),
            _ if discovery => return Err(Status::INVALID_LOG_PAGE.dnr()),
            log::SMART if matches!(sqe.nsid(), 0 | NSID | NSID_ALL) => self.health(controller),
            log::SMART => return Err(Status::INVALID_NAMESPACE.dnr()),
            log::FIRMWARE => self.firmware(),
            log::CHANGED_NAMESPACES => changed_namespaces(controller),
            log::RESERVATION if reservable => controller.notices.page(),
            log::ANA => self.ana_log(controller, specific & 1 != 0),
            _ => return Err(Status::INVALID_LOG_PAGE.dnr()),
        };
        let offset = sqe.qword(12);
        // Offsets are multiples of four bytes; the index form is not offered (Base §5.16, dwords 12 to 14).
        let indexed = sqe.dword(14) & 1 << 23 != 0;
        if !offset.is_multiple_of(4) || offset > page.len() as u64 || indexed {
            return Err(Status::INVALID_FIELD.dnr());
        }
        self.log_was_read(handle, dw10 as u8, retain);
        let offset = offset as usize;
        let count = (page.len() - offset).min(sqe.sgl().length as usize);
        Ok(page[offset..offset + count].to_vec())
    }

    /// The event that points to this log page may be reported again, unless it is to be retained.
    fn log_was_read(&mut self, handle: Handle, page: u8, retain: bool) {
        let mask = match page {
            log::CHANGED_NAMESPACES => event::MASK_NAMESPACE,
            log::ANA => event::MASK_ANA,
            log::DISCOVERY => event::MASK_DISCOVERY,
            log::RESERVATION => event::MASK_RESERVATION,
            _ => return,
        };
        if let Some(controller) = self.held_mut(handle) {
            // Reading takes a notice out, and the event tells of those behind it.
            if page == log::RESERVATION {
                controller.notices.drop_first();
            }
            if retain {
                return;
            }
            if page == log::RESERVATION && controller.notices.is_empty() {
                controller.pending &= !mask;
            } else if page == log::RESERVATION {
                controller.pending |= mask;
            }
            controller.unread &= !mask;
            if page == log::CHANGED_NAMESPACES {
                controller.namespace_changed = false;
            }
            if controller.pending & mask != 0 {
                self.touch();
            }
        }
    }

    /// SMART and health (Base §5.16.1.3, figure 207). The medium's own wear is the volume's business, not reported.
    fn health(&self, controller: &Controller) -> Vec<u8> {
        let mut page = vec![0; 512];
        page[0] = u8::from(controller.is_beyond_threshold()) << 1; // critical warning
        put(&mut page, 1, &TEMPERATURE_KELVIN.to_le_bytes());
        page[3] = 100; // available spare
        page[4] = 10; // its threshold
        let usage = self.usage.get(&controller.nqn).copied().unwrap_or_default();
        let units = |bytes: u64| bytes.div_ceil(DATA_UNIT_BYTES);
        let counts = [
            (32, units(usage.read_bytes)),
            (48, units(usage.written_bytes)),
            (64, usage.reads),
            (80, usage.writes),
            (160, usage.media_errors),
            (176, controller.errors_total),
        ];
        for (at, count) in counts {
            put(&mut page, at, &count.to_le_bytes());
        }
        page
    }

    /// Firmware slots (Base §5.16.1.4): one, active.
    fn firmware(&self) -> Vec<u8> {
        let mut page = vec![0; 512];
        page[0] = 1;
        text(&mut page[8..16], &self.options.firmware);
        page
    }

    /// ANA (Base §5.16.1.13): the one group that has a namespace here; `groups_only` leaves the namespace out. Zeros
    /// follow up to what hosts work out as the page's size: nvme-cli reads all of it, the later parts by their offsets.
    fn ana_log(&self, controller: &Controller, groups_only: bool) -> Vec<u8> {
        let page_bytes = ANA_HEADER_BYTES + ANA_GROUP_BYTES * self.options.ana_group_max as usize + 4;
        let mut page = self.ana_states(controller, groups_only);
        page.resize(page_bytes, 0);
        page
    }

    fn ana_states(&self, controller: &Controller, groups_only: bool) -> Vec<u8> {
        let mut page = vec![0; ANA_HEADER_BYTES];
        put(&mut page, 0, &self.ana_changes.to_le_bytes());
        let Some(subsystem) = self.subsystems.get(&controller.nqn) else {
            return page;
        };
        put(&mut page, 8, &1u16.to_le_bytes());
        let mut group = [0; ANA_GROUP_BYTES + 4];
        put(&mut group, 0, &subsystem.ana_group.to_le_bytes());
        put(&mut group, 8, &self.ana_changes.to_le_bytes());
        group[16] = subsystem.ana_state as u8;
        put(&mut group, 4, &u32::from(!groups_only).to_le_bytes());
        put(&mut group, ANA_GROUP_BYTES, &NSID.to_le_bytes());
        page.extend(&group[..ANA_GROUP_BYTES + if groups_only { 0 } else { 4 }]);
        page
    }

    /// Every subsystem that the host may connect to, at every address, then the referrals. A wildcard is no address to
    /// connect to: the host gets the one by which it came.
    fn discovery_log(&self, host_nqn: &str, via: Option<IpAddr>) -> Vec<u8> {
        let addresses: Vec<Address> = self.addresses.iter().map(|address| address.seen(via)).collect();
        let mut page = vec![0; DISCOVERY_BYTES];
        let visible = self
            .subsystems
            .values()
            .filter(|subsystem| Self::allows(subsystem, host_nqn));
        for subsystem in visible {
            for (port, address) in addresses.iter().enumerate() {
                page.extend(entry(NVM, &subsystem.nqn, port as u16, address));
            }
        }
        for (index, address) in self.referrals.iter().enumerate() {
            let port = (addresses.len() + index) as u16;
            page.extend(entry(REFERRAL, super::proto::DISCOVERY_NQN, port, address));
        }
        let records = (page.len() / DISCOVERY_BYTES - 1) as u64;
        put(&mut page, 0, &self.discovery_changes.to_le_bytes());
        put(&mut page, 8, &records.to_le_bytes());
        page
    }
}

/// One discovery log entry (Fabrics §5.3, figure 37).
fn entry(kind: u8, nqn: &str, port: u16, address: &Address) -> [u8; DISCOVERY_BYTES] {
    let mut entry = [0; DISCOVERY_BYTES];
    put(
        &mut entry,
        0,
        &[TRANSPORT_TCP, address.family as u8, kind, REQUIREMENTS],
    );
    put(&mut entry, 4, &port.to_le_bytes());
    put(&mut entry, 6, &CNTLID_DYNAMIC.to_le_bytes());
    put(&mut entry, 8, &ADMIN_QUEUE_ENTRIES.to_le_bytes());
    text(&mut entry[32..64], &address.port.to_string());
    put(&mut entry, 256, nqn.as_bytes());
    text(&mut entry[512..768], &address.host);
    entry
}

/// Which log pages there are (Base §5.16.1.1).
fn supported(discovery: bool, reservable: bool) -> Vec<u8> {
    let mut page = vec![0; 1024];
    let all = [
        log::SUPPORTED,
        log::ERROR,
        log::EFFECTS,
        log::FEATURES,
        log::MANAGEMENT,
    ];
    let others: &[u8] = match discovery {
        true => &[log::DISCOVERY],
        false => &[log::SMART, log::FIRMWARE, log::CHANGED_NAMESPACES, log::ANA],
    };
    for &id in all.iter().chain(others) {
        page[4 * usize::from(id)] = 1;
    }
    page[4 * usize::from(log::RESERVATION)] = u8::from(reservable);
    page
}

/// Error information (Base §5.16.1.2, figure 206), the newest first.
fn errors(controller: &Controller) -> Vec<u8> {
    let mut page = vec![0; 64 * super::target::ERRORS_MAX];
    for (error, slot) in controller.errors.iter().zip(page.chunks_exact_mut(64)) {
        put(slot, 0, &error.count.to_le_bytes());
        put(slot, 8, &error.qid.to_le_bytes());
        put(slot, 10, &error.cid.to_le_bytes());
        put(slot, 12, &(error.status.0 << 1).to_le_bytes());
        // No location within the command is given.
        put(slot, 14, &u16::MAX.to_le_bytes());
        put(slot, 16, &error.lba.to_le_bytes());
        put(slot, 24, &error.nsid.to_le_bytes());
        slot[29] = TRANSPORT_TCP;
    }
    page
}

/// Namespaces that changed since this was read last (Base §5.16.1.5).
fn changed_namespaces(controller: &Controller) -> Vec<u8> {
    let mut page = vec![0; 4096];
    put(
        &mut page,
        0,
        &(NSID * u32::from(controller.namespace_changed)).to_le_bytes(),
    );
    page
}

/// Commands supported and effects (Base §5.16.1.6).
fn effects(discovery: bool, reservable: bool) -> Vec<u8> {
    let mut page = vec![0; 4096];
    let admins = [
        admin::GET_LOG_PAGE,
        admin::IDENTIFY,
        admin::SET_FEATURES,
        admin::GET_FEATURES,
        admin::ASYNC_EVENT,
        admin::KEEP_ALIVE,
        fabrics::OPCODE,
    ];
    let abort = (!discovery).then_some(admin::ABORT);
    for opcode in admins.into_iter().chain(abort) {
        let effect = SUPPORTED | CONTROLLER_SCOPE;
        put(&mut page, 4 * usize::from(opcode), &effect.to_le_bytes());
    }
    if discovery {
        return page;
    }
    let ios = [
        (io::FLUSH, 0),
        (io::READ, 0),
        (io::COMPARE, 0),
        (io::WRITE, CHANGES_DATA),
        (io::WRITE_ZEROES, CHANGES_DATA),
        (io::DATASET, CHANGES_DATA),
    ];
    let reservations = [
        io::RESERVATION_REGISTER,
        io::RESERVATION_REPORT,
        io::RESERVATION_ACQUIRE,
        io::RESERVATION_RELEASE,
    ];
    let reservations = reservations.into_iter().filter(|_| reservable);
    for (opcode, effect) in ios.into_iter().chain(reservations.map(|opcode| (opcode, 0))) {
        let effect = SUPPORTED | effect;
        put(&mut page, 1024 + 4 * usize::from(opcode), &effect.to_le_bytes());
    }
    page
}
