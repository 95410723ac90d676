//! Tests of what is remembered of prepared statements.

use afterglow_cql::plan::{Column, TableSchema, Target};
use afterglow_cql::response::{ColumnSpec, MetadataOut, encode_prepared};
use uuid::Uuid;

use super::*;

/// Remembers `SELECT id FROM ks.t`, whose one column is called `id` as well.
fn remember(store: &Arc<PreparedStore>, id: &str, version: Version) {
    remember_columns(store, id, version, id);
}

fn remember_columns(store: &Arc<PreparedStore>, id: &str, version: Version, column: &str) {
    let told = PrepareResult {
        version,
        id: id.as_bytes(),
        text: &format!("SELECT {id} FROM ks.t"),
        keyspace: Some("ks"),
        names_keyspace: false,
        message: &answer_with(id, version, column),
        generation: 7,
    };
    assert!(store.remember(&told).is_some());
}

fn answer(id: &str, version: Version) -> Vec<u8> {
    answer_with(id, version, id)
}

/// Of a duration, which is a class before v5.
fn answer_with(id: &str, version: Version, column: &str) -> Vec<u8> {
    let mut type_bytes = vec![0, 0x15];
    if version < Version::V5 {
        let class = b"org.apache.cassandra.db.marshal.DurationType";
        type_bytes = vec![0, 0, 0, class.len() as u8];
        type_bytes.extend_from_slice(class);
    }
    let column = ColumnSpec { keyspace: "ks", table: "t", name: column, type_bytes: &type_bytes };
    let metadata_id = (version >= Version::V5).then_some(&b"metadata"[..]);
    let mut out = Vec::new();
    encode_prepared(
        version,
        id.as_bytes(),
        metadata_id,
        &[],
        &[],
        &MetadataOut::of_table(&[column]),
        &mut out,
    );
    out
}

#[test]
fn what_is_used_outlives_what_is_not_within_the_budget() {
    let store = Arc::new(PreparedStore::with_budget(100 * 1024));
    remember(&store, "hot", Version::V4);
    for n in 0..10_000 {
        remember(&store, &format!("cold{n}"), Version::V4);
        assert!(store.get(b"hot").is_some(), "forgotten although it was used before number {n}");
    }
    assert!(store.get(b"cold0").is_none());
    let kept = store.by_id.read().len();
    assert!(kept * OVERHEAD <= 100 * 1024, "{kept} statements are over the budget");
    assert_eq!(kept, store.size().0);
    assert_eq!(store.forgotten() as usize, 10_001 - kept);
}

/// Its client is about to execute it.
#[test]
fn what_was_just_prepared_is_there_though_all_else_is_in_use() {
    let store = Arc::new(PreparedStore::with_budget(100 * 1024));
    for n in 0..1_000 {
        let id = format!("id{n}");
        remember(&store, &id, Version::V4);
        assert!(store.get(id.as_bytes()).is_some(), "number {n} is gone at once");
        (0..n).for_each(|before| drop(store.get(format!("id{before}").as_bytes())));
    }
    assert!(store.forgotten() > 0 && store.size().1 <= 100 * 1024 + OVERHEAD);
}

/// A server's answer to a PREPARE in version 4, but for its id.
fn told_of<'a>(text: &'a str, keyspace: &'a str, message: &'a [u8]) -> PrepareResult<'a> {
    PrepareResult {
        version: Version::V4,
        id: b"",
        text,
        keyspace: Some(keyspace),
        names_keyspace: false,
        message,
        generation: 7,
    }
}

