//! Software-isolated vSSDs of one channel group on one medium that loses what was not flushed. The rig does a node's
//! part: it carries blocks between the members and lets all of them collect when one must.

use super::{Asked, Content, Known, SECTORS, content, fill, torn};
use base::device::execute;
use base::{
    Device, Duration, Instant, Lpn, MediaDone, MediaKind, MediaOp, NodeId, Pool, Rng, Version, VssdId,
};
use flash::{
    ChannelGroup, Data, Event, Geometry, Isolation, Loan, Request, Ssd, Vssd, VssdConfig, VssdError,
};

pub struct Write {
    id: u64,
    pub offset: u64,
    pub bytes: Vec<u8>,
    done: bool,
}

/// A member and what the owner of its data knows.
pub struct Member {
    pub vssd: Vssd,
    pub config: VssdConfig,
    known: Vec<Known>,
    asked: base::Map<u64, Asked>,
    /// With a flush, the writes that it covers.
    in_flight: Vec<(MediaOp, Vec<u64>)>,
    pub borrows: u64,
    pub gc_done: u64,
}

pub struct GroupRig {
    pub members: Vec<Member>,
    pub group: ChannelGroup,
    pub pool: Pool,
    pub now: Instant,
    pub rng: Rng,
    pub durable: Vec<u8>,
    pub present: Vec<u8>,
    pub log: Vec<Write>,
    /// Blocks lent at once.
    pub loan: u32,
    /// Ratio at which collections of the group aim.
    pub aim: f64,
    pub geometry: Geometry,
    next: u64,
}

/// A formatted image with `rows.len()` vSSDs in one group, of as many rows each and all logical pages that fit.
pub fn image(geometry: Geometry, page_bytes: usize, rows: &[u32]) -> (Vec<u8>, Vec<VssdConfig>) {
    let mut medium = vec![0; Ssd::bytes_needed(&geometry, page_bytes) as usize];
    Ssd::format(&mut medium, geometry, page_bytes, [1; 16]).expect("formats");
    let mut ssd = Ssd::open(&mut medium, page_bytes, 0).expect("opens");
    let mut first = 0;
    for (index, &count) in rows.iter().enumerate() {
        let pages = ssd.logical_pages_max(geometry.channels, Isolation::Software { first, count });
        let id = VssdId(index as u32 + 1);
        let entry = ssd.create_shared(id, geometry.channels, count, pages, vec![]);
        assert_eq!(
            entry.expect("fits").isolation,
            Isolation::Software { first, count }
        );
        first += count;
    }
    ssd.store(&mut medium).expect("in range");
    let configs = ssd.vssds().iter();
    let configs = configs.map(|entry| VssdConfig::new(entry, &geometry, page_bytes));
    (medium, configs.collect())
}

impl GroupRig {
    pub fn new(
        geometry: Geometry,
        page_bytes: usize,
        rows: &[u32],
        seed: u64,
        change: impl Fn(&mut VssdConfig),
    ) -> Self {
        let (medium, mut configs) = image(geometry, page_bytes, rows);
        configs.iter_mut().for_each(change);
        let pool = Pool::new(4096, page_bytes / SECTORS);
        let group = ChannelGroup::new(&configs[0]);
        let mut rig = Self {
            members: Vec::new(),
            group,
            pool,
            now: Instant::ZERO,
            rng: Rng::new(seed),
            durable: medium.clone(),
            present: medium,
            log: Vec::new(),
            loan: 3,
            aim: 0.3,
            geometry,
            next: 0,
        };
        for config in configs {
            rig.add(config);
        }
        rig
    }

    /// Creates a member; what it owns and others have is lent from the start.
    pub fn add(&mut self, config: VssdConfig) {
        let others = self.members.iter().map(|member| &member.vssd);
        let vssd = Vssd::create_in(config.clone(), self.pool.clone(), &self.group, others);
        let pages = config.logical_pages as usize;
        self.members.push(Member {
            vssd,
            config,
            known: vec![Known::certain(Version::NONE, Content::Nothing); pages],
            asked: base::Map::new(),
            in_flight: Vec::new(),
            borrows: 0,
            gc_done: 0,
        });
    }

