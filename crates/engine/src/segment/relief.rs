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

    /// Takes so many bytes of those that may move. False where there are not so many.
    pub(super) fn take(&self, bytes: u64) -> bool {
        let taken = |left: u64| left.checked_sub(bytes);
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
        assert!(!relief.take(1));
        (0..5).for_each(|_| relief.grant(40, 100));
        assert!(relief.take(60) && !relief.take(60) && relief.take(40) && !relief.take(1));
        relief.grant(40, 100);
        relief.end();
        assert!(!relief.take(1), "what was left is gone");
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
