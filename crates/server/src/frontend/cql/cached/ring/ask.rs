//! A read of a row that another instance owns: the question to its owner.
//!
//! A read sends its own question and joins nobody's: the owner may have answered an earlier one
//! before a write that was acknowledged before this read came.

use afterglow_cql::plan::RowKey;
use afterglow_cql::token::murmur3;
use afterglow_ring::{Answer, Message};
use afterglow_rowcache::entry::Row;
use std::time::Duration;

use super::core::Ring;
use super::questions::PeerAnswer;

/// What the ring says of a row.
pub enum RemoteRow {
    /// The row, or that there is none, as its owner has it.
    Row(Row),
    /// The database is to be asked: nobody answered in time, or the owner may not.
    Pass,
}

impl Ring {
    /// Asks the owner of this row, which is for a plan of this shape of its table.
    pub async fn ask(&self, key: &RowKey, fingerprint: u64) -> RemoteRow {
        let token = murmur3(key.partition_key());
        let Some(owner) = self.owner(token) else { return RemoteRow::Pass };
        let question = afterglow_ring::RowKey { token, bytes: key.engine_key().to_vec() };
        let get = |number| Message::Get { wanted: vec![(number, question)] };
        let Some((_open, answer)) = self.question(owner, get) else { return RemoteRow::Pass };
        let timeout = Duration::from_micros(self.config().get);
        match compio::time::timeout(timeout, answer).await {
            Ok(Ok(PeerAnswer::Found(Answer::Row(Some(bytes))))) => {
                Row::checked(bytes.into(), fingerprint).map_or(RemoteRow::Pass, RemoteRow::Row)
            }
            _ => RemoteRow::Pass,
        }
    }
}
