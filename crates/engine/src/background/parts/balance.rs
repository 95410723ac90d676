//! Whether a device has had too much to do for so long that another should take some of it.

use crate::segment::FULL_LOAD;

/// From when on a device has too much to do, and how long that has to last.
#[derive(Debug, Clone, Copy)]
pub struct BalanceRules {
    /// I/Os in flight on average, in thousandths: with fewer a device is not busy.
    pub busy: u32,
    /// Milliseconds.
    pub lasts: u64,
    /// While so manieth part of the device that takes is free, what is read once moves too; 0:
    /// never.
    pub plenty: u32,
}

impl Default for BalanceRules {
    fn default() -> Self {
        Self { busy: 2 * FULL_LOAD, lasts: 60_000, plenty: 8 }
    }
}

/// How often devices are looked at, in milliseconds.
const LOOK: u64 = 100;
/// A device with so many times the load of another has too much to do.
const TOO_MUCH: u32 = 2;

/// What is known of a device.
#[derive(Debug, Clone, Copy, Default)]
pub(in crate::background) struct DeviceLoad {
    /// I/Os in flight on an average of the last minute, in thousandths.
    pub(in crate::background) minute: u32,
    /// The same of the last seconds.
    pub(in crate::background) lately: u32,
    /// It can take objects of others.
    pub(in crate::background) takes: bool,
}

/// The devices that another one relieves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::background) struct Imbalance {
    pub(in crate::background) from: Vec<usize>,
    pub(in crate::background) to: usize,
}

/// What was seen so far.
#[derive(Debug, Default)]
pub(in crate::background) struct Balance {
    rules: BalanceRules,
    /// Since when there is an imbalance.
    since: Option<u64>,
    /// What is being done about it.
    relief: Option<Imbalance>,
    /// When bytes were granted last.
    granted: u64,
    /// When devices are looked at again.
    look_at: u64,
}

impl Balance {
    pub(in crate::background) fn new(rules: BalanceRules) -> Self {
        Self { rules, ..Self::default() }
    }

    /// How often something has to have been read before, to move. `is_free` says whether so manieth
    /// part of the device that takes is free.
    pub(in crate::background) fn least(&self, is_free: impl Fn(u32) -> bool) -> u8 {
        u8::from(!is_free(self.rules.plenty))
    }

    /// Whether it is time for another look.
    pub(in crate::background) fn is_due(&mut self, now: u64) -> bool {
        let due = now >= self.look_at;
        if due {
            self.look_at = now + LOOK;
        }
        due
    }

    /// The devices with too much to do beside this one, by an average, if it takes objects.
    fn imbalance(
        &self,
        loads: &[DeviceLoad],
        to: usize,
        load: impl Fn(&DeviceLoad) -> u32,
    ) -> Option<Imbalance> {
        if !loads[to].takes {
            return None;
        }
        let most = load(&loads[to]).saturating_mul(TOO_MUCH).max(self.rules.busy);
        let too_much = |&n: &usize| n != to && load(&loads[n]) >= most;
        let from: Vec<usize> = (0..loads.len()).filter(too_much).collect();
        (!from.is_empty()).then_some(Imbalance { from, to })
    }

    /// Looks at the devices: what is to be done now, if anything.
    ///
    /// It begins once an imbalance of the one-minute averages has lasted, beside whichever has
    /// least to do, and the last seconds show one too. It ends with the first look at which the
    /// last seconds show none beside that device: the minute's average would go on with it for as
    /// long again.
    pub(in crate::background) fn look(
        &mut self,
        now: u64,
        loads: &[DeviceLoad],
    ) -> Option<&Imbalance> {
        if let Some(relief) = self.relief.take() {
            self.relief = self.imbalance(loads, relief.to, |load| load.lately);
            if self.relief.is_none() {
                self.since = None;
            }
            return self.relief.as_ref();
        }
        let takers = (0..loads.len()).filter(|&n| loads[n].takes);
        let least = takers.min_by_key(|&n| loads[n].minute);
        let found = least.and_then(|to| self.imbalance(loads, to, |load| load.minute));
        let Some(found) = found else {
            self.since = None;
            return None;
        };
        let since = *self.since.get_or_insert(now);
        let lately = self.imbalance(loads, found.to, |load| load.lately);
        if lately.is_some() && now - since >= self.rules.lasts {
            self.granted = now;
            self.relief = Some(found);
        }
        self.relief.as_ref()
    }

    /// Bytes that may move since this was last asked, at `rate` a second.
    pub(in crate::background) fn grant(&mut self, now: u64, rate: u64) -> u64 {
        let bytes = now.saturating_sub(self.granted).min(1000) * rate / 1000;
        if bytes > 0 {
            self.granted = now;
        }
        bytes
    }

