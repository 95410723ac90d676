//! Keys for a cache of plans of unprepared statements.

use crate::lexer;

/// Texts longer than this are not worth keeping plans for.
pub const MAX_TEXT: usize = 16 << 10;

/// A key under which the plan of `text` may be kept, together with the keyspace it was made for. It
/// is the text's tokens without comments and white space. Names and keywords are folded, literals
/// are as written. Two texts have one key only if they have the same tokens, so a plan is never
/// taken for another statement's. `None` for text that is too long or no CQL.
///
/// Literals are part of the key: a stream of texts that differ in their literals fills the cache,
/// so it must be bounded.
pub fn normalise(text: &str) -> Option<String> {
    if text.len() > MAX_TEXT {
        return None;
    }
    let tokens = lexer::tokens(text).ok()?;
    let mut key = String::with_capacity(text.len() + tokens.len());
    for token in tokens {
        if !key.is_empty() {
            key.push(' ');
        }
        match token.kind {
            lexer::Kind::Word | lexer::Kind::Boolean => {
                key.extend(token.text.chars().map(|c| c.to_ascii_lowercase()));
            }
            _ => key.push_str(token.text),
        }
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::statement::parse;

    #[test]
    fn what_differs_in_form_only_has_one_key() {
        let key = normalise("SELECT v FROM t WHERE k = 1 AND c = 'X'");
        assert!(key.is_some());
        assert_eq!(normalise("select  V from T\nwhere k=1 /* c */ and c='X'"), key);
    }

    #[test]
    fn what_differs_in_meaning_has_two_keys() {
        let texts = [
            "SELECT v FROM t WHERE c = 5",
            "SELECT v FROM t WHERE c > 5",
            "SELECT v FROM t WHERE c >= 5",
            "SELECT v FROM t WHERE c = -5",
            "SELECT v FROM t WHERE c = '5'",
            "SELECT v FROM t WHERE c = ?",
            "SELECT v FROM t WHERE c = :c",
            "SELECT v FROM t WHERE \"C\" = 5",
            "SELECT v FROM \"t \" WHERE c = 5",
            "SELECT v FROM t WHERE c = 'a b'",
            "SELECT v FROM t WHERE c = 'a  b'",
            "SELECT v FROM t WHERE c = 'A b'",
            "SELECT v FROM t WHERE c = '/* */a b'",
            "SELECT v FROM t WHERE c = 5;",
        ];
        let keys: std::collections::HashSet<_> =
            texts.iter().map(|text| normalise(text).unwrap()).collect();
        assert_eq!(keys.len(), texts.len());
    }

    #[test]
    fn text_that_is_no_cql_has_no_key() {
        for text in ["SELECT 'open", "a -- b", "\u{e9}", &"a ".repeat(MAX_TEXT)] {
            assert_eq!(normalise(text), None);
        }
    }

    proptest! {
        /// The key is itself CQL with the very tokens of the text, so equal keys mean equal tokens.
        #[test]
        fn the_key_reads_back_as_the_text(text in "[-aAbpP01.xe'\"$/*?:=<> \n]{0,24}") {
            if let Some(key) = normalise(&text) {
                let again = normalise(&key);
                prop_assert_eq!(again.as_ref(), Some(&key));
                prop_assert_eq!(
                    lexer::tokens(&key).unwrap().iter().map(|t| t.kind).collect::<Vec<_>>(),
                    lexer::tokens(&text).unwrap().iter().map(|t| t.kind).collect::<Vec<_>>()
                );
            }
        }
    }

    #[test]
    fn the_key_means_what_the_text_means() {
        let text = "SELECT V, \"B\"  FROM T WHERE k=-1 AND c='x''y'\n AND d=1.5e3";
        assert_eq!(parse(&normalise(text).unwrap()), parse(text));
    }
}
