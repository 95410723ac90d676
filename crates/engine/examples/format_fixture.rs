//! Makes the images of the present format that `tests/format_fixtures` keeps, one folder each:
//!
//! ```sh
//! cargo run --release -p afterglow-engine --example format_fixture -- crates/engine/tests/format_fixtures/2
//! ```
//! A second word names one of the images, `killed` (with `clean`) or `compacted`. Run once when a
//! format is released. An image of a released format is never made again.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

use afterglow_engine::{Cache, PutOptions, PutOutcome};
use lzma_rust2::{XzOptions, XzWriter};

#[path = "../tests/format_fixtures/content.rs"]
mod content;

/// The group that is removed: objects 60 to 69 are in it.
const GROUP: u32 = 6;
/// Objects 110 to 119 are put with this token, whose partition epoch is bumped.
const TOKEN: u64 = 5 << 44;
/// Files of a cache that hold something, and those of a kill log.
const FILES: [&str; 3] = ["flash", "journal", "state"];
const RUNS: std::ops::Range<u32> = 0..100;
/// Puts of one object after which the journal has gone round, and no checkpoint is due yet.
const CHANGES: u32 = 900;

fn main() -> Result<(), Box<dyn Error>> {
    let to: PathBuf = std::env::args_os().nth(1).ok_or("say where to")?.into();
    let dir = std::env::temp_dir().join(format!("afterglow-fixture-{}", std::process::id()));
    std::fs::create_dir(&dir)?;
    let wants = |image: &str| std::env::args().nth(2).is_none_or(|only| only == image);
    let mut made = Ok(());
    if wants("killed") {
        made = made.and_then(|()| make(&dir, &to));
        std::fs::remove_dir_all(&dir)?;
        std::fs::create_dir(&dir)?;
    }
    if wants("compacted") {
        made = made.and_then(|()| make_compacted(&dir, &to));
    }
    std::fs::remove_dir_all(&dir)?;
    made
}

fn make(dir: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    let cache = fill(dir)?;
    // What is in the files now is what `kill -9` would leave.
    save(dir, &to.join("killed"))?;
    cache.close();
    save(dir, &to.join("clean"))
}

/// What was removed is in the kill log alone.
fn make_compacted(dir: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    let cache = fill(dir)?;
    let [rows, _] = content::namespaces(&cache)?;
    for n in 0..CHANGES {
        let _ = rows.put(b"changes", &n.to_le_bytes(), PutOptions::default());
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    let stats = cache.stats();
    assert!(stats.totals.compactions > 1 && stats.totals.checkpoints == 0, "{stats:?}");
    save(dir, &to.join("compacted"))?;
    cache.close();
    Ok(())
}

fn fill(dir: &Path) -> Result<Cache, Box<dyn Error>> {
    let cache = Cache::open(content::config(dir))?;
    let namespaces = content::namespaces(&cache)?;
    let put = |n| {
        for ns in &namespaces {
            let outcome = ns.put(&content::key(n), &content::value(n), options(n));
            assert!(matches!(outcome, PutOutcome::Stored { .. }), "{outcome:?}");
        }
    };
    (0..content::OBJECTS).for_each(put);
    // An older value of some, to be superseded on flash.
    wait(&cache);
    (0..20).for_each(put);
    namespaces[0].remove(&content::key(content::REMOVED));
    namespaces[0].remove_group(GROUP);
    namespaces[0].bump_epoch(TOKEN);
    wait(&cache);
    Ok(cache)
}

fn options(n: u32) -> PutOptions {
    let group = if (60..70).contains(&n) { GROUP } else { 0 };
    let token = if n >= 110 { TOKEN } else { u64::from(n) };
    PutOptions { group, token, ..PutOptions::default() }
}

/// Until everything put has reached flash.
fn wait(cache: &Cache) {
    while cache.stats().unsaved_bytes > 0 {
        std::thread::sleep(std::time::Duration::from_millis(50));
    }
}

fn save(dir: &Path, to: &Path) -> Result<(), Box<dyn Error>> {
    std::fs::create_dir_all(to)?;
    let runs = RUNS.map(|slot| format!("kills.{slot}"));
    let names = FILES.map(String::from).into_iter().chain(runs);
    for name in names.filter(|name| dir.join(name).exists()) {
        let file = std::fs::File::create(to.join(format!("{name}.xz")))?;
        let mut xz = XzWriter::new(file, XzOptions::with_preset(9))?;
        xz.write_all(&std::fs::read(dir.join(&name))?)?;
        xz.finish()?;
    }
    Ok(())
}
