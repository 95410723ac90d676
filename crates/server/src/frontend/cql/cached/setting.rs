//! A setting of the database, read from what it answers.

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::Envelope;

use super::super::{Fetched, error_code};

/// A setting in the database's answer: none, where it has no such setting or tells none. `None`
/// where the answer says nothing of that.
pub(super) fn setting_of(answer: &Envelope) -> Option<Option<String>> {
    if error_code(answer) == Some(ErrorCode::Invalid) {
        return Some(None); // no such table
    }
    Some(Fetched::new(answer)?.rows().next().and_then(|row| row.text("value")))
}

#[cfg(test)]
mod tests {
    use afterglow_cql::frame::{Header, Opcode, Version};
    use afterglow_cql::response::{ColumnSpec, ErrorBody, MetadataOut, encode_rows_start};

    use super::*;

    #[test]
    fn a_setting_that_may_not_be_read_is_not_taken_for_one_that_is_not_there() {
        let error = |code| {
            let mut body = Vec::new();
            ErrorBody::new(code, "no").encode(&mut body);
            Envelope { header: Header::new(Version::V4, 1, Opcode::Error), body: body.into() }
        };
        assert_eq!(setting_of(&error(ErrorCode::Invalid)), Some(None));
        for code in [ErrorCode::Unauthorized, ErrorCode::Overloaded, ErrorCode::ReadTimeout] {
            assert_eq!(setting_of(&error(code)), None, "{code:?}");
        }
        let rows = |values: &[&str]| {
            let column = ColumnSpec {
                keyspace: "system_views",
                table: "settings",
                name: "value",
                type_bytes: &[0, 13],
            };
            let mut body = Vec::new();
            encode_rows_start(
                Version::V4,
                &MetadataOut::of_table(&[column]),
                values.len(),
                &mut body,
            );
            for value in values {
                body.extend_from_slice(&(value.len() as i32).to_be_bytes());
                body.extend_from_slice(value.as_bytes());
            }
            Envelope { header: Header::new(Version::V4, 1, Opcode::Result), body: body.into() }
        };
        assert_eq!(setting_of(&rows(&[])), Some(None));
        assert_eq!(setting_of(&rows(&["v1"])), Some(Some("v1".to_owned())));
    }
}
