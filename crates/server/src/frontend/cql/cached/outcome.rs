//! What the database's answer to a write says of its outcome.

use afterglow_cql::frame::{Envelope, Opcode};
use afterglow_rowcache::write_in_flight::{Answered, InDoubt, RowOutcome};
use afterglow_rowcache::write_scope::WriteScope;

use super::super::Request;
use crate::frontend::cql::{CallError, error_code};
use crate::metrics::WriteOutcome;

/// What the database's answer says of a write; `in_steps`: see [`Answered::by_error`].
pub(super) fn answered(answer: &Result<Envelope, CallError>, in_steps: bool) -> Answered {
    match answer {
        Ok(answer) if answer.header.opcode == Opcode::Result => Answered::Definite,
        Ok(answer) => match error_code(answer) {
            Some(code) => Answered::by_error(code, in_steps),
            None => Answered::Unknown(InDoubt::ServerError),
        },
        Err(CallError::NotSent(_)) => Answered::Refused,
        Err(CallError::Lost) => Answered::Unknown(InDoubt::ConnectionLost),
    }
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
