//! The simulated machine's devices as the engine sees them.

use std::collections::VecDeque;
use std::io;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::io::Errno;

use super::device::SECTOR;
use super::faults::SimIo;
use super::machine::{Machine, Moment, SimMachine, crashed, eio};
use super::pending::PendingIo;
use super::random::SimRandom;
#[cfg(test)]
use crate::device::no_answer;
use crate::device::{
    AlignedBuf, DeviceId, DeviceInfo, DeviceSet, Disk, Done, Io, IoKind, IoOutput, WriteBuf, check,
    check_io,
};

/// Turns an I/O takes at most, and how much longer a slow one takes.
const MAX_TURNS: u64 = 8;
const SLOWNESS: u64 = 100;
/// The most I/Os that are under way in a queue at once. The others wait for one of them to end, as
/// with io_uring, whose places all devices share.
const DEPTH: usize = 32;

impl SimMachine {
    /// A queue over the machine's devices, for this life.
    #[must_use]
    pub fn disk(&self) -> SimDisk {
        SimDisk::new(self)
    }

    /// The shared view of the machine's devices, for this life.
    #[must_use]
    pub fn device_set(&self) -> Arc<dyn DeviceSet> {
        Arc::new(SimDevices::new(self))
    }

    /// The same for an opening: reads of a device that does not answer end.
    #[cfg(test)]
    pub(crate) fn patient_set(&self) -> Arc<dyn DeviceSet> {
        Arc::new(SimDevices::patient(self))
    }
}

/// A queue over simulated devices.
pub struct SimDisk {
    machine: SimMachine,
    infos: Vec<DeviceInfo>,
    queue: u64,
    life: u64,
    in_flight: usize,
    /// What waits for a place.
    backlog: VecDeque<Io>,
    /// Finished without having been in flight: refused requests, and those to a machine that is
    /// down.
    refused: Vec<Done>,
}

impl SimDisk {
    pub(super) fn new(machine: &SimMachine) -> Self {
        let mut state = machine.lock();
        state.queues += 1;
        let (infos, queue, life) = (state.infos.clone(), state.queues, state.life);
        drop(state);
        Self {
            machine: machine.clone(),
            infos,
            queue,
            life,
            in_flight: 0,
            backlog: VecDeque::new(),
            refused: Vec::new(),
        }
    }

    fn refuse(&mut self, id: u64, error: io::Error) {
        self.refused.push(Done { id, result: Err(error) });
    }
}

impl Disk for SimDisk {
    fn devices(&self) -> &[DeviceInfo] {
        &self.infos
    }

    fn submit(&mut self, io: Io) {
        self.in_flight += 1;
        if let Err(error) = check_io(&self.infos, &io) {
            return self.refuse(io.id, error);
        }
        self.backlog.push_back(io);
        self.fill();
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// There is no time here: the same as `wait(1, out)`.
    fn wait_for(&mut self, _limit: Duration, out: &mut Vec<Done>) {
        self.wait_for_turns(1, out);
    }

    fn wait(&mut self, at_least: usize, out: &mut Vec<Done>) {
        #[cfg(test)]
        assert!(!self.machine.lock().opening, "an opening waits without a limit");
        self.wait_for_turns(at_least, out);
    }
}

impl SimDisk {
    fn wait_for_turns(&mut self, at_least: usize, out: &mut Vec<Done>) {
        let before = out.len();
        let wanted = before + at_least.min(self.in_flight);
        out.append(&mut self.refused);
        loop {
            self.fill();
            out.append(&mut self.refused);
            let state = &mut *self.machine.lock();
            state.turn += 1;
            state.complete_due(self.queue, self.life, out);
            if out.len() >= wanted {
                break;
            }
            let next = state
                .pending
                .iter()
                .filter(|pending| pending.queue == self.queue)
                .filter(|pending| !state.devices[usize::from(pending.io.device.0)].mute)
                .map(|pending| pending.due)
                .min();
            // Everything wanted is either pending or already in `out`. What is in flight to a mute
            // device is not waited for.
            let Some(next) = next else { break };
            state.turn = state.turn.max(next - 1);
        }
        self.in_flight -= out.len() - before;
    }

    /// Has I/Os of the backlog begin for which there is a place.
    fn fill(&mut self) {
        while self.pending() < DEPTH {
            let Some(io) = self.backlog.pop_front() else { return };
            self.begin(io);
        }
    }

    /// I/Os under way.
    fn pending(&self) -> usize {
        self.machine.lock().pending.iter().filter(|pending| pending.queue == self.queue).count()
    }

