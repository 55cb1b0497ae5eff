//! A clean stop of a node ends with a checkpoint, and a latched vSSD does not hold it up.

use crate::support::World;

#[test]
fn a_clean_stop_ends_with_a_checkpoint_that_leaves_nothing_to_replay() {
    let mut world = World::fresh();
    for request in 2..200 {
        world.write(request, request * 7 % 300);
    }
    assert!(world.written() >= 198, "{}", world.written());
    assert!(!world.node.is_quiet(), "no checkpoint before it is asked for");
    world.drain();
    assert!(world.node.is_quiet());
    let stats = world.node.units().next().expect("one").flash().stats();
    assert_eq!(stats.checkpoints, 1);
    assert!(stats.user_programs > 100);
    let again = World::start(world.medium);
    let (_, report) = &again.node.recovery_reports()[0];
    assert_eq!(
        (report.checkpoint, report.entries_replayed, report.torn),
        (1, 0, 0)
    );
}

#[test]
fn a_write_after_the_stop_is_not_taken_so_that_nothing_follows_the_checkpoint() {
    let mut world = World::fresh();
    world.drain();
    let (written, medium) = (world.written(), world.medium.clone());
    world.write(500, 3);
    assert!(world.node.is_quiet());
    assert_eq!(world.written(), written);
    assert!(world.medium == medium, "the medium changed");
}

#[test]
fn a_latched_vssd_counts_as_quiet() {
    let mut world = World::fresh();
    world.write(2, 1);
    world.writes_fail = true;
    world.drain();
    assert_eq!(world.node.status(base::Instant::ZERO).latched, 1);
    assert!(world.node.is_quiet());
}

#[test]
fn a_node_without_vssds_is_quiet_at_once() {
    let mut world = World::start(World::blank());
    world.drain();
    assert!(world.node.is_quiet());
}
