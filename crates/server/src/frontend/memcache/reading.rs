//! Reads parts of values.

use afterglow_engine::device::AlignedBuf;
use afterglow_engine::{Lookup, MissReason};
use bytes::Bytes;

use super::head::Head;
use super::reactor_state::MemcacheReactorState;

/// How often the read of a part begins again that moves.
const MOVED_TRIES: u32 = 3;

/// Reads part `n` of a value. The engine verifies it as any record; here its length is compared.
///
/// # Errors
/// Why it cannot be had.
pub async fn read_part(
    reactor_state: &MemcacheReactorState,
    head: &Head,
    n: u32,
) -> Result<Bytes, MissReason> {
    let parts = &reactor_state.front_end.store.parts;
    let mut tries = 0;
    loop {
        let mut lookup = parts.look_up(head, n);
        let found = loop {
            match lookup {
                Lookup::Flash(read) => {
                    let buf = AlignedBuf::for_read(read.len() as usize);
                    let bytes = reactor_state.read(read.device(), read.offset(), buf).await;
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
            Err(reason) => return Err(reason),
        }
    }
}