    fn begin(&mut self, io: Io) {
        let machine = self.machine.clone();
        let state = &mut *machine.lock();
        let io = Io { device: state.by_name(io.device), ..io };
        #[cfg(test)]
        state.hangs_opening(io.device);
        if state.effect(self.life) == Moment::Dead {
            return self.refuse(io.id, crashed());
        }
        // Also in the last moment: it is in flight when the power goes.
        let turns = 1 + state.random.below(MAX_TURNS);
        let slow = state.random.chance(state.faults.slow);
        if slow {
            coverage_mark!(SlowIo);
        }
        let held = state.hold(&io.kind);
        let due = state.turn + held.unwrap_or(if slow { turns * SLOWNESS } else { turns });
        let covers = state.devices[usize::from(io.device.0)].position();
        let (held, slow) = (held.is_some(), slow && held.is_none());
        state.pending.push(PendingIo {
            queue: self.queue,
            life: self.life,
            io,
            due,
            covers,
            held,
            slow,
        });
    }
}

impl Drop for SimDisk {
    /// As with real queues, what is in flight is finished first.
    fn drop(&mut self) {
        let mut out = Vec::new();
        self.wait_for_turns(self.in_flight, &mut out);
    }
}

impl Machine {
    /// The turns that an I/O is to be held up for, if it is its turn.
    fn hold(&mut self, kind: &IoKind) -> Option<u64> {
        let kind = match kind {
            IoKind::Read { .. } => SimIo::Read,
            IoKind::Write { .. } => SimIo::Write,
            IoKind::Sync => SimIo::Sync,
        };
        let mut chosen = None;
        for (n, (_, after, _)) in
            self.holds.iter_mut().enumerate().filter(|(_, hold)| hold.0 == kind)
        {
            if *after == 0 && chosen.is_none() {
                chosen = Some(n);
            }
            *after = after.saturating_sub(1);
        }
        let (_, _, turns) = self.holds.swap_remove(chosen?);
        coverage_mark!(HeldUp);
        Some(turns)
    }

    /// Completes what is due in a queue, in random order.
    fn complete_due(&mut self, queue: u64, life: u64, out: &mut Vec<Done>) {
        let turn = self.turn;
        loop {
            if !self.reaches(life) {
                // Fails everything; what is left of the writes is decided by the crash.
                let (mine, others): (Vec<_>, Vec<_>) = std::mem::take(&mut self.pending)
                    .into_iter()
                    .partition(|pending| pending.queue == queue);
                self.pending = others;
                if self.life == life {
                    mine.iter().for_each(|pending| self.keep_for_crash(pending));
                }
                out.extend(
                    mine.into_iter()
                        .map(|pending| Done { id: pending.io.id, result: Err(crashed()) }),
                );
                return;
            }
            let due = |pending: &PendingIo| {
                let mute = self.devices[usize::from(pending.io.device.0)].mute;
                pending.queue == queue && pending.due <= turn && !mute
            };
            let ready: Vec<usize> =
                (0..self.pending.len()).filter(|&n| due(&self.pending[n])).collect();
            if ready.is_empty() {
                return;
            }
            let chosen = ready[self.random.below(ready.len() as u64) as usize];
            let is_read = matches!(self.pending[chosen].io.kind, IoKind::Read { .. });
            if !is_read && self.effect(life) != Moment::Alive {
                // The power went: it stays pending, and the next turn of the loop fails it with the
                // rest.
                continue;
            }
            let pending = self.pending.swap_remove(chosen);
            let id = pending.io.id;
            out.push(Done { id, result: self.carry_out(pending) });
        }
    }

    /// Remembers a write in flight for the crash to decide on.
    fn keep_for_crash(&mut self, pending: &PendingIo) {
        if let IoKind::Write { data } = &pending.io.kind {
            self.cut.push((pending.io.device, pending.io.offset, data.clone()));
        }
    }

    /// At a crash: puts what this life has in flight with the writes to decide on. Their queues
    /// fail them when asked.
    pub(super) fn cut_pending(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let current = pending.iter().filter(|pending| pending.life == self.life);
        current.collect::<Vec<_>>().into_iter().for_each(|pending| self.keep_for_crash(pending));
        self.pending = pending;
    }

    fn carry_out(&mut self, pending: PendingIo) -> io::Result<IoOutput> {
        let Io { device, offset, kind, .. } = pending.io;
        match kind {
            IoKind::Read { len } => self.read(device, offset, len).map(IoOutput::Read),
            IoKind::Write { data } => {
                let written = self.write(device, offset, &data).map(|()| IoOutput::Written);
                if let Some((_, effects)) = self
                    .cut_behind
                    .take_if(|(offsets, _)| device.0 == 0 && offsets.contains(&offset))
                {
                    self.countdown = Some(effects);
                }
                written
            }
            IoKind::Sync => {
                if self.devices[usize::from(device.0)].away
                    || self.random.chance(self.faults.sync_error)
                {
                    coverage_mark!(SyncError);
                    return Err(eio());
                }
                self.devices[usize::from(device.0)].sync(pending.covers);
                Ok(IoOutput::Synced)
            }
        }
    }

