//! Values of the ring's settings.

use std::{fmt, str::FromStr};

use super::Invalid;

/// A name of 1 to 64 letters, digits, dots, dashes and underscores.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ShortName(String);

impl ShortName {
    /// A name that is known to be good.
    pub(super) fn new(name: &str) -> Self {
        ShortName(name.to_owned())
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ShortName {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
        match (1..=64).contains(&text.len()) && text.chars().all(is_name) {
            true => Ok(ShortName(text.to_owned())),
            false => Err(Invalid::new(format!(
                "`{text}` is not a name: write 1 to 64 letters, digits, `.`, `-` or `_`"
            ))),
        }
    }
}

impl fmt::Display for ShortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A part beside the parts of others, up to a million.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Weight(u32);

impl Default for Weight {
    fn default() -> Self {
        Weight(100)
    }
}

impl Weight {
    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl FromStr for Weight {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        match text.parse() {
            Ok(weight @ 0..=1_000_000) => Ok(Weight(weight)),
            _ => Err(Invalid::new(format!(
                "`{text}` is not a weight: write a number from 0 to 1000000"
            ))),
        }
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_weights_are_read_back_and_others_refused() {
        for name in ["a", "rack-1", "eu_west.2"] {
            assert_eq!(name.parse::<ShortName>().unwrap().to_string(), name);
        }
        for name in ["", "a b", "ä", &"x".repeat(65)] {
            assert!(name.parse::<ShortName>().is_err(), "{name}");
        }
        assert_eq!("0".parse::<Weight>().unwrap().get(), 0);
        assert!("-1".parse::<Weight>().is_err() && "1000001".parse::<Weight>().is_err());
    }
}
