//! The view that is shown now, and which clients have seen an older one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};

use super::news;
use super::view::RingView;

/// How drivers are told of the ring.
#[derive(Debug, Clone, Copy)]
pub struct RingSettings {
    /// Show how many replicas the database has, where otherwise one is shown: the owner.
    pub show_replicas: bool,
    /// A change by which no node goes is shown when no other came for so long: a new instance takes
    /// its shards one after the other, and most drivers read the tokens only once for a new node.
    pub settle: Duration,
    /// It waits no longer than that, whatever comes.
    pub settle_within: Duration,
    /// Changes within that time are told once.
    pub together: Duration,
    /// Connections that are closed since tokens moved are closed within that time, at random.
    pub spread: Duration,
    /// And not before they are so old, so that a long move does not close them again and again.
    pub least_age: Duration,
    /// What such a client sends after the end is taken for so long, unless it closes before.
    pub linger: Duration,
}

impl Default for RingSettings {
    fn default() -> Self {
        Self {
            show_replicas: false,
            settle: Duration::from_secs(2),
            settle_within: Duration::from_secs(20),
            together: Duration::from_secs(1),
            spread: Duration::from_secs(5),
            least_age: Duration::from_secs(10),
            linger: Duration::from_secs(1),
        }
    }
}

/// The view that is shown now.
#[derive(Default)]
pub struct ShownRing {
    current: RwLock<Option<Arc<RingView>>>,
    /// Grows with every change that drivers can see, after it can be seen.
    generation: AtomicU64,
    /// The generation in which tokens of a node that stayed have last changed.
    moved: AtomicU64,
    coming: Mutex<Coming>,
}

/// What is not shown or not told yet.
#[derive(Default)]
struct Coming {
    newest: Option<Arc<RingView>>,
    /// How many views came.
    views: u64,
    /// Somebody waits until no more of them come.
    is_settling: bool,
    /// What clients were told last.
    told: Option<Arc<RingView>>,
    /// Somebody is going to tell them of what came since.
    is_due: bool,
}

/// What has to be done about a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToDo {
    /// Nothing, or somebody does it already.
    Nothing,
    /// It is not shown yet: wait until no other comes, then [`ShownRing::show_newest`].
    Settle,
    /// It is shown; clients have to be told.
    Tell,
}

/// What a connection knows of the ring from its beginning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SeenRing {
    /// Grows with every change that drivers of this instance can see.
    pub generation: u64,
    /// The map's version, 0 without a ring.
    pub version: u64,
}

impl ShownRing {
    /// The view; none without a ring.
    pub fn current(&self) -> Option<Arc<RingView>> {
        self.current.read().clone()
    }

    /// Whether there is a ring.
    pub fn is_set(&self) -> bool {
        self.current.read().is_some()
    }

    /// What somebody sees who comes now, or more than that.
    pub fn seen(&self) -> SeenRing {
        let generation = self.generation.load(Ordering::Acquire);
        let version = self.current.read().as_ref().map_or(0, |view| view.version);
        SeenRing { generation, version }
    }

    /// Takes another view. It is shown at once where a node goes, or where nothing `settles`.
    pub fn take(&self, view: Option<RingView>, settles: bool) -> ToDo {
        let mut coming = self.coming.lock();
        coming.newest = view.map(Arc::new);
        coming.views += 1;
        let now = self.current();
        if !settles || news::has_gone(now.as_deref(), coming.newest.as_deref()) {
            self.show(&mut coming)
        } else if std::mem::replace(&mut coming.is_settling, true) {
            ToDo::Nothing
        } else {
            ToDo::Settle
        }
    }

    /// How many views came.
    pub fn views(&self) -> u64 {
        self.coming.lock().views
    }

    /// Shows the view that came last.
    pub fn show_newest(&self) -> ToDo {
        let mut coming = self.coming.lock();
        coming.is_settling = false;
        self.show(&mut coming)
    }

