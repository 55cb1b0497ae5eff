//! An operation of a program, and how its time divides into layers.

use crate::event::Action;

/// An operation in progress; numbers are not used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct OpId(pub(super) u64);

/// How an operation was asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Interface {
    /// A system call that returns when it is done.
    Call,
    /// io_uring.
    Uring,
    /// libaio.
    Aio,
    /// A page fault, or a system call that is not traced: what it needed of the device.
    Other,
    /// A stacked device's worker, for what is asked of that device: a loop device's file.
    Below,
    /// Nobody's in particular: write-back, journals, other programs.
    Background,
}

impl Interface {
    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Call => "call",
            Self::Uring => "io_uring",
            Self::Aio => "libaio",
            Self::Other => "other",
            Self::Below => "below",
            Self::Background => "background",
        }
    }

    /// True of what the program asked for, and not others or the kernel by itself.
    pub fn is_programs(self) -> bool {
        !matches!(self, Self::Below | Self::Background)
    }
}

/// The layers, from the program down and up again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Layer {
    /// System call and virtual file system: until the file system's direct I/O begins. Without that event it is part of
    /// [`Layer::FileSystem`].
    Call,
    /// File system and page cache: until the first bio, and between bios.
    FileSystem,
    /// Bio, request and plug: until the scheduler or the driver has the request.
    Block,
    /// The scheduler holds it.
    Scheduler,
    /// Driver and device.
    Device,
    /// From the device's answer to the program.
    Completion,
}

/// All layers, in order.
pub const LAYERS: [Layer; 6] = [
    Layer::Call,
    Layer::FileSystem,
    Layer::Block,
    Layer::Scheduler,
    Layer::Device,
    Layer::Completion,
];

impl Layer {
    /// The name that users write.
    pub fn name(self) -> &'static str {
        match self {
            Self::Call => "system call",
            Self::FileSystem => "file system",
            Self::Block => "block layer",
            Self::Scheduler => "scheduler",
            Self::Device => "device",
            Self::Completion => "completion",
        }
    }
}

/// An operation that has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// How it was asked for.
    pub interface: Interface,
    /// Its action. [`Action::Flush`] stands for fsync and its like.
    pub action: Action,
    /// Its thread.
    pub thread: u32,
    /// Bytes that were moved.
    pub bytes: u64,
    /// When it began, ns.
    pub begin_ns: u64,
    /// Since its thread's operation before returned, ns: the application's own time. 0 for what no call ends.
    pub application_ns: u64,
    /// How long it took, ns.
    pub total_ns: u64,
    /// Time in each of [`LAYERS`], ns; their sum is the total.
    pub layers_ns: [u64; LAYERS.len()],
    /// Probes whose cost is in each layer.
    pub probes: [u32; LAYERS.len()],
    /// Bios that it needed.
    pub bios: u32,
    /// It needed the device: for bios of its own, or for what was read ahead before it.
    pub reached_device: bool,
    /// Bios of these that joined a waiting request.
    pub merged: u32,
    /// How often a bio was split.
    pub splits: u32,
    /// It went on in an io_uring worker.
    pub punted: bool,
}

/// When the parts of a bio were passed; 0 if they were not.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Passed {
    pub(super) queued_ns: u64,
    pub(super) got_request_ns: u64,
    pub(super) inserted_ns: u64,
    pub(super) issued_ns: u64,
    pub(super) done_ns: u64,
    /// From the merge on its events are those of the request, which another bio has too.
    pub(super) merged: bool,
}

