//! Base 64 with padding (RFC 4648), for the keys of meta commands.

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

/// Appends the code of `bytes`.
pub fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    for chunk in bytes.chunks(3) {
        let at = |i: usize| u32::from(chunk.get(i).copied().unwrap_or(0));
        let bits = at(0) << 16 | at(1) << 8 | at(2);
        for sign in 0..4 {
            let letter = ALPHABET[(bits >> (18 - 6 * sign)) as usize & 63];
            out.push(if sign <= chunk.len() { letter } else { b'=' });
        }
    }
}

/// Decodes, or says that it is no code, or the code of nothing.
pub fn decode(code: &[u8], out: &mut Vec<u8>) -> Option<()> {
    if code.is_empty() || !code.len().is_multiple_of(4) {
        return None;
    }
    let padding = code.iter().rev().take(2).take_while(|b| **b == b'=').count();
    let (letters, _) = code.split_at(code.len() - padding);
    for chunk in letters.chunks(4) {
        let mut bits = 0u32;
        for letter in chunk {
            bits = bits << 6 | value(*letter)?;
        }
        bits <<= 6 * (4 - chunk.len());
        out.extend_from_slice(&bits.to_be_bytes()[1..chunk.len()]);
    }
    Some(())
}

fn value(letter: u8) -> Option<u32> {
    Some(u32::from(match letter {
        b'A'..=b'Z' => letter - b'A',
        b'a'..=b'z' => letter - b'a' + 26,
        b'0'..=b'9' => letter - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_vectors_of_the_standard() {
        for (plain, code) in [
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foob", "Zm9vYg=="),
            ("foobar", "Zm9vYmFy"),
        ] {
            let (mut encoded, mut decoded) = (Vec::new(), Vec::new());
            encode(plain.as_bytes(), &mut encoded);
            assert_eq!(encoded, code.as_bytes());
            assert_eq!(decode(code.as_bytes(), &mut decoded), Some(()));
            assert_eq!(decoded, plain.as_bytes());
        }
        for bad in ["", "Zg=", "Zg", "Z===", "Zg==Zg==", "Z\0==", "===="] {
            assert_eq!(decode(bad.as_bytes(), &mut Vec::new()), None, "{bad:?}");
        }
    }
}
