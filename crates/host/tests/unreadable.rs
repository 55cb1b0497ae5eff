//! A vSSD whose metadata are damaged, beside others of its node.

use crate::support::{VSSD, World};
use base::VssdId;
use base::limits::PAGE_BYTES;
use rack::control::{Intent, Open, Terms};
use rack::membership::Membership;
use uuid::Uuid;
use wire::rack::{Code, Op};

const OTHER: VssdId = VssdId(2);
/// Behind two slots of the superblock.
const CHECKPOINTS_AT: usize = 2 * 20_480;
/// Behind two checkpoints of seven pages for each of two channels.
const OOB_AT: usize = CHECKPOINTS_AT + 2 * 2 * 7 * PAGE_BYTES;

fn ask(world: &mut World, op: Op, vssd: VssdId) -> Code {
    let open = Open {
        intent: Intent::Create,
        rack: Uuid::nil(),
        pages: 500,
        channels: 1,
        rows: 0,
        membership: Membership::default(),
        terms: Terms::default(),
        part: None,
    };
    let record = if op == Op::Open { open.emit() } else { Vec::new() };
    world.ask(op, vssd, record)
}

/// bug: a damaged page of one vSSD's metadata kept its node, and all others on it, from starting. fix: that one is left out.
#[test]
fn a_vssd_that_cannot_be_read_stops_no_other() {
    let mut world = World::fresh();
    assert_eq!(ask(&mut world, Op::Open, OTHER), Code::Busy, "it is made");
    (2..40).for_each(|request| world.write(request, request));
    world.drain();
    let mut medium = world.medium;
    // The first vSSD has the first channel, and so the first out-of-band entry. Without checkpoints that is needed.
    let entry = OOB_AT..OOB_AT + 64;
    assert!(medium[entry.clone()].iter().any(|&byte| byte != 0));
    medium[entry].fill(0xee);
    medium[CHECKPOINTS_AT..OOB_AT].fill(0xee);
    let mut world = World::start(medium);
    assert_eq!(world.node.unreadable(), [VSSD]);
    assert_eq!(world.node.status(base::Instant::ZERO).unreadable, 1);
    assert_eq!(ask(&mut world, Op::Read, VSSD), Code::Damaged);
    assert_eq!(
        ask(&mut world, Op::Open, VSSD),
        Code::Damaged,
        "it is not made anew"
    );
    assert_eq!(ask(&mut world, Op::Open, OTHER), Code::SoftOrOk);
    assert_eq!(ask(&mut world, Op::Delete, VSSD), Code::SoftOrOk);
    world.drain();
    let mut world = World::start(world.medium);
    assert!(world.node.unreadable().is_empty());
    assert_eq!(world.node.units().count(), 1);
    assert_eq!(ask(&mut world, Op::Open, VSSD), Code::Busy, "its channel is free");
}
