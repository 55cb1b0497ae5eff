//! The offer of a target: subsystems, their namespaces, and the controllers that hosts have created.
//!
//! One [`Target`] is shared by every session of a process, on whatever core. Sessions reach it through
//! [`Access`] for control only: connect, admin commands, changes. On the data path they work with a
//! [`View`], a copy that they renew when [`Target::generation`] has moved.
//!
//! Invariants:
//! - A controller lives exactly as long as its admin connection: when that ends, or its keep-alive time runs out, the
//!   controller is gone, and its I/O sessions close when they see the generation move.
//! - A queue id of a controller belongs to one connection at a time.
//! - An event that was reported is not reported again before the host has read its log page (Base §5.2).

use core::fmt;
use core::net::IpAddr;
use core::ops::RangeInclusive;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use base::VolumeId;
use base::limits::SECTOR_BYTES;
use thiserror::Error;

use super::notices::Notices;
use super::proto::{self, DISCOVERY_NQN, NQN_BYTES_MAX, Status, event, property};
use super::reservation::{HostId, Reservations, Rights};

/// Error log entries kept per controller; older ones are forgotten (Base §5.16.1.2).
pub const ERRORS_MAX: usize = 16;
/// The composite temperature that is reported (Base §5.16.1.3): 27 °C. Software has none, and what lies below 0 °C or
/// beyond a drive's range alarms monitors.
pub(super) const TEMPERATURE_KELVIN: u16 = 300;
/// Temperatures that would be too high (`WCTEMP`, `CCTEMP`): 70 and 80 °C, as drives have them.
pub(super) const WARNING_KELVIN: u16 = 343;
pub(super) const CRITICAL_KELVIN: u16 = 353;
/// Bytes of Host Behavior Support that mean something (Base §5.27.1.18).
pub(super) const HOST_BEHAVIOR_BYTES: usize = 3;
/// Asynchronous Event Requests that a controller may hold (`AERL` + 1).
pub const EVENT_REQUESTS_MAX: usize = 4;

/// How a path stands to a namespace (Base §8.1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum AnaState {
    /// The best path.
    Optimized = 1,
    /// A path that works, slower.
    NonOptimized = 2,
    /// No I/O on this path now.
    Inaccessible = 3,
    /// No I/O on this path ever again.
    PersistentLoss = 4,
    /// The state is changing; try again.
    Change = 15,
}

impl AnaState {
    /// Status that answers I/O in this state (Base §8.1.2.3 to §8.1.2.6).
    pub(super) const fn refusal(self) -> Option<Status> {
        match self {
            Self::Optimized | Self::NonOptimized => None,
            Self::Inaccessible => Some(Status::ANA_INACCESSIBLE),
            Self::PersistentLoss => Some(Status::ANA_LOSS),
            Self::Change => Some(Status::ANA_TRANSITION),
        }
    }
}

/// Tells how many bytes of a volume hold data, at any time and from any core.
#[derive(Clone)]
pub struct Allocation(Arc<dyn Fn() -> u64 + Send + Sync>);

impl Allocation {
    /// Asks `data_bytes` each time.
    pub fn new(data_bytes: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        Self(Arc::new(data_bytes))
    }

    /// Bytes that hold data now.
    pub fn data_bytes(&self) -> u64 {
        (self.0)()
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Allocation").field(&self.data_bytes()).finish()
    }
}

