//! Tests of what changes of the schema and of the data centre mean for cached rows.

use afterglow_cql::plan::{Column, RowKey, TableSchema};
use afterglow_engine::Lookup;
use afterglow_rowcache::gate::Join;
use afterglow_rowcache::serve::CachePermission;
use uuid::Uuid;

use super::super::testing::{fill, keyed, open, read_of};
use super::*;

#[test]
fn after_a_move_to_another_data_center_nothing_is_believed_for_long() {
    let table = TableSchema::new("ks".into(), "t".into(), Uuid::from_u128(7));
    let connected = |data_center: &str| ControlState::Connected {
        cluster: "c".into(),
        release: "5.0.5".into(),
        data_center: Some(data_center.into()),
    };
    let found = |data_center: &str| ControlState::Found { data_center: Some(data_center.into()) };
    // Its nodes are known from the first of them on.
    for moved in [found("b"), connected("b")] {
        let dir = tempfile::tempdir().unwrap();
        let (_engine, cached) = open(dir.path());
        let router = cached.router.clone();
        let is_weak = |state: ControlState| {
            router.control(state);
            self::is_weak(&router, &table)
        };
        let same = [found("a"), connected("a"), found("a"), connected("a")];
        assert_eq!(same.map(is_weak), [false; 4]);
        assert!(is_weak(moved));
    }
}

#[test]
fn a_schema_is_known_from_the_snapshot_that_has_the_last_change_while_more_would_be_heard() {
    let dir = tempfile::tempdir().unwrap();
    let (_engine, cached) = open(dir.path());
    let router = cached.router.clone();
    let store = SchemaStore::default();
    let publish = || store.publish(Schema::of_tables([]), store.begin_load());
    let knows = || router.shared().knows_schema(store.generation());
    let connect = || {
        router.control(ControlState::Connected {
            cluster: "c".into(),
            release: "5.0.5".into(),
            data_center: None,
        });
    };
    publish();
    assert!(!knows(), "nobody would tell");
    connect();
    assert!(knows());
    for change in ["UPDATED", "CREATED"] {
        let target = SchemaTarget::Table("t");
        router.schema_changed(&SchemaChange { change, keyspace: "ks", target }, &store);
        assert!(!knows(), "{change}: the snapshot lacks it");
        publish();
        assert!(knows());
    }
    for state in [ControlState::Lost, ControlState::Guarded] {
        router.control(state);
        assert!(!knows());
        connect();
        assert!(knows());
    }
}

/// Whether a fill of the table's row that begins now is not believed for long.
fn is_weak(router: &CachedRouter, table: &TableSchema) -> bool {
    let (key, permission) = (RowKey::new(), CachePermission::Exclusive { claim: 1 });
    let cache = &router.shared().cache;
    match cache.join(table, &key, permission, || unreachable!("nobody leads")) {
        Join::Lead(ticket) => ticket.is_weak(),
        _ => panic!("the gates are open"),
    }
}

#[test]
fn after_a_change_of_a_keyspace_nothing_of_it_is_believed_for_long() {
    let dir = tempfile::tempdir().unwrap();
    let (_engine, cached) = open(dir.path());
    let router = cached.router.clone();
    let table =
        |keyspace: &str, id| TableSchema::new(keyspace.into(), "t".into(), Uuid::from_u128(id));
    let (ours, other) = (table("ks", 7), table("other", 8));
    let store = SchemaStore::default();
    let changed_at = |time| {
        let mut schema = Schema::of_tables([ours.clone(), other.clone()]);
        schema.set_table_time(ours.id, time);
        schema
    };
    store.publish(changed_at(1), store.begin_load());
    for (change, target, time, weak) in [
        ("UPDATED", SchemaTarget::Type("u"), 1, false),
        ("UPDATED", SchemaTarget::Table("t"), 2, false),
        ("UPDATED", SchemaTarget::Keyspace, 2, true),
    ] {
        router.schema_changed(&SchemaChange { change, keyspace: "ks", target }, &store);
        let before = store.current();
        store.publish(changed_at(time), store.begin_load());
        router.schema_read(&before, &store.current());
        let found = [&ours, &other].map(|table| is_weak(&router, table));
        assert_eq!(found, [weak, false], "{change}");
    }
}

