//! Keys of requests that have come and are not decoded yet: what they need of memory can be asked
//! for together.

use crate::limits::MAX_KEY;

/// The words that gets begin with, each with the space behind it.
const COMMANDS: [&[u8]; 3] = [b"get ", b"mg ", b"gets "];
/// Most bytes of a line that are looked at: a command, a key, some flags.
const MOST: usize = MAX_KEY + 32;

/// The keys of the text requests at the front of `input` that get one object each: `get`, `gets`
/// and `mg`. It ends at whatever else comes, or is not whole.
///
/// This is a guess, for what is asked for ahead of time: none of these requests is checked.
pub fn keys_ahead(mut input: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let command = COMMANDS.into_iter().find(|command| input.starts_with(command))?;
        let rest = &input[command.len()..];
        let end = memchr::memchr(b'\n', &rest[..rest.len().min(MOST)])?;
        let line = rest[..end].strip_suffix(b"\r").unwrap_or(&rest[..end]);
        let key = line.split(|byte| *byte == b' ').next().unwrap_or(line);
        let flags = &line[key.len()..];
        let is_other = !flags.is_empty() && command != b"mg ";
        // A key in base64 is not the one that is looked up, and too long a one is none.
        let is_coded = memchr::memmem::find(flags, b" b").is_some();
        if key.is_empty() || key.len() > MAX_KEY || is_other || is_coded {
            return None;
        }
        input = &rest[end + 1..];
        Some(key)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ahead(input: &[u8]) -> Vec<&[u8]> {
        keys_ahead(input).collect()
    }

    #[test]
    fn keys_of_gets_of_one_object_are_seen_up_to_whatever_else_comes() {
        let gets = b"get one\r\nmg two v\r\ngets three\nmg four\r\n";
        let four: [&[u8]; 4] = [b"one", b"two", b"three", b"four"];
        assert_eq!(ahead(gets), four);
        for other in [
            "set five 0 0 1\r\nv\r\n",
            "get five six\r\n",
            "get  five\r\n",
            "mg Zml2ZQ== b v\r\n",
            "mg Zml2ZQ== v b\r\n",
            "get \r\n",
            "\r\n",
            "mn",
        ] {
            let input = [gets, other.as_bytes(), b"get seven\r\n"].concat();
            assert_eq!(ahead(&input), four, "{other:?}");
        }
    }

    #[test]
    fn what_is_not_whole_is_not_looked_at() {
        let input = b"get one\r\nget two\r\n";
        for len in 0..=input.len() {
            let whole = input[..len].iter().filter(|byte| **byte == b'\n').count();
            assert_eq!(ahead(&input[..len]).len(), whole, "of {len} bytes");
        }
        let longest = [b'k'; MAX_KEY + 1];
        let line = |len| [b"get ", &longest[..len], b"\r\n"].concat();
        assert_eq!(ahead(&line(MAX_KEY)), [&longest[..MAX_KEY]]);
        assert_eq!(ahead(&line(MAX_KEY + 1)), [b""; 0]);
        let long = [b"get ", &[b'k'; MOST][..], b"\r\n"].concat();
        assert_eq!(ahead(&long), [b""; 0]);
    }
}
