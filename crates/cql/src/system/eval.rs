//! Evaluation of a query over a system table.

use std::borrow::Cow;

use super::json::row_as_json;
use super::{ResultColumn, SystemError, SystemQuery, SystemRows, SystemTables, Table, TypeOption};
use crate::plan::{ValueSource, slot_of};
use crate::statement::{Literal, Marker, Operator, Relation, Selected, Term};

type Row = Vec<Option<Vec<u8>>>;

/// Longer answers are refused, unless all columns are asked for. Thousands of nodes with 256 tokens
/// each are well below that.
const MOST_BYTES: usize = 32 << 20;

impl SystemQuery {
    /// Evaluates the query. `value` gives the bytes bound to a marker, `None` when null, unset or
    /// missing. A table that the backend does not have ([`SystemTables::has`]) is an error here.
    pub fn evaluate<'v>(
        &self,
        tables: &SystemTables,
        value: impl Fn(&Marker) -> Option<&'v [u8]>,
    ) -> Result<SystemRows, SystemError> {
        let table = tables.table(self.table).ok_or_else(|| self.no_such_table())?;
        self.check_clauses()?;
        let outputs = self.outputs(table, tables)?;
        let tests = self.tests(table, tables, &value)?;
        let limit = self.limit(&value)?;
        let matching = table.rows.iter().filter(|row| tests.iter().all(|test| test.accepts(row)));
        self.check_length(&outputs, matching.clone())?;
        let aggregated = outputs.iter().any(|output| matches!(output.source, Source::Count));
        let mut rows: Vec<Row> = if aggregated {
            vec![aggregate(&outputs, matching.collect())]
        } else {
            matching.map(|row| outputs.iter().map(|output| output.of(row)).collect()).collect()
        };
        if self.select.distinct {
            let mut seen: Vec<Row> = Vec::new();
            rows.retain(|row| {
                !seen.contains(row) && {
                    seen.push(row.clone());
                    true
                }
            });
        }
        rows.truncate(limit);
        let columns = outputs.into_iter().map(|output| output.column).collect();
        let warning = if aggregated { self.aggregation_warning() } else { None };
        let rows = SystemRows { table: self.table, columns, rows, warning };
        Ok(if self.select.json { row_as_json(rows) } else { rows })
    }

    /// A text may select a column any number of times.
    fn check_length<'r>(
        &self,
        outputs: &[Output],
        matching: impl Iterator<Item = &'r Row>,
    ) -> Result<(), SystemError> {
        if self.select.selectors.is_empty() {
            return Ok(());
        }
        let mut bytes = 0;
        for row in matching {
            bytes += outputs.iter().map(|output| output.bytes(row)).sum::<usize>();
            if bytes > MOST_BYTES {
                return Err(SystemError::Unsupported("so many columns"));
            }
        }
        Ok(())
    }

    /// What a server warns of when more than one partition is counted.
    fn aggregation_warning(&self) -> Option<&'static str> {
        let operator = self.select.relations.iter().find_map(|relation| match relation {
            Relation::Column { column, op, .. } if *column == self.table.key()[0] => Some(*op),
            _ => None,
        });
        match operator {
            None => Some("Aggregation query used without partition key"),
            Some(Operator::In) => {
                Some("Aggregation query used on multiple partition keys (IN restriction)")
            }
            Some(_) => None,
        }
    }

    fn no_such_table(&self) -> SystemError {
        SystemError::Invalid(format!("unconfigured table {}", self.table.name()))
    }

    fn check_clauses(&self) -> Result<(), SystemError> {
        let unsupported = [
            (!self.select.order.is_empty(), "ORDER BY"),
            (self.select.grouped, "GROUP BY"),
            (self.select.per_partition_limit.is_some(), "PER PARTITION LIMIT"),
        ];
        match unsupported.into_iter().find(|(present, _)| *present) {
            Some((_, clause)) => Err(SystemError::Unsupported(clause)),
            None => Ok(()),
        }
    }

    fn outputs(&self, table: &Table, tables: &SystemTables) -> Result<Vec<Output>, SystemError> {
        if self.select.selectors.is_empty() {
            return Ok((0..table.columns.len())
                .map(|at| Output::column(table, at, None))
                .collect());
        }
        let mut outputs = Vec::with_capacity(self.select.selectors.len());
        for selector in &self.select.selectors {
            outputs.push(match &selector.what {
                Selected::Column(name) => {
                    let at = table.position(name);
                    let undefined = || tables.undefined_column(name, self.table);
                    let at = at.ok_or_else(|| SystemError::Invalid(undefined()))?;
                    if self.select.distinct && *name != self.table.key()[0] {
                        return Err(SystemError::Invalid(format!(
                            "SELECT DISTINCT queries must only request partition key columns and/or static columns (not {name})"
                        )));
                    }
                    Output::column(table, at, selector.alias.as_deref())
                }
                Selected::CountRows => Output::count(selector.alias.as_deref()),
                Selected::Expression => return Err(SystemError::Unsupported("functions and expressions")),
            });
        }
        Ok(outputs)
    }

    fn tests<'v>(
        &self,
        table: &Table,
        tables: &SystemTables,
        value: &impl Fn(&Marker) -> Option<&'v [u8]>,
    ) -> Result<Vec<Test>, SystemError> {
        let mut tests = Vec::new();
        for relation in &self.select.relations {
            let Relation::Column { column, op, values } = relation else {
                return Err(SystemError::Unsupported("this kind of relation"));
            };
            let at = table.position(column);
            let at = at
                .ok_or_else(|| SystemError::Invalid(tables.undefined_column(column, self.table)))?;
            if !matches!(op, Operator::Equal | Operator::In) {
                return Err(SystemError::Unsupported("relations other than = and IN"));
            }
            let accepted = values
                .iter()
                .map(|term| accepted(term, table, at, value))
                .collect::<Result<_, _>>()?;
            tests.push(Test { column: at, accepted });
        }
        self.check_filtering(table, &tests)?;
        Ok(tests)
    }

    /// Without ALLOW FILTERING, relations must be on a prefix of the key.
    fn check_filtering(&self, table: &Table, tests: &[Test]) -> Result<(), SystemError> {
        const FILTERING: &str = "Cannot execute this query as it might involve data filtering and \
            thus may have unpredictable performance. If you want to execute this query despite the \
            performance unpredictability, use ALLOW FILTERING";
        let restricted =
            |name: &str| tests.iter().any(|test| table.columns[test.column].name == name);
        let on_keys = tests
            .iter()
            .all(|test| self.table.key().contains(&table.columns[test.column].name.as_str()));
        let prefix = tests.is_empty() || restricted(self.table.key()[0]);
        if self.select.allow_filtering || (on_keys && prefix) {
            Ok(())
        } else {
            Err(SystemError::Invalid(FILTERING.to_owned()))
        }
    }

    fn limit<'v>(
        &self,
        value: &impl Fn(&Marker) -> Option<&'v [u8]>,
    ) -> Result<usize, SystemError> {
        let limit = match &self.select.limit {
            None => return Ok(usize::MAX),
            Some(Term::Literal(Literal::Integer(digits))) => digits.parse::<i32>().ok(),
            Some(Term::Marker(marker)) => {
                let bytes = value(marker).ok_or_else(|| {
                    SystemError::Invalid("Invalid null value of limit".to_owned())
                })?;
                bytes.try_into().ok().map(i32::from_be_bytes)
            }
            Some(_) => None,
        };
        match limit {
            Some(limit) if limit > 0 => Ok(limit as usize),
            Some(_) => Err(SystemError::Invalid("LIMIT must be strictly positive".to_owned())),
            None => Err(SystemError::Invalid("Invalid limit value".to_owned())),
        }
    }
}