/// A node that has not heard of it shows values without the new fields.
#[test]
fn after_a_change_of_a_type_no_table_that_may_have_it_is_believed_for_long() {
    let dir = tempfile::tempdir().unwrap();
    let (_engine, cached) = open(dir.path());
    let router = cached.router.clone();
    let mut with_type = keyed("t", 7);
    with_type.regulars[0].cql_type = "frozen<address>".to_owned();
    let others = [
        keyed("plain", 8),
        TableSchema { keyspace: "other".to_owned(), id: Uuid::from_u128(9), ..with_type.clone() },
    ];
    let store = SchemaStore::default();
    let all = [with_type.clone()].into_iter().chain(others.clone());
    store.publish(Schema::of_tables(all), store.begin_load());
    let found = || [&with_type, &others[0], &others[1]].map(|table| is_weak(&router, table));
    for (change, weak) in [("CREATED", false), ("UPDATED", true)] {
        let target = SchemaTarget::Type("address");
        router.schema_changed(&SchemaChange { change, keyspace: "ks", target }, &store);
        assert_eq!(found(), [weak, false, false], "{change}");
    }
}

/// Some nodes may not have heard of it yet.
#[test]
fn a_table_whose_nodes_may_write_or_show_what_was_before_is_not_believed_for_long() {
    let dir = tempfile::tempdir().unwrap();
    let (_engine, cached) = open(dir.path());
    let router = cached.router.clone();
    let column = |dropped_at| Column { dropped_at, ..Column::new("v", "int") };
    let table = |id, default_ttl, regulars: Vec<Column>| TableSchema {
        default_ttl,
        regulars,
        ..TableSchema::new("ks".into(), format!("t{id}"), Uuid::from_u128(id))
    };
    let before = [table(1, 60, vec![column(0)]), table(2, 0, vec![column(0)])];
    let before = before.into_iter().chain([3, 4].map(|id| table(id, 0, vec![column(0)])));
    let masked = || Column { masked: true, ..column(0) };
    let triggered = |id| TableSchema { triggers: true, ..table(id, 0, vec![column(0)]) };
    // Dropped at 5 and at 9; that of 9 is there again first.
    let [early, late] =
        [("b", 5), ("a", 9)].map(|(name, at)| Column { name: name.into(), ..column(at) });
    let more_before = [
        table(6, 0, vec![masked()]),
        triggered(7),
        table(8, 0, vec![column(0)]),
        table(9, 0, vec![late.clone()]),
    ];
    let before = before.chain(more_before);
    let more = vec![column(0), Column::new("w", "int")];
    let now = [
        table(1, 0, vec![column(0)]),
        table(2, 0, vec![column(7)]),
        table(3, 0, more),
        table(4, 0, Vec::new()),
        table(5, 60, vec![column(0)]),
        table(6, 0, vec![column(0)]),
        table(7, 0, vec![column(0)]),
        triggered(8),
        table(9, 0, vec![late, early]),
    ];
    router.schema_read(&Schema::of_tables(before), &Schema::of_tables(now.clone()));
    let weak: Vec<u128> = now
        .iter()
        .filter(|table| is_weak(&router, table))
        .map(|table| table.id.as_u128())
        .collect();
    assert_eq!(weak, [1, 2, 6, 7, 9]);
}

