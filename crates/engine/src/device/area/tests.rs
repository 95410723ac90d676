//! Areas, metadata and locks in real files.

use std::fs::File;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;

use super::*;
use crate::testing::TempDir;

const LEN: u64 = 3 << 20;

/// Creates and opens an area of either kind.
type Kind = (
    fn(&Path, u64) -> Result<Box<dyn Media>, MediaError>,
    fn(&Path) -> Result<Option<Box<dyn Media>>, MediaError>,
);

/// Which of [`KINDS`] is mapped: a store into a hole may be fatal there.
const MAPPED: usize = 0;

const KINDS: [Kind; 2] = [
    (
        |path, len| MmapMedia::create(path, len).map(|media| Box::new(media) as _),
        |path| Ok(MmapMedia::open(path)?.map(|media| Box::new(media) as _)),
    ),
    (
        |path, len| PwriteMedia::create(path, len).map(|media| Box::new(media) as _),
        |path| Ok(PwriteMedia::open(path)?.map(|media| Box::new(media) as _)),
    ),
];

#[test]
fn an_area_that_is_written_to_says_that_nothing_of_it_was_given_up() {
    for kind in KINDS {
        let dir = TempDir::new();
        let media = kind.0(&dir.path().join("journal"), LEN).expect("created");
        media.store(4096, &[1; 8]).expect("stored");
        media.check_written().expect("nothing was");
    }
}

#[test]
fn an_area_keeps_what_is_stored_and_both_kinds_read_the_same_file() {
    for (writer, reader) in [(0, 1), (1, 0), (0, 0)] {
        let dir = TempDir::new();
        let path = dir.path().join("journal");
        assert!(KINDS[reader].1(&path).expect("no file is no error").is_none());
        let media = KINDS[writer].0(&path, LEN).expect("created");
        media.store(8, &[1, 2, 3, 4, 5, 6, 7, 8]).expect("stored");
        media.store(LEN - 16, &[9; 16]).expect("stored");
        media.sync().expect("synced");
        drop(media);
        let media = KINDS[reader].1(&path).expect("opened").expect("there");
        assert_eq!(media.len(), LEN);
        let mut bytes = [7; 24];
        media.load(0, &mut bytes).expect("loaded");
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 0]);
        let mut end = [0; 16];
        media.load(LEN - 16, &mut end).expect("loaded");
        assert_eq!(end, [9; 16]);
    }
}

#[test]
fn ranges_outside_or_off_the_words_are_refused() {
    let dir = TempDir::new();
    for (n, (create, _)) in KINDS.iter().enumerate() {
        let media = create(&dir.path().join(n.to_string()), 4096).expect("created");
        for (offset, len) in [(1, 8), (0, 7), (4096, 8), (4090, 8), (u64::MAX - 7, 8), (0, 4104)] {
            let kind = |result: io::Result<()>| result.err().map(|e| e.kind());
            assert_eq!(
                kind(media.store(offset, &vec![1; len])),
                Some(io::ErrorKind::InvalidInput),
                "{offset} {len}"
            );
            assert_eq!(
                kind(media.load(offset, &mut vec![1; len])),
                Some(io::ErrorKind::InvalidInput)
            );
        }
        assert!(media.store(0, &[1; 4096]).is_ok());
    }
}

#[test]
fn a_new_area_is_private_zeroed_and_has_every_block() {
    let dir = TempDir::new();
    for (n, (create, open)) in KINDS.iter().enumerate() {
        let path = dir.path().join(n.to_string());
        std::fs::write(&path, vec![7; LEN as usize]).expect("an older file");
        let media = create(&path, LEN).expect("created");
        let found = std::fs::metadata(&path).expect("there");
        assert!(found.permissions().mode() & 0o777 == 0o600 && found.blocks() * 512 >= LEN);
        let mut bytes = vec![1; LEN as usize];
        media.load(0, &mut bytes).expect("loaded");
        assert!(bytes.iter().all(|&byte| byte == 0));
        assert!(
            matches!(open(&path), Err(MediaError::InUse { .. })),
            "two processes never share an area"
        );
    }
}

#[test]
fn a_file_that_cannot_be_an_area_is_refused() {
    let dir = TempDir::new();
    for (n, (create, open)) in KINDS.iter().enumerate() {
        let path = dir.path().join(n.to_string());
        File::create(&path).and_then(|file| file.set_len(LEN)).expect("a sparse file");
        // File systems that compress, or keep no zeros, make holes of what was written in full.
        match open(&path) {
            Err(MediaError::Damaged { why, .. }) => assert!(n == MAPPED, "{why}"),
            opened => assert!(n != MAPPED && matches!(opened, Ok(Some(_)))),
        }
        std::fs::write(&path, [1; 5000]).expect("a file of odd size");
        assert!(matches!(open(&path), Err(MediaError::Damaged { .. })));
        assert!(create(&path, 5000).is_err() && create(&path, 0).is_err());
        assert!(create(&dir.path().join("no/journal"), 4096).is_err());
    }
}

