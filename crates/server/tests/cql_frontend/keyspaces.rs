//! Clients in many keyspaces, over the few connections that they share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Opcode, Version};
use afterglow_testkit::fake_backend::Ask;

use crate::client::{Client, error_of, text_of};
use crate::database::{a_keyspace, scripted};
use crate::proxy::Proxy;

const ROUNDS: usize = 60;
/// Connections that there may be to one node for one user, over both reactors.
const PLACES: u128 = 64;
/// A connection serves at least this long before it gives way to another keyspace.
const TENURE: Duration = Duration::from_millis(200);

/// Answers with the keyspace that the connection is in, a moment later, as a database does.
fn keyspace_of(ask: &Arc<Ask>, of: &Mutex<HashMap<u64, String>>) -> bool {
    if let Some(keyspace) = ask.text.strip_prefix("USE ") {
        of.lock().unwrap().insert(ask.connection, keyspace.trim_matches('"').to_owned());
        return false;
    }
    let asks = ask.opcode() == Opcode::Query && ask.text.contains("FROM t");
    if asks {
        let keyspace = of.lock().unwrap().get(&ask.connection).cloned();
        ask.text_row(keyspace.as_deref().unwrap_or("none"));
    }
    asks
}

/// So many sessions in so many keyspaces ask one thing after the other, each in its own; how many
/// connections the database saw.
fn sessions_in_keyspaces(sessions: usize, keyspaces: usize) -> u64 {
    let of = Mutex::default();
    let fake = scripted(Version::V5, move |ask| keyspace_of(ask, &of));
    (0..keyspaces).for_each(|n| fake.run(&a_keyspace(&format!("ks{n}"))));
    let proxy = Proxy::before(fake.address());
    std::thread::scope(|scope| {
        for session in 0..sessions {
            let mut client = proxy.client(if session % 2 == 0 { Version::V4 } else { Version::V5 });
            scope.spawn(move || {
                let keyspace = format!("ks{}", session / 2 % keyspaces);
                client.query(1, &format!("USE {keyspace}"));
                assert_eq!(client.receive().header.opcode, Opcode::Result);
                for _ in 0..ROUNDS {
                    assert_eq!(ask(&mut client), Ok(keyspace.clone()));
                }
            });
        }
    });
    fake.connections()
}

fn ask(client: &mut Client) -> Result<String, String> {
    client.query(2, "SELECT v FROM t");
    let answer = client.receive();
    match answer.header.opcode {
        Opcode::Error => Err(error_of(&answer).1),
        _ => Ok(text_of(&answer)),
    }
}

#[test]
fn sessions_in_several_keyspaces_get_no_errors_and_make_few_connections() {
    let made = sessions_in_keyspaces(36, 6);
    // On each of two reactors one for each keyspace, and one for none, in two versions; and the
    // control connection.
    assert!(made <= 2 * 2 * 7 + 1, "{made} connections");
}

#[test]
fn sessions_in_more_keyspaces_than_there_are_connections_take_turns_without_errors() {
    let begin = Instant::now();
    let made = sessions_in_keyspaces(96, 48);
    // Each of the places changes hands once in a tenure at most, however slow the requests are.
    let turns = begin.elapsed().as_millis() / TENURE.as_millis() + 2;
    assert!(u128::from(made) <= PLACES * turns, "{made} connections in {turns} turns");
}

/// As a server that takes a text for USE whatever follows the name. Counts what moved a connection
/// to `ks2`.
fn takes_any_use(ask: &Arc<Ask>, of: &Mutex<HashMap<u64, String>>, moved: &AtomicUsize) -> bool {
    let is_use = ask.text.to_ascii_lowercase().contains("use ks2");
    match ask.opcode() {
        Opcode::Prepare if is_use => ask.prepared(b"a use", &[], &[]),
        Opcode::Query if !is_use => return keyspace_of(ask, of),
        Opcode::Query | Opcode::Execute => {
            moved.fetch_add(1, Ordering::SeqCst);
            of.lock().unwrap().insert(ask.connection, "ks2".into());
            let mut body = Vec::new();
            afterglow_cql::response::encode_set_keyspace("ks2", &mut body);
            ask.reply(Opcode::Result, &body);
        }
        _ => return false,
    }
    true
}

#[test]
fn a_text_that_only_the_database_takes_for_use_moves_no_connection() {
    let (of, moved) = (Mutex::default(), Arc::new(AtomicUsize::new(0)));
    let counted = moved.clone();
    let fake = scripted(Version::V5, move |ask| takes_any_use(ask, &of, &counted));
    ["ks1", "ks2"].iter().for_each(|name| fake.run(&a_keyspace(name)));
    let proxy = Proxy::on_one_reactor(fake.address());
    for &version in Version::ALL {
        let [mut honest, mut mallory] = [(), ()].map(|()| {
            let mut client = proxy.client(version);
            client.query(1, "USE ks1");
            assert_eq!(client.receive().header.opcode, Opcode::Result);
            client
        });
        let long = format!("USE ks2{}", ";".repeat(200_000));
        for text in [&*long, "/* */ use ks2 ; ; and more", "USE ks2 .", "USE ks2 \u{a0}"] {
            mallory.query(3, text);
            assert_eq!(error_of(&mallory.receive()).0, ErrorCode::Invalid, "{version:?}");
            assert_eq!(ask(&mut honest), Ok("ks1".to_owned()));
        }
        assert_eq!(mallory.prepare(&long).header.opcode, Opcode::Result);
        mallory.execute(4, b"a use");
        assert_eq!(error_of(&mallory.receive()).0, ErrorCode::Invalid, "{version:?}");
        for client in [&mut honest, &mut mallory] {
            assert_eq!(ask(client), Ok("ks1".to_owned()));
        }
    }
    assert_eq!(moved.load(Ordering::SeqCst), 0, "the database was never told to move");
}
