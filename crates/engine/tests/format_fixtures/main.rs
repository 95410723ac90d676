//! Caches that released formats left behind still open, or are refused with a message that says
//! why.

use std::io::Read;
use std::path::{Path, PathBuf};

use afterglow_engine::device::area::boot_id;
use afterglow_engine::format::FORMAT_VERSION;
use afterglow_engine::format::state::StateFile;
use afterglow_engine::{Cache, OpenError};

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
    for name in ["flash", "journal", "state"] {
        let file = std::fs::File::open(from.join(format!("{name}.xz"))).unwrap();
        let mut bytes = Vec::new();
        lzma_rust2::XzReader::new(file, false).read_to_end(&mut bytes).unwrap();
        std::fs::write(dir.0.join(name), bytes).unwrap();
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
fn an_image_of_format_1_opens_warm_after_a_clean_stop() {
    assert_eq!(hits(&unpack("1/clean")), what_must_be_there());
}

#[test]
fn an_image_of_format_1_opens_warm_after_the_death_of_its_process() {
    let dir = unpack("1/killed");
    // The image says that it is of another boot than this one.
    change_state(&dir, |state| state.boot_id = boot_id().unwrap().0);
    assert_eq!(hits(&dir), what_must_be_there());
}

#[test]
fn an_image_of_format_1_from_another_boot_is_cold_where_values_change() {
    let dir = unpack("1/killed");
    change_state(&dir, |state| state.boot_id = [7; 16]);
    let [rows, chunks] = hits(&dir);
    assert!(rows.is_empty(), "removals may have been lost with the power: {rows:?}");
    assert_eq!(chunks, what_must_be_there()[1]);
}

#[test]
fn a_later_format_is_refused_and_the_message_names_both() {
    let later = FORMAT_VERSION + 1;
    for file in ["flash", "state"] {
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
        let names = said.contains(&format!("format {later}"))
            && said.contains(&format!("format {FORMAT_VERSION}"));
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
