//! Devices that lose power: what was not flushed is lost by sectors. After each cut all that was acknowledged is there, and the check
//! finds nothing.

use crate::engine::{Engine, Failure, Mode, Options, Write, make};
use crate::media::Disks;
use base::{MediaError, Rng};
use fs::check::{Depth, check_to};
use fs::client::{Call, Caller, Client, Where};
use fs::errno::Errno;
use fs::format::{ROOT_INODE, Tier};
use fs::inode::Time;
use fs::log::Ticket;
use fs::make::Make;
use os::sync::{Arc, AtomicBool, AtomicU64, Mutex, MutexGuard, Ordering, PoisonError, mpsc, thread};
use std::time::Duration;
use uuid::Uuid;

const SECTOR: usize = 512;

/// A device with a write cache.
#[derive(Debug)]
pub(crate) struct Volatile {
    content: Mutex<Content>,
    power: Arc<Power>,
}

/// Power that goes at a certain write: what comes later is not kept.
#[derive(Debug)]
pub(crate) struct Power(AtomicU64);

impl Power {
    /// So many writes and flushes, of all devices together, go well.
    pub fn lasts_for(&self, writes: u64) {
        self.0.store(writes, Ordering::SeqCst);
    }

    /// How many are left.
    pub fn left(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn takes(&self) -> bool {
        let less = |left: u64| left.checked_sub(1);
        self.0
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, less)
            .is_ok()
    }
}

impl Default for Power {
    fn default() -> Self {
        Self(AtomicU64::new(u64::MAX))
    }
}

#[derive(Debug)]
pub(crate) struct Content {
    /// What a reader sees.
    seen: Vec<u8>,
    /// What survives a cut.
    kept: Vec<u8>,
    /// Writes that were not flushed.
    pending: Vec<(usize, Vec<u8>)>,
}

impl Volatile {
    pub fn new(bytes: Vec<u8>, power: &Arc<Power>) -> Self {
        let content = Mutex::new(Content {
            seen: bytes.clone(),
            kept: bytes,
            pending: Vec::new(),
        });
        let power = Arc::clone(power);
        Self { content, power }
    }

    fn with<R>(&self, act: impl FnOnce(&mut Content) -> R) -> R {
        act(&mut self.content.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub fn bytes(&self) -> u64 {
        self.with(|content| content.seen.len() as u64)
    }

    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), MediaError> {
        self.with(|content| {
            let from = content.seen.get(offset as usize..offset as usize + bytes.len());
            bytes.copy_from_slice(from.ok_or(MediaError::OutOfRange)?);
            Ok(())
        })
    }

    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        let at = offset as usize;
        self.with(|content| {
            content.seen[at..at + bytes.len()].copy_from_slice(bytes);
            if self.power.takes() {
                content.pending.push((at, bytes.to_vec()));
            }
        });
        Ok(())
    }

    /// Durable on return (FUA): it alone.
    pub fn write_through(&self, offset: u64, bytes: &[u8]) -> Result<(), MediaError> {
        // A cut may come in the middle.
        self.write(offset, bytes)?;
        thread::sleep(Duration::from_micros(20));
        let at = offset as usize;
        self.with(|content| {
            if !self.power.takes() {
                return;
            }
            content.kept[at..at + bytes.len()].copy_from_slice(bytes);
            content.pending.retain(|(from, _)| *from != at);
        });
        Ok(())
    }

