//! Reads parts of values.

use std::io;
use std::time::{Duration, Instant};

use afterglow_engine::device::AlignedBuf;
use afterglow_engine::{Lookup, MissReason};
use bytes::Bytes;

use super::head::Head;
use super::reactor_state::MemcacheReactorState;

/// How often the read of a part begins again that moves.
const MOVED_TRIES: u32 = 3;
/// So long a device may answer nothing while a value is sent; how often it is asked meanwhile. A
/// stop has more time.
const STALL: Duration = Duration::from_secs(8);
const AGAIN: Duration = Duration::from_millis(100);

/// Reads part `n` of a value. The engine verifies it as any record; here its length is compared.
///
/// # Errors
/// Why it cannot be had.
pub async fn read_part(
    reactor_state: &MemcacheReactorState,
    head: &Head,
    n: u32,
) -> Result<Bytes, MissReason> {
    read_within(reactor_state, head, n, Duration::ZERO).await
}

/// The same for a value whose first bytes are on their way to a client. A device that answers
/// nothing for a moment must not cut its connection, so it is waited for.
///
/// # Errors
/// As for [`read_part`].
pub async fn read_next_part(
    reactor_state: &MemcacheReactorState,
    head: &Head,
    n: u32,
) -> Result<Bytes, MissReason> {
    read_within(reactor_state, head, n, STALL).await
}

/// `stall`: so long a device may answer nothing.
async fn read_within(
    reactor_state: &MemcacheReactorState,
    head: &Head,
    n: u32,
    stall: Duration,
) -> Result<Bytes, MissReason> {
    let parts = &reactor_state.front_end.store.parts;
    // Once a read was given up, the engine may leave the device alone too.
    let (mut tries, mut stalls, began) = (0, false, Instant::now());
    loop {
        let mut lookup = parts.look_up(head, n);
        let found = loop {
            match lookup {
                Lookup::Flash(read) => {
                    let buf = AlignedBuf::for_read(read.len() as usize);
                    let bytes = reactor_state.read(read.device(), read.offset(), buf).await;
                    stalls |= bytes.as_ref().is_err_and(|e| e.kind() == io::ErrorKind::TimedOut);
                    lookup = read.finish(bytes);
                }
                Lookup::Hit(hit) => break Ok(hit.value),
                Lookup::Miss(reason) => break Err(reason),
            }
        };
        match found {
            Ok(value) if value.len() == head.part_len(n) => return Ok(value),
            Ok(_) => return Err(MissReason::Corrupt),
            Err(MissReason::Moved) if tries < MOVED_TRIES => tries += 1,
            Err(MissReason::Device) if stalls && began.elapsed() < stall => {
                compio::time::sleep(AGAIN).await
            }
            Err(reason) => return Err(reason),
        }
    }
}
