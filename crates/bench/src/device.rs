//! What a device can do: random reads with `O_DIRECT`, by one ring on one core, or by blocking
//! threads.
//!
//! This is the yardstick of every other benchmark here, and does what `fio --rw=randread --direct=1
//! --ioengine=io_uring --norandommap` does; `afterglow-bench device-limit --fio` compares the two.

use std::{
    fs::{File, OpenOptions},
    io,
    ops::Range,
    os::{
        fd::AsRawFd,
        unix::fs::{FileExt, FileTypeExt, OpenOptionsExt},
    },
    path::{Path, PathBuf},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    thread,
    time::{Duration, Instant},
};

use afterglow_engine::device::AlignedBuf;
use rustix::fs::OFlags;

use super::{
    BenchError,
    fio::Fio,
    meter::Meter,
    pin::Pinned,
    progress,
    report::{Check, Report, Run, Section, Series},
    ring::ReadRing,
};
use afterglow_loadgen::{latency::Latency, rng::Rng};

/// What is measured.
#[derive(Clone, Debug)]
pub struct LimitOptions {
    /// A directory (a file is made there and removed), a file, or a block device.
    pub path: PathBuf,
    /// Bytes of the file to make; of an existing file or device all is read.
    pub size: u64,
    /// Bytes per read.
    pub blocks: Vec<u32>,
    /// Reads in flight.
    pub depths: Vec<usize>,
    /// How long each run is.
    pub seconds: f64,
    /// Runs of each kind.
    pub runs: usize,
    /// Measure the same by fio in turn with ours.
    pub fio: Option<Fio>,
}

/// Largest difference from fio.
const FIO_TOLERANCE: f64 = 0.05;
/// Bytes written at a time.
const WRITE: usize = 1 << 20;

/// Where random reads go.
#[derive(Clone, Debug)]
pub struct Pattern {
    /// The part of the device, both ends multiples of `step`.
    pub region: Range<u64>,
    /// Offsets are multiples of this.
    pub step: u64,
    /// Lengths, drawn at random.
    pub lengths: Vec<u32>,
}

impl Pattern {
    fn next(&self, rng: &mut Rng) -> (u64, u32) {
        let len = self.lengths[rng.below(self.lengths.len() as u64) as usize];
        let places = (self.region.end - self.region.start - u64::from(len)) / self.step + 1;
        (self.region.start + rng.below(places) * self.step, len)
    }
}

/// A device or file open for direct reads; a file that was made for it is removed with it.
pub struct Target {
    pub(super) file: File,
    pub(super) path: PathBuf,
    pub(super) size: u64,
    made: bool,
}

