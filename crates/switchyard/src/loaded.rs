//! A gateway with its load built in: the simulator's workloads on a real rack.
//!
//! The load issues requests straight to the gateway on its own core, so that what is measured is the rack and not a
//! client's sockets, and draws them from the same generators and seeds as the simulator's clients do.

use base::{
    BlockOp, BlockReply, BlockRequest, Instant, Machine, Pages, Pool, Rng, VolumeId, limits::PAGE_BYTES,
    time::earliest,
};
use hdrhistogram::Histogram;
use host::{Gateway, Input, Output};
use runtime::RackHost;
use sim::client::{Latencies, LoadSpec, Pace};
use sim::workload::{Action, Chooser};
use std::any::Any;
use std::collections::VecDeque;

/// Marks the load's own requests among a gateway's clients.
const LOAD_CLIENT: u32 = u32::MAX;

struct Load {
    spec: LoadSpec,
    volume: VolumeId,
    chooser: Chooser,
    rng: Rng,
    left: u64,
    outstanding: u64,
    due: Instant,
    record: bool,
    latencies: Latencies,
    failed: u64,
    first: Option<Instant>,
    last: Instant,
    pending: Vec<Option<(Instant, BlockOp)>>,
    free: Vec<u64>,
}

/// What a finished load measured.
pub struct Measured {
    /// Latencies from when a request was due.
    pub latencies: Latencies,
    /// Requests that failed.
    pub failed: u64,
    /// From the first request to the last answer, in seconds.
    pub seconds: f64,
}

/// A gateway that loads itself.
pub struct LoadedGateway {
    gateway: Gateway,
    pool: Pool,
    load: Option<Load>,
    out: VecDeque<Output>,
}

impl LoadedGateway {
    /// Around a gateway.
    pub fn new(gateway: Gateway, pool: Pool) -> Self {
        Self {
            gateway,
            pool,
            load: None,
            out: VecDeque::new(),
        }
    }

    /// The gateway.
    pub fn gateway(&mut self) -> &mut Gateway {
        &mut self.gateway
    }

    /// Starts a load on a volume of `pages` pages; latencies are kept if `record`.
    pub fn start(
        &mut self,
        now: Instant,
        spec: LoadSpec,
        volume: VolumeId,
        pages: u64,
        seed: u64,
        record: bool,
    ) {
        self.load = Some(Load {
            chooser: Chooser::new(spec.pattern, pages),
            rng: Rng::new(seed),
            left: spec.requests,
            outstanding: 0,
            due: now,
            latencies: Latencies::default(),
            failed: 0,
            first: None,
            last: now,
            pending: Vec::new(),
            free: Vec::new(),
            record,
            volume,
            spec,
        });
        self.issue(now);
    }

    /// What was measured, once every request is answered.
    pub fn finished(&mut self) -> Option<Measured> {
        let done = self
            .load
            .as_ref()
            .is_some_and(|load| load.left == 0 && load.outstanding == 0);
        let load = self.load.take_if(|_| done)?;
        let seconds = load
            .first
            .map_or(0.0, |first| load.last.since(first).as_secs_f64());
        Some(Measured {
            latencies: load.latencies,
            failed: load.failed,
            seconds,
        })
    }

    /// Issues whatever is due.
    fn issue(&mut self, now: Instant) {
        while let Some(load) = &mut self.load
            && load.left > 0
        {
            match load.spec.pace {
                Pace::Open { .. } if now < load.due => break,
                Pace::Closed { depth } if load.outstanding >= u64::from(depth) => break,
                _ => {}
            }
            let due = if matches!(load.spec.pace, Pace::Open { .. }) {
                load.due
            } else {
                now
            };
            if !load.issue_one(due, &self.pool, &mut self.gateway, now) {
                break;
            }
            if let Pace::Open { per_second, .. } = load.spec.pace {
                let gap = load.rng.exponential(1e9 / per_second) as u64;
                load.due = Instant::from_nanos(load.due.as_nanos() + gap);
            }
            self.collect(now);
        }
    }

    /// Takes the gateway's outputs; answers to the load stay here.
    fn collect(&mut self, now: Instant) {
        while let Some(output) = self.gateway.poll() {
            match (output, &mut self.load) {
                (Output::Reply(reply), Some(load)) if reply.client == LOAD_CLIENT => {
                    load.answered(now, &reply)
                }
                (output, _) => self.out.push_back(output),
            }
        }
    }
}

impl Load {
    /// False if no page is free: later.
    fn issue_one(&mut self, due: Instant, pool: &Pool, gateway: &mut Gateway, now: Instant) -> bool {
        let mut pages = Pages::new();
        let page = pool.alloc();
        let op = match self.spec.mix.draw(&mut self.rng) {
            Action::Read | Action::Scan => BlockOp::Read,
            _ => BlockOp::Write,
        };
        let at = self.chooser.draw(&mut self.rng);
        if op == BlockOp::Write {
            let Some(page) = page else { return false };
            page.with_mut(|bytes| bytes[..8].copy_from_slice(&at.to_le_bytes()));
            pages.push(page);
        }
        let tag = self.free.pop().unwrap_or_else(|| {
            self.pending.push(None);
            self.pending.len() as u64 - 1
        });
        self.pending[tag as usize] = Some((due, op));
        self.left -= 1;
        self.outstanding += 1;
        self.first.get_or_insert(due);
        let request = BlockRequest {
            client: LOAD_CLIENT,
            tag,
            volume: self.volume,
            op,
            offset: at * PAGE_BYTES as u64,
            length: PAGE_BYTES as u32,
            fua: false,
            pages,
        };
        gateway.handle(now, Input::Request(request));
        true
    }

    fn answered(&mut self, now: Instant, reply: &BlockReply) {
        let (due, op) = self.pending[reply.tag as usize]
            .take()
            .expect("each request is answered once");
        self.free.push(reply.tag);
        self.outstanding -= 1;
        self.last = now;
        self.failed += u64::from(reply.result.is_err());
        if self.record {
            let histogram: &mut Histogram<u64> = if op == BlockOp::Read {
                &mut self.latencies.read
            } else {
                &mut self.latencies.write
            };
            histogram.saturating_record(now.nanos_since(due).max(1));
        }
    }
}

impl Machine for LoadedGateway {
    type Input = Input;
    type Output = Output;

    fn handle(&mut self, now: Instant, input: Input) {
        self.gateway.handle(now, input);
        self.collect(now);
        self.issue(now);
    }

    fn poll(&mut self) -> Option<Output> {
        self.out.pop_front()
    }

    fn deadline(&self) -> Option<Instant> {
        let due = self.load.as_ref().and_then(|load| {
            let waits = load.left > 0 && matches!(load.spec.pace, Pace::Open { .. });
            waits.then_some(load.due)
        });
        earliest(due, self.gateway.deadline())
    }

    fn tick(&mut self, now: Instant) {
        self.gateway.tick(now);
        self.collect(now);
        self.issue(now);
    }
}

impl RackHost for LoadedGateway {
    fn as_any_mut(&mut self) -> &mut dyn Any {
        self
    }
}
