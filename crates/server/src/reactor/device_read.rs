//! One aligned read of a flash device on the reactor's own ring.
//!
//! A device without a file descriptor cannot be read by a ring; a helper thread reads it. Such a
//! device is simulated, or a test's slow one, and is waited for however long it takes.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::sync::Arc;

use afterglow_engine::device::{AlignedBuf, DeviceId, DeviceSet};
use compio::BufResult;
use compio::buf::{IntoInner, IoBuf, IoBufMut, SetLen};
use compio::driver::op::ReadAt;

/// A device of the cache, held open.
#[derive(Clone)]
pub struct FlashFile {
    set: Arc<dyn DeviceSet>,
    device: DeviceId,
}

impl FlashFile {
    /// The device `device` of `set`; `None` when there is no such device.
    pub fn new(set: Arc<dyn DeviceSet>, device: DeviceId) -> Option<Self> {
        set.infos().get(usize::from(device.0))?;
        Some(Self { set, device })
    }

    /// Whether both are one device of one cache.
    pub(super) fn is_same(&self, other: &FlashFile) -> bool {
        Arc::ptr_eq(&self.set, &other.set) && self.device == other.device
    }

    /// Whether a ring cannot read it.
    pub(super) fn has_no_descriptor(&self) -> bool {
        self.set.raw_fd(self.device).is_none()
    }

    /// Its file.
    pub(super) fn path(&self) -> &Path {
        &self.set.infos()[usize::from(self.device.0)].path
    }
}

/// A device that has a descriptor.
struct OnRing(FlashFile);

impl AsFd for OnRing {
    fn as_fd(&self) -> BorrowedFd<'_> {
        let FlashFile { set, device } = &self.0;
        let fd = set.raw_fd(*device).expect("checked when this was made, and sets do not change");
        // SAFETY: the descriptor is valid as long as the set lives (contract of `raw_fd`), and
        // `self` holds the set.
        unsafe { BorrowedFd::borrow_raw(fd) }
    }
}

/// Fills `buf` from `offset`, however long the device takes. Offset and length are multiples of the
/// device's alignment.
///
/// Device and buffer belong to the runtime until the kernel is done with them. Dropping the future
/// loses the result; it never frees memory under a read in flight.
///
/// # Errors
/// `UnexpectedEof` when the device ends early, otherwise what the kernel said.
pub(super) async fn read_whole(
    device: &FlashFile,
    offset: u64,
    buf: AlignedBuf,
) -> io::Result<AlignedBuf> {
    let (device, len) = (device.clone(), buf.len());
    if device.has_no_descriptor() {
        return compio::runtime::spawn_blocking(move || {
            device.set.read_at(device.device, offset, len as u32)
        })
        .await?;
    }
    let target = Target { buf, filled: 0 };
    let BufResult(result, op) =
        compio::runtime::submit(ReadAt::new(OnRing(device), offset, target)).await;
    if result? < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(op.into_inner().buf)
}

/// The buffer as the runtime wants to see it: zeroed memory of a fixed length.
struct Target {
    buf: AlignedBuf,
    filled: usize,
}

impl IoBuf for Target {
    fn as_init(&self) -> &[u8] {
        &self.buf[..self.filled]
    }
}

impl SetLen for Target {
    unsafe fn set_len(&mut self, len: usize) {
        self.filled = len;
    }
}

impl IoBufMut for Target {
    fn as_uninit(&mut self) -> &mut [MaybeUninit<u8>] {
        let bytes: &mut [u8] = &mut self.buf;
        // SAFETY: same layout; the runtime only ever writes initialised bytes through it, so the
        // buffer stays initialised.
        unsafe { &mut *(std::ptr::from_mut(bytes) as *mut [MaybeUninit<u8>]) }
    }
}
