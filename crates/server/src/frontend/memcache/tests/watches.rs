//! Connections that watch.

use super::*;

/// What is said of an entry, without its time and number, and with no descriptor.
fn said(line: &str) -> String {
    let shown = line.split(' ').filter(|word| {
        !["ts=", "gid=", "cfd=", "rport="].iter().any(|name| word.starts_with(name))
    });
    shown.collect::<Vec<_>>().join(" ")
}

fn watch(opened: &Opened, topics: &str) -> Client {
    let mut client = connect(&opened.front_end);
    client.send(&format!("watch {topics}\r\n"));
    assert_eq!(client.line(), "OK");
    client
}

#[test]
fn look_ups_in_memory_and_on_flash_and_stores_are_told() {
    let opened = Opened::new(1);
    opened.slow.release();
    let mut watcher = watch(&opened, "fetchers mutations");
    let mut client = connect(&opened.front_end);
    client.send("get warm none cold0\r\nset new 0 100 3\r\nabc\r\nappend new 0 0 1\r\nd\r\n");
    client.send("add new 0 0 1\r\n1\r\ndelete new\r\ndelete new noreply\r\nma n N0 J5\r\n");
    client.send(&format!("set big 0 0 40000\r\n{}\r\nmn\r\n", "x".repeat(40_000)));
    while client.line() != "MN" {}
    // The read of flash is told when it is done.
    let mut lines: Vec<String> = (0..13).map(|_| said(&watcher.line())).collect();
    let cold = "type=item_get key=cold0 status=found clsid=1 size=1000";
    assert!(lines.contains(&cold.to_owned()), "{lines:?}");
    lines.retain(|line| line != cold);
    assert_eq!(
        lines,
        [
            "type=item_get key=warm status=found clsid=1 size=2",
            "type=item_get key=none status=not_found clsid=0 size=0",
            "type=item_store key=new status=stored cmd=set ttl=100 clsid=1 size=3",
            "type=item_get key=new status=found clsid=1 size=3",
            "type=item_store key=new status=stored cmd=append ttl=100 clsid=1 size=4",
            "type=item_get key=new status=found clsid=1 size=4",
            "type=item_store key=new status=not_stored cmd=add ttl=0 clsid=1 size=1",
            "type=item_get key=new status=found clsid=1 size=4",
            "type=item_get key=new status=not_found clsid=0 size=0",
            "type=item_get key=n status=not_found clsid=0 size=0",
            "type=item_store key=n status=stored cmd=add ttl=0 clsid=1 size=1",
            "type=item_store key=big status=too_large cmd=set ttl=0 clsid=0 size=0",
        ]
    );
    assert_eq!((client.stat("log_watchers"), client.stat("log_worker_written")), (1, 13));
}

#[test]
fn connections_that_come_and_go_are_told() {
    let opened = Opened::new(0);
    let mut watcher = watch(&opened, "connevents");
    let mut line = |expected: &str| assert_eq!(said(&watcher.line()), expected);
    let mut client = connect(&opened.front_end);
    line("type=conn_new rip=127.0.0.1 transport=tcp");
    client.send("quit\r\n");
    line("type=conn_close rip=127.0.0.1 transport=tcp reason=normal");
    let mut client = connect(&opened.front_end);
    line("type=conn_new rip=127.0.0.1 transport=tcp");
    client.send("GET / HTTP/1.1\r\n");
    line("type=conn_close rip=127.0.0.1 transport=tcp reason=error");
    let mut client = connect(&opened.front_end);
    line("type=conn_new rip=127.0.0.1 transport=tcp");
    client.send(&"x".repeat(3000));
    line("type=conn_close rip=127.0.0.1 transport=tcp reason=error");
}

