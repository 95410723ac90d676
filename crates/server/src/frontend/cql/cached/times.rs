//! Timeouts and intervals of the cached path.

use std::time::Duration;

/// Spans of time that nobody sets but tests.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    /// Lifetime of the lease in the database, in whole seconds.
    pub lease: Duration,
    /// Part of it that we give away, for clocks of database nodes that differ.
    pub margin: Duration,
    /// Maximum age of a row whose fill may not see the last acknowledged write, in whole seconds.
    pub weak_max_age: Duration,
    /// A fill that has no answer by then is given up, and its client's own request is sent.
    pub fill: Duration,
}

impl Default for Times {
    fn default() -> Self {
        Times {
            lease: Duration::from_secs(60),
            margin: Duration::from_secs(5),
            weak_max_age: Duration::from_secs(60),
            // Servers give up a read after 5 s themselves.
            fill: Duration::from_secs(6),
        }
    }
}
