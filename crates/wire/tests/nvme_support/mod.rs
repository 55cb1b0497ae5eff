//! A target with a disk in memory, and hosts connected to it by byte pipes that split where they are told to.
#![allow(dead_code, reason = "each user of this module needs a part of it")]

mod offer;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use base::limits::PAGE_BYTES;
use base::{BlockError, BlockOp, BlockReply, BlockRequest, Extent, Instant, Pages, Pool, Rng, VolumeId};
pub use offer::Offer;
use wire::nvme::host::{Data, Host, HostOptions, Sink};
use wire::nvme::proto::{
    COMMAND_PDU_BYTES, Common, Cqe, DATA_PDU_BYTES, DataHeader, Fatal, Initialize, Sgl, Sqe, Status,
    Termination, pdu, pdu_flag, property, sgl,
};
use wire::nvme::{Session, SessionLimits, Subsystem, Target, TargetOptions};
use wire::{Outgoing, Session as _};

pub const NQN: &str = "nqn.2026-11.io.switchyard:disk";
pub const HOST_NQN: &str = "nqn.2014-08.org.nvmexpress:uuid:4a1f6f5e-0000-4000-8000-000000000001";
pub const DISK_BYTES: usize = 1 << 20;
pub const POOL_PAGES: usize = 256;
/// `CC` as Linux sets it: 64 and 16 byte entries, enabled.
pub const ENABLE: u32 = 6 << 16 | 4 << 20 | property::CC_ENABLE;

/// Result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    pub status: Status,
    pub result: u64,
    pub data: Vec<u8>,
}

/// Data going out and coming in, by command.
#[derive(Default)]
pub struct Mail {
    pub outgoing: BTreeMap<u16, Vec<u8>>,
    pub incoming: BTreeMap<u16, Vec<u8>>,
    pub ended: BTreeMap<u16, Ended>,
}

impl Sink for Mail {
    fn data(&mut self, cid: u16, offset: u32, bytes: &[u8]) {
        let mut data = self.incoming.remove(&cid).unwrap_or_default();
        assert_eq!(data.len(), offset as usize, "data comes in order");
        data.extend(bytes);
        self.incoming.insert(cid, data);
    }

    fn fill(&mut self, cid: u16, offset: u32, target: &mut [u8]) {
        // The id of a command is known only when it was submitted: until then its data is under the id 0xffff.
        let fresh = self.outgoing.remove(&u16::MAX);
        if let Some(fresh) = fresh {
            self.outgoing.insert(cid, fresh);
        }
        let data = self.outgoing.get(&cid).expect("data that is wanted is there");
        target.copy_from_slice(&data[offset as usize..][..target.len()]);
    }

    fn done(&mut self, cid: u16, completion: &Cqe) {
        self.outgoing.remove(&cid);
        let ended = Ended {
            status: completion.status,
            result: completion.result,
            data: self.incoming.remove(&cid).unwrap_or_default(),
        };
        assert!(self.ended.insert(cid, ended).is_none(), "a command ends once");
    }
}

/// The target and its disk.
pub struct Rig {
    pub target: Arc<Offer>,
    pub pool: Pool,
    pub disk: Vec<u8>,
    pub limits: SessionLimits,
    pub now: Instant,
    /// Requests that wait for [`Rig::answer_all`], if `hold` is set.
    pub held: Vec<BlockRequest>,
    /// The address by which hosts come.
    pub via: Option<IpAddr>,
    pub hold: bool,
    /// Answer every request with this.
    pub fail: Option<BlockError>,
    /// Requests seen: operation, offset, length, fua.
    pub seen: Vec<(BlockOp, u64, u32, bool)>,
}

/// A host and the session it is connected to.
pub struct Wire {
    pub host: Host,
    pub session: Session,
    pub mail: Mail,
    /// Commands that ended, for tests that count them.
    pub done: usize,
    /// Bytes on their way that the session has not taken.
    pub to_session: Vec<u8>,
    /// Random splits, if there is a generator.
    pub rng: Option<Rng>,
    /// Everything the session said, if it is kept.
    pub heard: Option<Vec<u8>>,
}

pub fn limits() -> SessionLimits {
    SessionLimits {
        in_flight_max: 16,
        in_flight_bytes_max: 320 << 10,
        asked_bytes_max: 64 << 10,
        pages_reserve: 2,
        ..SessionLimits::default()
    }
}

