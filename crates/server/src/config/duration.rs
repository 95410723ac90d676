//! Durations: `250ms`.

use std::{fmt, str::FromStr, time::Duration};

use super::Invalid;

/// A length of time, written with a unit: `250ms`, `60s`, `5m`, `3h`, `1d`. Whole milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Span(Duration);

/// In milliseconds, largest first, so that printing takes the first that divides.
const UNITS: [(&str, u64); 5] =
    [("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1)];

/// A hundred years: anything longer is a typing error, and sums of two such never overflow.
const MAX_MS: u64 = 36_500 * 86_400_000;

impl Span {
    /// That long; what is below a millisecond is dropped.
    pub fn new(duration: Duration) -> Self {
        Span(Duration::from_millis(
            u64::try_from(duration.as_millis()).unwrap_or(MAX_MS).min(MAX_MS),
        ))
    }

    /// As the standard library has it.
    pub fn get(self) -> Duration {
        self.0
    }
}

impl FromStr for Span {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(split);
        let unit = unit.strip_prefix(' ').unwrap_or(unit);
        let wrong = |what: String| Err(Invalid::new(what));
        if digits.is_empty() {
            return wrong(format!(
                "`{text}` is not a duration: write a number and a unit, as in `60s` or `250ms`"
            ));
        }
        if unit.is_empty() {
            return wrong(format!("`{text}` has no unit: write `{digits}s` or `{digits}ms`"));
        }
        if unit.starts_with('.') {
            return wrong(format!(
                "`{text}` has a fraction: write a whole number of a smaller unit, as in `1500ms`"
            ));
        }
        let Some(&(_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return wrong(format!(
                "`{unit}` is not a unit of time: write one of ms, s, m, h, d, as in `60s`"
            ));
        };
        match digits
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(factor))
            .filter(|ms| *ms <= MAX_MS)
        {
            Some(ms) => Ok(Span(Duration::from_millis(ms))),
            None => wrong(format!("`{text}` is too long: at most 36500d")),
        }
    }
}

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = self.0.as_millis() as u64;
        // Up to two minutes people think in seconds: 60s rather than 1m.
        let units = if ms < 120_000 { &UNITS[3..] } else { &UNITS };
        let (name, factor) = match units.iter().find(|(_, factor)| ms.is_multiple_of(*factor)) {
            Some(unit) => *unit,
            None => ("ms", 1),
        };
        write!(f, "{}{name}", ms / factor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn units_are_what_they_say() {
        for (text, ms) in [
            ("250ms", 250),
            ("0s", 0),
            ("60s", 60_000),
            ("5m", 300_000),
            ("3h", 10_800_000),
            ("1 d", 86_400_000),
            ("36500d", MAX_MS),
        ] {
            assert_eq!(text.parse(), Ok(Span(Duration::from_millis(ms))), "{text}");
        }
    }

    #[test]
    fn a_refusal_says_what_to_write() {
        for (text, hint) in [
            ("60", "`60s` or `60ms`"),
            ("", "`250ms`"),
            ("soon", "`60s`"),
            ("-1s", "`60s`"),
            ("1.5s", "`1500ms`"),
            ("5 min", "one of ms, s, m, h, d"),
            ("250us", "one of ms, s, m, h, d"),
            ("5S", "one of ms, s, m, h, d"),
            ("36501d", "too long"),
            ("99999999999999999999s", "too long"),
        ] {
            let message = text.parse::<Span>().unwrap_err().0;
            assert!(message.contains(hint), "{text}: {message}");
        }
    }

    #[test]
    fn it_is_printed_as_people_say_it() {
        for text in ["0s", "250ms", "60s", "90s", "1500ms", "5m", "3h", "7d"] {
            assert_eq!(text.parse::<Span>().unwrap().to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn every_span_is_read_back_as_printed(ms in 0..=MAX_MS) {
            let span = Span(Duration::from_millis(ms));
            prop_assert_eq!(span.to_string().parse(), Ok(span));
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,12}") {
            let _ = text.parse::<Span>();
        }
    }
}
