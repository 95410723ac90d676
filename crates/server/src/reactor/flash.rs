//! Reads of flash that end: with the bytes, with an error, or given up as the device answers none.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::task::Poll;

use afterglow_engine::device::AlignedBuf;

use super::device_read::{FlashFile, read_whole};
use super::silence;

/// Fills `buf` from `offset`. Offset and length are multiples of the device's alignment.
///
/// What [`read_whole`] says of buffer and future holds here too.
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
        return read_whole(device, offset, buf).await;
    }
    let mut reading = silence::enter(device)?;
    let mut read = pin!(read_whole(device, offset, buf));
    poll_fn(|context| match read.as_mut().poll(context) {
        Poll::Ready(bytes) => {
            reading.came_back();
            Poll::Ready(bytes)
        }
        Poll::Pending => match reading.wait(context.waker()) {
            Ok(()) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        },
    })
    .await
}
