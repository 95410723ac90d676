//! Numbers with their units, as people read them in a terminal.

/// A number in three figures, with the letter of its thousands: `12.3k`.
pub(super) fn short(value: f64) -> String {
    for (letter, size) in [("G", 1e9), ("M", 1e6), ("k", 1e3)] {
        if value >= size * 10.0 || value >= size && size > 1e3 {
            return format!("{}{letter}", few(value / size));
        }
    }
    few(value)
}

fn few(value: f64) -> String {
    match value {
        v if v >= 100.0 || v == 0.0 => format!("{v:.0}"),
        v if v >= 10.0 => format!("{v:.1}"),
        v => format!("{v:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_figures_and_a_unit() {
        let told = [0.0, 3.333, 31.42, 9999.0, 12_345.0, 2e6].map(short).join(" ");
        assert_eq!(told, "0 3.33 31.4 9999 12.3k 2.00M");
    }
}