    /// Deletes a member at rest, durably, and gives what it borrowed back.
    pub fn delete(&mut self, who: usize) {
        let member = self.members.remove(who);
        assert!(member.in_flight.is_empty());
        let loans = member.vssd.surrender();
        drop(member);
        self.hand_out(&loans);
        self.drain();
        self.check_blocks();
    }

    fn hand_out(&mut self, loans: &[Loan]) {
        for member in &mut self.members {
            let own = member.vssd.own_of(loans);
            if !own.is_empty() {
                member.vssd.accept(self.now, own);
            }
        }
    }

    fn tag(&mut self, who: usize, asked: Asked) -> u64 {
        self.next += 1;
        self.members[who].asked.insert(self.next, asked);
        self.next
    }

    fn change(&mut self, who: usize, lpn: u32, content: Content) -> (u64, Version) {
        let newest = self.members[who].known[lpn as usize]
            .history
            .last()
            .expect("never empty")
            .0;
        assert_eq!(self.members[who].vssd.version(Lpn(lpn)), newest);
        let version = newest.next(NodeId(3), 1);
        let known = &mut self.members[who].known[lpn as usize];
        known.history.push((version, content));
        let index = known.history.len() - 1;
        (self.tag(who, Asked::Change { lpn, index }), version)
    }

    pub fn write(&mut self, who: usize, lpn: u32) {
        self.next += 1;
        let nonce = self.next;
        let page = self.pool.alloc().expect("the pool is large");
        fill(&page, lpn, nonce);
        let (tag, version) = self.change(who, lpn, Content::Nonce(nonce));
        let (crc, lpn) = (page.crc(), Lpn(lpn));
        let request = Request::Write {
            tag,
            lpn,
            version,
            crc,
            page,
        };
        self.submit(who, request);
    }

    fn submit(&mut self, who: usize, request: Request) {
        self.members[who].vssd.submit(self.now, request);
        self.drain();
    }

    fn random_request(&mut self, who: usize, zeros: f64) {
        let pages = self.members[who].known.len() as u64;
        // Half of the changes go to an eighth of the pages.
        let bound = if self.rng.chance(0.5) {
            pages.div_ceil(8)
        } else {
            pages
        };
        let lpn = self.rng.below(bound) as u32;
        match self.rng.unit() {
            x if x < zeros => {
                let (tag, version) = self.change(who, lpn, Content::Nothing);
                let lpn = Lpn(lpn);
                self.submit(who, Request::Zero { tag, lpn, version });
            }
            x if x < 0.75 => self.write(who, lpn),
            x if x < 0.9 => {
                let at_least = self.members[who].known[lpn as usize].history.len() - 1;
                let tag = self.tag(who, Asked::Read { lpn, at_least });
                self.submit(who, Request::Read { tag, lpn: Lpn(lpn) });
            }
            x if x < 0.97 => self.flush(who),
            x if x < 0.99 => self.collect(),
            _ => self.checkpoint(who),
        }
    }

    pub fn flush(&mut self, who: usize) {
        let done = self.members[who].known.iter().map(|known| known.done).collect();
        let tag = self.tag(who, Asked::Flush { done });
        self.submit(who, Request::Flush { tag });
    }

    pub fn checkpoint(&mut self, who: usize) {
        let tag = self.tag(who, Asked::Checkpoint);
        self.members[who].vssd.checkpoint(self.now, tag);
        self.drain();
    }

    /// All members collect.
    pub fn collect(&mut self) {
        for member in &mut self.members {
            member.vssd.start_gc(self.now, self.aim);
        }
        self.drain();
    }

