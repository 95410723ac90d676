//! Which values stand on flash, found by their own bytes: nothing here knows how the engine lays
//! them out.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::{self, Read},
    path::Path,
};

use memchr::memmem::Finder;

use super::rows;

/// Where values stand, by key and number.
pub(super) type Found = HashMap<(u64, u64), Vec<u64>>;

const STEP: usize = 8 << 20;

/// The (key, number) pairs of `wanted` whose whole value is somewhere in the file or device, with
/// the offsets of all places. Values have `largest` bytes at most. Nobody may be writing to it.
pub(super) fn find(path: &Path, wanted: &HashSet<(u64, u64)>, largest: u64) -> io::Result<Found> {
    let mut file = File::open(path)?;
    // What was written past the page cache must not be read from it.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    let mut found = Found::new();
    let mut start = 0;
    let finder = Finder::new(&rows::MAGIC);
    let mut buffer = Vec::with_capacity(STEP + largest as usize);
    loop {
        let before = buffer.len();
        (&mut file).take(STEP as u64).read_to_end(&mut buffer)?;
        let last = buffer.len() == before;
        // A value that starts behind this may not be whole yet.
        let end = if last { buffer.len() } else { buffer.len().saturating_sub(largest as usize) };
        let mut at = 0;
        while let Some(next) =
            finder.find(&buffer[at..]).map(|next| at + next).filter(|next| *next < end)
        {
            at = next + rows::MAGIC.len();
            let Some((key, number, len)) = rows::head(&buffer[next..]) else { continue };
            let value = buffer.get(next..next.saturating_add(len.min(largest) as usize));
            if wanted.contains(&(key, number))
                && value.and_then(|v| rows::number(key, v)) == Some(number)
            {
                found.entry((key, number)).or_default().push(start + next as u64);
            }
        }
        if last {
            return Ok(found);
        }
        buffer.drain(..end);
        start += end as u64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_values_are_found_wherever_they_are_and_torn_ones_are_not() {
        let path = std::env::temp_dir().join(format!("afterglow-scan-{}", std::process::id()));
        let mut bytes = vec![1; 1000];
        bytes.extend(rows::value(1, 10, 500));
        bytes.resize(STEP - 100, 0);
        bytes.extend(rows::value(2, 20, 5_000)); // over the edge of a step
        bytes.extend(&rows::value(3, 30, 500)[..400]); // torn
        bytes.extend(vec![0; 300]);
        bytes.extend(rows::value(4, 41, 500)); // another write than the one wanted
        bytes.extend(rows::value(5, 50, 500)); // at the very end
        std::fs::write(&path, &bytes).unwrap();
        let wanted = HashSet::from([(1, 10), (2, 20), (3, 30), (4, 40), (5, 50)]);
        let found = find(&path, &wanted, 5_000).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(found[&(1, 10)], [1000]);
        assert_eq!(
            found.into_keys().collect::<HashSet<_>>(),
            HashSet::from([(1, 10), (2, 20), (5, 50)])
        );
    }
}
