//! The order of clustering values, as Cassandra's types compare them.
//!
//! A value that a server would refuse, or whose place in the order is not certain, has no place
//! here: [`ValueOrder::compare`] gives `None`, and the caller asks the database.

use std::cmp::Ordering;

/// How the values of a clustering column compare, ascending.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueOrder {
    /// `blob`: byte by byte, unsigned.
    Blob,
    /// `text`: as its bytes of UTF-8.
    Text,
    /// `ascii`: as its bytes.
    Ascii,
    /// So many bytes as a signed number: `tinyint` to `bigint`, `timestamp`.
    Signed(u8),
    /// Four bytes, unsigned: the epoch is in the middle.
    Date,
    /// Nanoseconds of a day.
    Time,
    /// `false` before `true`.
    Boolean,
    /// By version, then by time for version 1 and by bytes for others.
    Uuid,
    /// By time, then by the other bytes as signed ones.
    TimeUuid,
    /// Bytes, unsigned: `10.0.0.1` is before `9::`.
    Inet,
    /// As Java compares them: -0.0 before 0.0.
    Float,
    /// As Java compares them: -0.0 before 0.0.
    Double,
    /// As numbers of any length.
    Varint,
}

const DAY_NANOS: i64 = 86_400_000_000_000;

impl ValueOrder {
    /// The order of a type's values; `None` where it is not known here.
    pub fn of(cql_type: &str) -> Option<ValueOrder> {
        Some(match cql_type {
            "blob" => ValueOrder::Blob,
            "text" | "varchar" => ValueOrder::Text,
            "ascii" => ValueOrder::Ascii,
            "tinyint" => ValueOrder::Signed(1),
            "smallint" => ValueOrder::Signed(2),
            "int" => ValueOrder::Signed(4),
            "bigint" | "timestamp" => ValueOrder::Signed(8),
            "date" => ValueOrder::Date,
            "time" => ValueOrder::Time,
            "boolean" => ValueOrder::Boolean,
            "uuid" => ValueOrder::Uuid,
            "timeuuid" => ValueOrder::TimeUuid,
            "inet" => ValueOrder::Inet,
            "float" => ValueOrder::Float,
            "double" => ValueOrder::Double,
            "varint" => ValueOrder::Varint,
            _ => return None,
        })
    }

    /// Whether a server takes these bytes for a value of the type, and its place is certain. Empty
    /// values of types that have none, and not-a-numbers, have no certain place.
    pub fn has(self, value: &[u8]) -> bool {
        match self {
            ValueOrder::Blob => true,
            ValueOrder::Text => std::str::from_utf8(value).is_ok(),
            ValueOrder::Ascii => value.is_ascii(),
            ValueOrder::Signed(length) => value.len() == usize::from(length),
            ValueOrder::Date => value.len() == 4,
            ValueOrder::Time => signed(value)
                .is_some_and(|nanos| value.len() == 8 && (0..DAY_NANOS).contains(&nanos)),
            ValueOrder::Boolean => matches!(value, [0 | 1]),
            ValueOrder::Uuid => value.len() == 16,
            ValueOrder::TimeUuid => value.len() == 16 && value[6] >> 4 == 1,
            ValueOrder::Inet => matches!(value.len(), 4 | 16),
            ValueOrder::Float => {
                value.try_into().is_ok_and(|bytes| !f32::from_be_bytes(bytes).is_nan())
            }
            ValueOrder::Double => {
                value.try_into().is_ok_and(|bytes| !f64::from_be_bytes(bytes).is_nan())
            }
            ValueOrder::Varint => !value.is_empty(),
        }
    }

    /// The values in their order, each once; of equal ones in other bytes the first. `None` if one
    /// has no certain place.
    pub fn sorted(self, mut values: Vec<Vec<u8>>) -> Option<Vec<Vec<u8>>> {
        if !values.iter().all(|value| self.has(value)) {
            return None;
        }
        let compare = |a: &[u8], b: &[u8]| self.compare(a, b).unwrap_or(Ordering::Equal);
        values.sort_by(|a, b| compare(a, b));
        values.dedup_by(|later, first| compare(later, first) == Ordering::Equal);
        Some(values)
    }

