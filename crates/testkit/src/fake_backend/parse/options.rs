//! Options of keyspaces and tables.

use super::{Parsed, Parser};
use crate::fake_backend::{refusal::Refusal, statement::TableOption, term::Term};

impl Parser {
    /// `WITH replication = {...}`
    pub(super) fn replication(&mut self) -> Parsed<Vec<(String, String)>> {
        self.expect("with")?;
        self.expect("replication")?;
        self.options()
    }

    /// Options of a table with AND between them.
    pub(super) fn table_options(&mut self) -> Parsed<Vec<TableOption>> {
        let mut options = vec![self.table_option()?];
        while self.word("and") {
            options.push(self.table_option()?);
        }
        Ok(options)
    }

    /// `gc_grace_seconds = 1`, `tombstone_gc = {...}`, or one about files.
    fn table_option(&mut self) -> Parsed<TableOption> {
        if self.word("tombstone_gc") {
            return Ok(TableOption::TombstoneGc(self.options()?));
        }
        if self.word("compaction") {
            self.options()?;
            return Ok(TableOption::OfFiles);
        }
        if self.word("memtable_flush_period_in_ms") {
            self.expect("=")?;
            self.term()?;
            return Ok(TableOption::OfFiles);
        }
        self.expect("gc_grace_seconds")?;
        self.expect("=")?;
        let seconds = match self.term()? {
            Term::Number(digits) => digits.parse().ok(),
            _ => None,
        };
        let seconds = seconds.ok_or_else(|| Refusal::syntax("gc_grace_seconds is an int"))?;
        Ok(TableOption::GcGraceSeconds(seconds))
    }

    /// `= {...}`
    fn options(&mut self) -> Parsed<Vec<(String, String)>> {
        self.expect("=")?;
        self.expect("{")?;
        let options = self.list(|p| {
            let key = p.term()?;
            p.expect(":")?;
            match (key, p.term()?) {
                (Term::Text(k), Term::Text(v) | Term::Number(v)) => Ok((k, v)),
                _ => Err(Refusal::syntax("options are texts")),
            }
        })?;
        self.expect("}")?;
        Ok(options)
    }
}
