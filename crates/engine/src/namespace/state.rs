//! The state of a namespace: its kill versions and its counters.
//!
//! Many objects are removed by *kill version*. An object is dead when its version is below the kill
//! version of its namespace, of its group or of its partition epoch. Kill versions only grow, so
//! replaying them in any order, or twice, does no harm. Each removal asserts that what it killed is
//! dead ([`NamespaceState::is_killed`]), even if the namespace forgot an older removal for it.

use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};

use crate::sync::RwLock;

use crate::api::{Listed, PARTITION_SHIFT};
use crate::config::{NamespaceOptions, Survives};
use crate::format::checkpoint::NamespaceKills;
use crate::format::record::Meta;
use crate::stats::Counters;

/// Partition epochs of a namespace.
pub const EPOCHS: usize = 1 << 20;
/// Partition epochs of a page.
const PAGE: usize = 1 << 10;

type Page = Box<[AtomicU64]>;

/// Removed groups remembered by a namespace. The background forgets those that have nothing left to
/// remove. When there are still more, the oldest removals become one kill version for the whole
/// namespace: memory stays bounded, older objects of other groups are lost.
pub const MAX_GROUPS: usize = if cfg!(loom) { 2 } else { 1 << 16 };

/// The partition epoch a token falls into.
#[must_use]
pub fn epoch_slot(token: u64) -> u32 {
    (token >> PARTITION_SHIFT) as u32
}

/// A namespace of an open cache.
pub struct NamespaceState {
    /// Id in records.
    pub id: u16,
    /// Name.
    pub name: String,
    /// Options in force.
    pub options: NamespaceOptions,
    /// Older options left records whose journal entries a power loss may have taken
    /// ([`NamespaceRecord::journal_gaps`](crate::format::state::NamespaceRecord)).
    pub journal_gaps: bool,
    /// Counters.
    pub counters: Counters,
    kill: AtomicU64,
    groups: RwLock<HashMap<u32, u64>>,
    any_group: AtomicBool,
    /// Pages of partition epochs; those never bumped take no memory.
    epochs: OnceLock<Box<[OnceLock<Page>]>>,
    open: AtomicBool,
    /// Who is told of what is evicted.
    evicted: RwLock<Option<Arc<OnEviction>>>,
    /// Its objects are on flash alone.
    off_dram: AtomicBool,
}

