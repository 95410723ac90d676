//! Histories of concurrent reads and writes, and the judgement over them.

mod checker;
mod client;

use std::io::{self, BufRead, Write};

pub use checker::{Event, Fault, HistoryError, OperationKind, Verdict, Violation, check, residue};
pub use client::{History, HistoryOptions};

/// Writes events as JSON, one a line.
pub fn write_events(events: &[Event], mut out: impl Write) -> io::Result<()> {
    for event in events {
        serde_json::to_writer(&mut out, event)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// Reads events as [`write_events`] writes them; blank lines are skipped. The error names the line.
pub fn read_events(input: impl BufRead) -> io::Result<Vec<Event>> {
    let mut events = Vec::new();
    for (i, line) in input.lines().enumerate() {
        let line = line?;
        if !line.trim().is_empty() {
            let event = serde_json::from_str(&line).map_err(|e| {
                io::Error::new(io::ErrorKind::InvalidData, format!("line {}: {e}", i + 1))
            })?;
            events.push(event);
        }
    }
    Ok(events)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_their_file_and_bad_lines_are_named() {
        let text = "{\"op\":\"write\",\"key\":1,\"value\":5,\"start\":10,\"end\":null,\"order\":7}\n\n\
                    {\"op\":\"read\",\"key\":1,\"value\":null,\"start\":20,\"end\":30}\n";
        let events = read_events(text.as_bytes()).unwrap();
        assert_eq!(
            (events[0].op, events[0].order, events[1].value),
            (OperationKind::Write, Some(7), None)
        );
        let mut out = Vec::new();
        write_events(&events, &mut out).unwrap();
        assert_eq!(read_events(out.as_slice()).unwrap(), events);
        let error = read_events("{\"op\":\"write\"}".as_bytes()).unwrap_err().to_string();
        assert!(error.contains("line 1") && error.contains("key"), "{error}");
    }
}
