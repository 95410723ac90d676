//! A database that asks for logins.

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;

use afterglow_cql::frame::Version;
use afterglow_loadgen::cql::{ConnectOptions, Connection, CqlError};
use tempfile::TempDir;

use crate::node::{Client, House, Setup, database, wait_until};

/// Connections that a user may have, however many clients it has: one for each version, keyspace
/// and reactor of theirs.
const MOST_CONNECTIONS: u64 = 3 * 2 * 2;
/// Connections that there may be to a node for one user, in however many keyspaces its clients are.
const PLACES: usize = 64;

/// A house whose database knows `afterglow`, `alice` who may read `ks.t`, and `bob` who may not.
fn guarded(with_credentials: bool) -> House {
    let (database, directory) = (database(), TempDir::new().unwrap());
    for (user, password) in [("afterglow", "own"), ("alice", "secret"), ("bob", "bob")] {
        database.add_user(user, password);
    }
    database.grant_read("alice", "ks.t", true);
    let mut setup = Setup::new(directory.path(), &database, "ks.*=max-staleness=1h");
    if with_credentials {
        setup.credentials = Some(own_credentials(&directory));
    }
    House { node: setup.start(), database, directory }
}

/// A file with the password of the user `afterglow`, which is `own`.
pub fn own_credentials(directory: &TempDir) -> PathBuf {
    let file = directory.path().join("credentials");
    std::fs::write(&file, "username = \"afterglow\"\npassword = \"own\"\n").unwrap();
    std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).unwrap();
    file
}

fn log_in(house: &House, user: &str, password: &str) -> Client {
    house.node.log_in(Version::V4, user, password).unwrap()
}

#[test]
fn a_user_who_may_read_is_answered_from_the_cache_and_nobody_else_is() {
    let house = guarded(true);
    for &version in Version::ALL {
        let key = format!("k{}", version.as_u8());
        let mut alice = house.node.log_in(version, "alice", "secret").unwrap();
        alice.put(&key, "1");
        // The second comes from the cache if the first filled it.
        wait_until("a hit", || {
            let hits = house.node.hits();
            assert_eq!(alice.value(&key).as_deref(), Some("1"));
            house.node.hits() > hits
        });
        let mut bob = house.node.log_in(version, "bob", "bob").unwrap();
        for _ in 0..3 {
            let hits = house.node.hits();
            let refused =
                bob.try_run(&format!("SELECT v FROM ks.t WHERE k = '{key}'")).unwrap_err();
            assert!(refused.to_string().contains("no SELECT permission"), "{refused}");
            assert_eq!(house.node.hits(), hits);
        }
    }
}

#[test]
fn what_is_revoked_ends_and_what_is_granted_begins() {
    let house = guarded(true);
    let (mut alice, mut bob) = (log_in(&house, "alice", "secret"), log_in(&house, "bob", "bob"));
    let read = "SELECT v FROM ks.t WHERE k = 'a'";
    alice.put("a", "1");
    wait_until("a hit", || {
        alice.run(read);
        house.node.hits() > 0
    });
    house.database.grant_read("alice", "ks.t", false);
    house.database.grant_read("bob", "ks.t", true);
    wait_until("the refusal is heard of", || alice.try_run(read).is_err());
    assert!(alice.try_run(read).is_err(), "and it stays so");
    let hits = house.node.hits();
    bob.run(read);
    wait_until("a hit of the other user", || {
        bob.run(read);
        house.node.hits() > hits
    });
}

#[test]
fn a_wrong_password_is_refused_in_the_databases_words_also_right_after_a_good_one() {
    let house = guarded(true);
    for _ in 0..2 {
        let mut alice = log_in(&house, "alice", "secret");
        alice.put("a", "1");
        let refused = house.node.log_in(Version::V5, "alice", "guess").err().unwrap().to_string();
        assert!(
            refused.contains("Provided username alice and/or password are incorrect"),
            "{refused}"
        );
    }
}

#[test]
fn many_clients_of_a_user_share_a_few_connections() {
    let house = guarded(true);
    let mut clients: Vec<Client> = Vec::new();
    for number in 0..60 {
        let version = Version::ALL[number % Version::ALL.len()];
        let mut client = house.node.log_in(version, "alice", "secret").unwrap();
        // Clients go to one reactor and the other in turn, so this is not every second one.
        if number / 2 % 2 == 0 {
            client.run("USE ks");
        }
        client.run("INSERT INTO ks.t (k, v) VALUES ('a', '1')");
        clients.push(client);
    }
    for client in &mut clients {
        assert_eq!(client.value("a").as_deref(), Some("1"));
    }
    let (logins, most) = house.database.logins("alice");
    assert!(most <= MOST_CONNECTIONS, "{most} connections at once, {logins} logins");
}

