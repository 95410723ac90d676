//! What the database's answer to a write says of its outcome.

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Envelope, Opcode};
use afterglow_cql::response::{Response, ResultBody, ResultKind};
use afterglow_rowcache::write_in_flight::{Answered, InDoubt, RowOutcome};
use afterglow_rowcache::write_scope::WriteScope;

use super::super::{Request, parsed, result_kind};
use crate::frontend::cql::CallError;
use crate::frontend::cql::cluster::rows::refusal;
use crate::metrics::WriteOutcome;

/// What the database's answer says of a write of this.
pub(super) fn answered(answer: &Result<Envelope, CallError>, touched: &WriteScope) -> Answered {
    let in_steps = touched.conditional || touched.may_happen_in_part();
    match answer {
        // Where it tells of no change of the schema there was none to make: DROP ... IF EXISTS.
        Ok(answer) if touched.is_only_schema() && is_void(answer) => Answered::Refused,
        // The server took it for USE, which changes no row.
        Ok(answer) if result_kind(answer) == Some(ResultKind::SetKeyspace) => Answered::Refused,
        Ok(answer) if answer.header.opcode == Opcode::Result => Answered::Definite,
        Ok(answer) => match refusal(answer) {
            Some((ErrorCode::Config, message)) if is_of_options(touched, &message) => {
                Answered::Refused
            }
            Some((code, message)) => by_error(code, &message, in_steps),
            None => Answered::Unknown(InDoubt::ServerError),
        },
        Err(CallError::NotSent(_)) => Answered::Refused,
        Err(CallError::Lost) => Answered::Unknown(InDoubt::ConnectionLost),
    }
}

/// What an error says of a write of rows. A node that is overloaded may say so in the middle of a
/// write, of hints for replicas that are away. What it refuses before it begins it tells in other
/// words: those of Cassandra 3.11, 4.1 and 5.0.
fn by_error(code: ErrorCode, message: &str, in_steps: bool) -> Answered {
    const NOT_BEGUN: [&str; 5] = [
        "Request breached limit",
        "Request breached global limit",
        "Request has spent over",
        "Query timed out before it could start",
        "Server is in overloaded state. Cannot accept more requests at this point",
    ];
    let may_have_begun = || !NOT_BEGUN.iter().any(|text| message.starts_with(text));
    match code {
        ErrorCode::Overloaded if !may_have_begun() => Answered::Refused,
        _ => Answered::by_error(code, in_steps),
    }
}

/// Whether a CONFIG_ERROR says that a change of the schema has wrong options. A statement that is
/// not understood may be such a change, unless ScyllaDB speaks of the rate limit of a partition.
fn is_of_options(touched: &WriteScope, message: &str) -> bool {
    touched.is_only_schema() || touched.doubtful && !message.contains("rate limit")
}

/// Whether the database says that it is done, and no more.
pub(super) fn is_void(answer: &Envelope) -> bool {
    matches!(parsed(answer), Some(Response::Result(ResultBody::Void)))
}