impl PartialEq for Allocation {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for Allocation {}

/// A volume as hosts see it: one NVM subsystem with one namespace, id 1.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subsystem {
    /// The subsystem's qualified name.
    pub nqn: String,
    /// Serial number, at most 20 ASCII characters; the same on every gateway that offers the volume.
    pub serial: String,
    /// Model, at most 40 ASCII characters.
    pub model: String,
    /// The volume behind the namespace.
    pub volume: VolumeId,
    /// Size in bytes, a multiple of 512.
    pub size_bytes: u64,
    /// Changes are refused with "namespace is write protected".
    pub read_only: bool,
    /// Names of the hosts that may connect; `None` for any.
    pub hosts: Option<Vec<String>>,
    /// The namespace's globally unique id: the same on every gateway, and of no other volume anywhere.
    pub identity: [u8; 16],
    /// Bytes of an aligned write that a power cut leaves whole or not at all: 512 to 65,536, a power of two.
    pub atomic_bytes: u32,
    /// The namespace's ANA group, 1 to [`TargetOptions::ana_group_max`].
    pub ana_group: u32,
    /// How this target's path stands to it.
    pub ana_state: AnaState,
    /// How much of it holds data, told as the namespace's utilization; `None` tells that all of it does.
    pub allocation: Option<Allocation>,
    /// Hosts may reserve it: only where every request for it passes this target, and ends here.
    pub reservable: bool,
}

impl Subsystem {
    /// A writable volume for any host, named as [`nqn_of`] says, with the serial number from its identity. Nobody may
    /// reserve it.
    pub fn new(name: &str, volume: VolumeId, size_bytes: u64, identity: [u8; 16]) -> Self {
        let serial = identity
            .iter()
            .take(8)
            .map(|byte| format!("{byte:02x}"))
            .collect();
        Self {
            nqn: nqn_of(name),
            serial,
            model: "Switchyard".to_string(),
            volume,
            size_bytes,
            read_only: false,
            hosts: None,
            identity,
            atomic_bytes: SECTOR_BYTES as u32,
            ana_group: 1,
            ana_state: AnaState::Optimized,
            allocation: None,
            reservable: false,
        }
    }

    fn check(&self, options: &TargetOptions) -> Result<(), TargetError> {
        let text = |text: &str, bytes_max: usize| {
            text.len() <= bytes_max && text.bytes().all(|byte| (0x20..0x7f).contains(&byte))
        };
        let named =
            text(&self.nqn, NQN_BYTES_MAX) && self.nqn.starts_with("nqn.") && self.nqn != DISCOVERY_NQN;
        if !named || !text(&self.serial, 20) || !text(&self.model, 40) {
            return Err(TargetError::Name);
        }
        let atomic = self.atomic_bytes.is_power_of_two() && (512..=1 << 16).contains(&self.atomic_bytes);
        let sized = self.size_bytes > 0 && self.size_bytes.is_multiple_of(SECTOR_BYTES as u64);
        let grouped = (1..=options.ana_group_max).contains(&self.ana_group);
        if !sized || !atomic || !grouped || self.identity == [0; 16] {
            return Err(TargetError::Shape);
        }
        Ok(())
    }
}

/// Qualified name of the subsystem of a volume.
pub fn nqn_of(name: &str) -> String {
    format!("nqn.2026-11.io.switchyard:{name}")
}

/// Family of an address (Fabrics §5.3, `ADRFAM`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Family {
    /// IPv4.
    V4 = 1,
    /// IPv6.
    V6 = 2,
}

/// Where hosts can connect, as the discovery log says it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Address {
    /// Its family.
    pub family: Family,
    /// The address as text, at most 255 characters.
    pub host: String,
    /// The TCP port.
    pub port: u16,
}

impl Address {
    /// The address of an IP and a port.
    pub fn new(ip: IpAddr, port: u16) -> Self {
        Self {
            family: match ip {
                IpAddr::V4(_) => Family::V4,
                IpAddr::V6(_) => Family::V6,
            },
            host: ip.to_string(),
            port,
        }
    }

    /// The address for a host that came by `via`: a wildcard stands for it.
    pub(super) fn seen(&self, via: Option<IpAddr>) -> Self {
        let is_wildcard = self.host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified());
        match via.filter(|_| is_wildcard) {
            Some(ip) => Self::new(ip, self.port),
            None => self.clone(),
        }
    }
}

