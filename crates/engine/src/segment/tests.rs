//! Streams under several threads.

use std::sync::Arc;
use std::time::Instant;

use super::{
    AppendError, Object, SegmentLocation, SegmentState, SegmentTable, StreamId, Streams,
    StreamsConfig,
};
use crate::config::Config;
use crate::device::area::MmapMedia;
use crate::device::{DeviceId, DeviceInfo};
use crate::format::record::{self, Meta, RecordFormat};
use crate::geometry;
use crate::journal::Journal;
use crate::stats::EngineCounters;
use crate::sync::Mutex;
use crate::testing::TempDir;
use crate::version::Versions;

const SEGMENT: u32 = 4 << 20;
/// Bytes each thread appends.
const BYTES: u64 = if cfg!(debug_assertions) { 16 << 20 } else { 1 << 30 };

/// A device that takes every chunk at once, and segments that are free again as soon as they are
/// written.
struct Bench {
    table: Arc<SegmentTable>,
    streams: Streams,
    device: Mutex<()>,
}

impl Bench {
    fn new(dir: &TempDir, name: &str) -> Self {
        Self::with_segments(dir, name, SEGMENT)
    }

    fn with_segments(dir: &TempDir, name: &str, size: u32) -> Self {
        let place = |n: u64| SegmentLocation { device: DeviceId(0), offset: n * u64::from(size) };
        let table = Arc::new(SegmentTable::new((0..32).map(place).collect(), size));
        table.finish_restore();
        let media = Arc::new(MmapMedia::create(&dir.path().join(name), 1 << 20).expect("made"));
        let journal = Arc::new(Journal::create(media, &[7; 16], 1, 0..0, 0).expect("made"));
        let versions = Arc::new(Versions::new(1, u64::MAX >> 1));
        let totals = Arc::new(EngineCounters::default());
        let config = StreamsConfig {
            uuid: [7; 16],
            hash_seed: 7,
            format: RecordFormat::Compact,
            max_outstanding: 16,
        };
        let streams = Streams::new(&config, table.clone(), versions, journal, totals);
        Self { table, streams, device: Mutex::new(()) }
    }

    fn write_all(&self) {
        let _one_at_a_time = self.device.lock();
        while let Some(job) = self.streams.next_job_of(|_| true) {
            self.table.write_done(job.segment);
            self.streams.job_done(&job);
            self.streams.recycle(job);
        }
        for segment in self.table.in_state(SegmentState::Sealed).collect::<Vec<_>>() {
            self.table.start_reclaim(segment);
            self.table.set_free(segment);
        }
    }

    /// Appends records of a thread and reads each back from memory.
    fn append(&self, thread: u64, len: usize) {
        let value = vec![thread as u8; len];
        for version in 1..=BYTES / len as u64 {
            let hash = thread << 32 | version;
            let meta = Meta { ns: 0, version, expiry: 0, group: 0, epoch_slot: 0 };
            let object = Object { hash, meta, key: &hash.to_le_bytes(), value: &value };
            while let Err(full) = self.streams.append(StreamId::New, &object, 0, None) {
                assert!(
                    matches!(full, AppendError::QueueFull | AppendError::NoFreeSegment),
                    "{full:?}"
                );
                self.write_all();
            }
        }
    }
}

/// MB/s of two threads, each with streams of its own or both with the same.
fn rate(len: usize, own: bool) -> f64 {
    let dir = TempDir::new();
    let benches = [Bench::new(&dir, "one"), Bench::new(&dir, "two")];
    let began = Instant::now();
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let bench = &benches[if own { thread as usize } else { 0 }];
            scope.spawn(move || bench.append(thread, len));
        }
    });
    for bench in &benches {
        bench.streams.flush(u64::MAX, true);
        bench.write_all();
        assert!(bench.streams.all_sealed() && bench.streams.outstanding() == 0);
        assert_eq!(
            bench.table.free_count(),
            bench.table.len(),
            "a segment was lost between the threads"
        );
    }
    2.0 * BYTES as f64 / 1e6 / began.elapsed().as_secs_f64()
}

#[test]
fn two_threads_share_a_stream_and_lose_no_segment() {
    for len in [256, 1024, 4096] {
        let (shared, own) = (rate(len, false), rate(len, true));
        println!("{len} bytes: {shared:.0} MB/s shared, {own:.0} MB/s with streams of their own");
    }
}

