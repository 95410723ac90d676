//! Devices that do not answer, and devices that come back as they were while the data directory
//! has gone on.
//!
//! Nothing of what changed since a snapshot may come undone, whether the cache has used the device
//! meanwhile or has gone on without it. Warmth is not judged: what lay there is lost.
//!
//! Devices that are each in the place of the other cost nothing: all that must be warm is warm.

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
            What::MuteOver { device, crashes } => {
                machine.mute_over(DeviceId(device.into()), crashes);
                self.foul = true;
            }
            What::HangOpening { device, after } => {
                machine.hang_while_opening(DeviceId(device.into()), after.into());
                self.foul = true;
            }
            What::CopyDevice { device } => {
                let image = machine.image_of(DeviceId(device.into()));
                self.snapshots.latest.insert(device, (image, self.uuid));
            }
            What::OlderDevice { .. } | What::SwapDevices { .. } | What::NewDevice { .. } => {
                self.snapshots.due.push(what);
            }
            other => unreachable!("{other:?} is a step of the cache"),
        }
    }

    /// What becomes of devices between two lives.
    pub(super) fn change_devices(&mut self) {
        for what in std::mem::take(&mut self.snapshots.due) {
            match what {
                What::OlderDevice { device } => self.roll_back(device),
                What::SwapDevices { one, other } if one != other => {
                    reach(Path::DevicesSwapped);
                    self.world.machine.swap(DeviceId(one.into()), DeviceId(other.into()));
                }
                What::NewDevice { device, more } => self.replace(device, more),
                _ => {}
            }
        }
    }

    /// Brings a device back to its snapshot. One that was of a cache before this one is not brought
    /// back: it would be refused, as the error says.
    fn roll_back(&mut self, device: u8) {
        let Some((image, uuid)) = self.snapshots.latest.get(&device) else { return };
        if *uuid == self.uuid {
            reach(Path::DeviceRolledBack);
            self.world.machine.roll_back(DeviceId(device.into()), image);
            self.foul = true;
        }
    }

    /// Puts an empty device of another size in the place of one.
    fn replace(&mut self, device: u8, more: i32) {
        reach(Path::DeviceReplaced);
        let (machine, device) = (&self.world.machine, DeviceId(device.into()));
        let segment = self.world.config.segment_size.expect("set by the set-up");
        let size = machine.size_of(device);
        machine.replace(device, size.saturating_add_signed(i64::from(more) * i64::from(segment)));
        self.foul = true;
    }
}
