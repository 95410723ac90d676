//! Dumps: of all objects, one at a time, and those that fail.

use super::*;
use crate::frontend::memcache::answers::Answers;
use crate::frontend::memcache::dump::Running;
use crate::frontend::memcache::dump_turn::Turn;
use crate::frontend::memcache::watch;
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

    let turn = Turn::take(&opened.front_end.front_end.dump_turn).expect("the dump is over");
    other.send(
        "lru_crawler metadump all\r\nstats cachedump 1 1\r\nstats cachedump 2 1\r\nget warm\r\n",
    );
    let busy = "BUSY currently processing crawler request";
    assert_eq!(other.lines(), [busy, busy, "END", "VALUE warm 0 2", "hi", "END"]);
    drop(turn);
    other.send("stats cachedump 1 1\r\n");
    assert_eq!(other.lines(), ["ITEM warm [2 b; 0 s]", "END"]);
}

/// What a dump that fails because flash cannot be read says, and how it ends.
fn torn(opened: &Opened) -> (String, Performed) {
    let front_end = opened.front_end.front_end.clone();
    let dump = Dump { form: Form::Keys, is_named: true };
    let torn = opened.reactors.block_on(0, move || async move {
        let reactor_state = MemcacheReactorState::of(&front_end);
        let answers = Answers::new(reactor_state.budget.share(), 0);
        let mut session = MemcacheSession::new(reactor_state, answers.clone());
        // That of keys alone leaves nothing out, unlike the one that dumps are made of.
        session.dump = Running::over(&front_end, dump, front_end.store.objects.keys());
        let performed = loop {
            match session.perform(Request::Dump(dump)) {
                Performed::Blocked => answers.changed().await,
                performed => break performed,
            }
        };
        let mut said = Outgoing::default();
        answers.take(&mut said);
        (String::from_utf8(said.into_text()).unwrap(), performed)
    });
    torn.expect("the reactor runs")
}

#[test]
fn a_dump_that_fails_behind_objects_ends_the_connection_and_one_that_cannot_begin_does_not() {
    const ERROR: &str =
        "ERROR a part of the cache could not be read: clear the namespace instead\r\n";
    let opened = Opened::new(40);
    // Whatever is read of flash from now on is beyond its end.
    let flash =
        std::fs::OpenOptions::new().write(true).open(opened.dir.path().join("flash")).unwrap();
    flash.set_len(0).unwrap();
    let (said, performed) = torn(&opened);
    assert_eq!(said, format!("warm{ERROR}"));
    assert!(
        matches!(performed, Performed::Close),
        "who waits for the end hears of it: {performed:?}"
    );
    assert!(Turn::take(&opened.front_end.front_end.dump_turn).is_some(), "the next may have one");
    let mut client = connect(&opened.front_end);
    client.send("delete warm noreply\r\nmn\r\n");
    assert_eq!(client.line(), "MN");
    let (said, performed) = torn(&opened);
    assert_eq!(said, ERROR);
    assert!(matches!(performed, Performed::Done), "nothing was begun: {performed:?}");
}

/// Looks at all connections in second `now`.
fn look(opened: &Opened, now: u64) {
    let front_end = opened.front_end.front_end.clone();
    let look = move || async move { watch::look(&MemcacheReactorState::of(&front_end), now) };
    opened.reactors.block_on(0, look).expect("the reactor runs");
}

#[test]
fn who_reads_nothing_of_a_dump_keeps_no_other_from_one_for_ever() {
    let opened = Opened::new(0);
    let mut other = connect(&opened.front_end);
    // More than is made before something is taken.
    const OBJECTS: usize = 1_000;
    for n in 0..OBJECTS {
        other.send(&format!("set {n:0240} 0 0 0 noreply\r\n\r\n"));
    }
    other.send("mn\r\n");
    assert_eq!(other.line(), "MN");
    let (mut holder, server) = UnixStream::pair().unwrap();
    holder.set_read_timeout(Some(TIMEOUT)).unwrap();
    holder.write_all(b"lru_crawler mgdump all\r\n").unwrap();
    let front_end = opened.front_end.front_end.clone();
    opened.reactors.spawn_on(0, move || async move {
        let stream = compio::net::UnixStream::from_std(server).unwrap();
        let ends = Ends { peer: String::new(), from: None, listener: "unix".into(), tls: false };
        connection::serve(front_end, Unread(stream), ends, ()).await;
    });
    let writing_since = || {
        let front_end = opened.front_end.front_end.clone();
        let state = move || async move {
            let connections = MemcacheReactorState::of(&front_end).connections();
            connections
                .iter()
                .filter(|info| info.dump.borrow().strong_count() > 0)
                .find_map(|info| info.writing_since.get())
        };
        opened.reactors.block_on(0, state).expect("the reactor runs")
    };
    let until = Instant::now() + TIMEOUT;
    let since = loop {
        if let Some(since) = writing_since() {
            break since;
        }
        assert!(Instant::now() < until, "the dump's first piece is not on its way");
        std::thread::yield_now();
    };
    look(&opened, since + super::super::reactor_state::STALL);
    assert_eq!(writing_since(), Some(since), "nobody else wants one");
    other.send("lru_crawler mgdump all\r\n");
    assert_eq!(other.line(), "BUSY currently processing crawler request");
    look(&opened, since + super::super::reactor_state::STALL - 1);
    assert_eq!(writing_since(), Some(since), "it may still go on to read");
    look(&opened, since + super::super::reactor_state::STALL);
    assert_eq!(holder.read(&mut [0]).unwrap(), 0, "its connection ends");
    while Turn::take(&opened.front_end.front_end.dump_turn).is_none() {
        assert!(Instant::now() < until, "the turn does not end");
        std::thread::yield_now();
    }
    other.send("lru_crawler mgdump all\r\n");
    let named = (0..).take_while(|_| other.line() != "EN").count();
    assert_eq!(named, OBJECTS + 1, "and `warm`");
    assert!(
        !opened.front_end.front_end.dump_turn.is_wanted(),
        "the next holder is not accused of it"
    );
    assert_eq!(
        opened.front_end.front_end.config.metrics.memcache_total().stalled_connections.get(),
        1
    );
}

/// A connection whose client takes nothing: a write of it ends when the connection does.
#[derive(Clone)]
struct Unread(compio::net::UnixStream);

impl AsFd for Unread {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl AsyncRead for Unread {
    async fn read<B: IoBufMut>(&mut self, buf: B) -> BufResult<usize, B> {
        self.0.read(buf).await
    }
}

impl AsyncWrite for Unread {
    async fn write<T: IoBuf>(&mut self, buf: T) -> BufResult<usize, T> {
        // Nothing comes but the end: the client is silent.
        let _ = self.0.read(vec![0; 1]).await;
        BufResult(Err(ErrorKind::BrokenPipe.into()), buf)
    }

    async fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }

    async fn shutdown(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn limits_of_memory_that_come_together_are_set_in_their_order() {
    let opened = Opened::new(1);
    let front_end = opened.front_end.front_end.clone();
    let waits = opened.reactors.block_on(0, move || async move {
        let reactor_state = MemcacheReactorState::of(&front_end);
        let answers = Answers::new(reactor_state.budget.share(), 0);
        let mut session = MemcacheSession::new(reactor_state, answers);
        let limit = |megabytes| Request::MemoryLimit { megabytes, quiet: false };
        // The first is being set by another thread, and nothing is awaited here.
        assert!(matches!(session.perform(limit(1)), Performed::Done));
        matches!(session.perform(limit(2)), Performed::Blocked)
    });
    assert_eq!(waits, Some(true));
}
