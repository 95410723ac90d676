//! Result metadata: flags, paging state, and the specification of every column; section 4.2.5.2 of
//! the specifications.

use super::types::{CqlType, skip_type};
use crate::frame::Version;
use crate::frame::notation::{Put, Reader, Result, Value};

/// Flags of result metadata. Unknown bits are kept (ScyllaDB marks compare-and-set statements with
/// one).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct MetadataFlags(pub u32);

impl MetadataFlags {
    /// One keyspace and table stand before the columns, instead of in each.
    pub const GLOBAL_TABLE: MetadataFlags = MetadataFlags(0x01);
    /// There is a paging state, and more rows with it.
    pub const HAS_MORE: MetadataFlags = MetadataFlags(0x02);
    /// The columns are left out.
    pub const NO_METADATA: MetadataFlags = MetadataFlags(0x04);
    /// The metadata is not what the client has; a new id is there (v5).
    pub const METADATA_CHANGED: MetadataFlags = MetadataFlags(0x08);

    /// Whether all bits of `other` are set.
    pub fn contains(self, other: MetadataFlags) -> bool {
        self.0 & other.0 == other.0
    }

    fn set(&mut self, other: MetadataFlags, on: bool) {
        if on {
            self.0 |= other.0;
        }
    }
}

/// One column, or one bound variable.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ColumnSpec<'a> {
    /// Keyspace of the table.
    pub keyspace: &'a str,
    /// The table.
    pub table: &'a str,
    /// Name of the column.
    pub name: &'a str,
    /// The type option, verbatim.
    pub type_bytes: &'a [u8],
}

impl ColumnSpec<'_> {
    /// The type as a tree.
    pub fn cql_type(&self) -> Result<CqlType> {
        CqlType::parse(self.type_bytes)
    }
}

/// Checked column specifications.
#[derive(Debug, Clone, Copy, Default)]
pub struct Columns<'a> {
    count: u32,
    global: Option<(&'a str, &'a str)>,
    bytes: &'a [u8],
}

impl<'a> Columns<'a> {
    pub(super) fn read(reader: &mut Reader<'a>, count: u32, global: bool) -> Result<Self> {
        let global = if global { Some((reader.string()?, reader.string()?)) } else { None };
        let ((), bytes) =
            reader.spanned(|r| (0..count).try_for_each(|_| next_column(r, global).map(drop)))?;
        Ok(Self { count, global, bytes })
    }

    /// How many columns are specified.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Keyspace and table of all columns, if they were given once.
    pub fn global(&self) -> Option<(&'a str, &'a str)> {
        self.global
    }

    /// The columns in the order of the wire.
    pub fn iter(&self) -> impl Iterator<Item = ColumnSpec<'a>> + use<'a> {
        let (mut reader, global) = (Reader::new(self.bytes), self.global);
        // Checked when read, so none is ever missing.
        (0..self.count).map_while(move |_| next_column(&mut reader, global).ok())
    }
}

fn next_column<'a>(
    reader: &mut Reader<'a>,
    global: Option<(&'a str, &'a str)>,
) -> Result<ColumnSpec<'a>> {
    let (keyspace, table) = match global {
        Some(global) => global,
        None => (reader.string()?, reader.string()?),
    };
    let name = reader.string()?;
    let ((), type_bytes) = reader.spanned(skip_type)?;
    Ok(ColumnSpec { keyspace, table, name, type_bytes })
}

/// Metadata of rows, of a RESULT Rows or a RESULT Prepared.
#[derive(Debug, Clone, Copy)]
pub struct ResultMetadata<'a> {
    /// The flags.
    pub flags: MetadataFlags,
    /// How many columns a row has, whether or not they are specified.
    pub column_count: usize,
    /// Where the next page starts.
    pub paging_state: Option<&'a [u8]>,
    /// Id of the metadata that follows, when it is not what the client has (v5).
    pub new_metadata_id: Option<&'a [u8]>,
    /// The columns; none with [`MetadataFlags::NO_METADATA`].
    pub columns: Columns<'a>,
    /// All of it as received, from the flags on.
    pub raw: &'a [u8],
}

impl<'a> ResultMetadata<'a> {
    pub(super) fn read(reader: &mut Reader<'a>) -> Result<Self> {
        let (mut metadata, raw) = reader.spanned(Self::read_parts)?;
        metadata.raw = raw;
        Ok(metadata)
    }

