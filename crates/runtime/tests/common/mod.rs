//! Small hosts for driving the runtime in tests.
#![allow(dead_code, reason = "each test uses a part")]

pub mod nbd;
pub mod nvme;

use base::limits::PAGE_BYTES;
use base::{
    BlockError, BlockOp, BlockReply, BlockRequest, Extent, Instant, Machine, Page, Pages, Pool, VolumeId,
};
use host::target::Config;
use host::{Input, Output};
use runtime::{
    CoreConfig, CoreHandle, HostSpec, ImageOpen, Listen, LocalVolume, Medium, RackHost, Site, start_core,
};
use std::any::Any;
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4};
use std::path::Path;
use wire::Export;
use wire::nbd::Nbd;

pub const ANY: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 0);
pub const ANY_TCP: SocketAddr = SocketAddr::V4(ANY);

/// Volumes `memory` and `file` of `bytes` each, the second in a new file in `directory`.
pub fn memory_and_file(directory: &Path, bytes: u64) -> Vec<LocalVolume> {
    vec![
        LocalVolume::memory("memory", bytes).expect("memory"),
        LocalVolume::image("file", &directory.join("v"), ImageOpen::Create { bytes }).expect("a new file"),
    ]
}

/// A configuration small enough for many cores at once.
pub fn small() -> CoreConfig {
    CoreConfig {
        target: Config {
            pool_pages: 4096,
            ..CoreConfig::default().target
        },
        ..CoreConfig::default()
    }
}

/// A host's specification from a constructor.
pub fn spec<H: RackHost>(
    medium: Option<Medium>,
    nbd: &[SocketAddr],
    build: impl FnOnce(Site<'_>) -> H + Send + 'static,
) -> HostSpec {
    HostSpec {
        bind: Some(ANY),
        medium,
        build: Box::new(|site| Ok(Box::new(build(site)))),
        listen: nbd
            .iter()
            .map(|&address| Listen::tcp(address, Nbd::new()))
            .collect(),
    }
}

/// Starts a core with one host.
pub fn start_one<H: RackHost>(
    config: CoreConfig,
    build: impl FnOnce(Site<'_>) -> H + Send + 'static,
) -> CoreHandle {
    start_core(config, vec![spec(None, &[], build)]).expect("loopback is there")
}

/// Sends every packet back to its source, as a reply with the payload it came with.
#[derive(Default)]
pub struct Echo {
    outputs: VecDeque<Output>,
    pub echoed: u64,
}

impl Machine for Echo {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, _now: Instant, input: Input) {
        let Input::Packet(mut packet) = input else {
            panic!("only packets are sent to it")
        };
        assert!(packet.payload_is_intact());
        std::mem::swap(&mut packet.header.source, &mut packet.header.target);
        self.echoed += 1;
        self.outputs.push_back(Output::Send {
            to: packet.header.target,
            packet,
        });
    }

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn tick(&mut self, _now: Instant) {}
}

impl RackHost for Echo {
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// Plays a packet between itself and its peer a number of times.
pub struct Player {
    pub outputs: VecDeque<Output>,
    pub returned: u64,
    pub rounds: u64,
}

impl Player {
    pub fn new(rounds: u64) -> Self {
        Self {
            outputs: VecDeque::new(),
            returned: 0,
            rounds,
        }
    }
}

impl Machine for Player {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, _now: Instant, input: Input) {
        let Input::Packet(mut packet) = input else {
            panic!("only packets are sent to it")
        };
        self.returned += 1;
        if self.returned < self.rounds {
            std::mem::swap(&mut packet.header.source, &mut packet.header.target);
            self.outputs.push_back(Output::Send {
                to: packet.header.target,
                packet,
            });
        }
    }

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn tick(&mut self, _now: Instant) {}
}

impl RackHost for Player {
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// A gateway with one volume in memory, and one that is read-only.
pub struct MemoryGateway {
    volume: Vec<u8>,
    pub pool: Pool,
    outputs: VecDeque<Output>,
    /// Requests are kept unanswered while set.
    pub holds: bool,
    held: Vec<BlockRequest>,
}

impl MemoryGateway {
    pub fn new(pool: &Pool, bytes: usize) -> Self {
        Self {
            volume: vec![0; bytes],
            pool: pool.clone(),
            outputs: VecDeque::new(),
            holds: false,
            held: Vec::new(),
        }
    }

    /// Answers everything that was held.
    pub fn release(&mut self) {
        self.holds = false;
        for request in std::mem::take(&mut self.held) {
            self.answer(request);
        }
    }

    pub fn held(&self) -> usize {
        self.held.len()
    }

    fn answer(&mut self, request: BlockRequest) {
        let result = self.serve(&request);
        self.outputs.push_back(Output::Reply(BlockReply {
            client: request.client,
            tag: request.tag,
            result,
        }));
    }

    fn serve(&mut self, request: &BlockRequest) -> Result<Pages, BlockError> {
        let start = request.range.offset() as usize;
        let end = start + request.range.length() as usize;
        assert!(end <= self.volume.len(), "the frontend has checked the range");
        match request.op {
            BlockOp::Flush => {}
            BlockOp::Status => {
                Extent::fill(&request.pages[0], request.range, |_, length| {
                    Some(Extent::data(length))
                });
                return Ok(request.pages.clone());
            }
            BlockOp::Trim | BlockOp::WriteZeroes => self.volume[start..end].fill(0),
            BlockOp::Write => {
                for (page, (at, range)) in request.pages.iter().zip(grid(start, end)) {
                    let volume = &mut self.volume[at..at + range.len()];
                    page.with(|bytes| volume.copy_from_slice(&bytes[range]));
                }
            }
            BlockOp::Read => {
                return grid(start, end)
                    .map(|(at, range)| {
                        let page: Page = self.pool.alloc().ok_or(BlockError::NoSpace)?;
                        page.with_mut(|bytes| {
                            bytes[range.clone()].copy_from_slice(&self.volume[at..][..range.len()])
                        });
                        Ok(page)
                    })
                    .collect();
            }
        }
        Ok(Pages::new())
    }
}

/// The pages that a range touches: where each part is in the volume, and in its page.
fn grid(start: usize, end: usize) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    (start / PAGE_BYTES..end.div_ceil(PAGE_BYTES)).map(move |page| {
        let base = page * PAGE_BYTES;
        let (from, to) = (start.max(base), end.min(base + PAGE_BYTES));
        (from, from - base..to - base)
    })
}

impl Machine for MemoryGateway {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, _now: Instant, input: Input) {
        let request = match input {
            Input::Request(request) => request,
            Input::ClientGone(_) => return,
            Input::Packet(_) | Input::Media(_) => panic!("only clients turn to it"),
        };
        if self.holds {
            self.held.push(request);
        } else {
            self.answer(request);
        }
    }

    fn poll(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn tick(&mut self, _now: Instant) {}
}

impl RackHost for MemoryGateway {
    fn exports(&self) -> Vec<Export> {
        let size_bytes = self.volume.len() as u64;
        let export = |name: &str, read_only| Export {
            name: name.into(),
            description: "in memory".into(),
            volume: VolumeId(1),
            size_bytes,
            read_only,
        };
        vec![export("data", false), export("frozen", true)]
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// The host of a core as what it is.
pub fn cast<H: RackHost>(host: &mut dyn RackHost) -> &mut H {
    host.as_any_mut()
        .downcast_mut()
        .expect("the host is what the test made it")
}
