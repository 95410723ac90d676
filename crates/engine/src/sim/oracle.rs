//! What a get may return.
//!
//! Every key has a list of states (a value, or nothing) with the moment each began. A get that
//! lasts from `start` to `end` may return any state the key was in meanwhile, or miss. It never
//! returns anything older (G1) or anything else (G2). If the machine died during an operation, it
//! may or may not have happened: its state is *uncertain*. The state before stays allowed until a
//! later certain one, or until a get returns the new one.
//!
//! A state is known by its version, so equal bytes of another put do not pass for it. In an
//! Immutable namespace all puts of a key have the same bytes; only a removal makes an earlier one
//! wrong. A removal that power loss may have undone is *doubted* (G4).

use super::plan::Key;

/// What was put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SimObject {
    /// Number of the put; the bytes follow from it.
    pub serial: u64,
    pub len: u32,
    pub expiry: u32,
    pub group: u32,
    pub slot: u32,
}

impl SimObject {
    /// Its bytes: the start of them names the put.
    pub fn value(&self) -> Vec<u8> {
        let word = self.serial.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes();
        let mut value = word.repeat(self.len as usize / 8 + 1);
        value.truncate(self.len as usize);
        value
    }
}

#[derive(Debug, Clone, Copy)]
struct OracleState {
    since: u64,
    version: u64,
    object: Option<SimObject>,
    certain: bool,
}

/// The states of the keys of a namespace.
#[derive(Debug, Default)]
struct Space {
    keys: Vec<Vec<OracleState>>,
    immutable: bool,
    /// Removals before this moment may have been undone.
    doubted: u64,
}

/// The oracle.
#[derive(Debug, Default)]
pub struct Oracle {
    spaces: Vec<Space>,
    moment: u64,
}

impl Oracle {
    pub fn new(namespaces: usize, keys: u32) -> Self {
        let space = || Space { keys: vec![Vec::new(); keys as usize], ..Space::default() };
        Self { spaces: (0..namespaces).map(|_| space()).collect(), moment: 0 }
    }

    /// A namespace starts empty: nothing put so far may ever be seen again.
    pub fn start(&mut self, ns: u8, immutable: bool) {
        let space = &mut self.spaces[usize::from(ns)];
        space.keys.iter_mut().for_each(Vec::clear);
        space.immutable = immutable;
    }

    /// Now, as a moment a get may start at.
    pub fn now(&mut self) -> u64 {
        self.moment += 1;
        self.moment
    }

    fn states(&self, key: Key) -> &Vec<OracleState> {
        &self.spaces[usize::from(key.ns)].keys[key.n as usize]
    }

    /// A key's state becomes `object`; the moment it does.
    pub fn set(&mut self, key: Key, version: u64, object: Option<SimObject>, certain: bool) -> u64 {
        let since = self.now();
        let states = &mut self.spaces[usize::from(key.ns)].keys[key.n as usize];
        states.push(OracleState { since, version, object, certain });
        since
    }

    /// Whether the state that began at `since` is the newest of its key.
    pub fn is_newest(&self, key: Key, since: u64) -> bool {
        self.states(key).last().is_some_and(|state| state.since == since)
    }

    /// What was never acknowledged may be forgotten, although it was seen.
    pub fn doubt(&mut self, key: Key, since: u64) {
        let states = &mut self.spaces[usize::from(key.ns)].keys[key.n as usize];
        states
            .iter_mut()
            .filter(|state| state.since == since)
            .for_each(|state| state.certain = false);
    }

    /// What a get of `key` now would find in a cache that forgets nothing, with its version; `None`
    /// when that is not certain.
    pub fn current(&self, key: Key) -> Option<(SimObject, u64)> {
        let last = self.states(key).last()?;
        last.object.filter(|_| last.certain).map(|o| (o, last.version))
    }

    /// What was put with this version.
    pub fn put_as(&self, key: Key, version: u64) -> SimObject {
        let state = self.states(key).iter().rfind(|s| s.version == version && s.object.is_some());
        state.and_then(|s| s.object).expect("it was seen")
    }

    /// Kills the objects of a namespace that `dead` chooses.
    pub fn kill(&mut self, ns: u8, version: u64, certain: bool, dead: impl Fn(&SimObject) -> bool) {
        let since = self.now();
        for states in &mut self.spaces[usize::from(ns)].keys {
            // An uncertain object below a dead one would come to light.
            let any = states.iter().any(|s| s.object.as_ref().is_some_and(&dead));
            let first = states.iter().rposition(|s| s.certain).unwrap_or(0);
            let all_dead = states[first..].iter().all(|s| s.object.as_ref().is_none_or(&dead));
            if any && all_dead {
                states.push(OracleState { since, version, object: None, certain });
            }
        }
    }

    /// Removals in an Immutable namespace may have been undone.
    pub fn doubt_removals(&mut self, ns: u8) {
        self.spaces[usize::from(ns)].doubted = self.moment;
    }

    /// Checks what a get that started at `start` has returned.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn check(
        &mut self,
        key: Key,
        start: u64,
        version: u64,
        value: &[u8],
        time: u64,
    ) -> Result<(), String> {
        let Space { keys, immutable, doubted } = &mut self.spaces[usize::from(key.ns)];
        let states = &mut keys[key.n as usize];
        let settled = |s: &OracleState| match (*immutable, s.object) {
            (true, Some(_)) => false,
            (true, None) => s.certain && s.since > *doubted,
            (false, _) => s.certain,
        };
        let first = states.iter().rposition(|s| s.since <= start && settled(s)).unwrap_or(0);
        let found = states.iter().rposition(|s| s.object.is_some() && s.version == version);
        let Some(at) = found else {
            return Err(format!(
                "{key:?}: version {version} was never put ({} bytes): {:?}",
                value.len(),
                brief(states)
            ));
        };
        let object = states[at].object.expect("just looked at");
        if value != object.value() {
            return Err(format!(
                "{key:?}: {} bytes that were never put as version {version}",
                value.len()
            ));
        }
        if at < first {
            return Err(format!(
                "{key:?}: stale, state {at} of {}, allowed from {first}: {:?}",
                states.len(),
                brief(states)
            ));
        }
        if object.expiry != 0 && u64::from(object.expiry) <= time {
            return Err(format!("{key:?}: expired at {}, time is {time}", object.expiry));
        }
        // Seen, so it happened; nobody may see anything before it from now on.
        if at + 1 == states.len() {
            states[at].certain = true;
        }
        Ok(())
    }

    /// Keys of each namespace.
    pub fn keys(&self) -> u32 {
        self.spaces[0].keys.len() as u32
    }

    /// All keys there may be anything of.
    pub fn all_keys(&self) -> impl Iterator<Item = Key> {
        let keys = self.keys();
        (0..self.spaces.len() as u8).flat_map(move |ns| (0..keys).map(move |n| Key { ns, n }))
    }

    /// All keys with a certain current object.
    pub fn live(&self) -> impl Iterator<Item = (Key, SimObject)> {
        self.all_keys().filter_map(|key| Some((key, self.current(key)?.0)))
    }
}

fn brief(states: &[OracleState]) -> Vec<(u64, u64, Option<u32>, bool)> {
    states.iter().map(|s| (s.since, s.version, s.object.map(|o| o.len), s.certain)).collect()
}
