//! The members of a JSON object, read strictly (RFC 8259).
//!
//! Servers read JSON with different libraries, and some take more than the standard. What is read
//! here means the same to all of them; any other text is refused. Values inside of members are
//! checked and skipped.

/// Deepest nesting that is read.
const MAX_DEPTH: u32 = 64;
/// Most members that are read: more than tables have columns, which they are.
const MAX_MEMBERS: usize = 1 << 14;

/// The value of a member.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum JsonValue {
    /// `null`
    Null,
    /// `true` or `false`
    Boolean(bool),
    /// A number as written.
    Number(String),
    /// A string, unescaped.
    String(String),
    /// An array or an object.
    Nested,
}

/// Names and values in the order of the text, names as often as they are there. `None` if the text
/// is anything but one JSON object, or has more members than columns can be.
pub(crate) fn members(text: &str) -> Option<Vec<(String, JsonValue)>> {
    let mut reader = JsonReader { text, at: 0 };
    reader.space();
    let mut members = Vec::new();
    reader.object(0, |member| {
        members.push(member);
        (members.len() <= MAX_MEMBERS).then_some(())
    })?;
    reader.space();
    (reader.at == text.len()).then_some(members)
}

struct JsonReader<'t> {
    text: &'t str,
    at: usize,
}

impl JsonReader<'_> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\n' | b'\r')) {
            self.at += 1;
        }
    }

    fn take(&mut self, what: &str) -> Option<()> {
        self.text.as_bytes()[self.at..].starts_with(what.as_bytes()).then_some(())?;
        self.at += what.len();
        Some(())
    }

    /// `{ "name": value, ... }`, each member given to `keep`, which may refuse it.
    fn object(
        &mut self,
        depth: u32,
        mut keep: impl FnMut((String, JsonValue)) -> Option<()>,
    ) -> Option<()> {
        self.take("{")?;
        self.space();
        if self.take("}").is_some() {
            return Some(());
        }
        loop {
            self.space();
            let name = self.string()?;
            self.space();
            self.take(":")?;
            keep((name, self.value(depth)?))?;
            if self.take(",").is_none() {
                return self.take("}");
            }
        }
    }

    fn array(&mut self, depth: u32) -> Option<()> {
        self.take("[")?;
        self.space();
        if self.take("]").is_some() {
            return Some(());
        }
        loop {
            self.value(depth)?;
            if self.take(",").is_none() {
                return self.take("]");
            }
        }
    }

    /// A value with the space around it.
    fn value(&mut self, depth: u32) -> Option<JsonValue> {
        if depth == MAX_DEPTH {
            return None;
        }
        self.space();
        let value = match self.peek()? {
            b'{' => self.object(depth + 1, |_| Some(())).map(|()| JsonValue::Nested),
            b'[' => self.array(depth + 1).map(|()| JsonValue::Nested),
            b'"' => self.string().map(JsonValue::String),
            b't' => self.take("true").map(|()| JsonValue::Boolean(true)),
            b'f' => self.take("false").map(|()| JsonValue::Boolean(false)),
            b'n' => self.take("null").map(|()| JsonValue::Null),
            _ => self.number().map(JsonValue::Number),
        };
        self.space();
        value
    }

    /// `-1`, `0`, `1.5`, `1e-5`
    fn number(&mut self) -> Option<String> {
        let start = self.at;
        let _ = self.take("-");
        match self.digits()? {
            digits if digits > 1 && self.text.as_bytes()[self.at - digits] == b'0' => return None,
            _ => {}
        }
        if self.take(".").is_some() {
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(self.text[start..self.at].to_owned())
    }

    /// Digits, at least one: how many.
    fn digits(&mut self) -> Option<usize> {
        let start = self.at;
        while self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            self.at += 1;
        }
        (self.at > start).then_some(self.at - start)
    }

    fn string(&mut self) -> Option<String> {
        self.take("\"")?;
        let mut string = String::new();
        loop {
            let rest = self.text.get(self.at..)?;
            let plain = rest.find(|c| c == '"' || c == '\\' || c < ' ')?;
            string.push_str(&rest[..plain]);
            self.at += plain;
            match self.peek()? {
                b'"' => {
                    self.at += 1;
                    return Some(string);
                }
                b'\\' => string.push(self.escape()?),
                _ => return None,
            }
        }
    }

    /// One character from `\n`, `\u00e9` or `\ud83d\ude00`.
    fn escape(&mut self) -> Option<char> {
        self.take("\\")?;
        let kind = self.peek()?;
        self.at += 1;
        Some(match kind {
            b'"' => '"',
            b'\\' => '\\',
            b'/' => '/',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.unit()?;
                let mut units = vec![first];
                if (0xd800..0xdc00).contains(&first) {
                    self.take("\\u")?;
                    units.push(self.unit()?);
                }
                let mut characters = char::decode_utf16(units);
                let character = characters.next()?.ok()?;
                characters.next().is_none().then_some(character)?
            }
            _ => return None,
        })
    }

    /// Four hexadecimal digits.
    fn unit(&mut self) -> Option<u16> {
        let digits = self.text.get(self.at..self.at + 4)?;
        let all = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
        self.at += 4;
        if all { u16::from_str_radix(digits, 16).ok() } else { None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_members_are_read_than_columns_can_be() {
        let object = |count: usize| {
            let members: Vec<_> = (0..count).map(|n| format!("\"{n}\":1")).collect();
            format!("{{{}}}", members.join(","))
        };
        assert_eq!(members(&object(MAX_MEMBERS)).map(|all| all.len()), Some(MAX_MEMBERS));
        assert_eq!(members(&object(MAX_MEMBERS + 1)), None);
        let nested = format!("{{\"m\": {}}}", object(2 * MAX_MEMBERS));
        assert_eq!(members(&nested), Some(vec![("m".into(), JsonValue::Nested)]));
    }

    fn string(text: &str) -> Option<String> {
        match members(&format!("{{\"a\": {text}}}"))?.pop()?.1 {
            JsonValue::String(string) => Some(string),
            _ => None,
        }
    }

    #[test]
    fn members_come_in_order_and_as_often_as_they_are_there() {
        let read = members(
            "\n{\"k\" : 1,\"B\":true, \"k\":\"x\",\t\"\": null, \"n\": -1.5e+3, \"o\": {\"k\": [1, {}, []]}} ",
        );
        let expected = [
            ("k", JsonValue::Number("1".into())),
            ("B", JsonValue::Boolean(true)),
            ("k", JsonValue::String("x".into())),
            ("", JsonValue::Null),
            ("n", JsonValue::Number("-1.5e+3".into())),
            ("o", JsonValue::Nested),
        ];
        assert_eq!(read, Some(expected.map(|(name, value)| (name.to_owned(), value)).to_vec()));
        assert_eq!(members("{}"), Some(Vec::new()));
    }

    #[test]
    fn strings_are_unescaped() {
        assert_eq!(
            string(r#""a\"b\\\/\b\f\n\r\t\u00e9\ud83d\ude00é""#).as_deref(),
            Some("a\"b\\/\u{8}\u{c}\n\r\t\u{e9}\u{1f600}\u{e9}")
        );
        for refused in [
            r#""\ud800""#,
            r#""\ud800\u0041""#,
            r#""\udc00""#,
            r#""\x41""#,
            r#""\u+041""#,
            r#""\u00e""#,
            "\"\n\"",
            "\"a",
            "'a'",
        ] {
            assert_eq!(string(refused), None, "{refused}");
        }
    }

    #[test]
    fn all_but_one_strict_object_is_refused() {
        for refused in [
            "",
            "null",
            "[]",
            "{} {}",
            "{\"a\": 1,}",
            "{\"a\": 01}",
            "{\"a\": -}",
            "{\"a\": 1.}",
            "{\"a\": .5}",
            "{\"a\": 1e}",
            "{\"a\": +1}",
            "{\"a\": NaN}",
            "{\"a\": tru}",
            "{\"a\" 1}",
            "{a: 1}",
            "{\"a\": 1} // x",
            "{\"a\": [1,]}",
            "{\"a\": {\"b\": 1,}}",
            "{\"a\": 1",
            "\u{feff}{}",
            "{\"a\": 1\u{a0}}",
        ] {
            assert_eq!(members(refused), None, "{refused}");
        }
        let nested =
            |depth: usize| format!("{{\"a\": {}{}}}", "[".repeat(depth), "]".repeat(depth));
        assert!(members(&nested(MAX_DEPTH as usize)).is_some());
        assert_eq!(members(&nested(MAX_DEPTH as usize + 1)), None);
        assert_eq!(members(&nested(100_000)), None);
    }
}
