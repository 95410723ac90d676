//! Values of the ring's settings.

use std::net::IpAddr;
use std::{fmt, str::FromStr};

use super::Invalid;
use super::address::HostPort;

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

/// Where other instances reach one: with a port, for there is no usual one.
///
/// # Errors
/// Says what is wrong with the text.
pub(super) fn ring_address(text: &str) -> Result<HostPort, Invalid> {
    let has_port = text.contains(':') && text.parse::<IpAddr>().is_err();
    let address = text.parse::<HostPort>().ok().filter(|_| has_port);
    let nowhere = |address: &HostPort| address.literal().is_some_and(|at| at.ip().is_unspecified());
    address.filter(|address| !nowhere(address)).ok_or_else(|| {
        Invalid::new(format!(
            "`{text}` is not where others can reach an instance: write `host:port`, as in \
             `cache-1.example.org:7946` or `[fd00::1]:7946`"
        ))
    })
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
    fn where_others_reach_an_instance_has_a_port() {
        for address in ["cache-1.example.org:7946", "10.0.0.5:7946", "[fd00::1]:7946"] {
            assert_eq!(ring_address(address).unwrap().to_string(), address);
        }
        for address in ["", "nonsense", ":7946", "a:0", "a:70000", "fd00::1", "0.0.0.0:7946"] {
            assert!(ring_address(address).is_err(), "{address}");
        }
    }

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
