//! Line charts as inline SVG.

use std::fmt::Write;

use super::table::escape;

/// One line.
pub(crate) struct Line {
    pub(crate) name: String,
    pub(crate) points: Vec<(f64, f64)>,
}

/// A chart. Points are in data units; `x_ticks` are places and their labels.
pub(crate) struct Chart<'a> {
    pub(crate) title: &'a str,
    pub(crate) x_label: &'a str,
    pub(crate) y_label: &'a str,
    pub(crate) logarithmic: bool,
    pub(crate) x_ticks: Vec<(f64, String)>,
    pub(crate) lines: Vec<Line>,
}

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 70.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 34.0;
const BOTTOM: f64 = 46.0;
/// Told apart by people who do not see red and green too (Okabe and Ito).
const COLOURS: [&str; 7] =
    ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000"];

impl<'a> Chart<'a> {
    /// Curves of latencies: each is a name with percentiles (0 to 100) and microseconds.
    pub(crate) fn of_latencies<'r>(
        title: &'a str,
        curves: impl Iterator<Item = (String, &'r [(f64, f64)])>,
    ) -> Self {
        // One unit per nine: 90 % at 1, 99 % at 2.
        let nines = |percentile: f64| -(1.0 - percentile / 100.0).max(1e-9).log10();
        let ticks = [
            (0.0, "0 %"),
            (50.0, "50 %"),
            (90.0, "90 %"),
            (99.0, "99 %"),
            (99.9, "99.9 %"),
            (99.99, "99.99 %"),
        ];
        let line = |(name, curve): (String, &[(f64, f64)])| Line {
            name,
            points: curve.iter().map(|(p, us)| (nines(*p), *us)).collect(),
        };
        Self {
            title,
            x_label: "percentile",
            y_label: "us",
            logarithmic: true,
            x_ticks: ticks.iter().map(|(p, label)| (nines(*p), (*label).to_owned())).collect(),
            lines: curves.map(line).collect(),
        }
    }
}

