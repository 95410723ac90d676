//! What the fake answers that it does not do.

use afterglow_cql::error::ErrorCode;

/// A refusal: code and text of the ERROR answer.
#[derive(Clone, Debug, PartialEq)]
pub struct Refusal {
    pub code: ErrorCode,
    pub message: String,
}

impl Refusal {
    pub fn invalid(message: impl Into<String>) -> Self {
        Self { code: ErrorCode::Invalid, message: message.into() }
    }

    pub fn syntax(message: impl Into<String>) -> Self {
        Self { code: ErrorCode::Syntax, message: message.into() }
    }
}
