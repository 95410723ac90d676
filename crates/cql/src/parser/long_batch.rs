//! The tables of a batch that has more tokens than are kept of a text.
//!
//! 1. What there is of it is read, modification by modification, up to the one that is cut.
//! 2. What was read is left out, as many tokens of the rest take its place, and so on to the end.
//!
//! Invariants:
//! - A modification counts only if what follows it ends it, or begins another. So none is taken for
//!   whole that goes on behind the cut.
//! - The tables are known only if every statement of the batch is understood and nothing follows
//!   it. Then no server can take the text for anything that writes to other tables.
//!
//! It takes as much memory as what is kept of any text, and time in proportion to the length.

use std::collections::HashSet;

use super::{Parse, Parser};
use crate::lexer::{Token, Tokens};
use crate::syntax::TableName;

/// A batch of more tables may write anything.
const MOST_TABLES: usize = 64;

/// Whether the text begins as a batch does, and there is more of it than the tokens.
pub(super) fn is_one(tokens: &[Token], rest: &str) -> bool {
    !rest.is_empty() && Parser::new(tokens).batch_head().is_ok()
}

/// The tables that a batch writes to, each once, in the order of their names' first places. `None`
/// if the tokens and the `rest` are no whole batch that is understood, or of too many tables, or if
/// one of its statements alone has more tokens than are given.
pub(super) fn tables<'a>(tokens: Vec<Token<'a>>, rest: &'a str) -> Option<Vec<TableName>> {
    let kept = tokens.len();
    let mut read = {
        let mut parser = Parser::new(&tokens);
        parser.batch_head().ok()?;
        parser.at
    };
    let mut found = Found::default();
    let mut more = Tokens::of(rest);
    let mut window = tokens;
    loop {
        window.drain(..read);
        let wanted = kept - window.len();
        window.extend(more.by_ref().take(wanted));
        let mut parser = Parser::new(&window);
        let ended = found.read(&mut parser).is_ok();
        read = parser.at;
        if found.tables.len() > MOST_TABLES || !ended && read == 0 {
            return None;
        }
        if ended {
            let mut behind = window[read..].iter().copied().chain(more.by_ref());
            let is_whole = behind.all(|token| token.is_symbol(";"));
            return (is_whole && more.rest().is_empty()).then_some(found.tables);
        }
    }
}

#[derive(Default)]
struct Found {
    tables: Vec<TableName>,
    known: HashSet<TableName>,
}

impl Found {
    /// Reads modifications up to the end of the batch.
    ///
    /// # Errors
    /// One is not understood, or is cut: the parser is before it.
    fn read(&mut self, parser: &mut Parser) -> Parse<()> {
        while !parser.words(&["apply", "batch"]) {
            let at = parser.at;
            let modification = parser.modification();
            let next = ["apply", "insert", "update", "delete"];
            let follows = parser.sees_symbol(";") || next.iter().any(|word| parser.sees_word(word));
            let Some(modification) = modification.ok().filter(|_| follows) else {
                parser.at = at;
                return Err(super::NotUnderstood);
            };
            if self.known.insert(modification.table.clone()) {
                self.tables.push(modification.table);
            }
            parser.symbol(";");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::statement::{Statement, parse};

    const MODIFICATIONS: [&str; 6] = [
        "INSERT INTO a (k, v) VALUES (1, [1, 2, 3]) IF NOT EXISTS USING TTL 5",
        "UPDATE ks.b USING TIMESTAMP 7 SET v = v + 1 WHERE k = 1 AND c > 2 IF v = 3 AND w = 4",
        "DELETE v, w FROM c WHERE k = 1 AND c IN (1, 2)",
        "INSERT INTO \"D d\" JSON '{\"k\": 1; \"v\": 2}' DEFAULT UNSET",
        "DELETE FROM a WHERE k = 'apply batch'",
        "UPDATE \"update\" SET m['into x'] = 1 WHERE (k, c) = (1, 2) IF EXISTS",
    ];

    /// As of a text of which no more than so many tokens are kept.
    fn of_kept(text: &str, kept: usize) -> Option<Vec<TableName>> {
        let mut more = Tokens::of(text);
        let tokens: Vec<_> = more.by_ref().take(kept).collect();
        is_one(&tokens, more.rest()).then(|| tables(tokens, more.rest()))?
    }

    /// Every two of the modifications in each order, with and without what may be between them.
    fn batches() -> Vec<String> {
        let mut batches = Vec::new();
        for first in MODIFICATIONS {
            for (n, second) in MODIFICATIONS.into_iter().enumerate() {
                let (head, between) = [("", ";"), ("UNLOGGED", " "), ("COUNTER", "; ")][n % 3];
                let using = ["", "USING TIMESTAMP 9"][n % 2];
                batches.push(format!(
                    "BEGIN {head} BATCH {using} {first}{between}{second}{between}{first} \
                     APPLY BATCH{}",
                    ";".repeat(n)
                ));
            }
        }
        batches
    }

    #[test]
    fn wherever_a_batch_is_cut_its_tables_are_those_of_the_whole() {
        let mut known = 0;
        for text in batches() {
            let Statement::Batch(batch) = parse(&text).statement else { panic!("{text}") };
            let whole: HashSet<_> = batch.modifications.into_iter().map(|one| one.table).collect();
            let count = Tokens::of(&text).count();
            for kept in 1..count {
                if let Some(tables) = of_kept(&text, kept) {
                    known += 1;
                    assert_eq!(tables.len(), whole.len(), "{text}, cut at {kept}");
                    assert_eq!(HashSet::from_iter(tables), whole, "{text}, cut at {kept}");
                } else {
                    // No modification of these has as many.
                    assert!(kept < 40, "{text}, cut at {kept}");
                }
            }
            assert_eq!(of_kept(&text, count), None, "it is not cut");
        }
        assert!(known > 500, "{known} were known: little was shown");
    }

    #[test]
    fn of_what_is_no_whole_batch_no_table_is_known() {
        let good = "BEGIN BATCH DELETE FROM a WHERE k = 1; DELETE FROM b WHERE k = 1 APPLY BATCH";
        assert_eq!(of_kept(good, 12).map(|tables| tables.len()), Some(2));
        for (from, to) in [
            (" APPLY BATCH", ""),
            (" APPLY BATCH", " APPLY"),
            ("APPLY BATCH", "APPLY BATCH; DELETE FROM c WHERE k = 1"),
            ("APPLY BATCH", "APPLY BATCH x"),
            ("APPLY BATCH", "APPLY BATCH \u{e9}"),
            ("APPLY BATCH", "TRUNCATE c APPLY BATCH"),
            ("DELETE FROM b", "SELECT v FROM b"),
            ("DELETE FROM b", "UPSERT b"),
            ("DELETE FROM b", "DELETE FROM b.c.d"),
            ("BEGIN BATCH", "BEGIN TRANSACTION"),
        ] {
            let text = good.replace(from, to);
            for kept in 1..Tokens::of(&text).count() {
                assert_eq!(of_kept(&text, kept), None, "{text}, cut at {kept}");
            }
        }
        let many = |count: usize| {
            let all = (0..count).map(|n| format!("DELETE FROM t{n} WHERE k = 1"));
            format!("BEGIN BATCH {} APPLY BATCH", all.collect::<Vec<_>>().join("; "))
        };
        assert_eq!(of_kept(&many(64), 50).map(|tables| tables.len()), Some(64));
        assert_eq!(of_kept(&many(65), 50), None);
    }
}