    pub fn flush(&self) -> Result<(), MediaError> {
        self.with(|content| {
            if !self.power.takes() {
                return;
            }
            for (at, bytes) in content.pending.drain(..) {
                content.kept[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        });
        Ok(())
    }

    /// Stops the device.
    pub fn freeze(&self) -> MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Content {
    /// What a cut leaves: of each write that was not flushed some sectors.
    pub(crate) fn cut(&self, rng: &mut Rng) -> Vec<u8> {
        let mut left = self.kept.clone();
        let share = [0.0, 0.5, 1.0][rng.below(3) as usize];
        for (at, bytes) in &self.pending {
            for (sector, piece) in bytes.chunks(SECTOR).enumerate() {
                if rng.chance(share) {
                    let to = at + sector * SECTOR;
                    left[to..to + piece.len()].copy_from_slice(piece);
                }
            }
        }
        left
    }
}

/// Does a call, and waits for room if it must.
pub(crate) fn call<R>(
    engine: &Engine,
    call: impl Fn(&mut Client, &mut Call<'_, '_>) -> Result<R, fs::client::Failure>,
) -> R {
    loop {
        match engine.turn(|turn| turn.call(Caller::default(), &call)) {
            Ok(result) => return result,
            Err(Failure::Busy | Failure::Stalled) => {
                engine.wait_for_room();
            }
            Err(failure) => panic!("{failure}"),
        }
    }
}

pub(crate) fn wait(engine: &Engine, ticket: Ticket) {
    let (tell, told) = mpsc::channel();
    engine.when_durable(
        ticket,
        Box::new(move |result| tell.send(result).expect("it waits")),
    );
    told.recv().expect("it is told").expect("the medium works");
}

/// Writes, and waits for room if it must.
pub(crate) fn write_all(engine: &Engine, write: &Write<'_>) {
    let written = loop {
        match engine.write(write) {
            Err(Failure::Busy | Failure::Stalled) => {
                engine.wait_for_room();
            }
            written => break written.expect("there is room"),
        }
    };
    assert_eq!(written.bytes, write.data.len());
}

fn data_of(number: u64) -> Vec<u8> {
    let bytes = if number.is_multiple_of(9) {
        100_000 + number as usize % 5000
    } else {
        number as usize * 37 % 9000 + 1
    };
    (0..bytes).map(|at| (number as usize * 31 + at) as u8).collect()
}

/// Makes files, and replaces and removes earlier ones. `done` is the number of the last one that is durable.
fn work(engine: &Engine, first: u64, stop: &AtomicBool, done: &AtomicU64) {
    let mut number = first;
    while !stop.load(Ordering::SeqCst) {
        let (name, new, data) = (format!("f{number}"), format!("new{number}"), data_of(number));
        let made = call(engine, |client, call| {
            client.create_or_find(call, (ROOT_INODE, new.as_bytes()), (0o644, true))
        });
        let write = Write {
            caller: Caller::default(),
            inode: made.number,
            at: Where::At(0),
            data: &data,
            takes_set_id: false,
            appends: false,
            is_write_back: false,
            pins: &[],
        };
        write_all(engine, &write);
        let ticket = call(engine, |client, call| {
            let (from, to) = ((ROOT_INODE, new.as_bytes()), (ROOT_INODE, name.as_bytes()));
            client.rename(call, from, to, fs::client::Rename::default())
        });
        wait(engine, ticket.expect("it is another name"));
        done.store(number, Ordering::SeqCst);
        if number >= first + 8 && !(number - 8).is_multiple_of(4) {
            let name = format!("f{}", number - 8);
            call(engine, |client, call| {
                client.unlink(call, (ROOT_INODE, name.as_bytes()), false)
            });
        }
        number += 1;
    }
}

/// All files up to the last one that was acknowledged are there, but those that were removed.
fn assert_all(engine: &Engine, first: u64, (last, begun): (u64, u64)) {
    for number in first..=last {
        let name = format!("f{number}");
        let found = engine.turn(|turn| {
            turn.call(Caller::default(), |client, call| {
                client.lookup(call, (ROOT_INODE, name.as_bytes()))
            })
        });
        let inode = match found {
            Ok((inode, _)) => inode,
            Err(Failure::Posix(Errno::NoEntry)) if !number.is_multiple_of(4) && number + 8 <= begun + 1 => {
                continue;
            }
            Err(failure) => panic!("{name} of {last}: {failure}"),
        };
        let mut data = vec![0; 200_000];
        let count = engine.read((inode, 0), &mut data).expect("it can be read");
        assert!(data[..count] == data_of(number), "{name} has other data");
    }
}

fn cuts(blocks: &[usize], is_immediate: bool, mode: Mode, seed: u64) {
    let mut rng = Rng::new(seed);
    let mut images: Vec<Vec<u8>> = blocks.iter().map(|blocks| vec![0; blocks * 4096]).collect();
    let disks = |images: &[Vec<u8>]| Disks::volatile(images.to_vec(), is_immediate, &Arc::default());
    let new = Make {
        uuid: Uuid::from_u64_pair(seed, 7),
        devices: blocks
            .iter()
            .map(|_| (Tier::Flash, Uuid::from_u64_pair(seed, 8)))
            .collect(),
        time: Time::default(),
        owner: (0, 0),
    };
    let first = disks(&images);
    make(&first, &new).expect("there is room");
    images = first.cut_all(|device| device.cut(&mut rng));
    let options = Options {
        mode: Some(mode),
        log_bytes: Some(256 << 10),
        ..Options::default()
    };
    let mut next = 0;
    for round in 0..8 {
        let devices = disks(&images);
        let (engine, recovery) = Engine::open(devices.clone(), &options).expect("it is whole");
        assert_eq!((recovery.refused, recovery.damaged), (0, vec![]), "round {round}");
        let first = next;
        let engine = Arc::new(engine);
        let (stop, done) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicU64::new(u64::MAX)),
        );
        let worker = {
            let (engine, stop, done) = (Arc::clone(&engine), Arc::clone(&stop), Arc::clone(&done));
            thread::spawn(move || work(&engine, first, &stop, &done))
        };
        thread::sleep(Duration::from_millis(10 + rng.below(150)));
        // What is acknowledged now is there after a cut now.
        let last = done.load(Ordering::SeqCst);
        images = devices.cut_all(|device| device.cut(&mut rng));
        let begun = done.load(Ordering::SeqCst);
        stop.store(true, Ordering::SeqCst);
        worker.join().expect("it goes well");
        assert_eq!(engine.status().digest.first_refused, None);
        drop(engine);
        let report = check_to(&disks(&images), Depth::Data);
        assert!(report.is_clean(), "round {round}: {report:?}");
        if last == u64::MAX {
            continue;
        }
        let devices = disks(&images);
        let (engine, _) = Engine::open(devices.clone(), &options).expect("it is whole");
        assert_all(&engine, first, (last, begun));
        drop(engine);
        images = devices.cut_all(|device| device.cut(&mut rng));
        // Later names may be there, too: they are others from here on.
        next = last + 100_000;
    }
}

#[test]
fn with_a_log_on_a_disk_no_cut_loses_what_was_acknowledged() {
    for seed in 0..3 {
        cuts(&[10_000], false, Mode::Ordered, seed);
    }
}

#[test]
fn with_a_log_in_memory_no_cut_loses_what_was_acknowledged() {
    for seed in 0..3 {
        cuts(&[10_000], true, Mode::Sync, seed);
    }
}

#[test]
fn with_data_on_a_second_device_no_cut_loses_what_was_acknowledged() {
    for seed in 0..3 {
        cuts(&[3000, 9_000], false, Mode::Sync, seed);
    }
}
