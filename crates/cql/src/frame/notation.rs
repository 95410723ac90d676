//! The notations of the protocol ("\[int\]", "\[string\]", "\[bytes\]", ...), section 3 of the
//! specifications. A reader over a byte slice that accepts any bytes, and the functions that append
//! notations to a buffer.

use std::net::IpAddr;
use std::ops::Range;

use uuid::Uuid;

use crate::error::ProtocolError;

/// Result of every decoder of this crate.
pub type Result<T> = std::result::Result<T, ProtocolError>;

/// A \[value\] or \[bytes\] on the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Value<'a> {
    /// The bytes of a value, possibly none.
    Bytes(&'a [u8]),
    /// Length -1.
    Null,
    /// Length -2, only for bound values from v4 on: leave the column as it is.
    Unset,
}

impl<'a> Value<'a> {
    /// The bytes, if there are any.
    pub fn bytes(self) -> Option<&'a [u8]> {
        match self {
            Value::Bytes(bytes) => Some(bytes),
            Value::Null | Value::Unset => None,
        }
    }
}

impl<'a> From<Option<&'a [u8]>> for Value<'a> {
    fn from(bytes: Option<&'a [u8]>) -> Self {
        bytes.map_or(Value::Null, Value::Bytes)
    }
}

/// Where `inner`, a subslice of `outer`, lies in it.
///
/// # Panics
/// When `inner` is not a subslice of `outer`: that is a mistake of the caller, never of the data.
pub fn range_of(outer: &[u8], inner: &[u8]) -> Range<usize> {
    let start = (inner.as_ptr() as usize).wrapping_sub(outer.as_ptr() as usize);
    assert!(start <= outer.len() && inner.len() <= outer.len() - start, "not a subslice");
    start..start + inner.len()
}

/// Reads notations from the front of a slice. Every method returns an error, and leaves the
/// position undefined, when the slice is too short or holds something else than asked for.
#[derive(Debug, Clone, Copy)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

fn short_of(what: &'static str) -> ProtocolError {
    ProtocolError::new(format!("Not enough bytes to read {what}"))
}

impl<'a> Reader<'a> {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// What has not been read.
    pub fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// Whether everything has been read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// What `read` consumed, with its result.
    pub fn spanned<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<(T, &'a [u8])> {
        let before = self.rest;
        let value = read(self)?;
        Ok((value, &before[..before.len() - self.rest.len()]))
    }

    /// The next `n` bytes.
    pub fn take(&mut self, n: usize, what: &'static str) -> Result<&'a [u8]> {
        let (head, rest) = self.rest.split_at_checked(n).ok_or_else(|| short_of(what))?;
        self.rest = rest;
        Ok(head)
    }

    fn array<const N: usize>(&mut self, what: &'static str) -> Result<[u8; N]> {
        let (head, rest) = self.rest.split_first_chunk::<N>().ok_or_else(|| short_of(what))?;
        self.rest = rest;
        Ok(*head)
    }

    /// \[byte\]
    pub fn byte(&mut self) -> Result<u8> {
        Ok(self.array::<1>("a [byte]")?[0])
    }

    /// \[short\]
    pub fn short(&mut self) -> Result<u16> {
        Ok(u16::from_be_bytes(self.array("a [short]")?))
    }

    /// \[int\]
    pub fn int(&mut self) -> Result<i32> {
        Ok(i32::from_be_bytes(self.array("an [int]")?))
    }

    /// An \[int\] that counts something.
    pub fn count(&mut self, what: &'static str) -> Result<u32> {
        let n = self.int()?;
        u32::try_from(n).map_err(|_| ProtocolError::new(format!("Invalid {what}: {n}")))
    }

    /// \[long\]
    pub fn long(&mut self) -> Result<i64> {
        Ok(i64::from_be_bytes(self.array("a [long]")?))
    }

    /// \[uuid\]
    pub fn uuid(&mut self) -> Result<Uuid> {
        Ok(Uuid::from_bytes(self.array("a [uuid]")?))
    }

    /// \[string\]
    pub fn string(&mut self) -> Result<&'a str> {
        let n = self.short()?;
        utf8(self.take(n.into(), "an UTF8 serialized string preceded by its 2 bytes length")?)
    }

