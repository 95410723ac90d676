//! Areas and metadata files of a simulated machine; the fault model is at the head of [`crate::device::sim`].

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use super::{Media, MetaStore, check};
use crate::device::sim::{Moment, SimMachine, SimRandom, crashed, eio};

/// Bytes of the unit in which stores tear.
const WORD: usize = 8;
/// Bytes of the unit in which the kernel writes.
const PAGE: usize = 4096;

/// Contents of a media area.
pub(crate) struct SimArea {
    bytes: Vec<u8>,
    /// Synced content of the words stored since.
    synced: BTreeMap<usize, [u8; WORD]>,
    /// Pages that a failed flush has dropped: no flush writes them before they are stored to again.
    dropped: BTreeSet<usize>,
}

impl SimArea {
    fn new(len: u64) -> Self {
        Self { bytes: vec![0; len as usize], synced: BTreeMap::new(), dropped: BTreeSet::new() }
    }

    fn store(&mut self, offset: u64, bytes: &[u8]) {
        for (n, word) in bytes.chunks_exact(WORD).enumerate() {
            let place = &mut self.bytes[offset as usize + n * WORD..][..WORD];
            self.synced
                .entry(offset as usize / WORD + n)
                .or_insert_with(|| (&*place).try_into().expect("a whole word"));
            place.copy_from_slice(word);
            self.dropped.remove(&((offset as usize + n * WORD) / PAGE));
        }
    }

    /// Flushes, as kernels do: pages that fail to be written pass for written from then on, and the error is told once.
    fn sync(&mut self, fails: bool) {
        if fails {
            self.dropped.extend(self.synced.keys().map(|word| word * WORD / PAGE));
        }
        self.synced.retain(|word, _| self.dropped.contains(&(word * WORD / PAGE)));
    }

    /// Offsets of the words at risk.
    #[cfg(test)]
    pub(crate) fn unsynced(&self) -> Vec<u64> {
        self.synced.keys().map(|word| (word * WORD) as u64).collect()
    }

    /// Power loss: of the words not synced all, none or some go back.
    pub(crate) fn lose_unsynced(&mut self, random: &mut SimRandom) {
        let probability = [0.0, 0.5, 1.0][random.below(3) as usize];
        self.dropped.clear();
        for (word, content) in std::mem::take(&mut self.synced) {
            if random.chance(probability) {
                self.bytes[word * WORD..][..WORD].copy_from_slice(&content);
            }
        }
    }
}

/// A media area of a simulated machine.
pub struct SimMedia {
    machine: SimMachine,
    name: String,
    len: u64,
    life: u64,
}

impl SimMedia {
    pub(crate) fn create(machine: &SimMachine, name: &str, len: u64) -> Self {
        assert!(len > 0 && len.is_multiple_of(4096), "areas are whole pages");
        let mut state = machine.lock();
        state.areas.insert(name.to_owned(), SimArea::new(len));
        let life = state.life();
        drop(state);
        Self { machine: machine.clone(), name: name.to_owned(), len, life }
    }

    pub(crate) fn open(machine: &SimMachine, name: &str) -> Option<Self> {
        let state = machine.lock();
        let len = state.areas.get(name)?.bytes.len() as u64;
        let life = state.life();
        drop(state);
        Some(Self { machine: machine.clone(), name: name.to_owned(), len, life })
    }
}

impl Media for SimMedia {
    fn len(&self) -> u64 {
        self.len
    }

    fn store(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        check(self.len, offset, bytes.len())?;
        let state = &mut *self.machine.lock();
        let moment = state.effect(self.life);
        if moment == Moment::Dead {
            return Err(crashed());
        }
        let fails = state.random.chance(state.faults.media_error);
        let prefix = state.random.below((bytes.len() / WORD) as u64 + 1) as usize * WORD;
        let Some(area) = state.areas.get_mut(&self.name).filter(|area| area.bytes.len() as u64 == self.len)
        else {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the area was replaced by another"));
        };
        match moment {
            Moment::Alive if !fails => {
                area.store(offset, bytes);
                Ok(())
            }
            Moment::Alive => {
                coverage_mark!(MediaError);
                area.store(offset, &bytes[..prefix]);
                Err(eio())
            }
            _ => {
                area.store(offset, &bytes[..prefix]);
                Err(crashed())
            }
        }
    }

    fn load(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        check(self.len, offset, bytes.len())?;
        let state = &mut *self.machine.lock();
        if !state.reaches(self.life) {
            return Err(crashed());
        }
        if state.random.chance(state.faults.media_error) {
            return Err(eio());
        }
        match state.areas.get(&self.name).filter(|area| area.bytes.len() as u64 == self.len) {
            Some(area) => bytes.copy_from_slice(&area.bytes[offset as usize..][..bytes.len()]),
            None => return Err(io::Error::new(io::ErrorKind::NotFound, "the area was replaced by another")),
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        self.machine.blocks();
        let state = &mut *self.machine.lock();
        if state.effect(self.life) != Moment::Alive {
            return Err(crashed());
        }
        let fails = state.random.chance(state.faults.media_sync_error);
        if let Some(area) = state.areas.get_mut(&self.name) {
            area.sync(fails);
        }
        if fails { Err(eio()) } else { Ok(()) }
    }
}

/// Metadata files of a simulated machine.
pub struct SimMetaStore {
    machine: SimMachine,
    life: u64,
}

impl SimMetaStore {
    pub(crate) fn new(machine: &SimMachine) -> Self {
        let life = machine.life();
        Self { machine: machine.clone(), life }
    }

    /// Has `change` happen, or fail with or without having happened.
    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, Vec<u8>>)) -> io::Result<()> {
        self.machine.blocks();
        let state = &mut *self.machine.lock();
        let moment = state.effect(self.life);
        if moment == Moment::Dead {
            return Err(crashed());
        }
        let fails = state.random.chance(state.faults.meta_error);
        let happens = state.random.chance(0.5) || (moment == Moment::Alive && !fails);
        if happens {
            change(&mut state.meta);
        }
        match moment {
            Moment::Alive if fails => {
                coverage_mark!(MetaError);
                Err(eio())
            }
            Moment::Alive => Ok(()),
            _ => Err(crashed()),
        }
    }
}

impl MetaStore for SimMetaStore {
    fn read(&self, name: &str) -> io::Result<Option<Vec<u8>>> {
        let state = &mut *self.machine.lock();
        if !state.reaches(self.life) {
            return Err(crashed());
        }
        if state.random.chance(state.faults.meta_error) {
            return Err(eio());
        }
        Ok(state.meta.get(name).cloned())
    }

    fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        self.change(|files| drop(files.insert(name.to_owned(), content.to_vec())))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change(|files| drop(files.remove(name)))
    }
}
