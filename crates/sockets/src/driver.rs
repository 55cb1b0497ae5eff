//! The sockets of a thread: carries frames between the link and the stack, and news from the stack to the sockets.

use crate::error::SocketError;
use crate::handle::Handle;
use crate::rings::FlowTable;
use crate::socket::{Kind, Listener, Phase, Readiness, Socket, Stream};
use base::{Duration, Fifo, Instant, Slab, time};
use nic::{Checksums, Frames, LinkError, Written};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use std::os::fd::BorrowedFd;
use tcp::addr::Tuple;
use tcp::api::{Call, Event, FlowId, Moved, News, Request, Rings};
use tcp::config::{AppLimits, Config, Segmentation};
use tcp::seq::Seq;
use tcp::stack::Stack;

/// Frames that are taken before those that are to be sent have their turn.
const BATCH: usize = 64;
/// Sockets with news for which there is room at first.
const NEWS: usize = 64;
/// The stack's number of the one application.
const APP: u16 = 0;

/// Options that all sockets of a thread share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// The rings of each stream, as powers of two of bytes.
    pub rings: Rings,
    /// How long a wait looks for frames before it sleeps. A wake costs the waker about 6 µs and the sleeper 17 across cores, so a
    /// few times that pays. A thread that shares a core with its peer, as far as the link can tell, lets the peer go first, and sleeps then.
    pub spin: Duration,
}

impl Default for Options {
    /// 256 KiB: four of the longest segments each way.
    fn default() -> Self {
        Self {
            rings: Rings {
                receive: 18,
                transmit: 18,
            },
            spin: Duration::from_micros(30),
        }
    }
}

/// Conditions that end the sleep of a thread that sleeps elsewhere ([`Sockets::park`]).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parked {
    /// The descriptor has to be writable, too.
    pub writable: bool,
    /// No later than that; never, if it is none.
    pub deadline: Option<Instant>,
}

/// The sockets of one thread, on one queue of a link, with the addresses of one host.
pub struct Sockets {
    stack: Stack,
    frames: Box<dyn Frames>,
    flows: FlowTable,
    sockets: Slab<Socket>,
    /// Sockets with news.
    news: Fifo<Handle>,
    generation: u32,
    now: Instant,
    /// When a frame was seen last.
    busy_at: Instant,
    options: Options,
    /// Flows that the stack has not told the end of.
    live: usize,
    /// The link has had no room for a frame.
    is_blocked: bool,
    is_down: bool,
}

impl Sockets {
    /// Sockets with the addresses of `config`. The link decides MTU, segmentation and checksums. A
    /// seed of 0 is replaced by the system's entropy.
    pub fn new(frames: Box<dyn Frames>, mut config: Config, options: Options) -> Self {
        let limits = frames.limits();
        config.mtu = config.mtu.min(limits.mtu);
        config.segmentation = match limits.segment_bytes_max {
            0 => Segmentation::None,
            payload_bytes_max => Segmentation::Link { payload_bytes_max },
        };
        config.checksums = limits.checksums == Checksums::Stack;
        config.app_limits = AppLimits {
            flows_max: config.flows_max,
            ..config.app_limits
        };
        if config.seed == 0 {
            config.seed = os::seed();
        }
        let now = os::now();
        Self {
            flows: FlowTable::new(options.rings, config.flows_max),
            stack: Stack::new(config),
            frames,
            sockets: Slab::new(),
            news: Fifo::with_capacity(NEWS),
            generation: 0,
            now,
            busy_at: now,
            options,
            live: 0,
            is_blocked: false,
            is_down: false,
        }
    }

    /// Carries what there is, and waits for nothing: frames in, news to sockets, frames out. Answers how many frames came in.
    ///
    /// # Errors
    /// The link does nothing more.
    pub fn poll(&mut self) -> Result<usize, LinkError> {
        if self.is_down {
            return Err(LinkError::Closed);
        }
        let result = self.carry();
        self.is_down = result.is_err();
        result
    }

