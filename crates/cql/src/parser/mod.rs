//! Recursive descent over the tokens of a statement, after Cassandra's grammar (its file
//! `Parser.g`).
//!
//! The parser may accept a little more than a server does (versions differ in what they reserve);
//! where both accept, they must mean the same. What it does not accept is unknown, and [`unknown`]
//! says what can be proven of it.

use std::sync::Arc;

use crate::lexer::{Kind, Token};
use crate::syntax::{Marker, Statement, TableName};

mod definition;
mod long_batch;
mod modify;
mod schema;
mod select;
mod terms;
mod text;
mod types;
mod unknown;

pub use definition::{DefinitionError, tables};
pub(crate) use text::parse;

/// The text is not in the grammar.
pub(crate) struct NotUnderstood;

pub(crate) type Parse<T> = Result<T, NotUnderstood>;

/// Deepest nesting of expressions; deeper text is not understood, so that no text exhausts the
/// stack.
const MAX_DEPTH: u32 = 64;

/// Words that no column, table or keyspace can be called without quotes, sorted.
const RESERVED: [&str; 57] = [
    "add",
    "allow",
    "alter",
    "and",
    "apply",
    "asc",
    "authorize",
    "batch",
    "begin",
    "by",
    "columnfamily",
    "create",
    "delete",
    "desc",
    "describe",
    "drop",
    "entries",
    "execute",
    "from",
    "full",
    "grant",
    "if",
    "in",
    "index",
    "infinity",
    "insert",
    "into",
    "is",
    "keyspace",
    "limit",
    "materialized",
    "modify",
    "nan",
    "norecursive",
    "not",
    "null",
    "of",
    "on",
    "or",
    "order",
    "primary",
    "rename",
    "revoke",
    "schema",
    "select",
    "set",
    "table",
    "to",
    "token",
    "truncate",
    "unlogged",
    "update",
    "use",
    "using",
    "view",
    "where",
    "with",
];

fn is_reserved(word: &str) -> bool {
    let folded = || word.bytes().map(|byte| byte.to_ascii_lowercase());
    RESERVED.binary_search_by(|reserved| reserved.bytes().cmp(folded())).is_ok()
}

pub(super) struct Parser<'t> {
    tokens: &'t [Token<'t>],
    at: usize,
    depth: u32,
    markers: Vec<Option<Arc<str>>>,
}

