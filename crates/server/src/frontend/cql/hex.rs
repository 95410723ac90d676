//! Bytes as text.

/// Bytes as hexadecimal digits. Clients send as many as they like before a login: nothing is
/// allocated for each byte, as `format!` would.
pub fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(b"0123456789abcdef"[usize::from(digit)])).collect()
}
