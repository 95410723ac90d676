//! What the log says to the operator of a cache.

use std::env;
use std::fmt::{Debug, Write};
use std::process::Command;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::world::{Life, World};
use crate::api::{DropReason, PutOptions};

/// Collects warnings.
#[derive(Clone, Default)]
struct Warnings(Arc<Mutex<Vec<String>>>);

struct LogLine(String);

impl Visit for LogLine {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        write!(self.0, "{}={value:?} ", field.name()).expect("a string takes everything");
    }
}

impl Subscriber for Warnings {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn event(&self, event: &Event<'_>) {
        let mut line = LogLine(String::new());
        event.record(&mut line);
        self.0.lock().expect("no panic under it").push(line.0);
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

impl Warnings {
    fn of_the_index(&self) -> Vec<String> {
        let all = self.0.lock().expect("no panic under it");
        all.iter().filter(|line| line.contains("the index is full")).cloned().collect()
    }
}

fn put(world: &mut World, life: &mut Life, n: u64) {
    // Refused ones go nowhere: the next is as good.
    let _ = life.namespaces[0].put(&n.to_le_bytes(), &[7; 100], PutOptions::default());
    if n.is_multiple_of(16) {
        world.clock.pass(100);
        world.turn(life);
    }
}

/// Set in the process that runs nothing but the check.
const ALONE: &str = "AFTERGLOW_TEST_ALONE";

// This runs in a process of its own. While there is a single collector, `tracing` asks only that of
// the thread that first reaches a warning. If that is another test's thread, which has no
// collector, the warning is off for all.
#[test]
fn an_index_too_small_for_what_flash_could_hold_is_told_once() {
    if env::var_os(ALONE).is_some() {
        return check_that_a_full_index_is_told_once();
    }
    let alone = Command::new(env::current_exe().expect("the test binary has a path"))
        .args([
            "--exact",
            "sim::warnings::an_index_too_small_for_what_flash_could_hold_is_told_once",
        ])
        .env(ALONE, "1")
        .output()
        .expect("the test binary starts again");
    let printed = String::from_utf8_lossy(&alone.stdout);
    assert!(alone.status.success() && printed.contains("1 passed"), "{printed}");
}

fn check_that_a_full_index_is_told_once() {
    let warnings = Warnings::default();
    tracing::subscriber::with_default(warnings.clone(), || {
        let mut world = World::sized(16 << 20, 256 << 10, 8 << 20, 1 << 20);
        (world.config.index_memory, world.config.shards) = (Some(64 << 10), 1);
        world.config.index_growth = false;
        let mut life = world.open_as_configured().expect("opens");
        let slots = life.core.shards[0].index.slots() as u64;
        let lost = |life: &Life| life.core.totals.dropped_for(DropReason::IndexFull);
        let mut n = 0;
        // Lines fill unevenly: the first few slots that are given to others are no news.
        while lost(&life) <= slots / 200 {
            assert!(n < 8 * slots, "the index was never full: {:?}", life.core.stats());
            put(&mut world, &mut life, n);
            n += 1;
        }
        assert_eq!(warnings.of_the_index(), [""; 0], "{} of {slots} slots", lost(&life));
        for _ in 0..4 * slots {
            put(&mut world, &mut life, n);
            n += 1;
        }
        let told = warnings.of_the_index();
        assert_eq!(told.len(), 1, "{told:?}");
        assert!(told[0].contains("Configure more memory"), "{told:?}");
    });
}
