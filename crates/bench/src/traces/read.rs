//! Readers for public traces in the formats their publishers chose.

use std::{
    collections::HashMap,
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};

use crate::BenchError;

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
}

/// The traces: file and format.
const TRACES: [(&str, Format); 6] = [
    ("adapt-size.trace.xz", Format::TimeIdSize),
    ("web07.trace.xz", Format::Keys32),
    ("web12.trace.xz", Format::Keys32),
    ("w106.trace.xz", Format::Keys32),
    ("scarab-recs.trace.xz", Format::Keys64),
    ("arc-OLTP.lis.zst", Format::Ranges),
];

/// Longest range of keys that a line may stand for: more is damage.
const LONGEST_RANGE: u64 = 1 << 20;

/// One request for an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Number of the object.
    pub key: u32,
    /// Bytes of its value at this moment.
    pub len: u32,
}

/// A sequence of requests, its objects numbered from 0 in order of appearance.
#[derive(Clone, Debug)]
pub struct Trace {
    /// Its file's name up to the first dot.
    pub name: String,
    /// The requests.
    pub requests: Vec<Request>,
    /// How many objects there are.
    pub unique: usize,
    /// Bytes of all objects, each at its first size.
    pub bytes: u64,
    /// Whether the trace says how large its objects are.
    pub sized: bool,
}

impl Trace {
    /// A trace of these requests, by the keys of its publisher.
    pub fn of(name: &str, sized: bool, requests: impl IntoIterator<Item = (u64, u32)>) -> Self {
        let (mut numbers, mut bytes) = (HashMap::new(), 0);
        let numbered = requests.into_iter().map(|(key, len)| {
            let next = numbers.len() as u32;
            let key = *numbers.entry(key).or_insert_with(|| {
                bytes += u64::from(len);
                next
            });
            Request { key, len }
        });
        let requests = numbered.collect();
        Self { name: name.to_owned(), requests, unique: numbers.len(), bytes, sized }
    }

    /// Bytes of an object on average.
    pub fn mean(&self) -> u64 {
        (self.bytes / self.unique.max(1) as u64).max(1)
    }
}

/// The part of a file's name by which a trace is called.
fn stem(file: &str) -> &str {
    file.split('.').next().unwrap_or(file)
}

/// Names of the traces that can be read.
pub fn names() -> impl Iterator<Item = &'static str> {
    TRACES.iter().map(|(file, _)| stem(file))
}

/// Reads the trace of this name from `dir`; `None` if it is not there. Objects of traces that do
/// not say how large they are have `len` bytes.
///
/// # Errors
/// The trace is not one of [`names`], cannot be read, or is damaged.
pub fn read(dir: &Path, name: &str, len: u32) -> Result<Option<Trace>, BenchError> {
    let Some(&(file, format)) = TRACES.iter().find(|(file, _)| stem(file) == name) else {
        let known: Vec<_> = names().collect();
        let why = format!("there is no trace {name}: choose from {}", known.join(", "));
        return Err(BenchError::Void(why));
    };
    let path = dir.join(file);
    let trace = match File::open(&path) {
        Ok(opened) => read_file(BufReader::new(opened), file, format, len),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => Err(error),
    };
    trace.map(Some).map_err(|source| BenchError::Trace { path, source })
}

fn read_file(file: impl Read, name: &str, format: Format, len: u32) -> io::Result<Trace> {
    let stream: Box<dyn Read> = if name.ends_with(".xz") {
        Box::new(lzma_rust2::XzReader::new(file, true))
    } else {
        Box::new(ruzstd::decoding::StreamingDecoder::new(file).map_err(io::Error::other)?)
    };
    let requests = decode(BufReader::new(stream), format, len)?;
    if requests.is_empty() {
        return Err(damaged("it holds no request".into()));
    }
    Ok(Trace::of(stem(name), matches!(format, Format::TimeIdSize), requests))
}