    /// Nothing is done any more.
    pub(in crate::background) fn end(&mut self) {
        (self.since, self.relief) = (None, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn loads(minute: [u32; 3], lately: [u32; 3]) -> [DeviceLoad; 3] {
        std::array::from_fn(|n| DeviceLoad { minute: minute[n], lately: lately[n], takes: true })
    }

    /// The same in both averages.
    fn even(load: [u32; 3]) -> [DeviceLoad; 3] {
        loads(load, load)
    }

    #[test]
    fn an_imbalance_is_acted_on_once_it_has_lasted() {
        let mut balance = Balance::default();
        let loads = even([9_000, 4_000, 8_000]);
        assert_eq!(balance.look(1_000, &loads), None);
        assert_eq!(balance.look(60_999, &loads), None);
        let relief = Some(&Imbalance { from: vec![0, 2], to: 1 });
        assert_eq!(balance.look(61_000, &loads), relief);
        balance.look(61_500, &even([5_000, 4_000, 5_000]));
        assert_eq!(balance.look(62_000, &loads), None, "it has to last again");
        assert_eq!(balance.look(90_000, &even([7_000, 4_000, 5_000])), None);
        assert_eq!(balance.look(122_001, &loads), None, "it was interrupted");
    }

    #[test]
    fn it_ends_when_the_last_seconds_are_even() {
        let mut balance = Balance::new(BalanceRules { lasts: 0, ..BalanceRules::default() });
        let relief = Some(&Imbalance { from: vec![0], to: 1 });
        let minute = [90_000, 1_000, 1_900];
        assert_eq!(balance.look(0, &even(minute)), relief);
        assert_eq!(balance.look(100, &loads(minute, [50_000, 9_000, 9_000])), relief);
        assert_eq!(balance.look(200, &loads(minute, [12_000, 9_000, 9_000])), None);
    }

    #[test]
    fn it_goes_on_although_a_third_device_has_less_to_do_by_now() {
        let mut balance = Balance::new(BalanceRules { lasts: 0, ..BalanceRules::default() });
        let relief = Some(&Imbalance { from: vec![0], to: 1 });
        assert_eq!(balance.look(0, &even([90_000, 1_000, 1_900])), relief);
        assert_eq!(balance.look(100, &even([80_000, 2_000, 1_900])), relief);
        let mut full = even([80_000, 2_000, 1_900]);
        full[1].takes = false;
        assert_eq!(balance.look(200, &full), None, "it is full");
    }

    #[test]
    fn what_has_moved_does_not_move_back_at_once() {
        let mut balance = Balance::default();
        let (to, fro) = (even([9_000, 1_000, 9_000]), even([1_000, 9_000, 9_000]));
        assert!(
            (0..=60_000).step_by(100).filter_map(|now| balance.look(now, &to).cloned()).count() > 0
        );
        let back = (60_100..120_000).step_by(100).find_map(|now| balance.look(now, &fro).cloned());
        assert_eq!(back, None, "it has to last again");
        assert_eq!(balance.look(120_200, &fro).map(|relief| relief.to), Some(0));
    }

    #[test]
    fn a_minute_that_is_over_begins_nothing() {
        let mut balance = Balance::new(BalanceRules { lasts: 0, ..BalanceRules::default() });
        let over = loads([90_000, 1_000, 1_900], [1_000, 1_000, 1_900]);
        assert_eq!(balance.look(0, &over), None, "as behind a device that had hung");
    }

    #[test]
    fn idle_devices_and_those_that_take_nothing_are_left_alone() {
        let mut balance = Balance::new(BalanceRules { lasts: 0, ..BalanceRules::default() });
        assert_eq!(balance.look(0, &even([1_900, 0, 0])), None, "it is not busy");
        let mut full = even([9_000, 1_000, 6_000]);
        full[1].takes = false;
        assert_eq!(balance.look(0, &full), None, "none that could take has half of its load");
        full[2].minute = 4_000;
        full[2].lately = 4_000;
        assert_eq!(balance.look(0, &full), Some(&Imbalance { from: vec![0], to: 2 }));
        full[2].takes = false;
        assert_eq!(balance.look(1, &full), None, "it is full");
    }

    #[test]
    fn what_is_read_once_moves_while_there_is_plenty_of_space() {
        let balance = Balance::default();
        let least = |segments: u32| balance.least(|part| segments * part >= 160);
        assert_eq!([160, 20, 19, 0].map(least), [0, 0, 1, 1]);
        let rules = BalanceRules { plenty: 0, ..BalanceRules::default() };
        assert_eq!(Balance::new(rules).least(|part| 160 * part >= 160), 1, "never at first");
    }

    #[test]
    fn bytes_are_granted_by_the_time_and_not_saved_up() {
        let mut balance = Balance { granted: 1_000, ..Balance::default() };
        assert_eq!(balance.grant(1_100, 1 << 20), (1 << 20) / 10);
        assert_eq!(balance.grant(1_100, 1 << 20), 0);
        assert_eq!(balance.grant(9_000, 1 << 20), 1 << 20);
    }
}