/// What happens to a table: a snapshot shows this time of its last change, or an event comes.
enum Step {
    Read(Option<i64>),
    Heard(&'static str),
}

/// Whether its rows are kept, and whether those that are filled then are not believed for long.
fn after(steps: &[Step]) -> (bool, bool) {
    let dir = tempfile::tempdir().unwrap();
    let (_engine, cached) = open(dir.path());
    let (router, cache) = (cached.router.clone(), cached.router.shared().cache.clone());
    let table = keyed("t", 7);
    let at = |time: Option<i64>| {
        let mut schema = Schema::of_tables([table.clone()]);
        time.into_iter().for_each(|time| schema.set_table_time(table.id, time));
        schema
    };
    let store = SchemaStore::default();
    let (plan, key) = read_of(&at(None), "t");
    cache.suspend(false);
    for (number, step) in steps.iter().enumerate() {
        match *step {
            Step::Read(time) => {
                router.schema_read(&store.current(), &at(time));
                store.publish(at(time), store.begin_load());
            }
            Step::Heard(change) => {
                let target = SchemaTarget::Table("t");
                router.schema_changed(&SchemaChange { change, keyspace: "ks", target }, &store);
            }
        }
        if number == 0 {
            fill(&cache, &plan, &key, 1);
        }
    }
    let kept = matches!(cache.look_up(&key), Lookup::Hit(_));
    cache.forget(&WriteScope::everything());
    (kept, is_weak(&router, &table))
}

#[test]
fn a_table_that_changed_more_than_once_between_two_snapshots_is_not_believed_for_long() {
    use Step::{Heard, Read};
    const ONCE: (bool, bool) = (true, false);
    const SEVERAL: (bool, bool) = (false, true);
    let (at, heard) = (|time| Read(Some(time)), || Heard("UPDATED"));
    for (number, (steps, outcome)) in [
        (vec![at(0), heard(), at(1)], ONCE),
        (vec![at(0), heard(), heard(), at(2)], SEVERAL),
        // It changed while the schema was read.
        (vec![at(0), heard(), Read(None)], SEVERAL),
        // The snapshot before has the change already.
        (vec![at(0), at(1), heard(), at(1)], ONCE),
        (vec![at(0), at(1), at(1), heard(), at(1)], ONCE),
        (vec![at(0), Read(None), heard(), at(1)], ONCE),
        // No times were told once.
        (vec![at(0), Read(None), at(0), heard(), at(1)], ONCE),
        (vec![at(0), at(2), heard(), at(2), heard(), at(2)], SEVERAL),
        (vec![at(0), at(2), heard(), heard(), at(2)], SEVERAL),
        (vec![at(0), at(1), heard(), at(2)], SEVERAL),
        (vec![at(0), heard(), at(2), heard(), at(2)], SEVERAL),
        (vec![Read(None), heard(), at(1)], SEVERAL),
        // It is dropped and made again with the same id.
        (vec![at(0), heard(), Heard("DROPPED"), Heard("CREATED"), at(2)], SEVERAL),
        (vec![at(0), at(1), Heard("DROPPED"), heard(), at(1)], SEVERAL),
        (vec![at(0), Heard("DROPPED"), Heard("CREATED"), at(2)], SEVERAL),
    ]
    .into_iter()
    .enumerate()
    {
        assert_eq!(after(&steps), outcome, "case {number}");
    }
}

/// Releases before 4.0 tell of the keyspace alone. A snapshot may come before that.
#[test]
fn tables_of_a_keyspace_that_was_dropped_and_made_again_are_not_believed_for_long() {
    const BEFORE: &str = "a snapshot before the event";
    for order in ["the event alone", BEFORE, "two snapshots alone"] {
        let dir = tempfile::tempdir().unwrap();
        let (_engine, cached) = open(dir.path());
        let router = cached.router.clone();
        let other = TableSchema::new("other".into(), "t".into(), Uuid::from_u128(8));
        let with = |ours: Option<u128>| {
            let ours = ours.map(|id| keyed("t", id));
            Schema::of_tables(ours.into_iter().chain([other.clone()]))
        };
        let store = SchemaStore::default();
        let read = |schema: Schema| {
            router.schema_read(&store.current(), &schema);
            store.publish(schema, store.begin_load());
        };
        read(with(Some(7)));
        let target = SchemaTarget::Keyspace;
        let change = SchemaChange { change: "DROPPED", keyspace: "ks", target };
        if order == "the event alone" {
            router.schema_changed(&change, &store);
        } else {
            read(with(None));
        }
        if order == BEFORE {
            router.schema_changed(&change, &store);
        }
        read(with(Some(9)));
        let found = [keyed("t", 9), other.clone()].map(|table| is_weak(&router, &table));
        assert_eq!(found, [true, false], "{order}");
    }
}

/// It costs nothing. A weak table would have the next holder of the lease believe that not all of
/// this one's writes are settled.
#[test]
fn a_dropped_table_that_no_policy_caches_is_not_weak() {
    let dir = tempfile::tempdir().unwrap();
    let (_engine, cached) = open(dir.path());
    let router = cached.router.clone();
    let store = SchemaStore::default();
    for (keyspace, weak) in [("off", false), ("ks", true)] {
        let table = TableSchema::new(keyspace.into(), "t".into(), Uuid::from_u128(7));
        let schema = Schema::of_tables([table.clone()]);
        router.schema_read(&store.current(), &schema);
        store.publish(schema, store.begin_load());
        let target = SchemaTarget::Table("t");
        router.schema_changed(&SchemaChange { change: "DROPPED", keyspace, target }, &store);
        assert_eq!(is_weak(&router, &table), weak, "{keyspace}");
    }
}

/// The replicas of one keyspace were others for a while, or one of its tables was changed and
/// changed back, and nobody told.
#[test]
fn after_untold_changes_nothing_that_may_have_had_some_is_believed_or_stays_cached() {
    let other = TableSchema::new("other".into(), "t".into(), Uuid::from_u128(8));
    let tables = [keyed("t", 7), other];
    let at = |keyspace_time: i64, table_time: i64| {
        let mut schema = Schema::of_tables(tables.clone());
        schema.set_table_time(tables[0].id, table_time);
        schema.set_table_time(tables[1].id, 1);
        schema.set_keyspace_time("ks".into(), keyspace_time);
        schema.set_keyspace_time("other".into(), 1);
        schema
    };
    let changed_at = |time| at(time, 1);
    let version = |of: &str| Some(of.to_owned());
    let seen = |version| SeenVersion { version, ..SeenVersion::default() };
    for (second, weak) in [
        ((changed_at(1), version("b")), [false; 2]),
        ((changed_at(2), version("a")), [false; 2]),
        ((changed_at(2), version("b")), [true, false]),
        ((changed_at(2), None), [true, false]),
        ((at(1, 2), version("b")), [true, false]),
        ((Schema::of_tables(tables.clone()), version("b")), [true; 2]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (_engine, cached) = open(dir.path());
        let router = cached.router.clone();
        let is_weak = |table: &TableSchema| is_weak(&router, table);
        router.schema_found(&changed_at(1), seen(version("a")));
        assert_eq!(tables.each_ref().map(is_weak), [false; 2], "the first one says nothing");
        let cache = &router.shared().cache;
        cache.suspend(false);
        let (plan, key) = read_of(&changed_at(1), "t");
        fill(cache, &plan, &key, 1);
        router.schema_found(&second.0, seen(second.1.clone()));
        assert_eq!(matches!(cache.look_up(&key), Lookup::Hit(_)), !weak[0], "{:?}", second.1);
        assert_eq!(tables.each_ref().map(is_weak), weak, "{:?}", second.1);
    }
}

/// Of changes of the schema, an instance of a ring says up to where it has heard of all.
#[test]
fn a_version_of_the_schema_is_vouched_for_until_an_event_tells_of_more() {
    let dir = tempfile::tempdir().unwrap();
    let (_engine, cached) = open(dir.path());
    let router = cached.router.clone();
    let store = SchemaStore::default();
    let [first, second] = [1, 2].map(Uuid::from_u128);
    let seen = |version: Uuid| SeenVersion {
        version: Some(version.to_string()),
        began: store.begin_load(),
    };
    let vouched = || router.shared().heard_schema.version();
    router.schema_found(&Schema::of_tables([]), seen(first));
    assert_eq!(vouched(), Some(first));
    for change in ["CREATED", "UPDATED", "DROPPED"] {
        let target = SchemaTarget::Table("t");
        router.schema_changed(&SchemaChange { change, keyspace: "ks", target }, &store);
        assert_eq!(vouched(), None, "{change}");
        router.control(ControlState::Current { seen: seen(second) });
        assert_eq!(vouched(), Some(second));
    }
}

/// Rows of two tables are there from the run before.
#[test]
fn a_table_that_appears_keeps_no_row_of_an_earlier_run_and_others_keep_theirs() {
    let [t, again, u] = [keyed("t", 7), keyed("t", 8), keyed("u", 9)];
    let lacking = Schema::of_tables([u.clone()]);
    let former = Schema::of_tables([again, u.clone()]);
    let whole = Schema::of_tables([t, u]);
    // What the run before had noted, if anything.
    for (noted, snapshots, kept) in [
        (Some(&whole), vec![&whole, &whole], [true; 2]),
        (Some(&whole), vec![&lacking, &whole], [false, true]),
        (Some(&whole), vec![&former, &whole], [false, true]),
        (Some(&lacking), vec![&whole], [false, true]),
        (Some(&former), vec![&whole], [false, true]),
        (None, vec![&whole], [false; 2]),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let (_engine, cached) = open(dir.path());
        let router = cached.router.clone();
        let cache = &router.shared().cache;
        cache.suspend(false);
        let rows = ["t", "u"].map(|table| {
            let (plan, key) = read_of(&whole, table);
            fill(cache, &plan, &key, 1);
            key
        });
        noted.into_iter().for_each(|then| schema_change::note_tables(router.shared(), then));
        let unknown = Schema::default();
        let mut before = &unknown;
        for now in snapshots {
            router.schema_read(before, now);
            before = now;
        }
        let is_there = |key: &RowKey| matches!(cache.look_up(key), Lookup::Hit(_));
        assert_eq!(rows.each_ref().map(is_there), kept);
    }
}

/// The event may come after a snapshot that has the table, which is read again then.
#[test]
fn a_table_keeps_its_rows_when_its_creation_is_told_late() {
    let dir = tempfile::tempdir().unwrap();
    let (_engine, cached) = open(dir.path());
    let (router, store) = (cached.router.clone(), SchemaStore::default());
    let (cache, schema) = (&router.shared().cache, Schema::of_tables([keyed("t", 7)]));
    router.schema_read(&store.current(), &schema);
    store.publish(schema.clone(), store.begin_load());
    cache.suspend(false);
    let (plan, key) = read_of(&schema, "t");
    fill(cache, &plan, &key, 1);
    let change =
        SchemaChange { change: "CREATED", keyspace: "ks", target: SchemaTarget::Table("t") };
    router.schema_changed(&change, &store);
    router.schema_read(&store.current(), &schema);
    assert!(matches!(cache.look_up(&key), Lookup::Hit(_)));
}

#[test]
fn which_tables_the_newest_snapshot_has_is_noted_for_the_next_run() {
    let dir = tempfile::tempdir().unwrap();
    let (_engine, cached) = open(dir.path());
    let router = cached.router.clone();
    let table = |id| TableSchema::new("ks".into(), format!("t{id}"), Uuid::from_u128(id));
    let system = TableSchema { system: true, ..table(9) };
    let with =
        |ids: &[u128]| Schema::of_tables(ids.iter().map(|id| table(*id)).chain([system.clone()]));
    let mut before = Schema::default();
    for ids in [&[1, 2][..], &[2], &[2, 3], &[]] {
        let now = with(ids);
        router.schema_read(&before, &now);
        let tables = router.shared().tables.lock();
        let noted = (1..10).filter(|id| tables.has(Uuid::from_u128(*id)));
        assert_eq!(noted.collect::<Vec<_>>(), ids);
        before = now;
    }
}

#[test]
fn a_table_made_before_its_keyspace_got_other_replicas_is_not_believed_for_long() {
    let dir = tempfile::tempdir().unwrap();
    let (_engine, cached) = open(dir.path());
    let router = cached.router.clone();
    let table = |keyspace: &str, id| {
        TableSchema::new(keyspace.into(), format!("t{id}"), Uuid::from_u128(id))
    };
    let replication = |factor: &str| [("replication_factor".into(), factor.into())].into();
    let with = |factor: &str, ids: &[u128]| {
        let tables = ids.iter().map(|id| table("ks", *id));
        let mut schema = Schema::of_tables(tables.chain([table("other", 99)]));
        schema.add_keyspace("ks".into(), replication(factor));
        schema
    };
    let is_weak = |id| is_weak(&router, &table("ks", id));
    router.schema_read(&Schema::default(), &with("1", &[1]));
    router.schema_read(&with("1", &[1]), &with("1", &[1, 2]));
    assert_eq!([1, 2].map(is_weak), [false; 2], "the replication is the same");
    router.schema_read(&with("1", &[1, 2]), &with("3", &[1, 2, 3]));
    assert_eq!([1, 2, 3].map(is_weak), [false, false, true], "the rest is told as a change");
}