#[test]
fn who_guesses_a_password_ends_no_connection_of_its_owner() {
    let house = guarded(true);
    let mut owner = log_in(&house, "alice", "secret");
    for number in 0..PLACES {
        owner.run(&format!(
            "CREATE KEYSPACE k{number} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
        ));
    }
    // Clients go to one reactor and the other in turn. Each is in a keyspace of its own, so that it
    // has a connection of its own, until every place is taken.
    let mut clients = vec![owner];
    for number in 1..PLACES {
        let version = Version::ALL[number / 2 % Version::ALL.len()];
        let mut client = house.node.log_in(version, "alice", "secret").unwrap();
        client.run(&format!("USE k{number}"));
        clients.push(client);
    }
    // A login that the database was asked about again has made one more, in no keyspace. It has a
    // place until a client wants that place: those who lost theirs ask anew.
    let taken = (0..20).any(|_| {
        let (before, _) = house.database.logins("alice");
        clients.iter_mut().for_each(|client| client.put("a", "1"));
        house.database.logins("alice").0 == before
    });
    let before = house.database.logins("alice");
    assert!(taken && before.1 >= PLACES as u64, "every place is taken: {before:?}");
    for _ in 0..6 {
        assert!(house.node.log_in(Version::V4, "alice", "guess").is_err());
    }
    clients.iter_mut().for_each(|client| client.put("a", "2"));
    let after = house.database.logins("alice");
    assert_eq!(after, before, "all connections are still there");
}

#[test]
fn without_credentials_of_our_own_clients_log_in_and_nothing_is_cached() {
    let house = guarded(false);
    let mut alice = log_in(&house, "alice", "secret");
    alice.put("a", "1");
    for _ in 0..5 {
        assert_eq!(alice.value("a").as_deref(), Some("1"));
    }
    assert_eq!(house.node.hits(), 0);
    assert!(log_in(&house, "bob", "bob").try_run("SELECT v FROM ks.t WHERE k = 'a'").is_err());
}

#[test]
fn a_user_whose_password_changed_uses_the_new_one() {
    let house = guarded(true);
    log_in(&house, "alice", "secret").put("a", "1");
    house.database.add_user("alice", "new");
    house.database.hang_up();
    let mut alice = loop {
        // Whoever comes while connections are being lost may be told so.
        if let Ok(alice) = house.node.log_in(Version::V4, "alice", "new") {
            break alice;
        }
    };
    wait_until("the connections are there again", || {
        alice.try_run("SELECT v FROM ks.t WHERE k = 'a'").is_ok()
    });
}

#[test]
fn clients_of_no_name_are_not_answered_from_the_cache_once_the_database_asks_for_names() {
    let (database, directory) = (database(), TempDir::new().unwrap());
    let mut setup = Setup::new(directory.path(), &database, "ks.*=max-staleness=1h");
    setup.credentials = Some(own_credentials(&directory));
    let house = House { node: setup.start(), database, directory };
    let mut nameless = house.node.client(Version::V4);
    nameless.put("a", "1");
    wait_until("a hit", || {
        let hits = house.node.hits();
        assert_eq!(nameless.value("a").as_deref(), Some("1"));
        house.node.hits() > hits
    });
    house.database.add_user("afterglow", "own");
    house.database.add_user("alice", "secret");
    house.database.grant_read("alice", "ks.t", true);
    house.database.hang_up();
    wait_until("newcomers are asked who they are", || {
        let options = ConnectOptions { version: Version::V4, ..ConnectOptions::default() };
        let newcomer = Connection::open(&house.node.address.to_string(), &options);
        matches!(newcomer, Err(CqlError::Authentication(_)))
    });
    // Who may read is answered from the cache as ever: what was cached is still there, and the
    // schema is known again.
    wait_until("a hit of one who says a name", || {
        let hits = house.node.hits();
        let Ok(mut alice) = house.node.log_in(Version::V5, "alice", "secret") else { return false };
        let read = |alice: &mut Client| drop(alice.try_run("SELECT v FROM ks.t WHERE k = 'a'"));
        (0..3).for_each(|_| read(&mut alice));
        house.node.hits() > hits
    });
    let hits = house.node.hits();
    for _ in 0..3 {
        // What the database says to it does not matter here.
        let _ = nameless.try_run("SELECT v FROM ks.t WHERE k = 'a'");
    }
    assert_eq!(house.node.hits(), hits);
}
