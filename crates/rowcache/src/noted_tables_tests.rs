use std::sync::Arc;

use tempfile::TempDir;

use super::*;
use crate::intents::IntentTable;
use crate::intents::words::rows_undropped;
use crate::testing::{TestClock, cache_of_boot, open_engine};

const CACHE: Uuid = Uuid::from_u128(9);

fn opening(number: u64) -> EngineOpening {
    EngineOpening { cache: CACHE, number }
}

fn ids(ids: &[u128]) -> BTreeSet<Uuid> {
    ids.iter().map(|id| Uuid::from_u128(*id)).collect()
}

#[test]
fn what_was_noted_reads_back_and_nothing_else_does() {
    for tables in [ids(&[]), ids(&[1, 1 << 100, u128::MAX])] {
        let bytes = encode(opening(7), &tables);
        assert_eq!(decode(&bytes), Some((opening(7), tables)));
        (0..bytes.len()).for_each(|end| assert_eq!(decode(&bytes[..end]), None));
        for at in 0..bytes.len() {
            let mut bytes = bytes.clone();
            bytes[at] ^= 1;
            assert_eq!(decode(&bytes), None, "byte {at}");
        }
        // Also where somebody has made the checksum fit.
        let body = [&bytes[16..], &[0; 16]].concat();
        assert_eq!(decode(&[MAGIC, &checksum(0, &body).to_le_bytes()[..], &body].concat()), None);
    }
}

#[test]
fn the_file_is_believed_by_the_opening_right_after_its_own() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join(FILE);
    let open = |opening| {
        let (tables, why) = NotedTables::open(dir.path(), opening);
        (tables.has(Uuid::from_u128(1)), why)
    };
    assert!(matches!(open(opening(1)), (false, Some(NoTables::Missing))));
    let of_another = EngineOpening { cache: Uuid::from_u128(10), number: 6 };
    for (next, of, has) in [
        (opening(6), opening(5), true),
        (opening(7), opening(5), false),
        (opening(5), opening(5), false),
        (opening(4), opening(5), false),
        (opening(0), opening(u64::MAX), false),
        (of_another, opening(5), false),
    ] {
        write(&path, of, &ids(&[1])).unwrap();
        let (found, why) = open(next);
        assert_eq!(found, has, "{next:?}");
        assert_eq!(matches!(why, Some(NoTables::Outdated)), !has, "{next:?}");
    }
    // Nothing was noted in between.
    write(&path, opening(5), &ids(&[1])).unwrap();
    (6..9).for_each(|number| assert!(open(opening(number)).0, "{number}"));
    fs::write(&path, "agtabl01").unwrap();
    assert!(matches!(open(opening(9)), (false, Some(NoTables::Damaged))));
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    assert!(matches!(open(opening(10)), (false, Some(NoTables::Unreadable(_)))));
}

#[test]
fn a_file_that_is_not_there_is_as_durable_as_one_that_is() {
    let dir = TempDir::new().unwrap();
    sync(dir.path()).unwrap();
    write(&dir.path().join(FILE), opening(1), &ids(&[1])).unwrap();
    sync(dir.path()).unwrap();
    assert!(sync(&dir.path().join("nowhere")).is_err());
}

/// The file is written beside its last version.
fn let_write(dir: &Path, can: bool) {
    let spare = dir.join(format!("{FILE}.new"));
    let _ = fs::remove_file(&spare);
    let _ = fs::remove_dir(&spare);
    if !can {
        fs::create_dir(&spare).unwrap();
    }
}

#[test]
fn while_it_cannot_be_written_intents_name_what_it_should_lack() {
    // Sets of tables in their order, and whether each can be noted; which the file has at the end,
    // and what the next start drops.
    type Case = (&'static [(&'static [u128], bool)], &'static [u128], &'static [u128]);
    let cases: [Case; 7] = [
        (&[(&[1, 2], true), (&[2], true)], &[2], &[]),
        (&[(&[1, 2], true), (&[2], false)], &[1, 2], &[1]),
        (&[(&[1, 2], true), (&[1, 2, 3], false)], &[1, 2], &[]),
        (&[(&[1, 2], true), (&[2], false), (&[1], false)], &[1, 2], &[1, 2]),
        (&[(&[1, 2], true), (&[2], false), (&[2], false)], &[1, 2], &[1]),
        (&[(&[1, 2], true), (&[2], false), (&[2], true)], &[2], &[]),
        // Who has it appear again has dropped its rows.
        (&[(&[1, 2], true), (&[2], false), (&[1, 2], true)], &[1, 2], &[]),
    ];
    for (steps, has, dropped) in cases {
        let dir = TempDir::new().unwrap();
        let (engine, intents) = (open_engine(dir.path()), dir.path().join("intents"));
        let cache: Arc<RowCache<()>> = cache_of_boot(1, &engine, &intents, &TestClock::new());
        let (mut tables, _) = NotedTables::open(dir.path(), opening(5));
        for (now, can) in steps {
            let_write(dir.path(), *can);
            tables.note(ids(now), &cache);
        }
        drop((tables, cache));
        let (_, written) = decode(&fs::read(dir.path().join(FILE)).unwrap()).unwrap();
        assert_eq!(written, ids(has), "{steps:?}");
        let (_, unsettled) = IntentTable::open(&intents, 64, u64::MAX, true).unwrap();
        let found: BTreeSet<u64> = unsettled.intents.iter().map(|(_, word)| *word).collect();
        let expected = ids(dropped);
        let expected = expected.iter().map(|id| rows_undropped(group_of(*id))).collect();
        assert_eq!(found, expected, "{steps:?}");
    }
}

