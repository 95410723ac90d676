//! Prepared statements: clients notice nothing of a database that forgets, a restart or an ALTER.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Opcode, Version};
use afterglow_cql::message::{self, Consistency, QueryParams};
use afterglow_cql::response::{self, ErrorBody, MetadataFlags, Response, ResultBody};
use afterglow_testkit::fake_backend::{FakeBackend, TEXT, rows_body};

use crate::client::{Client, error_of, text_of};
use crate::database::{a_keyspace, prepares, scripted};
use crate::proxy::Proxy;

#[test]
fn a_statement_the_database_forgot_is_prepared_again_unseen() {
    let executions = Arc::new(AtomicUsize::new(0));
    let counter = executions.clone();
    let fake = scripted(Version::V5, move |ask| {
        if ask.opcode() == Opcode::Execute {
            let id = b"SELECT v FROM ks.t WHERE k = 1";
            match counter.fetch_add(1, Ordering::SeqCst) {
                0 => ask.error(&ErrorBody::unprepared("forgotten", id)),
                _ => ask.text_row("one"),
            }
            return true;
        }
        prepares(ask, &[])
    });
    let proxy = Proxy::before(fake.address());
    for &version in Version::ALL {
        executions.store(0, Ordering::SeqCst);
        let mut client = proxy.client(version);
        let answer = client.prepare("SELECT v FROM ks.t WHERE k = 1");
        assert_eq!(answer.header.opcode, Opcode::Result);
        client.execute(9, b"SELECT v FROM ks.t WHERE k = 1");
        let answer = client.receive();
        assert_eq!((answer.header.stream, text_of(&answer)), (9, "one".to_owned()));
        assert_eq!(executions.load(Ordering::SeqCst), 2);
    }
}

#[test]
fn a_database_that_forgets_at_once_what_it_has_just_prepared_is_told_again_but_not_for_ever() {
    let (executions, keeps_after) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(5)));
    let (counter, limit) = (executions.clone(), keeps_after.clone());
    let fake = scripted(Version::V5, move |ask| {
        let is_execute = ask.opcode() == Opcode::Execute;
        if is_execute {
            let id = b"SELECT v FROM ks.t WHERE k = 1";
            match counter.fetch_add(1, Ordering::SeqCst) < limit.load(Ordering::SeqCst) {
                true => ask.error(&ErrorBody::unprepared("evicted", id)),
                false => ask.text_row("one"),
            }
        }
        is_execute || prepares(ask, &[])
    });
    let proxy = Proxy::before(fake.address());
    let mut client = proxy.client(Version::V4);
    client.prepare("SELECT v FROM ks.t WHERE k = 1");
    client.execute(9, b"SELECT v FROM ks.t WHERE k = 1");
    assert_eq!(text_of(&client.receive()), "one");
    assert_eq!(executions.swap(0, Ordering::SeqCst), 6);

    keeps_after.store(usize::MAX, Ordering::SeqCst);
    client.execute(10, b"SELECT v FROM ks.t WHERE k = 1");
    assert_eq!(error_of(&client.receive()).0, ErrorCode::Unprepared, "it never keeps it");
    assert!(executions.load(Ordering::SeqCst) < 20);
}

/// A database in which `SELECT * FROM ks.t WHERE k = 1` has a column more from each `ALTER` on, and
/// is forgotten by it. It leaves the columns out of its rows where it is asked to, as Cassandra
/// does before v5.
fn altering() -> FakeBackend {
    let (columns, known) = (Arc::new(AtomicUsize::new(1)), Arc::new(AtomicBool::new(false)));
    scripted(Version::V5, move |ask| {
        const ALL: [&str; 4] = ["v", "w", "x", "y"];
        let now = columns.load(Ordering::SeqCst);
        match ask.opcode() {
            Opcode::Query if ask.text.starts_with("ALTER") => {
                columns.store(now + 1, Ordering::SeqCst);
                known.store(false, Ordering::SeqCst);
                let mut done = Vec::new();
                response::encode_void(&mut done);
                ask.reply(Opcode::Result, &done);
                true
            }
            Opcode::Prepare => {
                known.store(true, Ordering::SeqCst);
                ask.prepared(b"id", &[], &ALL[..now]);
                true
            }
            Opcode::Execute if !known.load(Ordering::SeqCst) => {
                ask.error(&ErrorBody::unprepared("forgotten", b"id"));
                true
            }
            Opcode::Execute => {
                let cells: Vec<&[u8]> = vec![b"cell"; now];
                let columns = ALL.map(|name| (name, TEXT));
                let mut whole = rows_body(ask.version(), &columns[..now], &[&cells]);
                let (_, message) =
                    message::parse(&ask.envelope.header, &ask.envelope.body).unwrap();
                let message::Request::Execute(execute) = message else { unreachable!() };
                if execute.params.skip_metadata {
                    whole =
                        [&[0, 0, 0, 2, 0, 0, 0, 5][..], &(now as u32).to_be_bytes(), &[0, 0, 0, 1]]
                            .concat();
                    cells.iter().for_each(|cell| whole.extend([&[0, 0, 0, 4], *cell].concat()));
                }
                ask.reply(Opcode::Result, &whole);
                true
            }
            _ => false,
        }
    })
}

