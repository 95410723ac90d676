//! Read-modify-writes of values in parts: what a change under a lock cannot do.
//!
//! 1. A change decides with the head alone. Most need no more.
//! 2. What it found counts only if the parts are there. Otherwise the head is removed and the
//!    change is made again.
//! 3. `append` and `prepend` read both values part by part and put the joined value under a new
//!    incarnation. The new head takes the place of the old value if that is still the one that was
//!    read; otherwise all begins again.

use std::rc::Rc;

use afterglow_engine::{Change, Changed, Hit, MissReason, Modified, Pending, PutOutcome};
use afterglow_memcache::{Action, Mode, NewValue, Operation};

use super::answers::Slot;
use super::delete::{remove_unseen, removes_unseen};
use super::driving::{begin, drive};
use super::head::Head;
use super::object;
use super::parts::{PartPut, REFUSED_PAUSE, REFUSED_TRIES};
use super::reactor_state::MemcacheReactorState;
use super::reading::read_part;
use super::sending::{FirstPart, first_part, remove_head, remove_if};
use super::store::FoundBefore;

/// How often a change begins again whose object goes, or becomes another, in between.
const TRIES: u32 = 8;

type Outcome = Result<Modified<FoundBefore>, MissReason>;

/// Ends a read-modify-write that came by a value in parts. Returns with it the first part of a
/// value that is to be shown. What an error leaves of the object is what it should.
pub async fn settle(
    reactor_state: &Rc<MemcacheReactorState>,
    operation: &Rc<Operation<'static>>,
    mut modified: Modified<FoundBefore>,
    slot: &Slot,
) -> Result<(Modified<FoundBefore>, Option<FirstPart>), MissReason> {
    let is_get = matches!(operation.action, Action::Get(_));
    let shows = is_get && operation.reply.shows_value();
    for _ in 0..TRIES {
        if let Some(len) = modified.returned.joins() {
            let found = modified.returned.hit().expect("there is something to join").clone();
            match join(reactor_state, operation, slot, &found, len).await {
                Ok(Some(joined)) => return Ok((joined, None)),
                Ok(None) => {}
                // Nothing was done yet, and the client is gone.
                Err(MissReason::Abandoned) => return Err(MissReason::Abandoned),
                // What was to be joined goes, as for any refused write; not what came after it.
                Err(reason) => {
                    let is_it = move |hit: &Hit| hit.version == found.version;
                    remove_if(reactor_state, &operation.key, is_it).await;
                    return Err(reason);
                }
            }
        } else {
            let Some(hit) = modified.returned.hit().filter(|_| modified.returned.in_parts()) else {
                return Ok((modified, None));
            };
            match first_part(reactor_state, slot, &operation.key, hit, shows).await {
                Ok(first) => return Ok((modified, first)),
                Err(reason) if reason.is_absence() => {}
                Err(reason) if is_get => return Err(reason),
                Err(_) => return Ok((modified, None)),
            }
            if !is_get && modified.changed != Changed::Kept {
                // It was there when this began, as far as anybody can say.
                return Ok((modified, None));
            }
        }
        modified = match drive(reactor_state, begin(reactor_state, operation, |_| true)).await {
            Ok(modified) => modified,
            Err(reason) => {
                if removes_unseen(&operation.action, reactor_state.front_end.store.now()) {
                    remove_unseen(reactor_state, &operation.key).await;
                }
                return Err(reason);
            }
        };
    }
    // Others were faster each time. What they have stored stays.
    Err(MissReason::Moved)
}

/// Joins the value of `found` with that of a store, to `len` bytes. `None`: another object has
/// taken the place of the old one, or its parts are gone.
async fn join(
    reactor_state: &Rc<MemcacheReactorState>,
    operation: &Rc<Operation<'static>>,
    slot: &Slot,
    found: &Hit,
    len: usize,
) -> Result<Option<Modified<FoundBefore>>, MissReason> {
    let parts = &reactor_state.front_end.store.parts;
    let Action::Store(store) = &operation.action else { unreachable!("only stores join") };
    let old = object::decode(found).ok_or(MissReason::Corrupt)?;
    let old_head = object::head(found);
    let mut values =
        [(old_head, old.value), (store.in_parts.and(Head::decode(&store.value)), &*store.value)];
    if store.mode == Mode::Prepend {
        values.reverse();
    }
    let head = parts.head(len);
    // What is read, and what is put together of it: nothing is allocated before there is room.
    let room = slot.room_for_piece(2 * head.held()).await.ok_or(MissReason::Abandoned)?;
    let mut writer = Writer::new(reactor_state, head);
    for (head, bytes) in values {
        let Some(head) = head else {
            writer.add(bytes).await?;
            continue;
        };
        for n in 0..head.count() {
            match read_part(reactor_state, &head, n).await {
                Ok(part) => writer.add(&part).await?,
                Err(reason) if reason.is_absence() && Some(head) == old_head => {
                    remove_head(reactor_state, &operation.key, &head).await;
                    return Ok(None);
                }
                Err(reason) => return Err(reason),
            }
        }
    }
    let head = writer.end().await?;
    drop(room);
    publish(reactor_state, operation, found, head).await
}

