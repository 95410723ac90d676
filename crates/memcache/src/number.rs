//! Numbers as memcached reads them, by C's `strtoul` and its kin. These take a sign, skip leading
//! space and stop at a space.
//!
//! A number that does not fit is none. Older releases of memcached cut it to 32 bits: a value of
//! 4 GiB became one of no bytes, and what followed was carried out as commands. Flags and expiry of
//! a classic store are cut still, as by every release.

/// Sign, magnitude and whether that fits 64 bits.
fn scan(text: &[u8]) -> Option<(bool, u64)> {
    let start = text.iter().position(|b| !is_space(*b))?;
    let (negative, digits) = match text[start] {
        b'-' => (true, &text[start + 1..]),
        b'+' => (false, &text[start + 1..]),
        _ => (false, &text[start..]),
    };
    let len = digits.iter().take_while(|b| b.is_ascii_digit()).count();
    if len == 0 || digits.get(len).is_some_and(|b| !is_space(*b)) {
        return None;
    }
    let value = digits[..len].iter().try_fold(0u64, |value, digit| {
        value.checked_mul(10)?.checked_add(u64::from(digit - b'0'))
    })?;
    Some((negative, value))
}

fn is_space(byte: u8) -> bool {
    matches!(byte, b' ' | b'\t'..=b'\r')
}

/// A number of 64 bits without a sign; "-0" is one, "-1" is not.
pub fn unsigned(text: &[u8]) -> Option<u64> {
    scan(text).filter(|(negative, value)| !negative || *value == 0).map(|(_, value)| value)
}

/// A number of 32 bits without a sign.
pub fn unsigned_32(text: &[u8]) -> Option<u32> {
    unsigned(text).and_then(|value| value.try_into().ok())
}

/// A number of 32 bits with a sign.
pub fn signed_32(text: &[u8]) -> Option<i32> {
    let (negative, value) = scan(text)?;
    let value = i64::try_from(value).ok()?;
    i32::try_from(if negative { -value } else { value }).ok()
}

/// The lower 32 bits of a number without a sign.
pub fn cut_unsigned_32(text: &[u8]) -> Option<u32> {
    unsigned(text).map(|value| value as u32)
}

/// The lower 32 bits of a number with a sign.
pub fn cut_signed_32(text: &[u8]) -> Option<i32> {
    let (negative, value) = scan(text)?;
    let value = i64::try_from(value).ok()?;
    Some(if negative { -value } else { value } as i32)
}

/// Whether that is a number with a fraction, or without one.
pub fn is_float(text: &[u8]) -> bool {
    std::str::from_utf8(text).is_ok_and(|text| text.parse::<f64>().is_ok())
}

/// Appends a number in decimal digits.
pub fn push(out: &mut Vec<u8>, value: u64) {
    let mut digits = [0; 20];
    out.extend_from_slice(digits_of(value, &mut digits));
}

/// The decimal digits of a number.
pub fn digits_of(mut value: u64, buffer: &mut [u8; 20]) -> &[u8] {
    let mut at = buffer.len();
    loop {
        at -= 1;
        buffer[at] = b'0' + (value % 10) as u8;
        value /= 10;
        if value == 0 {
            return &buffer[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_as_c_reads_them() {
        for (text, value) in [
            ("0", Some(0)),
            ("18446744073709551615", Some(u64::MAX)),
            ("18446744073709551616", None),
            ("+7", Some(7)),
            (" 7", Some(7)),
            ("7 x", Some(7)),
            ("7\r\n", Some(7)),
            ("7x", None),
            ("-0", Some(0)),
            ("-1", None),
            ("", None),
            ("-", None),
            ("x", None),
        ] {
            assert_eq!(unsigned(text.as_bytes()), value, "{text}");
        }
        assert_eq!(unsigned_32(b"4294967295"), Some(u32::MAX));
        assert_eq!(unsigned_32(b"4294967296"), None);
        assert_eq!(signed_32(b"-5"), Some(-5));
        assert_eq!(signed_32(b"2147483647"), Some(i32::MAX));
        assert_eq!(signed_32(b"-2147483648"), Some(i32::MIN));
        for beyond in ["2147483648", "-2147483649", "4294967296", "9223372036854775808"] {
            assert_eq!(signed_32(beyond.as_bytes()), None, "{beyond}");
        }
        assert_eq!(cut_unsigned_32(b"4294967297"), Some(1));
        assert_eq!(cut_signed_32(b"-5"), Some(-5));
        assert_eq!(cut_signed_32(b"99999999999"), Some(99_999_999_999_i64 as i32));
        assert_eq!(cut_signed_32(b"9223372036854775808"), None);
    }

    #[test]
    fn digits_are_those_of_the_number() {
        for value in [0, 7, 10, 4_294_967_295, u64::MAX] {
            let mut out = Vec::new();
            push(&mut out, value);
            assert_eq!(out, value.to_string().as_bytes());
        }
    }
}
