//! `afterglow inspect` on directories in every state, also on nonsense.

use std::{
    fs::File,
    io::{BufRead, BufReader, Read},
    path::Path,
    process::{Command, Output, Stdio},
    sync::LazyLock,
};

use afterglow_engine::device::area::unfit_to_map;
use proptest::prelude::*;

fn inspect(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_afterglow")).arg("inspect").args(arguments).output().unwrap()
}

fn json(dir: &Path) -> serde_json::Value {
    let output = inspect(&[dir.to_str().unwrap(), "--json"]);
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).unwrap()
}

/// Starts a server on the directory, does something while it runs, and ends it by a signal.
fn serve(dir: &Path, end: rustix::process::Signal, meanwhile: impl FnOnce(u32)) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_afterglow"))
        .args([
            "serve",
            "--cql",
            "127.0.0.1:0",
            "--backend",
            "127.0.0.1:9",
            "--admin",
            "off",
            "--log-level",
            "off",
        ])
        .args(["--memory", "64MiB", "--flash-size", "64MiB", "--reactors", "1", "--data-dir"])
        .arg(dir)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut ports = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut ports).unwrap();
    meanwhile(child.id());
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), end).unwrap();
    child.wait().unwrap();
}

#[test]
fn a_cache_is_told_at_every_station_of_its_life() {
    let dir = tempfile::tempdir().unwrap();
    let empty = json(dir.path());
    assert_eq!(
        (&empty["state"]["found"], &empty["next_start"]),
        (&"missing".into(), &"new".into())
    );

    serve(dir.path(), rustix::process::Signal::TERM, |pid| {
        let open = json(dir.path());
        assert_eq!(open["open_in_process"], pid);
        assert_eq!(open["state"]["clean"], false);
    });
    let closed = json(dir.path());
    assert_eq!(closed["open_in_process"], serde_json::Value::Null);
    assert_eq!((&closed["state"]["clean"], &closed["next_start"]), (&true.into(), &"warm".into()));
    assert_eq!(closed["devices"][0]["cache"], closed["state"]["cache"]);
    assert_eq!(closed["devices"][0]["bytes"], 64 << 20);
    assert!(closed["checkpoint"]["sequence"].as_u64().unwrap() > 0, "{closed}");
    assert_eq!(closed["journal"]["poisoned"], false);

    serve(dir.path(), rustix::process::Signal::KILL, |_| ());
    let killed = json(dir.path());
    assert_eq!(
        (&killed["state"]["clean"], &killed["next_start"]),
        (&false.into(), &"warm_after_crash".into())
    );

    std::fs::remove_file(dir.path().join("journal")).unwrap();
    assert_eq!(
        json(dir.path())["next_start"],
        "cold",
        "without its journal it cannot be believed after a crash"
    );
    let text = String::from_utf8(inspect(&[dir.path().to_str().unwrap()]).stdout).unwrap();
    assert!(
        text.contains("next start      cold") && text.contains("journal         none"),
        "{text}"
    );
}

#[test]
fn what_is_not_there_or_not_ours_is_said() {
    let output = inspect(&["/nowhere"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("cannot look into /nowhere"));

    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("flash"), vec![b'x'; 1 << 16]).unwrap();
    let report = json(dir.path());
    assert_eq!(
        (&report["devices"][0]["found"], &report["next_start"]),
        (&"foreign".into(), &"refused".into())
    );
}

#[test]
fn a_device_of_another_cache_is_foretold_to_be_refused() {
    let [one, other] = [0; 2].map(|_| {
        let dir = tempfile::tempdir().unwrap();
        serve(dir.path(), rustix::process::Signal::TERM, |_| ());
        dir
    });
    std::fs::rename(one.path().join("flash"), other.path().join("flash")).unwrap();
    assert_eq!(json(other.path())["next_start"], "refused");
}

#[test]
fn a_start_is_not_foretold_without_its_flash_nor_one_that_is_refused_as_warm() {
    let dir = tempfile::tempdir().unwrap();
    serve(dir.path(), rustix::process::Signal::TERM, |_| ());
    let elsewhere = tempfile::tempdir().unwrap();
    let flash = elsewhere.path().join("flash");
    std::fs::copy(dir.path().join("flash"), &flash).unwrap();
    std::fs::remove_file(dir.path().join("flash")).unwrap();
    assert_eq!(json(dir.path())["next_start"], "unknown");
    let named = [dir.path().to_str().unwrap(), "--flash", flash.to_str().unwrap()];
    let text = String::from_utf8(inspect(&named).stdout).unwrap();
    assert!(text.contains("next start      warm") && text.contains(" UTC (Unix time "), "{text}");

    // As a copy that leaves out zeros makes it.
    let journal = dir.path().join("journal");
    let len = std::fs::metadata(&journal).unwrap().len();
    std::fs::remove_file(&journal).unwrap();
    File::create(&journal).unwrap().set_len(len).unwrap();
    let text = String::from_utf8(inspect(&named).stdout).unwrap();
    let refused = text.contains("next start      refused: ") && text.contains("it has holes");
    // Where it would not be mapped it may have some.
    assert_eq!(refused, unfit_to_map(dir.path()).is_none(), "{text}");
}

const FILES: [&str; 3] = ["state", "flash", "journal"];

/// The files of a cache that was closed properly, or their beginnings: all that is read of a new
/// cache's flash.
static WHOLE: LazyLock<Vec<(&str, Vec<u8>)>> = LazyLock::new(|| {
    let dir = tempfile::tempdir().unwrap();
    serve(dir.path(), rustix::process::Signal::TERM, |_| ());
    let read = |name| {
        let mut bytes = Vec::new();
        File::open(dir.path().join(name)).unwrap().take(1 << 20).read_to_end(&mut bytes).unwrap();
        (name, bytes)
    };
    FILES.into_iter().map(read).collect()
});

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whole files with stretches of nonsense in them: told, never a panic.
    #[test]
    fn damaged_files_are_no_reason_to_panic(
        which in prop::sample::select(FILES.to_vec()),
        at in 0_usize..20_000,
        nonsense in prop::collection::vec(any::<u8>(), 1..200),
        keep in 0_usize..30_000,
    ) {
        let dir = tempfile::tempdir().unwrap();
        for (name, whole) in WHOLE.iter() {
            let mut bytes = whole.clone();
            if *name == which {
                bytes.truncate(bytes.len().min(keep + at + nonsense.len()));
                let end = bytes.len().min(at + nonsense.len());
                if at < end {
                    bytes[at..end].copy_from_slice(&nonsense[..end - at]);
                }
            }
            std::fs::write(dir.path().join(name), bytes).unwrap();
        }
        let report = afterglow::inspect::inspect(dir.path(), &[dir.path().join("flash")]).unwrap();
        prop_assert!(!report.to_string().is_empty());
    }
}
