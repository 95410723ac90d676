//! Holds statements over whole tables back whose connection asks for them in vain: see
//! [`Refusals`](crate::frontend::cql::refusals::Refusals).

use std::pin::pin;
use std::time::Instant;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Envelope, Opcode};
use afterglow_rowcache::write_scope::WriteScope;
use futures_util::future::select;

use super::outcome::is_void;
use crate::frontend::cql::cluster::error::CallError;
use crate::frontend::cql::refusals::{Ended, Trial, VainTurn};
use crate::frontend::cql::{Request, error_code};

/// Why a statement that was held is not sent.
pub(super) enum NotSent {
    /// Its client has gone: nobody asks for it any more.
    Gone,
    /// For this reason, which its client is told.
    Because(&'static str),
}

const TOO_LONG: &str = "statements over whole tables of this connection or its user were refused \
     or changed nothing, and it would be held for too long: it was not sent, send fewer at once";
const STOPS: &str = "this instance is about to stop, and statements over whole tables of this \
     connection or its user were refused or changed nothing: it was not sent, try again at another one";

/// Whether a write of this may close gates now.
pub(super) fn turn(request: &Request, touched: &WriteScope) -> VainTurn {
    match touched.may_be_in_vain() {
        true => request.client().refusals.turn(Instant::now()),
        false => VainTurn::Free,
    }
}

/// Holds a write of this until it may close gates. What is returned is to be dropped when it has
/// been answered.
///
/// # Errors
/// It is not to be sent. An instance that is about to stop sends nothing that it holds: clients
/// would wait for that, and the stop for them.
pub(super) async fn hold(
    request: &Request,
    touched: &WriteScope,
) -> Result<Option<Trial>, NotSent> {
    let held = wait(request, touched).await;
    if held.is_err() {
        request.client().refusals.wake_next();
    }
    held
}

async fn wait(request: &Request, touched: &WriteScope) -> Result<Option<Trial>, NotSent> {
    let client = request.client();
    let came = Instant::now();
    loop {
        if client.out.is_closed() {
            return Err(NotSent::Gone);
        }
        let is_closing = client.reactor_state.front_end.is_closing();
        let left = client.refusals.patience(came, Instant::now());
        let wait = match turn(request, touched) {
            VainTurn::Free => return Ok(None),
            _ if is_closing => return Err(NotSent::Because(STOPS)),
            VainTurn::Trial(trial) => return Ok(Some(trial)),
            VainTurn::Later(wait) if wait > left => return Err(NotSent::Because(TOO_LONG)),
            VainTurn::AfterTrial if left.is_zero() => return Err(NotSent::Because(TOO_LONG)),
            VainTurn::Later(wait) => wait,
            VainTurn::AfterTrial => left,
        };
        // Of this thread only: nothing changes between the turn and here.
        select(pin!(compio::time::sleep(wait)), client.refusals.changed()).await;
    }
}

/// A write of this, whose gates have been closed since then, was answered.
pub(super) fn note(
    request: &Request,
    touched: &WriteScope,
    answer: &Result<Envelope, CallError>,
    closed: Instant,
) {
    if touched.may_be_in_vain() {
        let ended = ended(answer, touched.is_only_schema());
        request.client().refusals.note(ended, closed, Instant::now());
    }
}

/// A write of this, whose gates have been closed since then, is not sent: an owner of its rows
/// cannot be asked.
pub(super) fn note_unsent(request: &Request, touched: &WriteScope, closed: Instant) {
    if touched.may_be_in_vain() {
        request.client().refusals.note(Ended::Needless, closed, Instant::now());
    }
}

/// What an answer says of the rights of who asked.
fn ended(answer: &Result<Envelope, CallError>, is_only_schema: bool) -> Ended {
    match answer {
        Ok(answer) if answer.header.opcode == Opcode::Result => {
            match is_only_schema && is_void(answer) {
                true => Ended::Needless,
                false => Ended::Taken,
            }
        }
        Ok(answer) => match error_code(answer) {
            Some(
                ErrorCode::Unauthorized
                | ErrorCode::Syntax
                | ErrorCode::Invalid
                | ErrorCode::Config
                | ErrorCode::AlreadyExists
                | ErrorCode::Protocol
                | ErrorCode::BadCredentials,
            ) => Ended::Refused,
            _ => Ended::Unsaid,
        },
        Err(CallError::NotSent(_) | CallError::Lost) => Ended::Unsaid,
    }
}

#[cfg(test)]
mod tests {
    use afterglow_cql::frame::{Header, Version};
    use afterglow_cql::response::ErrorBody;

    use super::*;

    fn answer(opcode: Opcode, body: Vec<u8>) -> Result<Envelope, CallError> {
        Ok(Envelope { header: Header::new(Version::V4, 0, opcode), body: body.into() })
    }

    #[test]
    fn only_a_refusal_of_the_statement_itself_counts() {
        let refused = [0x000A, 0x0100, 0x2000, 0x2100, 0x2200, 0x2300, 0x2400];
        for code in ErrorCode::NAMED {
            // The rest of the body, which some codes have, does not matter.
            let mut body = Vec::new();
            ErrorBody::new(ErrorCode::Server, "no").encode(&mut body);
            body[..4].copy_from_slice(&code.as_i32().to_be_bytes());
            let counts = refused.contains(&code.as_i32());
            let expected = if counts { Ended::Refused } else { Ended::Unsaid };
            let answer = answer(Opcode::Error, body);
            assert_eq!(ended(&answer, false), expected, "{code:?}");
            assert_eq!(ended(&answer, true), expected, "{code:?}");
        }
        assert_eq!(ended(&Err(CallError::Lost), false), Ended::Unsaid);
        assert_eq!(ended(&Err(CallError::NotSent("away".into())), false), Ended::Unsaid);
    }

    #[test]
    fn a_change_of_the_schema_that_changed_nothing_was_needless() {
        let void = answer(Opcode::Result, vec![0, 0, 0, 1]);
        assert_eq!(ended(&void, true), Ended::Needless);
        assert_eq!(ended(&void, false), Ended::Taken, "as of TRUNCATE");
    }
}
