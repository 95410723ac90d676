//! Tokens of CQL, as strict as Cassandra's own lexer (its grammar file `Lexer.g`).
//!
//! That grammar leaves open which token wins where a number runs into a name. This lexer then gives
//! up: the text is not understood, which is always safe.

/// What a token is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A keyword or an unquoted name.
    Word,
    /// `"name"`, not empty.
    Quoted,
    /// `""`.
    EmptyQuoted,
    /// `'text'` or `$$text$$`.
    String,
    /// Digits, perhaps with a minus.
    Integer,
    /// A number with a point or exponent.
    Float,
    /// `true`, `false`.
    Boolean,
    /// A duration.
    Duration,
    /// A uuid.
    Uuid,
    /// `0x...`.
    Hex,
    /// `-NaN`, `-Infinity`.
    NegativeSpecial,
    /// Punctuation and operators.
    Symbol,
}

/// A token and its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Token<'a> {
    pub(crate) kind: Kind,
    pub(crate) text: &'a str,
}

impl Token<'_> {
    pub(crate) fn is_symbol(&self, symbol: &str) -> bool {
        self.kind == Kind::Symbol && self.text == symbol
    }

    pub(crate) fn is_word(&self, word: &str) -> bool {
        self.kind == Kind::Word && self.text.eq_ignore_ascii_case(word)
    }

    /// The content of a quoted name or string, escapes undone.
    pub(crate) fn unquoted(&self) -> String {
        let inner =
            |width: usize| self.text.get(width..self.text.len() - width).unwrap_or_default();
        match self.text.as_bytes().first() {
            Some(b'\'') => inner(1).replace("''", "'"),
            Some(b'"') => inner(1).replace("\"\"", "\""),
            Some(b'$') => inner(2).to_owned(),
            _ => self.text.to_owned(),
        }
    }
}

/// Most tokens that are kept of a client's text: 4.5 MiB, whatever its length. A statement with as
/// many markers as there may be (65,535), and a comma behind each, has fewer.
pub(crate) const MOST_TOKENS: usize = 3 << 16;

/// The tokens of a text one after the other, without white space and comments. They end where the
/// text does, or before what is no token.
pub(crate) struct Tokens<'a> {
    rest: &'a str,
}

impl<'a> Tokens<'a> {
    pub(crate) fn of(text: &'a str) -> Tokens<'a> {
        Tokens { rest: text }
    }

    /// What has not been read yet. Empty if the tokens have ended because the text has.
    pub(crate) fn rest(&self) -> &'a str {
        self.rest
    }
}

impl<'a> Iterator for Tokens<'a> {
    type Item = Token<'a>;

    fn next(&mut self) -> Option<Token<'a>> {
        self.rest = skip_hidden(self.rest)?;
        let (kind, length) = token(self.rest)?;
        let (text, rest) = self.rest.split_at(length);
        self.rest = rest;
        Some(Token { kind, text })
    }
}

/// Text with something in it that is no token: the rest from there.
#[derive(Debug)]
pub(crate) struct Broken<'a> {
    pub(crate) rest: &'a str,
}

/// All tokens of `text`, however many.
///
/// # Errors
/// [`Broken`], if not all of it is tokens.
pub(crate) fn tokens(text: &str) -> Result<Vec<Token<'_>>, Broken<'_>> {
    let mut all = Tokens::of(text);
    let tokens = all.by_ref().collect();
    if all.rest().is_empty() { Ok(tokens) } else { Err(Broken { rest: all.rest() }) }
}

/// Skips white space and comments. `None` if a comment does not end: a line comment needs its line
/// end.
fn skip_hidden(mut text: &str) -> Option<&str> {
    loop {
        text = text.trim_start_matches([' ', '\t', '\n', '\r']);
        if text.starts_with("--") || text.starts_with("//") {
            text = &text[text.find(['\n', '\r'])?..];
        } else if let Some(comment) = text.strip_prefix("/*") {
            text = &comment[comment.find("*/")? + 2..];
        } else {
            return Some(text);
        }
    }
}

/// Kind and length of the token that `text` begins with. `None` also for no text.
fn token(text: &str) -> Option<(Kind, usize)> {
    let bytes = text.as_bytes();
    match *bytes.first()? {
        b'\'' => quoted(bytes, b'\'').map(|length| (Kind::String, length)),
        b'"' => quoted(bytes, b'"')
            .map(|length| (if length == 2 { Kind::EmptyQuoted } else { Kind::Quoted }, length)),
        b'$' => dollar_string(text).map(|length| (Kind::String, length)),
        b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' if is_uuid(bytes) => whole(bytes, 36, Kind::Uuid),
        b'0'..=b'9' => number(bytes),
        b'A'..=b'Z' | b'a'..=b'z' => Some(word(text)),
        b'-' => minus(text),
        _ => symbol(text),
    }
}

fn is_word_byte(byte: Option<&u8>) -> bool {
    byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_')
}

