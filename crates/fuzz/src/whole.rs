//! Whole caches with bytes of their files changed: opening them, and looking at them.

use std::path::{Path, PathBuf};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use afterglow::inspect::{NextStart, inspect};
use afterglow_engine::{Cache, OpenError, Opening, Origin, PutOptions, device};
use afterglow_rowcache::intents::IntentTable;

use crate::{image, target::Target};

#[path = "../../engine/tests/format_fixtures/content.rs"]
mod content;

/// These targets.
pub const TARGETS: &[Target] = &[
    Target { name: "open", run: open, seeds: image::seeds, mutations: 300 },
    Target { name: "inspect", run: look, seeds: image::seeds, mutations: 2_000 },
    Target { name: "nonsense", run: nonsense, seeds: nonsense_seeds, mutations: 1_000 },
    Target { name: "intents", run: intents, seeds: intents_seeds, mutations: 500 },
];

/// Panics of any thread of this process. The engine survives one of its background thread, a target
/// must not.
static PANICS: LazyLock<AtomicU64> = LazyLock::new(|| {
    let before = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        PANICS.fetch_add(1, Ordering::SeqCst);
        before(info);
    }));
    AtomicU64::new(0)
});

/// A folder in memory where there is one: the targets sync much.
fn folder() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    let made = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    made.expect("a folder for temporary files")
}

/// Opens the changed image as a server would, reads everything in it, changes it, and stops
/// cleanly. What was not sealed is a miss or what was put (G2), and what was removed stays removed
/// (G1). What `inspect` says of the next start is what happens.
fn open(data: &[u8]) {
    let panics = PANICS.load(Ordering::SeqCst);
    let image::Changed { image, sealed, forgetful } = image::changed(data);
    let dir = folder();
    image.write_to(dir.path());
    let foretold = inspect(dir.path(), &[dir.path().join("flash")])
        .expect("a folder that is there")
        .next_start;
    let opened = Cache::open(content::config(dir.path()));
    let refused = matches!(
        opened,
        Err(OpenError::Foreign { .. }
            | OpenError::Device(device::DeviceError::Foreign { .. })
            | OpenError::ForeignState { .. }
            | OpenError::Journal(_)
            | OpenError::OtherFormat { .. }
            | OpenError::OtherCache { .. })
    );
    assert_eq!(
        foretold == NextStart::Refused,
        refused,
        "foretold {foretold:?}, opened {:?}",
        opened.err()
    );
    let Ok(cache) = opened else { return };
    let found = cache.opening();
    // How much of a device is configured `inspect` does not know.
    let resized = matches!(found.origin, Origin::Replaced(_))
        && !image.has_size(content::config(dir.path()).devices[0].size);
    let told = is_as_foretold(foretold, found, sealed);
    assert!(resized || told, "foretold {foretold:?}, found {found:?}");
    while cache.stats().loading && PANICS.load(Ordering::SeqCst) == panics {
        thread::yield_now();
    }
    if let Ok(namespaces) = content::namespaces(&cache) {
        for (ns, which) in namespaces.iter().zip(0..) {
            for n in 0..content::OBJECTS {
                let Some(hit) = ns.get_blocking(&content::key(n)) else { continue };
                assert!(
                    sealed || hit.value == content::value(n),
                    "object {n} has a value it never had"
                );
                let removed = which == 0 && n == content::REMOVED;
                assert!(sealed || forgetful || !removed, "object {n} is back");
            }
            let _ = ns.put(b"another", b"value", PutOptions::default());
            ns.remove(&content::key(1));
            assert!(ns.get_blocking(&content::key(1)).is_none(), "it was removed just now");
        }
    }
    cache.close();
    assert_eq!(PANICS.load(Ordering::SeqCst), panics, "a thread of the cache panicked");
}

