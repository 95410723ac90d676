//! What waits to be sent on a link, in two lanes, and how much may wait for a peer.
//!
//! * *Control*: what a lease or a write waits for. It goes first, so neither waits for a read.
//! * *Bulk*: questions for rows, rows, and what else is long.
//!
//! Each batch takes from both lanes, so control delays bulk and never stops it. What waits for a
//! peer is limited for each lane over all its links: neither takes the other's room.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::request::OpenRequest;

/// What a message that waits costs besides its bytes.
const OVERHEAD: usize = 64;
/// Bytes that are taken from the lanes for one write. The first of a lane goes whatever its length.
const BATCH: usize = 256 * 1024;
/// A queue that was longer than this gives its memory back.
const KEEP_QUEUE: usize = 1024;

/// What a message is to a link.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MessageKind {
    /// A lease or a write may wait for it.
    Control,
    /// As that, and it asks whether the peer is there. It takes another link than the one before
    /// it, unless that was answered.
    Probe,
    /// A question for rows: it uses credit.
    Request,
    /// A row that was asked for. It leaves room for answers without one.
    Row,
    /// What else may wait.
    Bulk,
}

impl MessageKind {
    fn lane(self) -> usize {
        match self {
            Self::Control | Self::Probe => 0,
            Self::Request | Self::Row | Self::Bulk => 1,
        }
    }
}

/// A message that waits.
pub struct Waiting {
    /// What it is.
    pub kind: MessageKind,
    /// The message.
    pub bytes: Vec<u8>,
    /// What it answers. Its credit goes back once the message has left the queue.
    pub request: Option<OpenRequest>,
}

impl Waiting {
    /// A message that gives back no credit.
    pub fn new(kind: MessageKind, bytes: Vec<u8>) -> Self {
        Self { kind, bytes, request: None }
    }

    /// What it costs while it waits.
    pub fn cost(&self) -> usize {
        self.bytes.len() + OVERHEAD
    }
}

/// What waits on one link.
#[derive(Default)]
pub struct Lanes([VecDeque<Waiting>; 2]);

impl Lanes {
    /// Messages in the lane of that kind.
    pub fn len_of(&self, kind: MessageKind) -> usize {
        self.0[kind.lane()].len()
    }

    /// Messages in both.
    pub fn len(&self) -> usize {
        self.0.iter().map(VecDeque::len).sum()
    }

    /// What each costs.
    pub fn cost(&self) -> [usize; 2] {
        self.0.each_ref().map(|lane| lane.iter().map(Waiting::cost).sum())
    }

    /// A message comes last in its lane.
    pub fn put(&mut self, message: Waiting) {
        self.0[message.kind.lane()].push_back(message);
    }

    /// Takes what goes out in one write, and says what it has cost in each lane.
    pub fn take(&mut self, batch: &mut Vec<Waiting>) -> [usize; 2] {
        let mut all = 0;
        self.0.each_mut().map(|lane| {
            let mut of_lane = 0;
            while let Some(next) = lane.front() {
                let cost = next.cost();
                if of_lane > 0 && all + cost > BATCH {
                    break;
                }
                (all, of_lane) = (all + cost, of_lane + cost);
                batch.extend(lane.pop_front());
            }
            if lane.is_empty() {
                lane.shrink_to(KEEP_QUEUE);
            }
            of_lane
        })
    }
}

/// What waits for a peer on all its links, by lane.
#[derive(Debug, Default)]
pub struct PeerRoom([AtomicUsize; 2]);

impl PeerRoom {
    /// Takes room for a message; false where there is too little. Each lane has `limit`.
    pub fn enter(&self, message: &Waiting, limit: usize) -> bool {
        let limit = match message.kind {
            MessageKind::Row => limit - limit / 4,
            _ => limit,
        };
        let (waits, cost) = (&self.0[message.kind.lane()], message.cost());
        let fits = waits.fetch_add(cost, Ordering::Relaxed) + cost <= limit;
        if !fits {
            waits.fetch_sub(cost, Ordering::Relaxed);
        }
        fits
    }

    /// A message that has taken room waits no more.
    pub fn leave_one(&self, message: &Waiting) {
        self.0[message.kind.lane()].fetch_sub(message.cost(), Ordering::Relaxed);
    }

    /// What has cost that in each lane waits no more.
    pub fn leave(&self, costs: [usize; 2]) {
        for (waits, cost) in self.0.iter().zip(costs).filter(|(_, cost)| *cost > 0) {
            waits.fetch_sub(cost, Ordering::Relaxed);
        }
    }
}
