//! A write scope as bytes, for the owners of what a write touches.
//!
//! ```text
//! format u8 = 2 | flags u8 | slots, tables: each a count u32 and u32s
//! | invalidations: count u32, each: kind u8, then a key, a token u64, a group u32 or nothing
//! | planned: count u32, uuids | unknown: count u32, each two texts
//! ```
//!
//! Numbers are little endian; keys and texts have their length u32 in front. Tokens and the
//! partition of a transaction stay with the writer, who alone needs them.

use uuid::Uuid;

use super::{Invalidation, WriteScope};

const FORMAT: u8 = 2;

/// Why bytes are no write scope.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("these bytes are no write scope of format {FORMAT}")]
pub struct MalformedScope;

impl WriteScope {
    /// The bytes for [`WriteScope::decode`].
    pub fn encode(&self) -> Vec<u8> {
        let flags = [self.everything, self.conditional, self.doubtful, self.parted, self.by_level];
        let flags = flags.iter().rev().fold(0, |all, flag| all << 1 | u8::from(*flag));
        let mut out = vec![FORMAT, flags];
        for numbers in [&self.slots, &self.tables] {
            put_u32(&mut out, numbers.len() as u32);
            numbers.iter().for_each(|number| put_u32(&mut out, *number));
        }
        put_u32(&mut out, self.invalidations.len() as u32);
        for invalidation in &self.invalidations {
            match invalidation {
                Invalidation::Row(key) => {
                    out.push(1);
                    put_bytes(&mut out, key);
                }
                Invalidation::Partition(token) => {
                    out.push(2);
                    out.extend(token.to_le_bytes());
                }
                Invalidation::Table(group) => {
                    out.push(3);
                    put_u32(&mut out, *group);
                }
                Invalidation::Everything => out.push(4),
                Invalidation::Unit(key) => {
                    out.push(5);
                    put_bytes(&mut out, key);
                }
            }
        }
        put_u32(&mut out, self.planned.len() as u32);
        self.planned.iter().for_each(|id| out.extend(id.as_bytes()));
        put_u32(&mut out, self.unknown.len() as u32);
        for (keyspace, table) in &self.unknown {
            put_bytes(&mut out, keyspace.as_bytes());
            put_bytes(&mut out, table.as_bytes());
        }
        out
    }

    /// Reads what [`WriteScope::encode`] has written. It has no tokens.
    ///
    /// # Errors
    /// [`MalformedScope`]: whoever sent it must be taken to write everything.
    pub fn decode(bytes: &[u8]) -> Result<WriteScope, MalformedScope> {
        let mut reader = Reader(bytes);
        if reader.u8()? != FORMAT {
            return Err(MalformedScope);
        }
        let flags = reader.u8()?;
        let flag = |at: u8| flags >> at & 1 == 1;
        let scope = WriteScope {
            everything: flag(0),
            conditional: flag(1),
            doubtful: flag(2),
            parted: flag(3),
            by_level: flag(4),
            slots: reader.many(4, Reader::u32)?,
            tables: reader.many(4, Reader::u32)?,
            invalidations: reader.many(1, Reader::invalidation)?,
            planned: reader.many(16, |reader| Ok(Uuid::from_bytes(reader.array()?)))?,
            unknown: reader.many(8, |reader| Ok((reader.text()?, reader.text()?)))?,
            ..WriteScope::default()
        };
        let known = scope.slots.iter().all(|slot| *slot < crate::gate::SLOTS);
        if known && reader.0.is_empty() { Ok(scope) } else { Err(MalformedScope) }
    }
}

fn put_u32(out: &mut Vec<u8>, number: u32) {
    out.extend(number.to_le_bytes());
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    put_u32(out, bytes.len() as u32);
    out.extend(bytes);
}

/// What is left to read.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, count: usize) -> Result<&'a [u8], MalformedScope> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or(MalformedScope)?;
        self.0 = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], MalformedScope> {
        self.take(N)?.try_into().map_err(|_| MalformedScope)
    }

    fn u8(&mut self) -> Result<u8, MalformedScope> {
        Ok(self.array::<1>()?[0])
    }

    fn u32(&mut self) -> Result<u32, MalformedScope> {
        self.array().map(u32::from_le_bytes)
    }

    fn bytes(&mut self) -> Result<&'a [u8], MalformedScope> {
        let length = self.u32()?;
        self.take(length as usize)
    }

    fn text(&mut self) -> Result<String, MalformedScope> {
        String::from_utf8(self.bytes()?.to_vec()).map_err(|_| MalformedScope)
    }

    fn invalidation(&mut self) -> Result<Invalidation, MalformedScope> {
        match self.u8()? {
            1 => Ok(Invalidation::Row(self.bytes()?.to_vec())),
            2 => Ok(Invalidation::Partition(u64::from_le_bytes(self.array()?))),
            3 => Ok(Invalidation::Table(self.u32()?)),
            4 => Ok(Invalidation::Everything),
            5 => Ok(Invalidation::Unit(self.bytes()?.to_vec())),
            _ => Err(MalformedScope),
        }
    }

    /// A count, and that many things of at least `size` bytes each, so that a lie costs no memory.
    fn many<T>(
        &mut self,
        size: usize,
        mut one: impl FnMut(&mut Self) -> Result<T, MalformedScope>,
    ) -> Result<Vec<T>, MalformedScope> {
        let count = self.u32()? as usize;
        if count > self.0.len() / size {
            return Err(MalformedScope);
        }
        (0..count).map(|_| one(self)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scope() -> WriteScope {
        WriteScope {
            slots: vec![1, 0xf_ffff],
            tables: vec![7],
            invalidations: vec![
                Invalidation::Row(b"key".to_vec()),
                Invalidation::Unit(b"unit".to_vec()),
                Invalidation::Partition(u64::MAX),
                Invalidation::Table(9),
                Invalidation::Everything,
            ],
            planned: vec![Uuid::from_u128(5)],
            unknown: vec![("ks".into(), "t".into())],
            conditional: true,
            parted: true,
            ..WriteScope::default()
        }
    }

    #[test]
    fn a_scope_reads_back_and_every_flag_is_its_own() {
        assert_eq!(WriteScope::decode(&scope().encode()), Ok(scope()));
        let everything = WriteScope::everything();
        assert_eq!(WriteScope::decode(&everything.encode()), Ok(everything));
        for flag in 0..5 {
            let mut bytes = WriteScope::default().encode();
            bytes[1] = 1 << flag;
            let read = WriteScope::decode(&bytes).expect("a scope");
            let flags =
                [read.everything, read.conditional, read.doubtful, read.parted, read.by_level];
            assert_eq!(flags.iter().position(|set| *set), Some(flag));
            assert_eq!(read.encode(), bytes);
        }
    }

    #[test]
    fn no_bytes_are_taken_for_less_than_they_say() {
        let whole = scope().encode();
        for end in 0..whole.len() {
            assert_eq!(WriteScope::decode(&whole[..end]), Err(MalformedScope));
        }
        let longer = [&whole[..], &[0]].concat();
        assert_eq!(WriteScope::decode(&longer), Err(MalformedScope));
        for at in 0..whole.len() {
            for byte in [0, 1, 5, 0x7f, 0xff] {
                let mut bytes = whole.clone();
                bytes[at] = byte;
                if let Ok(read) = WriteScope::decode(&bytes) {
                    assert_eq!(WriteScope::decode(&read.encode()), Ok(read));
                }
            }
        }
    }
}
