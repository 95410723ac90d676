//! Opening a namespace, or making it.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::config::NamespaceOptions;
use crate::core::Core;
use crate::error::OpenError;
use crate::format::journal::Event;
use crate::format::state::NamespaceRecord;
use crate::namespace::Namespace;
use crate::namespace::state::NamespaceState;

/// The handle of the namespace `name`; see [`Cache::namespace`](crate::Cache::namespace).
pub(crate) fn open_namespace(
    core: &Arc<Core>,
    name: &str,
    options: NamespaceOptions,
) -> Result<Namespace, OpenError> {
    // One at a time; those who only look namespaces up (evictions, under their shard's lock) do not
    // wait for the disk.
    let _opening = core.namespaces.opening.lock();
    let (known, count) = {
        let namespaces = core.namespaces.list.read();
        (namespaces.iter().find(|ns| ns.name == name).cloned(), namespaces.len())
    };
    if let Some(ns) = &known {
        if ns.options == options {
            ns.set_open();
            return Ok(Namespace { core: core.clone(), ns: ns.clone() });
        }
        if ns.is_open() {
            return Err(OpenError::Config(format!(
                "namespace {name} is already open with other options"
            )));
        }
    }
    let id = known.as_ref().map_or(count, |ns| usize::from(ns.id));
    let Ok(id) = u16::try_from(id) else {
        return Err(OpenError::Config("65,536 namespaces exist already".into()));
    };
    let mut ns = NamespaceState::new(id, name.to_owned(), options);
    // Segments that are still to be read may hold records of the older options, which this life
    // reads under the new ones.
    ns.journal_gaps = core.progress.unread.load(Ordering::Acquire)
        && known.as_ref().is_some_and(|old| old.may_lack_entries());
    let journal_gaps = ns.journal_gaps;
    let ns = Arc::new(ns);
    let mut cleared = 0;
    if let Some(old) = known {
        ns.restore(&old.kills());
        let same = old.options.mutability == options.mutability
            && old.options.survives == options.survives;
        if !same {
            cleared = core.kill(&ns, Event::Clear { ns: id });
        }
        // The new options may promise more at power loss than the old ones: for what the old ones
        // have journalled, too.
        core.journal.sync().map_err(OpenError::io("flushing the journal"))?;
    }
    core.state
        .update(|state| {
            let kill =
                state.namespaces.iter().find(|n| n.id == id).map_or(0, |n| n.kill).max(cleared);
            state.namespaces.retain(|n| n.id != id);
            let name = name.to_owned();
            state.namespaces.push(NamespaceRecord { id, name, options, kill, journal_gaps });
            state.namespaces.sort_by_key(|n| n.id);
        })
        .map_err(OpenError::io("writing the state file"))?;
    ns.set_open();
    let mut namespaces = core.namespaces.list.write();
    match namespaces.get_mut(usize::from(id)) {
        Some(place) => *place = ns.clone(),
        None => namespaces.push(ns.clone()),
    }
    Ok(Namespace { core: core.clone(), ns })
}