impl Chart<'_> {
    /// The `<svg>`; empty without points.
    pub(crate) fn svg(&self) -> String {
        let all = || {
            self.lines.iter().flat_map(|l| &l.points).filter(|(_, y)| !self.logarithmic || *y > 0.0)
        };
        let Some(&first) = all().next() else { return String::new() };
        let fold =
            |f: fn(f64, f64) -> f64, of: fn(&(f64, f64)) -> f64| all().map(of).fold(of(&first), f);
        let x_range = (fold(f64::min, |p| p.0), fold(f64::max, |p| p.0));
        let lowest = if self.logarithmic { fold(f64::min, |p| p.1) } else { 0.0 };
        let y_ticks = self.y_ticks(lowest, fold(f64::max, |p| p.1));
        let y_range = (y_ticks[0], y_ticks[y_ticks.len() - 1]);
        let place = |value: f64, (from, to): (f64, f64)| {
            if to > from { (value - from) / (to - from) } else { 0.5 }
        };
        let scale = |y: f64| if self.logarithmic { y.max(1e-12).log10() } else { y };
        let x = |v: f64| LEFT + place(v, x_range) * (WIDTH - LEFT - RIGHT);
        let y = |v: f64| {
            HEIGHT
                - BOTTOM
                - place(scale(v), (scale(y_range.0), scale(y_range.1))) * (HEIGHT - TOP - BOTTOM)
        };
        let mut svg = format!(
            "<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\" aria-label=\"{0}\"><text x=\"{LEFT}\" y=\"18\" class=\"title\">{0}</text>",
            escape(self.title)
        );
        for tick in &y_ticks {
            let _ = write!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{1:.1}\" y2=\"{1:.1}\" class=\"grid\"/><text x=\"{2:.1}\" y=\"{3:.1}\" class=\"end\">{4}</text>",
                WIDTH - RIGHT,
                y(*tick),
                LEFT - 6.0,
                y(*tick) + 4.0,
                short(*tick)
            );
        }
        for (at, label) in
            self.x_ticks.iter().filter(|(at, _)| (x_range.0..=x_range.1).contains(at))
        {
            let _ = write!(
                svg,
                "<text x=\"{:.1}\" y=\"{:.1}\" class=\"middle\">{}</text>",
                x(*at),
                HEIGHT - BOTTOM + 16.0,
                escape(label)
            );
        }
        self.write_axis_names(&mut svg);
        for (i, line) in self.lines.iter().enumerate() {
            let colour = COLOURS[i % COLOURS.len()];
            let points = line.points.iter().filter(|(_, v)| !self.logarithmic || *v > 0.0);
            let path: Vec<String> =
                points.map(|(a, b)| format!("{:.1},{:.1}", x(*a), y(*b))).collect();
            let _ = write!(
                svg,
                "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"1.8\"/><text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">{}</text>",
                path.join(" "),
                WIDTH - RIGHT + 8.0,
                TOP + 10.0 + 16.0 * i as f64,
                escape(&line.name)
            );
        }
        svg + "</svg>"
    }

    fn write_axis_names(&self, svg: &mut String) {
        let _ = write!(
            svg,
            "<text x=\"{:.1}\" y=\"{:.1}\" class=\"middle\">{}</text><text x=\"12\" y=\"{:.1}\" class=\"middle\" transform=\"rotate(-90 12 {3:.1})\">{}</text>",
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 8.0,
            escape(self.x_label),
            (TOP + HEIGHT - BOTTOM) / 2.0,
            escape(self.y_label)
        );
    }

    /// Places for lines across: powers of ten, or five to ten round steps. At least two, the first
    /// not above `lowest`.
    fn y_ticks(&self, lowest: f64, highest: f64) -> Vec<f64> {
        if self.logarithmic {
            let (from, to) = (lowest.log10().floor() as i32, highest.log10().ceil() as i32);
            return (from..=to.max(from + 1)).map(|e| 10f64.powi(e)).collect();
        }
        let rough = (highest / 6.0).max(1e-9);
        let magnitude = 10f64.powf(rough.log10().floor());
        let step = [1.0, 2.0, 5.0, 10.0]
            .into_iter()
            .map(|s| s * magnitude)
            .find(|s| *s >= rough)
            .unwrap_or(rough);
        let count = (highest / step).ceil().max(1.0) as u32;
        (0..=count).map(|i| f64::from(i) * step).collect()
    }
}

/// `1500000` as `1.5M`.
fn short(value: f64) -> String {
    let (scaled, unit) = match value.abs() {
        v if v >= 1e6 => (value / 1e6, "M"),
        v if v >= 1e3 => (value / 1e3, "k"),
        _ => (value, ""),
    };
    let text = format!("{scaled:.2}");
    format!("{}{unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chart(logarithmic: bool, points: Vec<(f64, f64)>) -> String {
        let lines = vec![Line { name: "a<b".into(), points }];
        Chart {
            title: "t",
            x_label: "x",
            y_label: "y",
            logarithmic,
            x_ticks: vec![(0.0, "zero".into())],
            lines,
        }
        .svg()
    }

    #[test]
    fn points_lie_inside_the_frame_and_names_are_escaped() {
        for logarithmic in [false, true] {
            let svg = chart(logarithmic, vec![(0.0, 3.0), (1.0, 7000.0), (2.0, 55.0)]);
            assert!(svg.contains("a&lt;b") && svg.contains(">zero<"));
            let points = svg.split("points=\"").nth(1).unwrap().split('"').next().unwrap();
            for point in points.split(' ') {
                let (x, y) = point.split_once(',').unwrap();
                let (x, y): (f64, f64) = (x.parse().unwrap(), y.parse().unwrap());
                assert!(
                    (LEFT..=WIDTH - RIGHT).contains(&x) && (TOP..=HEIGHT - BOTTOM).contains(&y),
                    "{point}"
                );
            }
        }
    }

    #[test]
    fn flat_single_and_empty_lines_do_no_harm() {
        assert!(!chart(false, vec![(0.0, 0.0), (1.0, 0.0)]).contains("NaN"));
        assert!(!chart(true, vec![(5.0, 100.0)]).contains("NaN"));
        assert_eq!(chart(true, vec![]), "");
        assert_eq!(short(1_500_000.0), "1.5M");
        assert_eq!(short(20.0), "20");
    }
}