/// Parameters of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetOptions {
    /// Controller ids that this target gives out. Gateways that offer the same volume need ranges of their own: a host
    /// refuses a second controller of one subsystem with the same id.
    pub cntlids: RangeInclusive<u16>,
    /// Controllers at a time; one more is refused with "controller busy".
    pub controllers_max: usize,
    /// I/O queues of one controller; hosts that ask for more get this many.
    pub io_queues_max: u16,
    /// ANA groups that volumes may be put in (`ANAGRPMAX`).
    pub ana_group_max: u32,
    /// Firmware revision, at most 8 ASCII characters.
    pub firmware: String,
}

impl Default for TargetOptions {
    /// Every id that the protocol has, 1,024 controllers, 64 I/O queues each, 128 ANA groups.
    fn default() -> Self {
        Self {
            cntlids: 1..=proto::CNTLID_MAX,
            controllers_max: 1024,
            io_queues_max: 64,
            ana_group_max: 128,
            firmware: env!("CARGO_PKG_VERSION").to_string(),
        }
    }
}

/// Why a change of the offer is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Error)]
pub enum TargetError {
    /// A name, serial number or model that the protocol cannot carry.
    #[error("a name is empty, too long, not ASCII, or reserved")]
    Name,
    /// A size, group, identity or atomicity that makes no sense.
    #[error("the volume's size, ANA group, identity or atomicity is not valid")]
    Shape,
    /// There is a subsystem of this name.
    #[error("a subsystem of this name exists")]
    Exists,
    /// There is no subsystem of this name.
    #[error("no such subsystem")]
    Missing,
}

/// A session's view of its controller and namespace on the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct View {
    /// The namespace, unless it is a discovery controller.
    pub namespace: Option<Namespace>,
    /// `CC.EN` and `CSTS.RDY`.
    pub ready: bool,
    /// The volatile write cache is off: everything is written through.
    pub write_through: bool,
    /// Keep-alive time in milliseconds, 0 for none.
    pub kato_ms: u32,
    /// Counts the times that the controller was reset: I/O queues do not outlive that.
    pub resets: u32,
}

impl View {
    /// The namespace of a command, if that `is_named` and this path leads to it.
    pub(super) fn addressed(&self, is_named: bool) -> Result<&Namespace, Status> {
        let namespace = self.namespace.as_ref().filter(|_| is_named);
        let namespace = namespace.ok_or(Status::INVALID_NAMESPACE.dnr())?;
        namespace.ana_state.refusal().map_or(Ok(namespace), Err)
    }
}

/// The namespace of a [`View`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Namespace {
    pub volume: VolumeId,
    pub size_bytes: u64,
    pub read_only: bool,
    pub ana_state: AnaState,
    pub reservable: bool,
    /// Of the controller's host.
    pub rights: Rights,
}

/// Counts of reads and writes, for the health log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Read commands.
    pub reads: u64,
    /// Write commands.
    pub writes: u64,
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Commands that failed because of the medium.
    pub media_errors: u64,
}

impl Usage {
    pub(super) fn add(&mut self, other: &Self) {
        self.reads += other.reads;
        self.writes += other.writes;
        self.read_bytes += other.read_bytes;
        self.written_bytes += other.written_bytes;
        self.media_errors += other.media_errors;
    }
}

/// One entry of the error log (Base §5.16.1.2, figure 206).
#[derive(Clone, Copy, Debug)]
pub(super) struct ErrorEntry {
    /// Numbered by the controller, from 1.
    pub count: u64,
    pub qid: u16,
    pub cid: u16,
    pub status: Status,
    pub nsid: u32,
    pub lba: u64,
}

/// Which controller a session belongs to: ids are used again, incarnations are not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Handle {
    pub cntlid: u16,
    pub incarnation: u64,
}

