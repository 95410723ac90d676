//! How a statement's markers find their values.

use crate::message::Values;
use crate::statement::Parsed;

/// How many values a statement takes.
///
/// Cassandra gives every marker a value of its own, also where a name is there twice. Newer
/// ScyllaDB gives a name one. The count of values in a request tells for which of them it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Binds {
    markers: usize,
    distinct: usize,
}

impl Binds {
    pub(super) fn of(parsed: &Parsed) -> Binds {
        Binds { markers: parsed.markers.len(), distinct: parsed.distinct_markers() }
    }

    /// Whether a marker's position in the text is that of its value for sure, or values have names.
    pub fn are_certain(&self, values: &Values<'_>) -> bool {
        values.are_named() || self.markers == self.distinct || values.len() == self.markers
    }

    /// Whether there are as many values as the statement takes.
    pub fn fit(&self, values: &Values<'_>) -> bool {
        let expected = if values.are_named() { self.distinct } else { self.markers };
        values.len() == expected
    }
}
