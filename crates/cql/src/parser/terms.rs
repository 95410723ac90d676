//! Values: constants, markers, collections, function calls, casts, arithmetic.

use super::{NotUnderstood, Parse, Parser};
use crate::lexer::Kind;
use crate::syntax::{Literal, TableName, Term};

impl Parser<'_> {
    /// A value expression.
    pub(super) fn term(&mut self) -> Parse<Term> {
        self.nested(|p| {
            let mut term = p.signed_term()?;
            // The right side may turn out to be a column (`v = [1] + v`), which is the caller's.
            while p.sees_operator()
                && p.attempt(|p| p.next().and_then(|_| p.signed_term())).is_some()
            {
                term = Term::Complex;
            }
            Ok(term)
        })
    }

    fn sees_operator(&self) -> bool {
        ["+", "-", "*", "/", "%"].iter().any(|operator| self.sees_symbol(operator))
    }

    fn signed_term(&mut self) -> Parse<Term> {
        if self.symbol("-") {
            return self.simple_term().map(|_| Term::Complex);
        }
        self.simple_term()
    }

    fn simple_term(&mut self) -> Parse<Term> {
        let token = self.peek().ok_or(NotUnderstood)?;
        if let Some(literal) = self.constant() {
            return Ok(Term::Literal(literal));
        }
        match token.text {
            "?" | ":" if token.kind == Kind::Symbol => self.marker().map(Term::Marker),
            "(" if token.kind == Kind::Symbol => self.nested(Self::parenthesised),
            "[" if token.kind == Kind::Symbol => self.nested(Self::list_literal),
            "{" if token.kind == Kind::Symbol => self.nested(Self::braced_literal),
            _ if self.word("null") => Ok(Term::Null),
            _ if token.is_word("cast")
                && self.peek_second().is_some_and(|next| next.is_symbol("(")) =>
            {
                self.nested(Self::cast)
            }
            _ => self.nested(Self::function_call),
        }
    }

    /// Takes a constant if one comes next.
    pub(super) fn constant(&mut self) -> Option<Literal> {
        let token = self.peek()?;
        let literal = match token.kind {
            Kind::String => Literal::String(token.unquoted()),
            Kind::Integer => Literal::Integer(token.text.to_owned()),
            Kind::Float => Literal::Float(token.text.to_owned()),
            Kind::Boolean => Literal::Boolean(token.text.eq_ignore_ascii_case("true")),
            Kind::Uuid => Literal::Uuid(token.text.to_owned()),
            Kind::Hex => Literal::Hex(token.text[2..].to_owned()),
            Kind::Duration | Kind::NegativeSpecial => Literal::Other,
            Kind::Word if token.is_word("nan") || token.is_word("infinity") => Literal::Other,
            _ => return None,
        };
        self.at += 1;
        Some(literal)
    }

    /// `(type) term`, or a tuple.
    fn parenthesised(&mut self) -> Parse<Term> {
        let hinted = self.attempt(|p| {
            p.expect("(")?;
            p.type_name()?;
            p.expect(")")?;
            p.simple_term()
        });
        match hinted {
            Some(_) => Ok(Term::Complex),
            None => self.tuple_literal(),
        }
    }

    /// `(term, ...)`
    pub(super) fn tuple_literal(&mut self) -> Parse<Term> {
        self.expect("(")?;
        let terms = self.list(Self::term)?;
        self.expect(")")?;
        Ok(Term::Tuple(terms))
    }

    fn list_literal(&mut self) -> Parse<Term> {
        self.expect("[")?;
        if !self.symbol("]") {
            self.list(Self::term)?;
            self.expect("]")?;
        }
        Ok(Term::Complex)
    }

    /// A set, map or user type.
    fn braced_literal(&mut self) -> Parse<Term> {
        self.expect("{")?;
        if !self.symbol("}") {
            self.list(|p| {
                let field =
                    p.sees_identifier() && p.peek_second().is_some_and(|next| next.is_symbol(":"));
                if field {
                    p.at += 1;
                } else {
                    p.term()?;
                }
                if p.symbol(":") { p.term().map(drop) } else { Ok(()) }
            })?;
            self.expect("}")?;
        }
        Ok(Term::Complex)
    }

    fn cast(&mut self) -> Parse<Term> {
        self.expect_word("cast")?;
        self.expect("(")?;
        self.term()?;
        self.expect_word("as")?;
        self.type_name()?;
        self.expect(")")?;
        Ok(Term::Complex)
    }

    fn function_call(&mut self) -> Parse<Term> {
        let name = self.function_name()?;
        self.expect("(")?;
        if self.symbol(")") {
            return Ok(name.and_then(made_by).unwrap_or(Term::Complex));
        }
        self.list(Self::term)?;
        self.expect(")")?;
        Ok(Term::Complex)
    }

    /// `[keyspace .] function`; none for `token`, which is reserved, yet a function.
    pub(super) fn function_name(&mut self) -> Parse<Option<TableName>> {
        if self.word("token") { Ok(None) } else { self.table_name().map(Some) }
    }

    /// A whole number or a marker, as LIMIT and USING take it.
    pub(super) fn integer(&mut self) -> Parse<Term> {
        match self.peek() {
            Some(token) if token.kind == Kind::Integer => {
                self.at += 1;
                Ok(Term::Literal(Literal::Integer(token.text.to_owned())))
            }
            _ => self.marker().map(Term::Marker),
        }
    }
}

/// What a function without arguments makes, if that is another value each time. Without a keyspace
/// these are names that every server has a function of its own for. It prefers that to one of the
/// keyspace, if the column can have what its own makes. Names that came later may be functions of
/// users on older servers, unless they say `system`.
fn made_by(function: TableName) -> Option<Term> {
    let is_system = match function.keyspace.as_deref() {
        None => false,
        Some("system") => true,
        Some(_) => return None,
    };
    match function.name.as_str() {
        "uuid" => Some(Term::Unique { timed: false }),
        "now" => Some(Term::Unique { timed: true }),
        "currenttimeuuid" | "current_timeuuid" if is_system => Some(Term::Unique { timed: true }),
        _ => None,
    }
}
