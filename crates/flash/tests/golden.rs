//! Media of each format version, as a program of that version left them: they open, and hold what was written.
//!
//! An image is its length, and a line for each 32 bytes that are not zero: where they lie, and the bytes.
//! [`write_medium`] wrote each image when its version was the newest.

use base::device::execute;
use base::{Instant, Lpn, Pool, Version, VssdId};
use flash::{
    ChannelGroup, Data, Event, Geometry, Isolation, Request, Ssd, Vssd, VssdConfig, VssdEntry, verify,
};
use std::fmt::Write;

const PAGE_BYTES: usize = 128;
const LINE_BYTES: usize = 32;
const GEOMETRY: Geometry = Geometry {
    channels: 2,
    chips_per_channel: 2,
    planes_per_chip: 1,
    blocks_per_plane: 12,
    pages_per_block: 4,
};
const UUID: [u8; 16] = [7; 16];
const BOOT: u32 = 1_000;
/// Logical pages of each vSSD.
const PAGES: u32 = 12;

/// One vSSD, and the media operations that it asks for.
struct Bench<'a> {
    vssd: &'a mut Vssd,
    pool: &'a Pool,
    medium: &'a mut Vec<u8>,
}

impl Bench<'_> {
    /// Carries a request out to its end.
    fn ask(&mut self, request: Option<Request>) -> Option<Data> {
        let now = Instant::ZERO;
        match request {
            Some(request) => self.vssd.submit(now, request),
            None => self.vssd.checkpoint(now, 0),
        }
        let mut answer = None;
        while let Some(event) = self.vssd.poll() {
            match event {
                Event::Media(op) => self.vssd.media_done(now, execute(self.medium, op)),
                Event::Done { result, .. } => answer = Some(result.expect("nothing fails")),
                _ => {}
            }
        }
        answer
    }

    fn write(&mut self, lpn: u32, counter: u64, fill: u8) {
        let page = self.pool.alloc().expect("the pool is large");
        page.with_mut(|bytes| {
            bytes.fill(0);
            bytes[0] = fill;
        });
        let (lpn, version, crc) = (Lpn(lpn), Version(counter), page.crc());
        self.ask(Some(Request::Write {
            tag: 0,
            lpn,
            version,
            crc,
            page,
        }));
    }

    /// The first byte and the counter of a page.
    fn read(&mut self, lpn: u32) -> (u8, u64) {
        let read = Request::Read {
            tag: 0,
            lpn: Lpn(lpn),
        };
        match self.ask(Some(read)) {
            Some(Data::Page { page, crc, version }) => {
                assert_eq!(page.crc(), crc);
                (page.with(|bytes| bytes[0]), version.0)
            }
            Some(Data::Zero { version }) => (0, version.0),
            other => panic!("a read returns data, not {other:?}"),
        }
    }

    /// Some pages below a checkpoint, some above it, one of them trimmed, all flushed.
    fn fill(&mut self, who: u8) {
        for lpn in 0..6 {
            self.write(lpn, 1, who);
        }
        self.ask(Some(Request::Flush { tag: 0 }));
        self.ask(None);
        for lpn in [1, 7] {
            self.write(lpn, 2, who + 1);
        }
        self.ask(Some(Request::Zero {
            tag: 0,
            lpn: Lpn(2),
            version: Version(2),
        }));
        self.ask(Some(Request::Flush { tag: 0 }));
    }

    fn check(&mut self, who: u8) {
        for lpn in 0..PAGES {
            let expected = match lpn {
                2 => (0, 2),
                1 | 7 => (who + 1, 2),
                0..=5 => (who, 1),
                _ => (0, 0),
            };
            assert_eq!(
                self.read(lpn),
                expected,
                "page {lpn} of the vSSD filled with {who}"
            );
        }
    }
}

fn config(entry: &VssdEntry) -> VssdConfig {
    VssdConfig::new(entry, &GEOMETRY, PAGE_BYTES)
}

/// A medium with a hardware-isolated vSSD, and two software-isolated ones if `shared`.
fn write_medium(shared: bool) -> Vec<u8> {
    let mut medium = vec![0; Ssd::bytes_needed(&GEOMETRY, PAGE_BYTES) as usize];
    Ssd::format(&mut medium, GEOMETRY, PAGE_BYTES, UUID).expect("formats");
    let mut ssd = Ssd::open(&mut medium, PAGE_BYTES, BOOT).expect("opens");
    ssd.create(VssdId(1), 1, PAGES, b"one".to_vec()).expect("fits");
    for id in 2..4 * u32::from(shared) {
        let config = vec![id as u8; 20];
        ssd.create_shared(VssdId(id), 1, 1, PAGES, config).expect("fits");
    }
    ssd.store(&mut medium).expect("in range");
    let pool = &Pool::new(256, PAGE_BYTES / 8);
    let mut members: Vec<Vssd> = Vec::new();
    let mut group = None;
    for entry in &ssd.vssds()[1..] {
        let group = group.get_or_insert_with(|| ChannelGroup::new(&config(entry)));
        members.push(Vssd::create_in(
            config(entry),
            pool.clone(),
            group,
            members.iter(),
        ));
    }
    members.insert(0, Vssd::create(config(&ssd.vssds()[0]), pool.clone()));
    for (vssd, who) in members.iter_mut().zip([10, 20, 30]) {
        let medium = &mut medium;
        Bench { vssd, pool, medium }.fill(who);
    }
    medium
}

