//! Coverage marks: lines that say whether the simulation reached a rare path.

/// Marks a rare path, so that the simulation can tell how often it came there. Nothing at all
/// outside tests.
macro_rules! coverage_mark {
    ($path:ident) => {{
        #[cfg(test)]
        crate::sim::coverage::reach(crate::sim::coverage::Path::$path);
    }};
}
