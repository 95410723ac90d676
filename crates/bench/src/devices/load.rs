//! The load on a cache of several devices: as many lookups as it answers, or so many a second.

use std::{
    io,
    os::fd::RawFd,
    time::{Duration, Instant},
};

use afterglow_engine::{
    Cache, FlashRead, Lookup, Namespace, PutOptions, SegmentState,
    device::{AlignedBuf, DeviceId},
};
use afterglow_loadgen::{latency::Latency, rng::Rng, ycsb::KeyChooser};

use crate::{
    meter::Meter,
    report::Run,
    ring::{Finished, ReadRing},
    store::{self, is_value, key},
};

use super::windows::Windows;

/// Lookups in flight under a load that does not wait: those of a device that hangs do not end.
const MOST_IN_FLIGHT: usize = 8192;
/// Longest sleep under such a load.
const NAP: Duration = Duration::from_millis(1);

/// A cache and what is in it.
pub(super) struct FilledCache {
    pub cache: Cache,
    pub ns: Namespace,
    pub objects: u64,
    pub value: usize,
    /// Of each device.
    fds: Vec<RawFd>,
}

/// A run, and how many of its reads each device had.
pub(super) struct Measured {
    pub run: Run,
    pub reads: Vec<u64>,
    /// Hits from DRAM of all hits.
    pub from_dram: f64,
    /// Lookups that missed.
    pub misses: u64,
}

/// A lookup that reads flash.
struct Asked {
    read: FlashRead,
    id: u64,
    begin: Instant,
}

impl FilledCache {
    pub(super) fn new(cache: Cache, ns: Namespace, objects: u64, value: usize) -> io::Result<Self> {
        let devices = cache.devices().infos().len() as u16;
        let fd = |n| cache.device_fd(DeviceId(n)).ok_or_else(|| io::Error::other("no descriptor"));
        let fds = (0..devices).map(fd).collect::<io::Result<_>>()?;
        Ok(Self { cache, ns, objects, value, fds })
    }

    /// Share of each device's segments that is free.
    pub(super) fn free(&self) -> Vec<f64> {
        let segments = self.cache.segments();
        let share = |n: usize| {
            let there = || segments.iter().filter(move |s| usize::from(s.device.0) == n);
            let free = there().filter(|s| s.state == SegmentState::Free).count();
            free as f64 / there().count().max(1) as f64
        };
        (0..self.fds.len()).map(share).collect()
    }

    fn fd(&self, device: DeviceId) -> RawFd {
        self.fds[usize::from(device.0)]
    }

    /// Keeps `depth` reads in flight for `warm` and then `length`, which is measured: hits from
    /// flash, and their time from lookup to value.
    pub(super) fn closed_loop(
        &self,
        chooser: &mut KeyChooser,
        depth: usize,
        (warm, length): (Duration, Duration),
        seed: u64,
    ) -> io::Result<Measured> {
        let mut ring = ReadRing::new(depth)?;
        let (mut rng, mut latency) = (Rng::new(seed), Latency::new());
        let (mut done, mut again) = (Vec::<Finished<Asked>>::new(), Vec::new());
        let (mut reads, mut hits, mut dram, mut misses) = (vec![0; self.fds.len()], 0, 0, 0);
        let (mut meter, mut warming) = (Meter::start(), true);
        loop {
            if warming && meter.elapsed() >= warm {
                (warming, hits, dram, misses) = (false, 0, 0, 0);
                reads.fill(0);
                latency.clear();
                meter = Meter::start();
            }
            if !warming && meter.elapsed() >= length {
                break;
            }
            let begin = Instant::now();
            // Where all is in DRAM the clock is looked at all the same.
            while ring.has_room() && begin.elapsed() < NAP {
                let asked = again.pop().or_else(|| match self.look_up(chooser, &mut rng) {
                    (id, Lookup::Flash(read)) => Some(Asked { read, id, begin: Instant::now() }),
                    (_, Lookup::Hit(_)) => {
                        dram += 1;
                        None
                    }
                    (_, Lookup::Miss(_)) => {
                        misses += 1;
                        None
                    }
                });
                let Some(asked) = asked else { continue };
                reads[usize::from(asked.read.device().0)] += 1;
                self.ask(&mut ring, asked);
            }
            ring.submit()?;
            ring.wait(&mut done)?;
            for Finished { tag: Asked { read, id, begin }, result } in done.drain(..) {
                match read.finish(result) {
                    Lookup::Hit(hit) => {
                        self.verify(id, &hit.value)?;
                        latency.record(begin.elapsed().as_nanos() as u64);
                        hits += 1;
                    }
                    Lookup::Miss(_) => misses += 1,
                    Lookup::Flash(read) => again.push(Asked { read, id, begin }),
                }
            }
        }
        let run = meter.stop(hits, &latency);
        again.into_iter().for_each(|asked| asked.read.take_back());
        drain(&mut ring)?;
        let from_dram = dram as f64 / (dram + hits).max(1) as f64;
        Ok(Measured { run, reads, from_dram, misses })
    }

