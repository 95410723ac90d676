//! What the log says, of all tests that run in this process.

use std::io::{self, Write};
use std::sync::{Mutex, Once};

static LINES: Mutex<String> = Mutex::new(String::new());

struct Lines;

impl Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LINES.lock().unwrap().push_str(&String::from_utf8_lossy(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Keeps warnings and errors from now on.
pub fn keep_log() {
    static STARTED: Once = Once::new();
    STARTED.call_once(|| {
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_ansi(false)
            .with_writer(|| Lines)
            .init();
    });
}

/// How many lines have all these parts. A test names what no other test has.
pub fn logged(parts: &[&str]) -> usize {
    let lines = LINES.lock().unwrap();
    lines.lines().filter(|line| parts.iter().all(|part| line.contains(part))).count()
}
