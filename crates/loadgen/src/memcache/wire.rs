//! Requests of the text protocol, and the parts of its answers.

use super::{KEY_LEN, Objects};

/// One part of an answer, at the front of what came.
#[derive(Debug, PartialEq, Eq)]
pub enum Part<'a> {
    /// It is not whole yet: there must be so many bytes at least.
    More(usize),
    /// An object found, and the bytes this takes.
    Value {
        /// Its key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
        /// Bytes to go on behind.
        len: usize,
    },
    /// A retrieval has ended.
    End(usize),
    /// A store was done.
    Stored(usize),
    /// The server did not do it, and what it said.
    Refused(&'a str, usize),
}

/// What no memcached would say here.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the server answered {0:?}")]
pub struct Unexpected(pub String);

/// Longest line of an answer.
const LINE: usize = 512;

/// Appends `get` of some objects.
pub fn get(ids: &[u64], out: &mut Vec<u8>) {
    out.extend_from_slice(b"get");
    for &id in ids {
        out.push(b' ');
        out.extend_from_slice(&Objects::key(id));
    }
    out.extend_from_slice(b"\r\n");
}

/// Appends `set` of an object. `length` is its value's, as text.
pub fn set(objects: &Objects, id: u64, length: &str, out: &mut Vec<u8>) {
    out.reserve(KEY_LEN + objects.value_len() + 32);
    out.extend_from_slice(b"set ");
    out.extend_from_slice(&Objects::key(id));
    out.extend_from_slice(b" 0 0 ");
    out.extend_from_slice(length.as_bytes());
    out.extend_from_slice(b"\r\n");
    objects.append_value(id, out);
    out.extend_from_slice(b"\r\n");
}

/// The part at the front of `input`.
///
/// # Errors
/// When it is none.
pub fn part(input: &[u8]) -> Result<Part<'_>, Unexpected> {
    let unexpected = |line: &[u8]| Unexpected(String::from_utf8_lossy(line).into_owned());
    let Some(end) = memchr::memchr(b'\n', &input[..input.len().min(LINE)]) else {
        return match input.len() {
            n if n < LINE => Ok(Part::More(n + 1)),
            _ => Err(unexpected(&input[..LINE])),
        };
    };
    let (line, len) = (&input[..end.saturating_sub(1)], end + 1);
    match line {
        b"END" => Ok(Part::End(len)),
        b"STORED" => Ok(Part::Stored(len)),
        _ if line.starts_with(b"VALUE ") => {
            let mut fields = line[6..].split(|b| *b == b' ');
            let key = fields.next().unwrap_or_default();
            let size = fields
                .nth(1)
                .and_then(|text| std::str::from_utf8(text).ok()?.parse::<usize>().ok());
            let size = size.ok_or_else(|| unexpected(line))?;
            let whole = len + size + 2;
            match input.get(len..whole) {
                None => Ok(Part::More(whole)),
                Some(value) if value.ends_with(b"\r\n") => {
                    Ok(Part::Value { key, value: &value[..size], len: whole })
                }
                Some(_) => Err(unexpected(line)),
            }
        }
        _ if line.starts_with(b"SERVER_ERROR") || line == b"NOT_STORED" => {
            let text = std::str::from_utf8(line).map_err(|_| unexpected(line))?;
            Ok(Part::Refused(text, len))
        }
        _ => Err(unexpected(line)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_apart_wherever_they_are_cut() {
        let answer = b"VALUE k 0 5\r\na\r\nbc\r\nEND\r\n";
        for cut in 0..answer.len() - 5 {
            assert!(
                matches!(part(&answer[..cut]), Ok(Part::More(n)) if n > cut && n <= 20),
                "{cut}"
            );
        }
        let value = Part::Value { key: b"k", value: b"a\r\nbc", len: 20 };
        assert_eq!((part(answer), part(&answer[20..])), (Ok(value), Ok(Part::End(5))));
        assert_eq!(part(b"STORED\r\nEND"), Ok(Part::Stored(8)));
        let refused = "SERVER_ERROR out of memory storing object";
        assert_eq!(part(format!("{refused}\r\n").as_bytes()), Ok(Part::Refused(refused, 43)));
    }

    #[test]
    fn nonsense_is_an_error() {
        for bad in [&b"VALUE k 0 x\r\n"[..], b"VALUE k 0 1\r\nabc", b"ERROR\r\n", &[b'x'; LINE]] {
            assert!(part(bad).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn requests_are_what_memcached_reads() {
        let (mut out, key) = (Vec::new(), String::from_utf8(Objects::key(7).to_vec()).unwrap());
        get(&[7, 7], &mut out);
        assert_eq!(
            String::from_utf8(std::mem::take(&mut out)).unwrap(),
            format!("get {key} {key}\r\n")
        );
        let objects = Objects::new(12);
        set(&objects, 7, "12", &mut out);
        let head = format!("set {key} 0 0 12\r\n");
        assert!(out.starts_with(head.as_bytes()) && out.ends_with(b"\r\n"));
        assert!(objects.is_value(7, &out[head.len()..out.len() - 2]));
    }
}
