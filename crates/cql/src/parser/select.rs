//! SELECT and the relations of every WHERE.

use super::{NotUnderstood, Parse, Parser};
use crate::lexer::{Kind, Token};
use crate::syntax::{Operator, OrderBy, Relation, Select, Selected, Selector, Statement, Term};

impl Parser<'_> {
    pub(super) fn select(&mut self) -> Parse<Statement> {
        let start = self.at;
        self.expect_word("select")?;
        let (json, distinct, selectors) = self.select_head()?;
        let table = self.table_name()?;
        let relations = if self.word("where") { self.relations()? } else { Vec::new() };
        let grouped = self.words(&["group", "by"]);
        if grouped {
            self.list(Self::selected)?;
        }
        let order = match self.words(&["order", "by"]) {
            true => self.list(Self::ordering)?,
            false => Vec::new(),
        };
        let per_partition_limit =
            if self.words(&["per", "partition", "limit"]) { Some(self.integer()?) } else { None };
        let limit = if self.word("limit") { Some(self.integer()?) } else { None };
        let allow_filtering = self.words(&["allow", "filtering"]);
        let bypass_cache = self.words(&["bypass", "cache"]);
        let using_timeout = self.word("using");
        if using_timeout {
            self.expect_word("timeout")?;
            self.term()?;
        }
        let words = if table.name == "local" { self.words_since(start) } else { Vec::new() };
        Ok(Statement::Select(Box::new(Select {
            table,
            json,
            distinct,
            selectors,
            relations,
            limit,
            per_partition_limit,
            order,
            grouped,
            allow_filtering,
            bypass_cache,
            using_timeout,
            words,
        })))
    }

    fn words_since(&self, start: usize) -> Vec<String> {
        let named = |token: &Token<'_>| match token.kind {
            Kind::Word => Some(token.text.to_ascii_lowercase()),
            Kind::Quoted => Some(token.unquoted()),
            _ => None,
        };
        self.tokens[start..self.at].iter().filter_map(named).collect()
    }

    /// Everything up to and with FROM. `json` and `distinct` are also names of columns: they are
    /// keywords where the rest can be read that way.
    fn select_head(&mut self) -> Parse<(bool, bool, Vec<Selector>)> {
        for (json, distinct) in [(true, true), (true, false), (false, true), (false, false)] {
            let head = self.attempt(|p| {
                if json {
                    p.expect_word("json")?;
                }
                if distinct {
                    p.expect_word("distinct")?;
                }
                let selectors = p.selectors()?;
                p.expect_word("from")?;
                Ok(selectors)
            });
            if let Some(selectors) = head {
                return Ok((json, distinct, selectors));
            }
        }
        Err(NotUnderstood)
    }

    fn selectors(&mut self) -> Parse<Vec<Selector>> {
        if self.symbol("*") {
            return Ok(Vec::new());
        }
        self.list(|p| {
            let what = p.selected()?;
            let alias = if p.word("as") { Some(p.identifier()?) } else { None };
            Ok(Selector { what, alias })
        })
    }

    /// An expression of a select list.
    fn selected(&mut self) -> Parse<Selected> {
        self.nested(|p| {
            let mut what = p.selected_factor()?;
            while ["+", "-", "*", "/", "%"].iter().any(|operator| p.sees_symbol(operator)) {
                p.at += 1;
                p.selected_factor()?;
                what = Selected::Expression;
            }
            Ok(what)
        })
    }

    fn selected_factor(&mut self) -> Parse<Selected> {
        let mut negated = false;
        while self.symbol("-") {
            negated = true;
        }
        let mut what = self.nested(Self::selected_primary)?;
        loop {
            if self.symbol(".") {
                self.identifier()?;
            } else if self.symbol("[") {
                self.subscript()?;
            } else {
                return Ok(if negated { Selected::Expression } else { what });
            }
            what = Selected::Expression;
        }
    }

    /// `[key]`, `[from..to]`, `[from..]`, `[..to]`, after the opening bracket.
    fn subscript(&mut self) -> Parse<()> {
        if !self.sees_symbol("..") {
            self.term()?;
        }
        if self.symbol("..") && !self.sees_symbol("]") {
            self.term()?;
        }
        self.expect("]")
    }

    fn selected_primary(&mut self) -> Parse<Selected> {
        if self.constant().is_some() || self.word("null") {
            return Ok(Selected::Expression);
        }
        if self.sees_marker() {
            return self.marker().map(|_| Selected::Expression);
        }
        if self.sees_symbol("(") {
            let hinted = self.attempt(|p| {
                p.expect("(")?;
                p.type_name()?;
                p.expect(")")?;
                p.nested(Self::selected_primary)
            });
            if hinted.is_some() {
                return Ok(Selected::Expression);
            }
            return self.enclosed("(", ")", |p| p.selected().map(drop));
        }
        if self.sees_symbol("[") {
            return self.enclosed("[", "]", |p| p.selected().map(drop));
        }
        if self.sees_symbol("{") {
            return self.enclosed("{", "}", |p| {
                p.selected()?;
                if p.symbol(":") { p.selected().map(drop) } else { Ok(()) }
            });
        }
        match self.attempt(Self::selected_call) {
            Some(call) => Ok(call),
            None => self.identifier().map(Selected::Column),
        }
    }

    fn enclosed(
        &mut self,
        open: &str,
        close: &str,
        item: impl FnMut(&mut Self) -> Parse<()>,
    ) -> Parse<Selected> {
        self.expect(open)?;
        if !self.symbol(close) {
            self.list(item)?;
            self.expect(close)?;
        }
        Ok(Selected::Expression)
    }

    fn selected_call(&mut self) -> Parse<Selected> {
        let (count, cast) = (self.sees_word("count"), self.sees_word("cast"));
        self.function_name()?;
        self.expect("(")?;
        if count && self.symbol("*") {
            self.expect(")")?;
            return Ok(Selected::CountRows);
        }
        if cast {
            self.selected()?;
            self.expect_word("as")?;
            self.type_name()?;
        } else if !self.sees_symbol(")") {
            self.list(Self::selected)?;
        }
        self.expect(")")?;
        Ok(Selected::Expression)
    }

    /// `column [ANN OF value] [ASC|DESC]`
    fn ordering(&mut self) -> Parse<OrderBy> {
        let column = self.column()?;
        let similar = self.words(&["ann", "of"]);
        if similar {
            self.term()?;
        }
        let descending = !self.word("asc") && self.word("desc");
        Ok(OrderBy { column, descending, similar })
    }

    /// Relations joined by AND.
    pub(super) fn relations(&mut self) -> Parse<Vec<Relation>> {
        let mut relations = vec![self.relation()?];
        while self.word("and") {
            relations.push(self.relation()?);
        }
        Ok(relations)
    }

    fn relation(&mut self) -> Parse<Relation> {
        self.nested(|p| {
            if p.sees_word("token") {
                return p.token_relation();
            }
            if p.sees_word("expr") && p.peek_second().is_some_and(|next| next.is_symbol("(")) {
                return p.index_expression();
            }
            if p.sees_symbol("(") {
                if let Some(relation) = p.attempt(Self::tuple_relation) {
                    return Ok(relation);
                }
                p.expect("(")?;
                let relation = p.relation()?;
                p.expect(")")?;
                return Ok(relation);
            }
            p.column_relation()
        })
    }

    fn token_relation(&mut self) -> Parse<Relation> {
        self.expect_word("token")?;
        self.columns()?;
        let (op, _) = self.operator_and_values()?;
        match op {
            Operator::In
            | Operator::NotIn
            | Operator::Contains
            | Operator::Like
            | Operator::IsNotNull => Err(NotUnderstood),
            _ => Ok(Relation::Other),
        }
    }

    fn index_expression(&mut self) -> Parse<Relation> {
        self.expect_word("expr")?;
        self.expect("(")?;
        self.identifier()?;
        self.expect(",")?;
        self.term()?;
        self.expect(")")?;
        Ok(Relation::Other)
    }

    fn columns(&mut self) -> Parse<Vec<String>> {
        self.expect("(")?;
        let columns = self.list(Self::column)?;
        self.expect(")")?;
        Ok(columns)
    }

    fn tuple_relation(&mut self) -> Parse<Relation> {
        let columns = self.columns()?;
        if self.in_operator().is_some() {
            if self.sees_marker() {
                self.marker()?;
            } else {
                self.values()?;
            }
            // IN over tuples pins no single column down.
            return Ok(Relation::Tuple { columns, op: Operator::In, values: Vec::new() });
        }
        let (op, values) = self.operator_and_values()?;
        Ok(Relation::Tuple { columns, op, values })
    }

    fn column_relation(&mut self) -> Parse<Relation> {
        let column = self.column()?;
        if self.symbol("[") || self.symbol(".") {
            let element = self.tokens[self.at - 1].is_symbol("[");
            if element {
                self.term()?;
                self.expect("]")?;
            } else {
                self.identifier()?;
            }
            self.values_after_operator()?;
            return Ok(Relation::Other);
        }
        if let Some(op) = self.in_operator() {
            if self.sees_marker() {
                let marker = self.marker()?;
                return Ok(match op {
                    Operator::In => Relation::ColumnInMarker { column, marker },
                    _ => Relation::Column { column, op, values: Vec::new() },
                });
            }
            let values = self.values()?;
            return Ok(Relation::Column { column, op, values });
        }
        let (op, values) = self.operator_and_values()?;
        Ok(Relation::Column { column, op, values })
    }

    /// What follows the element or field of a column: any operator and its values.
    pub(super) fn values_after_operator(&mut self) -> Parse<()> {
        if self.in_operator().is_none() {
            return self.operator_and_values().map(drop);
        }
        if self.sees_marker() { self.marker().map(drop) } else { self.values().map(drop) }
    }

    /// `IN` or `NOT IN`.
    pub(super) fn in_operator(&mut self) -> Option<Operator> {
        if self.word("in") {
            return Some(Operator::In);
        }
        self.words(&["not", "in"]).then_some(Operator::NotIn)
    }

    /// `()` or `(term, ...)`
    fn values(&mut self) -> Parse<Vec<Term>> {
        self.expect("(")?;
        if self.symbol(")") {
            return Ok(Vec::new());
        }
        let values = self.list(Self::term)?;
        self.expect(")")?;
        Ok(values)
    }

    /// Any operator but IN, with its right side.
    fn operator_and_values(&mut self) -> Parse<(Operator, Vec<Term>)> {
        if self.words(&["is", "not", "null"]) {
            return Ok((Operator::IsNotNull, Vec::new()));
        }
        if self.word("between") {
            let low = self.term()?;
            self.expect_word("and")?;
            return Ok((Operator::Between, vec![low, self.term()?]));
        }
        let op = self.operator()?;
        Ok((op, vec![self.term()?]))
    }

    fn operator(&mut self) -> Parse<Operator> {
        const SYMBOLS: [(&str, Operator); 6] = [
            ("=", Operator::Equal),
            ("!=", Operator::NotEqual),
            ("<", Operator::Less),
            ("<=", Operator::LessOrEqual),
            (">", Operator::Greater),
            (">=", Operator::GreaterOrEqual),
        ];
        if let Some((_, op)) = SYMBOLS.iter().find(|(symbol, _)| self.symbol(symbol)) {
            return Ok(*op);
        }
        if self.word("like") {
            return Ok(Operator::Like);
        }
        if self.word("contains") || self.words(&["not", "contains"]) {
            let _ = self.word("key");
            return Ok(Operator::Contains);
        }
        Err(NotUnderstood)
    }
}