impl Rig {
    pub fn new() -> Self {
        Self::with(limits(), POOL_PAGES)
    }

    pub fn with(limits: SessionLimits, pool_pages: usize) -> Self {
        let mut target = Target::new(TargetOptions::default());
        target
            .add(Subsystem::new("disk", VolumeId(7), DISK_BYTES as u64, [7; 16]))
            .expect("the first volume");
        Self {
            target: Offer::new(target),
            pool: Pool::new(pool_pages, 512),
            disk: (0..DISK_BYTES).map(|at| (at / 512 * 7 + at) as u8).collect(),
            limits,
            now: Instant::from_nanos(1),
            held: Vec::new(),
            hold: false,
            via: None,
            fail: None,
            seen: Vec::new(),
        }
    }

    pub fn wire(&self, options: HostOptions) -> Wire {
        Wire {
            host: Host::new(options),
            session: Session::new(3, self.pool.clone(), self.limits, self.target.clone()).via(self.via),
            mail: Mail::default(),
            done: 0,
            to_session: Vec::new(),
            rng: None,
            heard: None,
        }
    }

    /// A connected admin queue with an enabled controller.
    pub fn admin(&mut self, options: HostOptions) -> Wire {
        let mut wire = self.wire(options);
        self.pump(&mut wire);
        assert!(wire.host.is_connected(), "{:?}", wire.host.failed());
        let ended = self.run(&mut wire, Sqe::set_property(property::CC, ENABLE), &[]);
        assert_eq!(ended.status, Status::SUCCESS);
        wire
    }

    /// A connected I/O queue of an enabled controller, and its admin queue.
    pub fn io(&mut self, options: HostOptions) -> (Wire, Wire) {
        let admin = self.admin(options.clone());
        let mut io = self.wire(options.io(admin.host.cntlid(), 1, 16));
        self.pump(&mut io);
        assert!(io.host.is_connected(), "{:?}", io.host.failed());
        (admin, io)
    }

    pub fn options() -> HostOptions {
        HostOptions {
            entries: 16,
            ..HostOptions::admin(NQN, HOST_NQN)
        }
    }

    /// Submits a command, lets everything happen and returns what became of it.
    pub fn run(&mut self, wire: &mut Wire, command: (Sqe, Data), data: &[u8]) -> Ended {
        let cid = self.submit(wire, command, data);
        self.pump(wire);
        wire.mail.ended.remove(&cid).expect("the command ends")
    }

    pub fn submit(&mut self, wire: &mut Wire, (sqe, data): (Sqe, Data), bytes: &[u8]) -> u16 {
        if let Data::Out(_) = data {
            wire.mail.outgoing.insert(u16::MAX, bytes.to_vec());
        }
        let cid = wire
            .host
            .submit(sqe, data, &mut wire.mail)
            .expect("there is room for the command");
        if let Some(bytes) = wire.mail.outgoing.remove(&u16::MAX) {
            wire.mail.outgoing.insert(cid, bytes);
        }
        cid
    }

    /// Moves bytes both ways and answers requests until nothing moves.
    pub fn pump(&mut self, wire: &mut Wire) {
        loop {
            let mut moved = wire.fetch();
            let piece = wire.piece(wire.to_session.len());
            let taken = wire.session.receive(self.now, &wire.to_session[..piece]);
            assert!(
                taken == piece || wire.session.state().is_blocked,
                "what is not taken waits for room"
            );
            wire.to_session.drain(..taken);
            moved |= taken > 0;
            moved |= self.serve(&mut wire.session);
            moved |= wire.deliver();
            if !moved {
                return;
            }
        }
    }

    /// Feeds bytes as they are, lets the disk answer, and returns what the session says.
    pub fn tell(&mut self, session: &mut Session, bytes: &[u8]) -> Vec<u8> {
        let mut rest = bytes;
        let mut heard = Vec::new();
        loop {
            let taken = session.receive(self.now, rest);
            rest = &rest[taken..];
            let served = self.serve(session);
            let before = heard.len();
            session.transmit(&mut Outgoing::copy(&mut heard, usize::MAX));
            session.sent(heard.len() - before);
            if taken == 0 && !served && heard.len() == before {
                return heard;
            }
        }
    }

