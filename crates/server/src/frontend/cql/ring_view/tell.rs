//! Tells clients that the ring has changed.

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::shown::ToDo;
use super::view::RingView;
use crate::frontend::cql::reactor_state::CqlReactorState;
use crate::frontend::cql::shared::CqlShared;

impl CqlShared {
    /// Shows drivers this ring from now on; `None`: this instance is the only node. To be called
    /// in the order of the versions. A change by which no node goes is shown when it is followed by
    /// no other for a moment. A second later those that are connected are told.
    pub fn set_ring(self: &Arc<Self>, view: Option<RingView>) {
        let front_end = self.clone();
        match self.ring.take(view, !self.config.ring.settle.is_zero()) {
            ToDo::Nothing => {}
            ToDo::Settle => self.reactors.spawn_on(0, move || settle(front_end)),
            ToDo::Tell => self.reactors.spawn_on(0, move || tell(front_end)),
        }
    }

    /// The ring that drivers see.
    pub fn ring_view(&self) -> Option<Arc<RingView>> {
        self.ring.current()
    }
}

async fn settle(front_end: Arc<CqlShared>) {
    let (ring, settings) = (&front_end.ring, &front_end.config.ring);
    let began = Instant::now();
    loop {
        let views = ring.views();
        compio::time::sleep(settings.settle).await;
        if ring.views() == views || began.elapsed() >= settings.settle_within {
            break;
        }
    }
    if ring.show_newest() == ToDo::Tell {
        tell(front_end).await;
    }
}

async fn tell(front_end: Arc<CqlShared>) {
    compio::time::sleep(front_end.config.ring.together).await;
    let (events, replaces_all) = front_end.ring.take_news();
    if replaces_all {
        close_all_outdated(&front_end, true);
        compio::time::sleep(front_end.config.ring.together).await;
    }
    for event in events {
        front_end.announce(&event);
    }
    close_all_outdated(&front_end, false);
}

fn close_all_outdated(front_end: &Arc<CqlShared>, at_once: bool) {
    for reactor in 0..front_end.reactors.count() {
        let there = front_end.clone();
        let close = move || async move { close_outdated(&there, at_once) };
        front_end.reactors.spawn_on(reactor, close);
    }
}

/// Closes connections of drivers that know tokens which have moved, each at a moment of its own
/// unless `at_once`.
fn close_outdated(front_end: &Arc<CqlShared>, at_once: bool) {
    let settings = &front_end.config.ring;
    for client in CqlReactorState::of(front_end).clients() {
        let Some(age) = client.knows_other_ring() else { continue };
        let wait = match at_once {
            true => Duration::ZERO,
            false => settings.least_age.saturating_sub(age) + at_random(settings.spread),
        };
        // Not kept until then if it ends before.
        let client = Rc::downgrade(&client);
        compio::runtime::spawn(async move {
            compio::time::sleep(wait).await;
            if let Some(client) = client.upgrade() {
                client.connect_anew();
            }
        })
        .detach();
    }
}

/// A part of that time.
fn at_random(most: Duration) -> Duration {
    use std::hash::{BuildHasher, RandomState};
    let random = RandomState::new().hash_one(()) >> 32;
    most.mul_f64(random as f64 / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_spread_over_the_whole_time() {
        let most = Duration::from_secs(5);
        let moments: Vec<_> = (0..1_000).map(|_| at_random(most)).collect();
        assert!(moments.iter().all(|moment| *moment <= most));
        assert!(moments.iter().any(|moment| *moment < most / 10));
        assert!(moments.iter().any(|moment| *moment > most * 9 / 10));
    }
}