    fn read_parts(reader: &mut Reader<'a>) -> Result<Self> {
        let flags = MetadataFlags(reader.int()? as u32);
        let column_count = reader.count("number of columns")?;
        let paging_state =
            if flags.contains(MetadataFlags::HAS_MORE) { reader.bytes()? } else { None };
        let new_metadata_id = if flags.contains(MetadataFlags::METADATA_CHANGED) {
            Some(reader.short_bytes()?)
        } else {
            None
        };
        let columns = if flags.contains(MetadataFlags::NO_METADATA) {
            Columns::default()
        } else {
            Columns::read(reader, column_count, flags.contains(MetadataFlags::GLOBAL_TABLE))?
        };
        let column_count = column_count as usize;
        Ok(Self { flags, column_count, paging_state, new_metadata_id, columns, raw: &[] })
    }

    /// Whether there are more pages.
    pub fn has_more(&self) -> bool {
        self.flags.contains(MetadataFlags::HAS_MORE)
    }

    /// Whether the columns were left out.
    pub fn is_skipped(&self) -> bool {
        self.flags.contains(MetadataFlags::NO_METADATA)
    }

    /// Whether these are, byte for byte, the columns that PREPARE told: `prepared` is the
    /// [`ResultMetadata::raw`] of its result. That a page more follows makes no difference.
    pub fn has_columns_of(&self, prepared: &[u8]) -> bool {
        let (mut now, mut then) = (Reader::new(self.raw), Reader::new(prepared));
        let (Ok(flags), Ok(flags_then)) = (now.int(), then.int()) else { return false };
        let (Ok(count), Ok(count_then)) = (now.int(), then.int()) else { return false };
        if self.has_more() && now.bytes().is_err() {
            return false;
        }
        let without_pages = flags as u32 & !MetadataFlags::HAS_MORE.0;
        without_pages == flags_then as u32 && count == count_then && now.rest() == then.rest()
    }
}

/// Result metadata to send.
#[derive(Debug, Clone, Copy)]
pub struct MetadataOut<'a> {
    /// The columns, which all are of one table when `one_table`.
    pub columns: &'a [ColumnSpec<'a>],
    /// Write keyspace and table once, those of the first column.
    pub one_table: bool,
    /// Write the number of columns only.
    pub skip: bool,
    /// Where the next page starts.
    pub paging_state: Option<&'a [u8]>,
    /// Id of this metadata, to be told to a client that has another (v5). Such a client needs the
    /// columns too.
    pub new_metadata_id: Option<&'a [u8]>,
}

impl<'a> MetadataOut<'a> {
    /// Metadata of columns of one table, written in full.
    pub fn of_table(columns: &'a [ColumnSpec<'a>]) -> Self {
        Self { columns, one_table: true, skip: false, paging_state: None, new_metadata_id: None }
    }

    /// Appends the metadata. v4 has no metadata ids: there `new_metadata_id` is left out.
    pub fn encode(&self, version: Version, out: &mut Vec<u8>) {
        let new_id = self.new_metadata_id.filter(|_| version >= Version::V5);
        let global = self.one_table && !self.columns.is_empty();
        let mut flags = MetadataFlags::default();
        // Cassandra sets it even where it leaves the table out.
        flags.set(MetadataFlags::GLOBAL_TABLE, global);
        flags.set(MetadataFlags::HAS_MORE, self.paging_state.is_some());
        flags.set(MetadataFlags::NO_METADATA, self.skip);
        flags.set(MetadataFlags::METADATA_CHANGED, new_id.is_some());
        out.put_int(flags.0 as i32);
        out.put_int_len(self.columns.len());
        if let Some(state) = self.paging_state {
            out.put_value(Value::Bytes(state));
        }
        if let Some(id) = new_id {
            out.put_short_bytes(id);
        }
        if !self.skip {
            encode_columns(global, self.columns, out);
        }
    }
}

/// Appends column specifications, keyspace and table of the first once for all if `global`.
pub(super) fn encode_columns(global: bool, columns: &[ColumnSpec<'_>], out: &mut Vec<u8>) {
    for (i, column) in columns.iter().enumerate() {
        if !global || i == 0 {
            out.put_string(column.keyspace);
            out.put_string(column.table);
        }
        out.put_string(column.name);
        out.put_raw(column.type_bytes);
    }
}