/// Whether a start found what `inspect` said of it. An entry whose checksum was put right may claim
/// a lap that no journal was in. Behind it a cold namespace's removals find no space; `inspect`
/// does not reckon with that.
fn is_as_foretold(foretold: NextStart, found: &Opening, sealed: bool) -> bool {
    let all = found.warm == found.namespaces || (sealed && !found.journal);
    match foretold {
        NextStart::New => matches!(found.origin, Origin::New | Origin::Replaced(_)),
        NextStart::Warm => found.origin == Origin::Closed && all && !found.timeless,
        NextStart::WarmAfterCrash => {
            found.origin == Origin::Process && found.journal && !found.timeless
        }
        NextStart::Cold => match found.origin {
            Origin::Closed => found.timeless,
            Origin::Process => found.timeless || !found.journal,
            Origin::Machine | Origin::Replaced(_) => true,
            Origin::New => false,
        },
        NextStart::Refused | NextStart::Unknown => false,
    }
}

/// Both forms of a report, of the same files.
fn look(data: &[u8]) {
    let dir = folder();
    image::changed(data).image.write_to(dir.path());
    report(dir.path());
}

fn report(dir: &Path) {
    let report = inspect(dir, &[dir.join("flash")]).expect("a folder that is there");
    let text = report.to_string();
    assert!(text.contains("next start") && text.contains("flash"), "{text}");
}

/// Files of nothing but the input: the first byte says which of them it is, and where the input's
/// parts are split.
fn nonsense(data: &[u8]) {
    let Some((first, rest)) = data.split_first() else { return };
    let dir = folder();
    let mut parts = rest.chunks((rest.len() / (usize::from(first >> 3) % 3 + 1)).max(1));
    for (n, name) in image::FILES.iter().enumerate().filter(|(n, _)| first >> n & 1 == 1) {
        // What is opened as a device is at least as long as a superblock.
        let mut bytes = parts.next().unwrap_or_default().to_vec();
        bytes.resize(bytes.len().max(if n == 0 && first & 0x80 != 0 { 8192 } else { 0 }), 0);
        std::fs::write(dir.path().join(name), bytes).expect("a folder to write to");
    }
    report(dir.path());
}

fn nonsense_seeds() -> Vec<Vec<u8>> {
    let magics = b"aglowDEVaglowSTAaglowJNLaglowCKP";
    (0..8).flat_map(|first| [vec![first], [&[first | 0x80], &magics[..]].concat()]).collect()
}

const INTENT_SLOTS: u32 = 4;
const ANYTHING: u64 = u64::MAX;

fn intents_file() -> Vec<u8> {
    let dir = folder();
    let path: PathBuf = dir.path().join("intents");
    let (table, _) = IntentTable::open(&path, INTENT_SLOTS, ANYTHING, false).expect("a new table");
    table.begin(5);
    drop(table);
    std::fs::read(path).expect("just made")
}

/// A table of intents with `at u16 | byte` changed in it: never less than what was under way, as
/// far as the file tells.
fn intents(data: &[u8]) {
    static WHOLE: LazyLock<Vec<u8>> = LazyLock::new(intents_file);
    let mut bytes = WHOLE.clone();
    let (mut words_changed, mut header_changed) = (false, false);
    for change in data.chunks_exact(3) {
        let at = usize::from(u16::from_le_bytes([change[0], change[1]])) % bytes.len();
        words_changed |= at >= 4096 && bytes[at] != change[2];
        header_changed |= at < 4096 && bytes[at] != change[2];
        bytes[at] = change[2];
    }
    if let [.., n] = data
        && data.len() % 3 == 1
    {
        bytes.truncate(bytes.len() * usize::from(*n) / 256);
        (words_changed, header_changed) = (true, true);
    }
    let dir = folder();
    let path = dir.path().join("intents");
    std::fs::write(&path, bytes).expect("a folder to write to");
    let (table, unsettled) =
        IntentTable::open(&path, INTENT_SLOTS, ANYTHING, true).expect("always opens");
    let words: Vec<u64> = unsettled.intents.iter().map(|(_, word)| *word).collect();
    match &unsettled.doubt {
        Some(doubt) => assert!(header_changed && words == [ANYTHING], "{doubt:?}: {words:?}"),
        None => assert!(words_changed || words == [5], "{words:?}"),
    }
    unsettled.intents.into_iter().for_each(|(id, _)| table.settle(id));
}

fn intents_seeds() -> Vec<Vec<u8>> {
    vec![
        vec![],
        vec![8, 0, 2],
        vec![12, 0, 9],
        vec![16, 0, 1],
        vec![32, 0, 1],
        vec![40, 0, 1],
        vec![0, 16, 7],
        vec![128],
    ]
}
