//! Gets behind the one that is carried out.

use afterglow_engine::PREFETCHED;

use super::super::options::REQUESTS_PER_EVENT;
use super::super::store::take_announced;
use super::*;

/// Has the reactor say something of its state.
fn ask<T: Send + 'static>(
    opened: &Opened,
    ask: impl FnOnce(&MemcacheReactorState) -> T + Send + 'static,
) -> T {
    let front_end = opened.front_end.front_end.clone();
    let ask = move || async move { ask(&MemcacheReactorState::of(&front_end)) };
    opened.reactors.block_on(0, ask).expect("the reactor runs")
}

/// The keys that memory was asked for since the last call.
fn announced(opened: &Opened) -> Vec<String> {
    let keys = ask(opened, |_| take_announced());
    keys.into_iter().map(|key| String::from_utf8(key).expect("a key of a test")).collect()
}

fn names(numbers: std::ops::Range<usize>) -> Vec<String> {
    numbers.map(|n| format!("cold{n}")).collect()
}

#[test]
fn gets_that_have_come_are_asked_of_memory_together_and_once() {
    let opened = Opened::new(0);
    let front_end = opened.front_end.front_end.clone();
    let told = opened.reactors.block_on(0, move || async move {
        let reactor_state = MemcacheReactorState::of(&front_end);
        let answers = answers::Answers::new(reactor_state.budget.share(), 0);
        let mut session = MemcacheSession::new(reactor_state, answers);
        let gets = b"get key\r\n".repeat(2 * PREFETCHED);
        let two = b"get one\r\nget two\r\nset three 0 0 1\r\n";
        let mut then = |input: &[u8], ahead, is_get, most| {
            session.ahead = ahead;
            session.prefetch_ahead(input, is_get, most);
            (session.ahead, take_announced().len())
        };
        [
            then(&gets, 0, true, 100),
            then(&gets, 5, true, 100),
            then(&gets, 1, true, 100),
            then(&gets, 0, true, 3),
            then(two, 0, true, 100),
            then(b"get one\r\n", 0, true, 100),
            then(b"", 0, true, 100),
            then(&gets, 0, false, 100),
            then(&gets, 5, false, 100),
        ]
    });
    // The fifth of five is the next request's own; behind the last of them others are looked for.
    // One alone is not worth it.
    let all = PREFETCHED;
    let expected = [(all, all), (4, 0), (all, all), (3, 3), (2, 2), (1, 0), (0, 0), (0, 0), (4, 0)];
    assert_eq!(told.expect("the reactor runs"), expected);
}

#[test]
fn a_pipeline_of_gets_is_announced_but_for_its_first_and_so_are_the_keys_of_a_multi_get() {
    let opened = Opened::new(0);
    let mut client = connect(&opened.front_end);
    let gets = |names: &[String]| -> String {
        names.iter().map(|name| format!("get {name}\r\n")).collect()
    };
    announced(&opened);
    // As many as a turn has.
    let turn = usize::try_from(REQUESTS_PER_EVENT).expect("a few");
    client.send(&gets(&names(0..turn)));
    (0..turn).for_each(|_| assert_eq!(client.line(), "END"));
    assert_eq!(announced(&opened), names(1..turn));
    client.send(&format!("get {}\r\n", names(0..50).join(" ")));
    assert_eq!(client.line(), "END");
    assert_eq!(announced(&opened), names(0..50));
}

/// Waits until the connection has no room for the answer to its next get.
fn wait_until_blocked(opened: &Opened) {
    let until = Instant::now() + TIMEOUT;
    while !ask(opened, |state| state.budget.waiting() > 0) {
        assert!(Instant::now() < until, "the room is not used up");
        std::thread::yield_now();
    }
}

/// Sends a request for all keys whose answers do not fit, and lets the reads end one by one. The
/// keys that memory was asked for meanwhile.
fn announced_while_blocked(request: &str, keys: usize, ends: usize) -> Vec<String> {
    let opened = Opened::with_buffers(keys, 64 << 10);
    let mut client = connect(&opened.front_end);
    announced(&opened);
    client.send(request);
    wait_until_blocked(&opened);
    let first = ask(&opened, |state| state.counts.flash_reads.get());
    assert!((2..keys as u64 / 2).contains(&first), "{first} reads at once");
    for ended in 1..=keys as u64 - first {
        opened.slow.release_one();
        let until = Instant::now() + TIMEOUT;
        while ask(&opened, |state| state.counts.flash_reads_done.get()) < ended {
            assert!(Instant::now() < until, "the read does not end");
            std::thread::yield_now();
        }
    }
    opened.slow.release();
    for _ in 0..2 * keys + ends {
        client.line();
    }
    announced(&opened)
}

#[test]
fn gets_that_wait_for_room_are_not_announced_again_at_each_wake() {
    const GETS: usize = 120;
    let gets: String = names(0..GETS).iter().map(|name| format!("get {name}\r\n")).collect();
    let keys = announced_while_blocked(&gets, GETS, GETS);
    // One that is alone at the end of a turn is not announced.
    assert!(keys.len() <= GETS && keys.len() >= GETS / 2, "{} of {GETS}", keys.len());
    let mut once = keys.clone();
    once.dedup();
    assert_eq!(keys, once);
    assert!(keys.iter().is_sorted_by_key(|key| key[4..].parse::<usize>().expect("a number")));
}

#[test]
fn keys_of_a_multi_get_that_waits_for_room_are_announced_once() {
    const KEYS: usize = 120;
    let request = format!("get {}\r\n", names(0..KEYS).join(" "));
    assert_eq!(announced_while_blocked(&request, KEYS, 1), names(0..KEYS));
}
