//! Why a read is not cached, and what would change that, in words for people.

use super::{NotCacheable, PassReason};

/// Where there is no remedy.
const NOTHING: &str = "  nothing would change that: the database alone can answer it\n";

impl PassReason {
    /// A line with the reason, and one with what would change it.
    pub(super) fn explain(self) -> String {
        let remedy = self.remedy();
        let remedy = remedy.map_or(NOTHING.into(), |what| format!("  to have it cached: {what}\n"));
        format!("passed through: {}\n{remedy}", self.why())
    }

    /// The reason as the end of a sentence.
    fn why(self) -> &'static str {
        match self {
            PassReason::NotUnderstood => "it reads, but is not understood",
            PassReason::List => "LIST reads roles and permissions, which are not cached",
            PassReason::Describe => "DESCRIBE is the database's to answer",
            PassReason::Keyspaces => NotCacheable::SystemTable.why(),
            PassReason::UnknownTable => {
                "the table is not in the schema, or it is not said in which keyspace it is"
            }
            PassReason::NotCacheable(reason) => reason.why(),
            PassReason::UnknownColumn => "the table has no such column",
            PassReason::NotOneRow => {
                "only reads of one row, of a slice of one partition or of rows of several partitions are cached"
            }
            PassReason::StaticColumns => {
                "slices of tables with static columns are not cached: a partition of static values alone shows as a row"
            }
            PassReason::UnknownOrder => {
                "the order of the values of a key column's type is not certain"
            }
            PassReason::Expression => {
                "only plain columns are cached, no functions, casts, elements or literals"
            }
            PassReason::UncertainLiteral => {
                "a value of the key can be written in several ways, and which bytes the database makes of it is not certain"
            }
            PassReason::Json => "SELECT JSON is not cached",
            PassReason::Distinct => "SELECT DISTINCT is not cached",
            PassReason::Clause => {
                "GROUP BY, ALLOW FILTERING, limits that are not positive, and ORDER BY other than the clustering order and its reverse are not cached; nor is count(*) with a limit or an order, nor an order of single rows"
            }
            PassReason::Bypass => "it asks to bypass the cache, or for a timeout of its own",
            PassReason::OutdatedSchema => "the schema has changed and is being read again",
            PassReason::UncertainBinds => "the database counts other markers than it has",
        }
    }

    /// What would have it cached; `None` if nothing would.
    fn remedy(self) -> Option<&'static str> {
        Some(match self {
            PassReason::List | PassReason::Describe | PassReason::Keyspaces => return None,
            PassReason::NotCacheable(reason) => return reason.remedy(),
            PassReason::NotUnderstood => {
                "select columns with `=`, `IN`, `<`, `<=`, `>` or `>=` for single columns of the key"
            }
            PassReason::UnknownTable => {
                "say its keyspace in the statement, with USE, or to `explain` with --keyspace; give `explain` the schema with --schema or --backend"
            }
            PassReason::UnknownColumn => {
                "name columns that the table has: the database refuses others"
            }
            PassReason::NotOneRow => {
                "give one `=` for each column of the partition key, then `=` or `IN` for the first clustering columns or a range of the next; or the whole primary key, with `IN` for columns of the partition key. A range goes without `IN`, and a read of static columns with a regular one"
            }
            PassReason::StaticColumns => {
                "read single rows by their whole primary key, or keep what is static in a table of its own"
            }
            PassReason::UnknownOrder => {
                "read single rows, with `=` for each column of the primary key"
            }
            PassReason::Expression => {
                "name plain columns and bind the values of the key; compute the rest in the client"
            }
            PassReason::UncertainLiteral => "bind the value",
            PassReason::Json => "name columns, and make JSON of them in the client",
            PassReason::Distinct => {
                "of a known partition, read one row by its whole primary key: it has the static columns too. Only the database lists partitions, or shows one without rows"
            }
            PassReason::Clause => {
                "read by the key without ALLOW FILTERING; group, or order otherwise than by the clustering, in the client"
            }
            PassReason::Bypass => "leave BYPASS CACHE and USING TIMEOUT out",
            PassReason::OutdatedSchema => "wait until it has been read",
            PassReason::UncertainBinds => {
                "write it with plain names and without comments, so that both count the same markers"
            }
        })
    }
}