/// Counts what a write did to the rows that it names. `refreshed`: its row is being read again, or
/// is read after another write of the unit.
pub(super) fn count_outcome(
    request: &Request,
    touched: &WriteScope,
    answered: Answered,
    outcome: RowOutcome,
    refreshed: bool,
) {
    let outcome = match (answered, outcome) {
        (Answered::Unknown(_), _) => WriteOutcome::Quarantined,
        _ if touched.invalidations().is_empty() => return,
        (_, RowOutcome::Updated) => WriteOutcome::Updated,
        _ if refreshed => WriteOutcome::Refreshed,
        (_, RowOutcome::Dropped) => WriteOutcome::Dropped,
        (_, RowOutcome::OnFlash) => WriteOutcome::OnFlash,
    };
    request.metrics().write_outcomes.inc(outcome);
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use afterglow_cql::frame::{Header, Version};
    use afterglow_cql::plan::{Plan, SchemaView, TableSchema, analyse, defined_tables};
    use afterglow_cql::response::{ErrorBody, encode_set_keyspace};
    use afterglow_cql::statement::parse;
    use afterglow_rowcache::write_scope::Tables;
    use uuid::Uuid;

    use super::*;

    struct OneTable(Arc<TableSchema>);

    impl SchemaView for OneTable {
        fn table(&self, _keyspace: &str, _name: &str) -> Option<Arc<TableSchema>> {
            Some(self.0.clone())
        }
    }

    impl Tables for OneTable {
        fn gate(&self, _id: Uuid) -> Option<u32> {
            Some(0)
        }

        fn with_gate(&self, _gate: u32) -> Vec<Uuid> {
            vec![self.0.id]
        }

        fn id(&self, _keyspace: &str, _table: &str) -> Option<Uuid> {
            Some(self.0.id)
        }

        fn former_gate(&self, _id: Uuid) -> Option<u32> {
            None
        }

        fn tables_in(&self, _keyspace: &str) -> Vec<(u32, Uuid)> {
            vec![(0, self.0.id)]
        }

        fn is_unknown(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_node_that_is_overloaded_has_done_nothing_only_where_it_says_that_it_has_not_begun() {
        let answered = |message| by_error(ErrorCode::Overloaded, message, true);
        for message in [
            "Request breached limit on bytes in flight. (Endpoint: 1/2 bytes) Server is currently \
             in an overloaded state and cannot accept more requests.",
            "Request breached limit(s) on bytes in flight (Endpoint: 7, Global: 9) and triggered \
             backpressure.",
            "Request breached global limit of 9 requests/second. Server is currently in an \
             overloaded state and cannot accept more requests.",
            "Request has spent over 0.8 time of the maximum timeout 12000ms in the queue",
            "Query timed out before it could start",
            "Server is in overloaded state. Cannot accept more requests at this point",
        ] {
            assert_eq!(answered(message), Answered::Refused, "{message}");
        }
        for message in ["Too many in flight hints: 7", "", "a Request breached limit"] {
            assert_ne!(answered(message), Answered::Refused, "{message}");
        }
        let other = by_error(ErrorCode::Server, "Request breached limit", true);
        assert_ne!(other, Answered::Refused);
    }

    fn error(code: ErrorCode) -> Result<Envelope, CallError> {
        error_of(code, "Per-partition rate limit reached for writes")
    }

    fn error_of(code: ErrorCode, message: &str) -> Result<Envelope, CallError> {
        let mut body = Vec::new();
        ErrorBody::new(code, message).encode(&mut body);
        let header = Header::new(Version::V4, 0, Opcode::Error);
        Ok(Envelope { header, body: body.into() })
    }

    fn touched_by(text: &str) -> WriteScope {
        let [table] = defined_tables("CREATE TABLE s.t (k int PRIMARY KEY, v int)", None)
            .expect("a table")
            .try_into()
            .expect("one table");
        let schema = OneTable(Arc::new(table));
        let Plan::Write(plan) = analyse(&parse(text), &schema, None) else { panic!("{text}") };
        let mut touched = WriteScope::default();
        touched.add(&plan, &|_| None, &schema);
        touched
    }

    #[test]
    fn a_partitions_rate_limit_may_be_reached_on_some_replicas_while_others_take_the_write() {
        for text in ["INSERT INTO s.t (k, v) VALUES (1, 2)", "DELETE FROM s.t WHERE k = 1"] {
            let touched = touched_by(text);
            let unknown = Answered::Unknown(InDoubt::ServerError);
            assert_eq!(answered(&error(ErrorCode::Config), &touched), unknown, "{text}");
            assert_eq!(answered(&error(ErrorCode::Invalid), &touched), Answered::Refused, "{text}");
        }
        // Of a change of the schema it says that the words are wrong.
        let touched = touched_by("ALTER TABLE s.t WITH compaction = {'class': 'None'}");
        assert_eq!(answered(&error(ErrorCode::Config), &touched), Answered::Refused);
        // One that is not understood may be either.
        let touched = touched_by("ALTER TABLE s.t WITH gc_grace_seconds=10AND comment=$");
        assert!(touched.doubtful);
        let wrong = error_of(ErrorCode::Config, "Unable to find compaction strategy class 'None'");
        assert_eq!(answered(&wrong, &touched), Answered::Refused);
        assert_ne!(answered(&error(ErrorCode::Config), &touched), Answered::Refused);
    }

    #[test]
    fn what_a_server_takes_for_use_has_changed_no_row() {
        let mut body = Vec::new();
        encode_set_keyspace("ks", &mut body);
        let header = Header::new(Version::V4, 0, Opcode::Result);
        let moved = Ok(Envelope { header, body: body.into() });
        let touched = touched_by("INSERT INTO s.t (k, v) VALUES (1, 2)");
        assert_eq!(answered(&moved, &touched), Answered::Refused);
    }
}
