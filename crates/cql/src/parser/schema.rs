//! DDL, roles and permissions, LIST and DESCRIBE: what they are and what they name. Their bodies
//! are not looked into.

use super::{NotUnderstood, Parse, Parser};
use crate::syntax::{SchemaObject, SchemaStatement, SchemaVerb, Statement, TableName};

impl Parser<'_> {
    /// A statement that begins with `first` (lower case) and is no DML.
    pub(super) fn other_statement(&mut self, first: &str) -> Parse<Statement> {
        self.at += 1;
        let statement = match first {
            "create" => self.schema_change(SchemaVerb::Create)?,
            "alter" => self.schema_change(SchemaVerb::Alter)?,
            "drop" => self.schema_change(SchemaVerb::Drop)?,
            "grant" | "revoke" => Statement::Access,
            "add" if self.word("identity") => Statement::Access,
            "attach" | "detach" if self.service_level() => Statement::Access,
            "list" => Statement::List,
            "describe" | "desc" => Statement::Describe,
            _ => return Err(NotUnderstood),
        };
        self.body()?;
        Ok(statement)
    }

    /// Everything up to the end or the first semicolon.
    fn body(&mut self) -> Parse<()> {
        while self.peek().is_some_and(|token| !token.is_symbol(";")) {
            self.at += 1;
        }
        Ok(())
    }

    fn service_level(&mut self) -> bool {
        self.words(&["service", "level"]) || self.word("service_level")
    }

    fn schema_change(&mut self, verb: SchemaVerb) -> Parse<Statement> {
        if self.word("role") || self.word("user") || self.word("identity") || self.service_level() {
            return Ok(Statement::Access);
        }
        if verb == SchemaVerb::Create {
            let _ = self.words(&["or", "replace"]) || self.word("custom");
        }
        let object = self.schema_object()?;
        let _ = self.words(&["if", "not", "exists"]) || self.words(&["if", "exists"]);
        let name = match (object, verb) {
            (SchemaObject::Keyspace, _) => {
                TableName { keyspace: Some(self.identifier()?), name: String::new() }
            }
            (SchemaObject::Index, SchemaVerb::Create) | (SchemaObject::Trigger, _) => {
                if !self.sees_word("on") {
                    self.identifier()?;
                }
                self.expect_word("on")?;
                self.table_name()?
            }
            _ => self.table_name()?,
        };
        Ok(Statement::Schema(SchemaStatement { verb, object, name }))
    }

    fn schema_object(&mut self) -> Parse<SchemaObject> {
        const OBJECTS: [(&str, SchemaObject); 9] = [
            ("keyspace", SchemaObject::Keyspace),
            ("schema", SchemaObject::Keyspace),
            ("table", SchemaObject::Table),
            ("columnfamily", SchemaObject::Table),
            ("type", SchemaObject::Type),
            ("function", SchemaObject::Function),
            ("aggregate", SchemaObject::Aggregate),
            ("index", SchemaObject::Index),
            ("trigger", SchemaObject::Trigger),
        ];
        if self.words(&["materialized", "view"]) {
            return Ok(SchemaObject::View);
        }
        OBJECTS
            .iter()
            .find(|(word, _)| self.word(word))
            .map(|(_, object)| *object)
            .ok_or(NotUnderstood)
    }
}
