//! Literals of key columns, in the bytes that the server would make of them.
//!
//! Only forms that are certain are accepted. Forms whose meaning depends on the server's version,
//! time zone or locale are refused. The statement is then passed (a read) or widened (a write).

use std::net::IpAddr;

use super::key::ValueSource;
use crate::statement::{Literal, Term};

/// Why a term gives no key value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Uncertain {
    /// Not a literal or marker.
    Expression,
    /// A literal whose bytes are not certain, or that the server will refuse.
    Literal,
}

/// Where the value of `term` in a column of native type `cql_type` comes from; `None` if its bytes
/// are not certain.
pub(crate) fn slot_of(term: &Term, cql_type: &str) -> Option<ValueSource> {
    slot(term, cql_type).ok()
}

/// The source of a key column's value.
pub(crate) fn slot(term: &Term, cql_type: &str) -> Result<ValueSource, Uncertain> {
    match term {
        Term::Marker(marker) => Ok(ValueSource::Bind(marker.clone())),
        Term::Literal(literal) => {
            let bytes = encode(literal, cql_type).ok_or(Uncertain::Literal)?;
            Ok(ValueSource::Literal(bytes.into()))
        }
        Term::Null => Err(Uncertain::Literal),
        Term::Tuple(_) | Term::Unique { .. } | Term::Complex => Err(Uncertain::Expression),
    }
}

/// Bytes of `literal` as a value of the native type `cql_type`, where certain.
pub(crate) fn encode(literal: &Literal, cql_type: &str) -> Option<Vec<u8>> {
    match literal {
        Literal::String(text) => string(text, cql_type),
        Literal::Integer(digits) => integer(digits, cql_type),
        Literal::Float(text) => number(text, cql_type),
        Literal::Boolean(value) => (cql_type == "boolean").then(|| vec![u8::from(*value)]),
        Literal::Uuid(text) => uuid(text, cql_type),
        Literal::Hex(digits) => (cql_type == "blob").then(|| hex(digits))?,
        Literal::Other => None,
    }
}

fn string(text: &str, cql_type: &str) -> Option<Vec<u8>> {
    match cql_type {
        "text" | "varchar" => Some(text.as_bytes().to_vec()),
        "ascii" => text.is_ascii().then(|| text.as_bytes().to_vec()),
        "inet" => inet(text),
        "date" => date(text).map(|days| ((days + (1 << 31)) as u32).to_be_bytes().to_vec()),
        "time" => time(text).map(|nanos| nanos.to_be_bytes().to_vec()),
        "timestamp" => timestamp(text).map(|millis| millis.to_be_bytes().to_vec()),
        _ => None,
    }
}

fn integer(digits: &str, cql_type: &str) -> Option<Vec<u8>> {
    match cql_type {
        "int" => digits.parse::<i32>().ok().map(|v| v.to_be_bytes().to_vec()),
        "bigint" | "timestamp" => digits.parse::<i64>().ok().map(|v| v.to_be_bytes().to_vec()),
        "smallint" => digits.parse::<i16>().ok().map(|v| v.to_be_bytes().to_vec()),
        "tinyint" => digits.parse::<i8>().ok().map(|v| v.to_be_bytes().to_vec()),
        "varint" => digits.parse::<i128>().ok().map(varint),
        "time" => digits
            .parse::<i64>()
            .ok()
            .filter(|n| (0..DAY_NANOS).contains(n))
            .map(|n| n.to_be_bytes().to_vec()),
        _ => number(digits, cql_type),
    }
}

/// `float`, `double` and `decimal` from any numeric literal.
fn number(text: &str, cql_type: &str) -> Option<Vec<u8>> {
    match cql_type {
        "float" => {
            text.parse::<f32>().ok().filter(|v| v.is_finite()).map(|v| v.to_be_bytes().to_vec())
        }
        "double" => {
            text.parse::<f64>().ok().filter(|v| v.is_finite()).map(|v| v.to_be_bytes().to_vec())
        }
        "decimal" => decimal(text),
        _ => None,
    }
}

