//! Devices that do not answer, and devices that come back as they were while the data directory
//! has gone on.
//!
//! Nothing of what changed since a snapshot may come undone, whether the cache has used the device
//! meanwhile or has gone on without it. Warmth is not judged: what lay there is lost.

use super::coverage::{Path, reach};
use super::plan::What;
use super::state::Run;
use crate::device::DeviceId;

impl Run {
    /// A step of the devices.
    pub(super) fn change_device(&mut self, what: What) {
        let machine = &self.world.machine;
        match what {
            What::Away { device, away } => {
                machine.set_away(DeviceId(device.into()), away);
                self.foul |= away;
            }
            What::Mute { device, mute } => machine.set_mute(DeviceId(device.into()), mute),
            What::HangOpening { device, after } => {
                machine.hang_while_opening(DeviceId(device.into()), after.into());
                self.foul = true;
            }
            What::CopyDevice { device } => {
                let image = machine.image_of(DeviceId(device.into()));
                self.snapshots.latest.insert(device, (image, self.uuid));
            }
            What::OlderDevice { device } => self.snapshots.due.push(device),
            other => unreachable!("{other:?} is a step of the cache"),
        }
    }

    /// Brings devices back to their snapshots, between two lives. One that was of a cache before
    /// this one is not brought back: it would be refused, as the error says.
    pub(super) fn roll_devices_back(&mut self) {
        for device in std::mem::take(&mut self.snapshots.due) {
            let Some((image, uuid)) = self.snapshots.latest.get(&device) else { continue };
            if *uuid == self.uuid {
                reach(Path::DeviceRolledBack);
                self.world.machine.roll_back(DeviceId(device.into()), image);
                self.foul = true;
            }
        }
    }
}
