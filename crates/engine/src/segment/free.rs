//! Free segments, by device, and the choice of the device that the next one is taken from.
//!
//! The next segment comes from the device with the most of its space free for its load. A device
//! that *rests* gives none: writes to it have failed a moment ago, or it does not answer. Where all
//! rest, those that answer count: a write shows whether they recover. One that does not answer
//! never counts, for nothing that is begun there would end.

use crate::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::collections::VecDeque;

use crate::device::DeviceId;
use crate::sync::Mutex;

/// Load of a device with one I/O in flight all the time.
pub const FULL_LOAD: u32 = 1000;

/// What is known of a device that segments lie on.
#[derive(Debug, Default)]
struct Target {
    /// Its segments.
    segments: u32,
    /// It takes no new segments now.
    resting: AtomicBool,
    /// It does not answer: reads of it are misses.
    silent: AtomicBool,
    /// A lookup was sent there since it was last asked.
    looked_up: AtomicBool,
    /// I/Os in flight on an average of the last minute, in thousandths.
    load: AtomicU32,
}

/// Free segments of all devices.
#[derive(Debug)]
pub(super) struct FreeSegments {
    queues: Mutex<Vec<VecDeque<u32>>>,
    targets: Vec<Target>,
}

impl FreeSegments {
    /// None free, of devices with so many segments each.
    pub(super) fn new(segments: Vec<u32>) -> Self {
        let target = |segments| Target { segments, ..Target::default() };
        Self {
            queues: Mutex::new(vec![VecDeque::new(); segments.len()]),
            targets: segments.into_iter().map(target).collect(),
        }
    }

    fn at(&self, device: DeviceId) -> &Target {
        &self.targets[usize::from(device.0)]
    }

    /// Number of devices.
    pub(super) fn devices(&self) -> usize {
        self.targets.len()
    }

    pub(super) fn set_resting(&self, device: DeviceId, resting: bool) {
        self.at(device).resting.store(resting, Ordering::Relaxed);
    }

    pub(super) fn set_silent(&self, device: DeviceId, silent: bool) {
        self.at(device).silent.store(silent, Ordering::Relaxed);
    }

    pub(super) fn is_silent(&self, device: DeviceId) -> bool {
        self.at(device).silent.load(Ordering::Relaxed)
    }