/// A controller, made by the Connect of an admin queue.
#[derive(Debug)]
pub(super) struct Controller {
    /// Controllers made before it.
    pub incarnation: u64,
    /// Name of its subsystem, the discovery subsystem's for a discovery controller.
    pub nqn: String,
    pub host_nqn: String,
    pub host_id: HostId,
    pub cc: u32,
    pub csts: u32,
    pub kato_ms: u32,
    pub event_mask: u32,
    /// Events that have happened and are to be reported; bits as in the configuration.
    pub pending: u32,
    /// Events that were reported and whose log page was not read since.
    pub unread: u32,
    /// The namespace is in the list of changed ones.
    pub namespace_changed: bool,
    pub write_cache: bool,
    pub resets: u32,
    /// Features that are stored and have no effect.
    pub arbitration: u32,
    pub error_recovery: u32,
    pub write_atomicity: u32,
    pub temperature: [u16; 2],
    pub host_behavior: [u8; HOST_BEHAVIOR_BYTES],
    /// I/O queues that the host may create.
    pub io_queues: u16,
    /// Those that are connected.
    pub connected: Vec<u16>,
    pub errors: VecDeque<ErrorEntry>,
    pub errors_total: u64,
    pub notices: Notices,
    pub usage: Usage,
}

impl Controller {
    pub fn is_discovery(&self) -> bool {
        self.nqn == DISCOVERY_NQN
    }

    pub fn is_ready(&self) -> bool {
        self.cc & property::CC_ENABLE != 0 && self.csts & property::CSTS_READY != 0
    }

    pub fn log_error(&mut self, error: ErrorEntry) {
        self.errors_total += 1;
        if self.errors.len() == ERRORS_MAX {
            self.errors.pop_back();
        }
        let count = self.errors_total;
        self.errors.push_front(ErrorEntry { count, ..error });
    }

    /// True if the temperature is beyond a threshold that the host has set (Base §5.27.1.3).
    pub fn is_beyond_threshold(&self) -> bool {
        let [over, under] = self.temperature;
        TEMPERATURE_KELVIN >= over || TEMPERATURE_KELVIN <= under
    }
}

/// Connected hosts, for a status display.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControllerInfo {
    /// The controller's id.
    pub cntlid: u16,
    /// Its subsystem.
    pub nqn: String,
    /// Its host.
    pub host_nqn: String,
    /// I/O queues that are connected.
    pub io_queues: usize,
    /// Its counts, as far as its sessions have reported.
    pub usage: Usage,
}

/// An I/O queue of a volume that may be reserved.
#[derive(Debug)]
pub(super) struct Attached {
    pub nqn: String,
    pub host: HostId,
    /// The newest fence set up for it, and the newest one that it has passed.
    pub fence: u64,
    pub passed: u64,
}

/// How sessions reach the target. A world with several cores puts a lock there, which is taken for control only.
pub trait Access: Send + Sync {
    /// Lets `f` work with the target.
    fn with(&self, f: &mut dyn FnMut(&mut Target));
    /// [`Target::generation`], cheaply: it is asked for on every `receive`.
    fn generation(&self) -> u64;
    /// Has `wake` called after each move of the generation, on whatever thread moves it.
    fn watch(&self, _wake: Box<dyn Fn() + Send + Sync>) {}
}

/// The offer.
#[derive(Debug)]
pub struct Target {
    pub(super) options: TargetOptions,
    pub(super) subsystems: BTreeMap<String, Subsystem>,
    pub(super) addresses: Vec<Address>,
    pub(super) referrals: Vec<Address>,
    pub(super) controllers: BTreeMap<u16, Controller>,
    pub(super) usage: BTreeMap<String, Usage>,
    /// By subsystem, of those that a host has registered with.
    pub(super) reservations: BTreeMap<String, Reservations>,
    /// I/O queues of volumes that may be reserved, until their last request is answered.
    pub(super) attached: BTreeMap<u64, Attached>,
    pub(super) attached_total: u64,
    /// Fences set up so far: what hosts that preempt wait for.
    pub(super) fences_total: u64,
    next_cntlid: u16,
    /// Controllers made so far.
    incarnations: u64,
    generation: u64,
    /// Changes of the discovery log (`GENCTR`).
    pub(super) discovery_changes: u64,
    /// Changes of ANA states (`CHGCNT`).
    pub(super) ana_changes: u64,
}

