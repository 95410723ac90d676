//! Which devices are relieved of what is read most, and which one takes it.
//!
//! The background work decides; lookups and the streams go by it. Without it, which is always so
//! where there is one device, a lookup pays for one load of a word that hardly ever changes.

use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crate::device::DeviceId;

/// No device takes anything.
const NOBODY: u32 = u32::MAX;

/// Reads of lookups in flight to a device, in a line of the cache of its own: each lookup of flash
/// changes it twice.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Reads(AtomicU32);

/// Relief of devices with too much to do.
#[derive(Debug)]
pub(super) struct Relief {
    /// The device that takes what is read most, or [`NOBODY`].
    to: AtomicU32,
    /// Devices that are relieved of it.
    from: Box<[AtomicBool]>,
    /// Bytes that may move now.
    left: AtomicU64,
    /// So many bytes of them are kept for what was read before.
    kept: AtomicU64,
    /// What was read less often before does not move.
    least: AtomicU32,
    /// Of each device, where there are several.
    reads: Box<[Reads]>,
}

impl Relief {
    /// None, for so many devices.
    pub(super) fn new(devices: usize) -> Self {
        let counted = if devices > 1 { devices } else { 0 };
        Self {
            to: AtomicU32::new(NOBODY),
            from: (0..devices).map(|_| AtomicBool::new(false)).collect(),
            left: AtomicU64::new(0),
            kept: AtomicU64::new(0),
            least: AtomicU32::new(0),
            reads: (0..counted).map(|_| Reads::default()).collect(),
        }
    }

    /// A lookup is about to read a device.
    pub(super) fn read_begins(&self, device: DeviceId) {
        if let Some(reads) = self.reads.get(usize::from(device.0)) {
            reads.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// It has read, or will not.
    pub(super) fn read_ends(&self, device: DeviceId) {
        if let Some(reads) = self.reads.get(usize::from(device.0)) {
            reads.0.fetch_sub(1, Ordering::Relaxed);
        }
    }

    /// Reads of lookups in flight; 0 where there is one device only.
    pub(super) fn reads(&self, device: DeviceId) -> u32 {
        self.reads.get(usize::from(device.0)).map_or(0, |reads| reads.0.load(Ordering::Relaxed))
    }

    /// From now on these are relieved, and this one takes.
    pub(super) fn begin(&self, from: impl Fn(DeviceId) -> bool, to: DeviceId) {
        for (n, relieved) in self.from.iter().enumerate() {
            relieved.store(from(DeviceId(n as u16)), Ordering::Relaxed);
        }
        self.to.store(to.0.into(), Ordering::Relaxed);
    }

    /// Nothing moves any more.
    pub(super) fn end(&self) {
        self.to.store(NOBODY, Ordering::Relaxed);
        self.left.store(0, Ordering::Relaxed);
    }

    /// The device that takes what is read most, if one does.
    pub(super) fn to(&self) -> Option<DeviceId> {
        let to = self.to.load(Ordering::Relaxed);
        (to != NOBODY).then_some(DeviceId(to as u16))
    }

    /// Whether what is read most moves away from a device.
    pub(super) fn is_from(&self, device: DeviceId) -> bool {
        self.to.load(Ordering::Relaxed) != NOBODY
            && self.from.get(usize::from(device.0)).is_some_and(|f| f.load(Ordering::Relaxed))
    }

    /// So many bytes more may move, up to `most` at once.
    pub(super) fn grant(&self, bytes: u64, most: u64) {
        let granted = |left: u64| Some((left + bytes).min(most));
        let _ = self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, granted);
    }

    /// From now on only what was read so often before moves, and so many bytes are kept for what
    /// was read before.
    pub(super) fn prefer(&self, least: u8, kept: u64) {
        self.least.store(least.into(), Ordering::Relaxed);
        self.kept.store(kept, Ordering::Relaxed);
    }

    /// Takes so many bytes of those that may move, for what was read so often before. False where
    /// there are not so many for it.
    pub(super) fn take(&self, bytes: u64, reads: u8) -> bool {
        if u32::from(reads) < self.least.load(Ordering::Relaxed) {
            return false;
        }
        let kept = if reads > 0 { 0 } else { self.kept.load(Ordering::Relaxed) };
        let taken = |left: u64| left.checked_sub(bytes).filter(|&left| left >= kept);
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, taken).is_ok()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_relieved_only_while_another_takes() {
        let (first, second) = (DeviceId(0), DeviceId(1));
        let relief = Relief::new(2);
        assert!(!relief.is_from(first) && relief.to().is_none());
        relief.begin(|device| device == first, second);
        assert!(relief.is_from(first) && !relief.is_from(second) && relief.to() == Some(second));
        relief.end();
        assert!(!relief.is_from(first) && relief.to().is_none());
    }

    #[test]
    fn bytes_are_granted_up_to_a_bound_and_taken_whole() {
        let relief = Relief::new(2);
        let take = |bytes| relief.take(bytes, 1);
        assert!(!take(1));
        (0..5).for_each(|_| relief.grant(40, 100));
        assert!(take(60) && !take(60) && take(40) && !take(1));
        relief.grant(40, 100);
        relief.end();
        assert!(!take(1), "what was left is gone");
    }

    #[test]
    fn what_was_read_before_goes_first() {
        let relief = Relief::new(2);
        relief.grant(100, 100);
        relief.prefer(0, 50);
        assert!(relief.take(40, 0) && !relief.take(20, 0) && relief.take(20, 1));
        relief.prefer(2, 0);
        assert!(!relief.take(1, 0) && !relief.take(1, 1) && relief.take(40, 2));
    }

    #[test]
    fn reads_are_counted_where_there_are_several_devices() {
        let (one, two) = (Relief::new(1), Relief::new(2));
        for relief in [&one, &two] {
            relief.read_begins(DeviceId(0));
            relief.read_begins(DeviceId(0));
            relief.read_ends(DeviceId(0));
        }
        assert_eq!((one.reads(DeviceId(0)), two.reads(DeviceId(0))), (0, 1));
        assert_eq!(two.reads(DeviceId(1)), 0);
    }
}
