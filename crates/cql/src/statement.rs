//! Reading a statement: from its text to the [syntax tree](crate::statement::Parsed).

use crate::parser;
pub use crate::syntax::*;

/// Reads a statement. Total: text that is not understood gives [`Statement::Unknown`], never an
/// error.
///
/// The grammar is the DML, DDL and DCL of Cassandra 3.11 to 5.0 plus ScyllaDB's `BYPASS CACHE` and
/// `USING TIMEOUT`. The lexer is as strict as theirs: a `--` comment that no line end closes is an
/// error.
pub fn parse(text: &str) -> Parsed {
    parser::parse(text)
}

/// As [`parse`], for text that may not be UTF-8: such text is unknown, since servers replace bad
/// bytes.
pub fn parse_bytes(text: &[u8]) -> Parsed {
    match std::str::from_utf8(text) {
        Ok(text) => parse(text),
        Err(_) => {
            let conditional = text.windows(2).any(|two| two.eq_ignore_ascii_case(b"if"));
            Parsed::new(Statement::Unknown(Unknown::write(Vec::new(), conditional)), Vec::new())
        }
    }
}
