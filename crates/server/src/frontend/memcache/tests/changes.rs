//! Changes of objects that cannot be read, and reads that change objects.

use super::*;
use crate::metrics::{FrontEndMetrics, MissReason, Tier};

/// Changes of what is on flash, with the answer where it cannot be read.
const CHANGES: [(&str, &str); 13] = [
    ("delete cold0", "NOT_FOUND"),
    ("md cold1", "NF"),
    ("md cold2 I T30", "NF"),
    ("md cold3 C1", "NF"),
    ("replace cold4 0 0 1\r\nx", "SERVER_ERROR out of memory storing object"),
    ("append cold5 0 0 1\r\nx", "SERVER_ERROR out of memory storing object"),
    ("cas cold6 0 0 1 1\r\nx", "SERVER_ERROR out of memory storing object"),
    ("add cold7 0 0 1\r\nx", "SERVER_ERROR out of memory storing object"),
    ("incr cold8 1", "SERVER_ERROR out of memory storing object"),
    // An expiry that has passed removes.
    ("touch cold9 -1", "NOT_FOUND"),
    ("gat -1 cold10", "END"),
    ("mg cold11 T-1", "EN"),
    ("mg cold12 v N30 T-1", "EN"),
];

#[test]
fn what_cannot_be_read_to_be_changed_is_gone() {
    let opened = Opened::new(CHANGES.len() + 1);
    let mut client = connect(&opened.front_end);
    opened.slow.fail(true);
    for (change, answer) in CHANGES {
        client.send(&format!("{change}\r\n"));
        assert_eq!(client.line(), answer, "{change}");
    }
    let last = CHANGES.len();
    client.send(&format!("touch cold{last} 100\r\n"));
    assert_eq!(client.line(), "NOT_FOUND");
    opened.slow.fail(false);
    for (n, (change, _)) in CHANGES.iter().enumerate() {
        client.send(&format!("get cold{n}\r\n"));
        assert_eq!(client.line(), "END", "after {change}");
    }
    client.send(&format!("get cold{last}\r\n"));
    assert_eq!(
        client.lines(),
        [format!("VALUE cold{last} 0 1000"), value(last), "END".into()],
        "its value did not change"
    );
}

#[test]
fn what_the_index_does_not_tell_of_in_time_is_gone_when_it_was_to_be_changed() {
    let opened = Opened::new(CHANGES.len() + 1);
    let mut client = connect(&opened.front_end);
    opened.slow.fail(false);
    let front_end = &opened.front_end.front_end;
    for (change, answer) in CHANGES {
        // As many tries as fit into the time that a change may wait: not one of them is told.
        front_end.loading.store(modify::LOADING_TRIES + 1, Ordering::Release);
        client.send(&format!("{change}\r\n"));
        assert_eq!(client.line(), answer, "{change}");
        assert_eq!(front_end.loading.load(Ordering::Acquire), 0, "it was tried to the end");
    }
    for (n, (change, _)) in CHANGES.iter().enumerate() {
        client.send(&format!("get cold{n}\r\n"));
        assert_eq!(client.line(), "END", "after {change}");
    }
    // Told at the last try, it is as ever.
    front_end.loading.store(modify::LOADING_TRIES, Ordering::Release);
    let last = CHANGES.len();
    client.send(&format!("delete cold{last}\r\nget cold{last}\r\n"));
    assert_eq!(client.lines(), ["DELETED", "END"]);
}

#[test]
fn a_change_that_waits_for_the_index_looks_seldom() {
    const MANY: u32 = 1 << 20;
    let opened = Opened::new(1);
    let mut client = connect(&opened.front_end);
    opened.slow.fail(false);
    let front_end = &opened.front_end.front_end;
    front_end.loading.store(MANY, Ordering::Release);
    client.send("incr cold0 1\r\n");
    assert_eq!(client.line(), "SERVER_ERROR out of memory storing object");
    let looks = MANY - front_end.loading.swap(0, Ordering::AcqRel);
    assert!((20..=100).contains(&looks), "{looks} looks in five seconds");
}