    /// The order of two values of the type; `None` if one of them has no certain place.
    pub fn compare(self, a: &[u8], b: &[u8]) -> Option<Ordering> {
        if !self.has(a) || !self.has(b) {
            return None;
        }
        Some(match self {
            ValueOrder::Blob
            | ValueOrder::Text
            | ValueOrder::Ascii
            | ValueOrder::Date
            | ValueOrder::Time
            | ValueOrder::Boolean
            | ValueOrder::Inet => a.cmp(b),
            ValueOrder::Signed(_) => signed(a).cmp(&signed(b)),
            ValueOrder::Uuid => uuid_key(a)?.cmp(&uuid_key(b)?),
            ValueOrder::TimeUuid => time_uuid_key(a)?.cmp(&time_uuid_key(b)?),
            ValueOrder::Float => float(a)?.total_cmp(&float(b)?),
            ValueOrder::Double => double(a)?.total_cmp(&double(b)?),
            ValueOrder::Varint => varint(a, b),
        })
    }
}

/// Up to eight bytes as a signed number.
fn signed(value: &[u8]) -> Option<i64> {
    let (first, rest) = value.split_first()?;
    let start = i64::from(i8::from_be_bytes([*first]));
    (value.len() <= 8).then(|| rest.iter().fold(start, |all, byte| all << 8 | i64::from(*byte)))
}

/// Without not-a-numbers the total order is that of `Float.compareTo`.
fn float(value: &[u8]) -> Option<f32> {
    value.try_into().ok().map(f32::from_be_bytes)
}

fn double(value: &[u8]) -> Option<f64> {
    value.try_into().ok().map(f64::from_be_bytes)
}

/// The halves of a UUID as numbers.
fn halves(value: &[u8]) -> Option<(u64, u64)> {
    let both = u128::from_be_bytes(value.try_into().ok()?);
    Some(((both >> 64) as u64, both as u64))
}

/// The first half with its time first: high, middle, low.
fn time_first(half: u64) -> u64 {
    half << 48 | (half << 16 & 0xffff_0000_0000) | half >> 32
}

/// `UUIDType`: version, then the first half (of version 1 by its time), then the second.
fn uuid_key(value: &[u8]) -> Option<(u64, u64, u64)> {
    let (first, second) = halves(value)?;
    let version = first >> 12 & 0xf;
    Some((version, if version == 1 { time_first(first) } else { first }, second))
}

/// `TimeUUIDType`: the time, then the second half byte by byte, each signed.
fn time_uuid_key(value: &[u8]) -> Option<(u64, u64)> {
    let (first, second) = halves(value)?;
    Some((time_first(first), second ^ 0x8080_8080_8080_8080))
}