impl Target {
    /// A target without volumes.
    ///
    /// # Panics
    /// If the options leave no controller id, no I/O queue or no ANA group.
    pub fn new(options: TargetOptions) -> Self {
        let ids = &options.cntlids;
        assert!(*ids.start() > 0 && ids.start() <= ids.end() && *ids.end() <= proto::CNTLID_MAX);
        assert!(options.controllers_max > 0 && options.io_queues_max > 0 && options.ana_group_max > 0);
        Self {
            next_cntlid: *ids.start(),
            options,
            subsystems: BTreeMap::new(),
            addresses: Vec::new(),
            referrals: Vec::new(),
            controllers: BTreeMap::new(),
            usage: BTreeMap::new(),
            reservations: BTreeMap::new(),
            attached: BTreeMap::new(),
            attached_total: 0,
            fences_total: 0,
            incarnations: 0,
            generation: 0,
            discovery_changes: 0,
            ana_changes: 0,
        }
    }

    /// Moves whenever something changed that sessions have to know: tick every session then.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The volumes, by name.
    pub fn subsystems(&self) -> impl Iterator<Item = &Subsystem> {
        self.subsystems.values()
    }

    /// Connected hosts, by controller id.
    pub fn controllers(&self) -> impl Iterator<Item = ControllerInfo> {
        self.controllers
            .iter()
            .map(|(&cntlid, controller)| ControllerInfo {
                cntlid,
                nqn: controller.nqn.clone(),
                host_nqn: controller.host_nqn.clone(),
                io_queues: controller.connected.len(),
                usage: controller.usage,
            })
    }

    /// Offers a volume.
    ///
    /// # Errors
    /// If the protocol cannot carry its description, or the name is taken.
    pub fn add(&mut self, subsystem: Subsystem) -> Result<(), TargetError> {
        subsystem.check(&self.options)?;
        if self.subsystems.contains_key(&subsystem.nqn) {
            return Err(TargetError::Exists);
        }
        self.subsystems.insert(subsystem.nqn.clone(), subsystem);
        self.discovery_changed();
        Ok(())
    }