#[test]
fn connections_have_one_number_in_statistics_and_in_what_is_told() {
    let opened = Opened::new(0);
    let mut watcher = watch(&opened, "fetchers");
    let mut client = connect(&opened.front_end);
    client.send("get warm\r\nstats conns\r\n");
    let told = watcher.line();
    let number = told.split(' ').find_map(|word| word.strip_prefix("cfd=")).expect("a number");
    assert_eq!(client.lines(), ["VALUE warm 0 2", "hi", "END"]);
    let lines: Vec<_> =
        std::iter::repeat_with(|| client.line()).take_while(|line| line != "END").collect();
    let states: Vec<_> = lines.iter().filter(|line| line.contains(":state ")).collect();
    assert_eq!(states.len(), 3, "the listener, the watcher and the client: {states:?}");
    let of_client = |line: &&&String| line.starts_with(&format!("STAT {number}:state conn_"));
    let listener = opened.front_end.address().expect("a port");
    let came_to = format!("STAT {number}:listen_addr tcp:{listener}");
    assert!(lines.contains(&came_to), "the port that it has: {lines:?}");
    let of_client: Vec<_> = states.iter().filter(of_client).collect();
    assert!(of_client.len() == 1 && !of_client[0].contains("watch"), "{told}: {states:?}");
}

#[test]
fn what_watchers_say_is_dropped_and_they_go_when_they_close() {
    let opened = Opened::new(0);
    let mut watcher = watch(&opened, "fetchers");
    watcher.send(&"get warm\r\nquit\r\n".repeat(1000));
    let mut client = connect(&opened.front_end);
    client.send("get warm\r\n");
    assert_eq!(client.lines(), ["VALUE warm 0 2", "hi", "END"]);
    let told = watcher.line();
    assert!(told.contains("key=warm status=found"), "{told}");
    assert_eq!(client.stat("log_worker_written"), 1, "only what others ask is looked up");
    drop(watcher);
    let until = Instant::now() + TIMEOUT;
    while client.stat("log_watchers") > 0 {
        assert!(Instant::now() < until);
        std::thread::yield_now();
    }
}

#[test]
fn watch_comes_alone_and_twenty_at_once() {
    let opened = Opened::new(0);
    let mut client = connect(&opened.front_end);
    client.send("get none\r\nwatch\r\n");
    assert_eq!(client.lines(), ["END", "ERROR cannot pipeline other commands before watch"]);
    client.send("watch nonsense\r\n");
    assert_eq!(client.line(), "ERROR");
    let _watchers: Vec<Client> = (0..20).map(|_| watch(&opened, "evictions")).collect();
    client.send("watch\r\n");
    assert_eq!(client.line(), "WATCHER_TOO_MANY log watcher limit reached");
}

/// A watcher that takes nothing: others are served, it takes a bounded amount of memory, and its
/// place goes to who asks for it.
#[test]
fn a_watcher_that_does_not_read_holds_up_nobody_and_loses_its_place() {
    let opened = Opened::new(0);
    let _lazy = watch(&opened, "fetchers");
    let mut client = connect(&opened.front_end);
    let until = Instant::now() + TIMEOUT;
    // Its socket takes some megabytes.
    let mut sent = None;
    while sent.replace(client.stat("log_watcher_sent")) != Some(client.stat("log_watcher_sent")) {
        client.send(&"get none\r\n".repeat(20_000));
        for _ in 0..20_000 {
            assert_eq!(client.line(), "END");
        }
        assert!(Instant::now() < until, "it takes everything");
    }
    assert!(client.stat("log_watcher_skipped") >= 20_000, "the rest is counted");
    let _others: Vec<Client> = (0..19).map(|_| watch(&opened, "evictions")).collect();
    client.send("watch\r\n");
    assert_eq!(client.line(), "WATCHER_TOO_MANY log watcher limit reached");
    let front_end = opened.front_end.front_end.clone();
    let cut = move || async move {
        let reactor_state = MemcacheReactorState::of(&front_end);
        super::super::watch::look(&reactor_state, front_end.seconds() + 11);
    };
    opened.reactors.block_on(0, cut).unwrap();
    while client.stat("log_watchers") > 19 {
        assert!(Instant::now() < until, "it keeps its place");
        std::thread::yield_now();
    }
    assert_eq!(client.stat("log_watchers"), 19, "those that wait for nothing stay");
}