/// Puts the head of a joined value in the place of the old object, if that is still there.
async fn publish(
    reactor_state: &Rc<MemcacheReactorState>,
    operation: &Rc<Operation<'static>>,
    old: &Hit,
    head: Head,
) -> Result<Option<Modified<FoundBefore>>, MissReason> {
    let (front_end, shared, version) =
        (reactor_state.front_end.clone(), operation.clone(), old.version);
    let change = move |found: Option<&Hit>| {
        let bytes = head.encode();
        let joined = NewValue::InParts { head: &bytes, len: head.value_len() };
        let same = found.filter(|hit| hit.version == version);
        match same {
            Some(_) => front_end.store.change_to(&shared.key, &shared.action, same, Some(joined)),
            None => (Change::Keep, FoundBefore::without_room()),
        }
    };
    let modify = reactor_state.front_end.store.objects.modify(&operation.key, change);
    let outcome: Outcome = drive(reactor_state, modify).await;
    outcome.map(|modified| (!modified.returned.lacked_room()).then_some(modified))
}

/// Puts a value in parts, whose bytes come in whatever pieces.
struct Writer<'a> {
    reactor_state: &'a Rc<MemcacheReactorState>,
    head: Head,
    buf: Vec<u8>,
    next: u32,
    pending: Vec<Pending<PutOutcome>>,
    #[cfg(test)]
    _counted: CountedWriter,
}

/// Counts the writers that there are on a thread.
#[cfg(test)]
struct CountedWriter;

#[cfg(test)]
thread_local! {
    static WRITERS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

#[cfg(test)]
impl CountedWriter {
    fn new() -> Self {
        WRITERS.set(WRITERS.get() + 1);
        CountedWriter
    }
}

#[cfg(test)]
impl Drop for CountedWriter {
    fn drop(&mut self) {
        WRITERS.set(WRITERS.get() - 1);
    }
}

/// Buffers that this thread has allocated for joins, and not freed yet.
#[cfg(test)]
pub fn buffers() -> usize {
    WRITERS.get()
}

impl<'a> Writer<'a> {
    fn new(reactor_state: &'a Rc<MemcacheReactorState>, head: Head) -> Self {
        let buf = Vec::with_capacity(reactor_state.front_end.store.parts.part());
        Writer {
            reactor_state,
            head,
            buf,
            next: 0,
            pending: Vec::new(),
            #[cfg(test)]
            _counted: CountedWriter::new(),
        }
    }

    async fn add(&mut self, mut bytes: &[u8]) -> Result<(), MissReason> {
        let part = self.reactor_state.front_end.store.parts.part();
        while !bytes.is_empty() {
            let (now, later) = bytes.split_at(bytes.len().min(part - self.buf.len()));
            self.buf.extend_from_slice(now);
            bytes = later;
            if self.buf.len() == part {
                self.put().await?;
            }
        }
        Ok(())
    }

    /// Puts what has come together. As for any store, backpressure is waited for once.
    async fn put(&mut self) -> Result<(), MissReason> {
        let parts = &self.reactor_state.front_end.store.parts;
        if let Some(backpressure) = parts.backpressure() {
            backpressure.await;
        }
        for _ in 0..REFUSED_TRIES {
            match parts.put(&self.head, self.next, &self.buf) {
                PartPut::NotNow => {
                    compio::time::sleep(REFUSED_PAUSE).await;
                    continue;
                }
                PartPut::Stored => {}
                PartPut::Later(pending) => self.pending.push(pending),
                PartPut::Refused => break,
            }
            self.next += 1;
            self.buf.clear();
            return Ok(());
        }
        Err(MissReason::Device)
    }

    /// Puts the rest, and waits until all of it is acknowledged.
    async fn end(mut self) -> Result<Head, MissReason> {
        if !self.buf.is_empty() {
            self.put().await?;
        }
        assert_eq!(self.next, self.head.count(), "not the bytes that were announced");
        for pending in self.pending {
            if !matches!(pending.await, PutOutcome::Stored { .. }) {
                return Err(MissReason::Device);
            }
        }
        Ok(self.head)
    }
}