    /// Takes a volume back: its controllers are gone, their connections close.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn remove(&mut self, nqn: &str) -> Result<(), TargetError> {
        self.subsystems.remove(nqn).ok_or(TargetError::Missing)?;
        self.usage.remove(nqn);
        self.reservations.remove(nqn);
        self.controllers.retain(|_, controller| controller.nqn != nqn);
        self.discovery_changed();
        Ok(())
    }

    /// Changes a volume's size; hosts are told.
    ///
    /// # Errors
    /// If there is none of that name, or the size is no positive multiple of 512.
    pub fn resize(&mut self, nqn: &str, size_bytes: u64) -> Result<(), TargetError> {
        if size_bytes == 0 || !size_bytes.is_multiple_of(SECTOR_BYTES as u64) {
            return Err(TargetError::Shape);
        }
        self.subsystem_mut(nqn)?.size_bytes = size_bytes;
        self.notify(nqn, event::MASK_NAMESPACE);
        Ok(())
    }

    /// Forbids or allows changes of a volume; hosts are told.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn set_read_only(&mut self, nqn: &str, read_only: bool) -> Result<(), TargetError> {
        self.subsystem_mut(nqn)?.read_only = read_only;
        self.notify(nqn, event::MASK_NAMESPACE);
        Ok(())
    }

    /// Sets how this path stands to every volume of an ANA group; hosts are told.
    pub fn set_ana_state(&mut self, group: u32, state: AnaState) {
        self.ana_changes += 1;
        let mut moved = Vec::new();
        for subsystem in self.subsystems.values_mut() {
            if subsystem.ana_group == group && subsystem.ana_state != state {
                subsystem.ana_state = state;
                moved.push(subsystem.nqn.clone());
            }
        }
        for nqn in moved {
            self.notify(&nqn, event::MASK_ANA);
        }
    }

    /// Sets how this path stands to one volume; hosts are told.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn set_state(&mut self, nqn: &str, state: AnaState) -> Result<(), TargetError> {
        let subsystem = self.subsystem_mut(nqn)?;
        if core::mem::replace(&mut subsystem.ana_state, state) != state {
            self.ana_changes += 1;
            self.notify(nqn, event::MASK_ANA);
        }
        Ok(())
    }

    /// Sets who may connect to a volume, `None` for any. Controllers of hosts that may not any more are gone.
    ///
    /// # Errors
    /// If there is none of that name.
    pub fn set_hosts(&mut self, nqn: &str, hosts: Option<Vec<String>>) -> Result<(), TargetError> {
        let may = |controller: &Controller| match &hosts {
            Some(hosts) => hosts.contains(&controller.host_nqn),
            None => true,
        };
        self.controllers
            .retain(|_, controller| controller.nqn != nqn || may(controller));
        self.subsystem_mut(nqn)?.hosts = hosts;
        self.discovery_changed();
        Ok(())
    }

    /// Sets where this target listens.
    pub fn set_addresses(&mut self, addresses: Vec<Address>) {
        self.addresses = addresses;
        self.discovery_changed();
    }

    /// Sets the discovery services that hosts are sent on to.
    pub fn set_referrals(&mut self, referrals: Vec<Address>) {
        self.referrals = referrals;
        self.discovery_changed();
    }

    /// The discovery services that hosts are sent on to.
    pub fn referrals(&self) -> &[Address] {
        &self.referrals
    }

    fn subsystem_mut(&mut self, nqn: &str) -> Result<&mut Subsystem, TargetError> {
        self.subsystems.get_mut(nqn).ok_or(TargetError::Missing)
    }

    fn discovery_changed(&mut self) {
        self.discovery_changes += 1;
        self.notify(DISCOVERY_NQN, event::MASK_DISCOVERY);
    }

    /// Notes an event for every controller of a subsystem.
    fn notify(&mut self, nqn: &str, mask: u32) {
        for controller in self.controllers.values_mut() {
            if controller.nqn == nqn {
                controller.pending |= mask;
                controller.namespace_changed |= mask == event::MASK_NAMESPACE;
            }
        }
        self.touch();
    }

    /// Lets sessions know that they have to look.
    pub(super) fn touch(&mut self) {
        self.generation += 1;
    }

    /// True if the host may know of the subsystem.
    pub(super) fn allows(subsystem: &Subsystem, host_nqn: &str) -> bool {
        subsystem
            .hosts
            .as_ref()
            .is_none_or(|hosts| hosts.iter().any(|host| host == host_nqn))
    }

    /// Makes a controller; `None` if there are as many as there may be.
    pub(super) fn create(
        &mut self,
        nqn: &str,
        host_nqn: &str,
        host_id: HostId,
        kato_ms: u32,
    ) -> Option<Handle> {
        let ids = self.options.cntlids.clone();
        let room = ids.clone().count().min(self.options.controllers_max);
        if self.controllers.len() >= room {
            return None;
        }
        // Ids go round, so that one is not used again while a host may still remember it.
        let mut cntlid = self.next_cntlid;
        while self.controllers.contains_key(&cntlid) {
            cntlid = if cntlid == *ids.end() {
                *ids.start()
            } else {
                cntlid + 1
            };
        }
        self.next_cntlid = if cntlid == *ids.end() {
            *ids.start()
        } else {
            cntlid + 1
        };
        self.incarnations += 1;
        let incarnation = self.incarnations;
        let controller = Controller {
            incarnation,
            nqn: nqn.to_string(),
            host_nqn: host_nqn.to_string(),
            host_id,
            cc: 0,
            csts: 0,
            kato_ms,
            event_mask: 0,
            pending: 0,
            unread: 0,
            namespace_changed: false,
            write_cache: true,
            resets: 0,
            arbitration: 0,
            error_recovery: 0,
            write_atomicity: 0,
            temperature: [WARNING_KELVIN, 0],
            host_behavior: [0; HOST_BEHAVIOR_BYTES],
            io_queues: self.options.io_queues_max,
            connected: Vec::new(),
            errors: VecDeque::new(),
            errors_total: 0,
            notices: Notices::default(),
            usage: Usage::default(),
        };
        self.controllers.insert(cntlid, controller);
        Some(Handle { cntlid, incarnation })
    }

    /// An admin connection has ended: its controller is gone.
    pub(super) fn destroy(&mut self, handle: Handle) {
        if self.held(handle).is_some() {
            self.controllers.remove(&handle.cntlid);
            self.touch();
        }
    }

    /// The controller, unless it is gone.
    pub(super) fn held(&self, handle: Handle) -> Option<&Controller> {
        let controller = self.controllers.get(&handle.cntlid)?;
        (controller.incarnation == handle.incarnation).then_some(controller)
    }

    /// The controller to change, unless it is gone.
    pub(super) fn held_mut(&mut self, handle: Handle) -> Option<&mut Controller> {
        let controller = self.controllers.get_mut(&handle.cntlid)?;
        (controller.incarnation == handle.incarnation).then_some(controller)
    }

    /// Facts for the data path; `None` when the controller is gone.
    pub(super) fn view(&self, handle: Handle) -> Option<View> {
        let controller = self.held(handle)?;
        let namespace = self.subsystems.get(&controller.nqn).map(|subsystem| Namespace {
            volume: subsystem.volume,
            size_bytes: subsystem.size_bytes,
            read_only: subsystem.read_only,
            ana_state: subsystem.ana_state,
            reservable: subsystem.reservable,
            rights: self.rights(&controller.nqn, Some(&controller.host_id)),
        });
        Some(View {
            namespace,
            ready: controller.is_ready(),
            write_through: !controller.write_cache,
            kato_ms: controller.kato_ms,
            resets: controller.resets,
        })
    }

    /// Rights of a host to a subsystem's namespace; `None` for a client without identifier.
    pub(super) fn rights(&self, nqn: &str, host: Option<&HostId>) -> Rights {
        let reservations = self.reservations.get(nqn);
        reservations.map_or(Rights::ALL, |reservations| reservations.rights(host))
    }

    /// Rights at a volume of a client without a host identifier, such as one of NBD: the client is no registrant.
    pub fn rights_of_others(&self, volume: VolumeId) -> Rights {
        let subsystem = self
            .subsystems
            .values()
            .find(|subsystem| subsystem.volume == volume);
        subsystem.map_or(Rights::ALL, |subsystem| self.rights(&subsystem.nqn, None))
    }

    /// Adds to what a controller and its volume did.
    pub(super) fn record(&mut self, handle: Handle, usage: &Usage) {
        if let Some(controller) = self.held_mut(handle) {
            controller.usage.add(usage);
            let nqn = controller.nqn.clone();
            self.usage.entry(nqn).or_default().add(usage);
        }
    }

    /// The next event that a controller is to report, as the result of its request.
    pub(super) fn take_event(&mut self, handle: Handle) -> Option<u32> {
        let controller = self.held_mut(handle)?;
        let due = controller.pending & !controller.unread & (controller.event_mask | event::MASK_RESERVATION);
        let (mask, result) = [
            (event::MASK_NAMESPACE, event::NAMESPACE_CHANGED),
            (event::MASK_ANA, event::ANA_CHANGED),
            (event::MASK_DISCOVERY, event::DISCOVERY_CHANGED),
            (event::MASK_RESERVATION, event::RESERVATION_NOTICE),
        ]
        .into_iter()
        .find(|(mask, _)| due & mask != 0)?;
        controller.pending &= !mask;
        controller.unread |= mask;
        Some(result)
    }
}
