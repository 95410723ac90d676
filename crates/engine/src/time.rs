//! The cache's time. TTLs are enforced by it: [`CacheTime::is_expired`] is asked for every object
//! that is put or found (`Core::why_dead`).

use std::sync::Arc;

use crate::api::NO_EXPIRY;
use crate::clock::Clock;
use crate::journal::Journal;
use crate::sync::atomic::{AtomicU64, Ordering};

/// The cache's time: the highest that the wall clock has ever shown, also in earlier lives, and
/// what has passed since. The journal remembers it.
///
/// So it never goes back and never stands still. Where the wall clock is set back, time runs on by
/// the clock that nobody can set.
pub struct CacheTime {
    clock: Arc<dyn Clock>,
    journal: Arc<Journal>,
    /// How far the wall clock has ever been ahead of the clock that nobody can set, in
    /// milliseconds. It is one number, so two threads that raise it cannot mix it up.
    lead: AtomicU64,
    /// The latest time, as [`mark`] writes it.
    latest: AtomicU64,
}

/// A time in seconds, and whether the wall clock was a second or more behind it. While it was not,
/// the wall clock alone tells the time for the rest of the second.
fn mark(time: u64, behind: bool) -> u64 {
    time << 1 | u64::from(behind)
}

impl CacheTime {
    /// Goes on from `highest`, in Unix seconds.
    pub fn new(clock: Arc<dyn Clock>, journal: Arc<Journal>, highest: u64) -> Self {
        let wall = clock.unix_millis();
        // A clock is set by whole seconds more often than not.
        let time = wall.max(highest * 1_000 + wall % 1_000);
        let lead = time.saturating_sub(clock.boot_millis()).into();
        Self { clock, journal, lead, latest: mark(highest, false).into() }
    }

    /// Unix seconds: never less than ever before.
    pub fn now(&self) -> u64 {
        let wall = self.clock.unix();
        if self.latest.load(Ordering::Acquire) == mark(wall, false) {
            return wall;
        }
        self.look()
    }

    /// The same by all clocks: once a second, and each time while the wall clock is behind.
    #[cold]
    fn look(&self) -> u64 {
        let (now, wall) = self.clocks();
        let looked = mark(now / 1_000, now - wall >= 1_000);
        let before = match self.latest.load(Ordering::Acquire) {
            known if known >= looked => known,
            _ => self.latest.fetch_max(looked, Ordering::AcqRel),
        };
        let (time, before) = (looked >> 1, before >> 1);
        if time > before {
            self.journal.store_time(time);
        }
        time.max(before)
    }

    /// The time, and what the wall clock shows, in milliseconds.
    fn clocks(&self) -> (u64, u64) {
        // The wall clock first: what passes in between must not make its lead larger.
        let wall = self.clock.unix_millis();
        let boot = self.clock.boot_millis();
        let lead = wall.saturating_sub(boot);
        let known = match self.lead.load(Ordering::Acquire) {
            known if known >= lead => known,
            _ => self.lead.fetch_max(lead, Ordering::AcqRel),
        };
        ((lead.max(known) + boot).max(wall), wall)
    }

    /// Milliseconds of the monotonic clock.
    pub fn millis(&self) -> u64 {
        self.clock.millis()
    }

    /// Seconds that the wall clock is behind the time, which is what counts.
    pub fn behind(&self) -> u64 {
        self.now();
        let (now, wall) = self.clocks();
        (now - wall) / 1_000
    }

    /// Whether something with this expiry is dead.
    pub fn is_expired(&self, expiry: u32) -> bool {
        expiry != NO_EXPIRY && u64::from(expiry) <= self.now()
    }

    /// The latest time, without a look at the clocks.
    #[cfg(test)]
    pub fn highest(&self) -> u64 {
        self.latest.load(Ordering::Relaxed) >> 1
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use super::CacheTime;
    use crate::clock::ManualClock;
    use crate::device::area::MmapMedia;
    use crate::journal::Journal;
    use crate::testing::TempDir;

    const START: u64 = 1_000_000;
    const HOUR: u64 = 3_600;
    const UUID: [u8; 16] = [7; 16];

    /// A journal's file, what it remembers of time, and the time of a cache that is opened on it.
    struct Life {
        _dir: TempDir,
        media: Arc<MmapMedia>,
        clock: Arc<ManualClock>,
        time: CacheTime,
    }

    impl Life {
        fn new(highest: u64) -> Self {
            let dir = TempDir::new();
            let media = MmapMedia::create(&dir.path().join("journal"), 2 * 4096).expect("made");
            let (media, clock) = (Arc::new(media), Arc::new(ManualClock::at(START)));
            let journal = Journal::create(media.clone(), &UUID, 1, 0..0, 0).expect("made");
            let time = CacheTime::new(clock.clone(), Arc::new(journal), highest);
            Life { _dir: dir, media, clock, time }
        }

        fn remembered(&self) -> u64 {
            Journal::scan(&*self.media, &UUID, 1, 0).expect("whole").time
        }
    }

    #[test]
    fn time_runs_on_where_the_wall_clock_is_set_back() {
        let life = Life::new(START);
        assert_eq!((life.time.now(), life.time.behind()), (START, 0));
        life.clock.set_unix(START - HOUR);
        assert_eq!(life.time.now(), START, "it does not go back");
        for passed in 1..2 * HOUR {
            life.clock.sleep(1_000);
            assert_eq!(life.time.now(), START + passed, "nor does it stand still");
            assert_eq!(life.remembered(), START + passed, "the next life goes on from there");
            assert_eq!(life.time.behind(), HOUR);
        }
        assert!(life.time.is_expired((START + 2 * HOUR - 1) as u32));
        assert!(!life.time.is_expired((START + 2 * HOUR) as u32));
        // Set right, it is the time again; set forward, time goes with it.
        life.clock.set_unix(START + 2 * HOUR);
        assert_eq!((life.time.now(), life.time.behind()), (START + 2 * HOUR, 0));
        life.clock.set_unix(START + 3 * HOUR);
        life.clock.sleep(10_000);
        assert_eq!((life.time.now(), life.time.behind()), (START + 3 * HOUR + 10, 0));
    }

    #[test]
    fn time_runs_on_from_what_an_earlier_life_has_seen() {
        let life = Life::new(START + HOUR);
        assert_eq!((life.time.now(), life.time.behind()), (START + HOUR, HOUR));
        life.clock.sleep(10_500);
        assert_eq!((life.time.now(), life.time.behind()), (START + HOUR + 10, HOUR));
    }

    #[test]
    fn whoever_asks_later_gets_no_earlier_time() {
        let life = Life::new(START);
        let highest = std::sync::atomic::AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..20_000 {
                        let before = highest.load(std::sync::atomic::Ordering::SeqCst);
                        let now = life.time.now();
                        assert!(now >= before, "{now} after {before}");
                        highest.fetch_max(now, std::sync::atomic::Ordering::SeqCst);
                    }
                });
            }
            scope.spawn(|| {
                for n in 0..20_000 {
                    life.clock.sleep(7);
                    if n % 100 == 0 {
                        let wall = crate::clock::Clock::unix(&*life.clock);
                        life.clock.set_unix(if n % 200 == 0 { wall - 40 } else { wall + 41 });
                    }
                }
            });
        });
        assert!(life.time.now() >= START + 140, "time has run on");
    }
}
