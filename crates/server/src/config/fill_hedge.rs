//! When a fill is sent to a second node of the database: `p99`.

use std::{fmt, str::FromStr, time::Duration};

use super::{Invalid, Span};

/// When a fill that has no answer is sent to a second node of the database too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FillHedge {
    /// Never.
    Off,
    /// When it takes longer than that part of the fills before it, in thousandths: 990 is `p99`.
    Percentile(u32),
    /// When it has taken so long.
    After(Span),
}

/// Percentiles that are taken, in thousandths. More than half of all fills cannot be exceptions,
/// and what is above the last too few fills show.
const PERCENTILES: std::ops::RangeInclusive<u32> = 500..=999;

impl Default for FillHedge {
    fn default() -> Self {
        FillHedge::Percentile(990)
    }
}

impl FromStr for FillHedge {
    type Err = Invalid;

    fn from_str(text: &str) -> Result<Self, Invalid> {
        if text == "off" {
            return Ok(FillHedge::Off);
        }
        if let Some(number) = text.strip_prefix('p') {
            let permille = thousandths(number).filter(|permille| PERCENTILES.contains(permille));
            return permille.map(FillHedge::Percentile).ok_or_else(|| {
                Invalid::new(format!(
                    "`{text}` is not a percentile from p50 to p99.9: write it as in `p99`"
                ))
            });
        }
        let after = text.parse::<Span>().map_err(|why| {
            Invalid::new(format!("{why}. A percentile of recent fills is written as in `p99`"))
        })?;
        match after.get() {
            Duration::ZERO => Err(Invalid::new("write `off` for no hedge, or `1ms` and more")),
            _ => Ok(FillHedge::After(after)),
        }
    }
}

/// `99` or `99.5`.
fn thousandths(number: &str) -> Option<u32> {
    let (whole, tenth) = number.split_once('.').unwrap_or((number, "0"));
    let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.len() != 2 || tenth.len() != 1 || !is_number(whole) || !is_number(tenth) {
        return None;
    }
    Some(10 * whole.parse::<u32>().ok()? + tenth.parse::<u32>().ok()?)
}

impl fmt::Display for FillHedge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            FillHedge::Off => f.write_str("off"),
            FillHedge::Percentile(permille) if permille.is_multiple_of(10) => {
                write!(f, "p{}", permille / 10)
            }
            FillHedge::Percentile(permille) => write!(f, "p{}.{}", permille / 10, permille % 10),
            FillHedge::After(span) => span.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_printed_as_written() {
        for (text, hedge) in [
            ("off", FillHedge::Off),
            ("p50", FillHedge::Percentile(500)),
            ("p99", FillHedge::default()),
            ("p99.9", FillHedge::Percentile(999)),
            ("20ms", FillHedge::After(Span::new(Duration::from_millis(20)))),
        ] {
            assert_eq!(text.parse(), Ok(hedge), "{text}");
            assert_eq!(hedge.to_string(), text);
        }
    }

    #[test]
    fn a_refusal_says_what_to_write() {
        for (text, hint) in [
            ("p49", "p50 to p99.9"),
            ("p100", "p50 to p99.9"),
            ("p99.99", "p50 to p99.9"),
            ("p+9", "p50 to p99.9"),
            ("p", "p50 to p99.9"),
            ("0ms", "`off`"),
            ("20", "`20ms`"),
            ("always", "`p99`"),
        ] {
            let refused = text.parse::<FillHedge>().unwrap_err().to_string();
            assert!(refused.contains(hint), "{text}: {refused}");
        }
    }
}
