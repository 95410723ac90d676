//! Reads of flash that end: with the bytes, with an error, or given up as the device answers none.

use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::Poll;

use afterglow_engine::device::AlignedBuf;

use super::device_read::{DeviceRead, FlashFile, read_on_helper};
use super::silence;

/// Fills `buf` from `offset`. Offset and length are multiples of the device's alignment.
///
/// What [`DeviceRead`] says of buffer and future holds here too.
///
/// # Errors
/// `UnexpectedEof` when the device ends early, `TimedOut` when it has had reads for two seconds and
/// answered none of them, otherwise what the kernel said.
pub async fn read_flash(
    device: &FlashFile,
    offset: u64,
    buf: AlignedBuf,
) -> io::Result<AlignedBuf> {
    if device.has_no_descriptor() {
        return read_on_helper(device, offset, buf.len() as u32).await;
    }
    let mut reading = silence::enter(device).await?;
    let mut read = DeviceRead::of(device, offset, buf);
    let came = poll_fn(|context| match Pin::new(&mut read).poll(context) {
        Poll::Ready(bytes) => Poll::Ready(Ok(bytes)),
        Poll::Pending => match reading.wait(context.waker()) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        },
    })
    .await;
    match came {
        Ok(bytes) => {
            reading.came_back();
            bytes
        }
        Err(given_up) => {
            reading.leave(read);
            Err(given_up)
        }
    }
}
