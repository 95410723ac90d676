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

    /// `gc_grace_seconds = 1` or `tombstone_gc = {...}`
    pub(super) fn table_option(&mut self) -> Parsed<TableOption> {
        if self.word("tombstone_gc") {
            return Ok(TableOption::TombstoneGc(self.options()?));
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
