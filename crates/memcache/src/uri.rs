//! Keys as dumps and logs show them: percent-encoded (RFC 3986, section 2.1).

/// Appends a key, its unreserved bytes as they are.
pub fn encode(key: &[u8], out: &mut Vec<u8>) {
    for byte in key {
        match byte {
            b'-' | b'.' | b'_' | b'~' => out.push(*byte),
            byte if byte.is_ascii_alphanumeric() => out.push(*byte),
            byte => out.extend_from_slice(format!("%{byte:02X}").as_bytes()),
        }
    }
}
