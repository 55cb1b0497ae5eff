//! The stack of a process, and all that is about its sockets, under one lock. A thread that has the lock carries frames:
//! in a call, or as the keeper (`keeper`) if no other thread does it for some milliseconds.
//!
//! Threads that wait sleep without the lock. One of them, the *watch*, sleeps on the link's doorbell; the others sleep on wakes of their own. A thread that
//! carries frames wakes those whose sockets have news. A watch that gets up wakes another sleeper, who becomes the watch.

use super::beds::{Beds, On};
use super::file::{Kind, code_of};
use super::files::Files;
use super::pipe::Bridge;
use super::set::Set;
use super::settings::Settings;
use crate::signals;
use crate::state::{inside, inside_unmasked};
use crate::tell::tell;
use area::own;
use base::{Duration, Instant};
use libc::c_int;
use nic::shared::{AttachError, Keep, join_kept};
use os::sync::{Arc, Mutex, MutexGuard, PoisonError, Wake};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use sockets::{Handle, Options, SocketError, Sockets};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use tcp::api::Setting;
use tcp::config::Config;

/// Connections at a time.
const FLOWS_MAX: u32 = 4096;
/// Peers at a time.
const PATHS_MAX: u32 = 1024;
/// How long a thread that waits looks for frames after the last one, before it sleeps. A wake costs both sides some 20 µs.
const SPIN: Duration = Duration::from_micros(30);

/// Descriptors of the link.
const KEEP: Keep = Keep {
    keep: |fd| own::keep(&fd),
    give_back: own::give_back,
};

/// How a thread looks for frames once more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Again {
    Now,
    /// The peer needs this very processor.
    AfterOthers,
}

/// How a thread may sleep: until one of these can be read, or it is time.
pub(crate) struct Bed {
    number: u64,
    pub wake: RawFd,
    /// The link's doorbell, for the watch.
    pub bell: RawFd,
    pub deadline: Option<Instant>,
}

/// A forked child that may ask for files.
pub(crate) struct Child {
    pub control: OwnedFd,
    /// Files that it has not asked for, nor closed.
    pub files: BTreeSet<u32>,
}

/// The stack, once there is one.
pub(crate) struct Link {
    pub sockets: Sockets,
    /// Says to other processes of this host that the address is taken.
    _claim: OwnedFd,
}

/// Everything.
pub(crate) struct Net {
    pub link: Option<Link>,
    pub files: Files,
    pub sets: BTreeMap<c_int, Set>,
    /// By the place of the stack's socket.
    owners: Vec<Option<(Handle, u32)>>,
    pub beds: Beds,
    wakes: Vec<Arc<Wake>>,
    pub busy_at: Instant,
    /// Since the last frame a thread has let others have the processor.
    has_yielded: bool,
    pub now: Instant,
    /// Looks for frames.
    pub looks: u64,
    /// This process has been refused, and is not served.
    is_refused: bool,
    /// The hub has ended.
    is_down: bool,
    /// Sockets that the kernel has, by a connection to the keeper.
    pub bridges: BTreeMap<u32, Bridge>,
    /// Bridges that something has happened to.
    pub stirred: BTreeSet<u32>,
    /// A set of the kernel's with the keeper's ends of bridges, and with the children.
    pub ends: Option<OwnedFd>,
    pub children: BTreeMap<u32, Child>,
    pub children_made: u32,
    /// Where this process, a forked child, asks for what it has inherited.
    pub parent: Option<OwnedFd>,
}

static NET: Mutex<Net> = Mutex::new(Net::new());

pub(crate) fn lock() -> MutexGuard<'static, Net> {
    NET.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes a step of a call, for a thread of the program.
pub(crate) fn with<R>(step: impl FnOnce(&mut Net) -> R) -> R {
    let step = || {
        let mut net = lock();
        net.relieve();
        let result = step(&mut net);
        net.hurry();
        result
    };
    match signals::are_replaced() {
        true => inside_unmasked(step),
        false => inside(step),
    }
}

impl Net {
    const fn new() -> Self {
        Self {
            link: None,
            files: Files::new(),
            sets: BTreeMap::new(),
            owners: Vec::new(),
            beds: Beds::new(),
            wakes: Vec::new(),
            busy_at: Instant::ZERO,
            has_yielded: false,
            now: Instant::ZERO,
            looks: 0,
            is_refused: false,
            is_down: false,
            bridges: BTreeMap::new(),
            stirred: BTreeSet::new(),
            ends: None,
            children: BTreeMap::new(),
            children_made: 0,
            parent: None,
        }
    }

