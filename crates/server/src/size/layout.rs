//! In what records an object lies, as the memcached front end stores it.

use afterglow_engine::{Outlook, WrittenByPut, format::record::usual_padded};
use afterglow_memcache::ITEM_OVERHEAD;

use crate::frontend::memcache::part_len;

/// Bytes of a part's key.
const PART_KEY: u64 = 20;
/// Bytes that a head takes: it is written at once, so a block.
const HEAD: u64 = 4096;

/// The records of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Layout {
    /// Parts of its value; 0 where it is one record.
    pub parts: u64,
    /// Bytes of key and value of a record: of the only one, or of a part on average.
    pub record: usize,
}

impl Layout {
    /// Of an object of so many bytes of key and value, where segments have so many.
    pub fn of(size: u64, segment: u32) -> Self {
        let narrow = |len: u64| usize::try_from(len).unwrap_or(usize::MAX);
        if size.saturating_add(ITEM_OVERHEAD as u64) <= u64::from(segment / 4) {
            return Layout { parts: 0, record: narrow(size) };
        }
        let parts = size.div_ceil(part_len(segment.into()) as u64);
        Layout { parts, record: narrow(size.div_ceil(parts) + PART_KEY) }
    }

    /// Bytes that it takes on flash.
    pub fn bytes(&self) -> u64 {
        let record = u64::from(usual_padded(0, self.record));
        if self.parts == 0 { record } else { self.parts * record + HEAD }
    }

    /// Such objects that memory holds: none whose value is in parts.
    pub fn in_dram(&self, outlook: &Outlook) -> u64 {
        if self.parts == 0 { outlook.dram_objects(self.record) } else { 0 }
    }

    /// Such objects that full flash holds.
    pub fn on_flash(&self, outlook: &Outlook) -> u64 {
        let by_space = self.fit_flash(outlook);
        by_space.min(outlook.index_objects() / (self.parts + 1))
    }

    /// The same, whatever the index has slots for.
    pub fn fit_flash(&self, outlook: &Outlook) -> u64 {
        let (records, record) =
            (outlook.flash_records(self.record), u64::from(usual_padded(0, self.record)));
        if self.parts == 0 { records } else { records * record / self.bytes() }
    }

    /// What one of them writes, where each of its records writes that.
    pub fn written(&self, by_record: WrittenByPut) -> WrittenByPut {
        if self.parts == 0 {
            return by_record;
        }
        let all = |bytes: f64| bytes * self.parts as f64;
        WrittenByPut {
            record: all(by_record.record) + HEAD as f64,
            reinserted: all(by_record.reinserted),
            footer: all(by_record.footer),
            journal: all(by_record.journal),
            kill_log: all(by_record.kill_log),
            checkpoint: all(by_record.checkpoint),
        }
    }
}
