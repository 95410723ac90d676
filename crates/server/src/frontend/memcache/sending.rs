//! Answers with values in parts. Each part is read and verified before a byte of it is sent, and is
//! read while the one before it is sent. A client that does not read holds two parts at most.
//!
//! The first part is read before the answer begins. So a value that is not there any more is a
//! miss, mostly. One that turns out later not to be whole ends the connection: what was promised
//! cannot be sent, and nothing else may be sent in its place. Its head goes if a part is gone, and
//! stays if one could not be looked at, as where a device fails for a moment.

use std::rc::Rc;

use afterglow_engine::{Change, Hit, MissReason};
use bytes::Bytes;

use super::answers::{PieceRoom, Slot};
use super::driving::drive;
use super::head::Head;
use super::object;
use super::outgoing::Outgoing;
use super::parts::Presence;
use super::reactor_state::MemcacheReactorState;
use super::reading::{read_next_part, read_part};

/// A value whose first part is read.
pub struct FirstPart {
    head: Head,
    bytes: Bytes,
    room: PieceRoom,
}

/// Looks whether the value of `hit` is there, and reads its first part once the answer's turn has
/// come, if it is to be shown. A head whose parts are gone is removed.
///
/// # Errors
/// Why it cannot be had. [`MissReason::Abandoned`]: the client is gone.
pub async fn first_part(
    reactor_state: &Rc<MemcacheReactorState>,
    slot: &Slot,
    key: &[u8],
    hit: &Hit,
    shows: bool,
) -> Result<Option<FirstPart>, MissReason> {
    let parts = &reactor_state.front_end.store.parts;
    let head = object::head(hit).ok_or(MissReason::Corrupt)?;
    let reason = match parts.presence(&head) {
        Presence::There if !shows => return Ok(None),
        Presence::There => {
            let room = slot.room_for_piece(head.held()).await.ok_or(MissReason::Abandoned)?;
            match read_part(reactor_state, &head, 0).await {
                Ok(bytes) => return Ok(Some(FirstPart { head, bytes, room })),
                Err(reason) => reason,
            }
        }
        Presence::Gone => MissReason::Absent,
        Presence::Unknown(reason) => reason,
    };
    if reason.is_absence() {
        remove_head(reactor_state, key, &head).await;
    }
    Err(reason)
}

/// Sends a value whose first part is read, in the gap of `text`. A text without one is sent alone:
/// it says why the value is not shown.
pub async fn send(
    reactor_state: &Rc<MemcacheReactorState>,
    slot: Slot,
    key: &[u8],
    first: FirstPart,
    text: Outgoing,
) {
    let FirstPart { head, bytes, room } = first;
    let parts = &reactor_state.front_end.store.parts;
    let (before, after) = match text.around_gap() {
        Ok(around) => around,
        Err(mut text) => {
            drop((room, bytes));
            return slot.answer_sharing(|out| out.append(&mut text));
        }
    };
    slot.piece(room, |out| {
        out.text().extend_from_slice(&before);
        out.push_whole(&bytes);
    });
    drop(bytes);
    for n in 1..head.count() {
        let Some(room) = slot.room_for_piece(head.held()).await else { return };
        match read_next_part(reactor_state, &head, n).await {
            Ok(bytes) => slot.piece(room, |out| out.push_whole(&bytes)),
            Err(reason) => {
                reactor_state.counts.parts_lost.inc();
                parts.tell_lost(n, reason);
                if reason.is_absence() {
                    remove_head(reactor_state, key, &head).await;
                }
                // The slot is dropped without an answer, which ends the connection.
                return;
            }
        }
    }
    slot.answer(|out| out.extend_from_slice(&after));
}

/// Removes a head whose parts are not all there, unless another object has taken its place.
pub async fn remove_head(reactor_state: &Rc<MemcacheReactorState>, key: &[u8], head: &Head) {
    let head = *head;
    remove_if(reactor_state, key, move |hit| object::head(hit) == Some(head)).await;
}

/// Removes an object if it is the one that is meant.
pub async fn remove_if(
    reactor_state: &Rc<MemcacheReactorState>,
    key: &[u8],
    is_it: impl Fn(&Hit) -> bool,
) {
    let change = move |found: Option<&Hit>| match found.is_some_and(is_it) {
        true => (Change::Remove, ()),
        false => (Change::Keep, ()),
    };
    // If it cannot be looked at now, the next read removes it.
    let _ = drive(reactor_state, reactor_state.front_end.store.objects.modify(key, change)).await;
}