fn decode(mut stream: impl BufRead, format: Format, len: u32) -> io::Result<Vec<(u64, u32)>> {
    let mut requests = Vec::new();
    match format {
        Format::Keys32 | Format::Keys64 => {
            let width = if matches!(format, Format::Keys32) { 4 } else { 8 };
            let mut bytes = Vec::new();
            stream.read_to_end(&mut bytes)?;
            let keys = bytes.chunks_exact(width);
            if !keys.remainder().is_empty() {
                let what = format!("it ends within a key: {} bytes of {width}", bytes.len());
                return Err(damaged(what));
            }
            let key = |key: &[u8]| key.iter().fold(0, |key, &byte| key << 8 | u64::from(byte));
            requests.extend(keys.map(|bytes| (key(bytes), len)));
        }
        Format::TimeIdSize => {
            for (at, line) in stream.lines().enumerate() {
                let line = line?;
                let size = field(&line, at, 2)?;
                let size = u32::try_from(size).map_err(|_| unfit(&line, at, "an object's size"))?;
                requests.push((field(&line, at, 1)?, size));
            }
        }
        Format::Ranges => {
            for (at, line) in stream.lines().enumerate() {
                let line = line?;
                let (start, count) = (field(&line, at, 0)?, field(&line, at, 1)?);
                let end = start.checked_add(count).filter(|_| count <= LONGEST_RANGE);
                let end = end.ok_or_else(|| unfit(&line, at, "a range of keys"))?;
                requests.extend((start..end).map(|key| (key, len)));
            }
        }
    }
    Ok(requests)
}

fn field(line: &str, at: usize, n: usize) -> io::Result<u64> {
    let parsed = line.split_ascii_whitespace().nth(n).and_then(|text| text.parse().ok());
    parsed.ok_or_else(|| unfit(line, at, &format!("a number in field {}", n + 1)))
}

fn unfit(line: &str, at: usize, what: &str) -> io::Error {
    // A line of a file that is something else may be long.
    let shown: String = line.chars().take(60).collect();
    damaged(format!("line {}, {shown:?}, does not have {what}", at + 1))
}

fn damaged(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn decoded(bytes: &[u8], format: Format) -> io::Result<Vec<(u64, u32)>> {
        decode(bytes, format, 7)
    }

    #[test]
    fn each_format_gives_its_keys_and_sizes() {
        let keys = [0, 0, 1, 2, 0, 0, 0, 3];
        assert_eq!(decoded(&keys, Format::Keys32).unwrap(), [(258, 7), (3, 7)]);
        assert_eq!(decoded(&keys, Format::Keys64).unwrap(), [((258 << 32) + 3, 7)]);
        let sized = decoded(b"1 10 500\n2 11 60\n", Format::TimeIdSize).unwrap();
        assert_eq!(sized, [(10, 500), (11, 60)]);
        let ranges = decoded(b"5 2 0 0\n9 1 0 1\n", Format::Ranges).unwrap();
        assert_eq!(ranges, [(5, 7), (6, 7), (9, 7)]);
    }

    #[test]
    fn objects_are_numbered_as_they_appear_and_counted_at_their_first_size() {
        let trace = Trace::of("t", true, [(70, 100), (5, 50), (70, 900)]);
        let keys: Vec<_> = trace.requests.iter().map(|request| request.key).collect();
        assert_eq!((keys, trace.unique, trace.bytes, trace.mean()), (vec![0, 1, 0], 2, 150, 75));
        assert_eq!(trace.requests[2].len, 900);
    }

    #[test]
    fn damage_is_told_with_its_place() {
        let why = |bytes: &[u8], format| decoded(bytes, format).unwrap_err().to_string();
        assert!(why(&[0; 6], Format::Keys32).contains("ends within a key"));
        let line = why(b"1 2 3\n1 two 3\n", Format::TimeIdSize);
        assert!(line.contains("line 2") && line.contains("field 2"), "{line}");
        assert!(why(b"1 2 99999999999\n", Format::TimeIdSize).contains("size"));
        assert!(why(b"0 18446744073709551615 0 0\n", Format::Ranges).contains("range"));
    }

    #[test]
    fn a_file_that_is_cut_off_or_empty_is_refused_by_name_and_a_missing_one_is_none() {
        let dir = tempfile::tempdir().unwrap();
        assert!(read(dir.path(), "web07", 1).unwrap().is_none());
        let whole = {
            let options = lzma_rust2::XzOptions::with_preset(1);
            let mut writer = lzma_rust2::XzWriter::new(Vec::new(), options).unwrap();
            writer.write_all(&[0, 0, 0, 9, 0, 0, 0, 9]).unwrap();
            writer.finish().unwrap()
        };
        let path = dir.path().join("web07.trace.xz");
        std::fs::write(&path, &whole).unwrap();
        let trace = read(dir.path(), "web07", 1).unwrap().unwrap();
        assert_eq!((trace.requests.len(), trace.unique), (2, 1));
        for damaged in [&whole[..whole.len() / 2], &[][..], &b"no trace"[..]] {
            std::fs::write(&path, damaged).unwrap();
            let error = read(dir.path(), "web07", 1).unwrap_err().to_string();
            assert!(error.contains("web07.trace.xz"), "{error}");
        }
        let error = read(dir.path(), "web08", 1).unwrap_err().to_string();
        assert!(error.contains("web08") && error.contains("arc-OLTP"), "{error}");
    }
}
