//! Objects that have left the DRAM tier, until they are seen to.

use bytes::Bytes;

use super::entry::{DramEntry, DramObject, EntryState};
use crate::format::record::Meta;

/// Memory kept for the next ones.
const KEPT: usize = 64 << 10;

/// Takes what leaves a DRAM tier.
pub trait Victims {
    /// An object leaves. Its bytes lie in the tier until this returns.
    fn take(&mut self, object: &DramObject<'_>);

    /// Requests for an object that were counted lately, at most 15; 0 where nobody counts them.
    fn popularity(&self, _hash: u64) -> u8 {
        0
    }
}

/// Objects that were evicted, oldest first. Small ones lie together in one buffer, which is used
/// again and again: an eviction allocates nothing.
#[derive(Debug, Default)]
pub struct Evicted {
    objects: Vec<EvictedObject>,
    data: Vec<u8>,
}

#[derive(Debug)]
struct EvictedObject {
    hash: u64,
    meta: Meta,
    key_len: u32,
    state: EntryState,
    data: EvictedData,
}

#[derive(Debug)]
enum EvictedData {
    /// In the buffer: from here on, so many bytes.
    Small(usize, usize),
    Large(Bytes),
}

impl Evicted {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.objects.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.objects.is_empty()
    }

    /// Forgets them.
    pub fn clear(&mut self) {
        self.objects.clear();
        self.data.clear();
        self.data.shrink_to(KEPT);
        self.objects.shrink_to(KEPT / size_of::<EvictedObject>());
    }

    /// All of them, oldest first.
    pub fn iter(&self) -> impl Iterator<Item = DramObject<'_>> {
        self.objects.iter().map(|object| {
            let (data, shared) = match &object.data {
                EvictedData::Small(start, len) => (&self.data[*start..][..*len], None),
                EvictedData::Large(data) => (&data[..], Some(data)),
            };
            let EvictedObject { hash, meta, key_len, state, .. } = object;
            let (key, value) = data.split_at(*key_len as usize);
            DramObject::new(*hash, meta, key, value, *state).in_allocation(shared)
        })
    }

    /// The same, each apart.
    pub fn to_entries(&self) -> Vec<DramEntry> {
        self.iter().map(|object| object.to_entry()).collect()
    }
}

impl Victims for Evicted {
    fn take(&mut self, object: &DramObject<'_>) {
        let data = match object.shared {
            Some(shared) => EvictedData::Large(shared.clone()),
            None => {
                let start = self.data.len();
                self.data.extend_from_slice(object.key);
                self.data.extend_from_slice(object.value);
                EvictedData::Small(start, object.len())
            }
        };
        let DramObject { hash, state, .. } = *object;
        let key_len = object.key.len() as u32;
        self.objects.push(EvictedObject { hash, meta: object.meta(), key_len, state, data });
    }
}
