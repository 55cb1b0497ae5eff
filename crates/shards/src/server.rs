//! Starts and ends the threads of a server.

use crate::keeper::Keeper;
use crate::kernel::{Handed, Kernel};
use crate::lane::{Bell, Lane};
use crate::place::{self, AreaSizes, Directory, PlaceError};
use crate::store::{Durability, LoadError, Loaded, Store, fit};
use crate::sync::mpsc::{Receiver, Sender, channel};
use crate::sync::{Arc, AtomicBool, AtomicU32, Ordering};
use crate::transport::Transport;
use crate::user::{HubOptions, User, UserError};
use crate::worker::{Peers, Worker, WorkerError, unix_ms};
use area::Area;
use kv::parse::RequestLimits;
use kv::{About, KeyspaceOptions, Shard, ShardOptions};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::io::{self, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::thread::JoinHandle;
use std::time::Duration;

/// A connection beyond the limit is told this, as with Redis.
const TOO_MANY: &[u8] = b"-ERR max number of clients reached\r\n";
/// After an accept that failed, as without descriptors, the next one waits.
const ACCEPT_REST: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 50_000_000,
};

/// Where clients connect.
#[derive(Clone, Debug)]
pub enum Listen {
    /// By the kernel's sockets.
    Kernel(SocketAddr),
    /// By user-level TCP.
    Hub(HubOptions),
}

/// How a server runs.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Where clients connect.
    pub listen: Listen,
    /// Threads.
    pub shards: usize,
    /// The directory of the areas; none with [`Durability::None`].
    pub dir: Option<PathBuf>,
    /// How long replies wait.
    pub durability: Durability,
    /// Memory of the keys of all shards.
    pub memory_max: u64,
    /// Of each shard's area.
    pub area: AreaSizes,
    /// Each thread has a processor of its own.
    pub pins: bool,
    /// Hot keys get copies.
    pub copies: bool,
    /// How long a thread with user-level TCP looks for frames before it sleeps.
    pub spin: Duration,
    /// Connections at a time.
    pub clients_max: u32,
    /// Version of the program, for INFO.
    pub version: String,
}