    /// In a forked child: the parent has the stack, whose memory both see. So the child's copy is not even taken apart. Its descriptors are closed by
    /// `own::forked`, as all that this library keeps: the hub sees by them that the parent has ended.
    pub fn forget(&mut self) {
        std::mem::forget(std::mem::replace(self, Self::new()));
    }

    /// The keeper looks at a bridge in its next turn.
    pub fn stir(&mut self, number: u32) {
        if self.bridges.contains_key(&number) {
            self.stirred.insert(number);
            self.beds.wake_keeper();
        }
    }

    /// Whether the stack carries frames.
    pub fn is_up(&self) -> bool {
        self.link.is_some() && !self.is_down
    }

    /// Whether the hub has ended.
    pub fn is_lost(&self) -> bool {
        self.is_down
    }

    /// The stack, where a socket says that there is one.
    pub fn sockets(&mut self) -> &mut Sockets {
        &mut self.link.as_mut().expect("a served socket has a stack").sockets
    }

    /// Makes the stack, if there is none. An error number, if this process has none; the user is told why, once.
    pub fn attach(&mut self, settings: &Settings) -> Result<(), c_int> {
        if self.is_down {
            return Err(libc::ENETDOWN);
        }
        if self.link.is_some() {
            return Ok(());
        }
        if self.is_refused {
            return Err(libc::ENETDOWN);
        }
        match open(settings) {
            Ok(link) => {
                self.link = Some(link);
                Ok(())
            }
            Err(why) => {
                self.is_refused = true;
                tell!(
                    "switchyard run: {why}: the kernel has the sockets of process {}",
                    std::process::id()
                );
                Err(libc::ENETDOWN)
            }
        }
    }

    /// The file that the stack's socket belongs to.
    pub fn bind(&mut self, handle: Handle, file: u32) {
        let place = handle.index();
        if self.owners.len() <= place {
            self.owners.resize(place + 1, None);
        }
        self.owners[place] = Some((handle, file));
    }

    fn owner(&self, handle: Handle) -> Option<u32> {
        let (owner, file) = self.owners.get(handle.index()).copied().flatten()?;
        (owner == handle).then_some(file)
    }

    /// Carries frames, and tells of news.
    pub fn carry(&mut self) {
        self.looks += 1;
        self.now = os::now();
        if self.is_down {
            return;
        }
        let Some(link) = &mut self.link else {
            return;
        };
        match link.sockets.poll() {
            Ok(0) => {}
            Ok(_) => {
                self.busy_at = self.now;
                self.has_yielded = false;
            }
            Err(_) => self.lose(),
        }
        self.hear();
    }

    /// Sends what was written.
    pub fn push(&mut self) {
        if let Some(link) = self.link.as_mut().filter(|_| !self.is_down)
            && link.sockets.push().is_err()
        {
            self.lose();
        }
        self.hear();
    }

    fn hear(&mut self) {
        while let Some((handle, _)) = self.link.as_mut().and_then(|link| link.sockets.next_ready()) {
            if let Some(file) = self.owner(handle) {
                self.settle(file);
                self.tell(file);
            }
        }
    }

    /// Gives a connection that is open the options that the program has set.
    pub fn settle(&mut self, number: u32) {
        let (Some(link), Some(file)) = (&mut self.link, self.files.get_mut(&number)) else {
            return;
        };
        let Kind::Stream { handle, tuple } = &mut file.kind else {
            return;
        };
        if file.is_settled {
            return;
        }
        let handle = *handle;
        let Ok(Some(found)) = link.sockets.tuple(handle) else {
            return;
        };
        file.is_settled = true;
        *tuple = found;
        // One that is over already needs none.
        let _ = link.sockets.set(handle, Setting::NoDelay(file.is_no_delay));
        let _ = link
            .sockets
            .set(handle, Setting::KeepAlive(Some(file.keep_alive)));
        if let Some(timeout) = file.user_timeout {
            let _ = link.sockets.set(handle, Setting::UserTimeout(timeout));
        }
    }

    /// A file has news: whoever waits for them is woken.
    pub fn tell(&mut self, number: u32) {
        self.stir(number);
        let Some(file) = self.files.get(&number) else {
            return;
        };
        for (set, fd) in &file.watchers {
            if let Some(set) = self.sets.get_mut(set) {
                set.queue(*fd);
            }
        }
        self.beds.wake(|on| match on {
            On::File(other) => other == number,
            On::Set(set) => file.watchers.iter().any(|(other, _)| *other == set),
            On::Any => true,
            On::Keeper => false,
        });
    }