fn check_medium(medium: &mut Vec<u8>, shared: bool) {
    let report = verify(medium, PAGE_BYTES, &mut |_| {}).expect("it has a superblock");
    assert_eq!(report.problems, []);
    let ssd = Ssd::open(medium, PAGE_BYTES, BOOT + 1).expect("opens");
    assert_eq!(
        (ssd.uuid(), ssd.boot_before(), ssd.boot()),
        (UUID, BOOT, BOOT + 1)
    );
    assert_eq!(*ssd.geometry(), GEOMETRY);
    let entry = |id: u32, config: &[u8]| VssdEntry {
        id: VssdId(id),
        instance: id,
        channels: if id == 1 { 1 } else { 2 },
        isolation: match id {
            1 => Isolation::Hardware,
            _ => Isolation::Software {
                first: id - 2,
                count: 1,
            },
        },
        logical_pages: PAGES,
        config: config.to_vec(),
    };
    let entries = [entry(1, b"one"), entry(2, &[2; 20]), entry(3, &[3; 20])];
    let count = if shared { 3 } else { 1 };
    assert_eq!(ssd.vssds(), &entries[..count]);
    let pool = &Pool::new(256, PAGE_BYTES / 8);
    let first = Vssd::recover(config(&entries[0]), pool.clone(), medium);
    let mut vssds = vec![first.expect("nothing is lost").0];
    if shared {
        let configs = entries[1..].iter().map(config).collect();
        let (_, members) = Vssd::recover_group(configs, pool, medium).expect("nothing is lost");
        vssds.extend(members.into_iter().map(|(vssd, _)| vssd));
    }
    for (vssd, who) in vssds.iter_mut().zip([10, 20, 30]) {
        Bench { vssd, pool, medium }.check(who);
    }
}

fn emit(medium: &[u8]) -> String {
    let mut text = format!("{}\n", medium.len());
    for (at, line) in medium.chunks(LINE_BYTES).enumerate() {
        if line.iter().any(|&byte| byte != 0) {
            let bytes: String = line.iter().map(|byte| format!("{byte:02x}")).collect();
            writeln!(text, "{} {bytes}", at * LINE_BYTES).expect("memory takes it");
        }
    }
    text
}

fn parse(text: &str) -> Vec<u8> {
    let mut lines = text.lines();
    let length = lines.next().and_then(|line| line.parse().ok());
    let mut medium = vec![0; length.expect("the first line is the length")];
    for line in lines {
        let (at, hex) = line.split_once(' ').expect("a place and bytes");
        let at: usize = at.parse().expect("a place");
        for (byte, digits) in medium[at..].iter_mut().zip(hex.as_bytes().chunks(2)) {
            let digits = str::from_utf8(digits).expect("ASCII");
            *byte = u8::from_str_radix(digits, 16).expect("hexadecimal digits");
        }
    }
    medium
}

const IMAGES: [(&str, bool); 3] = [
    (include_str!("golden/flash-1.txt"), false),
    (include_str!("golden/flash-2.txt"), true),
    (include_str!("golden/flash-3.txt"), true),
];

#[test]
fn media_of_every_version_open_and_hold_what_was_written() {
    for (image, shared) in IMAGES {
        check_medium(&mut parse(image), shared);
    }
}

/// The vSSDs decide where the rest lies.
#[test]
fn superblocks_are_written_in_the_newest_version() {
    const SLOT_BYTES: usize = 20_480;
    let slots = |medium: &[u8]| emit(&medium[..2 * SLOT_BYTES]);
    assert_eq!(slots(&write_medium(true)), slots(&parse(IMAGES[2].0)));
}

/// The first start writes the newest version. After any cut the next start finds the older or the newer superblock.
#[test]
fn an_upgrade_that_is_cut_at_any_page_loses_nothing() {
    for (image, shared) in &IMAGES[..2] {
        let before = parse(image);
        let mut upgraded = before.clone();
        let mut ssd = Ssd::open(&mut upgraded, PAGE_BYTES, BOOT).expect("opens");
        let expected = ssd.vssds().to_vec();
        let slots = [ssd.superblock_pages(), ssd.superblock_pages()].concat();
        for cut in 0..=slots.len() {
            let mut image = before.clone();
            for (offset, page) in &slots[..cut] {
                image[*offset as usize..][..page.len()].copy_from_slice(page);
            }
            if let Some((offset, page)) = slots.get(cut) {
                let half = page.len() / 2;
                image[*offset as usize..][..half].copy_from_slice(&page[..half]);
            }
            let again = Ssd::open(&mut image, PAGE_BYTES, BOOT).expect("one slot is valid");
            assert_eq!(again.vssds(), expected, "shared: {shared}, cut after {cut} pages");
        }
    }
}
