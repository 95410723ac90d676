//! Messages to clients: the database's own, and those in its place.

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Flags, Opcode, Version};
use afterglow_cql::message::{Consistency, Query, QueryParams};
use afterglow_cql::response::ErrorBody;
use afterglow_testkit::fake_backend::{TEXT, rows_body};

use crate::client::{Client, error_of, text_of};
use crate::database::{echo, scripted};
use crate::proxy::Proxy;

#[test]
fn drivers_are_shown_this_proxy_and_no_other_node() {
    let fake = scripted(Version::V5, |_| false);
    let _peer = fake.join().unwrap();
    let proxy = Proxy::before(fake.address());
    let mut client = proxy.client(Version::V4);
    client.query(1, "SELECT rpc_address, rpc_port, host_id FROM system.local WHERE key='local'");
    let answer = client.receive();
    let port = u32::from(proxy.front_end.address().port()).to_be_bytes();
    let cells =
        [&[0, 0, 0, 4, 127, 0, 0, 1, 0, 0, 0, 4][..], &port, &[0, 0, 0, 16], &42u128.to_be_bytes()];
    assert!(answer.body.ends_with(&cells.concat()), "{:?}", answer.body);
    for table in ["peers", "peers_v2"] {
        client.query(1, &format!("SELECT peer FROM system.{table}"));
        assert!(client.receive().body.ends_with(&[0; 4]), "no rows in {table}");
    }
}

#[test]
fn a_traced_query_of_a_system_table_has_a_trace_and_the_rows_that_drivers_are_shown() {
    const TRACE: [u8; 16] = [9; 16];
    let fake = scripted(Version::V5, |ask| {
        let traced = ask.envelope.header.flags.contains(Flags::TRACING);
        if traced && ask.text.contains("system.local") {
            // Of a row that no driver may see.
            ask.reply_traced(
                TRACE,
                Opcode::Result,
                &rows_body(ask.version(), &[("v", TEXT)], &[&[b"theirs"]]),
            );
        } else if traced {
            let mut error = Vec::new();
            ErrorBody::new(ErrorCode::Overloaded, "not now").encode(&mut error);
            ask.reply_traced(TRACE, Opcode::Error, &error);
        }
        traced
    });
    let proxy = Proxy::before(fake.address());
    for version in [Version::V4, Version::V5] {
        let mut client = proxy.client(version);
        let mut ask = |text: &str| {
            let body = client.query_body(text);
            client.send_flagged(1, Flags::TRACING, Opcode::Query, &body);
            let answer = client.receive();
            assert!(
                answer.header.flags.contains(Flags::TRACING) && answer.body.starts_with(&TRACE)
            );
            answer
        };
        assert_eq!(text_of(&ask("SELECT cluster_name FROM system.local")), "Fake Cluster");
        assert_eq!(error_of(&ask("SELECT peer FROM system.peers")).1, "not now");
    }
}

#[test]
fn versions_beyond_the_database_are_refused_in_its_words() {
    let fake = scripted(Version::V4, echo);
    let proxy = Proxy::before(fake.address());
    // Started after the database is known.
    let mut old = proxy.client(Version::V4);
    assert_eq!(old.ask("SELECT v FROM ks.t"), "SELECT v FROM ks.t");
    let mut new = Client::connect(proxy.front_end.address(), Version::V5);
    let (code, text) = error_of(&new.startup());
    assert_eq!(code, ErrorCode::Protocol);
    assert_eq!(text, "Beta version of the protocol used (5/v5-beta), but USE_BETA flag is unset");
    // The connection lives on, as a server's does.
    new.version = Version::V4;
    assert_eq!(new.startup().header.opcode, Opcode::Ready);
    assert_eq!(new.ask("SELECT v FROM ks.t"), "SELECT v FROM ks.t");
}

