//! What a QUERY or EXECUTE carries besides its text or id: section 4.1.4 of the specifications
//! ("query_parameters").

use crate::error::ProtocolError;
use crate::frame::Version;
use crate::frame::notation::{Put, Reader, Result, Value};

macro_rules! consistencies {
    ($($name:ident = $code:literal, $text:literal;)*) => {
        /// A consistency level.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Consistency {
            $(#[doc = $text] $name = $code,)*
        }

        impl Consistency {
            /// Every level.
            pub const ALL: &[Consistency] = &[$(Consistency::$name,)*];

            /// The level for a number on the wire.
            pub fn from_u16(code: u16) -> Result<Self> {
                match code {
                    $($code => Ok(Consistency::$name),)*
                    _ => Err(ProtocolError::new(format!("Unknown code {code} for a consistency level"))),
                }
            }

            /// The name in CQL.
            pub fn name(self) -> &'static str {
                match self {
                    $(Consistency::$name => $text,)*
                }
            }
        }
    };
}

consistencies! {
    Any = 0, "ANY";
    One = 1, "ONE";
    Two = 2, "TWO";
    Three = 3, "THREE";
    Quorum = 4, "QUORUM";
    All = 5, "ALL";
    LocalQuorum = 6, "LOCAL_QUORUM";
    EachQuorum = 7, "EACH_QUORUM";
    Serial = 8, "SERIAL";
    LocalSerial = 9, "LOCAL_SERIAL";
    LocalOne = 10, "LOCAL_ONE";
    NodeLocal = 11, "NODE_LOCAL";
}

impl std::fmt::Display for Consistency {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

/// Flags of the query parameters: a \[byte\] in v3 and v4, an \[int\] in v5. Unknown bits are kept
/// and ignored, as servers do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct QueryFlags(pub u32);

impl QueryFlags {
    /// Values follow.
    pub const VALUES: QueryFlags = QueryFlags(0x01);
    /// The client has the result's metadata already.
    pub const SKIP_METADATA: QueryFlags = QueryFlags(0x02);
    /// A page size follows.
    pub const PAGE_SIZE: QueryFlags = QueryFlags(0x04);
    /// A paging state follows.
    pub const PAGING_STATE: QueryFlags = QueryFlags(0x08);
    /// A serial consistency follows.
    pub const SERIAL_CONSISTENCY: QueryFlags = QueryFlags(0x10);
    /// A default timestamp follows.
    pub const TIMESTAMP: QueryFlags = QueryFlags(0x20);
    /// Values have names.
    pub const NAMES_FOR_VALUES: QueryFlags = QueryFlags(0x40);
    /// A keyspace follows (v5).
    pub const KEYSPACE: QueryFlags = QueryFlags(0x80);
    /// The time to take as now follows (v5).
    pub const NOW_IN_SECONDS: QueryFlags = QueryFlags(0x100);

    /// Whether all bits of `other` are set.
    pub fn contains(self, other: QueryFlags) -> bool {
        self.0 & other.0 == other.0
    }

    fn set(&mut self, other: QueryFlags, on: bool) {
        if on {
            self.0 |= other.0;
        }
    }

    pub(super) fn read(version: Version, reader: &mut Reader<'_>) -> Result<Self> {
        Ok(Self(match version {
            Version::V3 | Version::V4 => reader.byte()?.into(),
            Version::V5 => reader.int()? as u32,
        }))
    }

    pub(super) fn write(self, version: Version, out: &mut Vec<u8>) {
        match version {
            Version::V3 | Version::V4 => out.put_byte(self.0 as u8),
            Version::V5 => out.put_int(self.0 as i32),
        }
    }
}

/// Bound values, checked: positional or named.
#[derive(Debug, Clone, Copy, Default)]
pub struct Values<'a> {
    named: bool,
    /// v3 knows no unset values: every negative length is null.
    never_unset: bool,
    count: u16,
    bytes: &'a [u8],
}

impl<'a> Values<'a> {
    /// No values.
    pub const NONE: Values<'static> =
        Values { named: false, never_unset: false, count: 0, bytes: &[] };

    pub(super) fn read(version: Version, reader: &mut Reader<'a>, named: bool) -> Result<Self> {
        let count = reader.short()?;
        let shape = Values { named, never_unset: version < Version::V4, count, bytes: &[] };
        let ((), bytes) =
            reader.spanned(|r| (0..count).try_for_each(|_| shape.next(r).map(drop)))?;
        Ok(Self { bytes, ..shape })
    }