    /// The hub has ended, and the connections with it.
    fn lose(&mut self) {
        self.is_down = true;
        tell!(
            "switchyard run: the hub has ended, and the connections of process {} by it: start a hub with `switchyard tcp serve`, and \
             then the program anew",
            std::process::id()
        );
        let all: Vec<_> = self.files.iter().map(|(number, _)| number).collect();
        all.into_iter().for_each(|file| self.tell(file));
    }

    /// The events of poll(2) that a file has.
    pub fn events(&mut self, number: u32) -> u32 {
        const IN: u32 = libc::EPOLLIN as u32;
        const OUT: u32 = libc::EPOLLOUT as u32;
        const ERR: u32 = libc::EPOLLERR as u32;
        const HUP: u32 = libc::EPOLLHUP as u32;
        const RDHUP: u32 = libc::EPOLLRDHUP as u32;
        const NORMAL: u32 = (libc::EPOLLRDNORM | libc::EPOLLWRNORM) as u32;
        let Some(file) = self.files.get(&number) else {
            return 0;
        };
        let is_down = self.is_down;
        let (kind, is_told, is_deaf, is_mute) = (file.kind, file.is_told, file.is_deaf, file.is_mute);
        let Some(link) = &mut self.link else {
            return 0;
        };
        let mut events = match kind {
            // The kernel answers.
            Kind::Fresh | Kind::Inherited => 0,
            Kind::Bound(_) => OUT | HUP,
            Kind::Lost => IN | OUT | ERR | HUP,
            Kind::Listener { is_dual, .. } if is_down => match is_dual {
                true => 0,
                false => IN | ERR | HUP,
            },
            Kind::Listener { handle, .. } => match link.sockets.readiness(handle) {
                Ok(ready) if ready.readable => IN,
                _ => 0,
            },
            Kind::Stream { handle, .. } => {
                let Ok(ready) = link.sockets.readiness(handle) else {
                    return ERR | HUP;
                };
                let failure = link.sockets.failure(handle).ok().flatten();
                let mut events = 0;
                if ready.readable || is_deaf {
                    events |= IN;
                }
                if ready.writable || is_mute {
                    events |= OUT;
                }
                if ready.is_ended || is_deaf || ready.is_over {
                    events |= IN | RDHUP;
                }
                if ready.is_over || (is_mute && (ready.is_ended || is_deaf)) {
                    events |= HUP | OUT;
                }
                if is_down && !ready.is_over {
                    events |= IN | OUT | HUP;
                }
                if (failure.is_some() || is_down) && !is_told {
                    events |= ERR;
                }
                events
            }
        };
        if events & IN != 0 {
            events |= NORMAL & libc::EPOLLRDNORM as u32;
        }
        if events & OUT != 0 {
            events |= NORMAL & libc::EPOLLWRNORM as u32;
        }
        events
    }

    /// The failure of a connection that was not told yet. It is told by this.
    pub fn take_failure(&mut self, number: u32) -> Option<c_int> {
        let is_down = self.is_down;
        let file = self.files.get_mut(&number)?;
        let failure = match file.kind {
            Kind::Stream { handle, .. } => {
                let failure = self.link.as_mut()?.sockets.failure(handle).ok().flatten();
                failure.or(is_down.then_some(SocketError::Link))
            }
            Kind::Lost => Some(SocketError::Link),
            _ => None,
        };
        let failure = failure.filter(|_| !file.is_told)?;
        file.is_told = true;
        Some(code_of(failure))
    }

    /// The last descriptor of a file is closed: what was written still goes.
    pub fn end(&mut self, number: u32) {
        let Some(file) = self.files.remove(&number) else {
            return;
        };
        for (set, fd) in &file.watchers {
            if let Some(set) = self.sets.get_mut(set) {
                set.remove(*fd);
            }
        }
        let Some(handle) = file.handle() else {
            return;
        };
        if let Some(place) = self.owners.get_mut(handle.index()) {
            *place = None;
        }
        let sockets = self.sockets();
        // It is there: the file was its owner.
        let _ = match file.resets {
            true => sockets.abort(handle),
            false => sockets.close(handle),
        };
        self.push();
        // Threads that wait for it see that it is gone.
        self.beds.wake(|on| on == On::File(number));
    }
}

