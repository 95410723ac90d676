//! What can be wrong with bytes from the database or another instance.

use std::fmt;

/// Why bytes are not what they should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Malformed {
    /// They end too early.
    Short,
    /// A format that this version does not know: a newer instance wrote them.
    Version,
    /// A kind, a place or a mark that this version does not know.
    Unknown,
    /// More than there may be.
    TooMuch,
    /// Text that is not UTF-8.
    Text,
    /// Members that are not in the order of their ids.
    Order,
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Short => "the bytes end too early",
            Self::Version => "a newer format: upgrade this instance",
            Self::Unknown => "a mark that this version does not know: upgrade this instance",
            Self::TooMuch => "more than the format allows",
            Self::Text => "text that is not UTF-8",
            Self::Order => "members that are not in the order of their ids",
        })
    }
}

impl std::error::Error for Malformed {}
