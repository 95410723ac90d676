//! The users who may log in: names and passwords from a file, one `name:password` a line.

/// Names and passwords.
#[derive(Clone, Default)]
pub struct Users(Vec<User>);

/// Name and password.
type User = (Box<[u8]>, Box<[u8]>);

impl std::fmt::Debug for Users {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Users").field("count", &self.0.len()).finish_non_exhaustive()
    }
}

/// A file of users that cannot be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BadLine {
    /// Which line, from 1.
    pub line: usize,
    /// What it should be.
    pub expected: &'static str,
}

impl std::fmt::Display for BadLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "line {}: {}", self.line, self.expected)
    }
}

impl std::error::Error for BadLine {}

impl Users {
    /// Reads the content of a file. Empty lines and those that begin with `#` say nothing.
    ///
    /// # Errors
    /// The first line that is neither, and a file that names nobody.
    pub fn parse(text: &[u8]) -> Result<Self, BadLine> {
        let mut users = Vec::new();
        for (number, line) in (1..).zip(text.split(|b| *b == b'\n')) {
            let line = line.strip_suffix(b"\r").unwrap_or(line);
            if line.is_empty() || line[0] == b'#' {
                continue;
            }
            let bad = |expected| BadLine { line: number, expected };
            let colon = line.iter().position(|b| *b == b':').ok_or(bad("write `name:password`"))?;
            let (name, password) = (&line[..colon], &line[colon + 1..]);
            if name.is_empty() || password.is_empty() || line.iter().any(|b| matches!(b, b' ' | 0))
            {
                return Err(bad("write `name:password`, neither empty, without spaces"));
            }
            users.push((name.into(), password.into()));
        }
        if users.is_empty() {
            return Err(BadLine {
                line: 1,
                expected: "the file names nobody: write `name:password`",
            });
        }
        Ok(Users(users))
    }

    /// Whether that is one of them. Takes as long for every wrong password of one length.
    #[must_use]
    pub fn knows(&self, user: &[u8], password: &[u8]) -> bool {
        self.0
            .iter()
            .fold(false, |known, (name, word)| known | (same(name, user) & same(word, password)))
    }
}

fn same(a: &[u8], b: &[u8]) -> bool {
    a.len() == b.len() && a.iter().zip(b).fold(0, |differ, (a, b)| differ | (a ^ b)) == 0
}

/// Name and password in a message of SASL's PLAIN (RFC 4616): authorization, name and password,
/// parted by zeros.
#[must_use]
pub fn plain(message: &[u8]) -> Option<(&[u8], &[u8])> {
    let mut parts = message.split(|b| *b == 0);
    let (_, user, password) = (parts.next()?, parts.next()?, parts.next()?);
    parts.next().is_none().then_some((user, password))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_are_known_by_name_and_password() {
        let users = Users::parse(b"# who\nada:love:lace\r\n\nbob:b\n").unwrap();
        assert!(users.knows(b"ada", b"love:lace") && users.knows(b"bob", b"b"));
        for (name, password) in
            [("ada", "love"), ("bob", ""), ("", ""), ("bob", "bb"), ("eve", "b")]
        {
            assert!(!users.knows(name.as_bytes(), password.as_bytes()), "{name}");
        }
        for (bad, line) in [("", 1), ("a:b\nnobody\n", 2), ("a:\n", 1), (":b", 1), ("a b:c", 1)] {
            assert_eq!(Users::parse(bad.as_bytes()).unwrap_err().line, line, "{bad}");
        }
        assert!(!format!("{users:?}").contains("lace"));
    }

    #[test]
    fn a_plain_message_has_three_parts() {
        assert_eq!(plain(b"\0ada\0secret"), Some((&b"ada"[..], &b"secret"[..])));
        assert_eq!(plain(b"as\0ada\0secret"), Some((&b"ada"[..], &b"secret"[..])));
        assert!(plain(b"ada\0secret").is_none() && plain(b"\0a\0b\0c").is_none());
    }
}
