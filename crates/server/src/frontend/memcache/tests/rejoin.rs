//! What a start leaves for `--memcache-rejoin-grace`.

use super::super::signs_of_life::{Downtime, away};
use super::*;

#[test]
fn a_start_that_fails_gives_no_sign_of_life() {
    const GRACE: Duration = Duration::from_secs(3600);
    let dir = tempfile::tempdir().unwrap();
    let device = DeviceConfig { path: dir.path().join("flash"), size: 32 << 20 };
    let mut engine = Config::new(dir.path(), vec![device]);
    (engine.memory, engine.journal_size) = (32 << 20, 1 << 20);
    let cache = Arc::new(Cache::open(engine).unwrap());
    let reactors =
        Reactors::start(&ReactorsConfig { threads: Some(1), driver: Driver::Auto }).unwrap();
    let config = || MemcacheFrontEndConfig { rejoin_grace: Some(GRACE), ..config(&dir) };
    // What comes behind it in a start fails: it never serves.
    let front_end = MemcacheFrontEnd::start(config(), &cache, &reactors).unwrap();
    assert_eq!(away(dir.path()).unwrap(), Downtime::Unknown);
    front_end.drain(TIMEOUT);
    drop(front_end);
    assert_eq!(away(dir.path()).unwrap(), Downtime::Unknown);
    let mut front_end = MemcacheFrontEnd::start(config(), &cache, &reactors).unwrap();
    front_end.give_signs_of_life().unwrap();
    assert!(away(dir.path()).unwrap().is_within(GRACE));
    front_end.drain(TIMEOUT);
    drop(front_end);
    assert!(away(dir.path()).unwrap().is_within(GRACE));
    reactors.shutdown();
}
