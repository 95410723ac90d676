//! Definitions of tables, as `DESCRIBE` writes them: what planning needs of them, and nothing else.

use uuid::Uuid;

use super::{NotUnderstood, Parse, Parser};
use crate::lexer::{self, Kind};
use crate::plan::{Column, TableSchema};
use crate::syntax::TableName;

/// Why a script is not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum DefinitionError {
    /// Not even words.
    #[error("this is no CQL: {0:?}")]
    Text(String),
    /// A statement that is not understood.
    #[error("not understood: {0:?}")]
    Statement(String),
    /// A name without keyspace, and none is in use.
    #[error("{0:?} needs a keyspace: write `keyspace.{0}`, or `USE keyspace;` before it")]
    Keyspace(String),
}

/// The tables and views that a script of `CREATE` statements defines; names without keyspace are in
/// `keyspace` until a `USE` says otherwise. Statements that make no table (types, functions, roles)
/// are passed over. Whether the database tells write times of collections is not in a script: it is
/// assumed.
///
/// # Errors
/// The first statement that is not understood.
pub fn tables(script: &str, keyspace: Option<&str>) -> Result<Vec<TableSchema>, DefinitionError> {
    // The last line may lack its end, which a comment needs.
    let script = format!("{script}\n");
    let tokens =
        lexer::tokens(&script).map_err(|broken| DefinitionError::Text(short(broken.rest)))?;
    let mut keyspace = keyspace.map(str::to_owned);
    let mut tables: Vec<TableSchema> = Vec::new();
    for statement in
        tokens.split(|token| token.is_symbol(";")).filter(|statement| !statement.is_empty())
    {
        let text =
            || short(&statement.iter().map(|token| token.text).collect::<Vec<_>>().join(" "));
        let parsed =
            Parser::new(statement).definition().map_err(|_| DefinitionError::Statement(text()))?;
        let place = |name: &TableName, keyspace: &Option<String>| {
            let keyspace = name.keyspace.clone().or(keyspace.clone());
            keyspace.ok_or_else(|| DefinitionError::Keyspace(name.name.clone()))
        };
        match parsed {
            Definition::Use(name) => keyspace = Some(name),
            Definition::Other => {}
            Definition::Table(name, mut table) => {
                table.keyspace = place(&name, &keyspace)?;
                table.name = name.name;
                table.id = Uuid::from_u128(tables.len() as u128 + 1);
                tables.push(*table);
            }
            Definition::Index(name) => {
                let keyspace = place(&name, &keyspace)?;
                let indexed = |table: &&mut TableSchema| {
                    (&table.keyspace, &table.name) == (&keyspace, &name.name)
                };
                tables.iter_mut().filter(indexed).for_each(|table| table.indexed = true);
            }
        }
    }
    Ok(tables)
}

fn short(text: &str) -> String {
    const LONGEST: usize = 60;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.trim_end().to_owned(),
    }
}

/// Names of the partition key's columns, and of the clustering columns.
type Keys = (Vec<String>, Vec<String>);

enum Definition {
    Use(String),
    Table(TableName, Box<TableSchema>),
    Index(TableName),
    Other,
}

