//! Nodes and another rack than theirs: one whose registry was lost and begun anew, or a stranger's.

use crate::support::World;
use base::VssdId;
use rack::control::{Intent, Open, Terms, emit_rack};
use rack::membership::Membership;
use uuid::Uuid;
use wire::rack::{Code, Op};

const OURS: Uuid = Uuid::from_u128(7);
const THEIRS: Uuid = Uuid::from_u128(8);
const VSSD: VssdId = VssdId(3);

fn ask(world: &mut World, op: Op, rack: Uuid) -> Code {
    let open = Open {
        intent: Intent::Create,
        rack,
        pages: 500,
        channels: 1,
        rows: 0,
        membership: Membership::default(),
        terms: Terms::default(),
        part: None,
    };
    let record = match op {
        Op::Open => open.emit(),
        _ => emit_rack(rack),
    };
    world.ask(op, VSSD, record)
}

/// bug: a rack whose registry was lost made volumes of the vSSDs of the one before, and showed the data there to new users. fix: a vSSD
/// belongs to a rack.
#[test]
fn a_vssd_of_another_rack_is_neither_opened_nor_deleted() {
    let mut world = World::start(World::blank());
    assert_eq!(ask(&mut world, Op::Open, OURS), Code::Busy, "it is made");
    assert_eq!(ask(&mut world, Op::Open, OURS), Code::SoftOrOk);
    for _ in 0..2 {
        assert_eq!(ask(&mut world, Op::Open, THEIRS), Code::Foreign);
        assert_eq!(ask(&mut world, Op::Delete, THEIRS), Code::Foreign);
        let record = emit_rack(THEIRS);
        let code = world.ask(Op::Delete, VssdId(4), record);
        assert_eq!(code, Code::Foreign, "it may be on the medium that belongs here");
        assert_eq!(world.node.units().count(), 1);
        world.drain();
        world = World::start(world.medium);
    }
    assert_eq!(ask(&mut world, Op::Open, OURS), Code::SoftOrOk);
    assert_eq!(ask(&mut world, Op::Delete, OURS), Code::SoftOrOk);
    assert_eq!(world.node.units().count(), 0);
}

#[test]
fn a_vssd_of_an_earlier_version_belongs_to_the_first_rack_that_opens_it() {
    let mut world = World::start(World::blank());
    ask(&mut world, Op::Open, Uuid::nil());
    assert_eq!(ask(&mut world, Op::Open, Uuid::nil()), Code::SoftOrOk);
    assert_eq!(ask(&mut world, Op::Open, OURS), Code::Busy, "it is noted");
    let mut world = World::start(world.medium);
    assert_eq!(ask(&mut world, Op::Open, THEIRS), Code::Foreign);
    assert_eq!(ask(&mut world, Op::Open, OURS), Code::SoftOrOk);
}
