//! Read-modify-writes of a run: what the closure finds must be the newest state of the key at that moment, or nothing.

use bytes::Bytes;

use super::acks::{Acking, is_refused};
use super::oracle::{Key, Object};
use super::run::Run;
use super::world::Life;
use crate::api::{Hit, PutOptions, PutOutcome, RefuseReason};
use crate::config::Mutability;
use crate::modify::{Change, Changed, Modify, ModifyRead};

/// What the closure found and what it made of it.
pub struct Saw {
    found: Option<Hit>,
    new: Option<Object>,
}

type Decide = Box<dyn FnOnce(Option<&Hit>) -> (Change, Saw)>;

/// A read-modify-write whose read is in flight.
pub struct Changing {
    pub key: Key,
    read: ModifyRead<Decide>,
}

impl Run {
    pub(super) fn modify(&mut self, life: &Life) {
        let key = self.key();
        if self.world.namespaces[key.0].1.mutability == Mutability::Immutable {
            return;
        }
        let fresh = self.object(&key);
        let (what, expiry) = (self.random.below(6), fresh.expiry);
        self.begun[key.0] += 1;
        let decide: Decide = Box::new(move |found| {
            let put = |object: &Object| {
                let options = PutOptions {
                    expiry: object.expiry,
                    group: object.group,
                    token: u64::from(object.slot) << 44,
                };
                Change::Put { value: Bytes::from(object.value.clone()), options }
            };
            let (change, new) = match (what, found) {
                // Add, and compare and swap.
                (0, Some(_)) => (Change::Keep, None),
                (0 | 1, _) => (put(&fresh), Some(fresh)),
                (2 | 3, Some(hit)) => {
                    let (group, slot) = (hit.group, hit.partition);
                    let new = Object { value: fresh.value, expiry: hit.expiry, group, slot };
                    (Change::Value(Bytes::from(new.value.clone())), Some(new))
                }
                (4, Some(hit)) => {
                    let (group, slot) = (hit.group, hit.partition);
                    (Change::Touch(expiry), Some(Object { value: hit.value.to_vec(), expiry, group, slot }))
                }
                (5, Some(_)) => (Change::Remove, None),
                _ => (Change::Keep, None),
            };
            (change, Saw { found: found.cloned(), new })
        });
        let modify = life.namespaces[key.0].modify(&key.1, decide);
        self.changed(key, modify);
        if self.random.chance(0.7) {
            self.finish_change();
        }
    }

    /// Finishes one of the read-modify-writes that wait.
    pub(super) fn finish_change(&mut self) {
        if self.changing.is_empty() {
            return;
        }
        let n = self.random.below(self.changing.len() as u64) as usize;
        let Changing { key, read } = self.changing.swap_remove(n);
        let bytes = self.world.machine.device_set().read_at(read.device(), read.offset(), read.len());
        let modify = read.finish(bytes);
        self.changed(key, modify);
    }

    fn changed(&mut self, key: Key, modify: Modify<Decide, Saw>) {
        let modified = match modify {
            Modify::Flash(read) => return self.changing.push(Changing { key, read }),
            Modify::Done(Err(reason)) => return self.say(|| format!("modify {key:?}: {reason:?}")),
            Modify::Done(Ok(modified)) => modified,
            // The acknowledgement is waited for, what was found is known at once.
            Modify::Later(pending) => {
                let (since, found) = {
                    let modified = pending.preview();
                    (self.found(&key, &modified.returned, &modified.changed), modified.changed)
                };
                self.put[key.0] += u64::from(is_refused(&found));
                let since = since.unwrap_or_else(|| panic!("{found:?} waits for nothing"));
                return self.acking.push(Acking { key, since, pending: pending.into() });
            }
        };
        if self.found(&key, &modified.returned, &modified.changed).is_some()
            && matches!(modified.changed, Changed::Put(_))
        {
            self.put[key.0] += 1;
        }
    }

    /// Checks what the closure found and notes what came of it; the moment of the new state.
    fn found(&mut self, key: &Key, saw: &Saw, changed: &Changed) -> Option<u64> {
        let certain = !self.world.machine.is_down();
        self.say(|| {
            let found = saw.found.as_ref().map(|hit| (hit.value.len(), hit.version, hit.tier));
            format!("modify {key:?}: found {found:?}, {changed:?}, certain {certain}")
        });
        if let Some(hit) = &saw.found {
            // Serialized: the newest there is now, not what was there when the search began.
            let now = self.oracle.now();
            let expired_at = self.time.max(self.wall);
            if let Err(wrong) = self.oracle.check(key, now, &hit.value, expired_at) {
                panic!("seed {}: modify: {wrong} ({:?})", self.seed, hit.tier);
            }
            self.outcome.modified += 1;
        }
        match changed {
            Changed::Kept => None,
            Changed::Removed(_) => Some(self.oracle.set(key, None, certain)),
            Changed::Put(PutOutcome::Stored { .. }) => Some(self.oracle.set(key, saw.new.clone(), certain)),
            Changed::Put(PutOutcome::Refused(RefuseReason::Closed | RefuseReason::VersionMismatch)) => {
                panic!("seed {}: {changed:?}", self.seed)
            }
            Changed::Put(PutOutcome::Refused(_)) => Some(self.oracle.set(key, None, certain)),
        }
    }
}
