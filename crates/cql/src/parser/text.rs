//! Parses a text to a statement.

use super::{Parser, unknown};
use crate::lexer::{MOST_TOKENS, Tokens};
use crate::syntax::{Parsed, Statement};

/// Reads a text of no more than [`MOST_TOKENS`]; a longer one is not understood.
pub(crate) fn parse(text: &str) -> Parsed {
    let mut more = Tokens::of(text);
    let tokens: Vec<_> = more.by_ref().take(MOST_TOKENS).collect();
    if more.rest().is_empty() {
        let mut parser = Parser::new(&tokens);
        if let Ok(statement) = parser.whole_statement() {
            return Parsed::new(statement, parser.markers);
        }
    }
    if tokens.first().is_some_and(|first| first.is_word("use")) {
        return Parsed::new(Statement::OddUse, Vec::new());
    }
    Parsed::new(Statement::Unknown(unknown::judge(tokens, more.rest())), Vec::new())
}
