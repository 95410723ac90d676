//! Bytes: bounded reading and writing, and the packed form of the map.
//!
//! ```text
//! format u8 = 2 | version u64 | ring u128 | members u16 | each: length u16, fields
//! | ids u16, each u64 | shards as a power of two u8 | each: owner u16, previous u16, epoch varint
//! ```
//!
//! Numbers are little endian. Owners are places among the ids, `0xffff` is nobody. What a newer
//! version adds to the fields of a member is skipped. Whoever adds a field writes all before it.

use crate::identity::{Identity, Incarnation, MemberId, RingId};
use crate::malformed::Malformed;
use crate::map::{Map, MemberEntry, Profile, Setting, Shard, Standing};

const FORMAT: u8 = 2;
const NOBODY: u16 = u16::MAX;
const MOST_MEMBERS: usize = 4_096;
const MOST_SHARD_BITS: u8 = 16;
/// Versions and epochs grow by one, and never come so far.
const MOST_CHANGES: u64 = i64::MAX as u64;

/// What is left to read.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a>(pub &'a [u8]);

impl<'a> Reader<'a> {
    pub fn take(&mut self, n: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.0.split_at_checked(n).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        Ok(self.take(N)?.try_into().expect("that many were taken"))
    }

    pub fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.array::<1>()?[0])
    }

    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn u128(&mut self) -> Result<u128, Malformed> {
        self.array().map(u128::from_le_bytes)
    }

    pub fn incarnation(&mut self) -> Result<Incarnation, Malformed> {
        self.u128().map(Incarnation)
    }

    /// Seven bits a byte, the lowest first.
    pub fn varint(&mut self) -> Result<u64, Malformed> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.u8()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                break;
            }
            value |= bits << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(Malformed::TooMuch)
    }

    /// A count of things that take at least `size` bytes each, so that a lie about it costs no
    /// memory.
    pub fn count(&mut self, size: usize) -> Result<usize, Malformed> {
        let count = self.u32()? as usize;
        if count > self.0.len() / size { Err(Malformed::Short) } else { Ok(count) }
    }

    fn text(&mut self) -> Result<String, Malformed> {
        let len = self.u8()?;
        let bytes = self.take(len.into())?.to_vec();
        String::from_utf8(bytes).map_err(|_| Malformed::Text)
    }
}

pub fn put_varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn put_text(out: &mut Vec<u8>, text: &str) {
    let mut end = text.len().min(255);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    out.push(end as u8);
    out.extend_from_slice(&text.as_bytes()[..end]);
}

