//! The CQL that the fake understands.

mod options;

use super::{
    refusal::Refusal,
    statement::{Assignment, Condition, Item, Modify, ModifyKind, Name, Range, Statement},
    term::Term,
};

#[derive(Clone, Debug, PartialEq)]
enum Token {
    /// Unquoted, in lower case.
    Word(String),
    Quoted(String),
    Text(String),
    Number(String),
    Blob(Vec<u8>),
    Uuid([u8; 16]),
    Mark,
    Symbol(char),
}

/// Parses one statement.
pub fn parse(text: &str) -> Result<Statement, Refusal> {
    let mut parser = Parser { tokens: lex(text)?, position: 0, markers: 0 };
    let statement = parser.statement()?;
    parser.symbol(';');
    if parser.position < parser.tokens.len() {
        return Err(Refusal::syntax(format!(
            "the fake backend does not understand the end of: {text}"
        )));
    }
    Ok(statement)
}

fn lex(text: &str) -> Result<Vec<Token>, Refusal> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let take = |end: usize| rest.split_at(end);
        if c.is_ascii_whitespace() {
            rest = &rest[1..];
        } else if let Some(uuid) = rest.get(..36).and_then(uuid) {
            tokens.push(Token::Uuid(uuid));
            rest = &rest[36..];
        } else if c == '\'' || c == '"' {
            let (value, after) =
                quoted(&rest[1..], c).ok_or_else(|| Refusal::syntax("unclosed quote"))?;
            tokens.push(if c == '"' { Token::Quoted(value) } else { Token::Text(value) });
            rest = after;
        } else if c.is_ascii_alphabetic() || c == '_' {
            let end =
                rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(rest.len());
            let (word, after) = take(end);
            tokens.push(Token::Word(word.to_ascii_lowercase()));
            rest = after;
        } else if rest.starts_with("0x") {
            let end =
                rest[2..].find(|c: char| !c.is_ascii_hexdigit()).map_or(rest.len(), |e| e + 2);
            let (digits, after) = take(end);
            tokens.push(Token::Blob(
                hex(&digits[2..]).ok_or_else(|| Refusal::syntax("odd number of hex digits"))?,
            ));
            rest = after;
        } else if c.is_ascii_digit()
            || (c == '-' && rest[1..].starts_with(|c: char| c.is_ascii_digit()))
        {
            let end = rest[1..]
                .find(|c: char| !c.is_ascii_digit() && c != '.')
                .map_or(rest.len(), |e| e + 1);
            let (number, after) = take(end);
            tokens.push(Token::Number(number.to_owned()));
            rest = after;
        } else if c.is_ascii() {
            tokens.push(if c == '?' { Token::Mark } else { Token::Symbol(c) });
            rest = &rest[1..];
        } else {
            return Err(Refusal::syntax(format!("unexpected {c:?}")));
        }
    }
    Ok(tokens)
}

fn quoted(text: &str, quote: char) -> Option<(String, &str)> {
    let mut value = String::new();
    let mut chars = text.char_indices().peekable();
    while let Some((i, c)) = chars.next() {
        if c != quote {
            value.push(c);
        } else if chars.peek().is_some_and(|(_, next)| *next == quote) {
            value.push(quote);
            chars.next();
        } else {
            return Some((value, &text[i + 1..]));
        }
    }
    None
}

fn hex(digits: &str) -> Option<Vec<u8>> {
    if digits.len() % 2 == 1 {
        return None;
    }
    (0..digits.len()).step_by(2).map(|i| u8::from_str_radix(&digits[i..i + 2], 16).ok()).collect()
}

fn uuid(text: &str) -> Option<[u8; 16]> {
    let dashes =
        text.bytes().enumerate().all(|(i, b)| (b == b'-') == matches!(i, 8 | 13 | 18 | 23));
    let digits: String = text.chars().filter(|c| *c != '-').collect();
    if dashes && digits.len() == 32 { hex(&digits)?.try_into().ok() } else { None }
}

struct Parser {
    tokens: Vec<Token>,
    position: usize,
    markers: usize,
}

type Parsed<T> = Result<T, Refusal>;

