//! An object in DRAM, and whether flash holds it too.

use bytes::Bytes;

use crate::api::{Hit, Tier};
use crate::format::record::Meta;
use crate::index::{Location, MAX_SEGMENTS};

/// Whether flash holds the same version of an object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryState {
    /// DRAM has the only copy.
    Dirty,
    /// Flash had it at this location when it was last looked at; whether it still has is checked at
    /// eviction.
    Clean(Location),
}

/// An object in DRAM with everything that travels with it through the tiers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DramEntry {
    /// Keyed 64-bit hash of namespace and key.
    pub hash: u64,
    /// Version of the put that brought it.
    pub version: u64,
    /// Key, then value, in an allocation of exactly their size. A slice of a larger buffer would
    /// keep all of that buffer, which the budget does not see.
    pub data: Bytes,
    /// Bytes of the key at the start of `data`.
    pub key_len: u32,
    /// Unix seconds after which it is dead, 0 for never.
    pub expiry: u32,
    /// Group it dies with, 0 for none.
    pub group: u32,
    /// Partition epoch slot it dies with.
    pub epoch_slot: u32,
    /// Namespace.
    pub ns: u16,
    /// Whether flash holds it too.
    pub state: EntryState,
}

impl DramEntry {
    /// The key.
    ///
    /// # Panics
    /// When `key_len` is beyond `data`.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        &self.data[..self.key_len as usize]
    }

    /// The value, sharing the entry's memory.
    ///
    /// # Panics
    /// When `key_len` is beyond `data`.
    #[must_use]
    pub fn value(&self) -> Bytes {
        self.data.slice(self.key_len as usize..)
    }

    /// What is stored with it on flash.
    #[must_use]
    pub fn meta(&self) -> Meta {
        Meta {
            ns: self.ns,
            version: self.version,
            expiry: self.expiry,
            group: self.group,
            epoch_slot: self.epoch_slot,
        }
    }

    /// The object as a lookup returns it.
    #[must_use]
    pub fn hit(&self, tier: Tier) -> Hit {
        Hit {
            value: self.value(),
            version: self.version,
            expiry: self.expiry,
            group: self.group,
            partition: self.epoch_slot,
            tier,
        }
    }

    /// Whether this is the object of that key.
    #[must_use]
    pub fn is(&self, ns: u16, key: &[u8]) -> bool {
        self.ns == ns && self.key() == key
    }

    /// Whether DRAM has the only copy.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.state == EntryState::Dirty
    }
}

/// State of a DRAM entry whose copy to flash was refused: like clean, but at no place, so that
/// eviction asks again.
pub const NOWHERE: Location = Location { segment: MAX_SEGMENTS - 1, offset_units: (1 << 20) - 1 };