    fn drain(&mut self) {
        while (0..self.members.len()).any(|who| self.drain_one(who)) {}
    }

    fn drain_one(&mut self, who: usize) -> bool {
        let Some(event) = self.members[who].vssd.poll() else {
            return false;
        };
        match event {
            Event::Media(op) => self.issued(who, op),
            Event::Done { tag, result } => self.answered(who, tag, result),
            Event::Checked { .. } => unreachable!("nobody asked"),
            Event::GcDone => self.members[who].gc_done += 1,
            Event::GcForced => {
                let aim = self.aim;
                for member in &mut self.members {
                    member.vssd.start_gc(self.now, aim);
                }
            }
            Event::Borrow => {
                self.members[who].borrows += 1;
                let others = (0..self.members.len()).filter(|other| *other != who);
                let lender = others.max_by_key(|other| self.members[*other].vssd.lendable_blocks());
                let loan = self.loan;
                let loans = lender.map_or(Vec::new(), |lender| self.members[lender].vssd.lend(loan));
                self.members[who].vssd.accept(self.now, loans);
            }
            Event::Return => {
                let loans = self.members[who].vssd.take_returns();
                self.hand_out(&loans);
            }
        }
        true
    }

    fn issued(&mut self, who: usize, op: MediaOp) {
        let mut cover = Vec::new();
        if op.kind == MediaKind::Write {
            assert!(
                !self.log.iter().any(|w| w.offset == op.offset && !w.done),
                "two writes of one place are not in flight"
            );
            self.next += 1;
            self.log.push(Write {
                id: self.next,
                offset: op.offset,
                bytes: op.pages[0].with(<[u8]>::to_vec),
                done: false,
            });
        }
        if op.kind == MediaKind::Flush {
            cover.extend(self.log.iter().filter(|w| w.done).map(|w| w.id));
        }
        self.members[who].in_flight.push((op, cover));
    }

    fn answered(&mut self, who: usize, tag: u64, result: Result<Data, VssdError>) {
        let member = &mut self.members[who];
        let asked = member.asked.remove(&tag).expect("asked once");
        asked.answered(result, &mut member.known, &self.pool);
    }

    /// Lets the medium do one of the operations it has, or time pass; false when there is nothing to do.
    pub fn step(&mut self) -> bool {
        let total: usize = self.members.iter().map(|member| member.in_flight.len()).sum();
        if total == 0 {
            let deadlines = self.members.iter().filter_map(|member| member.vssd.deadline());
            let Some(deadline) = deadlines.min() else {
                return false;
            };
            self.now = self.now.max(deadline);
            for who in 0..self.members.len() {
                let due = |deadline| deadline <= self.now;
                if self.members[who].vssd.deadline().is_some_and(due) {
                    self.members[who].vssd.tick(self.now);
                }
            }
            self.drain();
            return true;
        }
        let mut index = self.rng.below(total as u64) as usize;
        let mut who = 0;
        while index >= self.members[who].in_flight.len() {
            index -= self.members[who].in_flight.len();
            who += 1;
        }
        let (op, cover) = self.members[who].in_flight.swap_remove(index);
        let done = self.carry_out(op, &cover);
        self.now += Duration::from_micros(self.rng.below(20));
        self.members[who].vssd.media_done(self.now, done);
        self.drain();
        true
    }

    fn carry_out(&mut self, op: MediaOp, cover: &[u64]) -> MediaDone {
        match op.kind {
            MediaKind::Write => {
                let write = self.log.iter_mut().find(|w| w.offset == op.offset && !w.done);
                write.expect("it was issued").done = true;
            }
            MediaKind::Flush => {
                for write in core::mem::take(&mut self.log) {
                    if cover.contains(&write.id) {
                        self.durable
                            .write_at(write.offset, &write.bytes)
                            .expect("in range");
                    } else {
                        self.log.push(write);
                    }
                }
            }
            _ => {}
        }
        execute(&mut self.present, op)
    }