    fn next<'b>(&self, reader: &mut Reader<'b>) -> Result<(Option<&'b str>, Value<'b>)> {
        let name = if self.named { Some(reader.string()?) } else { None };
        let value = match self.never_unset {
            true => Value::from(reader.bytes()?),
            false => reader.value()?,
        };
        Ok((name, value))
    }

    /// How many values there are.
    pub fn len(&self) -> usize {
        self.count.into()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Whether they have names.
    pub fn are_named(&self) -> bool {
        self.named
    }

    /// The values in the order of the wire, with their names if they have.
    pub fn iter(&self) -> impl Iterator<Item = (Option<&'a str>, Value<'a>)> + use<'a> {
        let (mut reader, values) = (Reader::new(self.bytes), *self);
        // Checked when read, so none is ever missing.
        (0..self.count).map_while(move |_| values.next(&mut reader).ok())
    }

    /// The value at a position; for named values that is no bind marker's position.
    pub fn get(&self, index: usize) -> Option<Value<'a>> {
        self.iter().nth(index).map(|(_, value)| value)
    }

    /// The value of a name: of the first, if there are several.
    pub fn by_name(&self, name: &str) -> Option<Value<'a>> {
        self.iter().find(|(n, _)| *n == Some(name)).map(|(_, value)| value)
    }

    /// The encoded entries, without their count.
    pub fn raw(&self) -> &'a [u8] {
        self.bytes
    }
}

/// Collects values to send.
///
/// ```
/// # use afterglow_cql::{frame::notation::Value, message::ValuesBuilder};
/// let mut values = ValuesBuilder::positional();
/// values.push(Value::Bytes(b"key")).push(Value::Null);
/// assert_eq!(values.view().get(1), Some(Value::Null));
/// ```
#[derive(Debug, Clone, Default)]
pub struct ValuesBuilder {
    named: bool,
    count: u16,
    bytes: Vec<u8>,
}

impl ValuesBuilder {
    /// For values by position.
    pub fn positional() -> Self {
        Self::default()
    }

    /// For values by name.
    pub fn named() -> Self {
        Self { named: true, ..Self::default() }
    }

    /// Adds the next value.
    ///
    /// # Panics
    /// When the values have names, or there are 65,535 already.
    pub fn push(&mut self, value: Value<'_>) -> &mut Self {
        assert!(!self.named, "values by name need a name");
        self.add(value)
    }

    /// Adds a value by name.
    ///
    /// # Panics
    /// When the values are positional, or there are 65,535 already.
    pub fn push_named(&mut self, name: &str, value: Value<'_>) -> &mut Self {
        assert!(self.named, "values by position have no name");
        self.bytes.put_string(name);
        self.add(value)
    }

    /// Forgets all values, keeps the buffer.
    pub fn clear(&mut self) {
        self.count = 0;
        self.bytes.clear();
    }

    /// The values, as a parser would see them.
    pub fn view(&self) -> Values<'_> {
        Values { named: self.named, never_unset: false, count: self.count, bytes: &self.bytes }
    }

    fn add(&mut self, value: Value<'_>) -> &mut Self {
        self.count = self.count.checked_add(1).expect("at most 65,535 values");
        self.bytes.put_value(value);
        self
    }
}

/// The query parameters.
#[derive(Debug, Clone, Copy)]
pub struct QueryParams<'a> {
    /// The consistency level.
    pub consistency: Consistency,
    /// The client has the result's metadata already.
    pub skip_metadata: bool,
    /// Bound values.
    pub values: Values<'a>,
    /// How many rows to return at most; not positive means all.
    pub page_size: Option<i32>,
    /// Where the last page ended. An empty slice stands for one that was sent as null.
    pub paging_state: Option<&'a [u8]>,
    /// Consistency of the compare-and-set phase.
    pub serial_consistency: Option<Consistency>,
    /// Write time in microseconds, unless the statement has its own.
    pub timestamp: Option<i64>,
    /// Keyspace of unqualified names (v5).
    pub keyspace: Option<&'a str>,
    /// What to take as now, in seconds since the epoch (v5).
    pub now_in_seconds: Option<i32>,
}