#[test]
fn threads_store_side_by_side() {
    let dir = TempDir::new();
    for (n, (create, _)) in KINDS.iter().enumerate() {
        let media = create(&dir.path().join(n.to_string()), 1 << 20).expect("created");
        std::thread::scope(|scope| {
            for thread in 0..4u64 {
                let media = &media;
                scope.spawn(move || {
                    for entry in (0..1 << 20).step_by(256) {
                        media.store(entry + thread * 64, &[thread as u8 + 1; 64]).expect("stored");
                    }
                });
            }
        });
        let mut bytes = vec![0; 1 << 20];
        media.load(0, &mut bytes).expect("loaded");
        assert!(
            bytes
                .chunks(64)
                .enumerate()
                .all(|(n, entry)| entry.iter().all(|&byte| byte as usize == n % 4 + 1))
        );
    }
}

#[test]
fn metadata_is_replaced_as_a_whole() {
    let dir = TempDir::new();
    let store = FileMetaStore::new(dir.path());
    assert_eq!(store.read("state").expect("no file is no error"), None);
    store.replace("state", b"first").expect("replaced");
    store.replace("state", b"2nd").expect("replaced");
    assert_eq!(store.read("state").expect("read").as_deref(), Some(&b"2nd"[..]));
    assert_eq!(
        std::fs::metadata(dir.path().join("state")).expect("there").permissions().mode() & 0o777,
        0o600
    );
    // What a crash between writing and renaming leaves does not matter.
    std::fs::write(dir.path().join("state.new"), b"half of a much longer thing").expect("written");
    store.replace("state", b"third").expect("replaced");
    assert_eq!(store.read("state").expect("read").as_deref(), Some(&b"third"[..]));
    store.remove("state").expect("removed");
    store.remove("state").expect("removing nothing is no error");
    assert_eq!(store.read("state").expect("read"), None);
}

#[test]
fn a_data_directory_has_one_owner_who_is_named() {
    let dir = TempDir::new();
    let data = dir.path().join("a/b");
    let lock = DirLock::acquire(&data).expect("taken");
    assert_eq!(lock.dir(), data);
    assert_eq!(std::fs::metadata(&data).expect("created").permissions().mode() & 0o777, 0o700);
    let message = DirLock::acquire(&data).expect_err("held").to_string();
    assert!(message.contains(&format!("(pid {})", std::process::id())), "{message}");
    drop(lock);
    DirLock::acquire(&data).expect("free again");
}

#[test]
fn a_data_directory_that_is_a_file_is_an_error() {
    let dir = TempDir::new();
    let path = dir.path().join("file");
    std::fs::write(&path, b"x").expect("written");
    assert!(matches!(DirLock::acquire(&path), Err(LockError::Io { .. })));
}

#[test]
fn one_boot_has_one_id() {
    assert_eq!(boot_id().expect("a kernel with /proc"), boot_id().expect("a kernel with /proc"));
}

#[test]
fn a_removed_name_leaves_nothing() {
    let dir = TempDir::new();
    let store = FileMetaStore::new(dir.path());
    store.remove("kills.7").expect("nothing to remove");
    for content in ["first", "second"] {
        store.replace("kills.7", content.as_bytes()).expect("replaced");
    }
    assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 2);
    store.remove("kills.7").expect("removed");
    assert_eq!(std::fs::read_dir(dir.path()).expect("listed").count(), 0);
}

#[test]
fn a_file_that_was_written_twice_is_replaced_without_a_new_one() {
    let dir = TempDir::new();
    let path = dir.path().join("state");
    let inodes = || {
        let entries = std::fs::read_dir(dir.path()).expect("listed");
        let mut inodes: Vec<u64> =
            entries.map(|e| e.expect("listed").metadata().expect("there").ino()).collect();
        inodes.sort_unstable();
        inodes
    };
    for content in ["first", "second"] {
        replace_file(&path, content.as_bytes(), true).expect("replaced");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), content);
    }
    let before = inodes();
    assert_eq!(before.len(), 2);
    // Longer, shorter, and as after a crash that left half of a longer one.
    for (content, durable) in [("the third one", true), ("4", false), ("fifth", true)] {
        replace_file(&path, content.as_bytes(), durable).expect("replaced");
        assert_eq!(std::fs::read_to_string(&path).expect("read"), content);
        assert_eq!(inodes(), before, "a full disk has no room for another file");
    }
    std::fs::write(dir.path().join("state.new"), "left behind by a crash").expect("written");
    replace_file(&path, b"sixth", true).expect("replaced");
    assert_eq!(std::fs::read_to_string(&path).expect("read"), "sixth");
}

#[test]
fn a_part_longer_than_its_file_costs_no_memory() {
    let dir = TempDir::new();
    std::fs::write(dir.path().join("kills.0"), b"short").expect("written");
    let files = FileMetaStore::new(dir.path());
    let part = files.read_part("kills.0", 1, 1 << 46);
    assert_eq!(part.expect("read").as_deref(), Some(&b"hort"[..]));
}