    pub fn settle(&mut self) {
        let mut steps = 0;
        while self.step() {
            steps += 1;
            assert!(steps < 10_000_000, "it comes to rest");
        }
        for member in &self.members {
            assert!(
                member.asked.is_empty(),
                "every request is answered: {:?}",
                member.vssd.stats()
            );
        }
        self.check_blocks();
    }

    /// Every block has one owner, and what is borrowed is lent.
    pub fn check_blocks(&self) {
        let stats: Vec<_> = self.members.iter().map(|member| member.vssd.stats()).collect();
        let rows: u32 = self.members.iter().map(|member| rows_of(&member.config)).sum();
        if rows == self.geometry.units_per_channel() {
            let blocks = self.geometry.channels * self.geometry.blocks_per_channel();
            assert_eq!(stats.iter().map(|s| s.blocks).sum::<u32>(), blocks, "{stats:?}");
            let lent: u32 = stats.iter().map(|s| s.lent_blocks).sum();
            assert_eq!(stats.iter().map(|s| s.borrowed_blocks).sum::<u32>(), lent);
        }
        for s in stats {
            assert!(s.blocks >= s.free_blocks && s.blocks >= s.borrowed_blocks);
        }
    }

    /// See [`torn`].
    pub fn crash_image(&mut self) -> Vec<u8> {
        let mut rng = self.rng.fork();
        let writes = self.log.iter().map(|write| (write.offset, &write.bytes[..]));
        torn(&self.durable, writes, &mut rng)
    }

    /// Power goes, comes back, and the image is what the medium kept.
    pub fn crash(&mut self) {
        let image = self.crash_image();
        self.restart(image);
    }

    /// Recovers from an image and checks every page against what was promised.
    pub fn restart(&mut self, image: Vec<u8>) {
        self.durable.clone_from(&image);
        self.present = image;
        self.log.clear();
        let configs: Vec<_> = self.members.iter().map(|member| member.config.clone()).collect();
        let recovered = Vssd::recover_group(configs, &self.pool, &self.present);
        let (group, vssds) = recovered.expect("a crash is recoverable");
        self.group = group;
        for (member, (vssd, report)) in self.members.iter_mut().zip(vssds) {
            assert!(report.damaged.is_empty(), "a crash damages nothing: {report:?}");
            member.vssd = vssd;
            member.asked.clear();
            member.in_flight.clear();
        }
        self.check_blocks();
        self.drain();
        for who in 0..self.members.len() {
            for lpn in 0..self.members[who].known.len() as u32 {
                self.check_recovered(who, lpn);
            }
        }
    }

    /// Recovers from an image, checks every page as after a restart, and goes on as if that had not been.
    pub fn probe(&mut self, image: &Vec<u8>) {
        let configs: Vec<_> = self.members.iter().map(|member| member.config.clone()).collect();
        let recovered = Vssd::recover_group(configs, &self.pool, image);
        let (_, vssds) = recovered.expect("a crash is recoverable");
        for (member, (vssd, report)) in self.members.iter().zip(vssds) {
            assert!(report.damaged.is_empty(), "a crash damages nothing: {report:?}");
            for (lpn, known) in (0u32..).zip(&member.known) {
                let version = vssd.version(Lpn(lpn));
                let allowed = &known.history[known.flushed..];
                assert!(
                    allowed.iter().any(|(known, _)| *known == version),
                    "page {lpn}: {version:?} is none of {allowed:?}"
                );
            }
        }
    }

