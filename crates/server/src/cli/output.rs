//! The outcome of every command, here and in the tools: text on standard output, or a failure with
//! its exit status.

use std::io::Write;

/// Something went wrong while running.
const FAILED: u8 = 1;
/// Flags or configuration are wrong; also clap's own.
const USAGE: u8 = 2;

/// Why a command ended without success; the message is for the person who typed it.
#[derive(Debug)]
pub struct Failure {
    /// The exit status.
    pub code: u8,
    /// Empty when the log has said it.
    pub message: String,
}

impl Failure {
    /// Flags, environment or file are wrong.
    pub fn usage(message: impl ToString) -> Self {
        Failure { code: USAGE, message: message.to_string() }
    }

    /// It did not work, and the log has said why.
    pub fn said() -> Self {
        Failure::failed("")
    }

    /// All was said rightly, and still it did not work.
    pub fn failed(message: impl ToString) -> Self {
        Failure { code: FAILED, message: message.to_string() }
    }
}

/// Prints to standard output. A reader that went away (`| head`) is no error.
///
/// # Errors
/// It cannot be written.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != std::io::ErrorKind::BrokenPipe => {
            Err(Failure::failed(format!("error: cannot write: {e}")))
        }
        _ => Ok(()),
    }
}