#[test]
fn a_full_disk_has_room_for_what_is_no_longer_than_before() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join(FILE);
    let noted = || decode(&fs::read(&path).unwrap()).unwrap();
    std::os::unix::fs::symlink("/dev/full", dir.path().join(format!("{FILE}.new"))).unwrap();
    assert!(write(&path, opening(3), &ids(&[])).is_err(), "there is no file yet");
    fs::write(&path, encode(opening(4), &ids(&[1, 2]))).unwrap();
    // Else the opening after this one dropped all rows, as after a clean stop with a full disk.
    let (tables, why) = NotedTables::open(dir.path(), opening(5));
    assert!(why.is_none() && tables.unwritten.is_none());
    assert_eq!(noted(), (opening(5), ids(&[1, 2])));
    assert!(write(&path, opening(5), &ids(&[1, 2, 3])).is_err());
    assert_eq!(noted(), (opening(5), ids(&[1, 2])), "what was there is whole");
    write(&path, opening(5), &ids(&[2])).unwrap();
    assert_eq!(noted(), (opening(5), ids(&[2])));
}

#[test]
fn it_is_written_where_the_tables_change_and_once_at_each_start() {
    let dir = TempDir::new().unwrap();
    let (engine, path) = (open_engine(dir.path()), dir.path().join(FILE));
    let intents = dir.path().join("intents");
    let cache: Arc<RowCache<()>> = cache_of_boot(1, &engine, &intents, &TestClock::new());
    let (mut tables, _) = NotedTables::open(dir.path(), opening(5));
    assert!(!path.exists(), "nothing is known");
    let note = |now: &[u128]| {
        let _ = fs::remove_file(&path);
        tables.note(ids(now), &cache);
        path.exists()
    };
    assert_eq!(
        [&[][..], &[], &[1], &[1], &[2], &[1, 2], &[1, 2]].map(note),
        [true, false, true, false, true, true, false]
    );
}

#[test]
fn what_could_not_be_written_is_tried_again_in_time_and_then_no_more() {
    let dir = TempDir::new().unwrap();
    let (engine, path) = (open_engine(dir.path()), dir.path().join(FILE));
    let intents = dir.path().join("intents");
    let clock = TestClock::new();
    let cache: Arc<RowCache<()>> = cache_of_boot(1, &engine, &intents, &clock);
    let (mut tables, _) = NotedTables::open(dir.path(), opening(5));
    tables.note(ids(&[1, 2]), &cache);
    let noted = || decode(&fs::read(&path).unwrap()).unwrap();
    let_write(dir.path(), false);
    tables.note(ids(&[2, 3]), &cache);
    let begun = cache.clock().now();
    // It fails once more: the next attempt is as far from that.
    for (after, can, written) in [
        (RETRY - 1, true, false),
        (RETRY, false, false),
        (2 * RETRY - 1, true, false),
        (2 * RETRY, true, true),
    ] {
        let_write(dir.path(), can);
        clock.pass_millis(begun + after - cache.clock().now());
        tables.try_again(&cache);
        let expected = if written { ids(&[2, 3]) } else { ids(&[1, 2]) };
        assert_eq!(noted(), (opening(5), expected), "{after}");
    }
    fs::remove_file(&path).unwrap();
    clock.pass(60);
    tables.try_again(&cache);
    assert!(!path.exists(), "nothing is left to write");
    drop((tables, cache));
    let (_, unsettled) = IntentTable::open(&intents, 64, u64::MAX, true).unwrap();
    assert!(unsettled.intents.is_empty(), "nothing is owed");
}

/// A change of the schema after one that could not be noted is noted instead of it.
#[test]
fn what_is_tried_again_is_the_newest() {
    let dir = TempDir::new().unwrap();
    let (engine, path) = (open_engine(dir.path()), dir.path().join(FILE));
    let clock = TestClock::new();
    let cache: Arc<RowCache<()>> = cache_of_boot(1, &engine, &dir.path().join("intents"), &clock);
    write(&path, opening(4), &ids(&[1])).unwrap();
    let_write(dir.path(), false);
    let (mut tables, why) = NotedTables::open(dir.path(), opening(5));
    assert!(why.is_none());
    let noted = || decode(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(noted(), (opening(4), ids(&[1])));
    let_write(dir.path(), true);
    tables.try_again(&cache);
    assert_eq!(noted(), (opening(5), ids(&[1])), "also before the first snapshot");
    for (last, written) in [(&[1][..], &[1][..]), (&[4, 5], &[4, 5])] {
        let_write(dir.path(), false);
        tables.note(ids(&[1, 2]), &cache);
        let_write(dir.path(), true);
        tables.note(ids(last), &cache);
        clock.pass(60);
        tables.try_again(&cache);
        assert_eq!(noted(), (opening(5), ids(written)));
    }
}