    /// Takes every request; true if there was one.
    pub fn serve(&mut self, session: &mut Session) -> bool {
        let mut any = false;
        while let Some(request) = session.asks().requests.pop_front() {
            any = true;
            assert!(request.range.is_empty() || request.range.end() <= DISK_BYTES as u64);
            self.seen.push((
                request.op,
                request.range.offset(),
                request.range.length() as u32,
                request.fua,
            ));
            if self.hold {
                self.held.push(request);
            } else {
                self.answer(session, request);
            }
        }
        any
    }

    /// Carries a request out on the disk and completes it.
    pub fn answer(&mut self, session: &mut Session, request: BlockRequest) {
        let result = match self.fail {
            Some(error) => Err(error),
            None => Ok(self.carry_out(&request)),
        };
        let (client, tag) = (request.client, request.tag);
        drop(request);
        session.complete(BlockReply { client, tag, result });
    }

    pub fn answer_all(&mut self, session: &mut Session) {
        for request in core::mem::take(&mut self.held) {
            self.answer(session, request);
        }
    }

    fn carry_out(&mut self, request: &BlockRequest) -> Pages {
        let (start, length) = (request.range.offset() as usize, request.range.length() as usize);
        let first = start / PAGE_BYTES;
        let mut pages = Pages::new();
        match request.op {
            BlockOp::Read => {
                for page in first..(start + length).div_ceil(PAGE_BYTES) {
                    let target = self.pool.alloc().expect("the pool is large enough");
                    target.with_mut(|bytes| {
                        bytes.copy_from_slice(&self.disk[page * PAGE_BYTES..][..PAGE_BYTES])
                    });
                    pages.push(target);
                }
            }
            BlockOp::Write => {
                for at in (start..start + length).step_by(512) {
                    let page = &request.pages[at / PAGE_BYTES - first];
                    page.with(|bytes| {
                        self.disk[at..at + 512].copy_from_slice(&bytes[at % PAGE_BYTES..][..512])
                    });
                }
            }
            BlockOp::Trim | BlockOp::WriteZeroes => self.disk[start..start + length].fill(0),
            BlockOp::Status => {
                Extent::fill(&request.pages[0], request.range, |at, left| {
                    let zero = |at: u64| self.disk[at as usize..][..512].iter().all(|&byte| byte == 0);
                    let is_hole = zero(at);
                    let same = (at..at + left).step_by(512).take_while(|&at| zero(at) == is_hole);
                    let length = same.count() as u64 * 512;
                    Some(Extent { length, is_hole })
                });
                pages = request.pages.clone();
            }
            BlockOp::Flush => {}
        }
        pages
    }
}

impl Wire {
    /// Takes bytes from the host; true if there were any.
    pub fn fetch(&mut self) -> bool {
        if let Some(due) = self.host.data_due()
            && self.host.outgoing().is_empty()
        {
            let count = self.piece(due.length as usize);
            let data = &self.mail.outgoing[&due.cid][due.offset as usize..][..count];
            self.to_session.extend_from_slice(data);
            self.host.sent(count);
            return true;
        }
        let count = self.piece(self.host.outgoing().len());
        self.to_session.extend_from_slice(&self.host.outgoing()[..count]);
        self.host.sent(count);
        count > 0
    }

    /// Takes bytes to the host; true if there were any.
    pub fn deliver(&mut self) -> bool {
        let mut bytes = Vec::new();
        let limit = self.piece(self.session.state().pending_bytes as usize);
        self.session.transmit(&mut Outgoing::copy(&mut bytes, limit));
        self.session.sent(bytes.len());
        if let Some(heard) = &mut self.heard {
            heard.extend(&bytes);
        }
        self.host.receive(&bytes, &mut self.mail);
        !bytes.is_empty()
    }

    /// How many of `bytes` bytes move now.
    pub fn piece(&mut self, bytes: usize) -> usize {
        match &mut self.rng {
            Some(rng) if bytes > 0 => {
                let most = [1, 9, 80, 5000, bytes as u64][rng.below(5) as usize].min(bytes as u64);
                rng.between(1, most) as usize
            }
            _ => bytes,
        }
    }
}

