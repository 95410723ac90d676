//! Text that is not understood: what can be proven of it.

use super::{Parser, long_batch};
use crate::lexer::{Kind, Token, Tokens};
use crate::syntax::{TableName, Unknown};

/// Words that begin, or could begin, something that writes.
const WRITING: [&str; 14] = [
    "insert", "update", "delete", "truncate", "begin", "batch", "apply", "create", "alter", "drop",
    "grant", "revoke", "prune", "use",
];
/// Of text beyond the tokens that are kept no more bytes than that are looked at: a longer one may
/// write anything.
const LONGEST_REST: usize = 1 << 20;

/// Judges text by its first tokens and the `rest`, which begins with more tokens or with what is
/// none. Servers run one statement per text, and no SELECT, LIST or DESCRIBE writes. But only a
/// text without a second statement, and without any word that writes, counts as a read.
pub(super) fn judge<'a>(tokens: Vec<Token<'a>>, rest: &'a str) -> Unknown {
    if rest.len() > LONGEST_REST {
        let conditional = may_be_conditional(&tokens, || true);
        return Unknown::write(Vec::new(), conditional);
    }
    let reads = |token: &Token| {
        ["select", "list", "describe", "desc"].iter().any(|word| token.is_word(word))
    };
    let may_read = tokens.first().is_some_and(reads);
    let conditional = may_be_conditional(&tokens, || has_if(rest));
    if long_batch::is_one(&tokens, rest) {
        let tables = long_batch::tables(tokens, rest).unwrap_or_default();
        return Unknown::write(tables, conditional);
    }
    let mut more = Tokens::of(rest);
    let (mut ended, mut writes) = (false, false);
    for token in tokens.iter().copied().chain(more.by_ref()) {
        let ends = token.is_symbol(";");
        if ended && !ends {
            return Unknown::write(Vec::new(), conditional);
        }
        ended |= ends;
        // Only a text that may read is searched for words.
        writes |= may_read
            && token.kind == Kind::Word
            && WRITING.iter().any(|word| token.text.eq_ignore_ascii_case(word));
    }
    let rest = more.rest();
    if rest.contains(';') {
        return Unknown::write(Vec::new(), conditional);
    }
    let rest_writes = || {
        let rest = rest.to_ascii_lowercase();
        WRITING.iter().any(|word| rest.contains(word))
    };
    if may_read && !writes && !rest_writes() {
        return Unknown::read();
    }
    let end = tokens.iter().position(|token| token.is_symbol(";")).unwrap_or(tokens.len());
    Unknown::write(written_table(&tokens[..end]).into_iter().collect(), conditional)
}

/// Whether it may be a lightweight transaction: it begins as a modification or a batch does, and
/// has the word IF among the tokens, or `in_rest`.
fn may_be_conditional(tokens: &[Token], in_rest: impl FnOnce() -> bool) -> bool {
    let heads = ["insert", "update", "delete", "begin"];
    let modifies = |first: &Token| heads.iter().any(|word| first.is_word(word));
    tokens.first().is_some_and(modifies)
        && (tokens.iter().any(|token| token.is_word("if")) || in_rest())
}

/// Whether the word IF may be in a text. What is no token may be it too.
fn has_if(rest: &str) -> bool {
    let mut more = Tokens::of(rest);
    more.by_ref().any(|token| token.is_word("if"))
        || more.rest().as_bytes().windows(2).any(|two| two.eq_ignore_ascii_case(b"if"))
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
