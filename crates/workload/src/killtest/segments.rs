//! Which parts of the flash the cache has given up to write there again: it says so in its log.

use std::{
    collections::{BTreeMap, HashSet},
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::PathBuf,
};

/// What the log must tell for this.
pub(super) const LOG_LEVEL: &str =
    "info,afterglow_engine::segment=debug,afterglow_engine::driver::reclaim=debug";

/// The segments that were ever opened, by offset.
pub(super) struct Segments {
    log: PathBuf,
    read_to: u64,
    /// Whether each is given up.
    given_up: BTreeMap<u64, bool>,
    /// Those that were given up since the mark, opened again or not.
    lately: HashSet<u64>,
}

impl Segments {
    pub(super) fn new(log: PathBuf) -> Segments {
        Segments { log, read_to: 0, given_up: BTreeMap::new(), lately: HashSet::new() }
    }

    /// Reads on in the log.
    pub(super) fn update(&mut self) -> io::Result<()> {
        let mut file = File::open(&self.log)?;
        file.seek(SeekFrom::Start(self.read_to))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        self.read_to += whole as u64;
        String::from_utf8_lossy(&bytes[..whole]).lines().for_each(|line| self.note(line));
        Ok(())
    }

    fn note(&mut self, line: &str) {
        let given_up = line.contains("segment reclaimed");
        if !given_up && !line.contains("segment opened") {
            return;
        }
        let offset = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("offset="));
        if let Some(offset) = offset.and_then(|offset| offset.parse().ok()) {
            self.given_up.insert(offset, given_up);
            if given_up {
                self.lately.insert(offset);
            }
        }
    }

    /// From now on it is remembered what was given up.
    pub(super) fn mark(&mut self) -> io::Result<()> {
        self.update()?;
        self.lately.clear();
        Ok(())
    }

    /// Whether what stands at `offset` is in a segment that is given up, or was since the mark.
    pub(super) fn is_given_up(&self, offset: u64) -> bool {
        let segment = self.given_up.range(..=offset).next_back();
        segment.is_some_and(|(start, given_up)| *given_up || self.lately.contains(start))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_tells_what_was_given_up() {
        let log = std::env::temp_dir().join(format!("afterglow-segments-{}", std::process::id()));
        std::fs::write(
            &log,
            "x DEBUG y: segment opened device=0 offset=1000\nx segment opened device=0 offset=2000\n",
        )
        .unwrap();
        let mut segments = Segments::new(log.clone());
        segments.update().unwrap();
        assert!(!segments.is_given_up(1500) && !segments.is_given_up(2500));
        std::fs::write(
            &log,
            format!(
                "{}x segment reclaimed device=0 offset=1000\nx segment recl",
                std::fs::read_to_string(&log).unwrap()
            ),
        )
        .unwrap();
        segments.update().unwrap();
        assert!(segments.is_given_up(1500) && !segments.is_given_up(2500) && !segments.is_given_up(10));
        std::fs::write(
            &log,
            std::fs::read_to_string(&log).unwrap() + "aimed\nx segment opened device=0 offset=1000\n",
        )
        .unwrap();
        segments.update().unwrap();
        assert!(segments.is_given_up(1500), "what is there now came after the mark");
        segments.mark().unwrap();
        assert!(!segments.is_given_up(1500));
        std::fs::remove_file(&log).unwrap();
    }
}