/// One PDU of a target, digests aside.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Heard {
    Initialized(Initialize),
    Response(Cqe),
    Data {
        header: DataHeader,
        flags: u8,
        bytes: Vec<u8>,
    },
    Ready(DataHeader),
    Terminated {
        fatal: Option<Fatal>,
        information: u32,
        culprit: Vec<u8>,
    },
}

/// The PDUs of a target that speaks without digests.
pub fn heard(bytes: &[u8]) -> Vec<Heard> {
    let mut rest = bytes;
    let mut all = Vec::new();
    while !rest.is_empty() {
        let common = Common::parse(rest);
        let pdu = &rest[..common.total_bytes as usize];
        rest = &rest[common.total_bytes as usize..];
        let header_bytes = usize::from(common.header_bytes);
        all.push(match common.kind {
            pdu::IC_RESP => Heard::Initialized(Initialize::parse(pdu)),
            pdu::RESPONSE => Heard::Response(Cqe::parse(&pdu[8..])),
            pdu::R2T => Heard::Ready(DataHeader::parse(pdu)),
            pdu::C2H_DATA => Heard::Data {
                header: DataHeader::parse(pdu),
                flags: common.flags,
                bytes: pdu[usize::from(common.data_offset)..].to_vec(),
            },
            pdu::C2H_TERM => {
                let termination = Termination::parse(pdu);
                Heard::Terminated {
                    fatal: Fatal::from_u16(termination.status),
                    information: termination.information,
                    culprit: pdu[header_bytes..].to_vec(),
                }
            }
            kind => panic!("a target does not send PDUs of type {kind}"),
        });
    }
    all
}

/// A command capsule without digests.
pub fn capsule(sqe: &Sqe, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; COMMAND_PDU_BYTES];
    let common = Common {
        kind: pdu::COMMAND,
        flags: 0,
        header_bytes: COMMAND_PDU_BYTES as u8,
        data_offset: if data.is_empty() {
            0
        } else {
            COMMAND_PDU_BYTES as u8
        },
        total_bytes: (COMMAND_PDU_BYTES + data.len()) as u32,
    };
    common.emit(&mut bytes);
    bytes[8..].copy_from_slice(&sqe.0);
    bytes.extend(data);
    bytes
}

/// `H2CData` without digests.
pub fn h2c_data(header: DataHeader, last: bool, data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0; DATA_PDU_BYTES];
    let common = Common {
        kind: pdu::H2C_DATA,
        flags: if last { pdu_flag::LAST } else { 0 },
        header_bytes: DATA_PDU_BYTES as u8,
        data_offset: DATA_PDU_BYTES as u8,
        total_bytes: (DATA_PDU_BYTES + data.len()) as u32,
    };
    common.emit(&mut bytes);
    header.emit(&mut bytes);
    bytes.extend(data);
    bytes
}

/// A command with its id and data pointer.
pub fn command((mut sqe, data): (Sqe, Data), cid: u16, in_capsule: bool) -> Sqe {
    let length = match data {
        Data::None => 0,
        Data::In(bytes) | Data::Out(bytes) => bytes,
    };
    sqe.set_cid(cid);
    sqe.set_sgl(Sgl {
        address: 0,
        length,
        kind: if in_capsule {
            sgl::IN_CAPSULE
        } else {
            sgl::TRANSPORT
        },
    });
    sqe
}

impl Rig {
    /// The PDUs that a session answers to these bytes.
    pub fn ask(&mut self, session: &mut Session, bytes: &[u8]) -> Vec<Heard> {
        heard(&self.tell(session, bytes))
    }

    /// The one completion that a session answers to these bytes.
    pub fn status(&mut self, session: &mut Session, bytes: &[u8]) -> Status {
        match &self.ask(session, bytes)[..] {
            [Heard::Response(cqe)] => cqe.status,
            [Heard::Data { .. }, Heard::Response(cqe)] => cqe.status,
            other => panic!("one completion is expected: {other:?}"),
        }
    }

    /// A session that is initialized and not connected.
    pub fn fresh(&mut self) -> Session {
        let mut session = Session::new(3, self.pool.clone(), self.limits, self.target.clone());
        let request = Initialize {
            version: 0,
            alignment: 0,
            header_digest: false,
            data_digest: false,
            limit: 0,
        };
        let heard = self.ask(&mut session, &request.emit(pdu::IC_REQ));
        assert!(matches!(heard[..], [Heard::Initialized(_)]));
        session
    }
}
