//! Protocol versions that are not supported, and the answers to them.

use super::error::FrameError;
use super::header::{Flags, Version};
use crate::error::ProtocolError;

/// Names of the versions up to one.
pub(crate) fn names_up_to(highest: Version) -> Vec<&'static str> {
    Version::ALL.iter().filter(|v| **v <= highest).map(|v| v.name()).collect()
}

/// The answer to a version that is not spoken here, or is above the `highest` that the database
/// speaks. It is in that version if it is an older one, otherwise in the highest. The connection
/// lives on.
///
/// The version after the highest is in every release of Cassandra one that is still being made. It
/// is listed as supported, as a server lists it, but not spoken. A client that asks for it with its
/// flag is refused as for any other version.
pub fn unsupported_version(number: u8, highest: Version) -> FrameError {
    let text = format!(
        "Invalid or unsupported protocol version ({number}); supported versions are ({}, {})",
        names_up_to(highest).join(", "),
        beta_after(highest)
    );
    let old = (1..Version::ALL[0].as_u8()).contains(&number);
    let version = if old { number } else { highest.as_u8() };
    FrameError {
        error: ProtocolError::new(text),
        stream: 0,
        version,
        flags: Flags::NONE,
        fatal: false,
    }
}

/// The answer to an envelope of a version that is not spoken, seen with its flags.
pub fn refused_version(number: u8, flags: Flags, highest: Version) -> FrameError {
    if !is_beta(number, highest) || flags.contains(Flags::USE_BETA) {
        return unsupported_version(number, highest);
    }
    let text = format!(
        "Beta version of the protocol used ({}), but USE_BETA flag is unset",
        beta_after(highest)
    );
    // Whatever is said in such a version says so.
    let flags = Flags::USE_BETA;
    FrameError { error: ProtocolError::new(text), stream: 0, version: number, flags, fatal: false }
}

/// Whether this is the version that servers which speak up to `highest` have begun.
pub fn is_beta(number: u8, highest: Version) -> bool {
    number == highest.as_u8() + 1
}

fn beta_after(highest: Version) -> String {
    let number = highest.as_u8() + 1;
    format!("{number}/v{number}-beta")
}
