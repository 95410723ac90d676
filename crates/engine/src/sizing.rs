//! What a cache of some size would hold and write: for operators who plan one.
//!
//! All figures follow from the structures themselves. [`Outlook`] is divided as a new cache is.
//! Records and footers are as long as the format makes them. Entries of the DRAM tier cost what the
//! tier counts for them.

use crate::checkpoint_pace::{KILL, changes_between, journal_share, segments_between};
use crate::config::Config;
use crate::error::OpenError;
use crate::format::checkpoint::{SEGMENT_ENTRY, segments_needed};
use crate::format::footer;
use crate::format::footer_entries::usual_entry;
use crate::format::{journal, record};
use crate::geometry;
use crate::index::{LINE_BYTES, SLOTS_PER_LINE};
use crate::recovery::Outlook;
use crate::tier::entry_bytes;

/// How full an index is in practice, in percent. Beyond it the two lines of a key are often full,
/// and objects that were not read lately are evicted.
const INDEX_FILL: u64 = 90;

/// Bytes written to flash and journal for one put, by kind.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WrittenByPut {
    /// The record with its padding to 16 bytes.
    pub record: f64,
    /// Records that a reclaim writes again, at most; nothing before flash is full.
    pub reinserted: f64,
    /// Its entry in its segment's footer.
    pub footer: f64,
    /// Its entry in the journal.
    pub journal: f64,
    /// Its entry in the kill log, where the index is so large that the journal is compacted.
    pub kill_log: f64,
    /// Its share of a checkpoint where puts are so many that they set its pace.
    pub checkpoint: f64,
}

impl WrittenByPut {
    /// All of it.
    #[must_use]
    pub fn total(&self) -> f64 {
        self.record + self.reinserted + self.footer + self.journal + self.kill_log + self.checkpoint
    }
}

impl Outlook {
    /// How a new cache with one device of `flash` bytes would be divided. Looks at no disk.
    ///
    /// # Errors
    /// Those of opening: too little memory or flash.
    pub fn of_new(config: &Config, flash: u64) -> Result<Self, OpenError> {
        let device = crate::device::DeviceInfo { size: flash, alignment: 4096, path: "".into() };
        let blocks = geometry::format(config, &[device], [0; 16], 0, 1)?;
        Self::divided(config, &blocks)
    }

    /// The same once flash is full of objects of `len` bytes of key and value. The index has grown
    /// for them as far as it may. It has taken memory from the DRAM tier, and segments for its
    /// checkpoints.
    #[must_use]
    pub fn grown_for(&self, len: usize) -> Self {
        let (shards, slots_a_line) = (u64::from(self.shards), SLOTS_PER_LINE as u64);
        let wanted = (self.flash_records(len) * 100).div_ceil(INDEX_FILL);
        let most = self.index_slots_most.max(self.index_slots);
        let slots = wanted.next_multiple_of(slots_a_line * shards).clamp(self.index_slots, most);
        let bytes = slots / slots_a_line * LINE_BYTES as u64;
        let [area, tables] = self.area;
        let lines = slots / slots_a_line / shards;
        let needed = match slots > self.index_slots {
            true => segments_needed(self.shards, lines, tables, area, self.segment_size),
            false => None,
        };
        Self {
            index_slots: slots,
            index_bytes: bytes,
            dram: self.dram.saturating_sub(bytes - self.index_bytes),
            segments: self.segments.saturating_sub(2 * needed.unwrap_or(0)),
            ..*self
        }
    }

    /// Objects of `len` bytes of key and value that the DRAM tier holds.
    #[must_use]
    pub fn dram_objects(&self, len: usize) -> u64 {
        self.dram / entry_bytes(len) as u64
    }

    /// Objects of `len` bytes of key and value that are on flash when it is full. The index's slots
    /// are the upper bound.
    #[must_use]
    pub fn flash_objects(&self, len: usize) -> u64 {
        self.flash_records(len).min(self.index_objects())
    }

    /// Records of `len` bytes of key and value that full segments hold, whatever the index.
    #[must_use]
    pub fn flash_records(&self, len: usize) -> u64 {
        // Reclaim keeps some free.
        let free = u64::from(geometry::free_target(self.segments as u32));
        self.segments.saturating_sub(free) * self.records_a_segment(len)
    }

    /// Objects that the index has slots for before it grows or evicts many.
    #[must_use]
    pub fn index_objects(&self) -> u64 {
        self.index_slots * INDEX_FILL / 100
    }

    /// What one put of `len` bytes of key and value writes.
    #[must_use]
    pub fn written_by_put(&self, config: &Config, len: usize) -> WrittenByPut {
        let record = f64::from(record::usual_padded(0, len));
        let entries = (config.journal_size - journal::HEADER) / journal::ENTRY;
        let between = segments_between(self.index_bytes, self.segments, self.segment_size.into());
        let segments = between * self.records_a_segment(len);
        let puts = changes_between(self.index_bytes, entries).min(segments).max(1);
        // What is in the journal when a checkpoint is taken never comes to the kill log.
        let compacted = puts.saturating_sub(journal_share(entries)) as f64 / puts as f64;
        let tables = self.index_bytes + self.segments * SEGMENT_ENTRY as u64;
        WrittenByPut {
            record,
            reinserted: record * config.reinsertion,
            footer: usual_entry(len as u32) as f64,
            journal: journal::ENTRY as f64,
            kill_log: KILL as f64 * compacted,
            checkpoint: tables as f64 / puts as f64,
        }
    }

    fn records_a_segment(&self, len: usize) -> u64 {
        let (record, entry) = (u64::from(record::usual_padded(0, len)), usual_entry(len as u32));
        let room = u64::from(self.segment_size - footer::HEADER);
        let mut records = room / (record + entry as u64);
        // The footer is rounded up to whole blocks.
        let footer = |records| u64::from(footer::len_with(records as usize * entry));
        while records > 0 && records * record + footer(records) > room {
            records -= 1;
        }
        records
    }
}
