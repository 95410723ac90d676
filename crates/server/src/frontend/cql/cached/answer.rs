//! From a cached row to the client's answer.

use afterglow_cql::frame::notation::Put;
use afterglow_cql::frame::{Flags, Opcode};
use afterglow_cql::plan::{ReadPlan, RowKey};
use afterglow_cql::response::{MetadataFlags, ResultKind};
use afterglow_rowcache::entry::Row;
use afterglow_rowcache::row::most_bytes;

use super::super::Responder;
use crate::metrics::Path;

/// What may be longer than that is the database's to answer. Twice the longest row that is kept: no
/// row is longer whose columns are selected once each.
pub const MOST_BYTES: usize = 32 << 20;

/// Whether a row makes no answer that is too long.
pub fn fits(read: &ReadPlan, key: &RowKey, row: &Row) -> bool {
    // Nearly always, and without a look into the row.
    let most = most_bytes(row.bytes().len() + key.engine_key().len(), read);
    most <= MOST_BYTES || row.stored().most_bytes(key, read) <= MOST_BYTES
}

/// The metadata that an answer carries.
#[derive(Clone, Copy)]
pub enum Metadata<'a> {
    /// As the database wrote it.
    Whole(&'a [u8]),
    /// The client has it, and needs the number of columns only.
    Skipped,
}

/// Answers with one row, or with none if it is known not to exist.
pub fn answer(
    responder: Responder,
    read: &ReadPlan,
    key: &RowKey,
    row: &Row,
    metadata: Metadata<'_>,
    path: Path,
) {
    answer_rows(responder, read, metadata, path, |out| {
        row.stored().write_rows(key, &read.projection, out);
    });
}

/// Answers with rows; `write` appends their count and their cells.
pub fn answer_rows(
    responder: Responder,
    read: &ReadPlan,
    metadata: Metadata<'_>,
    path: Path,
    write: impl FnOnce(&mut Vec<u8>),
) {
    responder.reply_with(Opcode::Result, Flags::NONE, path, |out| {
        out.put_int(ResultKind::Rows as i32);
        match metadata {
            Metadata::Whole(bytes) => out.put_raw(bytes),
            // Cassandra leaves the bit for "all of one table" set when it leaves the columns out.
            Metadata::Skipped => {
                out.put_int((MetadataFlags::NO_METADATA.0 | MetadataFlags::GLOBAL_TABLE.0) as i32);
                out.put_int(read.projection.len() as i32);
            }
        }
        write(out);
    });
}
