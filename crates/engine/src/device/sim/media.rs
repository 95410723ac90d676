//! Areas and metadata files of a simulated machine; the fault model is at the head of
//! [`crate::device::sim`].

use std::collections::BTreeMap;
use std::io;

use super::area::{SimArea, WORD};
use super::machine::{Moment, SimMachine, crashed, eio};
use crate::device::area::{Media, MetaStore, check};

impl SimMachine {
    /// A new zeroed media area of `len` bytes (a multiple of 4096) in place of the one of that
    /// name.
    #[must_use]
    pub fn create_media(&self, name: &str, len: u64) -> SimMedia {
        SimMedia::create(self, name, len)
    }

    /// The media area of that name, `None` when there is none.
    #[must_use]
    pub fn open_media(&self, name: &str) -> Option<SimMedia> {
        SimMedia::open(self, name)
    }

    /// The machine's metadata files, for this life.
    #[must_use]
    pub fn meta(&self) -> SimMetaStore {
        SimMetaStore::new(self)
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
        let faults = &state.faults;
        let gives_up = faults.writeback_error > 0.0 && state.random.chance(faults.writeback_error);
        let Some(area) =
            state.areas.get_mut(&self.name).filter(|area| area.bytes.len() as u64 == self.len)
        else {
            return Err(io::Error::new(
                io::ErrorKind::NotFound,
                "the area was replaced by another",
            ));
        };
        match moment {
            Moment::Alive if !fails => {
                if gives_up {
                    area.give_up_page(&mut state.random);
                }
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
            None => {
                return Err(io::Error::new(
                    io::ErrorKind::NotFound,
                    "the area was replaced by another",
                ));
            }
        }
        Ok(())
    }

    fn check_written(&self) -> io::Result<()> {
        let state = &mut *self.machine.lock();
        if state.effect(self.life) != Moment::Alive {
            return Err(crashed());
        }
        let untold = state.areas.get_mut(&self.name).is_some_and(SimArea::take_untold);
        if untold { Err(eio()) } else { Ok(()) }
    }

    fn sync(&self) -> io::Result<()> {
        self.machine.blocks();
        let state = &mut *self.machine.lock();
        if state.effect(self.life) != Moment::Alive {
            return Err(crashed());
        }
        let mut fails = state.random.chance(state.faults.media_sync_error);
        if let Some(area) = state.areas.get_mut(&self.name) {
            area.sync(fails);
            fails |= area.take_untold();
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

    fn read_part(&self, name: &str, offset: u64, len: usize) -> io::Result<Option<Vec<u8>>> {
        let part = |content: Vec<u8>| {
            let from = (offset as usize).min(content.len());
            content[from..content.len().min(from + len)].to_vec()
        };
        Ok(self.read(name)?.map(part))
    }

    fn replace(&self, name: &str, content: &[u8]) -> io::Result<()> {
        self.change(|files| drop(files.insert(name.to_owned(), content.to_vec())))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.change(|files| drop(files.remove(name)))
    }
}
