//! The logs of other processes: made, digested, and taken out of the tree. Their bytes are in windows ([`crate::window`]), and nothing of them is
//! taken on trust.

use super::digester::Keeper;
use super::log::Log;
use super::recover::{Leasing, OpenError, devices_for_data, digest_frames, new_ring, read_frames};
use super::reserve::Reserved;
use super::sharing::Peer;
use super::state::Locked;
use crate::window::{Ahead, Window, ring_in_window};
use fs::digest::{DigestError, delete_orphan_of};
use fs::edit::Room;
use fs::format::{BLOCK_BYTES, Key, Kind};
use fs::grants::Grants;
use fs::lease::Client;
use fs::log::{Reader, Ring};
use fs::media::Error;
use fs::tree::Tree;
use fs::value::{LogRecord, Part, Windowed};

/// Numbers for new inodes of each process.
const NUMBERS: u64 = 1 << 28;
/// Numbers for new inodes of the engine's own client, if it shares its files.
pub(crate) const NUMBERS_OWN: u64 = 1 << 40;

impl Keeper {
    /// Makes a log for a process. Both roots have it then.
    pub fn make_log(&mut self, locked: &Locked, peer: &Peer, bytes: u64) -> Result<u64, OpenError> {
        let extents = new_ring(&mut self.tree, &self.disks, bytes, Windowed::EXTENTS_MAX)?;
        let blocks: u64 = extents.iter().map(|run| run.blocks).sum();
        let number = self.tree.take_log();
        let first = self.next_numbers.max(self.tree.next_inode());
        let numbers = first..first + NUMBERS;
        let record = LogRecord {
            uid: peer.uid,
            nonce: os::seed(),
            digested: 0,
            sector: self.disks.log_sector() as u16,
            extents,
            window: Some(Windowed {
                numbers: numbers.clone(),
                gids: peer.gids.clone(),
                reserved: Some(Part::default()),
            }),
        };
        let ring_bytes = blocks * BLOCK_BYTES as u64;
        let (ring, window) = match self.make_window(number, &record, ring_bytes) {
            Ok(made) => made,
            Err(error) => {
                for run in record.extents {
                    self.tree.release(&self.disks, run)?;
                }
                return Err(error);
            }
        };
        self.next_numbers = numbers.end;
        let mut grants = Grants::default();
        (grants.uid, grants.gids) = (peer.uid, peer.gids.clone());
        let log = Log {
            window,
            ring,
            nonce: record.nonce,
            grants,
            digested: 0,
            roots: [0; 2],
            extents: record.extents,
            numbers,
            reserved: Reserved::default(),
            noted: Part::default(),
            part: Part::default(),
            refused: 0,
        };
        self.logs.insert(number, log);
        for _ in 0..2 {
            self.commit(locked)?;
        }
        Ok(number)
    }

    /// The window of a new log, whose record goes into the tree. After an error there is neither.
    fn make_window(
        &mut self,
        number: u64,
        record: &LogRecord,
        ring_bytes: u64,
    ) -> Result<(Ring, Window), OpenError> {
        let ring = ring_in_window(record.nonce, u32::from(record.sector), ring_bytes);
        let ring = ring.ok_or(OpenError::Log(number))?;
        let made = self.disks.beside().make(number, ring_bytes);
        let window = made.map_err(|source| OpenError::Window {
            log: number,
            why: source.kind(),
        })?;
        let key = Key::new(0, Kind::Log, number);
        let inserted = self.tree.insert(&self.disks, key, &record.emit(), Room::Reserve);
        if let Err(error) = inserted {
            self.disks.beside().remove(number);
            return Err(error.into());
        }
        Ok((ring, window))
    }

    /// Digests a log up to a position. False if it ends before that.
    pub fn digest_log(&mut self, locked: &Locked, number: u64, end: u64) -> Result<bool, DigestError> {
        loop {
            let Some(log) = self.logs.get(&number).filter(|log| log.digested < end) else {
                return Ok(true);
            };
            let window = Ahead::new(&log.window, log.ring_bytes());
            let mut reader = Reader::new(&log.ring, &window, log.digested).expect("it is the end of a frame");
            // A window that cannot be read is one that its process has destroyed.
            let (frames, is_over) = match read_frames(&mut reader, end) {
                Ok((frames, end)) => (frames, end.is_some()),
                Err(_) => (Vec::new(), true),
            };
            self.digest_given(locked, number, &frames)?;
            if is_over {
                return Ok(self.logs.get(&number).is_none_or(|log| log.digested >= end));
            }
        }
    }

    fn digest_given(
        &mut self,
        locked: &Locked,
        number: u64,
        frames: &[fs::log::Frame],
    ) -> Result<(), DigestError> {
        let (mut rest, mut tries) = (frames, 0);
        while !rest.is_empty() {
            self.gate.pass();
            let log = self.logs.get_mut(&number).expect("the caller has it");
            locked.lock().sharing.refresh(Client(number), &mut log.grants);
            let (refused, counts) = (&mut log.refused, &mut self.counts);
            let tell = |report: &fs::digest::Report| {
                counts.read += report.read as u64;
                counts.applied += report.applied as u64;
                *refused += report.refused.len() as u64;
                counts.refused_of_others += report.refused.len() as u64;
            };
            // The rest of the room is others'.
            let before = (self.tree.room(), self.tree.room_of_others());
            self.tree.keep_back(Some(log.reserved.left()));
            let parts = (&mut self.tree, &mut self.disks);
            let of = (rest, &mut log.grants, Leasing::Given);
            let order = |tree: &Tree, _: &[fs::log::Frame]| devices_for_data(tree);
            let done = digest_frames(parts, (number, log.nonce), &mut log.digested, of, (order, tell));
            self.tree.keep_back(None);
            let done = done?;
            log.reserved.take(
                before.0.saturating_sub(self.tree.room()),
                before.1.saturating_sub(self.tree.room_of_others()),
            );
            rest = &rest[done..];
            if rest.is_empty() {
                break;
            }
            // What was deleted can be used two commits later.
            tries = if done == 0 { tries + 1 } else { 0 };
            if tries > 2 {
                return Err(Error::Full(0).into());
            }
            self.commit(locked)?;
        }
        Ok(())
    }

    /// Takes a log out of the tree. Its window may go when both roots have that.
    pub fn drop_log(&mut self, number: u64) -> Result<(), Error> {
        if let Some(log) = self.logs.remove(&number) {
            for run in log.extents {
                self.tree.release(&self.disks, run)?;
            }
            self.tree.remove(&self.disks, Key::new(0, Kind::Log, number))?;
        }
        Ok(())
    }

    /// A process has heard of a part of the room before it logged what is digested now.
    pub fn heard(&mut self, number: u64, heard: u64) {
        if let Some(log) = self.logs.get_mut(&number) {
            log.reserved.heard(heard);
        }
    }

    /// Deletes an inode that nobody has open, if it has no name. False if there is no room for that beside what is reserved.
    pub fn delete_idle(&mut self, locked: &Locked, inode: u64) -> Result<bool, Error> {
        let mut tries = 0;
        loop {
            let part = self.shares().unreserved(&locked.lock());
            self.tree.keep_back(part);
            let deleted = delete_orphan_of(&mut self.tree, &mut self.disks, inode);
            self.tree.keep_back(None);
            match deleted {
                Err(Error::Full(_)) if tries < 2 => {
                    tries += 1;
                    self.commit(locked)?;
                }
                Err(Error::Full(_)) => return Ok(false),
                result => return result.map(|()| true),
            }
        }
    }
}
