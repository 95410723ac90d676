//! The TTL that clients write, as an expiry: none, seconds from now, or a point in time.
//! The engine enforces expiry.

/// The expiry of what never expires.
pub const NEVER: u32 = 0;
/// An expiry that has passed.
pub const PAST: u32 = 1;
/// More seconds than this are a point in time, not a duration.
const LONGEST_RELATIVE: i64 = 60 * 60 * 24 * 30;

/// The second since 1970 in which an object expires, for a client that asks for `ttl` at second
/// `now`.
#[must_use]
pub fn expiry_of(ttl: i64, now: u64) -> u32 {
    let moment = match ttl {
        0 => return NEVER,
        ..0 => return PAST,
        1..=LONGEST_RELATIVE => now.saturating_add(ttl as u64),
        _ => ttl as u64,
    };
    if moment <= now { PAST } else { u32::try_from(moment).unwrap_or(u32::MAX) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn up_to_thirty_days_is_relative_and_beyond_a_moment() {
        let now = 1_800_000_000;
        for (ttl, expiry) in [
            (0, NEVER),
            (-1, PAST),
            (i64::from(i32::MIN), PAST),
            (1, 1_800_000_001),
            (LONGEST_RELATIVE, 1_802_592_000),
            (LONGEST_RELATIVE + 1, PAST),
            (1_800_000_000, PAST),
            (1_800_000_001, 1_800_000_001),
            (i64::from(u32::MAX) + 1, u32::MAX),
        ] {
            assert_eq!(expiry_of(ttl, now), expiry, "{ttl}");
        }
    }
}