/// Cassandra gives such ids while nodes of some releases are in the cluster. Another client may
/// have prepared it in the other keyspace, through another instance too.
#[test]
fn a_statement_whose_id_says_nothing_of_its_keyspace_is_not_taken_for_one_of_ours() {
    let store = Arc::new(PreparedStore::default());
    let table = |keyspace: &str, name: &str, id| {
        let mut table = TableSchema::new(keyspace.into(), name.into(), Uuid::from_u128(id));
        table.partition_key = vec![Column::new("k", "int")];
        table.regulars = vec![Column::new("v", "int")];
        table
    };
    let schema =
        Schema::of_tables([table("a", "t", 1), table("a", "alone", 2), table("b", "t", 3)]);
    let plan = |text: &str, id: &[u8]| {
        let message = &answer("v", Version::V4);
        let told = PrepareResult { id, ..told_of(text, "a", message) };
        let prepared = store.remember(&told).unwrap();
        (*store.plan(&prepared, &schema)).clone()
    };
    let touched = |plan: &Plan| {
        let Plan::Write(write) = plan else { panic!("no write: {plan:?}") };
        let table = |target: &Target| match target {
            Target::Row(row) => row.table().as_u128(),
            Target::Table { id, .. } => id.unwrap().as_u128(),
            _ => panic!("{target:?}"),
        };
        (write.targets.iter().map(table).collect::<Vec<_>>(), write.update.is_some())
    };
    for write in [
        "UPDATE t SET v = 1 WHERE k = 1",
        "UPDATE t SET v = 1 WHERE k = 1 IF v = 2",
        "TRUNCATE t",
        "UPDATE t SET v = 1 WHERE k = 1 AS NOBODY KNOWS YET",
    ] {
        let plan = plan(write, &Md5::digest(write));
        assert_eq!(touched(&plan), (vec![1, 3], false), "it may be one of b.t: {write}");
    }
    assert_eq!(touched(&plan("UPDATE t SET v = 1 WHERE k = 1", b"id of a")), (vec![1], true));
    for (write, table) in
        [("UPDATE alone SET v = 1 WHERE k = 1", 2), ("UPDATE a.t SET v = 1 WHERE k = 1", 1)]
    {
        assert_eq!(touched(&plan(write, &Md5::digest(write))), (vec![table], true), "{write}");
    }
    // One of a keyspace whose table no schema has yet, prepared there through us, and here since.
    let write = "DELETE FROM t WHERE k = 2";
    let told_in = |keyspace: &str| {
        let id = Md5::digest(write);
        let message = &answer("v", Version::V4);
        let told = PrepareResult { id: &id, ..told_of(write, keyspace, message) };
        let prepared = store.remember(&told).unwrap();
        (*store.plan(&prepared, &schema)).clone()
    };
    let is_of_new = |plan: &Plan| {
        match plan {
        Plan::Write(write) => write.targets.iter().any(|target| {
            matches!(target, Target::Table { keyspace, id: None, .. } if keyspace == "new")
        }),
        _ => false,
    }
    };
    assert!(is_of_new(&told_in("new")) && is_of_new(&told_in("a")), "a client of `new` has it");
    (0..=MOST_KEYSPACES).for_each(|n| drop(told_in(&format!("tenant{n}"))));
    let Plan::Write(all) = told_in("a") else { panic!("no write") };
    assert!(all.targets.contains(&Target::Everything), "of so many any may be meant");
    let read = "SELECT v FROM t WHERE k = 1";
    assert!(matches!(plan(read, &Md5::digest(read)), Plan::Read(..)), "it passes through");
    assert!(matches!(plan(read, b"id of a"), Plan::CachedRead(_)));
}

#[test]
fn both_versions_answers_are_kept_and_counted_once() {
    let store = Arc::new(PreparedStore::default());
    remember(&store, "id", Version::V4);
    let alone = store.order.lock().bytes;
    for _ in 0..3 {
        remember(&store, "id", Version::V5);
    }
    let prepared = store.get(b"id").unwrap();
    let four = prepared.answer(Version::V4).unwrap();
    assert_eq!((&four.message[..], &four.metadata_id), (&answer("id", Version::V4)[..], &None));
    assert_eq!(four.names, ["id"]);
    let five = prepared.answer(Version::V5).unwrap();
    assert_eq!(five.metadata_id.as_deref(), Some(&b"metadata"[..]));
    assert_ne!(five.metadata, four.metadata, "a duration is written in two ways");
    assert!(!prepared.is_drifted(Version::V4), "and is the same column all the same");
    assert_eq!(store.order.lock().bytes, alone + five.message.len());
}

