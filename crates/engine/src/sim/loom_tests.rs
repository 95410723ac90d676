//! Publication of a location on flash, under every interleaving with changes of the key, within
//! bounds (`make models`). The code is the engine's own, on a simulated machine.
//!
//! A lookup, a copy to flash, a reclaim or a move to another device may have seen an old state of a
//! key. It must leave nothing in the DRAM tier or the index that is older than what was
//! acknowledged while it ran.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use loom::sync::atomic::AtomicBool;
use loom::thread;

use super::plan::{Setup, Size};
use super::scenarios::{NS, put_first_in_segment};
use super::world::{Life, World};
use crate::api::{PutOptions, PutOutcome};
use crate::core::Core;
use crate::device::DeviceId;
use crate::namespace::Namespace;
use crate::ops::get::Lookup;

const KEY: &[u8] = b"key";
const OLD: &[u8] = b"old";
const NEW: &[u8] = b"new";

/// Turns in which a segment is reclaimed at the latest.
const TURNS: usize = 100;
/// The stack of a model's own thread, in words.
const STACK_WORDS: usize = 128 << 10;

/// Runs a model in every order in which threads are interrupted at most so often.
///
/// The model is a thread of its own, for the stack of the first one is too small to open a cache.
fn explore(interruptions: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(interruptions);
    // Opening a cache is many of them, with nobody beside it.
    builder.max_branches = 1_000_000;
    let model = Arc::new(model);
    builder.check(move || {
        let model = model.clone();
        let whole = thread::Builder::new().stack_size(STACK_WORDS).spawn(move || model());
        whole.expect("a thread can be made").join().expect("the model holds");
    });
}

fn small() -> (World, Life) {
    small_on(vec![8])
}

fn small_on(segments: Vec<u32>) -> (World, Life) {
    let size = Size { shards: 1, lines: 1, dram: 4 << 10 };
    let setup = Setup { segment_kib: 16, segments, journal_kib: 8, size, ..Setup::plain(1) };
    let mut world = World::new(&setup);
    let life = world.open();
    (world, life)
}

/// What a thread has of the cache.
#[derive(Clone)]
struct User {
    core: Arc<Core>,
    ns: Namespace,
}

impl User {
    fn of(life: &Life) -> Self {
        Self { core: life.core.clone(), ns: life.namespaces[NS].clone() }
    }

    fn put(&self, value: &[u8]) {
        let outcome = self.ns.put(KEY, value, PutOptions::default());
        assert!(matches!(outcome, PutOutcome::Stored { .. }), "{outcome:?}");
    }

    /// Looks the key up, which takes a copy to the DRAM tier if it may; what it has found.
    fn get(&self) -> Option<Vec<u8>> {
        let mut lookup = self.ns.get(KEY);
        while let Lookup::Flash(read) = lookup {
            let bytes = self.core.set.read_at(read.device(), read.offset(), read.len());
            lookup = read.finish(bytes);
        }
        if let Lookup::Hit(hit) = lookup { Some(hit.value.to_vec()) } else { None }
    }

    /// Another thread that looks the key up and finds either object, or none.
    fn reads_either(&self) -> thread::JoinHandle<()> {
        let user = self.clone();
        thread::spawn(move || {
            let found = user.get();
            assert!(
                [Some(OLD), Some(NEW)].contains(&found.as_deref()) || found.is_none(),
                "{found:?}"
            );
        })
    }

    /// Has the key's newest object be in the log and nowhere else.
    fn demote(&self) {
        let hash = self.core.hash(NS as u16, KEY);
        let mut shard = self.core.shard(hash).lock();
        let entry = shard.dram.peek(hash, NS as u16, KEY).map(|object| object.to_entry());
        if let Some(entry) = entry {
            assert!(self.core.copy_out(&mut shard, &entry, true));
            shard.dram.remove(hash, NS as u16, KEY);
        }
    }
}

/// A cache with the older object in DRAM.
fn with_old() -> User {
    let user = User::of(&small().1);
    user.put(OLD);
    user
}

/// A cache with the older object in the log alone.
fn with_old_demoted() -> User {
    let user = with_old();
    user.demote();
    user
}

#[test]
fn a_promotion_does_not_bring_back_what_was_removed_meanwhile() {
    explore(3, || {
        let (user, removed) = (with_old_demoted(), Arc::new(AtomicBool::new(false)));
        let reader = {
            let (user, removed) = (user.clone(), removed.clone());
            thread::spawn(move || {
                let gone = removed.load(Ordering::Acquire);
                let found = user.get();
                assert!(
                    found.is_none() || (!gone && found.as_deref() == Some(OLD)),
                    "{gone}: {found:?}"
                );
            })
        };
        user.ns.remove(KEY);
        removed.store(true, Ordering::Release);
        assert_eq!(user.get(), None);
        reader.join().expect("the reader saw nothing wrong");
        assert_eq!(user.get(), None, "promoted after its removal");
    });
}