impl<'t> Parser<'t> {
    pub(super) fn new(tokens: &'t [Token<'t>]) -> Parser<'t> {
        Parser { tokens, at: 0, depth: 0, markers: Vec::new() }
    }

    /// One statement, any number of semicolons, and nothing else.
    pub(super) fn whole_statement(&mut self) -> Parse<Statement> {
        let statement = self.statement()?;
        while self.symbol(";") {}
        self.end()?;
        Ok(statement)
    }

    fn statement(&mut self) -> Parse<Statement> {
        let word = self
            .peek()
            .filter(|token| token.kind == Kind::Word)
            .ok_or(NotUnderstood)?
            .text
            .to_ascii_lowercase();
        match word.as_str() {
            "select" => self.select(),
            "insert" | "update" | "delete" => {
                Ok(Statement::Modification(Box::new(self.modification()?)))
            }
            "begin" => self.batch(),
            "use" => {
                self.at += 1;
                self.identifier().map(Statement::Use)
            }
            "truncate" => {
                self.at += 1;
                let _ = self.word("table") || self.word("columnfamily");
                self.table_name().map(Statement::Truncate)
            }
            _ => self.other_statement(&word),
        }
    }

    // Tokens.

    fn peek(&self) -> Option<Token<'t>> {
        self.tokens.get(self.at).copied()
    }

    fn peek_second(&self) -> Option<Token<'t>> {
        self.tokens.get(self.at + 1).copied()
    }

    fn next(&mut self) -> Parse<Token<'t>> {
        let token = self.peek().ok_or(NotUnderstood)?;
        self.at += 1;
        Ok(token)
    }

    fn end(&self) -> Parse<()> {
        if self.at == self.tokens.len() { Ok(()) } else { Err(NotUnderstood) }
    }

    /// Takes the symbol if it comes next.
    fn symbol(&mut self, symbol: &str) -> bool {
        let found = self.peek().is_some_and(|token| token.is_symbol(symbol));
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, symbol: &str) -> Parse<()> {
        if self.symbol(symbol) { Ok(()) } else { Err(NotUnderstood) }
    }

    fn sees_symbol(&self, symbol: &str) -> bool {
        self.peek().is_some_and(|token| token.is_symbol(symbol))
    }

    fn sees_word(&self, word: &str) -> bool {
        self.peek().is_some_and(|token| token.is_word(word))
    }

    /// Takes the keyword if it comes next.
    fn word(&mut self, word: &str) -> bool {
        let found = self.sees_word(word);
        self.at += usize::from(found);
        found
    }

    /// Takes all the keywords if they come next, else none.
    fn words(&mut self, words: &[&str]) -> bool {
        let found = words
            .iter()
            .enumerate()
            .all(|(i, word)| self.tokens.get(self.at + i).is_some_and(|token| token.is_word(word)));
        self.at += if found { words.len() } else { 0 };
        found
    }

    fn expect_word(&mut self, word: &str) -> Parse<()> {
        if self.word(word) { Ok(()) } else { Err(NotUnderstood) }
    }

    /// Tries a production; what it took is given back if it fails.
    fn attempt<T>(&mut self, production: impl FnOnce(&mut Self) -> Parse<T>) -> Option<T> {
        let (at, depth, markers) = (self.at, self.depth, self.markers.len());
        let result = production(self).ok();
        if result.is_none() {
            self.at = at;
            self.depth = depth;
            self.markers.truncate(markers);
        }
        result
    }

    /// Runs a production one level deeper.
    fn nested<T>(&mut self, production: impl FnOnce(&mut Self) -> Parse<T>) -> Parse<T> {
        if self.depth == MAX_DEPTH {
            return Err(NotUnderstood);
        }
        self.depth += 1;
        let result = production(self);
        self.depth -= 1;
        result
    }

    /// `item (, item)*`
    fn list<T>(&mut self, mut item: impl FnMut(&mut Self) -> Parse<T>) -> Parse<Vec<T>> {
        let mut items = vec![item(self)?];
        while self.symbol(",") {
            items.push(item(self)?);
        }
        Ok(items)
    }

    // Names.

    fn is_identifier(token: &Token) -> bool {
        match token.kind {
            Kind::Quoted => true,
            Kind::Word => !is_reserved(token.text),
            _ => false,
        }
    }

    fn sees_identifier(&self) -> bool {
        self.peek().is_some_and(|token| Self::is_identifier(&token))
    }

    /// A quoted or unreserved name, folded, of a length that a `[string]` can tell.
    fn identifier(&mut self) -> Parse<String> {
        let is_name =
            |token: &Token| Self::is_identifier(token) && token.text.len() <= usize::from(u16::MAX);
        let token = self.peek().filter(is_name).ok_or(NotUnderstood)?;
        self.at += 1;
        Ok(if token.kind == Kind::Quoted {
            token.unquoted()
        } else {
            token.text.to_ascii_lowercase()
        })
    }

    /// A column's name, which in old tables may be empty.
    fn column(&mut self) -> Parse<String> {
        if self.peek().is_some_and(|token| token.kind == Kind::EmptyQuoted) {
            self.at += 1;
            return Ok(String::new());
        }
        self.identifier()
    }

    /// `[keyspace .] name`
    fn table_name(&mut self) -> Parse<TableName> {
        let first = self.identifier()?;
        if self.symbol(".") {
            return Ok(TableName { keyspace: Some(first), name: self.identifier()? });
        }
        Ok(TableName { keyspace: None, name: first })
    }

    // Markers.

    fn sees_marker(&self) -> bool {
        self.sees_symbol("?") || self.sees_symbol(":")
    }

    fn marker(&mut self) -> Parse<Marker> {
        let name = match self.symbol("?") {
            true => None,
            false => {
                self.expect(":")?;
                Some(Arc::from(self.identifier()?))
            }
        };
        let index = u16::try_from(self.markers.len()).map_err(|_| NotUnderstood)?;
        self.markers.push(name.clone());
        Ok(Marker { index, name })
    }
}

#[cfg(test)]
mod tests;
