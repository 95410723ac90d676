//! The simulated machine: its devices, areas and files, its power, and its faults.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;

use super::area::SimArea;
use super::device::{Device, SIM_ALIGNMENT};
use super::faults::{Crash, SimFaults, SimIo};
use super::pending::PendingIo;
use super::random::SimRandom;
use crate::device::area::BootId;
use crate::device::{DeviceId, DeviceInfo, WriteBuf};

/// A device taken out of the machine; empty at first.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct Spare(Option<Device>);

/// What a device has stored once.
#[cfg(test)]
pub(crate) struct Image(Vec<u8>);

/// A copy of areas and metadata files.
#[cfg(test)]
pub(crate) struct Directory {
    areas: BTreeMap<String, Vec<u8>>,
    meta: BTreeMap<String, Vec<u8>>,
}

/// Handle to a simulated machine. Clones are the same machine.
#[derive(Clone)]
pub struct SimMachine {
    state: Arc<Mutex<Machine>>,
}

/// Everything the machine is.
pub(crate) struct Machine {
    pub(crate) random: SimRandom,
    pub(crate) faults: SimFaults,
    /// Contents of media areas and metadata files by name.
    pub(crate) areas: BTreeMap<String, SimArea>,
    pub(crate) meta: BTreeMap<String, Vec<u8>>,
    pub(super) infos: Vec<DeviceInfo>,
    pub(super) devices: Vec<Device>,
    pub(super) pending: Vec<PendingIo>,
    /// Writes that were in flight when the power went, already failed to their submitter.
    pub(super) cut: Vec<(DeviceId, u64, WriteBuf)>,
    /// I/Os to be held up: their kind, how many of it go before, and turns.
    pub(super) holds: Vec<(SimIo, u64, u64)>,
    /// Effects left until the power goes.
    pub(super) countdown: Option<u64>,
    /// Offsets on the first device, and how many effects behind a write at one of them the power
    /// goes.
    pub(super) cut_behind: Option<(Vec<u64>, u64)>,
    pub(super) down: bool,
    /// Crashes so far: handles know theirs.
    pub(super) life: u64,
    pub(super) boot: u128,
    pub(super) turn: u64,
    pub(super) queues: u64,
    /// The background work makes a step, which must not block.
    #[cfg(test)]
    pub(super) in_background: bool,
    /// A cache is being opened, which waits for no device for ever.
    #[cfg(test)]
    pub(super) opening: bool,
    /// A device that falls mute while a cache is opened, and what it still answers before.
    #[cfg(test)]
    pub(super) hang: Option<(DeviceId, u64)>,
    /// The first is another name of the second.
    #[cfg(test)]
    pub(super) alias: Option<(DeviceId, DeviceId)>,
    /// What happens in the middle of the next blocking read.
    #[cfg(test)]
    pub(super) interruption: Option<Interruption>,
    /// What happens in the middle of the next flush of an area, or change of a metadata file.
    #[cfg(test)]
    pub(super) blocking: Option<Interruption>,
}

/// Something another thread does meanwhile.
#[cfg(test)]
pub(crate) type Interruption = Box<dyn FnOnce() + Send>;

/// What a moment of the machine's life means for the effect about to happen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moment {
    /// It happens.
    Alive,
    /// The power goes in its middle: it may happen in part, and fails.
    Last,
    /// It fails without effect.
    Dead,
}

/// What a machine without power says.
pub(crate) fn crashed() -> io::Error {
    io::Error::other("the simulated machine is down")
}

/// EIO.
pub(crate) fn eio() -> io::Error {
    Errno::IO.into()
}

impl Machine {
    /// Crashes so far.
    pub(crate) fn life(&self) -> u64 {
        self.life
    }

    /// Whether a handle of this life still reaches the machine.
    pub(crate) fn reaches(&self, life: u64) -> bool {
        !self.down && self.life == life
    }

    /// The device that answers by a name.
    pub(super) fn by_name(&self, device: DeviceId) -> DeviceId {
        #[cfg(test)]
        if let Some((name, real)) = self.alias.filter(|(name, _)| *name == device) {
            debug_assert_ne!(name, real);
            return real;
        }
        device
    }

    /// Counts what a device is asked for. Whether it does not answer while a cache is opened.
    #[cfg(test)]
    pub(super) fn hangs_opening(&mut self, device: DeviceId) -> bool {
        if !self.opening {
            return false;
        }
        match &mut self.hang {
            Some((mute, 0)) if *mute == device => self.devices[usize::from(device.0)].mute = true,
            Some((mute, after)) if *mute == device => *after -= 1,
            _ => {}
        }
        self.devices[usize::from(device.0)].mute
    }