impl QueryParams<'static> {
    /// Parameters with nothing but a consistency level.
    pub fn new(consistency: Consistency) -> Self {
        Self {
            consistency,
            skip_metadata: false,
            values: Values::NONE,
            page_size: None,
            paging_state: None,
            serial_consistency: None,
            timestamp: None,
            keyspace: None,
            now_in_seconds: None,
        }
    }
}

impl<'a> QueryParams<'a> {
    pub(super) fn read(version: Version, reader: &mut Reader<'a>) -> Result<Self> {
        let consistency = Consistency::from_u16(reader.short()?)?;
        let flags = QueryFlags::read(version, reader)?;
        let mut params = QueryParams::new(consistency);
        params.skip_metadata = flags.contains(QueryFlags::SKIP_METADATA);
        if flags.contains(QueryFlags::VALUES) {
            params.values =
                Values::read(version, reader, flags.contains(QueryFlags::NAMES_FOR_VALUES))?;
        }
        if flags.contains(QueryFlags::PAGE_SIZE) {
            params.page_size = Some(reader.int()?);
        }
        if flags.contains(QueryFlags::PAGING_STATE) {
            params.paging_state = Some(reader.value()?.bytes().unwrap_or_default());
        }
        if flags.contains(QueryFlags::SERIAL_CONSISTENCY) {
            params.serial_consistency = Some(Consistency::from_u16(reader.short()?)?);
        }
        if flags.contains(QueryFlags::TIMESTAMP) {
            params.timestamp = Some(read_timestamp(reader)?);
        }
        if flags.contains(QueryFlags::KEYSPACE) {
            params.keyspace = Some(reader.string()?);
        }
        if flags.contains(QueryFlags::NOW_IN_SECONDS) {
            params.now_in_seconds = Some(reader.int()?);
        }
        Ok(params)
    }

    /// The flags that tell what is there.
    pub fn flags(&self) -> QueryFlags {
        let mut flags = QueryFlags::default();
        flags.set(QueryFlags::VALUES, !self.values.is_empty());
        flags.set(QueryFlags::NAMES_FOR_VALUES, !self.values.is_empty() && self.values.named);
        flags.set(QueryFlags::SKIP_METADATA, self.skip_metadata);
        flags.set(QueryFlags::PAGE_SIZE, self.page_size.is_some());
        flags.set(QueryFlags::PAGING_STATE, self.paging_state.is_some());
        flags.set(QueryFlags::SERIAL_CONSISTENCY, self.serial_consistency.is_some());
        flags.set(QueryFlags::TIMESTAMP, self.timestamp.is_some());
        flags.set(QueryFlags::KEYSPACE, self.keyspace.is_some());
        flags.set(QueryFlags::NOW_IN_SECONDS, self.now_in_seconds.is_some());
        flags
    }

    /// Appends the parameters. Before v5, which has neither, keyspace and now are left out.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        let mut params = *self;
        if version < Version::V5 {
            (params.keyspace, params.now_in_seconds) = (None, None);
        }
        out.put_short(params.consistency as u16);
        params.flags().write(version, out);
        if !params.values.is_empty() {
            out.put_short(params.values.count);
            out.put_raw(params.values.bytes);
        }
        params.encode_options(out);
    }

    fn encode_options(&self, out: &mut Vec<u8>) {
        if let Some(page_size) = self.page_size {
            out.put_int(page_size);
        }
        if let Some(state) = self.paging_state {
            out.put_value(Value::Bytes(state));
        }
        if let Some(serial) = self.serial_consistency {
            out.put_short(serial as u16);
        }
        if let Some(timestamp) = self.timestamp {
            out.put_long(timestamp);
        }
        if let Some(keyspace) = self.keyspace {
            out.put_string(keyspace);
        }
        if let Some(now) = self.now_in_seconds {
            out.put_int(now);
        }
    }
}

fn read_timestamp(reader: &mut Reader<'_>) -> Result<i64> {
    match reader.long()? {
        i64::MIN => Err(ProtocolError::new(format!(
            "Out of bound timestamp, must be in [{}, {}] (got {})",
            i64::MIN + 1,
            i64::MAX,
            i64::MIN
        ))),
        timestamp => Ok(timestamp),
    }
}

/// Where the byte after `part` is in `body`, which it is a part of.
pub(super) fn end_in(body: &[u8], part: &[u8]) -> usize {
    (part.as_ptr() as usize - body.as_ptr() as usize) + part.len()
}