/// A token of that length, if nothing that could belong to it follows.
fn whole(bytes: &[u8], length: usize, kind: Kind) -> Option<(Kind, usize)> {
    (!is_word_byte(bytes.get(length))).then_some((kind, length))
}

fn quoted(bytes: &[u8], quote: u8) -> Option<usize> {
    let mut at = 1;
    loop {
        at += bytes.get(at..)?.iter().position(|byte| *byte == quote)? + 1;
        if bytes.get(at) != Some(&quote) {
            return Some(at);
        }
        at += 1;
    }
}

fn dollar_string(text: &str) -> Option<usize> {
    let inner = text.strip_prefix("$$")?;
    Some(inner.find("$$")? + 4)
}

fn is_uuid(bytes: &[u8]) -> bool {
    const HYPHENS: [usize; 4] = [8, 13, 18, 23];
    bytes.get(..36).is_some_and(|uuid| {
        uuid.iter().enumerate().all(|(at, byte)| match HYPHENS.contains(&at) {
            true => *byte == b'-',
            false => byte.is_ascii_hexdigit(),
        })
    })
}

fn count_digits(bytes: &[u8], from: usize) -> usize {
    bytes.get(from..).unwrap_or_default().iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// A number, duration or hexadecimal constant that begins with a digit.
fn number(bytes: &[u8]) -> Option<(Kind, usize)> {
    if let [b'0', b'x' | b'X', digits @ ..] = bytes {
        let length = 2 + digits.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
        return whole(bytes, length, Kind::Hex);
    }
    let integer = count_digits(bytes, 0);
    let after = &bytes[integer..];
    // `1..2` is a range, but `1...2` is `1.` and a range.
    let pointed =
        after.starts_with(b".") && (!after.starts_with(b"..") || after.starts_with(b"..."));
    let mut end = integer;
    if pointed {
        end += 1;
        end += if after.starts_with(b"...") { 0 } else { count_digits(bytes, end) };
    }
    let exponent = exponent(&bytes[end..]);
    end += exponent;
    if pointed || exponent > 0 {
        return whole(bytes, end, Kind::Float);
    }
    match duration(bytes) {
        Some(length) => whole(bytes, length, Kind::Duration),
        None => whole(bytes, integer, Kind::Integer),
    }
}

fn exponent(bytes: &[u8]) -> usize {
    let sign = match bytes {
        [b'e' | b'E', b'+' | b'-', ..] => 2,
        [b'e' | b'E', ..] => 1,
        _ => return 0,
    };
    match count_digits(bytes, sign) {
        0 => 0,
        digits => sign + digits,
    }
}

/// Length of `1h30m` and the like.
fn duration(bytes: &[u8]) -> Option<usize> {
    const UNITS: [&[u8]; 11] =
        [b"mo", b"ms", b"us", "\u{b5}s".as_bytes(), b"ns", b"y", b"w", b"d", b"h", b"m", b"s"];
    let mut end = 0;
    loop {
        let digits = count_digits(bytes, end);
        let after = &bytes[end + digits..];
        let fits = |unit: &&&[u8]| {
            after.get(..unit.len()).is_some_and(|head| head.eq_ignore_ascii_case(unit))
        };
        match UNITS.iter().find(fits).filter(|_| digits > 0) {
            Some(unit) => end += digits + unit.len(),
            None => return (end > 0).then_some(end),
        }
    }
}

/// Length of an ISO 8601 duration. Its letters are upper case only; anything else beginning with P
/// is a name.
fn iso_duration(bytes: &[u8]) -> Option<usize> {
    const ALTERNATIVE: &[u8] = b"P0000-00-00T00:00:00";
    let like_pattern = |(byte, pattern): (&u8, &u8)| {
        if *pattern == b'0' { byte.is_ascii_digit() } else { byte == pattern }
    };
    if bytes
        .get(..ALTERNATIVE.len())
        .is_some_and(|head| head.iter().zip(ALTERNATIVE).all(like_pattern))
    {
        return Some(ALTERNATIVE.len());
    }
    let rest = bytes.strip_prefix(b"P")?;
    let weeks = designated(rest, b"W");
    let length = if weeks > 0 {
        weeks
    } else {
        let date = designated(rest, b"YMD");
        let time = rest[date..].strip_prefix(b"T").map_or(0, |time| designated(time, b"HMS"));
        date + if time > 0 { time + 1 } else { 0 }
    };
    (length > 0 && !is_word_byte(bytes.get(1 + length))).then_some(1 + length)
}

/// Length of numbers each followed by one of `letters`, which may be left out but keep their order.
fn designated(bytes: &[u8], letters: &[u8]) -> usize {
    let mut end = 0;
    for letter in letters {
        let digits = count_digits(bytes, end);
        if digits > 0 && bytes.get(end + digits) == Some(letter) {
            end += digits + 1;
        }
    }
    end
}

fn word_length(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| is_word_byte(Some(byte))).count()
}