impl Map {
    /// The packed form.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![FORMAT];
        out.extend(self.version.to_le_bytes());
        out.extend(self.ring.0.to_le_bytes());
        out.extend((self.members.len() as u16).to_le_bytes());
        for member in &self.members {
            let mut fields = Vec::new();
            fields.extend(member.identity.id.0.to_le_bytes());
            fields.extend(member.identity.incarnation.0.to_le_bytes());
            fields.extend(member.since.to_le_bytes());
            fields.push(u8::from(member.standing == Standing::Accused));
            fields.extend(member.profile.protocol.0.to_le_bytes());
            fields.extend(member.profile.protocol.1.to_le_bytes());
            fields.extend(member.profile.weight.to_le_bytes());
            put_text(&mut fields, &member.profile.address);
            put_text(&mut fields, &member.profile.zone);
            put_text(&mut fields, &member.profile.cql_address);
            fields.extend(member.profile.host_id.to_le_bytes());
            put_settings(&mut fields, &member.profile.settings);
            // An earlier version does not write it: a map without it has the same bytes.
            if member.leaving {
                fields.push(1);
            }
            out.extend((fields.len() as u16).to_le_bytes());
            out.extend(fields);
        }
        let mut ids: Vec<_> =
            self.shards.iter().flat_map(|s| s.owner.into_iter().chain(s.previous)).collect();
        ids.sort_unstable();
        ids.dedup();
        out.extend((ids.len() as u16).to_le_bytes());
        ids.iter().for_each(|id| out.extend(id.0.to_le_bytes()));
        let place = |id: Option<MemberId>| {
            id.and_then(|id| ids.binary_search(&id).ok()).map_or(NOBODY, |at| at as u16)
        };
        out.push(self.shards.len().trailing_zeros() as u8);
        for shard in &self.shards {
            out.extend(place(shard.owner).to_le_bytes());
            out.extend(place(shard.previous).to_le_bytes());
            put_varint(&mut out, shard.epoch);
        }
        out
    }

    /// Reads the packed form; refuses whatever no member writes.
    ///
    /// # Errors
    ///
    /// Says what is wrong with the bytes.
    pub fn decode(bytes: &[u8]) -> Result<Self, Malformed> {
        let mut reader = Reader(bytes);
        if reader.u8()? != FORMAT {
            return Err(Malformed::Version);
        }
        let version = changes(reader.u64()?)?;
        let ring = RingId(reader.u128()?);
        let count = usize::from(reader.u16()?);
        if count > MOST_MEMBERS {
            return Err(Malformed::TooMuch);
        }
        let members: Vec<_> = (0..count).map(|_| member(&mut reader)).collect::<Result<_, _>>()?;
        if !members.is_sorted_by(|a, b| a.identity.id < b.identity.id) {
            return Err(Malformed::Order);
        }
        let ids = usize::from(reader.u16()?);
        let ids: Vec<_> = (0..ids).map(|_| reader.u64().map(MemberId)).collect::<Result<_, _>>()?;
        let bits = reader.u8()?;
        if bits > MOST_SHARD_BITS {
            return Err(Malformed::TooMuch);
        }
        let shards = (0..1_usize << bits)
            .map(|_| shard(&mut reader, &ids))
            .collect::<Result<Vec<_>, _>>()?;
        let map = Self { version, ring, members, shards };
        let known = map.owners().iter().all(|id| map.entry(*id).is_some());
        match (reader.0.is_empty(), known) {
            (true, true) => Ok(map),
            (false, _) => Err(Malformed::TooMuch),
            (_, false) => Err(Malformed::Unknown),
        }
    }

    /// A number that tells two maps apart (FNV-1a of the packed form).
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3);
        self.encode().iter().fold(0xcbf2_9ce4_8422_2325, step)
    }
}

fn member(reader: &mut Reader<'_>) -> Result<MemberEntry, Malformed> {
    let len = reader.u16()?;
    let mut fields = Reader(reader.take(len.into())?);
    let id = MemberId(fields.u64()?);
    let incarnation = fields.incarnation()?;
    let since = fields.u64()?;
    let standing = match fields.u8()? {
        0 => Standing::Active,
        1 => Standing::Accused,
        _ => return Err(Malformed::Unknown),
    };
    let protocol = (fields.u16()?, fields.u16()?);
    let weight = fields.u32()?;
    let (address, zone) = (fields.text()?, fields.text()?);
    let (cql_address, host_id) = (fields.text()?, fields.u128()?);
    let settings = settings(&mut fields)?;
    // An earlier version does not say it.
    let leaving = !fields.0.is_empty() && fields.u8()? == 1;
    let profile = Profile { address, cql_address, host_id, protocol, weight, zone, settings };
    Ok(MemberEntry { identity: Identity { id, incarnation }, since, standing, leaving, profile })
}

fn put_settings(out: &mut Vec<u8>, settings: &[Setting]) {
    let count = settings.len().min(255);
    out.push(count as u8);
    for setting in &settings[..count] {
        put_text(out, &setting.name);
        put_text(out, &setting.value);
    }
}

/// An earlier version says nothing of them.
fn settings(fields: &mut Reader<'_>) -> Result<Vec<Setting>, Malformed> {
    if fields.0.is_empty() {
        return Ok(Vec::new());
    }
    let count = fields.u8()?;
    (0..count).map(|_| Ok(Setting { name: fields.text()?, value: fields.text()? })).collect()
}

/// A number to which one can be added.
fn changes(number: u64) -> Result<u64, Malformed> {
    if number > MOST_CHANGES { Err(Malformed::TooMuch) } else { Ok(number) }
}

