//! Has a server finished warming up? A JVM climbs for 50 s, a cache until it holds what is hot.

/// Tells when a series of equally long windows has become level.
#[derive(Clone, Debug)]
pub struct Flatness {
    windows: usize,
    tolerance: f64,
    values: Vec<f64>,
}

impl Flatness {
    /// Level has two conditions over the last `windows` (at least 3) values. The fitted line rises
    /// or falls by at most `tolerance` (a fraction) of their mean. The averages of the later and
    /// the earlier half differ by at most as much.
    pub fn new(windows: usize, tolerance: f64) -> Self {
        Self { windows: windows.max(3), tolerance, values: Vec::new() }
    }

    /// Adds the figure of one window, throughput for instance; true once level.
    pub fn push(&mut self, value: f64) -> bool {
        self.values.push(value);
        self.is_flat()
    }

    /// All figures so far.
    pub fn values(&self) -> &[f64] {
        &self.values
    }

    /// Whether the last windows are level.
    pub fn is_flat(&self) -> bool {
        let Some(start) = self.values.len().checked_sub(self.windows) else { return false };
        let last = &self.values[start..];
        let mean = average(last);
        if mean <= 0.0 {
            return false;
        }
        let half = last.len() / 2;
        let step = (average(&last[last.len() - half..]) - average(&last[..half])).abs();
        let rise = slope(last).abs() * (last.len() - 1) as f64;
        rise <= self.tolerance * mean && step <= self.tolerance * mean
    }
}

fn average(values: &[f64]) -> f64 {
    values.iter().sum::<f64>() / values.len() as f64
}

/// Least squares over the positions 0, 1, 2, ...
fn slope(values: &[f64]) -> f64 {
    let middle = (values.len() - 1) as f64 / 2.0;
    let (mut covariance, mut variance) = (0.0, 0.0);
    for (i, value) in values.iter().enumerate() {
        let x = i as f64 - middle;
        covariance += x * value;
        variance += x * x;
    }
    covariance / variance
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flat_at(values: impl IntoIterator<Item = f64>) -> Option<usize> {
        let mut flatness = Flatness::new(5, 0.05);
        values.into_iter().position(|v| flatness.push(v))
    }

    #[test]
    fn a_warming_server_is_not_flat_until_it_is() {
        // 7 K/s climbing to 33 K/s over 25 windows, as a JVM does, then level with 2 % of noise.
        let climb = (0..25).map(|i| 7_000.0 + 26_000.0 * (1.0 - (-f64::from(i) / 6.0).exp()));
        let level = (0..20).map(|i| 33_000.0 * if i % 2 == 0 { 1.01 } else { 0.99 });
        let at = flat_at(climb.chain(level)).unwrap();
        assert!((15..30).contains(&at), "{at}");
    }

    #[test]
    fn a_steady_climb_and_a_steady_fall_are_never_flat() {
        assert_eq!(flat_at((0..50).map(|i| 1000.0 * 1.05f64.powi(i))), None);
        assert_eq!(flat_at((0..50).map(|i| 1000.0 * 0.95f64.powi(i))), None);
    }

    #[test]
    fn too_few_windows_or_no_traffic_is_not_flat() {
        assert_eq!(flat_at([100.0; 4]), None);
        assert_eq!(flat_at([100.0; 5]), Some(4));
        assert_eq!(flat_at([0.0; 50]), None);
    }

    #[test]
    fn a_jump_in_the_middle_is_not_flat() {
        assert_eq!(flat_at([100.0, 100.0, 100.0, 130.0, 130.0]), None);
    }
}
