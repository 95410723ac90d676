//! Reads what comes on a link and gives it to whom it is for.

use std::sync::Arc;

use compio::BufResult;
use compio::io::AsyncRead;
use compio::net::TcpStream;

use super::config::MAX_PAYLOAD;
use super::fault::LinkFault;
use super::inbox::Inbox;
use super::live::LiveLink;
use super::nearness::Reading;
use super::payload::Payload;
use super::registry::Registry;
use super::seal::{Opener, TAG};

/// Largest read at once.
const READ_BUFFER: usize = 64 * 1024;
/// Longest frame: a kind, a message and the seal.
const MAX_FRAME: usize = 1 + MAX_PAYLOAD + TAG;

/// Where bytes come from.
pub struct LinkSource {
    /// The connection.
    pub stream: TcpStream,
    /// What has come of it.
    pub inbox: Inbox,
    buffer: Vec<u8>,
}

impl LinkSource {
    /// From that connection, of which nothing was read.
    pub fn new(stream: TcpStream) -> Self {
        Self { stream, inbox: Inbox::default(), buffer: Vec::with_capacity(READ_BUFFER) }
    }

    /// Waits for bytes: how many came.
    ///
    /// # Errors
    /// [`LinkFault::Lost`].
    pub async fn read(&mut self) -> Result<usize, LinkFault> {
        let BufResult(result, returned) = self.stream.read(std::mem::take(&mut self.buffer)).await;
        self.buffer = returned;
        match result {
            Ok(0) => Err(LinkFault::Lost("the other side closed it".to_owned())),
            Ok(count) => {
                self.inbox.feed(&self.buffer);
                self.buffer.clear();
                Ok(count)
            }
            Err(error) => Err(LinkFault::Lost(error.to_string())),
        }
    }
}

/// Reads until the link ends, and says why.
pub async fn run(
    mut source: LinkSource,
    mut opener: Opener,
    link: &Arc<LiveLink>,
    registry: &Registry,
) -> LinkFault {
    loop {
        if let Err(why) = frames(&mut source.inbox, &mut opener, link, registry) {
            return why;
        }
        let count = match source.read().await {
            Ok(count) => count as u64,
            Err(why) => return why,
        };
        link.heard();
        registry.metrics.bytes_in.add(count);
        link.record.bytes_in.add(count);
    }
}

/// Hands out every whole frame.
fn frames(
    inbox: &mut Inbox,
    opener: &mut Opener,
    link: &Arc<LiveLink>,
    registry: &Registry,
) -> Result<(), LinkFault> {
    while let Some(sealed) = inbox.frame(MAX_FRAME)? {
        let (message, request) = match Payload::read(opener.open(sealed)?)? {
            Payload::Control(frame) => {
                link.receive(&frame)?;
                continue;
            }
            Payload::Alive => continue,
            Payload::Request(bytes) => (bytes, Some(link.take(bytes.len())?)),
            Payload::Message(bytes) => (bytes, None),
        };
        registry.metrics.messages_in.inc();
        link.record.messages_in.inc();
        let _reading = Reading::of(&link.home);
        registry.receiver.message(link.peer, message, request);
    }
    Ok(())
}
