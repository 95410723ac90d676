//! Writes what waits on a link: what is there goes out together in one write.

use std::io;

use compio::BufResult;
use compio::buf::{IntoInner, IoBuf};
use compio::io::AsyncWrite;
use compio::net::TcpStream;

use super::fault::LinkFault;
use super::lanes::MessageKind;
use super::live::{Batch, LiveLink};
use super::payload::Payload;
use super::seal::Sealer;
use crate::metrics::RingLinkMetrics;

/// A write buffer larger than this is given back after use.
const KEEP_BUFFER: usize = 512 * 1024;

/// Writes until the link ends, and says why.
pub async fn run(
    mut stream: TcpStream,
    link: &LiveLink,
    mut sealer: Sealer,
    metrics: &RingLinkMetrics,
) -> LinkFault {
    let (mut buffer, mut batch) = (Vec::new(), Batch::default());
    loop {
        let next = std::future::poll_fn(|context| link.poll_batch(context, &mut batch)).await;
        if let Err(why) = next {
            return why;
        }
        let messages = batch.messages.len() as u64;
        seal(&mut batch, &mut sealer, &mut buffer);
        link.writes();
        let (result, returned) = write_all(&mut stream, buffer, || link.writes()).await;
        buffer = returned;
        if let Err(error) = result {
            return LinkFault::Lost(error.to_string());
        }
        link.has_written();
        for (bytes, sent) in [
            (&metrics.bytes_out, &metrics.messages_out),
            (&link.record.bytes_out, &link.record.messages_out),
        ] {
            bytes.add(buffer.len() as u64);
            sent.add(messages);
        }
        buffer.clear();
        buffer.shrink_to(KEEP_BUFFER);
    }
}

/// Seals a batch; one of nothing is a sign of life. What its messages answer is answered then.
fn seal(batch: &mut Batch, sealer: &mut Sealer, out: &mut Vec<u8>) {
    if batch.credit.is_none() && batch.messages.is_empty() {
        sealer.seal(out, |out| Payload::Alive.put(out));
    }
    if let Some(credit) = batch.credit.take() {
        sealer.seal(out, |out| Payload::Control(credit).put(out));
    }
    for message in batch.messages.drain(..) {
        let payload = match message.kind {
            MessageKind::Request => Payload::Request(&message.bytes),
            _ => Payload::Message(&message.bytes),
        };
        sealer.seal(out, |out| payload.put(out));
    }
}

/// Writes all of a buffer; `moved` hears of every part that the kernel takes.
pub async fn write_all(
    stream: &mut TcpStream,
    mut buffer: Vec<u8>,
    moved: impl Fn(),
) -> (io::Result<()>, Vec<u8>) {
    let mut taken = 0;
    while taken < buffer.len() {
        let BufResult(result, rest) = stream.write(buffer.slice(taken..)).await;
        buffer = rest.into_inner();
        match result {
            Ok(0) => return (Err(io::ErrorKind::WriteZero.into()), buffer),
            Ok(more) => taken += more,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return (Err(error), buffer),
        }
        moved();
    }
    (Ok(()), buffer)
}