    fn read_now(&mut self, who: usize, lpn: u32) -> Result<(Version, Content), VssdError> {
        let (tag, of) = (u64::MAX, Lpn(lpn));
        self.members[who]
            .vssd
            .submit(self.now, Request::Read { tag, lpn: of });
        let found = loop {
            match self.members[who].vssd.poll() {
                Some(Event::Done {
                    tag: u64::MAX,
                    result,
                }) => break result,
                Some(Event::Media(op)) if op.kind == MediaKind::Read => {
                    let done = execute(&mut self.present, op);
                    self.members[who].vssd.media_done(self.now, done);
                }
                Some(other) => panic!("only reads now: {other:?}"),
                None => {
                    let deadline = self.members[who].vssd.deadline();
                    self.now = self.now.max(deadline.expect("the read is under way"));
                    self.members[who].vssd.tick(self.now);
                }
            }
        };
        Ok(match found? {
            Data::Page { page, version, .. } => (version, content(&page, lpn, &self.pool)),
            Data::Zero { version } => (version, Content::Nothing),
            Data::None => panic!("a read returns data"),
        })
    }

    fn check_recovered(&mut self, who: usize, lpn: u32) {
        let version = self.members[who].vssd.version(Lpn(lpn));
        let found = self.read_now(who, lpn).expect("a crash damages nothing");
        assert_eq!(found.0, version);
        let known = &mut self.members[who].known[lpn as usize];
        let allowed = &known.history[known.flushed..];
        assert!(
            allowed.contains(&found),
            "page {lpn} of {who}: {found:?} is none of {allowed:?}"
        );
        *known = Known::certain(found.0, found.1);
    }

    /// Recovers from an image that was tampered with: every page is the newest, or damaged. Returns the number of
    /// damaged ones, `None` when recovery refuses.
    pub fn probe_tampered(&mut self, image: Vec<u8>) -> Option<u32> {
        let configs: Vec<_> = self.members.iter().map(|member| member.config.clone()).collect();
        let (_group, vssds) = Vssd::recover_group(configs, &self.pool, &image).ok()?;
        let present = core::mem::replace(&mut self.present, image);
        let mut damaged = 0;
        let kept: Vec<Vssd> = vssds
            .into_iter()
            .zip(&mut self.members)
            .map(|((vssd, _), member)| core::mem::replace(&mut member.vssd, vssd))
            .collect();
        for who in 0..self.members.len() {
            // What recovery begins by itself is left undone.
            let begun: Vec<Event> = core::iter::from_fn(|| self.members[who].vssd.poll()).collect();
            for lpn in 0..self.members[who].known.len() as u32 {
                let known = &self.members[who].known[lpn as usize];
                let newest = *known.history.last().expect("never empty");
                match self.read_now(who, lpn) {
                    Ok(found) => assert_eq!(found, newest, "page {lpn} of {who} is stale or wrong"),
                    Err(error) => {
                        assert_eq!(error, VssdError::Damaged);
                        damaged += 1;
                    }
                }
            }
            drop(begun);
        }
        for (member, vssd) in self.members.iter_mut().zip(kept) {
            member.vssd = vssd;
        }
        self.present = present;
        Some(damaged)
    }

    /// Requests and progress, at random; `busy` is the share of requests that go to the first member.
    pub fn random_run(&mut self, requests: u32, zeros: f64, busy: f64) {
        for _ in 0..requests {
            let others = self.members.len() as u64 - 1;
            let who = if others == 0 || self.rng.chance(busy) {
                0
            } else {
                1 + self.rng.below(others) as usize
            };
            self.random_request(who, zeros);
            let waiting = |rig: &Self| rig.members.iter().map(|m| m.asked.len()).sum::<usize>();
            while waiting(self) > 16 || self.rng.chance(0.6) {
                if !self.step() {
                    break;
                }
            }
            assert!(
                waiting(self) < 64,
                "requests are answered: {:?}",
                self.members.iter().map(|m| m.vssd.stats()).collect::<Vec<_>>()
            );
        }
    }
}

fn rows_of(config: &VssdConfig) -> u32 {
    match config.isolation {
        Isolation::Software { count, .. } => count,
        Isolation::Hardware => panic!("members of a group are software-isolated"),
    }
}