impl Drop for Target {
    fn drop(&mut self) {
        if self.made {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn direct(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(OFlags::DIRECT.bits() as i32).open(path)
}

impl Target {
    /// Opens what is there for reading.
    pub fn open(path: &Path) -> Result<Self, BenchError> {
        let fail = || BenchError::io(format!("open {} with O_DIRECT", path.display()));
        let file = direct(path).map_err(fail())?;
        let kind = file.metadata().map_err(fail())?.file_type();
        if !kind.is_file() && !kind.is_block_device() {
            return Err(BenchError::Void(format!(
                "{} is neither a file nor a block device",
                path.display()
            )));
        }
        let size =
            rustix::fs::seek(&file, rustix::fs::SeekFrom::End(0)).map_err(|e| fail()(e.into()))?;
        Ok(Self { file, path: path.to_path_buf(), size, made: false })
    }

    /// Makes a file of incompressible bytes: blocks never written would be read without the device.
    pub(super) fn make(dir: &Path, size: u64) -> Result<Self, BenchError> {
        let path = dir.join(format!("afterglow-bench-{}", std::process::id()));
        progress(format_args!("writing {} MiB to {}", size >> 20, path.display()));
        let fail = || BenchError::io(format!("write {}", path.display()));
        let flags = OFlags::DIRECT.bits() as i32;
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .custom_flags(flags)
            .open(&path)
            .map_err(fail())?;
        let made = || Ok(Self { file: direct(&path)?, path: path.clone(), size, made: true });
        let target = made().map_err(fail())?;
        let mut rng = Rng::new(1);
        let mut data = AlignedBuf::zeroed(WRITE);
        for at in (0..size).step_by(WRITE) {
            data.chunks_exact_mut(8)
                .for_each(|word| word.copy_from_slice(&rng.next_u64().to_le_bytes()));
            file.write_all_at(&data, at).map_err(fail())?;
        }
        file.sync_all().map_err(fail())?;
        Ok(target)
    }

    fn of(options: &LimitOptions) -> Result<Self, BenchError> {
        if options.path.is_dir() {
            return Self::make(&options.path, options.size.next_multiple_of(WRITE as u64));
        }
        Self::open(&options.path)
    }
}

/// Random reads by one ring on the calling thread.
pub fn by_ring(
    target: &Target,
    pattern: &Pattern,
    depth: usize,
    length: Duration,
    seed: u64,
) -> io::Result<Run> {
    by_busy_ring(target, pattern, depth, length, seed, Duration::ZERO)
}

/// The same by a reader that touches all bytes of each finished read and keeps its core busy for so
/// long in all. Touching the bytes costs the device too. The core's caches hold them, and must give
/// them up before the next read into the same memory.
pub fn by_busy_ring(
    target: &Target,
    pattern: &Pattern,
    depth: usize,
    length: Duration,
    seed: u64,
    busy: Duration,
) -> io::Result<Run> {
    let mut ring = ReadRing::new(depth)?;
    let (mut rng, mut latency, mut done) = (Rng::new(seed), Latency::new(), Vec::new());
    let most = pattern.lengths.iter().copied().max().unwrap_or(0) as usize;
    let mut buffers: Vec<AlignedBuf> = (0..depth).map(|_| AlignedBuf::zeroed(most)).collect();
    let mut operations = 0;
    let meter = Meter::start();
    loop {
        let going = meter.elapsed() < length;
        while going && let Some(mut buf) = buffers.pop() {
            let (offset, len) = pattern.next(&mut rng);
            buf.set_len(len as usize);
            ring.read(target.file.as_raw_fd(), offset, buf, Instant::now());
        }
        if ring.in_flight() == 0 {
            break;
        }
        ring.wait(&mut done)?;
        let now = Instant::now();
        for read in done.drain(..) {
            let buf = read.result?;
            latency.record(now.duration_since(read.tag).as_nanos() as u64);
            operations += 1;
            if !busy.is_zero() {
                let begin = Instant::now();
                let words = buf
                    .chunks_exact(8)
                    .map(|word| u64::from_le_bytes(word.try_into().expect("8 bytes")));
                std::hint::black_box(words.fold(0, u64::wrapping_add));
                while begin.elapsed() < busy {
                    std::hint::spin_loop();
                }
            }
            buffers.push(buf);
        }
    }
    Ok(meter.stop(operations, &latency))
}

/// Random reads by threads that block, each in a `pread` of its own.
pub fn by_threads(
    target: &Target,
    pattern: &Pattern,
    threads: usize,
    length: Duration,
    seed: u64,
) -> io::Result<Run> {
    let most = pattern.lengths.iter().copied().max().unwrap_or(0) as usize;
    run_threads(threads, length, |n, go_on, latency| {
        let (mut rng, mut buf, mut operations) = (Rng::new(seed ^ n), AlignedBuf::zeroed(most), 0);
        while go_on() {
            let (offset, len) = pattern.next(&mut rng);
            let begin = Instant::now();
            target.file.read_exact_at(&mut buf[..len as usize], offset)?;
            latency.record(begin.elapsed().as_nanos() as u64);
            operations += 1;
        }
        Ok(operations)
    })
}

/// Runs `work` on threads until the time is over; it returns the operations it has done.
pub(super) fn run_threads(
    threads: usize,
    length: Duration,
    work: impl Fn(u64, &dyn Fn() -> bool, &mut Latency) -> io::Result<u64> + Sync,
) -> io::Result<Run> {
    let (stop, operations) = (AtomicBool::new(false), AtomicU64::new(0));
    let meter = Meter::start();
    let latencies = thread::scope(|scope| {
        let worker = |n: u64| {
            let (stop, operations, work) = (&stop, &operations, &work);
            scope.spawn(move || {
                let mut latency = Latency::new();
                let done = work(n, &|| !stop.load(Ordering::Relaxed), &mut latency)?;
                operations.fetch_add(done, Ordering::Relaxed);
                io::Result::Ok(latency)
            })
        };
        let workers: Vec<_> = (0..threads as u64).map(worker).collect();
        thread::sleep(length);
        stop.store(true, Ordering::Relaxed);
        let ended = workers
            .into_iter()
            .map(|w| w.join().map_err(|_| io::Error::other("a thread panicked"))?);
        ended.collect::<io::Result<Vec<_>>>()
    })?;
    let mut latency = Latency::new();
    latencies.iter().for_each(|l| latency.merge(l));
    Ok(meter.stop(operations.load(Ordering::Relaxed), &latency))
}

/// `afterglow-bench device-limit`.
pub fn limit(options: &LimitOptions) -> Result<Report, BenchError> {
    let target = Target::of(options)?;
    let mut report = Report::new("device-limit", &target.path);
    let length = Duration::from_secs_f64(options.seconds);
    for &block in &options.blocks {
        let end = target.size / u64::from(block) * u64::from(block);
        if end == 0 {
            return Err(BenchError::Void(format!(
                "{} is smaller than one block",
                target.path.display()
            )));
        }
        let pattern = Pattern { region: 0..end, step: block.into(), lengths: vec![block] };
        let note =
            format!("Random reads of {block} B by io_uring with O_DIRECT, one thread on one core.");
        let mut section = Section::new(format!("{block} B"), note);
        for &depth in &options.depths {
            progress(format_args!("{block} B, {depth} in flight"));
            let (mut ours, mut fios) = (Vec::new(), Vec::new());
            for n in 0..options.runs {
                let mut own = || -> Result<(), BenchError> {
                    let _pinned =
                        Pinned::to(0).map_err(BenchError::io("keep a thread on one core"))?;
                    let run = by_ring(&target, &pattern, depth, length, n as u64);
                    ours.push(run.map_err(BenchError::io("read through io_uring"))?);
                    Ok(())
                };
                let mut theirs = || -> Result<(), BenchError> {
                    let Some(fio) = &options.fio else { return Ok(()) };
                    fios.push(fio.randread(&target.path, end, block, depth, options.seconds)?);
                    Ok(())
                };
                // Whoever comes second meets a device that is warmed up.
                if n % 2 == 0 {
                    own()?;
                    theirs()?;
                } else {
                    theirs()?;
                    own()?;
                }
            }
            let own = Series { name: format!("{depth} in flight"), runs: ours };
            if !fios.is_empty() {
                let theirs = Series { name: format!("{depth} in flight, fio"), runs: fios };
                let ratio = own.ratio_to(&theirs);
                let name = format!("{block} B, {depth} in flight: reads/s beside fio's");
                report.checks.push(Check::between(
                    name,
                    ratio,
                    1.0 - FIO_TOLERANCE,
                    1.0 + FIO_TOLERANCE,
                ));
                section.series.push(own);
                section.series.push(theirs);
            } else {
                section.series.push(own);
            }
        }
        report.sections.push(section);
    }
    Ok(report)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_lie_in_the_region_and_reach_both_ends() {
        let pattern = Pattern { region: 4096..4096 + 8 * 512, step: 512, lengths: vec![512, 1024] };
        let mut rng = Rng::new(7);
        let reads: Vec<_> = (0..1000).map(|_| pattern.next(&mut rng)).collect();
        assert!(reads.iter().all(|&(at, len)| at % 512 == 0
            && pattern.region.contains(&at)
            && at + u64::from(len) <= pattern.region.end));
        let ends =
            |len| reads.iter().any(|&(at, l)| l == len && at + u64::from(l) == pattern.region.end);
        assert!(reads.iter().any(|&(at, _)| at == 4096) && ends(512) && ends(1024));
    }

    #[test]
    fn ring_and_threads_read_and_the_file_is_gone_afterwards() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::make(dir.path(), 1 << 20).unwrap();
        let pattern = Pattern { region: 0..1 << 20, step: 4096, lengths: vec![4096] };
        let length = Duration::from_millis(20);
        for run in
            [by_ring(&target, &pattern, 4, length, 1), by_threads(&target, &pattern, 2, length, 1)]
        {
            let run = run.unwrap();
            assert!(run.operations > 0 && run.operations == run.latency.count, "{run:?}");
        }
        drop(target);
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