    fn carry(&mut self) -> Result<usize, LinkError> {
        let now = os::now();
        self.now = now;
        let Self { stack, flows, .. } = self;
        let count = self
            .frames
            .receive(BATCH, &mut |frame| stack.receive(now, frame.bytes, flows))?;
        if count > 0 {
            self.busy_at = now;
        }
        while let Some(mac) = self.frames.gone() {
            self.stack.gone(now, mac);
        }
        // After what has come: a thread that was off the processor for long has an answer that is due, and times nothing out.
        if self.stack.is_due(now) {
            self.stack.tick(now);
        }
        self.take_news();
        self.push()?;
        Ok(count)
    }

    /// Sends what is to be sent, without a look at what has come.
    ///
    /// # Errors
    /// The link does nothing more.
    pub fn push(&mut self) -> Result<(), LinkError> {
        let Self {
            stack, flows, now, ..
        } = self;
        // A link that has refused a frame is asked again even if there is no frame any more: it has to forget that one waits.
        if stack.has_output() || self.is_blocked {
            self.frames.send(&mut |frame| {
                if !stack.has_output() {
                    return None;
                }
                write_next(stack, *now, frame, flows)
            })?;
            self.is_blocked = stack.has_output();
        }
        self.frames.flush()
    }

    /// Polls until a socket has news, which [`Sockets::next_ready`] tells, or the time is over. Answers whether there are any.
    ///
    /// # Errors
    /// The link does nothing more.
    pub fn wait(&mut self, limit: Option<Duration>) -> Result<bool, LinkError> {
        let until = limit.map(|limit| os::now() + limit);
        self.run_until(until, |sockets| !sockets.news.is_empty())
    }

    /// Polls until it is done, or the time is over; answers which. Sleeps if nothing has come for a while. A sleep without a limit is
    /// ended by the link's descriptor: by the kernel or the peer for a frame, and for the peer's end.
    pub(crate) fn run_until(
        &mut self,
        until: Option<Instant>,
        mut is_done: impl FnMut(&mut Self) -> bool,
    ) -> Result<bool, LinkError> {
        let mut has_yielded = false;
        loop {
            let count = self.poll()?;
            if is_done(self) {
                return Ok(true);
            }
            if until.is_some_and(|until| until <= self.now) {
                return Ok(false);
            }
            if count > 0 {
                has_yielded = false;
                continue;
            }
            if self.now.since(self.busy_at) < self.options.spin {
                if !self.frames.is_in_the_way() {
                    std::hint::spin_loop();
                    continue;
                }
                if !std::mem::replace(&mut has_yielded, true) {
                    os::sync::thread::yield_now();
                    continue;
                }
            }
            if let Some(sleep) = self.frames.arm() {
                let deadline = time::earliest(self.stack.deadline(), sleep.until);
                self.sleep(sleep.writable, time::earliest(deadline, until));
                self.frames.disarm();
            }
        }
    }