#[test]
fn no_client_hears_unprepared_of_altered_tables_and_none_reads_new_rows_with_old_columns() {
    let fake = altering();
    let proxy = Proxy::before(fake.address());
    let (mut client, mut other) = (proxy.client(Version::V4), proxy.client(Version::V4));
    /// What PREPARE told both.
    const KNOWN: usize = 1;
    let execute = |client: &mut Client| {
        let mut body = Vec::new();
        let params = QueryParams { skip_metadata: true, ..QueryParams::new(Consistency::One) };
        message::Execute { id: b"id", result_metadata_id: None, params }
            .encode(Version::V4, &mut body);
        client.send(4, Opcode::Execute, &body);
        let answer = client.receive();
        let (_, message) = response::split(&answer.header, &answer.body).unwrap();
        let Ok(Response::Result(ResultBody::Rows(rows))) = Response::parse(&answer.header, message)
        else {
            panic!("no rows: {answer:?}");
        };
        let told = match rows.metadata.flags.contains(MetadataFlags::NO_METADATA) {
            true => KNOWN,
            false => rows.metadata.columns.len(),
        };
        assert_eq!(rows.iter().next().unwrap().unwrap().cells().count(), told);
        told
    };
    client.prepare("SELECT * FROM ks.t WHERE k = 1");
    assert_eq!(
        (execute(&mut client), execute(&mut other)),
        (1, 1),
        "both take their columns from PREPARE"
    );
    for columns in 2..=4 {
        other.query(1, "ALTER TABLE ks.t ADD another text");
        assert_eq!(other.receive().header.opcode, Opcode::Result);
        for _ in 0..2 {
            assert_eq!((execute(&mut client), execute(&mut other)), (columns, columns));
        }
    }
}

#[test]
fn a_restart_of_ours_and_of_the_database_shows_no_client_an_unprepared() {
    let fake = altering();
    let directory = tempfile::tempdir().unwrap();
    let plans = directory.path().join("plans");
    let proxy = Proxy::keeping(fake.address(), plans.clone());
    let mut client = proxy.client(Version::V5);
    client.prepare("SELECT * FROM ks.t WHERE k = 1");
    drop(proxy);
    for forgets in [false, true] {
        let proxy = Proxy::keeping(fake.address(), plans.clone());
        let mut client = proxy.client(Version::V5);
        if forgets {
            client.query(1, "ALTER TABLE ks.t ADD another text");
            client.receive();
        }
        client.execute(9, b"id");
        assert_eq!(text_of(&client.receive()), "cell");
        client.execute(9, b"of somebody else");
        assert_eq!(error_of(&client.receive()).0, ErrorCode::Unprepared);
    }
    std::fs::write(&plans, "not a file of ours").unwrap();
    let proxy = Proxy::keeping(fake.address(), plans);
    let mut client = proxy.client(Version::V5);
    client.execute(9, b"id");
    assert_eq!(
        error_of(&client.receive()).0,
        ErrorCode::Unprepared,
        "and the driver prepares again"
    );
    client.prepare("SELECT * FROM ks.t WHERE k = 1");
    client.execute(9, b"id");
    assert_eq!(text_of(&client.receive()), "cell");
}

/// It was prepared in a keyspace that is gone, and names its table's.
#[test]
fn a_statement_of_a_session_whose_keyspace_was_dropped_is_prepared_again_unseen() {
    const READ: &str = "SELECT v FROM ks.t WHERE k = 1";
    let forgotten = Arc::new(AtomicBool::new(false));
    let flag = forgotten.clone();
    let fake = scripted(Version::V4, move |ask| {
        if ask.opcode() == Opcode::Prepare {
            flag.store(false, Ordering::SeqCst);
        }
        if ask.opcode() != Opcode::Execute {
            return prepares(ask, &[]);
        }
        match flag.load(Ordering::SeqCst) {
            true => ask.error(&ErrorBody::unprepared("forgotten", READ.as_bytes())),
            false => ask.text_row("one"),
        }
        true
    });
    let proxy = Proxy::before(fake.address());
    let mut client = proxy.client(Version::V4);
    for text in [&*a_keyspace("old"), "USE old"] {
        client.query(1, text);
        assert_eq!(client.receive().header.opcode, Opcode::Result, "{text}");
    }
    client.prepare(READ);
    client.query(1, "DROP KEYSPACE old");
    assert_eq!(client.receive().header.opcode, Opcode::Result);
    fake.hang_up();
    forgotten.store(true, Ordering::SeqCst);
    let answer = loop {
        client.execute(9, READ.as_bytes());
        let answer = client.receive();
        // Before the connections are there again it is not sent.
        if answer.header.opcode == Opcode::Result || error_of(&answer).0 == ErrorCode::Unprepared {
            break answer;
        }
    };
    assert_eq!(text_of(&answer), "one");
}

#[test]
fn an_unknown_prepared_id_never_reaches_the_database() {
    let reached = Arc::new(AtomicBool::new(false));
    let flag = reached.clone();
    let fake = scripted(Version::V5, move |ask| {
        if ask.opcode() == Opcode::Execute {
            flag.store(true, Ordering::SeqCst);
        }
        false
    });
    let proxy = Proxy::before(fake.address());
    let mut client = proxy.client(Version::V4);
    client.execute(1, b"\xde\xad");
    let (code, text) = error_of(&client.receive());
    assert_eq!(code, ErrorCode::Unprepared);
    assert!(text.contains("ID dead not found"), "{text}");
    assert!(!reached.load(Ordering::SeqCst));
}
