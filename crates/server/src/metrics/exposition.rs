//! Prometheus' text format 0.0.4, and OpenMetrics 1.0.0 for those who ask for it.

use std::fmt::{Display, Write};

/// How a value behaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows; its name ends in `_total`.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Buckets, count and sum.
    Histogram,
}

/// Which of the two formats is written. They differ in the headers of counters and in the end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum TextFormat {
    /// Prometheus 0.0.4.
    #[default]
    Prometheus,
    /// OpenMetrics 1.0.0.
    OpenMetrics,
}

impl TextFormat {
    /// What an `Accept` header asks for.
    pub fn accepted(header: &str) -> TextFormat {
        if header.contains("application/openmetrics-text") {
            TextFormat::OpenMetrics
        } else {
            TextFormat::Prometheus
        }
    }

    /// The `Content-Type` of the text.
    pub fn content_type(self) -> &'static str {
        match self {
            TextFormat::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
            TextFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// Collects the text. Write a family's header, then all its samples, then the next family.
#[derive(Debug, Default)]
pub struct Exposition {
    text: String,
    format: TextFormat,
}

impl Exposition {
    /// An empty text.
    pub fn new(format: TextFormat) -> Exposition {
        Exposition { text: String::new(), format }
    }

    /// Starts a family. The name carries the unit: `_bytes`, `_seconds`, `_total`.
    pub fn header(&mut self, name: &str, kind: Kind, help: &str) {
        debug_assert_eq!(name.ends_with("_total"), kind == Kind::Counter, "{name}");
        let family = match self.format {
            TextFormat::Prometheus => name,
            TextFormat::OpenMetrics => name.trim_end_matches("_total"),
        };
        let kind = match kind {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        // Writing to a string cannot fail, here and below.
        let _ = write!(self.text, "# HELP {family} {help}\n# TYPE {family} {kind}\n");
    }

    /// Adds one value.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: impl Display) {
        self.text.push_str(name);
        self.labels(labels, None);
        let _ = writeln!(self.text, " {value}");
    }

    /// A family of one value without labels, header and all.
    pub fn single(&mut self, name: &str, kind: Kind, help: &str, value: impl Display) {
        self.header(name, kind, help);
        self.sample(name, &[], value);
    }

    /// Adds a histogram from `(upper bound in microseconds, count)` in rising order and the sum in
    /// nanoseconds.
    pub(super) fn histogram(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        buckets: impl Iterator<Item = (Option<u64>, u64)>,
        sum_ns: u64,
    ) {
        let bound = |us| (us as f64 / 1e6).to_string();
        let buckets = buckets.map(|(us, count)| (us.map(bound), count));
        self.buckets(name, labels, buckets, sum_ns as f64 / 1e9);
    }

    /// As [`Exposition::histogram`], of whole seconds.
    pub(super) fn seconds(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        buckets: impl Iterator<Item = (Option<u32>, u64)>,
        sum: u64,
    ) {
        // OpenMetrics wants `1.0`, not `1`.
        let bound = |seconds| format!("{seconds}.0");
        let buckets = buckets.map(|(seconds, count)| (seconds.map(bound), count));
        self.buckets(name, labels, buckets, sum);
    }

    fn buckets(
        &mut self,
        name: &str,
        labels: &[(&str, &str)],
        buckets: impl Iterator<Item = (Option<String>, u64)>,
        sum: impl Display,
    ) {
        let mut count = 0;
        for (bound, inside) in buckets {
            count += inside;
            let _ = write!(self.text, "{name}_bucket");
            self.labels(labels, Some(bound.as_deref().unwrap_or("+Inf")));
            let _ = writeln!(self.text, " {count}");
        }
        self.sample(&format!("{name}_sum"), labels, sum);
        self.sample(&format!("{name}_count"), labels, count);
    }

    fn labels(&mut self, labels: &[(&str, &str)], le: Option<&str>) {
        let mut open = '{';
        for (name, value) in labels.iter().copied().chain(le.map(|bound| ("le", bound))) {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            let _ = write!(self.text, "{open}{name}=\"{value}\"");
            open = ',';
        }
        if open == ',' {
            self.text.push('}');
        }
    }

    /// The text.
    pub fn finish(mut self) -> String {
        if self.format == TextFormat::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_values_and_help_are_escaped() {
        let mut out = Exposition::default();
        out.header("x_bytes", Kind::Gauge, "one\ntwo \\ three");
        out.sample("x_bytes", &[("path", "a\"b\\c\nd"), ("n", "1")], 7);
        assert_eq!(
            out.finish(),
            "# HELP x_bytes one\\ntwo \\\\ three\n# TYPE x_bytes gauge\nx_bytes{path=\"a\\\"b\\\\c\\nd\",n=\"1\"} 7\n"
        );
    }

    #[test]
    fn histogram_buckets_are_cumulative_and_in_seconds() {
        let mut out = Exposition::default();
        out.histogram(
            "d_seconds",
            &[("p", "q")],
            [(Some(1), 2), (Some(1_500_000), 3), (None, 1)].into_iter(),
            2_500_000_000,
        );
        assert_eq!(
            out.finish(),
            "d_seconds_bucket{p=\"q\",le=\"0.000001\"} 2\nd_seconds_bucket{p=\"q\",le=\"1.5\"} 5\n\
             d_seconds_bucket{p=\"q\",le=\"+Inf\"} 6\nd_seconds_sum{p=\"q\"} 2.5\nd_seconds_count{p=\"q\"} 6\n"
        );
    }
}
