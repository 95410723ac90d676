//! Printing for people at a terminal.

/// Prints a line to standard output. Whoever closes the pipe early (`| head`) has seen enough: no
/// panic.
#[macro_export]
macro_rules! say {
    ($($words:tt)*) => {{
        use std::io::Write;
        let _ = writeln!(std::io::stdout(), $($words)*);
    }};
}