    /// A lookup is sent to a device.
    pub(super) fn look_up(&self, device: DeviceId) {
        let looked_up = &self.at(device).looked_up;
        // Most find it set, and leave the line of the cache to the others.
        if !looked_up.load(Ordering::Relaxed) {
            looked_up.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a lookup was sent to a device since this was last asked. None is sent to a device
    /// without segments, which may be none of these.
    pub(super) fn take_looked_up(&self, device: DeviceId) -> bool {
        let target = self.targets.get(usize::from(device.0));
        target.is_some_and(|target| target.looked_up.swap(false, Ordering::Relaxed))
    }

    pub(super) fn set_load(&self, device: DeviceId, load: u32) {
        self.at(device).load.store(load, Ordering::Relaxed);
    }

    /// Whether segments lie on a device.
    pub(super) fn has_segments(&self, device: DeviceId) -> bool {
        self.at(device).segments > 0
    }

    /// Whether no device takes new segments.
    pub(super) fn all_rest(&self) -> bool {
        self.targets.iter().all(|t| t.segments == 0 || t.resting.load(Ordering::Relaxed))
    }

    /// Whether a device counts: it takes new segments, or none does and it answers.
    pub(super) fn is_usable(&self, device: DeviceId) -> bool {
        Self::counts(self.at(device), self.all_rest())
    }

    /// Whether a device takes new segments and has a free one, also where all rest.
    pub(super) fn takes(&self, device: DeviceId) -> bool {
        Self::counts(self.at(device), false) && self.count_on(device) > 0
    }

    fn counts(target: &Target, all_rest: bool) -> bool {
        let rests = target.resting.load(Ordering::Relaxed);
        !target.silent.load(Ordering::Relaxed) && (all_rest || !rests)
    }

    /// How good a device with so many free segments is for the next one.
    fn score(target: &Target, free: usize) -> u64 {
        let load = u64::from(FULL_LOAD) + u64::from(target.load.load(Ordering::Relaxed));
        let share = (free as u64) << 32;
        share / u64::from(target.segments.max(1)) * u64::from(FULL_LOAD) / load
    }

    /// Takes the longest free one of the best device.
    pub(super) fn take(&self) -> Option<u32> {
        let all_rest = self.all_rest();
        let mut queues = self.queues.lock();
        let best = (0..queues.len())
            .filter(|&d| Self::counts(&self.targets[d], all_rest) && !queues[d].is_empty())
            .max_by_key(|&d| {
                (Self::score(&self.targets[d], queues[d].len()), std::cmp::Reverse(d))
            })?;
        queues[best].pop_front()
    }

    /// Takes the longest free one of this device.
    pub(super) fn take_on(&self, device: DeviceId) -> Option<u32> {
        self.queues.lock()[usize::from(device.0)].pop_front()
    }

    pub(super) fn push(&self, device: DeviceId, segment: u32) {
        self.queues.lock()[usize::from(device.0)].push_back(segment);
    }

    /// These are free, and no others.
    pub(super) fn set(&self, free: impl Iterator<Item = (DeviceId, u32)>) {
        let mut queues = self.queues.lock();
        queues.iter_mut().for_each(VecDeque::clear);
        free.for_each(|(device, segment)| queues[usize::from(device.0)].push_back(segment));
    }

    /// Free segments of devices that count.
    pub(super) fn count(&self) -> u32 {
        let all_rest = self.all_rest();
        let queues = self.queues.lock();
        let usable = queues.iter().zip(&self.targets).filter(|(_, t)| Self::counts(t, all_rest));
        usable.map(|(queue, _)| queue.len() as u32).sum()
    }

    /// Whether at least so manieth part of a device is free.
    pub(super) fn is_free(&self, device: DeviceId, part: u32) -> bool {
        self.count_on(device).saturating_mul(part) >= self.at(device).segments
    }

    /// Free segments of a device.
    pub(super) fn count_on(&self, device: DeviceId) -> u32 {
        self.queues.lock()[usize::from(device.0)].len() as u32
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    const FIRST: DeviceId = DeviceId(0);
    const SECOND: DeviceId = DeviceId(1);

    /// Segments 0 to 29 on the first device, 30 to 39 on the second.
    fn free() -> FreeSegments {
        let free = FreeSegments::new(vec![30, 10]);
        let device = |s| if s < 30 { FIRST } else { SECOND };
        free.set((0..40).map(|s| (device(s), s)));
        free
    }

    fn taken(free: &FreeSegments, count: usize) -> [usize; 2] {
        let taken: Vec<u32> = (0..count).map_while(|_| free.take()).collect();
        let first = taken.iter().filter(|&&s| s < 30).count();
        [first, taken.len() - first]
    }

    #[test]
    fn devices_are_filled_by_the_share_of_them_that_is_free() {
        assert_eq!(taken(&free(), 20), [15, 5]);
        assert_eq!(taken(&free(), 100), [30, 10], "to the last one");
    }

    #[test]
    fn a_device_under_load_gets_less_but_not_nothing() {
        let free = free();
        free.set_load(FIRST, FULL_LOAD);
        assert_eq!(taken(&free, 12), [6, 6]);
        assert_eq!(taken(&free, 100), [24, 4], "what there is is used");
    }

    #[test]
    fn a_device_that_rests_gives_no_segments_unless_all_rest() {
        let free = free();
        free.set_resting(FIRST, true);
        assert_eq!((free.count(), free.is_usable(FIRST), free.all_rest()), (10, false, false));
        assert_eq!(taken(&free, 100), [0, 10]);
        assert_eq!(free.count(), 0);
        free.set_resting(SECOND, true);
        assert_eq!((free.count(), free.all_rest()), (30, true));
        free.set_resting(FIRST, false);
        assert_eq!(taken(&free, 100), [30, 0]);
    }

    #[test]
    fn a_device_that_does_not_answer_gives_no_segments_even_where_all_rest() {
        let free = free();
        for device in [FIRST, SECOND] {
            free.set_resting(device, true);
        }
        free.set_silent(FIRST, true);
        assert!(free.all_rest() && !free.is_usable(FIRST) && free.is_usable(SECOND));
        assert_eq!(free.count(), 10);
        assert_eq!(taken(&free, 100), [0, 10]);
    }
}
