//! Parses a text to a statement.

use super::{Parser, unknown};
use crate::lexer;
use crate::syntax::{Parsed, Statement};

pub(crate) fn parse(text: &str) -> Parsed {
    let (tokens, rest) = match lexer::tokens(text) {
        Ok(tokens) => (tokens, ""),
        Err(broken) => (broken.tokens, broken.rest),
    };
    if rest.is_empty() {
        let mut parser = Parser::new(&tokens);
        if let Ok(statement) = parser.whole_statement() {
            return Parsed::new(statement, parser.markers);
        }
    }
    Parsed::new(Statement::Unknown(unknown::judge(&tokens, rest)), Vec::new())
}
