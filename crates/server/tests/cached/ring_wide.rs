//! Writes of unknown outcome in a ring. Of whole tables, and of rows whose key the database makes:
//! what they cannot have touched goes on being cached by all members. Of transactions: a SERIAL
//! read decides them, and their partition is cached again. And batches that name more than any
//! client needs.

use std::time::Duration;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Opcode, Version};
use afterglow_cql::message::Consistency;
use afterglow_cql::response::{ErrorBody, ErrorDetail};
use afterglow_testkit::fake_backend::FakeBackend;

use crate::node::{Client, furnished, wait_until};
use crate::ring_world::World;

/// Longer than a test.
const HOLD: Duration = Duration::from_secs(3_600);

/// Two members over a database that answers nothing of `ks.ids` in time, and no transaction.
fn world() -> World {
    let database = FakeBackend::scripted(Version::MAX, |ask| {
        let message = "nobody knows";
        let is_transaction = ask.text.starts_with("UPDATE ks.t ");
        let is_lost = ask.text.contains("ks.ids") && !ask.text.starts_with("CREATE");
        if is_transaction {
            let consistency = Consistency::Serial;
            let detail = ErrorDetail::CasWriteUnknown { consistency, received: 1, block_for: 2 };
            ask.error(&ErrorBody { code: ErrorCode::CasWriteUnknown, message, detail });
        } else if is_lost {
            let (code, detail) = (ErrorCode::Truncate, ErrorDetail::Other(&[]));
            ask.error(&ErrorBody { code, message, detail });
        }
        is_transaction || is_lost
    });
    let mut world = World::over(furnished(database.unwrap()), 2);
    for setup in &mut world.setups {
        setup.hold = HOLD;
        setup.ring.as_mut().unwrap().protocol.hold = HOLD.as_micros() as u64;
    }
    (0..2).for_each(|member| world.start(member));
    world.settle();
    world
}

/// Rows of all owners.
fn all_are_cached(world: &World, client: &mut Client) {
    for n in 0..20 {
        wait_until("it is cached", || {
            let reads = world.database.reads();
            client.value(&format!("k{n}"));
            world.database.reads() == reads
        });
    }
}

#[test]
fn an_unknown_outcome_keeps_no_other_table_from_being_cached() {
    for text in ["INSERT INTO ks.ids (k, v) VALUES (uuid(), 'x')", "TRUNCATE ks.ids"] {
        let world = world();
        let (mut writer, mut reader) = (world.client(0), world.client(1));
        assert!(writer.try_run(text).is_err(), "{text}");
        for member in [&mut reader, &mut writer] {
            all_are_cached(&world, member);
        }
    }
}

/// Members ask whether the database's SERIAL reads decide transactions.
#[test]
fn a_transaction_of_unknown_outcome_is_decided_by_a_serial_read() {
    let world = world();
    let (mut writer, mut reader) = (world.client(0), world.client(1));
    for n in 0..20 {
        let text = format!("UPDATE ks.t SET v = 'two' WHERE k = 'k{n}' IF v = 'one'");
        assert!(writer.try_run(&text).is_err(), "{text}");
    }
    for member in [&mut reader, &mut writer] {
        all_are_cached(&world, member);
    }
}

/// Owners were never asked for what was longer than a link takes, and each try counted as one that
/// they did not grant.
#[test]
fn a_batch_of_very_many_unknown_tables_puts_nobody_out_and_costs_no_hits() {
    let mut world = World::new(2);
    // A busy machine is silent for longer than a member may be. Shorter than a write may take: who
    // grants nothing for so long is put out.
    world.setups.iter_mut().for_each(|setup| {
        setup.ring.as_mut().unwrap().protocol.silence = 2_000_000;
    });
    (0..2).for_each(|member| world.start(member));
    world.settle();
    let mut clients = [0, 1].map(|member| world.client(member));
    for client in &mut clients {
        all_are_cached(&world, client);
    }
    let members = || {
        let status = world.node(0).ring().status();
        status.members.into_iter().map(|one| (one.id, one.state, one.shards)).collect::<Vec<_>>()
    };
    let (before, reads) = (members(), world.database.reads());
    let long = "x".repeat(10_000);
    let names: Vec<_> =
        (0..1_000).map(|n| format!("INSERT INTO ks.{long}{n} (k) VALUES ('a')")).collect();
    let answer = clients[0].batch(&names, Consistency::Quorum);
    assert_eq!(answer.header.opcode, Opcode::Error, "there are no such tables");
    assert_eq!(world.count(&["afterglow_ring_link_dropped_total", "too_long"]), 0);
    assert_eq!(members(), before, "nobody was put out");
    for client in &mut clients {
        (0..20).for_each(|n| drop(client.value(&format!("k{n}"))));
    }
    assert_eq!(world.database.reads(), reads, "all are hits still");
}
