//! What is on the screen: which view, and the answers that it is drawn from.

use std::collections::VecDeque;
use std::time::SystemTime;

use super::figures::Interval;
use crate::admin::overview::Overview;
use crate::admin::segments::SegmentMap;
use crate::hotkeys::report::HotKeys;

/// Rates of so many intervals are kept for the curve.
const KEPT: usize = 200;

/// One of the views.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum View {
    Overview,
    Latency,
    Reasons,
    Segments,
    HotKeys,
}

impl View {
    pub(super) const ALL: [View; 5] =
        [View::Overview, View::Latency, View::Reasons, View::Segments, View::HotKeys];

    /// As it is chosen on the command line.
    pub(super) fn word(self) -> &'static str {
        match self {
            View::Overview => "overview",
            View::Latency => "latency",
            View::Reasons => "reasons",
            View::Segments => "segments",
            View::HotKeys => "hotkeys",
        }
    }

    pub(super) fn of(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|view| view.word() == word)
    }

    /// The view of a key, `1` to `5`.
    pub(super) fn at(key: char) -> Option<Self> {
        let number = key.to_digit(10)?.checked_sub(1)?;
        Self::ALL.get(number as usize).copied()
    }

    pub(super) fn next(self) -> Self {
        Self::ALL[(self as usize + 1) % Self::ALL.len()]
    }
}

/// What one look at the server brought.
#[derive(Debug, Clone, Default)]
pub(super) struct Look {
    pub(super) overview: Overview,
    /// Asked for where they are shown.
    pub(super) segments: Option<SegmentMap>,
    /// The same.
    pub(super) hot_keys: Option<HotKeys>,
}

/// All that is drawn.
#[derive(Debug)]
pub(super) struct Screen {
    pub(super) address: String,
    pub(super) view: View,
    pub(super) paused: bool,
    /// Lines of a long view above the first that is drawn. [`super::draw`] says the most.
    pub(super) scroll: u16,
    before: Option<Overview>,
    pub(super) now: Look,
    /// Requests a second of the last intervals, the newest last.
    pub(super) rates: VecDeque<u64>,
    /// Since when there is no answer, and why.
    pub(super) away: Option<(SystemTime, String)>,
}

impl Screen {
    pub(super) fn new(address: &str, view: View) -> Self {
        Self {
            address: address.to_owned(),
            view,
            paused: false,
            scroll: 0,
            before: None,
            now: Look::default(),
            rates: VecDeque::new(),
            away: None,
        }
    }

    /// Shows that view, from its top if it is another.
    pub(super) fn choose(&mut self, view: View) {
        if self.view != view {
            (self.view, self.scroll) = (view, 0);
        }
    }

    /// An answer has come. One of another process begins anew.
    pub(super) fn take(&mut self, look: Look) {
        let last = std::mem::replace(&mut self.now, look);
        let new = &self.now.overview;
        let same = last.overview.started == new.started && last.overview.now < new.now;
        self.before = same.then_some(last.overview);
        self.now.segments = self.now.segments.take().or(last.segments);
        self.now.hot_keys = self.now.hot_keys.take().or(last.hot_keys);
        self.away = None;
        if self.before.is_some() {
            let step = self.step();
            self.rates.push_back((step.requests() as f64 / step.seconds()) as u64);
            if self.rates.len() > KEPT {
                self.rates.pop_front();
            }
        }
    }

    /// There was no answer.
    pub(super) fn lose(&mut self, why: String) {
        let since = self.away.take().map_or_else(SystemTime::now, |(since, _)| since);
        self.away = Some((since, why));
    }

    /// What happened since the last answer.
    pub(super) fn step(&self) -> Interval<'_> {
        Interval { from: self.before.as_ref(), to: &self.now.overview }
    }

    /// What happened since the start of the process.
    pub(super) fn all(&self) -> Interval<'_> {
        Interval { from: None, to: &self.now.overview }
    }
}