#[test]
fn a_statement_is_confirmed_for_one_generation_of_the_schema() {
    let store = Arc::new(PreparedStore::default());
    remember(&store, "id", Version::V4);
    let prepared = store.get(b"id").unwrap();
    let confirmed = |version| [7, 8].map(|generation| prepared.is_confirmed(version, generation));
    assert_eq!(confirmed(Version::V4), [true, false]);
    assert_eq!(confirmed(Version::V5), [false, false]);
    prepared.confirm(Version::V4, 8);
    assert_eq!(confirmed(Version::V4), [false, true]);
    // Prepared again in the other version: what clients of this one know may be older than
    // that.
    remember(&store, "id", Version::V5);
    let prepared = store.get(b"id").unwrap();
    assert!(prepared.is_confirmed(Version::V4, 8) && prepared.is_confirmed(Version::V5, 7));
    assert!(!prepared.is_confirmed(Version::V4, 7) && !prepared.is_confirmed(Version::V5, 8));
}

#[test]
fn other_columns_are_told_once_and_for_all_versions() {
    let store = Arc::new(PreparedStore::default());
    remember(&store, "id", Version::V4);
    remember(&store, "id", Version::V5);
    assert!(!store.get(b"id").unwrap().is_drifted(Version::V4));
    remember_columns(&store, "id", Version::V5, "other");
    remember_columns(&store, "id", Version::V5, "other");
    let prepared = store.get(b"id").unwrap();
    assert!(prepared.is_drifted(Version::V4), "what clients of v4 know is of before");
    assert!(!prepared.is_drifted(Version::V5), "their requests say what they know");
    assert!(prepared.may_renew(3) && !prepared.may_renew(3) && prepared.may_renew(4));
}

#[test]
fn a_restart_knows_every_statement_but_trusts_no_schema() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plans");
    let store = Arc::new(PreparedStore::open(&path));
    remember(&store, "a", Version::V4);
    remember(&store, "b", Version::V4);
    remember(&store, "b", Version::V5);
    remember_columns(&store, "b", Version::V5, "other");
    let grown = std::fs::metadata(&path).unwrap().len();
    remember_columns(&store, "b", Version::V5, "other");
    assert_eq!(std::fs::metadata(&path).unwrap().len(), grown, "nothing new, nothing written");
    let again = PreparedStore::open(&path);
    let (a, b) = (again.get(b"a").unwrap(), again.get(b"b").unwrap());
    assert_eq!((&*a.text, a.keyspace.as_deref()), ("SELECT a FROM ks.t", Some("ks")));
    assert_eq!(a.answer(Version::V4).unwrap().message, answer("a", Version::V4));
    assert!(
        a.answer(Version::V5).is_none() && !a.is_drifted(Version::V4) && b.is_drifted(Version::V4)
    );
    assert_eq!(b.answer(Version::V5).unwrap().names, ["other"]);
    assert!((1..10).all(|generation| !b.is_confirmed(Version::V5, generation)));
}

#[test]
fn the_file_stays_within_its_bound_and_loses_nothing_that_is_remembered() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plans");
    let store = Arc::new(PreparedStore { budget: 256 * 1024, ..PreparedStore::open(&path) });
    let limit = 2 * 256 * 1024 + FILE_SLACK;
    let column = |n: usize| format!("{n:0>2000}");
    for n in 0..2_000 {
        remember_columns(&store, &format!("id{n}"), Version::V5, &column(n));
        while store.file.lock().meanwhile.is_some() {
            std::thread::yield_now();
        }
        assert!(std::fs::metadata(&path).unwrap().len() < limit + 4_096, "after {n}");
    }
    let again = PreparedStore::open(&path);
    for id in store.by_id.read().keys() {
        assert!(again.get(id).is_some(), "{id:?} is lost");
    }
}