    fn sleep(&self, writable: bool, end: Option<Instant>) {
        let more = if writable {
            PollFlags::OUT
        } else {
            PollFlags::empty()
        };
        let mut fds = [PollFd::from_borrowed_fd(self.frames.fd(), PollFlags::IN | more)];
        let limit = end.map(|end| end.since(os::now()));
        let limit = limit.map(|limit| Timespec {
            tv_sec: limit.as_secs() as i64,
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        match poll(&mut fds, limit.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("the link's descriptor can be waited for: {error}"),
        }
    }

    /// Says that the thread is to sleep, for instance in an epoll that has [`Sockets::fd`] among others. None if there is something to
    /// do first: poll. After its sleep the thread calls [`Sockets::unpark`] and polls.
    pub fn park(&mut self) -> Option<Parked> {
        if self.is_down || !self.news.is_empty() {
            return None;
        }
        let sleep = self.frames.arm()?;
        Some(Parked {
            writable: sleep.writable,
            deadline: time::earliest(self.stack.deadline(), sleep.until),
        })
    }

    /// Says that the thread is awake.
    pub fn unpark(&mut self) {
        self.frames.disarm();
    }

    /// Whether looking for frames is of no use just now, as the peer needs this very processor to send any.
    pub fn is_in_the_way(&self) -> bool {
        self.frames.is_in_the_way()
    }

    /// Can be read when a parked thread has something to do.
    pub fn fd(&self) -> BorrowedFd<'_> {
        self.frames.fd()
    }

    /// The next socket with news, and what it can do now. News are told once: whoever hears of bytes or connections takes them until
    /// there are none, or remembers that there are more.
    #[inline]
    pub fn next_ready(&mut self) -> Option<(Handle, Readiness)> {
        while let Some(handle) = self.news.pop() {
            let ring_bytes = self.transmit_bytes();
            if let Some(socket) = self.find(handle) {
                socket.is_queued = false;
                return Some((handle, socket.readiness(ring_bytes)));
            }
        }
        None
    }

    /// Tells what a socket can do without waiting.
    ///
    /// # Errors
    /// There is no such socket.
    pub fn readiness(&mut self, handle: Handle) -> Result<Readiness, SocketError> {
        let ring_bytes = self.transmit_bytes();
        let socket = self.find(handle).ok_or(SocketError::Handle)?;
        Ok(socket.readiness(ring_bytes))
    }

    /// The stack's counters.
    pub fn counters(&self) -> &tcp::slow::Counters {
        self.stack.counters()
    }

    /// Connections that are not over, those included whose sockets were closed.
    pub fn live(&self) -> usize {
        self.live
    }

    /// Bytes of a transmit ring.
    pub(crate) fn transmit_bytes(&self) -> u32 {
        1 << self.options.rings.transmit
    }

    pub(crate) fn rings(&self) -> Rings {
        self.options.rings
    }

    pub(crate) fn is_down(&self) -> bool {
        self.is_down
    }

    /// The stack and the rings, for calls.
    pub(crate) fn parts(&mut self) -> (&mut Stack, &mut FlowTable, &mut Slab<Socket>) {
        (&mut self.stack, &mut self.flows, &mut self.sockets)
    }

    /// Makes a socket.
    pub(crate) fn add(&mut self, kind: Kind) -> Handle {
        self.generation = self.generation.wrapping_add(1);
        let generation = self.generation;
        let index = self.sockets.insert(Socket {
            generation,
            is_queued: false,
            kind,
        });
        Handle { index, generation }
    }

    /// Takes a socket out.
    pub(crate) fn remove(&mut self, handle: Handle) -> Result<Kind, SocketError> {
        self.find(handle).ok_or(SocketError::Handle)?;
        Ok(self.sockets.remove(handle.index).kind)
    }

    #[inline]
    pub(crate) fn find(&mut self, handle: Handle) -> Option<&mut Socket> {
        socket_of(&mut self.sockets, handle)
    }

    #[inline]
    pub(crate) fn stream(&mut self, handle: Handle) -> Result<&mut Stream, SocketError> {
        stream_of(&mut self.sockets, handle)
    }

    pub(crate) fn listener(&mut self, handle: Handle) -> Result<&mut Listener, SocketError> {
        match self.find(handle).map(|socket| &mut socket.kind) {
            Some(Kind::Listener(listener)) => Ok(listener),
            _ => Err(SocketError::Handle),
        }
    }

    /// Asks the stack for something, and hears what it says at once.
    pub(crate) fn ask(&mut self, opaque: u64, call: Call) {
        let request = Request {
            app: APP,
            opaque,
            call,
        };
        self.stack.request(self.now, &request);
        self.take_news();
    }

    #[inline]
    fn take_news(&mut self) {
        while let Some(event) = self.stack.told() {
            self.hear(event);
        }
        while let Some(moved) = self.stack.moved() {
            self.hear_moved(&moved);
        }
    }

    /// A flow has come further.
    #[inline(always)]
    fn hear_moved(&mut self, moved: &Moved) {
        let Some(handle) = self.flows.owner(moved.flow) else {
            return;
        };
        let Some(socket) = socket_of(&mut self.sockets, handle) else {
            return;
        };
        if let Kind::Stream(stream) = &mut socket.kind {
            (stream.readable_to, stream.freed_to) = (moved.readable_to, moved.freed_to);
            stream.is_ended |= moved.is_ended;
            if !std::mem::replace(&mut socket.is_queued, true) {
                self.news.push(handle);
            }
        }
    }

    #[inline(never)]
    fn hear(&mut self, event: Event) {
        match event.news {
            News::Moved(moved) => self.hear_moved(&moved),
            News::Connecting { flow } => {
                self.live += 1;
                let handle = Handle::of_word(event.opaque);
                if let Ok(stream) = self.stream(handle) {
                    stream.flow = Some(flow);
                    self.flows.bind(flow, Some(handle));
                }
            }
            News::Open {
                flow,
                tuple,
                is_accepted,
                read_from,
                write_from,
            } => {
                if is_accepted {
                    self.live += 1;
                    self.accepted(Handle::of_word(event.opaque), flow);
                }
                self.opened(flow, tuple, [read_from, write_from]);
            }
            News::Closed { flow, end } => {
                self.live -= 1;
                let owner = self.of_flow(flow).map(|(handle, stream)| {
                    (stream.phase, stream.flow) = (Phase::Over(end), None);
                    handle
                });
                let pair = self.flows.take(flow);
                match owner {
                    Some(handle) => {
                        self.stream(handle).expect("it is the owner").left = pair;
                        self.tell(handle);
                    }
                    None => pair.into_iter().for_each(|pair| self.flows.recycle(pair)),
                }
            }
            News::Refused(refused) => {
                let socket = self.find(Handle::of_word(event.opaque));
                match socket.map(|socket| &mut socket.kind) {
                    Some(Kind::Stream(stream)) if stream.flow.is_none() => {
                        stream.phase = Phase::Refused(refused.into());
                    }
                    Some(Kind::Listener(listener)) => listener.refused = Some(refused.into()),
                    _ => {}
                }
            }
            News::Done => {}
        }
    }

    /// The socket of a flow, unless it was closed.
    fn of_flow(&mut self, flow: FlowId) -> Option<(Handle, &mut Stream)> {
        let handle = self.flows.owner(flow)?;
        let stream = self.stream(handle).ok()?;
        Some((handle, stream))
    }

    /// A listener's connection is open.
    fn accepted(&mut self, listener: Handle, flow: FlowId) {
        let has_room = self
            .listener(listener)
            .is_ok_and(|listener| listener.waiting.len() < listener.backlog);
        if !has_room {
            // It goes at the end of this look: the stack tells of its end then.
            let request = Request {
                app: APP,
                opaque: 0,
                call: Call::Abort(flow),
            };
            return self.stack.request(self.now, &request);
        }
        let handle = self.add(Kind::Stream(Stream {
            flow: Some(flow),
            ..Stream::new()
        }));
        self.flows.bind(flow, Some(handle));
        let waiting = &mut self.listener(listener).expect("it was looked at").waiting;
        waiting.push_back(handle);
        self.tell(listener);
    }

    fn opened(&mut self, flow: FlowId, tuple: Tuple, [read_from, write_from]: [Seq; 2]) {
        let Some((handle, stream)) = self.of_flow(flow) else {
            return;
        };
        stream.phase = Phase::Open;
        stream.tuple = Some(tuple);
        (stream.read_at, stream.readable_to) = (read_from, read_from);
        (stream.write_at, stream.freed_to) = (write_from, write_from);
        self.tell(handle);
    }

    /// Queues a socket that has news.
    fn tell(&mut self, handle: Handle) {
        if let Some(socket) = self.find(handle)
            && !std::mem::replace(&mut socket.is_queued, true)
        {
            self.news.push(handle);
        }
    }
}

/// Writes the next frame of a stack.
#[inline(never)]
fn write_next(stack: &mut Stack, now: Instant, frame: &mut [u8], flows: &mut FlowTable) -> Option<Written> {
    let sent = stack.transmit(now, frame, flows)?;
    Some(Written {
        bytes: sent.bytes,
        segment_bytes: sent.segment_bytes,
    })
}

/// The socket of a name.
#[inline]
fn socket_of(sockets: &mut Slab<Socket>, handle: Handle) -> Option<&mut Socket> {
    let socket = sockets.get_mut(handle.index)?;
    (socket.generation == handle.generation).then_some(socket)
}

/// The stream of a name.
#[inline]
pub(crate) fn stream_of(sockets: &mut Slab<Socket>, handle: Handle) -> Result<&mut Stream, SocketError> {
    match socket_of(sockets, handle).map(|socket| &mut socket.kind) {
        Some(Kind::Stream(stream)) => Ok(stream),
        _ => Err(SocketError::Handle),
    }
}