    /// Begins `rate` lookups a second, whatever becomes of them, and puts what was missed, as users
    /// of a cache do. Calls `at` with the time since the beginning again and again; what it returns
    /// ends the load when it is true. Returns what became of the lookups, by when they began.
    pub(super) fn open_loop(
        &self,
        chooser: &mut KeyChooser,
        rate: f64,
        window: Duration,
        seed: u64,
        mut at: impl FnMut(Duration) -> io::Result<bool>,
    ) -> io::Result<Windows> {
        let mut ring = ReadRing::new(MOST_IN_FLIGHT)?;
        let mut rng = Rng::new(seed);
        let (mut done, mut windows) = (Vec::<Finished<Asked>>::new(), Windows::new(window));
        let (start, mut begun) = (Instant::now(), 0_u64);
        let mut value = vec![0xa5; self.value];
        // Told at the end: what is in flight to a device that hangs has to be waited for.
        let mut wrong = Ok(());
        while !at(start.elapsed())? {
            let due = (start.elapsed().as_secs_f64() * rate) as u64;
            while begun < due {
                // The time at which it is due counts, so that a load that lags behind shows.
                let when = Duration::from_secs_f64(begun as f64 / rate);
                begun += 1;
                windows.begun(when);
                if !ring.has_room() {
                    continue;
                }
                match self.look_up(chooser, &mut rng) {
                    (id, Lookup::Flash(read)) => {
                        self.ask(&mut ring, Asked { read, id, begin: start + when });
                    }
                    (id, found) => {
                        let hit = matches!(found, Lookup::Hit(_));
                        self.refill(id, hit, &mut value);
                        windows.ended(when, start.elapsed().saturating_sub(when), hit);
                    }
                }
            }
            ring.submit()?;
            ring.wait_for(NAP, &mut done)?;
            for Finished { tag: Asked { read, id, begin }, result } in done.drain(..) {
                let hit = match read.finish(result) {
                    Lookup::Hit(hit) => {
                        wrong = wrong.and_then(|()| self.verify(id, &hit.value));
                        true
                    }
                    Lookup::Miss(_) => false,
                    Lookup::Flash(read) => {
                        self.ask(&mut ring, Asked { read, id, begin });
                        continue;
                    }
                };
                self.refill(id, hit, &mut value);
                windows.ended(begin - start, begin.elapsed(), hit);
            }
        }
        drain(&mut ring)?;
        wrong.map(|()| windows)
    }

    fn look_up(&self, chooser: &mut KeyChooser, rng: &mut Rng) -> (u64, Lookup) {
        let id = chooser.next(rng);
        (id, self.ns.get(&key(id)))
    }

    fn ask(&self, ring: &mut ReadRing<Asked>, asked: Asked) {
        let (fd, offset) = (self.fd(asked.read.device()), asked.read.offset());
        let buf = AlignedBuf::for_read(asked.read.len() as usize);
        ring.read(fd, offset, buf, asked);
    }

    fn refill(&self, id: u64, hit: bool, value: &mut [u8]) {
        if !hit {
            store::write_value(id, value);
            let _ = self.ns.put(&key(id), value, PutOptions::default());
        }
    }

    fn verify(&self, id: u64, value: &[u8]) -> io::Result<()> {
        let right = is_value(id, value, self.value);
        right
            .then_some(())
            .ok_or_else(|| io::Error::other(format!("object {id} has a wrong value")))
    }
}

/// Waits for what is still in flight, and counts it nowhere.
fn drain(ring: &mut ReadRing<Asked>) -> io::Result<()> {
    let mut done = Vec::new();
    while ring.in_flight() > 0 {
        ring.wait(&mut done)?;
        done.drain(..).for_each(|ended| ended.tag.read.take_back());
    }
    Ok(())
}
