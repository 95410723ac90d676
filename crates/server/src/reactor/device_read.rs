//! One aligned read of a flash device on the reactor's own ring.
//!
//! A device without a file descriptor cannot be read by a ring; a helper thread reads it. Such a
//! device is simulated, or a test's slow one, and is waited for however long it takes.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use afterglow_engine::device::{AlignedBuf, DeviceId, DeviceSet};
use compio::BufResult;
use compio::buf::{IntoInner, IoBuf, IoBufMut, SetLen};
use compio::driver::op::ReadAt;
use compio::runtime::Submit;

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

    /// How many devices its cache has.
    pub(super) fn devices(&self) -> usize {
        self.set.infos().len()
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

/// A read of a device that has a descriptor: fills a buffer, however long the device takes.
///
/// Device and buffer belong to the runtime until the kernel is done with them. Dropping the future
/// loses the result; it frees no memory under a read in flight, unless the runtime ends.
pub(super) struct DeviceRead {
    submitted: Submit<ReadAt<Target, OnRing>>,
    len: usize,
}

impl DeviceRead {
    /// Of `buf.len()` bytes from `offset`. Offset and length are multiples of the device's
    /// alignment.
    pub(super) fn of(device: &FlashFile, offset: u64, buf: AlignedBuf) -> Self {
        let (len, target) = (buf.len(), Target { buf, filled: 0 });
        let read = ReadAt::new(OnRing(device.clone()), offset, target);
        DeviceRead { submitted: compio::runtime::submit(read), len }
    }
}

impl Future for DeviceRead {
    /// `UnexpectedEof` when the device ends early, otherwise what the kernel said.
    type Output = io::Result<AlignedBuf>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let BufResult(result, op) = ready!(Pin::new(&mut self.submitted).poll(context));
        Poll::Ready(match result {
            Ok(read) if read < self.len => Err(io::ErrorKind::UnexpectedEof.into()),
            Ok(_) => Ok(op.into_inner().buf),
            Err(error) => Err(error),
        })
    }
}

/// The same of a device that has none, by a helper thread.
///
/// # Errors
/// What the device says.
pub(super) async fn read_on_helper(
    device: &FlashFile,
    offset: u64,
    len: u32,
) -> io::Result<AlignedBuf> {
    let device = device.clone();
    compio::runtime::spawn_blocking(move || device.set.read_at(device.device, offset, len)).await?
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