fn shard(reader: &mut Reader<'_>, ids: &[MemberId]) -> Result<Shard, Malformed> {
    let mut place = || match reader.u16()? {
        NOBODY => Ok(None),
        at => ids.get(usize::from(at)).copied().map(Some).ok_or(Malformed::Unknown),
    };
    let (owner, previous) = (place()?, place()?);
    Ok(Shard { owner, epoch: changes(reader.varint()?)?, previous })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::placement;

    fn map() -> Map {
        let mut map = Map::empty(64);
        for n in 0..5 {
            let profile = Profile {
                address: format!("10.0.0.{n}:7042"),
                cql_address: format!("10.0.1.{n}:9042"),
                host_id: u128::from(n) << 90 | 7,
                protocol: (1, 2),
                weight: n,
                zone: "rack-ä".to_owned(),
                settings: vec![
                    Setting { name: "hold".to_owned(), value: "1h".to_owned() };
                    n as usize
                ],
            };
            map.put(MemberId(n.into()), Incarnation(u128::from(n) << 100), profile);
        }
        placement::give_away(&mut map, &[]);
        map.accuse(map.members[1].identity);
        map.members[2].leaving = true;
        map.give(3, Some(MemberId(2)));
        map.shards[7].epoch = MOST_CHANGES;
        (map.version, map.ring) = (77, RingId(1 << 127 | 3));
        map
    }

    #[test]
    fn a_map_reads_back_as_it_was_written() {
        assert_eq!(Map::decode(&map().encode()), Ok(map()));
        assert_eq!(Map::decode(&Map::empty(1).encode()), Ok(Map::empty(1)));
        assert_ne!(map().fingerprint(), map().next().fingerprint());
    }

    #[test]
    fn a_version_or_an_epoch_that_no_ring_comes_to_is_refused() {
        let (mut late, mut moved) = (map(), map());
        (late.version, moved.shards[3].epoch) = (1 << 63, 1 << 63);
        for map in [late, moved] {
            assert_eq!(Map::decode(&map.encode()), Err(Malformed::TooMuch));
        }
    }

    #[test]
    fn fields_of_a_member_that_a_newer_version_adds_are_skipped() {
        let mut map = map();
        map.members[0].leaving = true;
        let mut bytes = map.encode();
        let at = 1 + 8 + 16 + 2; // format, version, ring, number of members
        let len = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        bytes[at..at + 2].copy_from_slice(&(len + 3).to_le_bytes());
        let end = at + 2 + usize::from(len);
        bytes.splice(end..end, [1, 2, 3]);
        assert_eq!(Map::decode(&bytes), Ok(map));
    }

    #[test]
    fn a_member_of_an_earlier_version_says_nothing_of_its_settings_and_whether_it_leaves() {
        let mut map = Map::empty(1);
        map.put(MemberId(1), Incarnation(1), Profile::default());
        for (leaving, lacks) in [(false, 1), (true, 1), (true, 2)] {
            let mut said = map.clone();
            said.members[0].leaving = leaving;
            let mut bytes = said.encode();
            let at = 1 + 8 + 16 + 2; // format, version, ring, number of members
            let len = u16::from_le_bytes([bytes[at], bytes[at + 1]]);
            bytes[at..at + 2].copy_from_slice(&(len - lacks).to_le_bytes());
            let end = at + 2 + usize::from(len);
            bytes.drain(end - usize::from(lacks)..end);
            assert_eq!(Map::decode(&bytes), Ok(map.clone()));
        }
    }

    #[test]
    fn a_full_ring_of_200_fits_into_a_row() {
        let mut map = Map::empty(4_096);
        (0..200).for_each(|n| map.put(MemberId(n), Incarnation(7), Profile::default()));
        placement::give_away(&mut map, &[]);
        assert!(map.encode().len() < 40_000, "{}", map.encode().len());
    }

    #[test]
    fn no_bytes_make_reading_a_map_panic_or_take_much_memory() {
        let whole = map().encode();
        for end in 0..whole.len() {
            assert!(Map::decode(&whole[..end]).is_err(), "{end}");
        }
        for at in 0..whole.len() {
            for byte in [0, 1, 0x7f, 0x80, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = byte;
                if let Ok(read) = Map::decode(&bytes) {
                    assert_eq!(Map::decode(&read.encode()), Ok(read));
                }
            }
        }
    }
}
