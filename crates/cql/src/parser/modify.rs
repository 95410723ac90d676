//! INSERT, UPDATE, DELETE and batches of them.

use super::{NotUnderstood, Parse, Parser};
use crate::lexer::Kind;
use crate::message::BatchKind;
use crate::syntax::{
    BatchText, Literal, Modification, ModificationKind, Operator, Relation, Statement, TableName,
    Term,
};

/// `USING ...`
#[derive(Default)]
struct Using {
    timestamp: Option<Term>,
    ttl: Option<Term>,
}

impl Parser<'_> {
    pub(super) fn batch(&mut self) -> Parse<Statement> {
        let (kind, timestamp) = self.batch_head()?;
        let mut modifications = Vec::new();
        while !self.words(&["apply", "batch"]) {
            modifications.push(self.modification()?);
            self.symbol(";");
        }
        Ok(Statement::Batch(BatchText { kind, modifications, timestamp }))
    }

    /// What comes before a batch's modifications: its kind, and the timestamp of all of them.
    pub(super) fn batch_head(&mut self) -> Parse<(BatchKind, Option<Term>)> {
        self.expect_word("begin")?;
        let kind = match () {
            () if self.word("unlogged") => BatchKind::Unlogged,
            () if self.word("counter") => BatchKind::Counter,
            () => BatchKind::Logged,
        };
        self.expect_word("batch")?;
        Ok((kind, self.using()?.timestamp))
    }

    pub(super) fn modification(&mut self) -> Parse<Modification> {
        match () {
            () if self.word("insert") => self.insert(),
            () if self.word("update") => self.update(),
            () if self.word("delete") => self.delete(),
            () => Err(NotUnderstood),
        }
    }

    fn insert(&mut self) -> Parse<Modification> {
        self.expect_word("into")?;
        let table = self.table_name()?;
        if self.word("json") {
            return self.insert_json(table);
        }
        self.expect("(")?;
        let columns = self.list(Self::column)?;
        self.expect(")")?;
        self.expect_word("values")?;
        self.expect("(")?;
        let values = self.list(Self::term)?;
        self.expect(")")?;
        if columns.len() != values.len() {
            return Err(NotUnderstood);
        }
        let conditional = self.words(&["if", "not", "exists"]);
        let using = self.using()?;
        let relations = columns
            .iter()
            .zip(&values)
            .map(|(column, value)| Relation::Column {
                column: column.clone(),
                op: Operator::Equal,
                values: vec![value.clone()],
            })
            .collect();
        let kind = ModificationKind::Insert;
        Ok(Modification {
            kind,
            table,
            columns,
            assigned: values,
            relations,
            json: None,
            conditional,
            timestamp: using.timestamp,
            ttl: using.ttl,
        })
    }

    fn insert_json(&mut self, table: TableName) -> Parse<Modification> {
        let document = match self.peek() {
            Some(token) if token.kind == Kind::String => {
                self.at += 1;
                Term::Literal(Literal::String(token.unquoted()))
            }
            _ => Term::Marker(self.marker()?),
        };
        if self.word("default") && !(self.word("null") || self.word("unset")) {
            return Err(NotUnderstood);
        }
        let conditional = self.words(&["if", "not", "exists"]);
        let using = self.using()?;
        Ok(Modification {
            kind: ModificationKind::InsertJson,
            table,
            columns: Vec::new(),
            assigned: Vec::new(),
            relations: Vec::new(),
            json: Some(document),
            conditional,
            timestamp: using.timestamp,
            ttl: using.ttl,
        })
    }

    fn update(&mut self) -> Parse<Modification> {
        let table = self.table_name()?;
        let using = self.using()?;
        self.expect_word("set")?;
        let (columns, assigned) = self.list(Self::assignment)?.into_iter().unzip();
        self.expect_word("where")?;
        let relations = self.relations()?;
        let conditional = self.condition()?;
        let kind = ModificationKind::Update;
        Ok(Modification {
            kind,
            table,
            columns,
            assigned,
            relations,
            json: None,
            conditional,
            timestamp: using.timestamp,
            ttl: using.ttl,
        })
    }

    fn delete(&mut self) -> Parse<Modification> {
        let columns = if self.sees_word("from") { Vec::new() } else { self.list(Self::deletion)? };
        self.expect_word("from")?;
        let table = self.table_name()?;
        let using = self.using()?;
        self.expect_word("where")?;
        let relations = self.relations()?;
        let conditional = self.condition()?;
        let kind = ModificationKind::Delete;
        Ok(Modification {
            kind,
            table,
            columns,
            assigned: Vec::new(),
            relations,
            json: None,
            conditional,
            timestamp: using.timestamp,
            ttl: using.ttl,
        })
    }

    /// `column`, `column[key]` or `column.field` of a DELETE.
    fn deletion(&mut self) -> Parse<String> {
        let column = self.column()?;
        if self.symbol("[") {
            self.term()?;
            self.expect("]")?;
        } else if self.symbol(".") {
            self.identifier()?;
        }
        Ok(column)
    }

    /// One assignment of a SET; the column assigned, and what to, see [`Modification::assigned`].
    fn assignment(&mut self) -> Parse<(String, Term)> {
        let column = self.column()?;
        let mut value = Term::Complex;
        if self.symbol("[") {
            self.term()?;
            self.expect("]")?;
            self.expect("=")?;
            self.term()?;
        } else if self.symbol(".") {
            self.identifier()?;
            self.expect("=")?;
            self.term()?;
        } else if self.symbol("+=") || self.symbol("-=") {
            self.term()?;
        } else {
            self.expect("=")?;
            value = self.assigned(&column)?;
        }
        Ok((column, value))
    }

    /// `value`, `value + column`, `column + value`, `column - value`, and `column -3`, whose minus
    /// is the number's.
    fn assigned(&mut self, target: &str) -> Parse<Term> {
        let from_column = self.attempt(|p| {
            let same = p.column()? == target;
            let integer = p.peek().is_some_and(|token| token.kind == Kind::Integer);
            if integer {
                p.at += 1;
            } else if p.symbol("+") || p.symbol("-") {
                p.term()?;
            } else {
                return Err(NotUnderstood);
            }
            if same { Ok(()) } else { Err(NotUnderstood) }
        });
        if from_column.is_some() {
            return Ok(Term::Complex);
        }
        let term = self.term()?;
        if !self.symbol("+") {
            return Ok(term);
        }
        if self.column()? == target { Ok(Term::Complex) } else { Err(NotUnderstood) }
    }

    /// `[IF EXISTS | IF condition AND ...]`
    fn condition(&mut self) -> Parse<bool> {
        if !self.word("if") {
            return Ok(false);
        }
        if self.sees_word("exists")
            && self.peek_second().is_none_or(|next| !is_operator_start(&next))
        {
            self.at += 1;
            return Ok(true);
        }
        loop {
            self.column()?;
            if self.symbol("[") {
                self.term()?;
                self.expect("]")?;
            } else if self.symbol(".") {
                self.identifier()?;
            }
            self.values_after_operator()?;
            if !self.word("and") {
                return Ok(true);
            }
        }
    }

    fn using(&mut self) -> Parse<Using> {
        let mut using = Using::default();
        if !self.word("using") {
            return Ok(using);
        }
        loop {
            match () {
                () if self.word("timestamp") => using.timestamp = Some(self.integer()?),
                () if self.word("ttl") => using.ttl = Some(self.integer()?),
                () if self.word("timeout") => self.term().map(drop)?,
                () => return Err(NotUnderstood),
            }
            if !self.word("and") {
                return Ok(using);
            }
        }
    }
}

/// Whether a column named `exists` is compared, rather than existence asked.
fn is_operator_start(token: &crate::lexer::Token) -> bool {
    ["=", "!=", "<", "<=", ">", ">=", "[", "."].iter().any(|symbol| token.is_symbol(symbol))
        || ["in", "contains", "not"].iter().any(|word| token.is_word(word))
}
