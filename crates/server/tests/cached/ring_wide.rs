//! Writes to whole tables, and of rows whose key the database makes, whose outcome is unknown: what
//! they cannot have touched goes on being cached by all members.

use std::time::Duration;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::Version;
use afterglow_cql::response::{ErrorBody, ErrorDetail};
use afterglow_testkit::fake_backend::FakeBackend;

use crate::node::{Client, furnished, wait_until};
use crate::ring_world::World;

/// Longer than a test.
const HOLD: Duration = Duration::from_secs(3_600);

/// Two members over a database that answers nothing of `ks.ids` in time.
fn world() -> World {
    let database = FakeBackend::scripted(Version::MAX, |ask| {
        let is_lost = ask.text.contains("ks.ids") && !ask.text.starts_with("CREATE");
        if is_lost {
            let message = "nobody knows";
            let (code, detail) = (ErrorCode::Truncate, ErrorDetail::Other(&[]));
            ask.error(&ErrorBody { code, message, detail });
        }
        is_lost
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
