//! News of the schema, and the control connection that they come over.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use afterglow::frontend::cql::PassThrough;
use afterglow::reactor::Driver;
use afterglow_cql::frame::{Opcode, Version};
use afterglow_cql::message::Register;
use afterglow_cql::response::{Event, SchemaChange, SchemaTarget};

use crate::database::{echo, scripted};
use crate::proxy::Proxy;

#[test]
fn a_schema_change_is_told_although_the_control_connection_is_lost_over_it() {
    let control = Arc::new(Mutex::new(None));
    let cut = Arc::new(AtomicBool::new(false));
    let (keeper, knife) = (control.clone(), cut.clone());
    let fake = scripted(Version::V5, move |ask| {
        if ask.opcode() == Opcode::Register {
            keeper.lock().unwrap().replace(ask.clone());
        }
        if ask.text.contains("system_schema.") && knife.swap(false, Ordering::SeqCst) {
            ask.hang_up();
            return true;
        }
        echo(ask)
    });
    let proxy = Proxy::before(fake.address());
    let mut client = proxy.client(Version::V4);
    let mut body = Vec::new();
    Register::encode(&["SCHEMA_CHANGE"], &mut body);
    client.send(1, Opcode::Register, &body);
    assert_eq!(client.receive().header.opcode, Opcode::Ready);
    let mut event = Vec::new();
    let change =
        SchemaChange { change: "UPDATED", keyspace: "ks", target: SchemaTarget::Table("t") };
    Event::Schema(change).encode(&mut event);
    cut.store(true, Ordering::SeqCst);
    control.lock().unwrap().take().unwrap().event(&event);
    assert_eq!(client.receive().body, event[..]);
    assert!(!cut.load(Ordering::SeqCst), "the connection was lost");
}

#[test]
fn the_control_connection_outlives_an_attempt_that_failed() {
    let broken = scripted(Version::V5, |ask| {
        ask.hang_up();
        true
    });
    // Of a database that speaks v4 alone the attempt in v5 fails.
    for (highest, contact) in [(Version::V5, Some(broken.address())), (Version::V4, None)] {
        let listener = Arc::new(Mutex::new(None));
        let first = listener.clone();
        let fake = scripted(highest, move |ask| {
            if ask.opcode() == Opcode::Register {
                first.lock().unwrap().get_or_insert_with(|| ask.clone());
            }
            echo(ask)
        });
        let contacts: Vec<_> = contact.into_iter().chain([fake.address()]).collect();
        let proxy = Proxy::with_contacts(&contacts, Driver::Auto, Arc::new(PassThrough));
        let mut client = proxy.client(Version::V4);
        let mut body = Vec::new();
        Register::encode(&["SCHEMA_CHANGE"], &mut body);
        client.send(1, Opcode::Register, &body);
        assert_eq!(client.receive().header.opcode, Opcode::Ready);
        let change =
            SchemaChange { change: "UPDATED", keyspace: "ks", target: SchemaTarget::Table("t") };
        let mut event = Vec::new();
        Event::Schema(change).encode(&mut event);
        // Told on the first connection that was listened on, and on no other.
        listener.lock().unwrap().as_ref().unwrap().event(&event);
        assert_eq!(client.receive().header.opcode, Opcode::Event, "{highest}");
    }
}

#[test]
fn schema_events_reach_those_who_registered_and_node_events_nobody() {
    let control = Arc::new(Mutex::new(None));
    let keeper = control.clone();
    let fake = scripted(Version::V5, move |ask| {
        if ask.opcode() == Opcode::Register {
            keeper.lock().unwrap().replace(ask.clone());
        }
        echo(ask)
    });
    let proxy = Proxy::before(fake.address());
    let mut listening = proxy.client(Version::V4);
    let mut deaf = proxy.client(Version::V5);
    let mut body = Vec::new();
    Register::encode(&["SCHEMA_CHANGE", "STATUS_CHANGE"], &mut body);
    let mut old = proxy.client(Version::V3);
    for client in [&mut listening, &mut old] {
        client.send(1, Opcode::Register, &body);
        assert_eq!(client.receive().header.opcode, Opcode::Ready);
    }
    let control = control.lock().unwrap().take().unwrap();
    let (mut status, mut schema) = (Vec::new(), Vec::new());
    Event::Status { change: "DOWN", address: "10.0.0.1".parse().unwrap(), port: 9042 }
        .encode(&mut status);
    let change =
        SchemaChange { change: "UPDATED", keyspace: "ks", target: SchemaTarget::Table("t") };
    Event::Schema(change).encode(&mut schema);
    control.event(&status);
    control.event(&schema);
    let change = SchemaChange {
        change: "CREATED",
        keyspace: "ks",
        target: SchemaTarget::Function("f", afterglow_cql::frame::notation::StringList::default()),
    };
    let mut function = Vec::new();
    Event::Schema(change.clone()).encode(&mut function);
    control.event(&function);
    let updated = SchemaChange { change: "UPDATED", target: SchemaTarget::Keyspace, ..change };
    let mut keyspace = Vec::new();
    Event::Schema(updated).encode(&mut keyspace);
    for expected in [&schema, &keyspace] {
        assert_eq!(old.receive().body, expected[..], "v3 knows no functions");
    }
    let event = listening.receive();
    assert_eq!(
        (event.header.stream, event.header.opcode, &event.body[..]),
        (-1, Opcode::Event, &schema[..])
    );
    assert_eq!(deaf.ask("SELECT v FROM ks.t"), "SELECT v FROM ks.t");
}
