//! How a client leaves that is to connect anew: it has its answers, and sees the end and no reset.

use std::io::{Read, Write};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use afterglow::frontend::cql::RingSettings;
use afterglow_cql::frame::{Opcode, Version};
use afterglow_testkit::fake_backend::Ask;

use crate::bounds::{ANSWER, HELD, compressing, metric, with_big_answers};
use crate::client::{Client, text_of, wait_until};
use crate::database::{echo, scripted};
use crate::proxy::Proxy;
use crate::ring::{CLOSED, MOVED, OPEN, register, view};
use crate::turns::InPlace;

/// A client that is to connect anew when tokens move.
fn registered(proxy: &Proxy) -> Client {
    let mut client = proxy.client(Version::V4);
    register(&mut client, &["SCHEMA_CHANGE"]);
    client
}

/// Has tokens move, of which the clients know others.
fn move_tokens(proxy: &Proxy) {
    proxy.front_end.front_end().set_ring(view([1, 1, 2, 2, 1, 1, 2, 2]));
}

#[test]
fn a_driver_that_is_to_connect_anew_and_asks_too_late_sees_the_end_and_no_reset() {
    let fake = scripted(Version::V5, echo);
    let proxy = Proxy::in_ring(fake.address(), CLOSED);
    let mut client = proxy.client(Version::V4);
    register(&mut client, &["TOPOLOGY_CHANGE"]);
    move_tokens(&proxy);
    while client.try_receive().is_some() {}
    for _ in 0..3 {
        client.send(1, Opcode::Options, &[]);
        assert_eq!(client.stream.read(&mut [0]).unwrap(), 0);
    }
    assert_eq!(metric(&proxy, OPEN), 1, "the client has not closed");
    drop(client);
    while metric(&proxy, OPEN) > 0 {
        std::thread::yield_now();
    }
}

#[test]
fn what_was_read_of_a_client_that_is_to_connect_anew_is_answered() {
    /// In one segment, so that all are read when one is.
    const REQUESTS: usize = 2_500;
    let fake = scripted(Version::V5, echo);
    let (router, has_stopped, release) = InPlace::new();
    let proxy = Proxy::routed_in_ring(fake.address(), router.clone(), CLOSED);
    let mut client = compressing(&proxy);
    register(&mut client, &["SCHEMA_CHANGE"]);
    let [hold, many] =
        ["hold", "many"].map(|t| client.query_body(&format!("SELECT v FROM ks.{t}")));
    let is_end = |n: usize| n == 0 || n + 1 == REQUESTS;
    let bodies = (0..REQUESTS).map(|n| (7, if is_end(n) { &hold[..] } else { &many[..] }));
    let burst = client.encode_all(Opcode::Query, bodies);
    client.stream.write_all(&burst).unwrap();

    has_stopped.recv().unwrap();
    move_tokens(&proxy);
    release.send(()).unwrap();
    has_stopped.recv().unwrap();
    let told = metric(&proxy, MOVED);
    release.send(()).unwrap();
    let answers = std::iter::from_fn(|| client.try_receive());
    let answered = answers.filter(|answer| answer.header.opcode == Opcode::Result).count();
    // A test that fails while a reactor runs ends without a word.
    drop((client, proxy));
    assert_eq!(told, 1, "it was to leave before the last was taken");
    assert_eq!((answered, router.order.lock().unwrap().len()), (REQUESTS, REQUESTS));
}

#[test]
fn a_client_that_is_to_connect_anew_gets_its_answers_however_late_it_takes_them() {
    let fake = with_big_answers();
    let proxy = Proxy::in_ring(fake.address(), RingSettings { linger: Duration::ZERO, ..CLOSED });
    let mut client = registered(&proxy);
    client.query(7, "SELECT v FROM ks.big");
    wait_until("its answer waits for it", || metric(&proxy, HELD) > 0);
    move_tokens(&proxy);
    wait_until("it is to leave", || metric(&proxy, MOVED) == 1);
    assert_eq!(text_of(&client.receive()).len(), ANSWER);
    assert_eq!(client.stream.read(&mut [0]).unwrap(), 0);
    wait_until("it is gone", || metric(&proxy, OPEN) == 0);
}

#[test]
fn a_client_that_is_to_connect_anew_and_takes_no_answers_is_ended() {
    let fake = with_big_answers();
    let proxy = Proxy::in_ring(fake.address(), CLOSED);
    let mut client = registered(&proxy);
    client.query(7, "SELECT v FROM ks.big");
    wait_until("its answer waits for it", || metric(&proxy, HELD) > 1024 * 1024);
    // Nothing more of it is taken as long as so much waits.
    client.query(8, "SELECT v FROM ks.other");
    move_tokens(&proxy);
    wait_until("it is gone", || metric(&proxy, OPEN) == 0);
}

#[test]
fn a_large_request_of_which_the_rest_comes_too_late_is_given_up_without_a_reset() {
    const SLOW: &str =
        r#"afterglow_client_connections_cut_total{frontend="cql",reason="slow_request"}"#;
    let held = Arc::new(Mutex::new(Vec::<Arc<Ask>>::new()));
    let holder = held.clone();
    let fake = scripted(Version::V4, move |ask| {
        let holds = ask.text.contains("FROM ks.held");
        if holds {
            holder.lock().unwrap().push(ask.clone());
        }
        holds || echo(ask)
    });
    let proxy = Proxy::in_ring(fake.address(), CLOSED);
    let mut client = registered(&proxy);
    client.query(7, "SELECT v FROM ks.held");
    wait_until("the database has it", || held.lock().unwrap().len() == 1);
    let large = client.encode(8, Opcode::Query, &[7; 400_000]);
    client.stream.write_all(&large[..1_000]).unwrap();
    wait_until("the large one is admitted", || metric(&proxy, HELD) > 400_000);
    move_tokens(&proxy);
    wait_until("its room is given back", || metric(&proxy, HELD) == 0);
    client.stream.write_all(&large[1_000..]).unwrap();
    held.lock().unwrap().drain(..).for_each(|ask| ask.text_row("at last"));
    assert_eq!(text_of(&client.receive()), "at last");
    assert_eq!(client.stream.read(&mut [0]).unwrap(), 0);
    assert_eq!((metric(&proxy, MOVED), metric(&proxy, SLOW)), (1, 0));
}
