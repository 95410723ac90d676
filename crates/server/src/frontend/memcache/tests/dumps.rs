//! Dumps: of all objects, one at a time, and those that fail.

use super::*;
use crate::frontend::memcache::answers::Answers;
use crate::frontend::memcache::dump::Running;
use afterglow_memcache::{Dump, Form};

#[test]
fn a_dump_names_what_is_in_memory_and_on_flash_and_one_client_has_it_at_a_time() {
    let opened = Opened::new(40);
    let (mut client, mut other) = (connect(&opened.front_end), connect(&opened.front_end));
    client.send("get warm\r\nlru_crawler mgdump all\r\nmn\r\n");
    assert_eq!(client.lines(), ["VALUE warm 0 2", "hi", "END"]);
    let mut keys: Vec<String> = (0..41).map(|_| client.line()).collect();
    keys.sort();
    let mut expected: Vec<String> = (0..40).map(|n| format!("mg cold{n}")).collect();
    expected.push("mg warm".into());
    expected.sort();
    assert_eq!(keys, expected);
    assert_eq!(client.lines(), ["EN", "MN"], "what comes behind a dump is answered behind it");

    opened.front_end.front_end.dumping.store(true, Ordering::Release);
    other.send("lru_crawler metadump all\r\nstats cachedump 1 1\r\nstats cachedump 2 1\r\nget warm\r\n");
    let busy = "BUSY currently processing crawler request";
    assert_eq!(other.lines(), [busy, busy, "END", "VALUE warm 0 2", "hi", "END"]);
    opened.front_end.front_end.dumping.store(false, Ordering::Release);
    other.send("stats cachedump 1 1\r\n");
    assert_eq!(other.lines(), ["ITEM warm [2 b; 0 s]", "END"]);
}

/// What a dump that fails because flash cannot be read says, and how it ends.
fn torn(opened: &Opened) -> (String, Performed) {
    let front_end = opened.front_end.front_end.clone();
    let dump = Dump { form: Form::Keys, is_named: true };
    let torn = opened.reactors.block_on(0, move || async move {
        let reactor_state = MemcacheReactorState::of(&front_end);
        let answers = Answers::new(reactor_state.budget.share());
        let mut session = MemcacheSession::new(reactor_state, answers.clone());
        // That of keys alone leaves nothing out, unlike the one that dumps are made of.
        session.dump = Running::over(&front_end, dump, front_end.store.objects.keys());
        let performed = loop {
            match session.perform(Request::Dump(dump)) {
                Performed::Blocked => answers.changed().await,
                performed => break performed,
            }
        };
        let mut said = Vec::new();
        answers.take(&mut said);
        (String::from_utf8(said).unwrap(), performed)
    });
    torn.expect("the reactor runs")
}

#[test]
fn a_dump_that_fails_behind_objects_ends_the_connection_and_one_that_cannot_begin_does_not() {
    const ERROR: &str = "ERROR a part of the cache could not be read: clear the namespace instead\r\n";
    let opened = Opened::new(40);
    // Whatever is read of flash from now on is beyond its end.
    let flash = std::fs::OpenOptions::new().write(true).open(opened._dir.path().join("flash")).unwrap();
    flash.set_len(0).unwrap();
    let (said, performed) = torn(&opened);
    assert_eq!(said, format!("warm{ERROR}"));
    assert!(matches!(performed, Performed::Close), "who waits for the end hears of it: {performed:?}");
    assert!(!opened.front_end.front_end.dumping.load(Ordering::Acquire), "the next may have one");
    let mut client = connect(&opened.front_end);
    client.send("delete warm noreply\r\nmn\r\n");
    assert_eq!(client.line(), "MN");
    let (said, performed) = torn(&opened);
    assert_eq!(said, ERROR);
    assert!(matches!(performed, Performed::Done), "nothing was begun: {performed:?}");
}

#[test]
fn limits_of_memory_that_come_together_are_set_in_their_order() {
    let opened = Opened::new(1);
    let front_end = opened.front_end.front_end.clone();
    let waits = opened.reactors.block_on(0, move || async move {
        let reactor_state = MemcacheReactorState::of(&front_end);
        let answers = Answers::new(reactor_state.budget.share());
        let mut session = MemcacheSession::new(reactor_state, answers);
        let limit = |megabytes| Request::MemoryLimit { megabytes, quiet: false };
        // The first is being set by another thread, and nothing is awaited here.
        assert!(matches!(session.perform(limit(1)), Performed::Done));
        matches!(session.perform(limit(2)), Performed::Blocked)
    });
    assert_eq!(waits, Some(true));
}