impl NotCacheable {
    /// The reason as the end of a sentence.
    pub(super) fn why(self) -> &'static str {
        match self {
            NotCacheable::SystemTable => "system and virtual tables differ from node to node",
            NotCacheable::WrittenByDatabase => {
                "the database writes rows of it by itself, and no statement that Afterglow sees names them"
            }
            NotCacheable::View => {
                "a materialized view changes some time after the write of its table was acknowledged"
            }
            NotCacheable::Counter => "counters are written more than read, and are not cached",
            NotCacheable::MultiCellColumn => {
                "it has a collection or user type that is not frozen, and only Cassandra 5.0 tells when their elements expire"
            }
            NotCacheable::CustomType => "it has a column whose type is a class of the server",
            NotCacheable::MaskedColumn => {
                "it has a masked column, which different roles see in different ways"
            }
            NotCacheable::CompactStorage => "it has compact storage",
            NotCacheable::KeyType => {
                "a column of its primary key has a type of which equal values can have different bytes (decimal, duration, collections, tuples, user types)"
            }
            NotCacheable::TooManyColumns => "it has too many columns",
        }
    }

    /// What would have its rows cached; `None` if nothing would.
    fn remedy(self) -> Option<&'static str> {
        Some(match self {
            NotCacheable::SystemTable | NotCacheable::Counter => return None,
            NotCacheable::WrittenByDatabase => {
                "where a column says when a row ends, give the writes a TTL instead; for logs of changes and of audits nothing would"
            }
            NotCacheable::View => {
                "keep a second table in place of the view, and write both in one batch"
            }
            NotCacheable::MultiCellColumn => {
                "use Cassandra 5.0, or make a table in which the type is frozen"
            }
            NotCacheable::CustomType => "make a table in which the column has a built-in type",
            NotCacheable::MaskedColumn => {
                "drop the mask, and grant the table to the roles that may see the column"
            }
            NotCacheable::CompactStorage => {
                "ALTER TABLE ... DROP COMPACT STORAGE where the database allows it, or a table without it"
            }
            NotCacheable::KeyType => {
                "make a table whose key has other types: text or blob, or a column for each part"
            }
            NotCacheable::TooManyColumns => "make several tables of it, of 65,535 columns at most",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reason behind this one, so that none can be left out of the test below.
    fn next(reason: PassReason) -> Option<PassReason> {
        Some(match reason {
            PassReason::NotUnderstood => PassReason::List,
            PassReason::List => PassReason::Describe,
            PassReason::Describe => PassReason::Keyspaces,
            PassReason::Keyspaces => PassReason::UnknownTable,
            PassReason::UnknownTable => PassReason::OutdatedSchema,
            PassReason::OutdatedSchema => PassReason::UnknownColumn,
            PassReason::UnknownColumn => PassReason::NotOneRow,
            PassReason::NotOneRow => PassReason::Expression,
            PassReason::Expression => PassReason::UncertainLiteral,
            PassReason::UncertainLiteral => PassReason::Json,
            PassReason::Json => PassReason::Distinct,
            PassReason::Distinct => PassReason::Clause,
            PassReason::Clause => PassReason::StaticColumns,
            PassReason::StaticColumns => PassReason::UnknownOrder,
            PassReason::UnknownOrder => PassReason::Bypass,
            PassReason::Bypass => PassReason::UncertainBinds,
            PassReason::UncertainBinds => PassReason::NotCacheable(NotCacheable::SystemTable),
            PassReason::NotCacheable(reason) => PassReason::NotCacheable(match reason {
                NotCacheable::SystemTable => NotCacheable::WrittenByDatabase,
                NotCacheable::WrittenByDatabase => NotCacheable::View,
                NotCacheable::View => NotCacheable::Counter,
                NotCacheable::Counter => NotCacheable::MultiCellColumn,
                NotCacheable::MultiCellColumn => NotCacheable::CustomType,
                NotCacheable::CustomType => NotCacheable::MaskedColumn,
                NotCacheable::MaskedColumn => NotCacheable::CompactStorage,
                NotCacheable::CompactStorage => NotCacheable::KeyType,
                NotCacheable::KeyType => NotCacheable::TooManyColumns,
                NotCacheable::TooManyColumns => return None,
            }),
        })
    }

    #[test]
    fn every_reason_says_what_would_change_it_or_that_nothing_would() {
        let all: Vec<_> =
            std::iter::successors(Some(PassReason::NotUnderstood), |reason| next(*reason))
                .collect();
        let mut hopeless = Vec::new();
        for reason in &all {
            let said = reason.explain();
            let (why, remedy) = said.trim_end().split_once('\n').expect("two lines");
            assert!(
                why.strip_prefix("passed through: ").is_some_and(|why| why.len() > 10),
                "{said}"
            );
            if format!("{remedy}\n") == NOTHING {
                hopeless.push(reason.label());
                continue;
            }
            let what = remedy.strip_prefix("  to have it cached: ").expect(&said);
            assert!(what.len() > 10 && !what.contains('\n') && !why.contains(what), "{said}");
        }
        assert_eq!(all.len(), 27);
        assert_eq!(hopeless, ["list", "describe", "keyspaces", "system-table", "counter"]);
    }
}
