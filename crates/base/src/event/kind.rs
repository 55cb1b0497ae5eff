//! The kinds of events, with their fields. `docs/events.md` says of each what it means and what to do.

use super::value::{Level, Value};
use crate::{Addr, Duration, MediaKind, NodeId, VolumeId, VssdId};
use core::net::{IpAddr, Ipv4Addr};

/// A kind of events, as documents and counters name it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// The stable name.
    pub name: &'static str,
    /// How much it matters.
    pub level: Level,
    /// The stable names of the fields.
    pub fields: &'static [&'static str],
}

/// Enumerations of reasons, each with a stable name.
macro_rules! reasons {
    ($($(#[$doc:meta])* $type:ident { $($(#[$of:meta])* $variant:ident $name:literal,)+ })+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $type {
            $($(#[$of])* $variant,)+
        }

        impl $type {
            /// Every reason.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];

            /// The stable name.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }

        impl Sample for $type {
            const SAMPLE: Self = Self::ALL[0];
        }

        impl From<$type> for Value {
            fn from(reason: $type) -> Self {
                Self::Name(reason.name())
            }
        }
    )+};
}

reasons! {
    /// The answers that tell that a node is slow.
    Answers {
        /// To reads of the gateway.
        Reads "reads",
        /// To writes of the primaries.
        Writes "writes",
    }
    /// How damage was found.
    Look {
        /// A client has read the page.
        Read "read",
        /// The node has read its own pages.
        Scrub "scrub",
    }
    /// The kind of a requested collection (RackBlox §3.5.1).
    Collection {
        /// The replica can wait.
        Soft "soft",
        /// Free blocks run short; the switch cannot refuse.
        Regular "regular",
        /// The vSSD is idle.
        Background "background",
    }
    /// By whose leave a vSSD collects.
    Grant {
        /// The switch accepted.
        Accepted "accepted",
        /// The switch did not answer, and the vSSD cannot wait.
        Unanswered "unanswered",
        /// Nobody is asked for this kind of collection.
        Unasked "unasked",
        /// No free block was left: collection began by itself.
        Forced "forced",
    }
    /// Why a switch lets no soft collection begin.
    Obstacle {
        /// The replica collects.
        Collects "replica-collects",
        /// The switch has just learnt of the replica, or does not know it.
        Unknown "replica-unknown",
        /// Another switch decides about a vSSD of the set, as far as this one knows.
        Elsewhere "decided-elsewhere",
    }
    /// Why the lease of a GC bit lapsed.
    Lapse {
        /// The node has sent nothing since.
        NodeSilent "node-silent",
        /// The node has started anew.
        NodeRestarted "node-restarted",
        /// The node's word that it is done came after the lease had lapsed.
        FinishLate "finish-late",
        /// The node's renewal came after the lease had lapsed.
        RenewalLate "renewal-late",
        /// The node lives and does not collect: its last word was lost on the way.
        FinishLost "finish-lost",
    }
    /// The failed operation of a medium.
    MediumOperation {
        /// A write of data, or of what describes it.
        Write "write",
        /// A flush.
        Flush "flush",
        /// A write or flush of the superblock.
        Superblock "superblock",
        /// A read.
        Read "read",
    }
    /// What describes the data on a medium.
    Metadata {
        /// One of the two slots of the superblock.
        Superblock "superblock",
        /// A checkpoint of a vSSD.
        Checkpoint "checkpoint",
    }
    /// Why the server of areas did not do what a user asked.
    AreaRefusal {
        /// The request cannot be read.
        Malformed "malformed",
        /// There is no such area or export.
        Unknown "unknown",
        /// There is one of this name already.
        Exists "exists",
        /// The user may not.
        NotPermitted "not-permitted",
        /// A name, a size, a mode or a path that cannot be.
        Invalid "invalid",
        /// The user's quota is used up.
        Quota "quota",
        /// The medium has no room.
        NoRoom "no-room",
        /// Another process has claimed the area.
        InUse "in-use",
        /// The system or the medium failed.
        Failed "failed",
        /// The user, or all users together, have too many connections.
        Busy "busy",
    }
    /// Why a client is not taken.
    Refusal {
        /// As many connections as there may be are open.
        Limit "limit",
        /// Other listeners, or addresses with fewer connections, are to have what is left.
        Share "share",
        /// The process may open no more files (EMFILE, ENFILE).
        Descriptors "descriptors",
        /// The connection cannot be set up.
        Setup "setup",
    }
    /// The layer where an overdue request waits.
    Wait {
        /// An answer of the vSSD's node.
        Answer "answer",
        /// Its turn at the vSSD: the window of changes, or of reads, is full.
        Window "window",
        /// Another change of the same page.
        Page "page",
        /// Memory.
        Memory "memory",
    }
    /// Why a gateway serves no more.
    Lead {
        /// A node told of a gateway with a higher session.
        Superseded "superseded",
        /// The registry names another gateway.
        Named "named",
        /// The gateway gave it to another one, which leads fewer volumes.
        Given "given",
    }
    /// The fault of the registry.
    RegistryTrouble {
        /// Somebody else wrote first.
        Conflict "conflict",
        /// It does not answer, or fails.
        Unreachable "unreachable",
    }
}

impl From<MediaKind> for MediumOperation {
    fn from(kind: MediaKind) -> Self {
        match kind {
            MediaKind::Read => Self::Read,
            MediaKind::Flush => Self::Flush,
            MediaKind::Write | MediaKind::WriteThrough | MediaKind::Discard | MediaKind::Zero => Self::Write,
        }
    }
}

/// A value of a field's type, for [`Kind::samples`].
trait Sample {
    const SAMPLE: Self;
}

macro_rules! samples {
    ($($type:ty: $value:expr;)+) => {
        $(impl Sample for $type {
            const SAMPLE: Self = $value;
        })+
    };
}

samples! {
    &'static str: "nbd";
    u16: 1;
    u32: 2;
    u64: 3;
    NodeId: NodeId(4);
    VssdId: VssdId(5);
    VolumeId: VolumeId(6);
    Addr: Addr::new([10, 0, 0, 7], 8888);
    IpAddr: IpAddr::V4(Ipv4Addr::LOCALHOST);
    Duration: Duration::from_millis(8);
}

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:literal $level:ident $variant:ident {
        $($field:ident: $type:ty,)*
    })+) => {
        /// What happened. `docs/events.md` describes the fields.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs)]
        pub enum Kind {
            $($(#[$doc])* $variant { $($field: $type,)* },)+
        }

        #[derive(Clone, Copy)]
        enum Index {
            $($variant,)+
        }

        impl Kind {
            /// Every kind, in the order of [`Kind::index`].
            pub const ALL: &[Description] = &[
                $(Description {
                    name: $name,
                    level: Level::$level,
                    fields: &[$(stringify!($field),)*],
                },)+
            ];
            /// Number of kinds.
            pub const COUNT: usize = Self::ALL.len();

            /// One event of each kind, for tests of the parts that must know every kind.
            pub const fn samples() -> [Self; Self::COUNT] {
                [$(Self::$variant { $($field: Sample::SAMPLE,)* },)+]
            }

            /// The place in [`Kind::ALL`].
            pub const fn index(&self) -> usize {
                match self {
                    $(Self::$variant { .. } => Index::$variant as usize,)+
                }
            }

            /// Shows each field with its name.
            pub fn fields(&self, show: &mut dyn FnMut(&'static str, Value)) {
                match *self {
                    $(Self::$variant { $($field,)* } => {
                        let _ = &show;
                        $(show(stringify!($field), $field.into());)*
                    })+
                }
            }
        }
    };
}

impl Kind {
    /// The stable name.
    pub const fn name(&self) -> &'static str {
        Self::ALL[self.index()].name
    }

    /// How much it matters.
    pub const fn level(&self) -> Level {
        Self::ALL[self.index()].level
    }
}

kinds! {
    /// The switch learnt of a vSSD, and may not know yet whether the vSSD collects.
    "vssd-registered" Info VssdRegistered { vssd: VssdId, server: Addr, }
    /// The switch has no room for a vSSD.
    "vssd-unregistered" Error VssdUnregistered { vssd: VssdId, server: Addr, }
    /// A second server says to have a vSSD, and is not believed.
    "vssd-contested" Error VssdContested { vssd: VssdId, server: Addr, }
    /// The switch set a vSSD's GC bit, as a lease.
    "lease-granted" Debug LeaseGranted { vssd: VssdId, collection: Collection, }
    /// The vSSD goes on collecting.
    "lease-renewed" Debug LeaseRenewed { vssd: VssdId, }
    /// The vSSD is done.
    "lease-ended" Debug LeaseEnded { vssd: VssdId, held: Duration, }
    /// The vSSD neither renewed its lease nor said that it is done.
    "lease-lapsed" Warn LeaseLapsed { vssd: VssdId, server: Addr, why: Lapse, held: Duration, }
    /// The switch let a soft collection wait.
    "collection-delayed" Debug CollectionDelayed { vssd: VssdId, why: Obstacle, }

    /// A storage server is up, with what its medium holds.
    "node-started" Info NodeStarted { node: NodeId, boot: u32, vssds: u32, }
    /// A storage server writes back and stops.
    "node-stopping" Info NodeStopping { node: NodeId, }
    /// A vSSD was made.
    "vssd-created" Info VssdCreated { vssd: VssdId, pages: u32, }
    /// A vSSD was deleted.
    "vssd-closed" Info VssdClosed { vssd: VssdId, }
    /// The metadata of a vSSD cannot be read: it is not served, and the others of its node are.
    "vssd-unreadable" Error VssdUnreadable { vssd: VssdId, offset: u64, }
    /// A replica holds everything that its peers hold, and serves.
    "replica-serving" Info ReplicaServing { vssd: VssdId, epoch: u32, }
    /// Another replica of the set has started: it joins, and acknowledgements start over.
    "member-greeted" Info MemberGreeted { vssd: VssdId, peer: VssdId, boot: u32, }
    /// Another replica of the set answers nothing: writes wait for it.
    "member-lost" Warn MemberLost { vssd: VssdId, peer: VssdId, waited: Duration, }
    /// A replica that does not serve yet hears nothing of another one of its set.
    "member-unmet" Warn MemberUnmet { vssd: VssdId, peer: VssdId, waited: Duration, }
    /// Another replica of the set answers again.
    "member-back" Info MemberBack { vssd: VssdId, peer: VssdId, }
    /// The replica set has other members.
    "members-changed" Info MembersChanged { vssd: VssdId, generation: u32, members: u32, }
    /// A vSSD begins to collect garbage.
    "collection-begun" Debug CollectionBegun { vssd: VssdId, collection: Collection, grant: Grant, }
    /// A vSSD has collected.
    "collection-ended" Debug CollectionEnded { vssd: VssdId, took: Duration, moved: u64, erased: u64, }
    /// The switch answers no request to collect.
    "switch-silent" Warn SwitchSilent { vssd: VssdId, asked: u32, }
    /// One of two switches does not answer, or has just started: packets go by the other one.
    "tor-silent" Warn TorSilent { tor: Addr, silent: Duration, }
    /// A switch that was silent has answered for a while: it counts again.
    "tor-back" Info TorBack { tor: Addr, away: Duration, }
    /// Datagrams to a host are too short for a page: it goes in parts.
    "path-narrow" Info PathNarrow { to: Addr, mtu: u32, parts: u32, }
    /// Packets of another format version came from an address, and are dropped.
    "packet-foreign" Warn PacketForeign { from: Addr, version: u32, }
    /// A medium failed: its vSSD takes no more writes before the next start.
    "medium-latched" Error MediumLatched { vssd: VssdId, operation: MediumOperation, }
    /// A medium does not answer: an operation was given up at its deadline.
    "medium-silent" Warn MediumSilent { operation: MediumOperation, }
    /// A page cannot be read here; other replicas have it.
    "page-damaged" Warn PageDamaged { vssd: VssdId, page: u32, found: Look, }
    /// A node has found damage in what describes its data, and writes that anew from memory.
    "metadata-damaged" Warn MetadataDamaged { part: Metadata, offset: u64, }
    /// Two members had a page otherwise, though both copies were intact: the later version counts, and of one version that of `vssd`.
    "replicas-differ" Error ReplicasDiffer { vssd: VssdId, peer: VssdId, page: u32, ours: u64, theirs: u64, }
    /// A peer has sent a page that was damaged here; it is written anew.
    "page-repaired" Info PageRepaired { vssd: VssdId, page: u32, peer: VssdId, found: Look, }

    /// The gateway leads the rack; alone, it serves the volumes.
    "lead-taken" Info LeadTaken { session: u32, }
    /// The gateway leads the rack no more.
    "lead-left" Warn LeadLeft { session: u32, why: Lead, }
    /// The gateway serves a volume.
    "volume-taken" Info VolumeTaken { volume: VolumeId, session: u32, }
    /// The gateway serves a volume no more; clients ask another one.
    "volume-left" Warn VolumeLeft { volume: VolumeId, session: u32, why: Lead, }
    /// A request is not answered for long.
    "request-overdue" Warn RequestOverdue {
        volume: VolumeId, vssd: VssdId, wait: Wait, waited: Duration, requests: u32,
    }
    /// Requests failed because nobody answered them in time.
    "request-failed" Error RequestFailed { volume: VolumeId, vssd: VssdId, }
    /// Every replica of a set lost its memory with acknowledged writes; the next flush fails.
    "writes-lost" Error WritesLost { volume: VolumeId, vssd: VssdId, }

    /// A volume was made.
    "volume-created" Info VolumeCreated { volume: VolumeId, bytes: u64, }
    /// A volume has another size.
    "volume-resized" Info VolumeResized { volume: VolumeId, bytes: u64, }
    /// A volume was deleted.
    "volume-deleted" Info VolumeDeleted { volume: VolumeId, }
    /// Two vSSDs have exchanged their nodes.
    "vssds-exchanged" Info VssdsExchanged { volume: VolumeId, other: VolumeId, took: Duration, }
    /// A member of a set is lost and is a member no more: the others go on without it.
    "member-expelled" Warn MemberExpelled { volume: VolumeId, vssd: VssdId, copies: u32, }
    /// A node has something else in the place of a copy: its medium is from elsewhere. It is left alone.
    "copy-foreign" Warn CopyForeign { volume: VolumeId, vssd: VssdId, node: NodeId, }
    /// A node's medium is an image of before its last start that was seen. Its copies were made anew, where others were left; other sets have
    /// what the image has.
    "node-restored" Warn NodeRestored { node: NodeId, }
    /// A vSSD begins to join a set: it lacks copies, or one of its members moves.
    "copy-begun" Info CopyBegun { volume: VolumeId, vssd: VssdId, node: NodeId, }
    /// A set lacks a copy, and no node that answers has room for it.
    "copy-without-room" Warn CopyWithoutRoom { volume: VolumeId, }
    /// A vSSD holds everything that its set holds, and is a replica.
    "copy-joined" Info CopyJoined { volume: VolumeId, vssd: VssdId, took: Duration, }
    /// A member has moved: a vSSD on another node has taken its place.
    "member-moved" Info MemberMoved { volume: VolumeId, vssd: VssdId, node: NodeId, took: Duration, }
    /// A set has more copies than it should have, and gives one up.
    "copy-dropped" Info CopyDropped { volume: VolumeId, vssd: VssdId, }
    /// All parts know a higher level, which the rack has from now on.
    "level-raised" Info LevelRaised { to: u32, }
    /// A node does not know the rack's level, and is taken for lost.
    "node-refused" Error NodeRefused { node: NodeId, knows_to: u32, rack_level: u32, }
    /// A ToR does not know the rack's level. Parts use the other ToR, if there is one.
    "tor-refused" Error TorRefused { tor: Addr, knows_to: u32, rack_level: u32, }
    /// The rack has one node more.
    "node-added" Info NodeAdded { node: NodeId, }
    /// A node is to have no members any more.
    "node-draining" Info NodeDraining { node: NodeId, }
    /// A node that was to have no members has none.
    "node-drained" Info NodeDrained { node: NodeId, }
    /// A node answers, but takes much longer than the others. Reads go to other replicas.
    "node-slow" Warn NodeSlow { node: NodeId, answers: Answers, median: Duration, usual: Duration, }
    /// A node that was slow is no slower than the others.
    "node-well" Info NodeWell { node: NodeId, }
    /// The rack has forgotten a node.
    "node-removed" Info NodeRemoved { node: NodeId, }
    /// Free room is as even over the nodes as moves can make it.
    "rebalanced" Info Rebalanced { }
    /// The registry did not do what it was asked.
    "registry-trouble" Warn RegistryFailed { why: RegistryTrouble, }

    /// The medium of a volume failed: the volume takes no more writes before the next start.
    "volume-latched" Error VolumeLatched { volume: VolumeId, operation: MediumOperation, }
    /// The medium of a volume does not answer: an operation was given up at its deadline.
    "volume-silent" Warn VolumeSilent { volume: VolumeId, operation: MediumOperation, }

    /// A user made a storage area.
    "area-created" Info AreaCreated { area: u64, user: u32, bytes: u64, }
    /// An area has another size.
    "area-resized" Info AreaResized { area: u64, user: u32, bytes: u64, }
    /// A user deleted an area.
    "area-deleted" Info AreaDeleted { area: u64, user: u32, }
    /// A process claimed an area. The kernel ends the claim with the process.
    "area-claimed" Debug AreaClaimed { area: u64, user: u32, process: u32, }
    /// The server did not do what a user asked.
    "area-refused" Warn AreaRefused { user: u32, why: AreaRefusal, }
    /// The size of an area's file was not the area's, and the server put it right.
    "area-mended" Warn AreaMended { area: u64, user: u32, }
    /// An area cannot be looked at, or is not what the table says.
    "area-damaged" Error AreaDamaged { area: u64, }
    /// The table of areas was not written: nothing can be changed before the next start.
    "table-latched" Error TableLatched { }

    /// A client connected.
    "client-connected" Debug ClientConnected { client: IpAddr, protocol: &'static str, }
    /// A client was not taken.
    "client-refused" Warn ClientRefused { client: IpAddr, why: Refusal, }
    /// A client was cut off: it held so many bytes of payload for which others waited, and did nothing about it.
    "client-cut" Warn ClientCut { client: IpAddr, held: u64, }
    /// A connection went to another core.
    "client-moved" Debug ClientMoved { to: u16, }
}