    /// Devices have changed their places, or are others.
    #[cfg(test)]
    fn look_at_sizes(&mut self) {
        for (info, device) in self.infos.iter_mut().zip(&self.devices) {
            info.size = device.len();
        }
    }

    /// Counts an effect a handle of this life is about to have.
    pub(crate) fn effect(&mut self, life: u64) -> Moment {
        if !self.reaches(life) {
            return Moment::Dead;
        }
        match &mut self.countdown {
            None => Moment::Alive,
            Some(0) => {
                self.countdown = None;
                self.down = true;
                Moment::Last
            }
            Some(left) => {
                *left -= 1;
                Moment::Alive
            }
        }
    }
}

impl SimMachine {
    /// A machine with zeroed devices of these sizes (multiples of 4096).
    ///
    /// # Panics
    /// When a size is not a multiple of 4096.
    #[must_use]
    pub fn new(seed: u64, faults: SimFaults, device_sizes: &[u64]) -> Self {
        assert!(
            device_sizes.iter().all(|size| size % 4096 == 0),
            "sizes of simulated devices are multiples of 4096"
        );
        let mut random = SimRandom::new(seed);
        let info = |(n, &size): (usize, &u64)| DeviceInfo {
            size,
            alignment: SIM_ALIGNMENT,
            path: PathBuf::from(format!("sim-{n}")),
        };
        let state = Machine {
            boot: random.next_u64().into(),
            random,
            faults,
            areas: BTreeMap::new(),
            meta: BTreeMap::new(),
            infos: device_sizes.iter().enumerate().map(info).collect(),
            devices: device_sizes.iter().map(|&size| Device::new(size)).collect(),
            pending: Vec::new(),
            cut: Vec::new(),
            holds: Vec::new(),
            countdown: None,
            cut_behind: None,
            down: false,
            life: 0,
            turn: 0,
            queues: 0,
            #[cfg(test)]
            in_background: false,
            #[cfg(test)]
            opening: false,
            #[cfg(test)]
            hang: None,
            #[cfg(test)]
            alias: None,
            #[cfg(test)]
            interruption: None,
            #[cfg(test)]
            blocking: None,
        };
        Self { state: Arc::new(Mutex::new(state)) }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Machine> {
        self.state.lock()
    }

    /// Identity of the running kernel.
    #[must_use]
    pub fn boot_id(&self) -> BootId {
        BootId(self.lock().boot.to_le_bytes())
    }

    /// Number of this life: crashes so far.
    #[must_use]
    pub fn life(&self) -> u64 {
        self.lock().life
    }

    /// Replaces the probabilities of faults; what they did before stays.
    pub fn set_faults(&self, faults: SimFaults) {
        self.lock().faults = faults;
    }

    /// Cuts the power in the middle of the effect after `effects` more of them.
    pub fn crash_after(&self, effects: u64) {
        self.lock().countdown = Some(effects);
    }

    /// Cuts the power `effects` effects behind the next write at one of these offsets of the first
    /// device.
    pub fn crash_behind_write(&self, offsets: Vec<u64>, effects: u64) {
        self.lock().cut_behind = Some((offsets, effects));
    }

    /// Holds up one I/O of a queue for `turns` turns: the first of its kind behind the next `after`
    /// ones.
    pub fn hold_up(&self, io: SimIo, after: u64, turns: u64) {
        self.lock().holds.push((io, after, turns));
    }

    /// Whether an I/O in flight is held up.
    #[must_use]
    pub fn is_held_up(&self) -> bool {
        let state = self.lock();
        state.pending.iter().any(|pending| pending.is_held(state.life, state.turn))
    }

    /// Whether a write in flight takes many times as long as others.
    #[must_use]
    pub fn is_writing_slowly(&self) -> bool {
        let state = self.lock();
        state.pending.iter().any(|pending| pending.is_slow_write(state.life, state.turn))
    }

    /// Whether the power is gone.
    #[must_use]
    pub fn is_down(&self) -> bool {
        self.lock().down
    }

    /// Crashes the machine, now or with the state the power went at, and starts its next life.
    pub fn crash(&self, kind: Crash) {
        let state = &mut *self.lock();
        state.cut_pending();
        for (device, offset, data) in std::mem::take(&mut state.cut) {
            state.devices[usize::from(device.0)].survive_in_flight(
                offset,
                &data,
                &mut state.random,
            );
        }
        if kind == Crash::Machine {
            state.devices.iter_mut().for_each(|device| device.lose_unsynced(&mut state.random));
            state.areas.values_mut().for_each(|area| area.lose_unsynced(&mut state.random));
            state.boot = u128::from(state.random.next_u64());
        }
        state.countdown = None;
        state.cut_behind = None;
        #[cfg(test)]
        {
            state.blocking = None;
        }
        state.holds.clear();
        state.devices.iter_mut().for_each(Device::answer_after_crash);
        state.down = false;
        state.life += 1;
    }

    /// Whether the power goes in the middle of an effect to come.
    #[cfg(test)]
    pub(crate) fn is_armed(&self) -> bool {
        self.lock().countdown.is_some()
    }

    /// Goes on with another sequence of random numbers.
    pub fn reseed(&self, seed: u64) {
        self.lock().random = SimRandom::new(seed);
    }

    /// A device stops answering, or is back.
    #[cfg(test)]
    pub(crate) fn set_away(&self, device: DeviceId, away: bool) {
        self.lock().devices[usize::from(device.0)].away = away;
    }

    /// What is in flight to a device stays there, or ends as ever.
    #[cfg(test)]
    pub(crate) fn set_mute(&self, device: DeviceId, mute: bool) {
        let device = &mut self.lock().devices[usize::from(device.0)];
        (device.mute, device.mute_over) = (mute, 0);
    }

    /// A device is mute from now on, also when the machine has crashed so often.
    #[cfg(test)]
    pub(crate) fn mute_over(&self, device: DeviceId, crashes: u32) {
        let device = &mut self.lock().devices[usize::from(device.0)];
        (device.mute, device.mute_over) = (true, crashes);
    }

    /// A device falls mute in the middle of the next opening, once it was asked so often.
    #[cfg(test)]
    pub(crate) fn hang_while_opening(&self, device: DeviceId, after: u64) {
        self.lock().hang = Some((device, after));
    }

    /// A cache is being opened, or no more. Says whether a device fell mute meanwhile.
    #[cfg(test)]
    pub(crate) fn set_opening(&self, opening: bool) -> bool {
        let state = &mut *self.lock();
        state.opening = opening;
        let has_hung =
            state.hang.is_some_and(|(device, _)| state.devices[usize::from(device.0)].mute);
        if !opening {
            state.hang = None;
        }
        has_hung
    }

    /// One device is another name of a second one from now on, or is itself again.
    #[cfg(test)]
    pub(crate) fn set_alias(&self, alias: Option<(DeviceId, DeviceId)>) {
        self.lock().alias = alias;
    }

    /// Writes to these bytes of a device fail from now on.
    #[cfg(test)]
    pub(crate) fn set_bad(&self, device: DeviceId, bad: std::ops::Range<u64>) {
        self.lock().devices[usize::from(device.0)].bad = bad;
    }

    /// Whether flushes are in flight to a device, and nothing else.
    #[cfg(test)]
    pub(crate) fn is_only_flushed(&self, device: DeviceId) -> bool {
        let state = self.lock();
        let mut there = state.pending.iter().filter(|p| p.io.device == device).peekable();
        there.peek().is_some() && there.all(|p| p.is_flush())
    }

    /// Whether what is in flight to some device stays there.
    #[cfg(test)]
    pub(crate) fn any_mute(&self) -> bool {
        self.lock().devices.iter().any(|d| d.mute)
    }

    /// Copies areas and metadata files, as they are now.
    #[cfg(test)]
    pub(crate) fn copy_directory(&self) -> Directory {
        let state = self.lock();
        let areas = state.areas.iter().map(|(name, area)| (name.clone(), area.bytes.clone()));
        Directory { areas: areas.collect(), meta: state.meta.clone() }
    }

    /// Areas and metadata files are those of the copy again. Devices stay as they are.
    #[cfg(test)]
    pub(crate) fn bring_back(&self, copy: &Directory) {
        let state = &mut *self.lock();
        let areas = copy.areas.iter().map(|(name, bytes)| (name.clone(), SimArea::of(bytes)));
        (state.areas, state.meta) = (areas.collect(), copy.meta.clone());
    }

    /// Whether there is a metadata file of that name.
    #[cfg(test)]
    pub(crate) fn has_meta(&self, name: &str) -> bool {
        self.lock().meta.contains_key(name)
    }

    /// Whether a device does not answer.
    #[cfg(test)]
    pub(crate) fn any_away(&self) -> bool {
        self.lock().devices.iter().any(|d| d.away)
    }

    /// Puts a new, empty device in the place of one.
    #[cfg(test)]
    pub(crate) fn wipe(&self, device: DeviceId) {
        self.lock().devices[usize::from(device.0)].wipe();
    }

    /// Exchanges a device for the one given; for an empty one of its size where none is.
    #[cfg(test)]
    pub(crate) fn exchange(&self, device: DeviceId, other: &mut Spare) {
        let state = &mut *self.lock();
        let here = &mut state.devices[usize::from(device.0)];
        let spare = other.0.get_or_insert_with(|| Device::new(here.len()));
        std::mem::swap(here, spare);
        state.look_at_sizes();
    }

    /// Two devices are each in the place of the other.
    #[cfg(test)]
    pub(crate) fn swap(&self, one: DeviceId, other: DeviceId) {
        let state = &mut *self.lock();
        state.devices.swap(one.0.into(), other.0.into());
        state.look_at_sizes();
    }

    /// Puts a new, empty device of this size in the place of one.
    #[cfg(test)]
    pub(crate) fn replace(&self, device: DeviceId, size: u64) {
        let state = &mut *self.lock();
        state.devices[usize::from(device.0)] = Device::new(size);
        state.look_at_sizes();
    }

    /// Bytes of a device.
    #[cfg(test)]
    pub(crate) fn size_of(&self, device: DeviceId) -> u64 {
        self.lock().devices[usize::from(device.0)].len()
    }

    /// What a device has stored now: a snapshot.
    #[cfg(test)]
    pub(crate) fn image_of(&self, device: DeviceId) -> Image {
        Image(self.lock().devices[usize::from(device.0)].image())
    }

    /// Brings a device back to what it had stored once.
    #[cfg(test)]
    pub(crate) fn roll_back(&self, device: DeviceId, image: &Image) {
        let state = &mut *self.lock();
        state.devices[usize::from(device.0)].restore(&image.0);
        state.look_at_sizes();
    }

    /// What is stored, seen by nobody in the machine: works also without power, and without faults.
    #[cfg(test)]
    pub(crate) fn peek(&self, device: DeviceId, offset: u64, into: &mut [u8]) {
        self.lock().devices[usize::from(device.0)].read(offset, into);
    }

    /// Whether power loss cannot change a range of a device any more.
    #[cfg(test)]
    pub(crate) fn is_durable(&self, device: DeviceId, offset: u64, len: u64) -> bool {
        self.lock().devices[usize::from(device.0)].is_durable(offset, len)
    }

    /// Offsets of the words of an area that power loss may still change.
    #[cfg(test)]
    pub(crate) fn unsynced(&self, area: &str) -> Vec<u64> {
        self.lock().areas.get(area).map(SimArea::unsynced).unwrap_or_default()
    }

    /// The background work makes a step, or is over with it. What it reads itself of a device that
    /// is mute would never end.
    #[cfg(test)]
    pub(crate) fn set_in_background(&self, yes: bool) {
        self.lock().in_background = yes;
    }

    /// Has something happen in the middle of the next blocking read, as if another thread did it.
    #[cfg(test)]
    pub(crate) fn interrupt_with(&self, interruption: Option<Interruption>) {
        self.lock().interruption = interruption;
    }

    #[cfg(test)]
    pub(super) fn interrupt(&self) {
        let interruption = self.lock().interruption.take();
        if let Some(interruption) = interruption {
            interruption();
        }
    }

    /// Has the next flush of an area, or change of a metadata file, take as long as this does.
    #[cfg(test)]
    pub(crate) fn block_with(&self, meanwhile: Option<Interruption>) {
        self.lock().blocking = meanwhile;
    }

    /// Whether that is still to come.
    #[cfg(test)]
    pub(crate) fn is_to_block(&self) -> bool {
        self.lock().blocking.is_some()
    }

    /// A call of the operating system that may block has been made.
    pub(crate) fn blocks(&self) {
        #[cfg(test)]
        {
            let meanwhile = self.lock().blocking.take();
            if let Some(meanwhile) = meanwhile {
                meanwhile();
            }
        }
    }

    /// Damages what is stored: inverts one bit. For tests that want it in a certain place.
    ///
    /// # Panics
    /// When `byte` is not on the device.
    pub fn flip_bit(&self, device: DeviceId, byte: u64, bit: u8) {
        self.lock().devices[usize::from(device.0)].flip(byte, bit);
    }
}