    fn read(&mut self, device: DeviceId, offset: u64, len: u32) -> io::Result<AlignedBuf> {
        let faults = self.faults;
        if self.devices[usize::from(device.0)].away {
            coverage_mark!(DeviceAway);
            return Err(eio());
        }
        if self.random.chance(faults.read_error) {
            coverage_mark!(ReadError);
            return Err(eio());
        }
        if self.random.chance(faults.short_read) {
            coverage_mark!(ShortRead);
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "simulated short read"));
        }
        let mut buf = AlignedBuf::zeroed(len as usize);
        self.devices[usize::from(device.0)].read(offset, &mut buf);
        self.mix_in_flight(device, offset, &mut buf);
        if self.random.chance(faults.flip_on_read) {
            coverage_mark!(FlipOnRead);
            flip(&mut buf, &mut self.random);
        }
        Ok(buf)
    }

    /// Shows some sectors of writes in flight.
    fn mix_in_flight(&mut self, device: DeviceId, offset: u64, buf: &mut [u8]) {
        let life = self.life;
        for pending in self
            .pending
            .iter()
            .filter(|pending| pending.life == life && pending.io.device == device)
        {
            let IoKind::Write { data } = &pending.io.kind else { continue };
            for (n, sector) in data.chunks_exact(SECTOR).enumerate() {
                let at = pending.io.offset + (n * SECTOR) as u64;
                let inside =
                    at.checked_sub(offset).map(|at| at as usize).filter(|&at| at < buf.len());
                if let Some(at) = inside
                    && self.random.chance(0.5)
                {
                    buf[at..at + SECTOR].copy_from_slice(sector);
                }
            }
        }
    }

    fn write(&mut self, device: DeviceId, offset: u64, data: &WriteBuf) -> io::Result<()> {
        let faults = self.faults;
        let (target, random) = (&mut self.devices[usize::from(device.0)], &mut self.random);
        if target.away {
            coverage_mark!(DeviceAway);
            return Err(eio());
        }
        if offset < target.bad.end && offset + data.len() as u64 > target.bad.start {
            coverage_mark!(WriteError);
            return Err(eio());
        }
        if random.chance(faults.no_space) {
            coverage_mark!(NoSpace);
            return Err(Errno::NOSPC.into());
        }
        if random.chance(faults.write_error) {
            coverage_mark!(WriteError);
            target.write_torn(offset, data, random);
            return Err(eio());
        }
        if random.chance(faults.lost_write) {
            coverage_mark!(LostWrite);
            return Ok(());
        }
        if random.chance(faults.misdirected_write) {
            coverage_mark!(MisdirectedWrite);
            let places = (target.len() - data.len() as u64) / SECTOR as u64 + 1;
            let elsewhere = random.below(places) * SECTOR as u64;
            target.write(elsewhere, data);
            return Ok(());
        }
        if random.chance(faults.flip_on_write) {
            coverage_mark!(FlipOnWrite);
            let mut damaged = AlignedBuf::copy_of(data);
            flip(&mut damaged, random);
            target.write(offset, &damaged.into());
            return Ok(());
        }
        target.write(offset, data);
        Ok(())
    }
}

/// Inverts one bit.
fn flip(bytes: &mut [u8], random: &mut SimRandom) {
    let bit = random.below(bytes.len() as u64 * 8);
    bytes[bit as usize / 8] ^= 1 << (bit % 8);
}

/// The shared view of simulated devices.
pub(super) struct SimDevices {
    machine: SimMachine,
    infos: Vec<DeviceInfo>,
    life: u64,
    /// Its reads end although a device does not answer.
    #[cfg(test)]
    patient: bool,
}

impl SimDevices {
    #[cfg(test)]
    fn patient(machine: &SimMachine) -> Self {
        Self { patient: true, ..Self::new(machine) }
    }

    pub(super) fn new(machine: &SimMachine) -> Self {
        let state = machine.lock();
        let (infos, life) = (state.infos.clone(), state.life);
        drop(state);
        Self {
            machine: machine.clone(),
            infos,
            life,
            #[cfg(test)]
            patient: false,
        }
    }
}

impl DeviceSet for SimDevices {
    fn infos(&self) -> &[DeviceInfo] {
        &self.infos
    }

    fn read_at(&self, device: DeviceId, offset: u64, len: u32) -> io::Result<AlignedBuf> {
        check(&self.infos, device, offset, u64::from(len))?;
        #[cfg(test)]
        self.machine.interrupt();
        let state = &mut *self.machine.lock();
        if !state.reaches(self.life) {
            return Err(crashed());
        }
        let device = state.by_name(device);
        #[cfg(test)]
        {
            let hangs = state.in_background && state.devices[usize::from(device.0)].mute;
            assert!(!hangs, "the background work waits for a device that does not answer");
            if state.hangs_opening(device) {
                assert!(self.patient, "an opening waits for a device that does not answer");
                return Err(no_answer());
            }
        }
        state.read(device, offset, len)
    }

    fn raw_fd(&self, _: DeviceId) -> Option<RawFd> {
        None
    }
}
