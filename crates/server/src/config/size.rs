//! Sizes: `4GiB`.

use std::{fmt, str::FromStr};

use super::Invalid;

/// A number of bytes, written with a unit: `4GiB`, `512MiB`, `100GB`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(u64);

/// Largest first, so that printing takes the first that divides. Binary before decimal.
const UNITS: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("KB", 1_000),
    ("B", 1),
];

impl Size {
    /// That many bytes.
    pub const fn bytes(bytes: u64) -> Self {
        Size(bytes)
    }

    /// That many times 2^20 bytes.
    pub const fn mib(count: u64) -> Self {
        Size(count << 20)
    }

    /// That many times 2^30 bytes.
    pub const fn gib(count: u64) -> Self {
        Size(count << 30)
    }

    /// In bytes.
    pub const fn get(self) -> u64 {
        self.0
    }
}

impl FromStr for Size {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (digits, unit) = text.split_at(split);
        let unit = unit.strip_prefix(' ').unwrap_or(unit);
        if digits.is_empty() {
            return Err(Invalid::new(format!(
                "`{text}` is not a size: write a number and a unit, as in `4GiB`"
            )));
        }
        if unit.starts_with('.') {
            return Err(Invalid::new(format!(
                "`{text}` has a fraction: write a whole number of a smaller unit, as in `1536MiB` for one and a half GiB"
            )));
        }
        let Some(&(_, factor)) = UNITS.iter().find(|(name, _)| *name == unit) else {
            return Err(unknown_unit(text, digits, unit));
        };
        let too_large = || Invalid::new(format!("`{text}` is too large: at most 16777215TiB"));
        digits
            .parse::<u64>()
            .ok()
            .and_then(|n| n.checked_mul(factor))
            .map(Size)
            .ok_or_else(too_large)
    }
}

/// People write `4G`, `4gb` and `4096`; each could mean two things, so the answer is both ways to
/// say it.
fn unknown_unit(text: &str, digits: &str, unit: &str) -> Invalid {
    let prefix = unit.chars().next().map(|c| c.to_ascii_uppercase());
    Invalid::new(match (unit, prefix) {
        ("", _) => format!(
            "`{text}` has no unit: write `{digits}MiB`, `{digits}GiB`, or `{digits}B` for plain bytes"
        ),
        (_, Some(p @ ('K' | 'M' | 'G' | 'T'))) if unit.len() <= 3 => {
            format!(
                "`{text}` does not say which unit: write `{digits}{p}iB` (powers of 1024) or `{digits}{p}B` (powers of 1000)"
            )
        }
        _ => format!(
            "`{unit}` is not a unit of size: write one of B, KiB, MiB, GiB, TiB, KB, MB, GB, TB, as in `4GiB`"
        ),
    })
}

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let divides =
            |(_, factor): &&(&str, u64)| self.0 >= *factor && self.0.is_multiple_of(*factor);
        let (name, factor) = UNITS.iter().find(divides).copied().unwrap_or(("B", 1));
        write!(f, "{}{name}", self.0 / factor)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn units_are_what_they_say() {
        for (text, bytes) in [
            ("0B", 0),
            ("1KiB", 1024),
            ("1KB", 1000),
            ("256MiB", 256 << 20),
            ("4GiB", 4 << 30),
            ("4 GiB", 4 << 30),
            ("100GB", 100_000_000_000),
            ("2TiB", 2 << 40),
            ("18446744073709551615B", u64::MAX),
        ] {
            assert_eq!(text.parse(), Ok(Size(bytes)), "{text}");
        }
    }

    #[test]
    fn a_refusal_says_what_to_write() {
        for (text, hint) in [
            ("4G", "`4GiB` (powers of 1024) or `4GB` (powers of 1000)"),
            ("4gb", "`4GiB`"),
            ("512mib", "`512MiB`"),
            ("4096", "`4096B` for plain bytes"),
            ("1.5GiB", "`1536MiB`"),
            ("", "`4GiB`"),
            ("-1GiB", "`4GiB`"),
            ("lots", "`4GiB`"),
            ("4 parsecs", "not a unit of size"),
            ("4  GiB", "not a unit of size"),
            ("18446744073709551616B", "too large"),
            ("16777216TiB", "too large"),
        ] {
            let message = text.parse::<Size>().unwrap_err().0;
            assert!(message.contains(hint), "{text}: {message}");
        }
    }

    proptest! {
        #[test]
        fn every_size_is_read_back_as_printed(bytes: u64) {
            prop_assert_eq!(Size(bytes).to_string().parse(), Ok(Size(bytes)));
        }

        #[test]
        fn no_text_makes_it_panic(text in ".{0,12}") {
            let _ = text.parse::<Size>();
        }
    }
}