    fn show(&self, coming: &mut Coming) -> ToDo {
        let before = self.current();
        let now = match (&coming.newest, &before) {
            (Some(newest), Some(before)) => {
                Some(Arc::new(RingView::clone(newest).after(before, Instant::now())))
            }
            (newest, _) => newest.clone(),
        };
        self.current.write().clone_from(&now);
        let (before, now) = (before.as_deref(), now.as_deref());
        let has_moved = news::has_moved(before, now);
        if !has_moved && news::events(before, now).is_empty() {
            return ToDo::Nothing;
        }
        let generation = self.generation.load(Ordering::Acquire) + 1;
        if has_moved {
            self.moved.store(generation, Ordering::Release);
        }
        self.generation.store(generation, Ordering::Release);
        if std::mem::replace(&mut coming.is_due, true) { ToDo::Nothing } else { ToDo::Tell }
    }

    /// Whether tokens of a node that stayed have changed since.
    pub fn has_moved_since(&self, seen: SeenRing) -> bool {
        seen.generation < self.moved.load(Ordering::Acquire)
    }

    /// The messages of the events that clients have not been told of, and whether they are to read
    /// the nodes anew before they hear them.
    pub fn take_news(&self) -> (Vec<Vec<u8>>, bool) {
        let mut coming = self.coming.lock();
        let now = self.current();
        let events = news::events(coming.told.as_deref(), now.as_deref());
        let replaces_all = news::replaces_all(coming.told.as_deref(), now.as_deref());
        (coming.told, coming.is_due) = (now, false);
        (events, replaces_all)
    }
}

#[cfg(test)]
mod tests {
    use super::super::view::tests::{host, map};
    use super::*;

    fn view(owners: [u64; 4]) -> Option<RingView> {
        Some(RingView::of(&map(&[1, 2, 3], 4, |shard| Some(owners[shard])), host(1)))
    }

    #[test]
    fn changes_that_come_together_are_told_once_and_what_was_undone_is_not() {
        let ring = ShownRing::default();
        let take = |view| ring.take(view, false);
        assert_eq!((take(None), ring.is_set()), (ToDo::Nothing, false));
        assert_eq!(take(view([1, 2, 1, 2])), ToDo::Tell);
        assert_eq!(take(view([1, 2, 3, 2])), ToDo::Nothing, "somebody is going to tell");
        assert_eq!(ring.take_news().0.len(), 4);
        let seen = ring.seen();
        assert!(!ring.has_moved_since(seen));
        assert_eq!(take(view([1, 2, 3, 2])), ToDo::Nothing, "nothing has changed");
        assert_eq!(take(view([1, 2, 2, 2])), ToDo::Tell);
        assert_eq!(take(view([1, 2, 3, 2])), ToDo::Nothing);
        assert_eq!(ring.take_news().0.len(), 0);
        assert!(ring.has_moved_since(seen), "some may have seen what was between");
        let seen = ring.seen();
        assert_eq!((take(view([1, 2, 3, 3])), ring.has_moved_since(seen)), (ToDo::Tell, true));
        assert!(!ring.has_moved_since(ring.seen()));
    }

    #[test]
    fn an_instance_that_comes_is_shown_with_all_its_shards_and_one_that_goes_at_once() {
        let ring = ShownRing::default();
        let take = |view| ring.take(view, true);
        let nodes = || ring.current().map_or(0, |view| view.nodes.len());
        assert_eq!((take(view([1, 1, 2, 2])), nodes()), (ToDo::Tell, 2), "the first view");
        ring.take_news();
        assert_eq!((take(view([3, 1, 2, 2])), nodes()), (ToDo::Settle, 2));
        assert_eq!((take(view([3, 1, 3, 2])), nodes()), (ToDo::Nothing, 2), "somebody waits");
        assert_eq!((ring.show_newest(), nodes()), (ToDo::Tell, 3));
        assert_eq!(ring.take_news().0.len(), 2);
        assert_eq!((take(view([3, 1, 2, 2])), nodes()), (ToDo::Settle, 3), "tokens alone");
        assert_eq!((take(view([3, 1, 1, 1])), nodes()), (ToDo::Tell, 2), "the second has gone");
        assert_eq!(ring.show_newest(), ToDo::Nothing, "it is shown");
        assert_eq!((take(None), nodes()), (ToDo::Nothing, 0));
    }
}