#[test]
fn a_promotion_does_not_cover_what_was_put_and_demoted_meanwhile() {
    explore(3, || {
        let user = with_old_demoted();
        let reader = user.reads_either();
        user.put(NEW);
        user.demote();
        assert_eq!(user.get().as_deref(), Some(NEW));
        reader.join().expect("the reader saw nothing wrong");
        assert_eq!(user.get().as_deref(), Some(NEW), "an older copy was promoted");
    });
}

#[test]
fn an_object_on_its_way_from_dram_to_flash_is_found() {
    explore(3, || {
        let user = with_old();
        let reader = {
            let user = user.clone();
            thread::spawn(move || assert_eq!(user.get().as_deref(), Some(OLD), "lost on its way"))
        };
        user.demote();
        reader.join().expect("the reader saw nothing wrong");
        assert_eq!(user.get().as_deref(), Some(OLD));
    });
}

#[test]
fn a_demotion_does_not_bring_back_what_is_removed_meanwhile() {
    explore(3, || {
        let user = with_old();
        let background = {
            let user = user.clone();
            thread::spawn(move || user.demote())
        };
        user.ns.remove(KEY);
        assert_eq!(user.get(), None);
        background.join().expect("it was written or gone");
        assert_eq!(user.get(), None, "written after its removal");
    });
}

/// A lookup reads what it is to write again on another device, beside a put that is copied.
#[test]
fn a_move_to_another_device_does_not_cover_what_is_put_meanwhile() {
    let runs = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let count = runs.clone();
    explore(2, move || {
        let (mut world, mut life) = small_on(vec![8, 8]);
        put_first_in_segment(&mut world, &mut life, KEY, OLD);
        let user = User::of(&life);
        // Asked for since it was written, and not in DRAM: it moves when it is read.
        let hash = user.core.hash(NS as u16, KEY);
        let slot = user.core.shard(hash).index.lookup(hash).expect("it is on flash");
        let table = &user.core.table;
        let from = table.place(slot.location().segment).device;
        table.begin_relief(|device| device == from, DeviceId(1 - from.0));
        table.grant_relief(1 << 10, 1 << 10);
        let reader = user.reads_either();
        user.put(NEW);
        user.demote();
        assert_eq!(user.get().as_deref(), Some(NEW));
        reader.join().expect("the reader saw nothing wrong");
        assert_eq!(user.get().as_deref(), Some(NEW), "an older record has moved");
        let moved = user.core.totals.relocated_bytes.get() > 0;
        count[usize::from(moved)].fetch_add(1, Ordering::Relaxed);
    });
    assert!(runs.iter().all(|n| n.load(Ordering::Relaxed) > 0), "moved or not: {runs:?}");
}

/// The background work reads what it is to write again, and writes it, beside a removal.
#[test]
fn a_reclaim_does_not_bring_back_what_is_removed_meanwhile() {
    let runs = Arc::new([AtomicU64::new(0), AtomicU64::new(0)]);
    let count = runs.clone();
    explore(2, move || {
        let (mut world, mut life) = small();
        put_first_in_segment(&mut world, &mut life, KEY, OLD);
        let user = User::of(&life);
        // Asked for since it was written, and not in DRAM: it is worth keeping.
        let hash = user.core.hash(NS as u16, KEY);
        assert!(user.core.shard(hash).index.lookup(hash).is_some(), "it is on flash");
        while user.core.table.free_count() > user.core.admission.free_target {
            user.core.table.take_free().expect("one is free");
        }
        let background = {
            let user = user.clone();
            thread::spawn(move || {
                for _ in 0..TURNS {
                    if user.core.totals.segments_reclaimed.get() > 0 {
                        break;
                    }
                    world.turn(&mut life);
                }
            })
        };
        assert!(user.ns.remove(KEY) > 0);
        assert_eq!(user.get(), None);
        background.join().expect("background work goes on");
        assert_eq!(user.get(), None, "what the reclaim has read came back");
        assert_eq!(
            user.core.totals.segments_reclaimed.get(),
            1,
            "no test: {:?}",
            user.core.stats()
        );
        let again = user.core.totals.reinserted_bytes.get() > 0;
        count[usize::from(again)].fetch_add(1, Ordering::Relaxed);
    });
    assert!(runs.iter().all(|n| n.load(Ordering::Relaxed) > 0), "written again or not: {runs:?}");
}
