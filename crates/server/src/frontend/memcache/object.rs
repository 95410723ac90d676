//! How an object is stored in the cache: its value alone, or its own cas token and then its value.
//! The client's flags are stored as the record's group, because this front end removes no groups.
//! Its marks are stored as the record's partition, because it bumps no partition epochs. So a value
//! whose length is a power of two, as many are, takes no extra block of flash.
//!
//! The cas token is the engine's version, which survives eviction, flash and restart. Some commands
//! change an object without changing its token: memcached touches in place, for example. Only then
//! is the token stored with the object.

use afterglow_engine::{Hit, Listed, PARTITION_SHIFT, PutOptions};
use afterglow_memcache::{Item, NewCas, NewItem, NewValue};

use super::head::Head;

/// Set in every object of this format. An object of another format is not read.
const OURS: u32 = 1;
const CAS: u32 = 2;
const STALE: u32 = 4;
const TOKEN_SENT: u32 = 8;
const BINARY_KEY: u32 = 16;
/// Its value is in parts: see [`super::parts`].
const IN_PARTS: u32 = 32;
const KNOWN: u32 = OURS | CAS | STALE | TOKEN_SENT | BINARY_KEY | IN_PARTS;

/// Appends the stored form of an object to `out`. Returns what is stored outside the value.
pub fn encode(new: &NewItem<'_>, out: &mut Vec<u8>) -> PutOptions {
    let bits = [
        (matches!(new.cas, NewCas::Is(_)), CAS),
        (new.stale, STALE),
        (new.token_sent, TOKEN_SENT),
        (new.binary_key, BINARY_KEY),
        (matches!(new.value, NewValue::InParts { .. }), IN_PARTS),
    ];
    let marks = bits.iter().filter(|(set, _)| *set).fold(OURS, |marks, (_, bit)| marks | bit);
    let kept =
        if let NewValue::InParts { head, .. } = new.value { head.len() } else { new.value.len() };
    out.reserve(8 + kept);
    if let NewCas::Is(cas) = new.cas {
        out.extend_from_slice(&cas.to_le_bytes());
    }
    new.value.write(out);
    PutOptions {
        expiry: new.expiry,
        group: new.flags,
        token: u64::from(marks) << PARTITION_SHIFT,
        // Its parts are on flash: without its head they are lost.
        through: marks & IN_PARTS != 0,
        or_refused: false,
    }
}

/// Decodes a stored object. `None` if it is not in our format.
pub fn decode(hit: &Hit) -> Option<Item<'_>> {
    let Hit { version, expiry, group, partition, .. } = *hit;
    decode_kept(&Listed { key: &[], value: &hit.value, version, expiry, group, partition })
}

/// Whether its value is in parts.
pub fn is_in_parts(hit: &Hit) -> bool {
    hit.partition & IN_PARTS != 0
}

/// The head of a value in parts.
pub fn head(hit: &Hit) -> Option<Head> {
    decode(hit).filter(|item| item.in_parts.is_some()).and_then(|item| Head::decode(item.value))
}

/// The same for an object of a listing.
pub fn decode_kept<'a>(kept: &Listed<'a>) -> Option<Item<'a>> {
    let (marks, mut value) = (kept.partition, kept.value);
    if marks & OURS == 0 || marks & !KNOWN != 0 {
        return None;
    }
    let mut cas = kept.version;
    if marks & CAS != 0 {
        let (own, after) = value.split_first_chunk()?;
        (cas, value) = (u64::from_le_bytes(*own), after);
    }
    let in_parts = match marks & IN_PARTS {
        0 => None,
        _ => Some(Head::decode(value)?.value_len()),
    };
    Some(Item {
        value,
        in_parts,
        flags: kept.group,
        cas,
        expiry: kept.expiry,
        stale: marks & STALE != 0,
        token_sent: marks & TOKEN_SENT != 0,
        binary_key: marks & BINARY_KEY != 0,
        ..Item::default()
    })
}

#[cfg(test)]
mod tests {
    use afterglow_engine::Tier;

    use super::*;

    fn hit(value: &[u8], group: u32, partition: u32) -> Hit {
        Hit {
            value: value.to_vec().into(),
            version: 77,
            expiry: 9,
            group,
            partition,
            tier: Tier::Dram,
        }
    }

    /// What the engine returns for an object stored so.
    fn kept(new: &NewItem<'_>) -> Hit {
        let mut value = Vec::new();
        let options = encode(new, &mut value);
        Hit {
            expiry: options.expiry,
            ..hit(&value, options.group, (options.token >> PARTITION_SHIFT) as u32)
        }
    }

    #[test]
    fn an_object_is_read_back_as_it_was_kept() {
        for (flags, cas, stale, token_sent, binary_key) in [
            (0, NewCas::Fresh, false, false, false),
            (5, NewCas::Fresh, false, true, false),
            (u32::MAX, NewCas::Is(3), true, false, true),
            (0, NewCas::Is(0), true, true, true),
        ] {
            let value = NewValue::Parts([b"ab", b"cd"]);
            let new = NewItem { value, flags, expiry: 9, cas, stale, token_sent, binary_key };
            let hit = kept(&new);
            let cas = if let NewCas::Is(cas) = cas { cas } else { 77 };
            let expected = Item {
                value: b"abcd",
                flags,
                cas,
                expiry: 9,
                stale,
                token_sent,
                binary_key,
                ..Item::default()
            };
            assert_eq!(decode(&hit), Some(expected));
        }
    }

    /// A byte more is a byte more of flash for each object, or sixteen where its record was full.
    #[test]
    fn a_value_with_flags_takes_no_byte_beside_itself() {
        let value = NewValue::Parts([&[7; 1024], b""]);
        let (cas, stale, token_sent, binary_key) = (NewCas::Fresh, false, false, true);
        let new = NewItem { value, flags: u32::MAX, expiry: 9, cas, stale, token_sent, binary_key };
        assert_eq!(kept(&new).value, [7; 1024][..]);
    }

    #[test]
    fn what_is_not_ours_is_not_read() {
        for (bad, marks) in [(&b"abc"[..], 0), (b"abc", KNOWN + 1 + OURS), (b"abcdefg", OURS | CAS)]
        {
            assert_eq!(decode(&hit(bad, 0, marks)), None, "{bad:?}");
        }
    }
}