#[test]
fn node_local_is_refused_in_the_databases_words_also_where_we_would_answer() {
    let dangerous = "NODE_LOCAL consistency level is highly dangerous";
    let unknown = "Unknown code 11 for a consistency level";
    let of_versions = [
        (Version::V4, true, Some((ErrorCode::Protocol, unknown))),
        (Version::V5, false, Some((ErrorCode::Invalid, dangerous))),
        (Version::V5, true, None),
    ];
    for (highest, allowed, refusal) in of_versions {
        let fake = scripted(highest, move |ask| {
            let refuses = !allowed && ask.consistency() == Some(Consistency::NodeLocal);
            if refuses {
                ask.error(&ErrorBody::new(ErrorCode::Invalid, dangerous));
            }
            refuses || echo(ask)
        });
        let proxy = Proxy::before(fake.address());
        let mut client = proxy.client(Version::V4);
        for text in ["SELECT cluster_name FROM system.local", "SELECT v FROM ks.t"] {
            let mut body = Vec::new();
            let params = QueryParams::new(Consistency::NodeLocal);
            Query { text, params }.encode(Version::V4, &mut body);
            client.send(1, Opcode::Query, &body);
            let answer = client.receive();
            match &refusal {
                None => assert_eq!(answer.header.opcode, Opcode::Result, "{text}"),
                Some((code, words)) => {
                    assert_eq!(error_of(&answer), (*code, (*words).into()), "{text}")
                }
            }
        }
    }
}

#[test]
fn misuse_is_answered_and_the_connection_lives() {
    let fake = scripted(Version::V5, echo);
    let proxy = Proxy::before(fake.address());
    let mut client = Client::connect(proxy.front_end.address(), Version::V4);
    client.query(1, "SELECT v FROM ks.early");
    assert_eq!(error_of(&client.receive()).0, ErrorCode::Protocol);
    assert_eq!(client.startup().header.opcode, Opcode::Ready);
    assert_eq!(error_of(&client.startup()).0, ErrorCode::Protocol);
    client.send(5, Opcode::Query, b"garbage");
    let answer = client.receive();
    assert_eq!((answer.header.stream, error_of(&answer).0), (5, ErrorCode::Protocol));
    assert_eq!(client.ask("SELECT v FROM ks.t"), "SELECT v FROM ks.t");
}

/// Its own tables, too. What it answers is answered here, and so is all of that while it is away.
#[test]
fn what_a_server_may_refuse_of_its_own_tables_it_refuses_in_its_own_words() {
    const DOUBTFUL: [&str; 5] = [
        "SELECT key FROM system.local WHERE key = ''",
        "SELECT key FROM system.local WHERE key = 'local' AND key = 'local'",
        "SELECT key FROM system.local USING TIMEOUT 5s",
        "SELECT key FROM system.local WHERE nothing = 'local'",
        "SELECT key FROM system.local LIMIT ?",
    ];
    let fake = scripted(Version::V5, |ask| {
        let refuses = DOUBTFUL.contains(&&*ask.text);
        if refuses {
            ask.error(&ErrorBody::new(ErrorCode::Invalid, "in its own words"));
        }
        refuses
    });
    let proxy = Proxy::before(fake.address());
    let mut client = proxy.client(Version::V4);
    for text in DOUBTFUL {
        client.query(7, text);
        let refusal = (ErrorCode::Invalid, "in its own words".into());
        assert_eq!(error_of(&client.receive()), refusal, "{text}");
    }
    for simple in
        ["SELECT key FROM system.local WHERE key = 'local'", "SELECT key FROM system.local"]
    {
        assert_eq!(client.ask(simple), "local");
    }
    drop(fake);
    assert_eq!(client.ask(DOUBTFUL[2]), "local");
}

/// Servers refuse it with the id of a trace, where the client asks for one.
#[test]
fn a_page_size_of_0_is_refused_and_the_database_refuses_it_where_it_is_traced() {
    let fake = scripted(Version::V5, echo);
    let proxy = Proxy::before(fake.address());
    let mut client = proxy.client(Version::V4);
    let params = QueryParams { page_size: Some(0), ..QueryParams::new(Consistency::One) };
    for (text, row) in
        [("SELECT key FROM system.local", "local"), ("SELECT v FROM ks.t", "SELECT v FROM ks.t")]
    {
        let mut body = Vec::new();
        Query { text, params }.encode(Version::V4, &mut body);
        client.send(6, Opcode::Query, &body);
        let refusal = (ErrorCode::Protocol, "The page size cannot be 0".into());
        assert_eq!(error_of(&client.receive()), refusal, "{text}");
        client.send_flagged(7, Flags::TRACING, Opcode::Query, &body);
        assert_eq!(text_of(&client.receive()), row, "it is the database's to answer");
    }
}
