//! Caches that released formats left behind still open, or are refused with a message that says
//! why.

use std::io::Read;
use std::path::{Path, PathBuf};

use afterglow_engine::device::area::boot_id;
use afterglow_engine::format::FORMAT_VERSION;
use afterglow_engine::format::state::{StateFile, WITH_KILL_LOG};
use afterglow_engine::{Cache, OpenError, PutOptions};

mod content;

struct Dir(PathBuf);

impl Drop for Dir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// The image `which` (`1/clean`), unpacked.
fn unpack(which: &str) -> Dir {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/format_fixtures").join(which);
    let dir = Dir(std::env::temp_dir().join(format!("afterglow-image-{}", uuid::Uuid::new_v4())));
    std::fs::create_dir(&dir.0).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let from = entry.unwrap().path();
        let file = std::fs::File::open(&from).unwrap();
        let mut bytes = Vec::new();
        lzma_rust2::XzReader::new(file, false).read_to_end(&mut bytes).unwrap();
        std::fs::write(dir.0.join(from.file_stem().unwrap()), bytes).unwrap();
    }
    dir
}

fn change_state(dir: &Dir, change: impl FnOnce(&mut StateFile)) {
    let path = dir.0.join("state");
    let mut state = StateFile::decode(&std::fs::read(&path).unwrap()).unwrap();
    change(&mut state);
    std::fs::write(path, state.encode()).unwrap();
}

/// Which objects of each namespace are hits. A wrong value fails the test.
fn hits(dir: &Dir) -> [Vec<u32>; 2] {
    let cache = Cache::open(content::config(&dir.0)).unwrap();
    while cache.stats().loading {
        std::thread::yield_now();
    }
    content::namespaces(&cache).unwrap().map(|ns| {
        let hit = |n: &u32| {
            let hit = ns.get_blocking(&content::key(*n));
            hit.inspect(|hit| assert_eq!(hit.value, content::value(*n), "object {n}")).is_some()
        };
        (0..content::OBJECTS).filter(hit).collect()
    })
}

/// Whether object `n` of the first namespace is still there: one was removed, then a group and a
/// partition.
fn is_there(n: u32) -> bool {
    n != content::REMOVED && !(60..70).contains(&n) && n < 110
}

fn what_must_be_there() -> [Vec<u32>; 2] {
    [(0..content::OBJECTS).filter(|n| is_there(*n)).collect(), (0..content::OBJECTS).collect()]
}

#[test]
fn an_image_opens_warm_after_a_clean_stop() {
    for format in ["1", "2"] {
        assert_eq!(hits(&unpack(&format!("{format}/clean"))), what_must_be_there(), "{format}");
    }
}

#[test]
fn an_image_opens_warm_after_the_death_of_its_process() {
    for format in ["1", "2"] {
        let dir = unpack(&format!("{format}/killed"));
        // The image says that it is of another boot than this one.
        change_state(&dir, |state| state.boot_id = boot_id().unwrap().0);
        assert_eq!(hits(&dir), what_must_be_there(), "{format}");
    }
}

#[test]
fn an_image_from_another_boot_is_cold_where_values_change() {
    for format in ["1", "2"] {
        let dir = unpack(&format!("{format}/killed"));
        change_state(&dir, |state| state.boot_id = [7; 16]);
        let [rows, chunks] = hits(&dir);
        assert!(rows.is_empty(), "removals may have been lost with the power: {rows:?}");
        assert_eq!(chunks, what_must_be_there()[1], "{format}");
    }
}

/// What was removed is in the kill log alone: the journal has gone round since.
#[test]
fn an_image_with_a_kill_log_opens_warm_with_it_and_cold_without() {
    let dir = unpack("2/compacted");
    let state = std::fs::read(dir.0.join("state")).unwrap();
    assert_eq!(state[8..12], 3_u32.to_le_bytes(), "an earlier release must refuse it");
    change_state(&dir, |state| state.boot_id = boot_id().unwrap().0);
    assert_eq!(hits(&dir), what_must_be_there());
    for lost in ["kills.0", "kills.1"] {
        let dir = unpack("2/compacted");
        change_state(&dir, |state| state.boot_id = boot_id().unwrap().0);
        std::fs::remove_file(dir.0.join(lost)).unwrap();
        assert!(hits(&dir)[0].is_empty(), "{lost} is lost, and with it what was removed");
    }
}

/// Objects of both formats are beside one another, until those of the older are reclaimed.
#[test]
fn an_image_of_format_1_is_written_on_and_opened_again_until_nothing_of_it_is_left() {
    let dir = unpack("1/clean");
    for life in 0..4 {
        let cache = Cache::open(content::config(&dir.0)).unwrap();
        while cache.stats().loading {
            std::thread::yield_now();
        }
        let [rows, chunks] = content::namespaces(&cache).unwrap();
        for n in (0..content::OBJECTS).filter(|n| is_there(*n)) {
            for ns in [&rows, &chunks] {
                let hit = ns.get_blocking(&content::key(n));
                assert!(life > 1 || hit.is_some(), "object {n} of the older format");
                if let Some(hit) = hit {
                    assert_eq!(hit.value, content::value(n), "object {n}");
                }
            }
        }
        let new = (0..60).map(|n| content::OBJECTS + life * 60 + n);
        for n in new.clone() {
            let _ = rows.put(&content::key(n), &content::value(n), PutOptions::default());
        }
        let is_found = |n: &u32| rows.get_blocking(&content::key(*n)).is_some();
        assert_eq!(new.filter(is_found).count(), 60, "what was put in life {life}");
        cache.close();
    }
    // An earlier release must refuse what it would not understand.
    let state = std::fs::read(dir.0.join("state")).unwrap();
    assert_eq!(state[8..12], FORMAT_VERSION.to_le_bytes());
}

#[test]
fn a_later_format_is_refused_and_the_message_names_both() {
    // A state file counts one more: one that names a kill log.
    for (file, known) in [("flash", FORMAT_VERSION), ("state", WITH_KILL_LOG)] {
        let later = known + 1;
        let dir = unpack("1/clean");
        let path = dir.0.join(file);
        let mut bytes = std::fs::read(&path).unwrap();
        // Both copies of the superblock; the state file's only one.
        let places: &[usize] = if file == "flash" { &[8, 4096 + 8] } else { &[8] };
        places.iter().for_each(|&at| bytes[at..at + 4].copy_from_slice(&later.to_le_bytes()));
        std::fs::write(&path, bytes).unwrap();
        let refused = Cache::open(content::config(&dir.0)).unwrap_err();
        assert!(matches!(refused, OpenError::OtherFormat { .. }), "{refused}");
        let said = refused.to_string();
        let names =
            said.contains(&format!("format {later}")) && said.contains(&format!("format {known}"));
        assert!(names && said.contains(&*path.to_string_lossy()), "{said}");
    }
}

/// Raising the format without an image of it, or forgetting the older ones, is noticed here.
#[test]
fn every_format_so_far_has_its_images() {
    let images = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/format_fixtures");
    for format in 1..=FORMAT_VERSION {
        for image in ["clean", "killed"] {
            assert!(
                images.join(format!("{format}/{image}/state.xz")).is_file(),
                "format {format}, {image}"
            );
        }
    }
}