impl Parser {
    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.position)
    }

    fn word(&mut self, word: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Word(w)) if w == word);
        self.position += usize::from(found);
        found
    }

    fn symbol(&mut self, symbol: char) -> bool {
        let found = self.peek() == Some(&Token::Symbol(symbol));
        self.position += usize::from(found);
        found
    }

    fn expect(&mut self, what: &str) -> Parsed<()> {
        let found = match what.chars().next() {
            Some(c) if !c.is_ascii_alphabetic() => self.symbol(c),
            _ => self.word(what),
        };
        if found {
            Ok(())
        } else {
            Err(Refusal::syntax(format!("expected {what}, found {:?}", self.peek())))
        }
    }

    fn name(&mut self) -> Parsed<String> {
        let name = match self.peek() {
            Some(Token::Word(w)) => w.clone(),
            Some(Token::Quoted(q)) => q.clone(),
            other => return Err(Refusal::syntax(format!("expected a name, found {other:?}"))),
        };
        self.position += 1;
        Ok(name)
    }

    fn table(&mut self) -> Parsed<Name> {
        let first = self.name()?;
        if self.symbol('.') {
            Ok(Name { keyspace: Some(first), table: self.name()? })
        } else {
            Ok(Name { keyspace: None, table: first })
        }
    }

    fn list<T>(&mut self, mut each: impl FnMut(&mut Self) -> Parsed<T>) -> Parsed<Vec<T>> {
        let mut list = vec![each(self)?];
        while self.symbol(',') {
            list.push(each(self)?);
        }
        Ok(list)
    }

    fn term(&mut self) -> Parsed<Term> {
        let term = match self.peek().cloned() {
            Some(Token::Mark) => {
                self.markers += 1;
                Term::Marker(self.markers - 1)
            }
            Some(Token::Text(t)) => Term::Text(t),
            Some(Token::Number(n)) => Term::Number(n),
            Some(Token::Blob(b)) => Term::Blob(b),
            Some(Token::Uuid(u)) => Term::Uuid(u),
            Some(Token::Word(w)) if w == "null" => Term::Null,
            Some(Token::Word(w)) if w == "true" || w == "false" => Term::Boolean(w == "true"),
            Some(Token::Word(w)) if w == "uuid" || w == "now" => {
                self.position += 1;
                self.expect("(")?;
                self.expect(")")?;
                return Ok(Term::Made);
            }
            other => {
                return Err(Refusal::syntax(format!(
                    "the fake backend knows no value like {other:?}"
                )));
            }
        };
        self.position += 1;
        Ok(term)
    }

    fn equation(&mut self) -> Parsed<Assignment> {
        let column = self.name()?;
        self.expect("=")?;
        Ok((column, self.term()?))
    }

    fn equations(&mut self) -> Parsed<Vec<Assignment>> {
        let mut all = vec![self.equation()?];
        while self.word("and") {
            all.push(self.equation()?);
        }
        Ok(all)
    }

    /// `column = term`, `column IN ?` or `column IN (term, ...)`, joined by AND.
    fn keys(&mut self) -> Parsed<Vec<Assignment>> {
        let mut all = Vec::new();
        loop {
            let column = self.name()?;
            let term = match self.word("in") {
                false => {
                    self.expect("=")?;
                    self.term()?
                }
                true => self.among()?,
            };
            all.push((column, term));
            if !self.word("and") {
                return Ok(all);
            }
        }
    }

    /// `?` or `(term, ...)` behind `IN`.
    fn among(&mut self) -> Parsed<Term> {
        if self.symbol('(') {
            let terms = self.list(Self::term)?;
            self.expect(")")?;
            return Ok(Term::Each(terms));
        }
        match self.term()? {
            Term::Marker(marker) => Ok(Term::Elements(marker)),
            _ => Err(Refusal::syntax("IN takes a marker or a list")),
        }
    }

    fn statement(&mut self) -> Parsed<Statement> {
        if self.word("select") {
            self.select()
        } else if self.word("create") {
            if self.word("keyspace") { self.create_keyspace() } else { self.create_table() }
        } else if self.word("drop") {
            let keyspace = self.word("keyspace");
            if !keyspace {
                self.expect("table")?;
            }
            let if_exists = self.word("if") && self.word("exists");
            let name = self.table()?;
            Ok(Statement::Drop { keyspace, name, if_exists })
        } else if self.word("alter") {
            if self.word("keyspace") {
                let name = self.name()?;
                return Ok(Statement::AlterKeyspace { name, replication: self.replication()? });
            }
            self.expect("table")?;
            let name = self.table()?;
            if self.word("with") {
                return Ok(Statement::SetOptions { name, options: self.table_options()? });
            }
            self.expect("add")?;
            let column = (self.name()?, self.type_name()?);
            Ok(Statement::AddColumn { name, column })
        } else if self.word("truncate") {
            self.word("table");
            Ok(Statement::Truncate(self.table()?))
        } else if self.word("use") {
            Ok(Statement::Use(self.name()?))
        } else if self.word("begin") {
            let _ = self.word("unlogged") || self.word("logged");
            self.expect("batch")?;
            let mut all = Vec::new();
            while !self.word("apply") {
                all.push(self.modify()?);
                self.symbol(';');
            }
            self.expect("batch")?;
            Ok(Statement::Batch(all))
        } else {
            Ok(Statement::Modify(self.modify()?))
        }
    }

    fn if_not_exists(&mut self) -> Parsed<bool> {
        if !self.word("if") {
            return Ok(false);
        }
        self.expect("not")?;
        self.expect("exists")?;
        Ok(true)
    }

    fn create_keyspace(&mut self) -> Parsed<Statement> {
        let if_not_exists = self.if_not_exists()?;
        let name = self.name()?;
        let replication = self.replication()?;
        Ok(Statement::CreateKeyspace { name, if_not_exists, replication })
    }

    fn create_table(&mut self) -> Parsed<Statement> {
        self.expect("table")?;
        let if_not_exists = self.if_not_exists()?;
        let name = self.table()?;
        let (mut columns, mut partition, mut clustering) = (Vec::new(), Vec::new(), Vec::new());
        self.expect("(")?;
        loop {
            if self.word("primary") {
                self.expect("key")?;
                self.expect("(")?;
                if self.symbol('(') {
                    partition = self.list(Self::name)?;
                    self.expect(")")?;
                } else {
                    partition = vec![self.name()?];
                }
                if self.symbol(',') {
                    clustering = self.list(Self::name)?;
                }
                self.expect(")")?;
            } else {
                let column = self.name()?;
                columns.push((column.clone(), self.type_name()?));
                if self.word("primary") {
                    self.expect("key")?;
                    partition = vec![column];
                }
            }
            if !self.symbol(',') {
                break;
            }
        }
        self.expect(")")?;
        if self.word("with") {
            // Accepted, but rows stay in ascending order, and the schema says so: who wants another
            // order asks for it.
            self.expect("clustering")?;
            self.expect("order")?;
            self.expect("by")?;
            self.expect("(")?;
            self.orders()?;
            self.expect(")")?;
        }
        Ok(Statement::CreateTable { name, if_not_exists, columns, partition, clustering })
    }

    fn type_name(&mut self) -> Parsed<String> {
        let mut name = self.name()?;
        if self.symbol('<') {
            let inner = self.list(Self::type_name)?;
            self.expect(">")?;
            name = format!("{name}<{}>", inner.join(", "));
        }
        Ok(name)
    }

    fn select(&mut self) -> Parsed<Statement> {
        let items = if self.symbol('*') { vec![Item::All] } else { self.list(Self::item)? };
        self.expect("from")?;
        let table = self.table()?;
        let (key, ranges) = if self.word("where") { self.relations()? } else { Default::default() };
        let reversed = self.word("order") && self.reversed()?;
        let mut per_partition_limit = None;
        if self.word("per") {
            self.expect("partition")?;
            self.expect("limit")?;
            per_partition_limit = Some(self.term()?);
        }
        let limit = if self.word("limit") { Some(self.term()?) } else { None };
        if self.word("allow") {
            self.expect("filtering")?;
        }
        Ok(Statement::Select { table, items, key, ranges, reversed, limit, per_partition_limit })
    }

    /// `column = term`, `column IN ...` and `column < term`, joined by AND.
    fn relations(&mut self) -> Parsed<(Vec<Assignment>, Vec<Range>)> {
        let (mut key, mut ranges) = (Vec::new(), Vec::new());
        loop {
            let column = self.name()?;
            if self.word("in") {
                key.push((column, self.among()?));
            } else {
                let (upper, lower) = (self.symbol('<'), self.symbol('>'));
                let inclusive = self.symbol('=');
                let bound = self.term()?;
                match upper || lower {
                    true => ranges.push(Range { column, upper, inclusive, bound }),
                    false if inclusive => key.push((column, bound)),
                    false => return Err(Refusal::invalid(format!("no relation of {column}"))),
                }
            }
            if !self.word("and") {
                return Ok((key, ranges));
            }
        }
    }

    /// `BY column DESC, ...`
    fn reversed(&mut self) -> Parsed<bool> {
        self.expect("by")?;
        Ok(self.orders()?.contains(&true))
    }

    /// `column DESC, ...`: which are reversed.
    fn orders(&mut self) -> Parsed<Vec<bool>> {
        self.list(|p| {
            p.name()?;
            Ok(!p.word("asc") && p.word("desc"))
        })
    }

    fn item(&mut self) -> Parsed<Item> {
        let quoted = matches!(self.peek(), Some(Token::Quoted(_)));
        let name = self.name()?;
        if quoted || !self.symbol('(') {
            return Ok(Item::Column(name));
        }
        let item = match name.as_str() {
            "count" => {
                self.expect("*")?;
                Item::Count
            }
            "writetime" => Item::WriteTime(self.name()?),
            "ttl" => Item::Ttl(self.name()?),
            "tounixtimestamp" => {
                ["now", "(", ")", ")", "as"].iter().try_for_each(|part| self.expect(part))?;
                return Ok(Item::Now(self.name()?));
            }
            other => return Err(Refusal::invalid(format!("Unknown function '{other}'"))),
        };
        self.expect(")")?;
        Ok(item)
    }

    fn using(&mut self, modify: &mut Modify) -> Parsed<()> {
        if !self.word("using") {
            return Ok(());
        }
        loop {
            if self.word("ttl") {
                modify.ttl = Some(self.term()?);
            } else {
                self.expect("timestamp")?;
                modify.timestamp = Some(self.term()?);
            }
            if !self.word("and") {
                return Ok(());
            }
        }
    }

    /// `(column, ...) VALUES (term, ...)`
    fn columns_and_values(&mut self) -> Parsed<Vec<Assignment>> {
        self.expect("(")?;
        let names = self.list(Self::name)?;
        self.expect(")")?;
        self.expect("values")?;
        self.expect("(")?;
        let terms = self.list(Self::term)?;
        self.expect(")")?;
        if names.len() != terms.len() {
            return Err(Refusal::invalid("Unmatched column names/values"));
        }
        Ok(names.into_iter().zip(terms).collect())
    }

    fn modify(&mut self) -> Parsed<Modify> {
        let empty = |table, kind| Modify {
            table,
            kind,
            sets: Vec::new(),
            key: Vec::new(),
            json: None,
            condition: Condition::None,
            ttl: None,
            timestamp: None,
        };
        let mut modify;
        if self.word("insert") {
            self.expect("into")?;
            modify = empty(self.table()?, ModifyKind::Insert);
            match self.word("json") {
                true => modify.json = Some(self.term()?),
                false => modify.sets = self.columns_and_values()?,
            }
            if self.if_not_exists()? {
                modify.condition = Condition::NotExists;
            }
            self.using(&mut modify)?;
            return Ok(modify);
        }
        if self.word("update") {
            modify = empty(self.table()?, ModifyKind::Update);
            self.using(&mut modify)?;
            self.expect("set")?;
            modify.sets = self.list(Self::equation)?;
        } else if self.word("delete") {
            let columns = if matches!(self.peek(), Some(Token::Word(w)) if w == "from") {
                Vec::new()
            } else {
                self.list(Self::name)?
            };
            self.expect("from")?;
            modify = empty(self.table()?, ModifyKind::Delete);
            modify.sets = columns.into_iter().map(|c| (c, Term::Null)).collect();
            self.using(&mut modify)?;
        } else {
            return Err(Refusal::syntax(format!(
                "the fake backend knows no statement like {:?}",
                self.peek()
            )));
        }
        self.expect("where")?;
        modify.key = self.keys()?;
        if self.word("if") {
            modify.condition = if self.word("exists") {
                Condition::Exists
            } else {
                Condition::Equal(self.equations()?)
            };
        }
        Ok(modify)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_values_and_markers_are_told_apart() {
        let Ok(Statement::Modify(m)) = parse(
            "UPDATE \"Ks\".t USING TTL 9 SET A = ?, b = 'it''s', c = 0xCAFE WHERE k = ? IF a = null;",
        ) else {
            panic!()
        };
        assert_eq!(m.table, Name { keyspace: Some("Ks".into()), table: "t".into() });
        assert_eq!(m.sets[0], ("a".into(), Term::Marker(0)));
        assert_eq!(m.sets[1].1, Term::Text("it's".into()));
        assert_eq!(m.sets[2].1, Term::Blob(vec![0xCA, 0xFE]));
        assert_eq!(m.key, [("k".into(), Term::Marker(1))]);
        assert_eq!(m.condition, Condition::Equal(vec![("a".into(), Term::Null)]));
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for text in [
            "SELECT a FROM t WHERE k IN (1, 2",
            "GRANT ALL TO x",
            "SELECT a FROM t WHERE k = 1 garbage",
            "INSERT INTO t (a) VALUES ('x",
        ] {
            assert!(parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_conditional_batch_is_all_its_statements() {
        let me = "0123abcd-0000-4000-8000-000000000001";
        let text = format!(
            "BEGIN BATCH INSERT INTO afterglow.lease (scope, epoch, last_owner) VALUES ('cql', 1, {me}) IF NOT EXISTS; \
             UPDATE afterglow.lease USING TTL 30 SET owner = {me} WHERE scope = 'cql'; APPLY BATCH"
        );
        let Ok(Statement::Batch(all)) = parse(&text) else { panic!() };
        assert_eq!(all.len(), 2);
        assert_eq!(all[0].condition, Condition::NotExists);
    }
}
