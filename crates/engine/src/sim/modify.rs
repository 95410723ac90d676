//! Read-modify-writes of a run: what the closure finds must be the newest state of the key at that moment, or nothing.

use bytes::Bytes;

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
        };
        let certain = !self.world.machine.is_down();
        let Saw { found, new } = modified.returned;
        self.say(|| {
            let found = found.as_ref().map(|hit| (hit.value.len(), hit.version, hit.tier));
            format!("modify {key:?}: found {found:?}, {:?}, certain {certain}", modified.changed)
        });
        if let Some(hit) = &found {
            // Serialized: the newest there is now, not what was there when the search began.
            let now = self.oracle.now();
            let expired_at = self.time.max(self.wall);
            if let Err(wrong) = self.oracle.check(&key, now, &hit.value, expired_at) {
                panic!("seed {}: modify: {wrong} ({:?})", self.seed, hit.tier);
            }
            self.outcome.modified += 1;
        }
        match modified.changed {
            Changed::Kept => {}
            Changed::Removed(_) => self.oracle.set(&key, None, certain),
            Changed::Put(outcome) => {
                self.put[key.0] += 1;
                match outcome {
                    PutOutcome::Stored { .. } => self.oracle.set(&key, new, certain),
                    PutOutcome::Refused(RefuseReason::TooLarge | RefuseReason::Expired) => {
                        self.oracle.set(&key, None, certain);
                    }
                    PutOutcome::Refused(reason) => panic!("seed {}: refused: {reason:?}", self.seed),
                }
            }
        }
    }
}
