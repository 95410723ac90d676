//! RESULT Prepared.

use super::kind::ResultKind;
use super::metadata::{
    ColumnSpec, Columns, MetadataFlags, MetadataOut, ResultMetadata, encode_columns,
};
use crate::frame::Version;
use crate::frame::notation::{Put, Reader, Result};

/// The message of a RESULT Prepared.
#[derive(Debug, Clone, Copy)]
pub struct Prepared<'a> {
    /// What EXECUTE names it by.
    pub id: &'a [u8],
    /// Id of the result's metadata (v5; always there).
    pub result_metadata_id: Option<&'a [u8]>,
    /// Flags of the bound variables' metadata.
    pub bound_flags: MetadataFlags,
    /// The bound variables.
    pub bound: Columns<'a>,
    /// Metadata of the rows that EXECUTE returns; without columns for what returns none.
    pub result: ResultMetadata<'a>,
    pk_indexes: &'a [u8],
}

impl<'a> Prepared<'a> {
    pub(super) fn read(version: Version, reader: &mut Reader<'a>) -> Result<Self> {
        let id = reader.short_bytes()?;
        let result_metadata_id =
            if version >= Version::V5 { Some(reader.short_bytes()?) } else { None };
        let bound_flags = MetadataFlags(reader.int()? as u32);
        let column_count = reader.count("number of bound variables")?;
        let pk_count = match version {
            Version::V3 => 0,
            _ => reader.count("number of partition key indexes")? as usize,
        };
        let pk_indexes = reader.take(pk_count.saturating_mul(2), "partition key indexes")?;
        let global = bound_flags.contains(MetadataFlags::GLOBAL_TABLE);
        let bound = Columns::read(reader, column_count, global)?;
        let result = ResultMetadata::read(reader)?;
        Ok(Self { id, result_metadata_id, bound_flags, bound, result, pk_indexes })
    }

    /// For every component of the partition key, in its order, which bound variable it is. Empty
    /// when not all of them are bound, and in v3, which does not tell.
    pub fn pk_indexes(&self) -> impl ExactSizeIterator<Item = u16> + use<'a> {
        self.pk_indexes.chunks_exact(2).map(|pair| u16::from_be_bytes([pair[0], pair[1]]))
    }
}

/// Appends a RESULT Prepared; v3 leaves the key's indexes out. Bound variables must all be of one
/// table, written once.
///
/// # Panics
/// When a v5 response has no result metadata id.
pub fn encode_prepared(
    version: Version,
    id: &[u8],
    result_metadata_id: Option<&[u8]>,
    pk_indexes: &[u16],
    bound: &[ColumnSpec<'_>],
    result: &MetadataOut<'_>,
    out: &mut Vec<u8>,
) {
    out.put_int(ResultKind::Prepared as i32);
    out.put_short_bytes(id);
    if version >= Version::V5 {
        out.put_short_bytes(result_metadata_id.expect("Prepared in v5 has a result metadata id"));
    }
    let global = !bound.is_empty();
    out.put_int(if global { MetadataFlags::GLOBAL_TABLE.0 as i32 } else { 0 });
    out.put_int_len(bound.len());
    if version >= Version::V4 {
        out.put_int_len(pk_indexes.len());
        pk_indexes.iter().for_each(|&i| out.put_short(i));
    }
    encode_columns(global, bound, out);
    result.encode(version, out);
}
