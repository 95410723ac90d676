//! What clients are told when the view changes.

use std::net::SocketAddr;

use afterglow_cql::response::Event;

use super::view::{RingNode, RingView};

/// The nodes beside this instance, as drivers know them.
fn others(view: Option<&RingView>) -> Vec<(uuid::Uuid, SocketAddr)> {
    view.into_iter().flat_map(RingView::others).map(|node| (node.host_id, node.address)).collect()
}

/// The messages of the events for nodes that went, then for those that came. This instance is
/// neither: whoever hears of it is connected to it.
pub fn events(before: Option<&RingView>, now: Option<&RingView>) -> Vec<Vec<u8>> {
    let (before, now) = (others(before), others(now));
    let went = before.iter().filter(|node| !now.contains(node));
    let came = now.iter().filter(|node| !before.contains(node));
    let mut events = Vec::new();
    let mut tell = |event: Event<'_>| {
        let mut message = Vec::new();
        event.encode(&mut message);
        events.push(message);
    };
    for (_, at) in went {
        let (address, port) = (at.ip(), at.port().into());
        tell(Event::Status { change: "DOWN", address, port });
        tell(Event::Topology { change: "REMOVED_NODE", address, port });
    }
    for (_, at) in came {
        let (address, port) = (at.ip(), at.port().into());
        tell(Event::Topology { change: "NEW_NODE", address, port });
        tell(Event::Status { change: "UP", address, port });
    }
    events
}

/// Whether a node that was there is not any more, as clients know it. Where there is no view, or
/// was none, they know but this instance.
pub fn has_gone(before: Option<&RingView>, now: Option<&RingView>) -> bool {
    let (Some(before), Some(now)) = (before, now) else { return true };
    let is_there =
        |node: &RingNode| now.node(node.host_id).is_some_and(|later| later.address == node.address);
    !before.nodes.iter().all(is_there)
}

/// Whether no node stays that had tokens: a driver that hears only who went is left with nodes of
/// which it knows no token. It has to read the nodes anew before.
pub fn replaces_all(before: Option<&RingView>, now: Option<&RingView>) -> bool {
    let (Some(before), Some(now)) = (before, now) else { return false };
    !before.nodes.is_empty() && before.nodes.iter().all(|node| now.node(node.host_id).is_none())
}

/// Whether a node that stays has other tokens now, or another rack. Drivers read that on a new
/// connection only.
pub fn has_moved(before: Option<&RingView>, now: Option<&RingView>) -> bool {
    let (before, now) = match (before, now) {
        (None, None) => return false,
        (Some(before), Some(now)) => (before, now),
        // This instance had the tokens of a node of the database, or has them now.
        _ => return true,
    };
    let is_other = |node: &RingNode| {
        let earlier = before.node(node.host_id);
        earlier.is_some_and(|earlier| {
            // By epoch, too: a shard may have gone and come back.
            (&earlier.tokens, &earlier.rack) != (&node.tokens, &node.rack)
                || earlier.newest_first != node.newest_first
        })
    };
    before.node(before.me) != now.node(now.me) || now.nodes.iter().any(is_other)
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::{host, map};
    use super::*;

    fn view(members: &[u64], owners: [u64; 4]) -> RingView {
        RingView::of(&map(members, 4, |shard| Some(owners[shard])), host(1))
    }

    fn told(before: Option<&RingView>, now: Option<&RingView>) -> Vec<String> {
        let words = |message: Vec<u8>| match Event::parse(&message).unwrap() {
            Event::Status { change, address, port } | Event::Topology { change, address, port } => {
                format!("{change} {address}:{port}")
            }
            other => panic!("{other:?}"),
        };
        events(before, now).into_iter().map(words).collect()
    }

    #[test]
    fn nodes_that_went_and_came_are_told_and_this_instance_is_not() {
        let before = view(&[1, 2, 3], [1, 2, 3, 1]);
        let now = view(&[2, 3, 4], [2, 2, 4, 4]);
        let (went, came) = (
            ["DOWN 10.0.0.3:9042", "REMOVED_NODE 10.0.0.3:9042"],
            ["NEW_NODE 10.0.0.4:9042", "UP 10.0.0.4:9042"],
        );
        assert_eq!(told(Some(&before), Some(&now)), [went, came].concat());
        let first = ["NEW_NODE 10.0.0.2:9042", "UP 10.0.0.2:9042"];
        assert_eq!(told(None, Some(&now))[..2], first);
        assert_eq!(told(Some(&before), None).len(), 4);
        assert_eq!(told(Some(&before), Some(&before)), [""; 0]);
    }

    #[test]
    fn all_are_replaced_where_nobody_stays_who_had_tokens() {
        let replaced = |before: [u64; 4], now: [u64; 4]| {
            let members = [1, 2, 3];
            replaces_all(Some(&view(&members, before)), Some(&view(&members, now)))
        };
        assert!(replaced([2; 4], [1; 4]), "this one had none, and is alone now");
        assert!(!replaced([2, 2, 1, 1], [1; 4]) && !replaced([2; 4], [2, 1, 1, 1]));
        assert!(!replaces_all(None, Some(&view(&[1], [1; 4]))));
    }

    #[test]
    fn a_node_at_another_address_went_and_came() {
        let before = view(&[1, 2], [1, 2, 1, 2]);
        let mut now = before.clone();
        now.nodes[1].address.set_port(7);
        let expected = ["DOWN 10.0.0.2:9042", "REMOVED_NODE 10.0.0.2:9042", "NEW_NODE 10.0.0.2:7"];
        assert_eq!(told(Some(&before), Some(&now))[..3], expected);
        let mut now = before.clone();
        now.nodes[1].host_id = host(9);
        let expected =
            ["DOWN 10.0.0.2:9042", "REMOVED_NODE 10.0.0.2:9042", "NEW_NODE 10.0.0.2:9042"];
        assert_eq!(told(Some(&before), Some(&now))[..3], expected, "it lost its state");
    }

    #[test]
    fn tokens_have_moved_where_a_node_that_stays_has_others() {
        let moved = |before: [u64; 4], now: [u64; 4]| {
            let members = [1, 2, 3];
            has_moved(Some(&view(&members, before)), Some(&view(&members, now)))
        };
        assert!(!moved([1, 2, 1, 2], [1, 2, 1, 2]));
        assert!(moved([1, 2, 1, 2], [1, 2, 2, 1]));
        assert!(moved([1, 2, 3, 2], [1, 2, 1, 2]), "the third's went to the first");
        assert!(!moved([1, 2, 2, 1], [1, 2, 2, 1]), "another map, the same owners");
        assert!(moved([1, 2, 2, 1], [1, 3, 2, 1]), "the third has one of the second's");
        let (none, mut first) = (view(&[2, 3], [2, 2, 3, 3]), view(&[1, 2], [1, 2, 2, 2]));
        first.nodes.retain(|node| node.host_id == host(1));
        assert!(has_moved(Some(&none), Some(&first)), "this instance has its first");
        let view = view(&[1, 2], [1, 2, 1, 2]);
        assert!(has_moved(None, Some(&view)) && has_moved(Some(&view), None));
        assert!(!has_moved(None, None));
    }
}