/// The bytes that a term accepts in a column.
fn accepted<'v>(
    term: &Term,
    table: &Table,
    at: usize,
    value: &impl Fn(&Marker) -> Option<&'v [u8]>,
) -> Result<Vec<u8>, SystemError> {
    let column = &table.columns[at];
    let Some(type_name) = scalar_name(&column.type_option) else {
        return Err(SystemError::Unsupported("relations on collections"));
    };
    let null = || {
        SystemError::Invalid(format!("Invalid null value in condition for column {}", column.name))
    };
    match term {
        Term::Null => Err(null()),
        _ => match slot_of(term, type_name) {
            Some(ValueSource::Bind(marker)) => value(&marker).map(<[u8]>::to_vec).ok_or_else(null),
            Some(ValueSource::Literal(bytes)) => Ok(bytes.to_vec()),
            None => Err(SystemError::Unsupported("this kind of value")),
        },
    }
}

/// CQL name of a scalar type of the system tables.
fn scalar_name(option: &TypeOption) -> Option<&'static str> {
    match option.as_bytes() {
        [0, 0x01] => Some("ascii"),
        [0, 0x02] => Some("bigint"),
        [0, 0x04] => Some("boolean"),
        [0, 0x09] => Some("int"),
        [0, 0x0b] => Some("timestamp"),
        [0, 0x0c] => Some("uuid"),
        [0, 0x0d] => Some("text"),
        [0, 0x0f] => Some("timeuuid"),
        [0, 0x10] => Some("inet"),
        _ => None,
    }
}

/// One relation: the column's value must be one of these.
struct Test {
    column: usize,
    accepted: Vec<Vec<u8>>,
}

impl Test {
    fn accepts(&self, row: &Row) -> bool {
        row[self.column].as_ref().is_some_and(|value| self.accepted.contains(value))
    }
}

enum Source {
    Column(usize),
    Count,
}

struct Output {
    source: Source,
    column: ResultColumn,
}

impl Output {
    fn column(table: &Table, at: usize, alias: Option<&str>) -> Output {
        let column = &table.columns[at];
        let name: Cow<str> = alias.map_or(Cow::Borrowed(column.name.as_str()), Cow::Borrowed);
        let column =
            ResultColumn { name: name.into_owned(), type_option: column.type_option.clone() };
        Output { source: Source::Column(at), column }
    }

    fn count(alias: Option<&str>) -> Output {
        let name = alias.unwrap_or("count").to_owned();
        Output {
            source: Source::Count,
            column: ResultColumn { name, type_option: TypeOption::bigint() },
        }
    }

    /// About what it takes in a row: a cell and the room of one, or its name and its value in JSON.
    fn bytes(&self, row: &Row) -> usize {
        const ROOM: usize = 48;
        let value = match self.source {
            Source::Column(at) => row[at].as_ref().map_or(0, Vec::len),
            Source::Count => 8,
        };
        ROOM + self.column.name.len() + value
    }

    fn of(&self, row: &Row) -> Option<Vec<u8>> {
        match self.source {
            Source::Column(at) => row[at].clone(),
            Source::Count => None,
        }
    }
}

/// One row over all that match: counts, and the first row's value of plain columns.
fn aggregate(outputs: &[Output], matching: Vec<&Row>) -> Row {
    let cell = |output: &Output| match output.source {
        Source::Count => Some((matching.len() as i64).to_be_bytes().to_vec()),
        Source::Column(at) => matching.first().and_then(|row| row[at].clone()),
    };
    outputs.iter().map(cell).collect()
}
