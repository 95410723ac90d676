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

/// Bytes: `64.0 MiB`.
pub(super) fn bytes(value: f64) -> String {
    let mut value = value;
    for unit in ["B", "KiB", "MiB", "GiB", "TiB"] {
        if value < 1024.0 {
            let digits = if unit == "B" { format!("{value:.0}") } else { few(value) };
            return format!("{digits} {unit}");
        }
        value /= 1024.0;
    }
    format!("{} PiB", few(value))
}

/// A part of one in percent; `-` where there is none.
pub(super) fn percent(part: Option<f64>) -> String {
    part.map_or_else(|| "-".into(), |part| format!("{:.1} %", part * 100.0))
}

/// A short time from microseconds; `-` where there is none.
pub(super) fn micros(value: Option<u64>) -> String {
    match value.map(|value| value as f64) {
        None => "-".into(),
        Some(value) if value < 1e3 => format!("{} us", few(value)),
        Some(value) if value < 1e6 => format!("{} ms", few(value / 1e3)),
        Some(value) => format!("{} s", few(value / 1e6)),
    }
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
        assert_eq!(
            [0.0, 3.333, 31.42, 9999.0, 12_345.0, 2e6].map(short).join(" "),
            "0 3.33 31.4 9999 12.3k 2.00M"
        );
        assert_eq!([17.0, 1024.0, 67_108_864.0].map(bytes).join(", "), "17 B, 1.00 KiB, 64.0 MiB");
        assert_eq!([None, Some(0.9512)].map(percent).join(" "), "- 95.1 %");
        assert_eq!(
            [None, Some(12), Some(3450), Some(1_200_000)].map(micros).join(", "),
            "-, 12.0 us, 3.45 ms, 1.20 s"
        );
    }
}
