//! An object in DRAM, and whether flash holds it too.

use bytes::Bytes;

use crate::api::{Hit, Listed, Tier};
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

/// An object on its way to the DRAM tier or out of it, with everything that travels with it through
/// the tiers.
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
    /// The object to be looked at.
    ///
    /// # Panics
    /// When `key_len` is beyond `data`.
    #[must_use]
    pub fn object(&self) -> DramObject<'_> {
        let (key, value) = self.data.split_at(self.key_len as usize);
        DramObject {
            hash: self.hash,
            version: self.version,
            expiry: self.expiry,
            group: self.group,
            epoch_slot: self.epoch_slot,
            ns: self.ns,
            state: self.state,
            key,
            value,
            shared: Some(&self.data),
        }
    }

    /// What is stored with it on flash.
    #[must_use]
    pub fn meta(&self) -> Meta {
        self.object().meta()
    }

    /// The object as a lookup returns it.
    #[must_use]
    pub fn hit(&self, tier: Tier) -> Hit {
        self.object().hit(tier)
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &[u8] {
        self.object().key()
    }
}

/// An object in DRAM, to be looked at. A small one lies in the memory of the tier, and is copied
/// for whoever keeps it.
#[derive(Debug, Clone, Copy)]
pub struct DramObject<'a> {
    /// Keyed 64-bit hash of namespace and key.
    pub hash: u64,
    /// Version of the put that brought it.
    pub version: u64,
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
    pub(super) key: &'a [u8],
    pub(super) value: &'a [u8],
    /// An allocation of just key and value, if they lie in one.
    pub(super) shared: Option<&'a Bytes>,
}

impl<'a> DramObject<'a> {
    /// An object that lies somewhere else.
    pub(crate) fn new(
        hash: u64,
        meta: &Meta,
        key: &'a [u8],
        value: &'a [u8],
        state: EntryState,
    ) -> Self {
        let Meta { ns, version, expiry, group, epoch_slot } = *meta;
        let shared = None;
        Self { hash, version, expiry, group, epoch_slot, ns, state, key, value, shared }
    }

    /// The same, its key and value in an allocation of just these, if there is one.
    pub(crate) fn in_allocation(self, shared: Option<&'a Bytes>) -> Self {
        debug_assert!(shared.is_none_or(|data| data.len() == self.len()), "of just these");
        Self { shared, ..self }
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &'a [u8] {
        self.key
    }

    /// The value.
    #[must_use]
    pub fn value(&self) -> &'a [u8] {
        self.value
    }

    /// Bytes of key and value.
    #[must_use]
    pub fn len(&self) -> usize {
        self.key.len() + self.value.len()
    }

    /// Whether neither has a byte.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is stored with it on flash.
    #[must_use]
    pub fn meta(&self) -> Meta {
        let Self { ns, version, expiry, group, epoch_slot, .. } = *self;
        Meta { ns, version, expiry, group, epoch_slot }
    }

    /// The object as a lookup returns it. A large value shares memory with the tier.
    #[must_use]
    pub fn hit(&self, tier: Tier) -> Hit {
        let value = match self.shared {
            Some(shared) => shared.slice(self.key.len()..),
            None => Bytes::copy_from_slice(self.value),
        };
        Hit {
            value,
            version: self.version,
            expiry: self.expiry,
            group: self.group,
            partition: self.epoch_slot,
            tier,
        }
    }

    /// The object as a listing shows it.
    #[must_use]
    pub fn listed(&self) -> Listed<'a> {
        let Self { version, expiry, group, epoch_slot: partition, .. } = *self;
        Listed { key: self.key(), value: self.value(), version, expiry, group, partition }
    }

    /// The object apart from the tier.
    #[must_use]
    pub fn to_entry(self) -> DramEntry {
        let (data, key_len) = (self.to_shared(), self.key.len() as u32);
        let Self { hash, version, expiry, group, epoch_slot, ns, state, .. } = self;
        DramEntry { hash, version, data, key_len, expiry, group, epoch_slot, ns, state }
    }

    /// Key and value in an allocation of just their size.
    pub(super) fn to_shared(self) -> Bytes {
        self.shared.map_or_else(|| join(self.key, self.value), Clone::clone)
    }

    /// Whether DRAM has the only copy.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        self.state == EntryState::Dirty
    }
}

/// Key and value in one allocation of their size.
pub fn join(key: &[u8], value: &[u8]) -> Bytes {
    let mut data = Vec::with_capacity(key.len() + value.len());
    data.extend_from_slice(key);
    data.extend_from_slice(value);
    data.into()
}

/// State of a DRAM entry whose copy to flash was refused: like clean, but at no place, so that
/// eviction asks again.
pub const NOWHERE: Location = Location { segment: MAX_SEGMENTS - 1, offset_units: (1 << 20) - 1 };