/// What is called with an object that leaves the DRAM tier and that flash does not take.
pub type OnEviction = dyn Fn(&Listed<'_>) + Send + Sync;

impl NamespaceState {
    /// A namespace nothing was removed from.
    pub fn new(id: u16, name: String, options: NamespaceOptions) -> Self {
        Self {
            id,
            name,
            options,
            journal_gaps: false,
            counters: Counters::default(),
            kill: AtomicU64::new(0),
            groups: RwLock::default(),
            any_group: AtomicBool::new(false),
            epochs: OnceLock::new(),
            open: AtomicBool::new(false),
            evicted: RwLock::default(),
            off_dram: AtomicBool::new(false),
        }
    }

    /// Has its objects kept out of the DRAM tier from now on.
    pub fn keep_off_dram(&self) {
        self.off_dram.store(true, Ordering::Release);
    }

    /// Whether its objects are on flash alone.
    pub fn is_off_dram(&self) -> bool {
        self.off_dram.load(Ordering::Acquire)
    }

    /// Has `told` called with each object that is evicted from now on.
    pub fn on_eviction(&self, told: Arc<OnEviction>) {
        *self.evicted.write() = Some(told);
    }

    /// Says that an object was evicted.
    pub fn tell_evicted(&self, object: &Listed<'_>) {
        let told = self.evicted.read().clone();
        if let Some(told) = told {
            told(object);
        }
    }

    /// Whether records may be found whose journal entries a power loss has taken: under these
    /// options, or under older ones.
    pub fn may_lack_entries(&self) -> bool {
        self.options.outlives_power_loss() || self.journal_gaps
    }

    /// Whether the journal tells of every object that another has taken the place of. It does not
    /// where entries may lack, nor where it is not written at all.
    pub fn is_told_by_journal(&self) -> bool {
        self.options.survives == Survives::Crash && !self.may_lack_entries()
    }

    /// Notes that somebody has a handle.
    pub fn set_open(&self) {
        self.open.store(true, Ordering::Release);
    }

    /// Whether somebody has a handle.
    pub fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// The epoch of a slot, if it was ever bumped.
    fn epoch(&self, slot: usize) -> Option<&AtomicU64> {
        self.epochs.get()?.get(slot / PAGE)?.get()?.get(slot % PAGE)
    }

    /// Whether an object was removed by namespace, group or partition epoch.
    pub fn is_killed(&self, meta: &Meta) -> bool {
        let below = |kill: u64| meta.version < kill;
        // The group first: its removal may become part of the namespace's kill version meanwhile,
        // which is raised before the group is forgotten. Who no longer finds the group therefore
        // finds that.
        if meta.group != 0
            && self.any_group.load(Ordering::Acquire)
            && self.groups.read().get(&meta.group).is_some_and(|&k| below(k))
        {
            return true;
        }
        if below(self.kill.load(Ordering::Acquire)) {
            return true;
        }
        self.epoch(meta.epoch_slot as usize).is_some_and(|e| below(e.load(Ordering::Acquire)))
    }

    /// Kills everything below `version`.
    pub fn kill_all(&self, version: u64) {
        self.kill.fetch_max(version, Ordering::AcqRel);
        self.debug_assert_dead(version, 0, 0);
    }

    /// A removal is over: what is below its version is dead, and stays so.
    fn debug_assert_dead(&self, below: u64, group: u32, epoch_slot: u32) {
        let Some(version) = below.checked_sub(1) else { return };
        let meta = Meta { ns: self.id, version, expiry: 0, group, epoch_slot };
        debug_assert!(self.is_killed(&meta), "{}: {meta:?} is alive", self.name);
    }

    /// Kills what is below `version` in `group`.
    pub fn kill_group(&self, group: u32, version: u64) {
        let mut groups = self.groups.write();
        let kill = groups.entry(group).or_default();
        *kill = (*kill).max(version);
        self.any_group.store(true, Ordering::Release);
        if groups.len() > MAX_GROUPS {
            self.tell_overflow();
            let mut versions: Vec<u64> = groups.values().copied().collect();
            let (_, &mut median, _) = versions.select_nth_unstable(MAX_GROUPS / 2);
            self.kill_all(median);
            groups.retain(|_, v| *v > median);
        }
        assert!(groups.len() <= MAX_GROUPS, "{}: {} removed groups", self.name, groups.len());
        drop(groups);
        self.debug_assert_dead(version, group, 0);
    }

    /// More groups were removed than are remembered: told once, counted each time.
    fn tell_overflow(&self) {
        if self.counters.group_overflows.get() == 0 {
            tracing::warn!(
                namespace = %self.name,
                most = MAX_GROUPS,
                "more groups were removed than can be remembered while older objects are on flash: the oldest objects of the \
                 namespace are removed, whatever their group"
            );
        }
        self.counters.group_overflows.inc();
    }

    /// Removed groups that are remembered.
    pub fn removed_groups(&self) -> usize {
        if self.any_group.load(Ordering::Acquire) { self.groups.read().len() } else { 0 }
    }

    /// Forgets groups that were removed below `version`, of which nothing older is left anywhere:
    /// see [`crate::background`].
    pub fn forget_groups(&self, version: u64) {
        self.groups.write().retain(|_, removed| *removed >= version);
    }

    /// Kills what is below `version` in partition epoch `slot`.
    pub fn kill_epoch(&self, slot: u32, version: u64) {
        let slot = slot as usize;
        let pages =
            self.epochs.get_or_init(|| (0..EPOCHS / PAGE).map(|_| OnceLock::new()).collect());
        let Some(page) = pages.get(slot / PAGE) else { return };
        let page = page.get_or_init(|| (0..PAGE).map(|_| AtomicU64::new(0)).collect());
        page[slot % PAGE].fetch_max(version, Ordering::AcqRel);
        self.debug_assert_dead(version, 0, slot as u32);
    }

    /// Everything that kills, for a checkpoint. What the namespace's own kill version covers is
    /// left out.
    pub fn kills(&self) -> NamespaceKills {
        // The groups first, as in [`NamespaceState::is_killed`]: what is no longer among them is in
        // `kill`.
        let mut groups: Vec<_> = self.groups.read().iter().map(|(&g, &v)| (g, v)).collect();
        let kill = self.kill.load(Ordering::Acquire);
        groups.retain(|&(_, v)| v > kill);
        groups.sort_unstable();
        let pages = self.epochs.get().into_iter().flatten();
        let used = (0u32..)
            .step_by(PAGE)
            .zip(pages)
            .filter_map(|(first, page)| Some((first, page.get()?)));
        let slots = used.flat_map(|(first, page)| {
            (first..).zip(page).map(|(n, e)| (n, e.load(Ordering::Acquire)))
        });
        let epochs = slots.filter(|&(_, v)| v > kill).collect();
        NamespaceKills { id: self.id, kill, groups, epochs }
    }

    /// Takes over what a checkpoint knew.
    pub fn restore(&self, kills: &NamespaceKills) {
        self.kill_all(kills.kill);
        for &(group, version) in &kills.groups {
            self.kill_group(group, version);
        }
        for &(slot, version) in &kills.epochs {
            self.kill_epoch(slot, version);
        }
    }
}

/// Every order of two threads, one of which removes a group more than are remembered.
#[cfg(all(test, loom))]
mod loom_tests {
    use super::*;
    use std::sync::Arc;

    /// A namespace in which as many groups were removed as are remembered.
    fn full() -> Arc<NamespaceState> {
        let ns = NamespaceState::new(1, "n".into(), NamespaceOptions::default());
        (1..=MAX_GROUPS as u32).for_each(|g| ns.kill_group(g, 100 + u64::from(g)));
        Arc::new(ns)
    }

    fn beside_one_more(look: impl Fn(&NamespaceState) + Sync + Send + 'static) {
        loom::model(move || {
            let ns = full();
            let removing = {
                let ns = ns.clone();
                loom::thread::spawn(move || ns.kill_group(1000, 200))
            };
            look(&ns);
            removing.join().expect("no panic");
        });
    }

    #[test]
    fn what_is_removed_stays_removed_while_its_group_is_forgotten() {
        let meta = Meta { ns: 1, version: 100, expiry: 0, group: 1, epoch_slot: 0 };
        beside_one_more(move |ns| assert!(ns.is_killed(&meta), "a removed object is a hit"));
    }

    #[test]
    fn a_checkpoint_knows_of_every_group_that_was_removed_before_it() {
        beside_one_more(|ns| {
            let kills = ns.kills();
            let knows = kills.kill >= 101 || kills.groups.contains(&(1, 101));
            assert!(knows, "a checkpoint misses a removal: {kills:?}");
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn meta(version: u64, group: u32, epoch_slot: u32) -> Meta {
        Meta { ns: 1, version, expiry: 0, group, epoch_slot }
    }

    #[test]
    fn kill_versions_kill_what_is_older_and_nothing_else() {
        let ns = NamespaceState::new(1, "n".into(), NamespaceOptions::default());
        ns.kill_group(7, 10);
        ns.kill_epoch(3, 20);
        assert!(ns.is_killed(&meta(9, 7, 0)) && !ns.is_killed(&meta(10, 7, 0)));
        assert!(!ns.is_killed(&meta(9, 8, 0)));
        assert!(ns.is_killed(&meta(19, 0, 3)) && !ns.is_killed(&meta(19, 0, 4)));
        ns.kill_all(15);
        assert!(ns.is_killed(&meta(14, 0, 0)) && !ns.is_killed(&meta(15, 0, 0)));
        let other = NamespaceState::new(1, "n".into(), NamespaceOptions::default());
        other.restore(&ns.kills());
        assert_eq!(other.kills(), ns.kills());
        assert!(other.kills().groups.is_empty(), "covered by the namespace's kill version");
    }

    #[test]
    fn a_group_is_forgotten_by_its_last_removal() {
        let ns = NamespaceState::new(1, "n".into(), NamespaceOptions::default());
        ns.kill_group(7, 10);
        ns.kill_group(8, 20);
        ns.kill_group(9, 10);
        ns.kill_group(9, 30);
        ns.forget_groups(20);
        assert_eq!(ns.kills().groups, [(8, 20), (9, 30)]);
        assert!(!ns.is_killed(&meta(9, 7, 0)), "there is none");
        assert!(ns.is_killed(&meta(19, 8, 0)) && ns.is_killed(&meta(9, 9, 0)));
        assert_eq!(ns.counters.group_overflows.get(), 0);
    }

    #[test]
    fn many_removed_groups_stay_bounded_and_dead() {
        let ns = NamespaceState::new(1, "n".into(), NamespaceOptions::default());
        for g in 0..MAX_GROUPS as u32 + 10 {
            ns.kill_group(g + 1, 100 + u64::from(g));
        }
        assert!(ns.kills().groups.len() <= MAX_GROUPS);
        assert_eq!(ns.counters.group_overflows.get(), 1);
        for g in (0..MAX_GROUPS as u32 + 10).step_by(997) {
            assert!(ns.is_killed(&meta(99 + u64::from(g), g + 1, 0)));
        }
    }
}
