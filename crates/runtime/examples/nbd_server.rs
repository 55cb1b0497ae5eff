//! An NBD server inside a program: clients attach to a volume that the program keeps itself.
//!
//! ```text
//! cargo run --release -p switchyard-runtime --example nbd_server -- 10809
//! nbdinfo nbd://127.0.0.1:10809/sparse
//! ```
//!
//! The volume is sparse: the program stores a page when a client writes it, and forgets the page when a client trims it.
//! Switchyard's core has the sockets, the NBD sessions and the block switch, so small reads pass between bulk writes. The
//! program answers block requests. A volume may as well compute its pages, or fetch them from elsewhere.

use base::limits::PAGE_BYTES;
use base::{BlockError, BlockOp, BlockReply, BlockRequest, Extent, Instant, Machine, Pages, Pool, VolumeId};
use host::{Input, Output};
use runtime::{CoreConfig, CoreHandle, HostSpec, Listen, RackHost, Site, StartError, start_core};
use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::net::{Ipv4Addr, SocketAddr};
use std::ops::Range;
use wire::Export;
use wire::nbd::Nbd;

/// Bytes that clients see. Memory is used for written pages only.
const VOLUME_BYTES: u64 = 1 << 40;

/// The volume: written pages by number. It is a `Machine`: requests go in, replies come out, and nothing blocks.
struct SparseVolume {
    pages: BTreeMap<u64, Box<[u8; PAGE_BYTES]>>,
    /// Memory for the data of replies, from the core.
    pool: Pool,
    replies: VecDeque<Output>,
}

impl SparseVolume {
    fn new(pool: &Pool) -> Self {
        Self {
            pages: BTreeMap::new(),
            pool: pool.clone(),
            replies: VecDeque::new(),
        }
    }

    /// Executes one request.
    fn execute(&mut self, request: &BlockRequest) -> Result<Pages, BlockError> {
        // The pages of the request, and its part of each.
        let touched = request.range.pages();
        let parts = touched.map(|page| (page, request.range.bytes_of(page)));
        match request.op {
            BlockOp::Read => parts.map(|(page, range)| self.read(page, range)).collect(),
            BlockOp::Write => {
                for ((page, range), data) in parts.zip(&request.pages) {
                    let kept = self
                        .pages
                        .entry(page)
                        .or_insert_with(|| Box::new([0; PAGE_BYTES]));
                    data.with(|bytes| kept[range.clone()].copy_from_slice(&bytes[range]));
                }
                Ok(Pages::new())
            }
            BlockOp::Trim | BlockOp::WriteZeroes => {
                for (page, range) in parts {
                    if range == (0..PAGE_BYTES) {
                        self.pages.remove(&page);
                    } else if let Some(kept) = self.pages.get_mut(&page) {
                        kept[range].fill(0);
                    }
                }
                Ok(Pages::new())
            }
            // A page that is not kept is zeros, and takes no space.
            BlockOp::Status => {
                Extent::fill(&request.pages[0], request.range, |at, left| {
                    let page = at / PAGE_BYTES as u64;
                    let end = ((page + 1) * PAGE_BYTES as u64).min(at + left);
                    let is_hole = !self.pages.contains_key(&page);
                    let length = end - at;
                    Some(Extent { length, is_hole })
                });
                Ok(request.pages.clone())
            }
            // A volume in memory has nothing to flush.
            BlockOp::Flush => Ok(Pages::new()),
        }
    }

    /// Copies a part of a page into a page of the core. Bytes outside the part do not matter.
    fn read(&self, page: u64, range: Range<usize>) -> Result<base::Page, BlockError> {
        let answer = self.pool.alloc().ok_or(BlockError::NoSpace)?;
        answer.with_mut(|bytes| match self.pages.get(&page) {
            Some(kept) => bytes[range.clone()].copy_from_slice(&kept[range]),
            None => bytes[range].fill(0),
        });
        Ok(answer)
    }
}

impl Machine for SparseVolume {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, _now: Instant, input: Input) {
        let request = match input {
            Input::Request(request) => request,
            Input::ClientGone(_) => return,
            Input::Packet(_) | Input::Media(_) => unreachable!("the core has no other host, medium or rack"),
        };
        let result = self.execute(&request);
        self.replies.push_back(Output::Reply(BlockReply {
            client: request.client,
            tag: request.tag,
            result,
        }));
    }

    fn poll(&mut self) -> Option<Output> {
        self.replies.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        None
    }

    fn tick(&mut self, _now: Instant) {}
}

impl RackHost for SparseVolume {
    fn exports(&self) -> Vec<Export> {
        vec![Export {
            name: "sparse".into(),
            description: "pages exist when written".into(),
            volume: VolumeId(0),
            size_bytes: VOLUME_BYTES,
            read_only: false,
        }]
    }

    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}

/// Starts a core with the volume. The core ends when the program stops or drops the handle.
fn serve(port: u16) -> Result<CoreHandle, StartError> {
    let volume = HostSpec {
        bind: None,
        medium: None,
        build: Box::new(|site: Site<'_>| Ok(Box::new(SparseVolume::new(site.pool)))),
        listen: vec![Listen::tcp(
            SocketAddr::from((Ipv4Addr::LOCALHOST, port)),
            Nbd::new(),
        )],
    };
    start_core(CoreConfig::default(), vec![volume])
}

/// Asks the running volume how many pages it stores.
fn stored(core: &CoreHandle) -> usize {
    let count = |host: &mut dyn RackHost, _now| {
        let volume: &SparseVolume = host.as_any_mut().downcast_ref().expect("the core has one host");
        volume.pages.len()
    };
    core.call(0, count).expect("the core runs")
}

fn main() {
    let port = std::env::args().nth(1).map_or(Ok(10_809), |text| text.parse());
    let Ok(port) = port else {
        eprintln!("usage: nbd_server [PORT]");
        std::process::exit(2);
    };
    let core = serve(port).unwrap_or_else(|error| {
        eprintln!("nbd_server: {error}");
        std::process::exit(1);
    });
    println!(
        "nbd://{}/sparse: Enter shows the stored pages, Ctrl-D stops",
        core.listening(0, wire::nbd::NAME)[0]
    );
    for _ in std::io::stdin().lines() {
        println!("{} pages stored", stored(&core));
    }
    core.stop().expect("the core stops cleanly");
}

#[cfg(test)]
#[path = "../tests/common/nbd.rs"]
#[allow(dead_code, reason = "the test uses a part")]
mod nbd;

#[cfg(test)]
mod tests {
    use super::*;
    use nbd::{Client, READ, TRIM, WRITE};

    #[test]
    fn a_volume_keeps_written_pages_and_forgets_trimmed_ones() {
        let core = serve(0).expect("loopback is there");
        let mut client = Client::of(core.listening(0, wire::nbd::NAME)[0], "sparse");
        // A write of three pages that begins in the middle of page 5.
        let (offset, data) = (5 * 4096 + 2048, [7; 2 * 4096]);
        client.request(WRITE, 1, offset, data.len() as u32);
        client.give(&data);
        assert_eq!(client.reply(), (0, 1));
        assert_eq!(stored(&core), 3);
        client.request(READ, 2, 5 * 4096, 4096);
        assert_eq!(client.reply(), (0, 2));
        let page: [u8; 4096] = client.take();
        assert!(page[..2048] == [0; 2048] && page[2048..] == [7; 2048]);
        client.request(TRIM, 3, 6 * 4096, 4096);
        assert_eq!(client.reply(), (0, 3));
        assert_eq!(stored(&core), 2);
        core.stop().expect("the core stops cleanly");
    }
}
