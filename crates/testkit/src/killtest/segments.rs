//! Which parts of the flash the cache has given up to write there again: it says so in its log.

use std::{
    collections::{BTreeMap, HashSet},
    fs::File,
    io::{self, Read, Seek, SeekFrom},
    path::PathBuf,
    time::Duration,
};

/// What the log must tell for this.
pub(super) const LOG_LEVEL: &str =
    "info,afterglow_engine::segment=debug,afterglow_engine::background::reclaim=debug";

/// The segments that were ever opened, by offset.
pub(super) struct Segments {
    log: PathBuf,
    read_to: u64,
    /// Whether each is given up.
    given_up: BTreeMap<u64, bool>,
    /// Those that were given up since the mark, opened again or not.
    lately: HashSet<u64>,
    /// When those that were opened more than once were opened last.
    reopened: BTreeMap<u64, Duration>,
    /// How often something was given up.
    reclaims: u64,
}

impl Segments {
    pub(super) fn new(log: PathBuf) -> Segments {
        Segments {
            log,
            read_to: 0,
            given_up: BTreeMap::new(),
            lately: HashSet::new(),
            reopened: BTreeMap::new(),
            reclaims: 0,
        }
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
        self.reclaims += u64::from(given_up);
        let offset = line.split_ascii_whitespace().find_map(|word| word.strip_prefix("offset="));
        if let Some(offset) = offset.and_then(|offset| offset.parse().ok()) {
            let before = self.given_up.insert(offset, given_up);
            if given_up {
                self.lately.insert(offset);
            } else if before.is_some() {
                let time = line.split_ascii_whitespace().next().and_then(unix_time);
                // A time that cannot be read is the latest: then nothing there counts.
                self.reopened.insert(offset, time.unwrap_or(Duration::MAX));
            }
        }
    }

    /// How often the log has told so far that a segment was given up.
    pub(super) fn reclaims(&self) -> u64 {
        self.reclaims
    }

    /// From now on it is remembered what was given up.
    pub(super) fn mark(&mut self) -> io::Result<()> {
        self.update()?;
        self.lately.clear();
        Ok(())
    }

    /// Whether the cache need not serve the value at `offset`, cached since the Unix time `since`.
    /// That is so if its segment is given up, or was since the mark. It is also so if the segment
    /// was opened again since `since`: the value may be left from before.
    pub(super) fn is_given_up(&self, offset: u64, since: Duration) -> bool {
        let segment = self.given_up.range(..=offset).next_back();
        segment.is_some_and(|(start, given_up)| {
            let reopened = self.reopened.get(start).is_some_and(|time| *time >= since);
            *given_up || reopened || self.lately.contains(start)
        })
    }
}

/// The Unix time that stands at the start of a line of the log, such as
/// `2026-03-01T12:00:00.123456Z`.
fn unix_time(text: &str) -> Option<Duration> {
    let numbers: Vec<u64> = text
        .strip_suffix('Z')?
        .split(['-', 'T', ':', '.'])
        .map(|part| part.parse().ok())
        .collect::<Option<_>>()?;
    let [year, month, day, hour, minute, second, micros] = numbers[..] else { return None };
    // Days since 1970 in the Gregorian calendar, with years that begin in March.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days =
        365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1 - 719_468;
    Some(
        Duration::from_secs(((days * 24 + hour) * 60 + minute) * 60 + second)
            + Duration::from_micros(micros),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn given_up(segments: &Segments, offset: u64) -> bool {
        segments.is_given_up(offset, Duration::from_secs(1_772_366_400))
    }

    #[test]
    fn times_of_the_log_are_understood() {
        let noon = Duration::from_secs(1_772_366_400);
        assert_eq!(unix_time("2026-03-01T12:00:00.000000Z"), Some(noon));
        assert_eq!(
            unix_time("2026-03-01T12:00:01.250000Z"),
            Some(noon + Duration::from_millis(1250))
        );
        assert_eq!(unix_time("1970-01-01T00:00:00.000000Z"), Some(Duration::ZERO));
        assert_eq!(unix_time("x"), None);
    }

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
        assert!(!given_up(&segments, 1500) && !given_up(&segments, 2500));
        std::fs::write(
            &log,
            format!(
                "{}x segment reclaimed device=0 offset=1000\nx segment recl",
                std::fs::read_to_string(&log).unwrap()
            ),
        )
        .unwrap();
        segments.update().unwrap();
        assert!(
            given_up(&segments, 1500) && !given_up(&segments, 2500) && !given_up(&segments, 10)
        );
        std::fs::write(
            &log,
            std::fs::read_to_string(&log).unwrap()
                + "aimed\n2026-03-01T11:59:00.000000Z segment opened device=0 offset=1000\n",
        )
        .unwrap();
        segments.update().unwrap();
        assert!(given_up(&segments, 1500), "what is there now came after the mark");
        segments.mark().unwrap();
        assert!(!given_up(&segments, 1500));
        std::fs::remove_file(&log).unwrap();
    }
}