fn word(text: &str) -> (Kind, usize) {
    if let Some(length) = iso_duration(text.as_bytes()) {
        return (Kind::Duration, length);
    }
    let length = word_length(text.as_bytes());
    let word = &text[..length];
    let boolean = word.eq_ignore_ascii_case("true") || word.eq_ignore_ascii_case("false");
    (if boolean { Kind::Boolean } else { Kind::Word }, length)
}

/// What a minus begins.
fn minus(text: &str) -> Option<(Kind, usize)> {
    let after = &text[1..];
    let bytes = after.as_bytes();
    if bytes.first().is_some_and(u8::is_ascii_digit) {
        // A minus does not belong to a hexadecimal constant.
        return number(bytes)
            .filter(|(kind, _)| *kind != Kind::Hex)
            .map(|(kind, length)| (kind, length + 1));
    }
    if let Some(length) = iso_duration(bytes) {
        return Some((Kind::Duration, length + 1));
    }
    let word = &after[..word_length(bytes)];
    if word.eq_ignore_ascii_case("nan") || word.eq_ignore_ascii_case("infinity") {
        return Some((Kind::NegativeSpecial, word.len() + 1));
    }
    Some((Kind::Symbol, if after.starts_with('=') { 2 } else { 1 }))
}

fn symbol(text: &str) -> Option<(Kind, usize)> {
    let length = match text.as_bytes() {
        [b'.', b'.', ..] | [b'<' | b'>' | b'!' | b'+', b'=', ..] => 2,
        [b';' | b',' | b'(' | b')' | b'[' | b']' | b'{' | b'}' | b'.' | b':' | b'?', ..] => 1,
        [b'=' | b'<' | b'>' | b'+' | b'*' | b'/' | b'%', ..] => 1,
        _ => return None,
    };
    Some((Kind::Symbol, length))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kinds(text: &str) -> Option<Vec<(Kind, &str)>> {
        tokens(text)
            .ok()
            .map(|tokens| tokens.into_iter().map(|token| (token.kind, token.text)).collect())
    }

    fn one(text: &str) -> Option<Kind> {
        match kinds(text)?.as_slice() {
            [(kind, whole)] if *whole == text => Some(*kind),
            _ => None,
        }
    }

    #[test]
    fn each_kind_of_token_is_known() {
        let table = [
            ("select", Kind::Word),
            ("a_1", Kind::Word),
            ("P1", Kind::Word),
            ("p1y", Kind::Word),
            ("\"A\"\"b\"", Kind::Quoted),
            ("\"\"", Kind::EmptyQuoted),
            ("\"\"\"\"", Kind::Quoted),
            ("'it''s'", Kind::String),
            ("''", Kind::String),
            ("$$it's$$", Kind::String),
            ("$$$$", Kind::String),
            ("12", Kind::Integer),
            ("-12", Kind::Integer),
            ("1.", Kind::Float),
            ("1.5", Kind::Float),
            ("-1.5e-3", Kind::Float),
            ("1e5", Kind::Float),
            ("1.e5", Kind::Float),
            ("TRUE", Kind::Boolean),
            ("1h30m", Kind::Duration),
            ("1mo", Kind::Duration),
            ("2\u{b5}s", Kind::Duration),
            ("-1d", Kind::Duration),
            ("P1Y2M3DT4H5M6S", Kind::Duration),
            ("-P2W", Kind::Duration),
            ("PT1H", Kind::Duration),
            ("P0001-02-03T04:05:06", Kind::Duration),
            ("123e4567-e89b-12d3-a456-426655440000", Kind::Uuid),
            ("deadbeef-e89b-12d3-a456-426655440000", Kind::Uuid),
            ("0xCAFE", Kind::Hex),
            ("0x", Kind::Hex),
            ("-NaN", Kind::NegativeSpecial),
            ("-infinity", Kind::NegativeSpecial),
            ("..", Kind::Symbol),
            ("-=", Kind::Symbol),
        ];
        for (text, kind) in table {
            assert_eq!(one(text), Some(kind), "{text}");
        }
    }

    #[test]
    fn what_the_server_would_not_read_is_broken() {
        let table = [
            "-- x", "a -- x", "//", "/* x", "'a", "\"a", "$$a", "1abc", "0xg", "-0x1", "\u{e9}",
            "a\u{a0}b", "#", "1ex",
        ];
        for text in table {
            assert!(tokens(text).is_err(), "{text}");
        }
    }

    #[test]
    fn comments_hide_and_minus_binds_to_digits() {
        assert_eq!(kinds("a -- x\nb // y\rc /* ' */ d").map(|t| t.len()), Some(4));
        assert_eq!(kinds("5-3"), Some(vec![(Kind::Integer, "5"), (Kind::Integer, "-3")]));
        assert_eq!(kinds("a - 3").map(|t| t.len()), Some(3));
        assert_eq!(
            kinds("1..2"),
            Some(vec![(Kind::Integer, "1"), (Kind::Symbol, ".."), (Kind::Integer, "2")])
        );
        assert_eq!(kinds("1...2").map(|t| t[0]), Some((Kind::Float, "1.")));
        assert_eq!(kinds("'--' x").map(|t| t.len()), Some(2));
    }
}