#[test]
fn reads_that_change_are_counted_by_where_their_object_was() {
    let opened = Opened::new(2);
    let front_end = opened.front_end.front_end.clone();
    let reactor_state = move || async move { MemcacheReactorState::of(&front_end).metrics.clone() };
    let metrics: Arc<FrontEndMetrics> = opened.reactors.block_on(0, reactor_state).unwrap();
    let mut client = connect(&opened.front_end);
    opened.slow.release();
    let figures = || {
        let hits = [Tier::Dram, Tier::Flash].map(|tier| metrics.hits.of(tier).get());
        (hits, metrics.misses.of(MissReason::Absent).get())
    };
    let before = figures();
    client.send(
        "gat 100 warm\r\ngats 100 warm none cold0\r\nmg cold1 T100\r\nmg none T100\r\nmg warm T9 q k\r\n",
    );
    client.send("touch warm 100\r\nme warm\r\nmg made N30\r\nversion\r\n");
    while !client.line().starts_with("VERSION") {}
    let after = figures();
    let ([memory, flash], misses) = (after.0, after.1);
    assert_eq!((memory - before.0[0], flash - before.0[1], misses - before.1), (4, 2, 3));
}

#[test]
fn what_changes_that_wait_for_flash_hold_counts_as_what_will_be_answered() {
    const LEN: usize = 30_000;
    let opened = Opened::new(200);
    for verb in ["append", "prepend", "replace"] {
        let front_end = opened.front_end.front_end.clone();
        let carried_out = opened.reactors.block_on(0, move || async move {
            let reactor_state = MemcacheReactorState::of(&front_end);
            let answers = answers::Answers::new(reactor_state.budget.share(), 0);
            let mut session = MemcacheSession::new(reactor_state, answers);
            let mut change = |n| {
                let line = format!("{verb} cold{n} 0 0 {LEN}\r\n{}\r\n", "x".repeat(LEN));
                let mut decoder = Decoder::new(1 << 15, false);
                let Decoded::Request(_, request) = decoder.next(line.as_bytes()) else {
                    panic!("not a request: {line}");
                };
                matches!(session.perform(request), Performed::Done)
            };
            (0..200).take_while(|n| change(*n)).count()
        });
        let held = carried_out.expect("the reactor runs") * LEN;
        assert!((1..1 << 21).contains(&held), "{verb}: {held} bytes of values");
    }
}

/// Carries out a line on a connection that sends nothing. Returns how that ended, and the bytes of
/// the answers so far.
fn carry_out(opened: &Opened, line: String) -> (bool, usize) {
    let front_end = opened.front_end.front_end.clone();
    let carried = opened.reactors.block_on(0, move || async move {
        let reactor_state = MemcacheReactorState::of(&front_end);
        let answers = answers::Answers::new(reactor_state.budget.share(), 0);
        let mut session = MemcacheSession::new(reactor_state, answers.clone());
        let Decoded::Request(_, request) = Decoder::new(1 << 15, false).next(line.as_bytes())
        else {
            panic!("not a request: {line}");
        };
        let blocked = matches!(session.perform(request), Performed::Blocked);
        let mut out = Outgoing::default();
        answers.take(&mut out);
        (blocked, out.into_text().len())
    });
    carried.expect("the reactor runs")
}

#[test]
fn a_line_of_many_keys_waits_for_room_whether_or_not_it_changes_their_expiry() {
    const LEN: usize = 30_000;
    let opened = Opened::new(400);
    let mut client = connect(&opened.front_end);
    client.send(&format!("set large 0 0 {LEN}\r\n{}\r\n", "x".repeat(LEN)));
    assert_eq!(client.line(), "STORED");
    for verb in ["get", "gets", "gat 0", "gats 0", "gat 100"] {
        let (blocked, bytes) = carry_out(&opened, format!("{verb}{}\r\n", " large".repeat(1000)));
        assert!(blocked, "{verb}: {bytes} bytes of answers that nobody took");
        assert!((LEN..2 << 20).contains(&bytes), "{verb}: {bytes} bytes of answers");
    }
    let cold: String = (0..400).map(|n| format!(" cold{n}")).collect();
    for verb in ["get", "gat 100"] {
        let begun = opened.slow.state.lock().begun;
        let (blocked, _) = carry_out(&opened, format!("{verb}{cold}\r\n"));
        // One that waits for its turn has not begun yet.
        let begun = opened.slow.state.lock().begun - begun;
        assert!(blocked && begun <= 256, "{verb}: {begun} reads of flash at once");
    }
}