/// The shortest two's complement form, big endian.
fn varint(value: i128) -> Vec<u8> {
    let bytes = value.to_be_bytes();
    let sign = if value < 0 { 0xff } else { 0x00 };
    let redundant = bytes
        .windows(2)
        .take_while(|pair| pair[0] == sign && (pair[1] & 0x80) == (sign & 0x80))
        .count();
    bytes[redundant..].to_vec()
}

/// Scale (i32) and unscaled value, as `java.math.BigDecimal` reads the text: digits are kept, not
/// normalised.
fn decimal(text: &str) -> Option<Vec<u8>> {
    let (mantissa, exponent) = match text.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => {
            (mantissa, exponent.strip_prefix('+').unwrap_or(exponent).parse::<i32>().ok()?)
        }
        None => (text, 0),
    };
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let unscaled: i128 = format!("{whole}{fraction}").parse().ok()?;
    let scale = i32::try_from(fraction.len()).ok()?.checked_sub(exponent)?;
    let mut bytes = scale.to_be_bytes().to_vec();
    bytes.extend(varint(unscaled));
    Some(bytes)
}

fn uuid(text: &str, cql_type: &str) -> Option<Vec<u8>> {
    let value = uuid::Uuid::try_parse(text).ok()?;
    match cql_type {
        "uuid" => Some(value.as_bytes().to_vec()),
        "timeuuid" => (value.get_version_num() == 1).then(|| value.as_bytes().to_vec()),
        _ => None,
    }
}

fn hex(digits: &str) -> Option<Vec<u8>> {
    if !digits.len().is_multiple_of(2) || !digits.is_ascii() {
        return None;
    }
    (0..digits.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&digits[at..at + 2], 16).ok())
        .collect()
}

/// Addresses in their plain forms. Java turns v4-mapped v6 text into v4; host names would be
/// resolved: both refused.
fn inet(text: &str) -> Option<Vec<u8>> {
    match text.parse().ok()? {
        IpAddr::V4(address) => Some(address.octets().to_vec()),
        IpAddr::V6(address) if address.to_ipv4_mapped().is_none() => {
            Some(address.octets().to_vec())
        }
        IpAddr::V6(_) => None,
    }
}

const DAY_NANOS: i64 = 86_400_000_000_000;

/// Exactly `width` ASCII digits at the front, and the rest.
fn digits(text: &str, width: usize) -> Option<(i64, &str)> {
    let (head, rest) = text.split_at_checked(width)?;
    head.bytes().all(|b| b.is_ascii_digit()).then(|| Some((head.parse().ok()?, rest)))?
}

/// Days since 1970-01-01 of `yyyy-mm-dd` at the front (proleptic Gregorian), and the rest.
fn date_prefix(text: &str) -> Option<(i64, &str)> {
    let (year, rest) = digits(text, 4)?;
    let (month, rest) = digits(rest.strip_prefix('-')?, 2)?;
    let (day, rest) = digits(rest.strip_prefix('-')?, 2)?;
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = match month {
        1 | 3 | 5 | 7 | 8 | 10 | 12 => 31,
        4 | 6 | 9 | 11 => 30,
        2 if leap => 29,
        2 => 28,
        _ => return None,
    };
    // Java's older date formats switch calendars in 1582; nobody keys by such dates as text.
    if !(1..=length).contains(&day) || year < 1600 {
        return None;
    }
    // Days from civil, by eras of 400 years counted from March (Howard Hinnant's chrono
    // algorithms).
    let shifted = if month <= 2 { year - 1 } else { year };
    let era = shifted.div_euclid(400);
    let of_era = shifted.rem_euclid(400);
    let day_of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    let day_of_era = of_era * 365 + of_era / 4 - of_era / 100 + day_of_year;
    Some((era * 146_097 + day_of_era - 719_468, rest))
}

