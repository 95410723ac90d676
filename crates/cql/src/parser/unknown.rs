//! Text that is not understood: what can be proven of it.

use super::Parser;
use crate::lexer::{Kind, Token};
use crate::syntax::{TableName, Unknown};

/// Words that begin, or could begin, something that writes.
const WRITING: [&str; 14] = [
    "insert", "update", "delete", "truncate", "begin", "batch", "apply", "create", "alter", "drop",
    "grant", "revoke", "prune", "use",
];

/// Judges text by its tokens and the `rest` that is no token. Servers run one statement per text,
/// and no SELECT, LIST or DESCRIBE writes. But only a text without a second statement, and without
/// any word that writes, counts as a read.
pub(super) fn judge(tokens: &[Token], rest: &str) -> Unknown {
    let end = tokens.iter().rposition(|token| !token.is_symbol(";")).map_or(0, |last| last + 1);
    let tokens = &tokens[..end];
    if tokens.iter().any(|token| token.is_symbol(";")) || rest.contains(';') {
        return Unknown::write(None);
    }
    let reads = |token: &Token| {
        ["select", "list", "describe", "desc"].iter().any(|word| token.is_word(word))
    };
    let writes = |token: &Token| {
        token.kind == Kind::Word && WRITING.iter().any(|word| token.text.eq_ignore_ascii_case(word))
    };
    let rest_writes = || {
        let rest = rest.to_ascii_lowercase();
        WRITING.iter().any(|word| rest.contains(word))
    };
    if tokens.first().is_some_and(reads) && !tokens.iter().any(writes) && !rest_writes() {
        return Unknown::read();
    }
    Unknown::write(written_table(tokens))
}

/// The table that the first words of a modification name, if something follows it (else its name
/// may go on in what is no token).
fn written_table(tokens: &[Token]) -> Option<TableName> {
    let mut parser = Parser::new(tokens);
    if parser.word("delete") {
        parser.at = tokens.iter().position(|token| token.is_word("from"))? + 1;
    } else if parser.word("truncate") {
        let _ = parser.word("table") || parser.word("columnfamily");
    } else if !parser.words(&["insert", "into"]) && !parser.word("update") {
        return None;
    }
    let table = parser.table_name().ok()?;
    (parser.at < tokens.len() && !parser.sees_symbol(".")).then_some(table)
}