#[test]
fn memory_that_is_used_again_writes_nothing_of_what_it_held() {
    let (dir, mut memory) = (TempDir::new(), Vec::new());
    let bench = Bench::new(&dir, "one");
    for (version, len) in [(1, 900_000), (2, 900_000), (3, 101)] {
        let meta = Meta { ns: 0, version, expiry: 0, group: 0, epoch_slot: 0 };
        let object = Object { hash: version, meta, key: b"key", value: &vec![0xff; len] };
        bench.streams.append(StreamId::New, &object, 0, None).expect("there is room");
        bench.streams.flush(u64::MAX, false);
        let job = bench.streams.next_job_of(|_| true).expect("a chunk to write");
        memory.push(job.data.as_ptr());
        let end = if version == 1 { job.data.len() } else { record::most_len(3, len) };
        assert!(job.data[end..].iter().all(|&byte| byte == 0), "{version}");
        bench.table.write_done(job.segment);
        bench.streams.job_done(&job);
        bench.streams.recycle(job);
    }
    assert_eq!(memory[0], memory[2], "nothing was used again");
}

#[test]
fn the_queue_is_bounded_by_the_memory_it_takes() {
    const CHUNK: usize = 1 << 20;
    let dir = TempDir::new();
    // The longest records, some that are a little longer than a chunk, and short ones.
    for len in [(4 << 20) - 100, CHUNK + 1, 1000] {
        let bench = Bench::with_segments(&dir, &len.to_string(), 16 << 20);
        let value = vec![7; len];
        let (mut full, mut nearly_full) = (0, None);
        for version in 1.. {
            let meta = Meta { ns: 0, version, expiry: 0, group: 0, epoch_slot: 0 };
            let object = Object { hash: version, meta, key: b"key", value: &value };
            let closed = bench.streams.closed.lock();
            let waits: usize = closed.iter().map(|job| job.data.capacity()).sum();
            drop(closed);
            full = full.max(waits);
            if bench.streams.is_nearly_full() {
                nearly_full.get_or_insert(waits);
            }
            match bench.streams.append(StreamId::New, &object, 0, None) {
                Ok(_) => {}
                Err(refused) => {
                    assert_eq!(refused, AppendError::QueueFull);
                    break;
                }
            }
        }
        // The last chunk may be longer than the room that was left.
        let most = |chunks: usize| chunks * CHUNK + len.next_multiple_of(CHUNK);
        assert!(full <= most(16), "{len}: {full} bytes wait");
        assert!(nearly_full.is_some_and(|half| half <= most(8)), "{len}: {nearly_full:?}");
        bench.write_all();
        assert!(!bench.streams.is_nearly_full(), "{len}: what is written waits on");
    }
}

/// What a user works out: values, and some for the keys. Headers, footers, checkpoints and what
/// reclaim keeps free fit into the rest, and the index into a part of the default memory.
#[test]
fn four_gib_of_1_kib_values_fit_4_7_gib_of_flash_and_the_index_of_256_mib() {
    let (flash, objects) = ((47u64 << 30) / 10 / 4096 * 4096, 4u64 << 20);
    let config = Config::new("x", vec![]);
    let info = DeviceInfo { size: flash, alignment: 512, path: "flash".into() };
    let block = geometry::format(&config, &[info], [0; 16], 0, 1).expect("divided")[0];

    let dir = TempDir::new();
    let bench = Bench::with_segments(&dir, "one", block.segment_size);
    let (mut records, mut first) = (0, None);
    loop {
        let meta = Meta { ns: 0, version: records + 1, expiry: 0, group: 0, epoch_slot: 0 };
        let object = Object { hash: records, meta, key: &[7; 32], value: &[7; 1024] };
        match bench.streams.append(StreamId::New, &object, 0, None) {
            Ok(record) if *first.get_or_insert(record.at.segment) != record.at.segment => break,
            Ok(_) => records += 1,
            Err(_) => bench.write_all(),
        }
    }
    // Reclaim begins with the segment that leaves no more than this free.
    let full = block.segments - geometry::free_target(block.segments) - 1;
    let room = records * u64::from(full);
    assert!(room >= objects, "{room} records fit {full} segments of {records}");

    let memory = geometry::memory(&config, flash, block.segment_size).expect("divided");
    let slots = memory.lines as u64 * 8 * u64::from(config.shards);
    assert!(slots / 10 * 9 >= objects, "an index of {slots} slots");
}
