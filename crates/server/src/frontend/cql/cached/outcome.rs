//! What the database's answer to a write says of its outcome.

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Envelope, Opcode};
use afterglow_cql::response::{Response, ResultBody};
use afterglow_rowcache::write_in_flight::{Answered, InDoubt, RowOutcome};
use afterglow_rowcache::write_scope::WriteScope;

use super::super::{Request, parsed};
use crate::frontend::cql::CallError;
use crate::frontend::cql::cluster::rows::refusal;
use crate::metrics::WriteOutcome;

/// What the database's answer says of a write of this.
pub(super) fn answered(answer: &Result<Envelope, CallError>, touched: &WriteScope) -> Answered {
    let in_steps = touched.conditional || touched.may_happen_in_part();
    match answer {
        // Where it tells of no change of the schema there was none to make: DROP ... IF EXISTS.
        Ok(answer) if touched.is_only_schema() && is_void(answer) => Answered::Refused,
        Ok(answer) if answer.header.opcode == Opcode::Result => Answered::Definite,
        Ok(answer) => match refusal(answer) {
            Some((code, message)) => by_error(code, &message, in_steps),
            None => Answered::Unknown(InDoubt::ServerError),
        },
        Err(CallError::NotSent(_)) => Answered::Refused,
        Err(CallError::Lost) => Answered::Unknown(InDoubt::ConnectionLost),
    }
}

/// What an error says of a write. A node that is overloaded may say so in the middle of a write, of
/// hints for replicas that are away. What it refuses before it begins it tells in other words:
/// those of Cassandra 3.11, 4.1 and 5.0.
fn by_error(code: ErrorCode, message: &str, in_steps: bool) -> Answered {
    const NOT_BEGUN: [&str; 3] = [
        "Request breached limit",
        "Query timed out before it could start",
        "Server is in overloaded state. Cannot accept more requests at this point",
    ];
    let may_have_begun = || !NOT_BEGUN.iter().any(|text| message.starts_with(text));
    match code {
        ErrorCode::Overloaded if !may_have_begun() => Answered::Refused,
        _ => Answered::by_error(code, in_steps),
    }
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
    use super::*;

    #[test]
    fn a_node_that_is_overloaded_has_done_nothing_only_where_it_says_that_it_has_not_begun() {
        let answered = |message| by_error(ErrorCode::Overloaded, message, true);
        for message in [
            "Request breached limit on bytes in flight. (Endpoint: 1/2 bytes) Server is currently \
             in an overloaded state and cannot accept more requests.",
            "Request breached limit(s) on bytes in flight (Endpoint: 7, Global: 9) and triggered \
             backpressure.",
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
}
