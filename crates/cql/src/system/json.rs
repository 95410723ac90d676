//! `SELECT JSON` over a system table: one text column named `[json]`.

use std::net::{Ipv4Addr, Ipv6Addr};

use uuid::Uuid;

use super::{ResultColumn, SystemRows, TypeOption};

/// The rows with each turned into one JSON object, written as Cassandra writes it.
pub(super) fn row_as_json(rows: SystemRows) -> SystemRows {
    let object = |row: &Vec<Option<Vec<u8>>>| {
        let members: Vec<String> = rows
            .columns
            .iter()
            .zip(row)
            .map(|(column, cell)| {
                let value = cell
                    .as_deref()
                    .map_or("null".to_owned(), |cell| value(column.type_option.as_bytes(), cell));
                format!("{}: {value}", member_name(&column.name))
            })
            .collect();
        vec![Some(format!("{{{}}}", members.join(", ")).into_bytes())]
    };
    SystemRows {
        table: rows.table,
        columns: vec![ResultColumn { name: "[json]".to_owned(), type_option: TypeOption::text() }],
        rows: rows.rows.iter().map(object).collect(),
        warning: rows.warning,
    }
}

/// Names with upper case letters keep their CQL quotes inside the JSON string.
fn member_name(name: &str) -> String {
    if name.chars().any(char::is_uppercase) { string(&format!("\"{name}\"")) } else { string(name) }
}

/// A value of the types that the system tables use; other types as a hexadecimal blob.
fn value(option: &[u8], cell: &[u8]) -> String {
    let blob =
        || format!("\"0x{}\"", cell.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
    match option {
        [0, 0x01 | 0x0d] => string(&String::from_utf8_lossy(cell)),
        [0, 0x02] => {
            cell.try_into().map(i64::from_be_bytes).map_or_else(|_| blob(), |v| v.to_string())
        }
        [0, 0x09] => {
            cell.try_into().map(i32::from_be_bytes).map_or_else(|_| blob(), |v| v.to_string())
        }
        [0, 0x0c | 0x0f] => Uuid::from_slice(cell).map_or_else(|_| blob(), |v| format!("\"{v}\"")),
        [0, 0x10] => address(cell).map_or_else(blob, |v| format!("\"{v}\"")),
        [0, 0x22 | 0x20, element @ ..] => {
            let items: Vec<String> = items(cell).iter().map(|item| value(element, item)).collect();
            format!("[{}]", items.join(", "))
        }
        [0, 0x21, 0, 0x0c, of_value @ ..] => {
            let entries: Vec<String> = items(cell)
                .chunks_exact(2)
                .map(|pair| format!("{}: {}", value(&[0, 0x0c], pair[0]), value(of_value, pair[1])))
                .collect();
            format!("{{{}}}", entries.join(", "))
        }
        _ => blob(),
    }
}

/// As Java writes addresses: v6 in eight groups, none left out.
fn address(cell: &[u8]) -> Option<String> {
    match cell.len() {
        4 => <[u8; 4]>::try_from(cell).ok().map(|octets| Ipv4Addr::from(octets).to_string()),
        16 => <[u8; 16]>::try_from(cell).ok().map(|octets| {
            Ipv6Addr::from(octets).segments().map(|group| format!("{group:x}")).join(":")
        }),
        _ => None,
    }
}

/// The elements of a serialised collection (those of a map one after the other).
fn items(cell: &[u8]) -> Vec<&[u8]> {
    let mut rest = cell.get(4..).unwrap_or_default();
    let mut items = Vec::new();
    while let Some((length, after)) = rest.split_first_chunk::<4>() {
        let Ok(length) = usize::try_from(i32::from_be_bytes(*length)) else { break };
        let Some((item, after)) = after.split_at_checked(length) else { break };
        items.push(item);
        rest = after;
    }
    items
}

fn string(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\u{8}' => out.push_str("\\b"),
            '\u{c}' => out.push_str("\\f"),
            c if (c as u32) < 0x20 => out.push_str(&format!("\\u{:04X}", c as u32)),
            c => out.push(c),
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_as_the_server_writes_them() {
        let mut loopback = [0; 16];
        loopback[15] = 1;
        assert_eq!(value(&[0, 0x10], &loopback), "\"0:0:0:0:0:0:0:1\"");
        assert_eq!(value(&[0, 0x0d], b"a\"\\\n\x01\x1f"), "\"a\\\"\\\\\\n\\u0001\\u001F\"");
        assert_eq!(value(&[0, 0x09], &[0xff; 4]), "-1");
        let mut map = vec![0, 0, 0, 1, 0, 0, 0, 16];
        map.extend([0x11; 16]);
        map.extend([0, 0, 0, 2, 0xca, 0xfe]);
        assert_eq!(
            value(&[0, 0x21, 0, 0x0c, 0, 0x03], &map),
            "{\"11111111-1111-1111-1111-111111111111\": \"0xcafe\"}"
        );
        assert_eq!(value(&[0, 0x22, 0, 0x0d], &[0, 0, 0, 9, 0, 0]), "[]");
    }
}
