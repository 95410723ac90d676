//! How an object is kept in the cache: a byte that says what follows, the client's flags and a cas token where there are
//! any, then the value.
//!
//! The cas token is the engine's version, which survives eviction, flash and restart. Only what changes an object without
//! changing its token (a touch, say, which memcached does in place) has to keep the token beside it.

use afterglow_engine::Hit;
use afterglow_memcache::{Item, NewCas, NewItem};

const FLAGS: u8 = 1;
const CAS: u8 = 2;
const STALE: u8 = 4;
const TOKEN_SENT: u8 = 8;
const BINARY_KEY: u8 = 16;
const KNOWN: u8 = FLAGS | CAS | STALE | TOKEN_SENT | BINARY_KEY;

/// Appends an object as it is kept.
pub fn encode(new: &NewItem<'_>, out: &mut Vec<u8>) {
    let bits = [
        (new.flags != 0, FLAGS),
        (matches!(new.cas, NewCas::Is(_)), CAS),
        (new.stale, STALE),
        (new.token_sent, TOKEN_SENT),
        (new.binary_key, BINARY_KEY),
    ];
    out.reserve(13 + new.value.len());
    out.push(bits.iter().filter(|(set, _)| *set).fold(0, |bits, (_, bit)| bits | bit));
    if new.flags != 0 {
        out.extend_from_slice(&new.flags.to_le_bytes());
    }
    if let NewCas::Is(cas) = new.cas {
        out.extend_from_slice(&cas.to_le_bytes());
    }
    new.value.write(out);
}

/// Reads an object as it was kept; `None` when that is not ours.
pub fn decode(hit: &Hit) -> Option<Item<'_>> {
    let (&bits, mut rest) = hit.value.split_first()?;
    if bits & !KNOWN != 0 {
        return None;
    }
    let mut item = Item {
        cas: hit.version,
        expiry: hit.expiry,
        stale: bits & STALE != 0,
        token_sent: bits & TOKEN_SENT != 0,
        binary_key: bits & BINARY_KEY != 0,
        ..Item::default()
    };
    if bits & FLAGS != 0 {
        let (flags, after) = rest.split_first_chunk()?;
        (item.flags, rest) = (u32::from_le_bytes(*flags), after);
    }
    if bits & CAS != 0 {
        let (cas, after) = rest.split_first_chunk()?;
        (item.cas, rest) = (u64::from_le_bytes(*cas), after);
    }
    item.value = rest;
    Some(item)
}

#[cfg(test)]
mod tests {
    use afterglow_engine::Tier;
    use afterglow_memcache::NewValue;

    use super::*;

    fn hit(value: &[u8]) -> Hit {
        Hit { value: value.to_vec().into(), version: 77, expiry: 9, group: 0, partition: 0, tier: Tier::Dram }
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
            let mut kept = Vec::new();
            encode(&new, &mut kept);
            let hit = hit(&kept);
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

    #[test]
    fn what_is_not_ours_is_not_read() {
        for bad in [&b""[..], b"\x20abc", b"\x01abc", b"\x02abcdefg", b"\x03abcdefghijk"] {
            assert_eq!(decode(&hit(bad)), None, "{bad:?}");
        }
    }
}