fn date(text: &str) -> Option<i64> {
    date_prefix(text).and_then(|(days, rest)| rest.is_empty().then_some(days))
}

/// Seconds of `hh:mm:ss` at the front, and the rest.
fn clock_prefix(text: &str) -> Option<(i64, &str)> {
    let (hour, rest) = digits(text, 2)?;
    let (minute, rest) = digits(rest.strip_prefix(':')?, 2)?;
    let (second, rest) = digits(rest.strip_prefix(':')?, 2)?;
    (hour < 24 && minute < 60 && second < 60).then_some((hour * 3600 + minute * 60 + second, rest))
}

/// Nanoseconds since midnight of `hh:mm:ss[.f]`, one to nine fractional digits.
fn time(text: &str) -> Option<i64> {
    let (seconds, rest) = clock_prefix(text)?;
    let nanos = match rest.strip_prefix('.') {
        None if rest.is_empty() => 0,
        Some(fraction)
            if (1..=9).contains(&fraction.len())
                && fraction.bytes().all(|b| b.is_ascii_digit()) =>
        {
            fraction.parse::<i64>().ok()? * 10_i64.pow(9 - fraction.len() as u32)
        }
        _ => return None,
    };
    Some(seconds * 1_000_000_000 + nanos)
}

/// Milliseconds of `yyyy-mm-dd(T| )hh:mm:ss[.fff](Z|+hhmm|+hh:mm)`. Without an offset the server's
/// time zone would decide.
fn timestamp(text: &str) -> Option<i64> {
    let (days, rest) = date_prefix(text)?;
    let (seconds, rest) = clock_prefix(rest.strip_prefix(['T', ' '])?)?;
    let (millis, rest) = match rest.strip_prefix('.') {
        Some(fraction) => digits(fraction, 3)?,
        None => (0, rest),
    };
    let offset = if rest == "Z" {
        0
    } else {
        let sign = if rest.starts_with('-') { -1 } else { 1 };
        let (hours, rest) = digits(rest.strip_prefix(['+', '-'])?, 2)?;
        let (minutes, rest) = digits(rest.strip_prefix(':').unwrap_or(rest), 2)?;
        if !rest.is_empty() || hours > 14 || minutes > 59 {
            return None;
        }
        sign * (hours * 3600 + minutes * 60)
    };
    Some((days * 86_400 + seconds - offset) * 1000 + millis)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hex_of(literal: Literal, cql_type: &str) -> Option<String> {
        encode(&literal, cql_type)
            .map(|bytes| bytes.iter().map(|byte| format!("{byte:02x}")).collect())
    }

    fn text(value: &str, cql_type: &str) -> Option<String> {
        hex_of(Literal::String(value.to_owned()), cql_type)
    }

    fn digits(value: &str, cql_type: &str) -> Option<String> {
        hex_of(Literal::Integer(value.to_owned()), cql_type)
    }

    fn point(value: &str, cql_type: &str) -> Option<String> {
        hex_of(Literal::Float(value.to_owned()), cql_type)
    }

    #[track_caller]
    fn is(got: Option<String>, expected: &str) {
        assert_eq!(got.as_deref(), Some(expected));
    }

    #[test]
    fn whole_numbers() {
        is(digits("-2", "int"), "fffffffe");
        is(digits("007", "int"), "00000007");
        is(digits("-0", "int"), "00000000");
        is(digits("1", "bigint"), "0000000000000001");
        is(digits("-1", "smallint"), "ffff");
        is(digits("127", "tinyint"), "7f");
        is(digits("0", "varint"), "00");
        is(digits("127", "varint"), "7f");
        is(digits("128", "varint"), "0080");
        is(digits("-1", "varint"), "ff");
        is(digits("-128", "varint"), "80");
        is(digits("-129", "varint"), "ff7f");
        is(digits("18446744073709551616", "varint"), "010000000000000000");
        is(digits("5", "timestamp"), "0000000000000005");
        is(digits("5", "float"), "40a00000");
        is(digits("5", "double"), "4014000000000000");
        for (value, kind) in [
            ("2147483648", "int"),
            ("128", "tinyint"),
            ("1", "text"),
            ("1", "boolean"),
            ("1", "date"),
            ("1", "frozen<x>"),
        ] {
            assert_eq!(digits(value, kind), None, "{value} {kind}");
        }
        assert_eq!(digits(&"9".repeat(60), "varint"), None);
    }

    #[test]
    fn broken_numbers() {
        is(point("1.5", "float"), "3fc00000");
        is(point("-0.0", "double"), "8000000000000000");
        is(point("1.e2", "double"), "4059000000000000");
        is(point("1.0", "decimal"), "000000010a");
        is(point("-1.28", "decimal"), "0000000280");
        is(point("1e3", "decimal"), "fffffffd01");
        is(point("1.5E+2", "decimal"), "ffffffff0f");
        is(digits("100", "decimal"), "0000000064");
        assert_eq!(point("1e999", "double"), None);
        assert_eq!(point("1.5", "int"), None);
    }

    #[test]
    fn text_bytes_and_ids() {
        is(text("h\u{e9}", "text"), "68c3a9");
        is(text("h", "ascii"), "68");
        assert_eq!(text("h\u{e9}", "ascii"), None);
        assert_eq!(text("1", "int"), None);
        is(hex_of(Literal::Hex("CAfe".into()), "blob"), "cafe");
        is(hex_of(Literal::Hex(String::new()), "blob"), "");
        assert_eq!(hex_of(Literal::Hex("abc".into()), "blob"), None);
        assert_eq!(hex_of(Literal::Hex("ab".into()), "text"), None);
        is(hex_of(Literal::Boolean(true), "boolean"), "01");
        let one = "123e4567-e89b-12d3-a456-426655440000";
        is(hex_of(Literal::Uuid(one.into()), "timeuuid"), "123e4567e89b12d3a456426655440000");
        let four = "123e4567-e89b-42d3-a456-426655440000";
        is(hex_of(Literal::Uuid(four.into()), "uuid"), "123e4567e89b42d3a456426655440000");
        assert_eq!(hex_of(Literal::Uuid(four.into()), "timeuuid"), None);
    }

    #[test]
    fn addresses() {
        is(text("127.0.0.1", "inet"), "7f000001");
        is(text("::1", "inet"), "00000000000000000000000000000001");
        for uncertain in ["localhost", "127.1", "::ffff:1.2.3.4", "fe80::1%eth0", ""] {
            assert_eq!(text(uncertain, "inet"), None, "{uncertain}");
        }
    }

    #[test]
    fn dates_and_times() {
        is(text("1970-01-01", "date"), "80000000");
        is(text("1970-01-02", "date"), "80000001");
        is(text("1969-12-31", "date"), "7fffffff");
        is(text("2000-02-29", "date"), "80002b08");
        is(text("00:00:01", "time"), "000000003b9aca00");
        is(text("00:00:00.5", "time"), "000000001dcd6500");
        is(text("1970-01-01T00:00:01Z", "timestamp"), "00000000000003e8");
        is(text("1970-01-01 01:00:00.001+0100", "timestamp"), "0000000000000001");
        is(text("1969-12-31T23:00:00-01:00", "timestamp"), "0000000000000000");
        for uncertain in
            ["2001-02-29", "1970-1-1", "1970-13-01", "0001-01-01", "today", "1970-01-01x"]
        {
            assert_eq!(text(uncertain, "date"), None, "{uncertain}");
        }
        for uncertain in [
            "1970-01-01",
            "1970-01-01T00:00:01",
            "1970-01-01T00:00:01.5Z",
            "1970-01-01T24:00:00Z",
            "now",
        ] {
            assert_eq!(text(uncertain, "timestamp"), None, "{uncertain}");
        }
        assert_eq!(text("24:00:00", "time"), None);
        assert_eq!(text("1:00:00", "time"), None);
    }
}