impl Parser<'_> {
    fn definition(&mut self) -> Parse<Definition> {
        if self.word("use") {
            return self.identifier().map(Definition::Use);
        }
        self.expect_word("create")?;
        let _ = self.word("custom");
        if self.word("table") || self.word("columnfamily") {
            return self.table_definition();
        }
        if self.words(&["materialized", "view"]) {
            let _ = self.words(&["if", "not", "exists"]);
            let view = TableSchema { view: true, ..empty() };
            return Ok(Definition::Table(self.table_name()?, Box::new(view)));
        }
        if self.word("index") {
            let _ = self.words(&["if", "not", "exists"]);
            if !self.sees_word("on") {
                self.identifier()?;
            }
            self.expect_word("on")?;
            return self.table_name().map(Definition::Index);
        }
        Ok(Definition::Other)
    }

    fn table_definition(&mut self) -> Parse<Definition> {
        let _ = self.words(&["if", "not", "exists"]);
        let name = self.table_name()?;
        let mut table = empty();
        let (mut keys, mut columns) = (None, Vec::new());
        self.expect("(")?;
        loop {
            if self.words(&["primary", "key"]) {
                keys = Some(self.primary_key()?);
            } else {
                columns.push(self.column_definition(&mut keys)?);
            }
            if !self.symbol(",") {
                break;
            }
        }
        self.expect(")")?;
        let (partition, clustering) = keys.ok_or(NotUnderstood)?;
        let mut take = |names: Vec<String>| {
            names
                .into_iter()
                .map(|name| {
                    let at = columns.iter().position(|(column, _)| column.name == name);
                    at.map(|at| columns.remove(at).0).ok_or(NotUnderstood)
                })
                .collect::<Parse<Vec<_>>>()
        };
        (table.partition_key, table.clustering) = (take(partition)?, take(clustering)?);
        for (column, is_static) in columns {
            if is_static { table.statics.push(column) } else { table.regulars.push(column) }
        }
        table.sort_values();
        table.counter = table.regulars.iter().any(|column| column.cql_type == "counter");
        self.table_options(&mut table)?;
        Ok(Definition::Table(name, Box::new(table)))
    }

    /// `name type [STATIC] [MASKED WITH ...] [PRIMARY KEY]`; whether it is static.
    fn column_definition(&mut self, keys: &mut Option<Keys>) -> Parse<(Column, bool)> {
        let name = self.column()?;
        let start = self.at;
        self.type_name()?;
        let mut cql_type = String::new();
        for token in &self.tokens[start..self.at] {
            cql_type += &if token.kind == Kind::Word {
                token.text.to_ascii_lowercase()
            } else {
                token.text.to_owned()
            };
            if token.is_symbol(",") {
                cql_type.push(' ');
            }
        }
        let mut column = Column::new(name.clone(), cql_type);
        let mut is_static = false;
        loop {
            if self.word("static") {
                is_static = true;
            } else if self.words(&["primary", "key"]) {
                *keys = Some((vec![name.clone()], Vec::new()));
            } else if self.words(&["masked", "with"]) {
                column.masked = true;
                self.skip_call()?;
            } else {
                return Ok((column, is_static));
            }
        }
    }

    /// `DEFAULT`, or `function(arguments)`.
    fn skip_call(&mut self) -> Parse<()> {
        self.next()?;
        while self.symbol(".") {
            self.next()?;
        }
        if self.symbol("(") {
            let mut open = 1;
            while open > 0 {
                let token = self.next()?;
                open += i32::from(token.is_symbol("(")) - i32::from(token.is_symbol(")"));
            }
        }
        Ok(())
    }

    /// `((a, b), c, d)`, `(a, c)`
    fn primary_key(&mut self) -> Parse<Keys> {
        self.expect("(")?;
        let partition = match self.symbol("(") {
            true => {
                let names = self.list(Self::column)?;
                self.expect(")")?;
                names
            }
            false => vec![self.column()?],
        };
        let clustering = if self.symbol(",") { self.list(Self::column)? } else { Vec::new() };
        self.expect(")")?;
        Ok((partition, clustering))
    }

    /// `(a ASC, b DESC)`
    fn clustering_order(&mut self, table: &mut TableSchema) -> Parse<()> {
        self.expect("(")?;
        let order = self.list(|p| {
            let name = p.column()?;
            Ok((name, !p.word("asc") && p.word("desc")))
        })?;
        self.expect(")")?;
        for (name, descending) in order {
            let column = table.clustering.iter_mut().find(|column| column.name == name);
            column.ok_or(NotUnderstood)?.descending = descending;
        }
        Ok(())
    }

    /// `WITH ...`: only what matters is looked for.
    fn table_options(&mut self, table: &mut TableSchema) -> Parse<()> {
        while self.at < self.tokens.len() {
            if self.words(&["compact", "storage"]) {
                table.compact = true;
            } else if self.words(&["clustering", "order", "by"]) {
                self.clustering_order(table)?;
            } else if self.word("default_time_to_live") {
                self.expect("=")?;
                table.default_ttl = self.next()?.text.parse().map_err(|_| NotUnderstood)?;
            } else {
                self.at += 1;
            }
        }
        Ok(())
    }
}

/// A table whose name is not known yet.
fn empty() -> TableSchema {
    TableSchema::new(String::new(), String::new(), Uuid::nil())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_describe_writes_is_what_the_database_knows() {
        let script = "
            CREATE KEYSPACE shop
                WITH replication = {'class': 'SimpleStrategy', 'replication_factor': '3'};
            CREATE TYPE shop.address (street text, no int); -- passed over
            USE shop;
            CREATE TABLE items (
                \"Shop\" int, id uuid, at timestamp, s text static, z frozen<map<text, list<int>>>,
                a address, v vector<float, 3>, secret text MASKED WITH mask_inner(1, null),
                PRIMARY KEY ((\"Shop\", id), at)
            ) WITH CLUSTERING ORDER BY (at DESC) AND default_time_to_live = 60 AND comment = 'x; y';
            CREATE INDEX ON items (z);
            CREATE TABLE IF NOT EXISTS other.hits (k text PRIMARY KEY, n counter)
                WITH COMPACT STORAGE;
            CREATE MATERIALIZED VIEW by_z
                AS SELECT * FROM items WHERE z IS NOT NULL PRIMARY KEY (z, id)";
        let [items, hits, view] = tables(script, None).unwrap().try_into().unwrap();
        let named = |columns: &[Column]| -> Vec<String> {
            columns.iter().map(|column| format!("{} {}", column.name, column.cql_type)).collect()
        };
        assert_eq!((&*items.keyspace, &*items.name), ("shop", "items"));
        assert_eq!(named(&items.partition_key), ["Shop int", "id uuid"]);
        assert_eq!(named(&items.clustering), ["at timestamp"]);
        assert!(items.clustering[0].descending && !items.partition_key[0].descending);
        assert_eq!(named(&items.statics), ["s text"]);
        assert_eq!(
            named(&items.regulars),
            ["a address", "secret text", "v vector<float, 3>", "z frozen<map<text, list<int>>>"]
        );
        assert!(
            items.indexed && items.regulars[1].masked && items.default_ttl == 60 && !items.compact
        );
        assert_eq!((&*hits.keyspace, hits.counter, hits.compact), ("other", true, true));
        assert!(view.view && view.keyspace == "shop");
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = |script: &str| tables(script, None).unwrap_err();
        assert_eq!(
            error("CREATE TABLE t (k int PRIMARY KEY)"),
            DefinitionError::Keyspace("t".into())
        );
        assert!(matches!(error("CREATE TABLE k.t (k int)"), DefinitionError::Statement(_)));
        assert!(matches!(
            error("CREATE TABLE k.t (k int, PRIMARY KEY (x))"),
            DefinitionError::Statement(_)
        ));
        assert!(matches!(error("SELECT 1; x"), DefinitionError::Statement(_)));
        assert!(matches!(
            error("CREATE TABLE k.t (k int PRIMARY KEY) WITH comment = 'x"),
            DefinitionError::Text(_)
        ));
        assert_eq!(tables(" ;; ", None), Ok(vec![]));
    }
}
