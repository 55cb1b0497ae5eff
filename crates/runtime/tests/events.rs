//! The way of events out of the cores.

use base::NodeId;
use base::event::{Kind, Source};
use runtime::Teller;

#[test]
fn events_arrive_in_order_and_a_full_way_holds_nobody_up() {
    let (teller, end) = Teller::new(2);
    let event = |node| Kind::NodeStopping { node: NodeId(node) };
    for node in 1..=3 {
        teller.tell(Source::Gateway(0), event(node));
    }
    assert_eq!(teller.lost(), 1);
    let kinds: Vec<Kind> = end.try_iter().flatten().map(|told| told.kind).collect();
    assert_eq!(kinds, [event(1), event(2)]);
}
