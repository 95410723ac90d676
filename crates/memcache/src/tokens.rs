//! The tokens of a command line, split at spaces.

/// Most words memcached takes from a line at a time.
const MAX: usize = 23;

/// The words of a line.
#[derive(Debug)]
pub struct Tokens<'a> {
    words: [&'a [u8]; MAX],
    len: usize,
}

impl<'a> Tokens<'a> {
    /// Cuts a line at its spaces, into at most [`MAX`] words.
    pub fn of(line: &'a [u8]) -> Self {
        let mut tokens = Tokens { words: [&[]; MAX], len: 0 };
        for word in words(line).take(MAX) {
            tokens.words[tokens.len] = word;
            tokens.len += 1;
        }
        tokens
    }

    /// How many words.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Word `index`, empty when there are fewer.
    pub fn get(&self, index: usize) -> &'a [u8] {
        self.words[..self.len].get(index).copied().unwrap_or_default()
    }

    /// The last word.
    pub fn last(&self) -> &'a [u8] {
        self.get(self.len.wrapping_sub(1))
    }

    /// The words from `index` on.
    pub fn from(&self, index: usize) -> &[&'a [u8]] {
        self.words[..self.len].get(index..).unwrap_or_default()
    }
}

/// The words of a line, however many.
pub fn words(line: &[u8]) -> impl Iterator<Item = &[u8]> + Clone {
    line.split(|b| *b == b' ').filter(|word| !word.is_empty())
}

/// What follows the first `count` words of a line.
pub fn after(line: &[u8], count: usize) -> &[u8] {
    let mut rest = line;
    for _ in 0..count {
        let start = rest.iter().position(|b| *b != b' ').unwrap_or(rest.len());
        let len = rest[start..].iter().position(|b| *b == b' ').unwrap_or(rest.len() - start);
        rest = &rest[start + len..];
    }
    rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spaces_part_words_however_many() {
        let tokens = Tokens::of(b"  get  a b ");
        assert_eq!(tokens.from(0), [&b"get"[..], b"a", b"b"]);
        assert_eq!((tokens.len(), tokens.last(), tokens.get(9)), (3, &b"b"[..], &b""[..]));
        assert_eq!(after(b"  ms  a 2 T0 c", 3), b" T0 c");
        assert_eq!(after(b"mn", 3), b"");
    }
}
