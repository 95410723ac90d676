//! What reclaims reinsert: objects that are read, up to a bounded share of other writes, and no
//! object for ever.

use super::scenarios::{NS, pass, put, world};
use super::world::{Life, World};
use crate::background::CREDIT_SEGMENTS;
use crate::stats::EngineTotals;

/// Bytes of a segment of [`world`].
const SEGMENT: u64 = 64 << 10;
/// Share of what is written that may be written again there.
const SHARE: f64 = 0.15;

/// A cache and the objects that were put into it, each with a number.
struct Written {
    world: World,
    life: Life,
    next: u32,
}

impl Written {
    fn new(seed: u64) -> Self {
        let (world, life) = world(seed);
        Self { world, life, next: 0 }
    }

    fn flash(&self) -> u64 {
        self.life.core.stats().segments * SEGMENT
    }

    fn totals(&self) -> EngineTotals {
        self.life.core.stats().totals
    }

    /// Bytes that left DRAM and were not admitted.
    fn refused(&self) -> u64 {
        self.life.core.admission.refused()
    }

    /// Puts objects of 4000 bytes, so many bytes of them.
    fn write(&mut self, bytes: u64) {
        for _ in 0..bytes / 4096 {
            put(&self.life, &self.next.to_le_bytes(), &[2; 4000], 0);
            self.next += 1;
            if self.next.is_multiple_of(5) {
                pass(&mut self.world, &mut self.life, 5);
            }
        }
    }

    /// Reads an object from flash as often, if it is there, and from nowhere else: what lives in
    /// DRAM is written again in any case.
    fn read(&self, n: u32, times: u32) -> bool {
        let (core, key) = (&self.life.core, n.to_le_bytes());
        let hash = core.hash(NS as u16, &key);
        core.shard(hash).lock().dram.remove(hash, NS as u16, &key);
        (0..times).all(|_| core.shard(hash).index.lookup(hash).is_some())
    }

    fn is_on_flash(&self, n: u32) -> bool {
        self.life.on_flash(&self.world.machine, NS as u8, &n.to_le_bytes()).is_some()
    }

    /// Writes until as many segments more were reclaimed.
    fn reclaim(&mut self, segments: u64) {
        let before = self.totals().segments_reclaimed;
        while self.totals().segments_reclaimed < before + segments {
            self.write(4096 * 5);
        }
    }
}

#[test]
fn what_was_read_long_ago_is_written_again_a_few_times_and_not_for_ever() {
    for (times, turns) in [(1, 1), (3, 2), (20, 2)] {
        let mut written = Written::new(1);
        let segments = written.flash() / SEGMENT;
        written.write(2 * written.flash());
        let on_flash = (written.next - 60..written.next - 30).filter(|&n| written.is_on_flash(n));
        let read: Vec<u32> = on_flash.filter(|&n| written.read(n, times)).take(6).collect();
        assert_eq!(read.len(), 6, "no test: {:?}", written.totals());
        let left = |written: &Written| read.iter().filter(|&&n| written.is_on_flash(n)).count();
        for turn in 1..=turns {
            written.reclaim(segments);
            assert_eq!(left(&written), read.len(), "read {times} times, lost in turn {turn}");
        }
        written.reclaim(2 * segments);
        assert_eq!(left(&written), 0, "read {times} times, written again ever since");
    }
}

/// Much is written while nothing is read; then everything is, all the time.
#[test]
fn what_was_written_long_ago_is_no_credit_for_writing_everything_again() {
    for seed in 0..4 {
        let mut written = Written::new(seed);
        let segments = written.flash() / SEGMENT;
        written.write(20 * written.flash());
        assert_eq!(written.totals().reinserted_bytes, 0, "no test");
        let before = written.totals();
        for _ in 0..4 * segments {
            for n in written.next.saturating_sub(600)..written.next {
                written.read(n, 3);
            }
            written.reclaim(1);
            let now = written.totals();
            // One more may be under way.
            let reclaims = now.segments_reclaimed - before.segments_reclaimed + 1;
            let (again, gained) = (now.reinserted_bytes, reclaims * SEGMENT - now.reinserted_bytes);
            assert!(
                gained >= reclaims * SEGMENT / 8 * 5,
                "seed {seed}: {reclaims} wrote {again} bytes again"
            );
        }
    }
}

#[test]
fn a_byte_that_leaves_dram_is_written_1_15_times_at_most() {
    let mut written = Written::new(1);
    written.write(20 * written.flash());
    let (before, refused) = (written.totals(), written.refused());
    for _ in 0..100 {
        for n in written.next.saturating_sub(600)..written.next {
            written.read(n, 3);
        }
        written.reclaim(1);
        let now = written.totals();
        let again = (now.reinserted_bytes - before.reinserted_bytes) as f64;
        let new = (now.record_bytes - before.record_bytes) as f64 - again;
        let credit = (CREDIT_SEGMENTS * SEGMENT) as f64 + 4096.0;
        // What was not admitted has cost no write.
        let left = new + (written.refused() - refused) as f64;
        let most = left * (1.0 + SHARE) + credit;
        assert!(again + new <= most, "{again} bytes again beside {new} new ones of {left}");
    }
    let now = written.totals();
    let again = now.reinserted_bytes - before.reinserted_bytes;
    assert!(
        again as f64 > 0.1 * (now.record_bytes - before.record_bytes) as f64,
        "nothing is kept: {now:?}"
    );
}