/// How threads sleep.
impl Net {
    /// What a thread that waits should do before it sleeps.
    pub fn look_again(&mut self) -> Option<Again> {
        if !self.is_up() || self.now.since(self.busy_at) >= SPIN {
            return None;
        }
        let is_in_the_way = self
            .link
            .as_ref()
            .is_some_and(|link| link.sockets.is_in_the_way());
        match (is_in_the_way, self.has_yielded) {
            (false, _) => Some(Again::Now),
            (true, false) => {
                self.has_yielded = true;
                Some(Again::AfterOthers)
            }
            (true, true) => None,
        }
    }

    /// The thread is to sleep. None if there is something to do first.
    pub fn lie_down(&mut self, on: On) -> io::Result<Option<Bed>> {
        let wake = match self.wakes.pop() {
            Some(wake) => wake,
            None => Arc::new(Wake::new()?.kept(own::keep)?),
        };
        let is_up = self.is_up();
        let sockets = self.link.as_mut().filter(|_| is_up).map(|link| &mut link.sockets);
        let park = sockets.map(|sockets| || sockets.park().map(|parked| parked.deadline));
        let Some(place) = self.beds.lie_down(on, Arc::clone(&wake), park) else {
            self.wakes.push(wake);
            return Ok(None);
        };
        let bell = match place.is_watch {
            true => self.sockets().fd().as_raw_fd(),
            false => -1,
        };
        Ok(Some(Bed {
            number: place.number,
            wake: wake.fd(),
            bell,
            deadline: place.deadline,
        }))
    }

    /// The thread is awake again.
    pub fn get_up(&mut self, bed: &Bed) {
        if let Some((wake, was_watch)) = self.beds.get_up(bed.number) {
            self.wakes.push(wake);
            if was_watch {
                self.unpark();
            }
        }
    }

    /// Nobody is at the doorbell any more.
    fn unpark(&mut self) {
        if self.is_up() {
            self.sockets().unpark();
        }
    }

    /// A thread of the program is here: the keeper need not be woken for frames.
    fn relieve(&mut self) {
        if self.beds.relieve() {
            self.unpark();
        }
    }

    /// Somebody sleeps who would get up too late for what this thread has done.
    fn hurry(&mut self) {
        if self.beds.has_watch()
            && let Some(deadline) = self.link.as_mut().and_then(|link| link.sockets.deadline())
        {
            self.beds.hurry(deadline);
        }
    }
}

/// A virtual NIC of the hub, and the stack over it.
fn open(settings: &Settings) -> Result<Link, String> {
    let socket = settings.socket.display();
    let no_hub = |error: AttachError| match error {
        AttachError::NoHub(_) => {
            format!("no hub serves at {socket} (start one with `switchyard tcp serve`)")
        }
        AttachError::Full => {
            format!("the hub at {socket} has no free port (`switchyard tcp serve --ports` gives it more)")
        }
        error => format!("the hub at {socket}: {error}"),
    };
    let claim = claim(settings)?;
    let name = std::fs::read_to_string("/proc/self/comm").unwrap_or_default();
    let name: String = name.chars().filter(char::is_ascii_graphic).take(15).collect();
    let link = join_kept(&settings.socket, &name, KEEP).map_err(no_hub)?;
    let mac = nic::Frames::limits(&link).mac.ok_or("the hub gives no address")?;
    let config = Config {
        flows_max: FLOWS_MAX,
        paths_max: PATHS_MAX,
        ..Config::new(mac, settings.ip, settings.bits)
    };
    let sockets = Sockets::new(Box::new(link), config, Options::default());
    Ok(Link {
        sockets,
        _claim: claim,
    })
}

/// An address is one process's at a time. The kernel gives the name free when that process has ended.
fn claim(settings: &Settings) -> Result<OwnedFd, String> {
    let address = std::net::Ipv6Addr::from(settings.ip.octets());
    let hub = std::fs::metadata(&settings.socket)
        .map(|found| std::os::unix::fs::MetadataExt::ino(&found))
        .unwrap_or_default();
    let name = format!("switchyard-tcp-{hub}-{address}");
    let failed = |error: rustix::io::Errno| format!("no socket for the address: {error}");
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
        .map_err(failed)?;
    let place = SocketAddrUnix::new_abstract_name(name.as_bytes()).map_err(failed)?;
    rustix::net::bind(&socket, &place).map_err(|error| match error {
        rustix::io::Errno::ADDRINUSE => {
            "another process has the address (give each program one of its own by --address)".to_owned()
        }
        error => failed(error),
    })?;
    own::keep(&socket).map_err(|error| error.to_string())
}