    /// \[long string\]
    pub fn long_string(&mut self) -> Result<&'a str> {
        // A negative length is more than there can be, and gets that answer.
        let n = usize::try_from(self.int()?).unwrap_or(usize::MAX);
        utf8(self.take(n, "an UTF8 serialized string preceded by its 4 bytes length")?)
    }

    /// \[short bytes\]
    pub fn short_bytes(&mut self) -> Result<&'a [u8]> {
        let n = self.short()?;
        self.take(n.into(), "a byte array preceded by its 2 bytes length")
    }

    /// \[bytes\]: any negative length is null.
    pub fn bytes(&mut self) -> Result<Option<&'a [u8]>> {
        match usize::try_from(self.int()?) {
            Ok(n) => self.take(n, "a byte array preceded by its 4 bytes length").map(Some),
            Err(_) => Ok(None),
        }
    }

    /// \[value\]: -1 is null, -2 is unset, below is an error.
    pub fn value(&mut self) -> Result<Value<'a>> {
        match self.int()? {
            -1 => Ok(Value::Null),
            -2 => Ok(Value::Unset),
            n => match usize::try_from(n) {
                Ok(n) => Ok(Value::Bytes(self.take(n, "a value preceded by its 4 bytes length")?)),
                Err(_) => Err(ProtocolError::new(format!("Invalid ByteBuf length {n}"))),
            },
        }
    }

    /// \[inetaddr\]: an address without port.
    pub fn inetaddr(&mut self) -> Result<IpAddr> {
        match self.byte()? {
            4 => Ok(IpAddr::from(self.array::<4>("an IPv4 address")?)),
            16 => Ok(IpAddr::from(self.array::<16>("an IPv6 address")?)),
            n => Err(ProtocolError::new(format!("Invalid address length {n}, must be 4 or 16"))),
        }
    }

    /// \[inet\]: an address and a port.
    pub fn inet(&mut self) -> Result<(IpAddr, i32)> {
        Ok((self.inetaddr()?, self.int()?))
    }

    /// \[string list\], checked here and iterated later without errors.
    pub fn string_list(&mut self) -> Result<StringList<'a>> {
        let count = self.short()?;
        let ((), entries) = self.spanned(|r| (0..count).try_for_each(|_| r.string().map(drop)))?;
        Ok(StringList { count, entries })
    }

    /// \[string map\], checked here and iterated later without errors.
    pub fn string_map(&mut self) -> Result<StringMap<'a>> {
        let count = self.short()?;
        let ((), entries) = self.spanned(|r| {
            (0..count).try_for_each(|_| {
                r.string()?;
                r.string().map(drop)
            })
        })?;
        Ok(StringMap { count, entries })
    }

    /// \[string multimap\], checked here and iterated later without errors.
    pub fn string_multimap(&mut self) -> Result<StringMultimap<'a>> {
        let count = self.short()?;
        let ((), entries) = self.spanned(|r| {
            (0..count).try_for_each(|_| {
                r.string()?;
                r.string_list().map(drop)
            })
        })?;
        Ok(StringMultimap { count, entries })
    }

    /// \[bytes map\], checked here and iterated later without errors.
    pub fn bytes_map(&mut self) -> Result<BytesMap<'a>> {
        let count = self.short()?;
        let ((), entries) = self.spanned(|r| {
            (0..count).try_for_each(|_| {
                r.string()?;
                r.bytes().map(drop)
            })
        })?;
        Ok(BytesMap { count, entries })
    }
}

fn utf8(bytes: &[u8]) -> Result<&str> {
    std::str::from_utf8(bytes).map_err(|_| ProtocolError::new("Cannot decode string as UTF8"))
}

macro_rules! collection {
    ($(#[$doc:meta])* $name:ident, $item:ty, $read:expr) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, Default)]
        pub struct $name<'a> {
            count: u16,
            entries: &'a [u8],
        }

        impl<'a> $name<'a> {
            /// How many entries there are.
            pub fn len(&self) -> usize {
                self.count.into()
            }

            /// Whether there are none.
            pub fn is_empty(&self) -> bool {
                self.count == 0
            }

            /// The entries, in the order of the wire.
            pub fn iter(&self) -> impl Iterator<Item = $item> + use<'a> {
                let mut reader = Reader::new(self.entries);
                // The entries were checked when the collection was read, so none is ever missing.
                (0..self.count).map_while(move |_| $read(&mut reader).ok())
            }
        }
    };
}

