//! Type names: recognised, not kept.

use super::{NotUnderstood, Parse, Parser};
use crate::lexer::Kind;

impl Parser<'_> {
    /// A type: native, collection, tuple, vector, frozen, user type or a class name in quotes.
    pub(super) fn type_name(&mut self) -> Parse<()> {
        self.nested(|p| {
            if p.peek().is_some_and(|token| token.kind == Kind::String) {
                p.at += 1;
                return Ok(());
            }
            // SET is reserved, yet a type.
            if !p.word("set") {
                p.table_name()?;
            }
            if p.symbol("<") {
                p.list(|p| match p.peek().map(|token| token.kind) {
                    Some(Kind::Integer) => p.next().map(drop),
                    Some(_) => p.type_name(),
                    None => Err(NotUnderstood),
                })?;
                p.expect(">")?;
            }
            Ok(())
        })
    }
}