/// Divides the time between `begin` and `end` among the layers, each moment to one. With bios in several states the
/// deepest counts: what is done while the device works costs no time. Counts a probe to the layer that follows it.
pub(super) fn divide(
    begin_ns: u64,
    direct_ns: Option<u64>,
    end_ns: u64,
    bios: &[Passed],
) -> ([u64; LAYERS.len()], [u32; LAYERS.len()]) {
    const BLOCK: usize = 0;
    const SCHEDULER: usize = 1;
    const DEVICE: usize = 2;
    let last_done_ns = bios.iter().map(|bio| bio.done_ns).max().unwrap_or(0);
    let mut edges: Vec<(u64, [i32; 3], u32)> = Vec::with_capacity(bios.len() * 5 + 1);
    for bio in bios {
        let mut state = None;
        let steps = [
            (bio.queued_ns, Some(BLOCK)),
            (bio.got_request_ns, Some(BLOCK)),
            (bio.inserted_ns, Some(SCHEDULER)),
            (bio.issued_ns, Some(DEVICE)),
            (bio.done_ns, None),
        ];
        for (at_ns, next) in steps {
            if at_ns != 0 {
                let mut change = [0; 3];
                if let Some(old) = state {
                    change[old] -= 1;
                }
                if let Some(new) = next {
                    change[new] += 1;
                }
                state = next;
                let is_its_own = !bio.merged || at_ns == bio.queued_ns || at_ns == bio.got_request_ns;
                edges.push((at_ns, change, u32::from(is_its_own)));
            }
        }
    }
    edges.extend(direct_ns.map(|at_ns| (at_ns, [0; 3], 1)));
    // Of one moment the event comes last: what follows it is where its cost lies.
    edges.sort_unstable_by_key(|(at_ns, _, events)| (*at_ns, *events));
    let (mut layers, mut probes) = ([0; LAYERS.len()], [0; LAYERS.len()]);
    let mut counts = [0; 3];
    let mut at_ns = begin_ns;
    let has_call = direct_ns.is_some();
    let layer_at = |at_ns: u64, counts: [i32; 3]| match counts {
        [_, _, device] if device > 0 => Layer::Device,
        [_, scheduler, _] if scheduler > 0 => Layer::Scheduler,
        [block, ..] if block > 0 => Layer::Block,
        _ if last_done_ns != 0 && at_ns >= last_done_ns => Layer::Completion,
        _ if has_call && direct_ns.is_some_and(|direct_ns| at_ns < direct_ns) => Layer::Call,
        _ => Layer::FileSystem,
    };
    // What begins the operation is a probe as well.
    probes[layer_at(begin_ns, counts) as usize] += 1;
    for (edge_ns, change, events) in edges {
        let edge_ns = edge_ns.clamp(begin_ns, end_ns);
        layers[layer_at(at_ns, counts) as usize] += edge_ns - at_ns;
        at_ns = edge_ns;
        for (count, change) in counts.iter_mut().zip(change) {
            *count += change;
        }
        probes[layer_at(at_ns, counts) as usize] += events;
    }
    layers[layer_at(at_ns, counts) as usize] += end_ns - at_ns;
    (layers, probes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bio(times: [u64; 5]) -> Passed {
        let [queued_ns, got_request_ns, inserted_ns, issued_ns, done_ns] = times;
        Passed {
            queued_ns,
            got_request_ns,
            inserted_ns,
            issued_ns,
            done_ns,
            merged: false,
        }
    }

    #[test]
    fn one_bio_divides_as_the_events_lie() {
        let (layers, probes) = divide(100, Some(110), 200, &[bio([130, 135, 140, 150, 190])]);
        assert_eq!(layers, [10, 20, 10, 10, 40, 10]);
        assert_eq!(probes, [1, 1, 2, 1, 1, 1]);
    }

    #[test]
    fn without_a_scheduler_and_without_direct_io() {
        let (layers, _) = divide(100, None, 200, &[bio([130, 135, 0, 150, 190])]);
        assert_eq!(layers, [0, 30, 20, 0, 40, 10]);
        let (layers, _) = divide(100, None, 200, &[]);
        assert_eq!(layers, [0, 100, 0, 0, 0, 0]);
    }

    #[test]
    fn what_is_done_beside_the_device_costs_no_time() {
        let first = bio([110, 111, 0, 120, 180]);
        let second = bio([130, 131, 0, 150, 190]);
        let (layers, _) = divide(100, None, 200, &[first, second]);
        assert_eq!(layers, [0, 10, 10, 0, 70, 10]);
        let later = bio([185, 0, 0, 188, 195]);
        let (layers, _) = divide(100, None, 200, &[first, later]);
        assert_eq!(
            layers,
            [0, 15, 13, 0, 67, 5],
            "between bios the file system works"
        );
    }

    #[test]
    fn a_requests_events_are_counted_once_however_many_bios_it_has() {
        let first = bio([110, 111, 120, 130, 180]);
        let joined = Passed {
            merged: true,
            ..bio([112, 113, 120, 130, 180])
        };
        let (alone, probes) = divide(100, None, 200, &[first]);
        assert_eq!((alone, probes), ([0, 10, 10, 10, 50, 20], [0, 1, 2, 1, 1, 1]));
        let (both, probes) = divide(100, None, 200, &[first, joined]);
        assert_eq!((both, probes), (alone, [0, 1, 4, 1, 1, 1]));
    }

    #[test]
    fn a_bio_that_outlives_its_operation_is_cut() {
        let (layers, _) = divide(100, None, 150, &[bio([110, 0, 0, 120, 400])]);
        assert_eq!(layers, [0, 10, 10, 0, 30, 0]);
    }

    proptest! {
        #[test]
        fn the_layers_always_sum_to_the_whole(
            begin in 0u64..1000,
            length in 0u64..1000,
            direct in prop::option::of(0u64..2000),
            bios in prop::collection::vec(prop::array::uniform5(0u64..2500), 0..6),
        ) {
            let bios: Vec<_> = bios.into_iter().map(|mut times| { times.sort_unstable(); bio(times) }).collect();
            let (layers, _) = divide(begin, direct, begin + length, &bios);
            prop_assert_eq!(layers.iter().sum::<u64>(), length);
        }
    }
}