/// What each plan takes is counted while its statement has it, and no more is kept than fits.
#[test]
fn plans_are_counted_by_what_they_hold() {
    const BUDGET: usize = 1024 * 1024;
    let script = "CREATE TABLE ks.t (k int PRIMARY KEY, v int);";
    let mut schema = Schema::of_tables(plan::defined_tables(script, None).unwrap());
    let store = Arc::new(PreparedStore::with_budget(BUDGET));
    let list = vec!["1"; 2_000].join(",");
    let mut heaviest = 0;
    for n in 0..100 {
        let id = format!("id{n}");
        let told = PrepareResult {
            version: Version::V4,
            id: id.as_bytes(),
            text: &format!("INSERT INTO ks.t (k, v) VALUES ({n}, {n})"),
            keyspace: Some("ks"),
            names_keyspace: false,
            message: &answer("v", Version::V4),
            generation: 7,
        };
        let text = format!("SELECT v FROM ks.t WHERE k IN ({list}, {n})");
        let told = if n % 2 == 0 { PrepareResult { text: &text, ..told } } else { told };
        let prepared = store.remember(&told).unwrap();
        let before = store.plan_bytes.load(Ordering::Relaxed);
        let weight = store.plan(&prepared, &schema).weight();
        assert!(store.plan_bytes.load(Ordering::Relaxed) <= before + weight);
        heaviest = heaviest.max(weight);
        assert!(store.size().1 <= BUDGET, "after {n}");
    }
    assert!(heaviest > 2_000 * 24 && store.forgotten() > 0, "{heaviest} bytes");
    let planned = |schema: &Schema| -> usize {
        let all: Vec<_> = store.by_id.read().values().cloned().collect();
        all.iter().map(|prepared| store.plan(prepared, schema).weight()).sum()
    };
    let weight = planned(&schema);
    assert_eq!(store.plan_bytes.load(Ordering::Relaxed), weight);
    schema.generation += 1;
    assert_eq!((planned(&schema), store.plan_bytes.load(Ordering::Relaxed)), (weight, weight));
    store.by_id.write().clear();
    assert_eq!(store.plan_bytes.load(Ordering::Relaxed), 0);
}

/// Also once the file was written anew.
#[test]
fn a_restart_knows_all_keyspaces_that_share_an_id() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("plans");
    let store = Arc::new(PreparedStore::open(&path));
    let text = "DELETE FROM t WHERE k = 2";
    let (id, message) = (Md5::digest(text), answer("v", Version::V4));
    for keyspace in ["c", "b", "a"] {
        let told = PrepareResult { id: &id, ..told_of(text, keyspace, &message) };
        assert!(store.remember(&told).is_some());
    }
    for anew in [false, true] {
        if anew {
            store.file.lock().meanwhile = Some(Vec::new());
            store.write_anew();
        }
        let again = PreparedStore::open(&path).get(&id).unwrap();
        assert_eq!(again.keyspace.as_deref(), Some("a"));
        assert_eq!(again.also, ["b", "c"].map(str::to_owned).into());
    }
}

/// Most statements name the keyspace: then it does not matter where they were prepared.
#[test]
fn the_file_stays_within_its_bound_though_many_keyspaces_prepare_the_same() {
    for text in ["SELECT v FROM ks.t WHERE k = 1", "SELECT v FROM t WHERE k = 1"] {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("plans");
        let store = Arc::new(PreparedStore::open(&path));
        let mut most = 0;
        for n in 0..400 {
            let text = format!("{text}{n:0>2000}");
            let (id, message) = (Md5::digest(&text), answer("v", Version::V4));
            for keyspace in ["a", "b", "c", "d", "a", "b"] {
                let told = PrepareResult { id: &id, ..told_of(&text, keyspace, &message) };
                let prepared = store.remember(&told).unwrap();
                assert!(!text.contains("ks.") || !prepared.is_shared());
            }
            while store.file.lock().meanwhile.is_some() {
                std::thread::yield_now();
            }
            most = most.max(std::fs::metadata(&path).unwrap().len());
        }
        let bound = 2 * store.size().1 as u64 + FILE_SLACK + 8 * 4_096;
        assert!(most <= bound, "{most} bytes, {bound} are the bound: {text}");
    }
}
