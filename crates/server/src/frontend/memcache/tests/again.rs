//! What comes again: heads of values in parts that flash does not take at this moment, and requests
//! that had no room for their answers. And what is stored but gone at once.

use afterglow_engine::Durability;

use super::super::parts::REFUSED_TRIES;
use super::large::{Large, lines};
use super::*;

const FAILED: &str = "SERVER_ERROR out of memory storing object";

/// A front end whose flash does not take so many heads.
fn refusing(heads: u64) -> Large {
    let mut large = Large::unopened(Durability::WriteBack);
    large.start();
    let front_end = &large.open.as_ref().unwrap().1.front_end;
    front_end.store.refusing.store(heads, Ordering::Relaxed);
    large
}

#[test]
fn a_head_that_flash_does_not_take_comes_again_as_parts_do() {
    let (large, value) = (refusing(3), lines(25_000));
    let mut client = large.connect();
    assert_eq!(client.set("set k 0 0 400000", &value), "STORED");
    assert_eq!(client.get("k"), Some(value));
}

#[test]
fn a_head_that_flash_does_not_take_for_long_is_refused() {
    let (large, value) = (refusing(u64::from(REFUSED_TRIES) + 1), lines(25_000));
    let mut client = large.connect();
    assert_eq!(client.set("set k 0 0 400000", &value), FAILED);
    assert_eq!(client.get("k"), None);
    assert_eq!(client.set("set k 0 0 400000", &value), "STORED");
}

/// Has a connection that sends nothing carry a line out until there is no room, then a few times
/// more, and then with room. Returns how often it was carried out.
fn carry_out_with_and_without_room(opened: &Opened, line: &'static str) -> u64 {
    let front_end = opened.front_end.front_end.clone();
    let carried = opened.reactors.block_on(0, move || async move {
        let reactor_state = MemcacheReactorState::of(&front_end);
        let answers = answers::Answers::new(reactor_state.budget.share(), 0);
        let mut session = MemcacheSession::new(reactor_state, answers.clone());
        let mut perform = || {
            let mut decoder = Decoder::new(1 << 15, false);
            let Decoded::Request(_, request) = decoder.next(line.as_bytes()) else {
                panic!("not a request: {line}");
            };
            session.perform(request)
        };
        let mut done = 0;
        while matches!(perform(), Performed::Done) {
            done += 1;
        }
        (0..5).for_each(|_| assert!(matches!(perform(), Performed::Blocked)));
        let mut sent = Outgoing::default();
        answers.take(&mut sent);
        answers.sent(sent.held());
        assert!(matches!(perform(), Performed::Done));
        done + 1
    });
    carried.expect("the reactor runs")
}

#[test]
fn what_comes_again_for_want_of_room_counts_once() {
    const LEN: usize = 30_000;
    let opened = Opened::new(0);
    let mut client = connect(&opened.front_end);
    client.send(&format!("set large 0 0 {LEN}\r\n{}\r\n", "x".repeat(LEN)));
    assert_eq!(client.line(), "STORED");
    let figures = || {
        let front_end = opened.front_end.front_end.clone();
        let stats = front_end.cache.stats();
        let ns = stats.namespaces.iter().find(|ns| ns.name == store::NAMESPACE).unwrap();
        let metas =
            move || async move { MemcacheReactorState::of(&front_end).counts.cmd_meta.get() };
        let metas = opened.reactors.block_on(0, metas).expect("the reactor runs");
        (metas, ns.hits.iter().sum::<u64>(), ns.lookups())
    };
    for line in ["mg large v\r\n", "get large\r\n", "gat 0 large\r\n", "mg large v T100\r\n"] {
        let before = figures();
        let done = carry_out_with_and_without_room(&opened, line);
        let metas = if line.starts_with("mg") { done } else { 0 };
        let after = figures();
        let counted = (after.0 - before.0, after.1 - before.1, after.2 - before.2);
        assert_eq!(counted, (metas, done, done), "{line}");
    }
}

#[test]
fn what_expires_at_once_is_answered_and_counted_as_any_store() {
    let opened = Opened::new(0);
    let mut client = connect(&opened.front_end);
    let stored = opened.front_end.front_end.store.total_items();
    client.send("ms k 1 T-1 c\r\nx\r\nms k 1 T-1 c\r\nx\r\nms k 1 T-1 c E5\r\nx\r\n");
    let [first, second, own] = [(); 3].map(|()| client.line());
    let token = |line: &str| line.strip_prefix("HD c").and_then(|c| c.parse::<u64>().ok());
    assert!(token(&first) > Some(0) && token(&second) > token(&first), "{first}, {second}");
    assert_eq!(own, "HD c5");
    client.send("set k 0 -1 1\r\nx\r\nget k\r\n");
    assert_eq!((&*client.line(), &*client.line()), ("STORED", "END"));
    assert_eq!(opened.front_end.front_end.store.total_items(), stored + 4);
}
