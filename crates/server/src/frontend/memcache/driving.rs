//! Begins read-modify-writes and carries them out.

use std::rc::Rc;

use afterglow_engine::device::AlignedBuf;
use afterglow_engine::{Change, Hit, MissReason, Modified, Modify};
use afterglow_memcache::{Action, Operation};

use super::reactor_state::MemcacheReactorState;
use super::store::FoundBefore;

/// Begins a read-modify-write. `grants` says whether there is room for a value to be answered with;
/// nothing is changed where there is none.
pub(super) fn begin<G: Fn(usize) -> bool>(
    reactor_state: &Rc<MemcacheReactorState>,
    operation: &Rc<Operation<'static>>,
    grants: G,
) -> Modify<impl FnOnce(Option<&Hit>) -> (Change, FoundBefore) + use<G>, FoundBefore> {
    #[cfg(test)]
    if reactor_state.front_end.says_loading() {
        return Modify::Done(Err(MissReason::Loading));
    }
    let change = decide(reactor_state, operation, grants);
    reactor_state.front_end.store.objects.modify(&operation.key, change)
}

/// Comes again with one that could not be carried out. It is counted already.
pub(super) fn begin_again(
    reactor_state: &Rc<MemcacheReactorState>,
    operation: &Rc<Operation<'static>>,
) -> Modify<impl FnOnce(Option<&Hit>) -> (Change, FoundBefore) + use<>, FoundBefore> {
    #[cfg(test)]
    if reactor_state.front_end.says_loading() {
        return Modify::Done(Err(MissReason::Loading));
    }
    let change = decide(reactor_state, operation, |_| true);
    reactor_state.front_end.store.objects.modify_again(&operation.key, change)
}

/// What decides on the change.
fn decide<G: Fn(usize) -> bool>(
    reactor_state: &Rc<MemcacheReactorState>,
    operation: &Rc<Operation<'static>>,
    grants: G,
) -> impl FnOnce(Option<&Hit>) -> (Change, FoundBefore) + use<G> {
    let (front_end, shared) = (reactor_state.front_end.clone(), operation.clone());
    move |found: Option<&Hit>| {
        let answered = found.filter(|_| matches!(shared.action, Action::Get(_)));
        match answered.is_none_or(|hit| grants(hit.value.len())) {
            true => front_end.store.change(&shared.key, &shared.action, found),
            false => (Change::Later, FoundBefore::without_room()),
        }
    }
}

/// Carries a read-modify-write out, with the reads that it needs.
pub(super) async fn drive<F, T>(
    reactor_state: &MemcacheReactorState,
    mut modify: Modify<F, T>,
) -> Result<Modified<T>, MissReason>
where
    F: FnOnce(Option<&Hit>) -> (Change, T),
{
    loop {
        modify = match modify {
            Modify::Done(outcome) => return outcome,
            Modify::Later(pending) => return Ok(pending.await),
            Modify::Flash(read) => {
                let buf = AlignedBuf::for_read(read.len() as usize);
                let bytes = reactor_state.read(read.device(), read.offset(), buf).await;
                read.finish(bytes)
            }
        };
    }
}