/// Two's complement of any length, needless leading bytes included.
fn varint(a: &[u8], b: &[u8]) -> Ordering {
    let is_negative = |value: &[u8]| value[0] & 0x80 != 0;
    match (is_negative(a), is_negative(b)) {
        (true, false) => return Ordering::Less,
        (false, true) => return Ordering::Greater,
        _ => {}
    }
    let negative = is_negative(a);
    let needless = if negative { 0xff } else { 0 };
    let digits = |value: &[u8]| value.iter().take_while(|byte| **byte == needless).count();
    let (a, b) = (&a[digits(a)..], &b[digits(b)..]);
    // With equal signs the longer one is further from zero.
    let longer = a.len().cmp(&b.len());
    let longer = if negative { longer.reverse() } else { longer };
    longer.then_with(|| a.cmp(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each list is in the order of the database.
    fn ascending(cql_type: &str, values: &[&[u8]]) {
        let order = ValueOrder::of(cql_type).unwrap();
        for (i, a) in values.iter().enumerate() {
            for (j, b) in values.iter().enumerate() {
                assert_eq!(order.compare(a, b), Some(i.cmp(&j)), "{cql_type} {a:x?} {b:x?}");
            }
        }
    }

    #[test]
    fn bytes_and_numbers_compare_as_in_cassandra() {
        for of_bytes in ["text", "varchar", "ascii", "blob"] {
            ascending(of_bytes, &[b"", b"A", b"AA", b"Z", b"a"]);
        }
        ascending("blob", &[&[0], &[0, 0], &[0x7f], &[0x80], &[0xff], &[0xff, 0]]);
        ascending("tinyint", &[&[0x80], &[0xff], &[0], &[0x7f]]);
        ascending("smallint", &[&[0x80, 0], &[0xff, 0xff], &[0, 0], &[0, 0xff], &[1, 0]]);
        for (cql_type, width) in [("int", 4), ("bigint", 8), ("timestamp", 8)] {
            let values: Vec<Vec<u8>> = [i64::from(i32::MIN), -256, -1, 0, 1, 255, 256]
                .iter()
                .map(|n| n.to_be_bytes()[8 - width..].to_vec())
                .collect();
            ascending(cql_type, &values.iter().map(Vec::as_slice).collect::<Vec<_>>());
        }
        ascending("date", &[&[0; 4], &[0x7f, 0xff, 0xff, 0xff], &[0x80, 0, 0, 0], &[0xff; 4]]);
        ascending("time", &[&0_i64.to_be_bytes(), &1_i64.to_be_bytes()]);
        ascending("boolean", &[&[0], &[1]]);
        ascending("inet", &[&[9, 0, 0, 1], &[10, 0, 0, 1], &[10; 16], &[200, 0, 0, 1]]);
        let floats = [f32::NEG_INFINITY, -1.5, -0.0, 0.0, f32::MIN_POSITIVE, 2.0, f32::INFINITY];
        ascending("float", &floats.map(f32::to_be_bytes).each_ref().map(|bytes| &bytes[..]));
        let doubles = floats.map(|float| f64::from(float).to_be_bytes());
        ascending("double", &doubles.each_ref().map(|bytes| &bytes[..]));
        ascending(
            "varint",
            &[&[0x80, 0], &[0xff, 0x7f], &[0x80], &[0xff], &[0], &[0x7f], &[0, 0x80], &[1, 0]],
        );
        let varint = ValueOrder::Varint;
        assert_eq!(varint.compare(&[0, 0, 5], &[5]), Some(Ordering::Equal));
        assert_eq!(varint.compare(&[0xff, 0xff], &[0xff]), Some(Ordering::Equal));
    }

    #[test]
    fn uuids_compare_by_version_and_time() {
        let id = |text: &str| uuid::Uuid::parse_str(text).unwrap().into_bytes();
        let ids = [
            "ffffffff-0000-1000-0000-000000000000",
            "00000000-0001-1000-0000-000000000000",
            "00000000-0000-1001-0000-000000000000",
            "00000000-0000-1001-ff00-000000000000",
            "00000000-0000-4000-0000-000000000000",
            "00000001-0000-4000-0000-000000000000",
            "80000000-0000-4000-0000-000000000000",
            "00000000-0000-7000-0000-000000000000",
        ]
        .map(id);
        ascending("uuid", &ids.each_ref().map(|bytes| &bytes[..]));
        // The last eight bytes of a timeuuid are signed, one by one.
        let ids = [
            "ffffffff-0000-1000-7f00-000000000000",
            "00000000-0001-1000-8000-000000000000",
            "00000000-0001-1000-80ff-000000000000",
            "00000000-0001-1000-8000-00000000007f",
            "00000000-0001-1000-7f00-0000000000ff",
            "00000000-0001-1000-7f00-000000000000",
            "00000000-0000-1fff-8080-808080808080",
        ]
        .map(id);
        let mut sorted = ids;
        sorted.sort_by(|a, b| ValueOrder::TimeUuid.compare(a, b).unwrap());
        let sorted = sorted.map(|bytes| uuid::Uuid::from_bytes(bytes).to_string());
        assert_eq!(
            sorted,
            [
                "ffffffff-0000-1000-7f00-000000000000",
                "00000000-0001-1000-80ff-000000000000",
                "00000000-0001-1000-8000-000000000000",
                "00000000-0001-1000-8000-00000000007f",
                "00000000-0001-1000-7f00-0000000000ff",
                "00000000-0001-1000-7f00-000000000000",
                "00000000-0000-1fff-8080-808080808080",
            ]
        );
    }

    #[test]
    fn what_has_no_certain_place_is_not_compared() {
        for (cql_type, value) in [
            ("int", &[][..]),
            ("int", &[0; 8]),
            ("text", &[0xff]),
            ("ascii", &[0x80]),
            ("boolean", &[2]),
            ("date", &[0; 3]),
            ("time", &[0xff; 8]),
            ("time", &DAY_NANOS.to_be_bytes()),
            ("uuid", &[0; 15]),
            ("timeuuid", &[0; 16]),
            ("inet", &[0; 5]),
            ("float", &f32::NAN.to_be_bytes()),
            ("double", &f64::NAN.to_be_bytes()),
            ("varint", &[]),
        ] {
            let order = ValueOrder::of(cql_type).unwrap();
            assert_eq!(order.compare(value, value), None, "{cql_type} {value:x?}");
        }
        for cql_type in ["decimal", "duration", "counter", "frozen<list<int>>", "address"] {
            assert_eq!(ValueOrder::of(cql_type), None, "{cql_type}");
        }
    }
}
