//! Readers for public cache traces in the formats their publishers chose.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::path::Path;

/// How a decompressed trace is written down.
#[derive(Clone, Copy)]
enum Format {
    /// Big-endian 32-bit keys.
    Keys32,
    /// Big-endian 64-bit keys.
    Keys64,
    /// Lines of `time id size`.
    TimeIdSize,
    /// Lines of `start count _ sequence`: that many keys from the start on.
    Ranges,
    /// A key a line.
    Lines,
}

/// The traces: file and format.
const TRACES: [(&str, Format); 24] = [
    ("adapt-size.trace.xz", Format::TimeIdSize),
    ("web07.trace.xz", Format::Keys32),
    ("web12.trace.xz", Format::Keys32),
    ("w106.trace.xz", Format::Keys32),
    ("scarab-recs.trace.xz", Format::Keys64),
    ("arc-OLTP.lis.zst", Format::Ranges),
    ("P2.lis.zst", Format::Ranges),
    ("P3.lis.zst", Format::Ranges),
    ("P6.lis.zst", Format::Ranges),
    ("P12.lis.zst", Format::Ranges),
    ("orm-busy.trace.xz", Format::Keys32),
    ("orm-night.trace.xz", Format::Keys32),
    ("2_pools.trace", Format::Lines),
    ("cpp.trace", Format::Lines),
    ("cs.trace", Format::Lines),
    ("gli.trace", Format::Lines),
    ("loop.trace", Format::Lines),
    ("multi1.trace", Format::Lines),
    ("multi2.trace", Format::Lines),
    ("multi3.trace", Format::Lines),
    ("ps.trace", Format::Lines),
    ("scan.trace", Format::Lines),
    ("sprite.trace", Format::Lines),
    ("zigzag.trace", Format::Lines),
];

/// A request sequence, its keys numbered from 0 in order of appearance.
pub struct Trace {
    pub name: &'static str,
    pub requests: Vec<u32>,
    pub unique: usize,
}

/// Reads every trace that is in `dir`.
pub fn load(dir: &Path) -> io::Result<Vec<Trace>> {
    let present = TRACES.iter().filter(|(name, _)| dir.join(name).is_file());
    present.map(|&(name, format)| read(&dir.join(name), name, format)).collect()
}

/// Name of the synthetic trace.
pub const SYNTHETIC: &str = "Zipf 0.9, scans";

/// Names of the public traces.
pub fn names() -> impl Iterator<Item = &'static str> {
    TRACES.iter().map(|(name, _)| *name)
}

/// Draws by popularity as Zipf has it among 20,000 keys whose ranks move on slowly, and scans
/// through keys that are asked for once.
pub fn scanned() -> Trace {
    const KEYS: u32 = 20_000;
    const SCAN: u32 = 2_000;
    let mut draw = zipf(KEYS as usize, 0.9);
    let (mut requests, mut next) = (Vec::new(), KEYS);
    for round in 0..40 {
        // What was popular moves on, slowly.
        requests.extend((0..10_000).map(|_| (draw() + round * 50) % KEYS));
        requests.extend(next..next + SCAN);
        next += SCAN;
    }
    Trace { name: SYNTHETIC, requests, unique: next as usize }
}

/// Ranks below `unique`, drawn as Zipf has it with this exponent.
fn zipf(unique: usize, exponent: f64) -> impl FnMut() -> u32 {
    let mut below = Vec::with_capacity(unique);
    let mut sum = 0.0;
    for rank in 1..=unique {
        sum += (rank as f64).powf(-exponent);
        below.push(sum);
    }
    let mut state = 1u64;
    move || {
        // The high bits of Knuth's MMIX generator.
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let at = (state >> 11) as f64 / (1u64 << 53) as f64 * sum;
        below.partition_point(|&end| end <= at) as u32
    }
}

/// Independent draws: all keys alike, and by popularity as Zipf has it, with the given exponent.
pub fn drawn() -> [Trace; 3] {
    [("uniform", 0.0), ("Zipf 0.7", 0.7), ("Zipf 0.99", 0.99)].map(|(name, exponent)| {
        let unique = 50_000;
        let mut draw = zipf(unique, exponent);
        Trace { name, requests: (0..3_000_000).map(|_| draw()).collect(), unique }
    })
}

fn read(path: &Path, name: &'static str, format: Format) -> io::Result<Trace> {
    let file = BufReader::new(File::open(path)?);
    let stream: Box<dyn Read> = if name.ends_with(".xz") {
        Box::new(lzma_rust2::XzReader::new(file, true))
    } else if name.ends_with(".trace") {
        Box::new(file)
    } else {
        Box::new(ruzstd::decoding::StreamingDecoder::new(file).map_err(io::Error::other)?)
    };
    let mut numbers = HashMap::new();
    let mut requests = Vec::new();
    decode(BufReader::new(stream), format, &mut |key| {
        let next = numbers.len() as u32;
        requests.push(*numbers.entry(key).or_insert(next));
    })?;
    Ok(Trace { name, requests, unique: numbers.len() })
}

fn decode(mut stream: impl BufRead, format: Format, each: &mut impl FnMut(u64)) -> io::Result<()> {
    match format {
        Format::Keys32 | Format::Keys64 => {
            let width = if matches!(format, Format::Keys32) { 4 } else { 8 };
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes)?;
            for key in bytes.chunks_exact(width) {
                each(key.iter().fold(0, |key, &byte| key << 8 | u64::from(byte)));
            }
        }
        Format::TimeIdSize => {
            for line in stream.lines() {
                each(field(&line?, 1)?);
            }
        }
        Format::Ranges => {
            for line in stream.lines() {
                let line = line?;
                let (start, count) = (field(&line, 0)?, field(&line, 1)?);
                (start..start + count).for_each(&mut *each);
            }
        }
        Format::Lines => {
            for line in stream.lines() {
                let line = line?;
                // Between parts of a trace there is a line of `*`, or an empty one.
                if !matches!(line.trim(), "" | "*") {
                    each(field(&line, 0)?);
                }
            }
        }
    }
    Ok(())
}

fn field(line: &str, n: usize) -> io::Result<u64> {
    let parsed = line.split_ascii_whitespace().nth(n).and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| {
        io::Error::new(io::ErrorKind::InvalidData, format!("no number in field {n} of {line:?}"))
    })
}