/// Why a server does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// Its address.
    #[error("cannot listen at {address}: {source}")]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Its directory.
    #[error(transparent)]
    Place(#[from] PlaceError),
    /// A shard's keys.
    #[error("the keys of shard {shard} cannot be loaded: {source}")]
    Load {
        /// Which.
        shard: usize,
        /// Why.
        source: LoadError,
    },
    /// Its place at a hub.
    #[error(transparent)]
    User(#[from] UserError),
    /// Threads or descriptors.
    #[error("the system refuses threads or descriptors: {0}")]
    System(#[from] io::Error),
}

/// What a start has found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Started {
    /// Of all shards.
    pub loaded: Loaded,
    /// The keys were copied from so many shards.
    pub steered_from: Option<usize>,
}

/// The thread that looks after areas, and the end of a channel that ends it.
type KeeperThread = (Sender<()>, JoinHandle<Result<(), WorkerError>>);

/// A server that runs.
pub struct Server {
    peers: Arc<Peers>,
    workers: Vec<JoinHandle<Result<(), WorkerError>>>,
    acceptor: Option<JoinHandle<()>>,
    keeper: Option<KeeperThread>,
    /// Ends the acceptor's sleep.
    accept_bell: Arc<Bell>,
    address: Option<SocketAddr>,
    started: Started,
    /// Held until all threads have ended.
    _directory: Option<Directory>,
}

/// What a thread tells when it is ready.
type Ready = Result<Loaded, StartError>;

impl Server {
    /// Starts the threads, and returns when all of them serve.
    ///
    /// # Errors
    /// One of them cannot. Nothing was served.
    pub fn start(options: &ServerOptions) -> Result<Self, StartError> {
        // First, as it is the most likely to be refused, and the fastest.
        let listener = match &options.listen {
            Listen::Kernel(address) => Some(listen(*address)?),
            Listen::Hub(_) => None,
        };
        let mut directory = match &options.dir {
            Some(dir) => Some(place::open(
                dir,
                options.shards,
                options.area,
                options.durability,
            )?),
            None => None,
        };
        let address = listener.as_ref().map(TcpListener::local_addr).transpose()?;
        let peers = Arc::new(peers(options, listener.is_some())?);
        let stores = directory.as_mut().map(|it| std::mem::take(&mut it.stores));
        let areas: Vec<Area> = stores
            .iter()
            .flatten()
            .map(|store| store.area().clone())
            .collect();
        let seed = directory.as_ref().map_or_else(os::seed, |it| it.seed);
        let mut stores = stores.into_iter().flatten();
        let mut server = Self {
            peers: Arc::clone(&peers),
            workers: Vec::new(),
            acceptor: None,
            keeper: None,
            accept_bell: Arc::new(Bell::new()?),
            address,
            started: Started {
                steered_from: directory.as_ref().and_then(|it| it.steered_from),
                ..Started::default()
            },
            _directory: directory,
        };
        let (tells, ready) = channel();
        for index in 0..options.shards {
            let start = Start {
                index,
                seed,
                port: address.map_or(0, |address| address.port()),
                options: options.clone(),
                peers: Arc::clone(&peers),
                store: stores.next(),
                tells: tells.clone(),
            };
            let thread = std::thread::Builder::new().name(format!("shard-{index}"));
            server.workers.push(thread.spawn(move || start.run())?);
        }
        drop(tells);
        if let Err(error) = server.await_ready(&ready, options.shards) {
            let _ = server.stop();
            return Err(error);
        }
        if let Some(listener) = listener {
            server.accept(listener, options.clients_max)?;
        }
        if !areas.is_empty() {
            server.keep(Keeper {
                areas,
                area_bytes_max: options.area.most,
                syncs: options.durability == Durability::EverySecond,
            })?;
        }
        Ok(server)
    }

    fn await_ready(&mut self, ready: &Receiver<Ready>, shards: usize) -> Result<(), StartError> {
        for _ in 0..shards {
            let told = ready
                .recv()
                .unwrap_or_else(|_| Err(io::Error::other("a shard's thread has ended").into()));
            let loaded = told?;
            self.started.loaded.keys += loaded.keys;
            self.started.loaded.ended += loaded.ended;
            self.started.loaded.left_out += loaded.left_out;
        }
        Ok(())
    }

    fn accept(&mut self, listener: TcpListener, clients_max: u32) -> io::Result<()> {
        let (peers, bell) = (Arc::clone(&self.peers), Arc::clone(&self.accept_bell));
        let thread = std::thread::Builder::new().name("accept".into());
        self.acceptor = Some(thread.spawn(move || accept(&listener, &peers, &bell, clients_max))?);
        Ok(())
    }

    fn keep(&mut self, keeper: Keeper) -> io::Result<()> {
        let (ends, ended) = channel();
        let thread = std::thread::Builder::new().name("keeper".into());
        self.keeper = Some((ends, thread.spawn(move || Ok(keeper.run(&ended)?))?));
        Ok(())
    }

    /// The kernel's address at which it listens.
    pub fn address(&self) -> Option<SocketAddr> {
        self.address
    }

    /// What the start has found.
    pub fn started(&self) -> Started {
        self.started
    }

    /// False if a thread has ended by itself: [`Server::stop`] tells why.
    pub fn is_serving(&self) -> bool {
        let keeps = self
            .keeper
            .as_ref()
            .is_none_or(|(_, thread)| !thread.is_finished());
        keeps && !self.workers.iter().any(JoinHandle::is_finished)
    }

    /// Ends all threads. Everything that was answered is durable as promised, and the rest of the changes, too.
    ///
    /// # Errors
    /// The first failure of a thread.
    pub fn stop(mut self) -> Result<(), WorkerError> {
        self.peers.ends.store(true, Ordering::SeqCst);
        self.peers.bells.iter().for_each(Bell::ring);
        self.accept_bell.wake().wake();
        let mut result = Ok(());
        let mut joined = |thread: JoinHandle<Result<(), WorkerError>>| match thread.join() {
            Ok(ended) => {
                if result.is_ok() {
                    result = ended;
                }
            }
            Err(panic) => std::panic::resume_unwind(panic),
        };
        self.workers.drain(..).for_each(&mut joined);
        if let Some((ends, thread)) = self.keeper.take() {
            drop(ends);
            joined(thread);
        }
        if let Some(thread) = self.acceptor.take() {
            let _ = thread.join();
        }
        result
    }
}

/// Binds. Another server that shares the port would not be noticed with `SO_REUSEPORT`, so there is one listener for all threads.
fn listen(address: SocketAddr) -> Result<TcpListener, StartError> {
    let bind = || {
        let listener = TcpListener::bind(address)?;
        listener.set_nonblocking(true)?;
        Ok(listener)
    };
    bind().map_err(|source| StartError::Listen { address, source })
}

fn peers(options: &ServerOptions, is_kernel: bool) -> io::Result<Peers> {
    let count = options.shards;
    let open = Arc::new(AtomicU32::new(0));
    let row = || (0..count).map(|_| Lane::new()).collect();
    let handed = || Arc::new(Handed::new(Arc::clone(&open)));
    Ok(Peers {
        lanes: (0..count).map(|_| row()).collect(),
        bells: (0..count).map(|_| Bell::new()).collect::<io::Result<_>>()?,
        handed: (0..if is_kernel { count } else { 0 }).map(|_| handed()).collect(),
        ends: AtomicBool::new(false),
    })
}

/// Hands connections to the threads in turn.
fn accept(listener: &TcpListener, peers: &Peers, bell: &Bell, clients_max: u32) {
    let mut next = 0;
    while !peers.ends.load(Ordering::SeqCst) {
        match listener.accept() {
            Ok((mut stream, _)) => {
                let handed = &peers.handed[next];
                if handed.open.load(Ordering::Relaxed) >= clients_max {
                    let _ = stream
                        .set_nonblocking(true)
                        .and_then(|()| stream.write_all(TOO_MANY));
                    continue;
                }
                handed.open.fetch_add(1, Ordering::Relaxed);
                handed.put(stream);
                peers.bells[next].ring();
                next = (next + 1) % peers.handed.len();
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let mut fds = [
                    PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
                    PollFd::from_borrowed_fd(bell.wake().as_fd(), PollFlags::IN),
                ];
                // Whatever it says, the loop looks again.
                let _ = poll(&mut fds, None);
            }
            Err(_) => {
                // Without a descriptor for it the connection stays where it is, and would wake a poll at once.
                let mut fds = [PollFd::from_borrowed_fd(bell.wake().as_fd(), PollFlags::IN)];
                let _ = poll(&mut fds, Some(&ACCEPT_REST));
            }
        }
    }
}

/// A shard's thread before it serves.
struct Start {
    index: usize,
    seed: u64,
    port: u16,
    options: ServerOptions,
    peers: Arc<Peers>,
    store: Option<Store>,
    tells: Sender<Ready>,
}

impl Start {
    fn run(mut self) -> Result<(), WorkerError> {
        if self.options.pins {
            pin(self.index);
        }
        let (shard, loaded) = match self.shard() {
            Ok(made) => made,
            Err(error) => return self.refuse(error),
        };
        let bell = &self.peers.bells[self.index];
        match self.options.listen.clone() {
            Listen::Kernel(_) => match Kernel::new(Arc::clone(&self.peers.handed[self.index]), bell) {
                Ok(transport) => self.serve(shard, loaded, transport),
                Err(error) => self.refuse(error.into()),
            },
            Listen::Hub(hub) => match User::open(&hub, self.index, self.options.spin) {
                Ok(transport) => self.serve(shard, loaded, transport),
                Err(error) => self.refuse(error.into()),
            },
        }
    }

    fn refuse(self, error: StartError) -> Result<(), WorkerError> {
        // The thread that starts the server waits for it.
        let _ = self.tells.send(Err(error));
        Ok(())
    }

    fn serve(self, shard: Shard, loaded: Loaded, transport: impl Transport) -> Result<(), WorkerError> {
        let _ = self.tells.send(Ok(loaded));
        drop(self.tells);
        Worker::new(self.index, shard, self.store, transport, self.peers).run()
    }

    /// The shard with its keys.
    fn shard(&mut self) -> Result<(Shard, Loaded), StartError> {
        let options = &self.options;
        let keys = KeyspaceOptions {
            memory_max: options.memory_max / options.shards as u64,
            value_bytes_max: RequestLimits::default().word_bytes_max as usize,
            keeps_changes: false,
        };
        let now_ms = unix_ms();
        let mut shard = Shard::new(ShardOptions {
            index: self.index,
            shards: options.shards,
            seed: self.seed,
            keys: self.store.as_ref().map_or(keys, |store| fit(keys, store)),
            requests: RequestLimits::default(),
            copies: options.copies,
            about: About {
                version: options.version.clone(),
                process: std::process::id(),
                port: self.port,
                shards: options.shards as u32,
                durability: options.durability.name().into(),
                began_ms: now_ms,
            },
        });
        shard.set_now(now_ms);
        let loaded = match &mut self.store {
            Some(store) => store.load(shard.keys_mut(), self.seed),
            None => Ok(Loaded::default()),
        };
        let shard_index = self.index;
        let loaded = loaded.map_err(|source| StartError::Load {
            shard: shard_index,
            source,
        })?;
        Ok((shard, loaded))
    }
}

/// Binds the thread to a processor of its own, if there are as many.
fn pin(index: usize) {
    let Ok(allowed) = sched_getaffinity(None) else {
        return;
    };
    let all: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| allowed.is_set(*cpu)).collect();
    if let Some(cpu) = all.get(index) {
        let mut set = CpuSet::new();
        set.set(*cpu);
        // A thread that cannot be bound serves all the same.
        let _ = sched_setaffinity(None, &set);
    }
}