collection!(
    /// A checked \[string list\].
    StringList, &'a str, |r: &mut Reader<'a>| r.string());
collection!(
/// A checked \[string map\].
StringMap, (&'a str, &'a str), |r: &mut Reader<'a>| {
    Ok::<_, ProtocolError>((r.string()?, r.string()?))
});
collection!(
/// A checked \[string multimap\].
StringMultimap, (&'a str, StringList<'a>), |r: &mut Reader<'a>| {
    Ok::<_, ProtocolError>((r.string()?, r.string_list()?))
});
collection!(
/// A checked \[bytes map\].
BytesMap, (&'a str, Option<&'a [u8]>), |r: &mut Reader<'a>| {
    Ok::<_, ProtocolError>((r.string()?, r.bytes()?))
});

impl<'a> StringMap<'a> {
    /// The value of the last entry with this key (a server puts them into a map, the last one
    /// wins).
    pub fn get(&self, key: &str) -> Option<&'a str> {
        self.iter().filter(|(k, _)| *k == key).last().map(|(_, v)| v)
    }
}

/// Appends notations to a buffer.
///
/// Lengths that the wire cannot hold are a mistake of the caller and panic. The callers in this
/// crate pass names and values that came from the wire, or bound them themselves.
pub trait Put {
    /// Appends raw bytes.
    fn put_raw(&mut self, bytes: &[u8]);

    /// \[byte\]
    fn put_byte(&mut self, v: u8) {
        self.put_raw(&[v]);
    }

    /// \[short\]
    fn put_short(&mut self, v: u16) {
        self.put_raw(&v.to_be_bytes());
    }

    /// A length or count as \[short\].
    fn put_short_len(&mut self, n: usize) {
        self.put_short(u16::try_from(n).expect("longer than a [short] can tell"));
    }

    /// \[int\]
    fn put_int(&mut self, v: i32) {
        self.put_raw(&v.to_be_bytes());
    }

    /// A length or count as \[int\].
    fn put_int_len(&mut self, n: usize) {
        self.put_int(i32::try_from(n).expect("longer than an [int] can tell"));
    }

    /// \[long\]
    fn put_long(&mut self, v: i64) {
        self.put_raw(&v.to_be_bytes());
    }

    /// \[string\]
    fn put_string(&mut self, v: &str) {
        self.put_short_bytes(v.as_bytes());
    }

    /// \[long string\]
    fn put_long_string(&mut self, v: &str) {
        self.put_int_len(v.len());
        self.put_raw(v.as_bytes());
    }

    /// \[short bytes\]
    fn put_short_bytes(&mut self, v: &[u8]) {
        self.put_short_len(v.len());
        self.put_raw(v);
    }

    /// \[bytes\] or \[value\]
    fn put_value(&mut self, v: Value<'_>) {
        match v {
            Value::Bytes(bytes) => {
                self.put_int_len(bytes.len());
                self.put_raw(bytes);
            }
            Value::Null => self.put_int(-1),
            Value::Unset => self.put_int(-2),
        }
    }

    /// \[inetaddr\]
    fn put_inetaddr(&mut self, addr: IpAddr) {
        match addr {
            IpAddr::V4(v4) => {
                self.put_byte(4);
                self.put_raw(&v4.octets());
            }
            IpAddr::V6(v6) => {
                self.put_byte(16);
                self.put_raw(&v6.octets());
            }
        }
    }

    /// \[inet\]
    fn put_inet(&mut self, addr: IpAddr, port: i32) {
        self.put_inetaddr(addr);
        self.put_int(port);
    }

    /// \[string list\]
    fn put_string_list(&mut self, list: &[&str]) {
        self.put_short_len(list.len());
        list.iter().for_each(|s| self.put_string(s));
    }

    /// \[string map\]
    fn put_string_map(&mut self, map: &[(&str, &str)]) {
        self.put_short_len(map.len());
        for (k, v) in map {
            self.put_string(k);
            self.put_string(v);
        }
    }

    /// \[bytes map\]
    fn put_bytes_map(&mut self, map: &[(&str, Option<&[u8]>)]) {
        self.put_short_len(map.len());
        for (k, v) in map {
            self.put_string(k);
            self.put_value(Value::from(*v));
        }
    }
}

impl Put for Vec<u8> {
    fn put_raw(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}
