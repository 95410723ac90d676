//! Read-modify-writes of a run: what the closure finds must be the newest state of the key at that
//! moment, or nothing.

use bytes::Bytes;

use super::coverage::{Path, reach};
use super::oracle::SimObject;
use super::parts::{Acking, Changing, Decide, Outstanding, Saw};
use super::plan::{Expect, Expiry, Key, ModifyKind as Kind, Race};
use super::state::{Run, key_bytes, put_options, say};
use super::world::Life;
use crate::api::{Hit, PutOutcome};
use crate::ops::modify::{Change, Changed, Modified, Modify};

/// The change of a kind, and the object that comes of it. A touched one is told by its expiry only.
fn decide(kind: Kind, found: Option<&Hit>, fresh: SimObject) -> (Change, Option<SimObject>) {
    let value = || Bytes::from(fresh.value());
    let put = || (Change::Put { value: value(), options: put_options(fresh) }, Some(fresh));
    match (kind, found) {
        (Kind::Add, Some(_)) | (Kind::Touch, None) => (Change::Keep, None),
        (Kind::Add, None) | (Kind::Put, _) => put(),
        (Kind::Value, None) => {
            let new = SimObject { expiry: 0, group: 0, slot: 0, ..fresh };
            (Change::Value(value()), Some(new))
        }
        (Kind::Value, Some(hit)) => {
            let (expiry, group, slot) = (hit.expiry, hit.group, hit.partition);
            (Change::Value(value()), Some(SimObject { expiry, group, slot, ..fresh }))
        }
        (Kind::Touch, Some(_)) => {
            (Change::Touch(fresh.expiry), Some(SimObject { serial: 0, ..fresh }))
        }
        // Also of what was not found: it may be on flash still.
        (Kind::Remove, _) => (Change::Remove, None),
    }
}

impl Run {
    pub(super) fn modify(&mut self, life: &Life, key: Key, len: u32, kind: Kind, expiry: Expiry) {
        // A key of an Immutable namespace has one value, with one expiry.
        if self.options[usize::from(key.ns)].immutable && kind != Kind::Remove {
            return;
        }
        let fresh = self.object(key, len, expiry, 2, 2);
        let closure: Decide = Box::new(move |found| {
            let (change, new) = decide(kind, found, fresh);
            (change, Saw { found: found.cloned(), new })
        });
        self.outcome.operations += 1;
        self.done[usize::from(key.ns)].gets += 1;
        let modify = life.namespaces[usize::from(key.ns)].modify(&key_bytes(key), closure);
        self.changed(key, modify);
    }

    /// A compare-and-put, which waits for its reads: the engine's own is this one, waiting for the
    /// acknowledgement too.
    pub(super) fn put_if(&mut self, life: &Life, key: Key, len: u32, expect: Expect, race: Race) {
        let fresh = self.object(key, len, Expiry::Never, 0, 0);
        let expected = match expect {
            Expect::Nothing => None,
            Expect::Current => self.oracle.current(key).map(|(_, version)| version),
            Expect::Wrong => Some(u64::MAX),
        };
        say!(self, "put_if {key:?} expecting {expected:?} ({expect:?})");
        let closure: Decide = Box::new(move |found| {
            let put = found.map(|hit| hit.version) == expected;
            reach(if put { Path::PutIfStored } else { Path::PutIfRefused });
            let change = match put {
                true => Change::Put { value: fresh.value().into(), options: put_options(fresh) },
                false => Change::Keep,
            };
            (change, Saw { found: found.cloned(), new: put.then_some(fresh) })
        });
        self.outcome.operations += 1;
        self.done[usize::from(key.ns)].gets += 1;
        let (handle, bytes) = (&life.namespaces[usize::from(key.ns)], key_bytes(key));
        let modify = self.while_racing(life, key, race, || {
            let mut modify = handle.modify(&bytes, closure);
            while let Modify::Flash(read) = modify {
                let bytes = life.core.set.read_at(read.device(), read.offset(), read.len());
                modify = read.finish(bytes);
            }
            modify
        });
        self.changed(key, modify);
    }

    /// Finishes one of the read-modify-writes that wait.
    pub(super) fn finish_change(&mut self, n: usize) {
        let Changing { key, read } = self.changing.swap_remove(n);
        let bytes =
            self.world.machine.device_set().read_at(read.device(), read.offset(), read.len());
        let modify = read.finish(bytes);
        self.changed(key, modify);
    }

    fn changed(&mut self, key: Key, modify: Modify<Decide, Saw>) {
        match modify {
            Modify::Flash(read) => self.changing.push(Changing { key, read }),
            Modify::Done(Err(reason)) => {
                reach(Path::ModifyGivenUp);
                say!(self, "modify {key:?}: {reason:?}");
                self.note(reason as u64);
            }
            Modify::Done(Ok(modified)) => {
                self.found(key, &modified);
                self.done[usize::from(key.ns)].puts +=
                    u64::from(matches!(modified.changed, Changed::Put(_)));
            }
            // The acknowledgement is waited for, what was found is known at once.
            Modify::Later(pending) => {
                let modified = pending.preview();
                let since =
                    self.found(key, modified).expect("nothing is waited for where nothing changed");
                let refused = matches!(modified.changed, Changed::Put(PutOutcome::Refused(_)));
                self.done[usize::from(key.ns)].puts += u64::from(refused);
                self.acking.push(Acking { key, since, pending: Outstanding::Modified(pending) });
            }
        }
    }

    /// Checks what the closure found and notes what came of it; the moment of the new state.
    fn found(&mut self, key: Key, modified: &Modified<Saw>) -> Option<u64> {
        let certain = self.certain();
        let (Saw { found, new }, changed) = (&modified.returned, modified.changed);
        let version = found.as_ref().map(|hit| hit.version);
        say!(self, "modify {key:?}: found version {version:?}, {changed:?}, certain {certain}");
        if let Some(hit) = found {
            // Serialized: the newest there is now, not what was there when the search began.
            let now = self.oracle.now();
            let time = self.present();
            if let Err(wrong) = self.oracle.check(key, now, hit.version, &hit.value, time) {
                panic!("modify: {wrong} ({:?})", hit.tier);
            }
            reach(Path::Modified);
        }
        match changed {
            Changed::Kept => {
                self.note(0);
                None
            }
            Changed::Removed(version) => {
                self.done[usize::from(key.ns)].removes += 1;
                self.new_version(version);
                Some(self.oracle.set(key, version, None, certain))
            }
            Changed::Put(outcome) => {
                let mut object = new.expect("something was put");
                if object.serial == 0 {
                    let old = self.oracle.put_as(key, version.expect("something was touched"));
                    object = SimObject { expiry: object.expiry, ..old };
                }
                self.put_done(key, object, outcome, certain)
            }
        }
    }
}
