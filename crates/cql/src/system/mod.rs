//! Answers to SELECTs over `system.local`, `system.peers` and `system.peers_v2`.
//!
//! Drivers find the cluster in these tables. The proxy answers them itself, with its own address in
//! place of the database's. So drivers connect to the proxy only. Everything else is the backend's
//! own row.

use thiserror::Error;

mod eval;
mod json;
mod query;
mod tables;

pub use query::SystemQuery;
pub use tables::{
    Peer, Proxy, SystemColumn, SystemTable, SystemTables, Table, TypeOption, default_columns,
};

use crate::frame::notation::{Put, Value};

/// Why a query over the system tables has no rows to show.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum SystemError {
    /// What a server would refuse, with its words: to be answered as ERROR 0x2200 (Invalid).
    #[error("{0}")]
    Invalid(String),
    /// A form of query that a server would answer but the proxy does not. It is answered as Invalid
    /// too, because passing it on would show the database's addresses.
    #[error("afterglow does not answer {0} on system tables that describe the cluster")]
    Unsupported(&'static str),
}

/// A column of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultColumn {
    /// Name or alias.
    pub name: String,
    /// Type.
    pub type_option: TypeOption,
}

/// The answer to a query over the system tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SystemRows {
    /// The table asked.
    pub table: SystemTable,
    /// The columns of the answer.
    pub columns: Vec<ResultColumn>,
    /// The rows, each with one cell per column.
    pub rows: Vec<Vec<Option<Vec<u8>>>>,
    /// What a server warns of (from v4 on).
    pub warning: Option<&'static str>,
}

impl SystemRows {
    /// The body of a RESULT of kind Rows (v4 and v5 alike): kind, metadata with the table named
    /// once, rows. With `skip_metadata` the metadata has the column count only.
    pub fn result_body(&self, skip_metadata: bool) -> Vec<u8> {
        const KIND_ROWS: i32 = 2;
        const GLOBAL_TABLE: i32 = 1;
        const NO_METADATA: i32 = 4;
        let mut out = Vec::new();
        // Servers leave the first flag on when they leave the table's name out.
        let flags = if skip_metadata { GLOBAL_TABLE | NO_METADATA } else { GLOBAL_TABLE };
        for number in [KIND_ROWS, flags, self.columns.len() as i32] {
            out.extend_from_slice(&number.to_be_bytes());
        }
        if !skip_metadata {
            write_string("system", &mut out);
            write_string(self.table.name(), &mut out);
            for column in &self.columns {
                write_string(&column.name, &mut out);
                out.extend_from_slice(column.type_option.as_bytes());
            }
        }
        out.extend_from_slice(&(self.rows.len() as i32).to_be_bytes());
        for cell in self.rows.iter().flatten() {
            out.put_value(cell.as_deref().map_or(Value::Null, Value::Bytes));
        }
        out
    }
}

fn write_string(text: &str, out: &mut Vec<u8>) {
    let text = &text.as_bytes()[..text.len().min(usize::from(u16::MAX))];
    out.extend_from_slice(&(text.len() as u16).to_be_bytes());
    out.extend_from_slice(text);
}

#[cfg(test)]
mod tests;
