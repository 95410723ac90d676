//! Links that this instance dials: some to each peer, from different reactors, each made anew
//! whenever it ends.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use afterglow_ring::MemberId;
use compio::net::TcpStream;
use futures_channel::oneshot;
use futures_util::future::select;
use ring_crypto::rand::{SecureRandom, SystemRandom};

use super::fault::LinkFault;
use super::registry::Registry;
use super::session::{self, Call};

/// A peer that is dialled until this is dropped.
pub struct Dialer {
    /// Where it is.
    pub address: String,
    _until: Vec<oneshot::Sender<()>>,
}

impl Dialer {
    /// A dialer of so many links, and what ends the task of each.
    pub fn new(address: String, links: usize) -> (Self, Vec<oneshot::Receiver<()>>) {
        let (until, dropped) = (0..links).map(|_| oneshot::channel()).unzip();
        (Self { address, _until: until }, dropped)
    }
}

/// Keeps a link to `peer` until the dialer is dropped or the transport has stopped.
pub async fn keep(
    registry: Arc<Registry>,
    peer: MemberId,
    address: String,
    dropped: oneshot::Receiver<()>,
) {
    let dials = pin!(async {
        let tuning = &registry.tuning;
        let mut backoff = tuning.first_backoff;
        while !registry.is_stopped() {
            // One that ends at once would be dialled without end.
            let (of_attempt, to) = (registry.clone(), address.clone());
            // A task of its own: a receiver that panics ends it, and not the dialler.
            let attempted =
                compio::runtime::spawn(async move { attempt(&of_attempt, peer, &to).await });
            let up = attempted.await.unwrap_or_default();
            if up.is_some_and(|up| up >= tuning.last_backoff) {
                backoff = tuning.first_backoff;
            }
            compio::time::sleep(jittered(backoff)).await;
            backoff = (backoff * 2).min(tuning.last_backoff);
        }
    });
    select(dials, dropped).await;
}

/// One link from its dialling to its end; for how long it was open, if it was.
async fn attempt(registry: &Arc<Registry>, peer: MemberId, address: &str) -> Option<Duration> {
    let connecting = TcpStream::connect(address);
    let connected = match compio::time::timeout(registry.tuning.handshake, connecting).await {
        Err(_) => Err("no answer in time".to_owned()),
        Ok(Err(error)) => Err(error.to_string()),
        Ok(Ok(stream)) => match stream.set_nodelay(true) {
            Ok(()) => Ok(stream),
            Err(error) => Err(error.to_string()),
        },
    };
    match connected {
        Ok(stream) => {
            let call = Call { place: address.to_owned(), wanted: Some(peer), unproven: None };
            session::run(registry, stream, call).await.up
        }
        Err(error) => {
            registry.failed(Some(peer), address, &LinkFault::Unreachable(error));
            None
        }
    }
}

/// Between half of it and all of it: members that start together do not dial together for ever.
fn jittered(backoff: Duration) -> Duration {
    let mut random = [u8::MAX];
    // Without random numbers nobody gets past the handshake.
    let _ = SystemRandom::new().fill(&mut random);
    backoff / 2 + backoff / 2 * u32::from(random[0]) / 255
}
