//! A link that is open, as every thread may use it: what waits to be sent, and who may ask.
//!
//! ```text
//! Open --finish--> Finishing (what waits is written) --> closed by its session
//!   \---end------------------------------------------^
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use afterglow_ring::{Frame, Incarnation, Link, MemberId};
use parking_lot::Mutex;

use super::config::Tuning;
use super::fault::LinkFault;
use super::lanes::{Lanes, MessageKind, Waiting};
use super::nearness::Home;
use super::peer::PeerRecord;
use super::request::{Creditor, OpenRequest};
use crate::metrics::LinkDrop;
use crate::reactor::wake_in_drop;

/// What goes out in one write.
#[derive(Default)]
pub struct Batch {
    /// CREDIT.
    pub credit: Option<Frame>,
    /// Messages in their order. Whoever drops them gives back the credit of what they answer, and
    /// must not hold the lock of a link.
    pub messages: Vec<Waiting>,
}

#[derive(Debug, Clone)]
enum LinkStage {
    Open,
    Finishing(LinkFault),
    Over(LinkFault),
}

struct LinkState {
    link: Link,
    lanes: Lanes,
    /// CREDIT that is to be told; a newer one says all that an older one does.
    credit: Option<Frame>,
    alive: bool,
    stage: LinkStage,
    writer: Option<Waker>,
}

/// A link that is open.
pub struct LiveLink {
    /// The member at the other end.
    pub peer: MemberId,
    /// Its process.
    pub life: Incarnation,
    /// Where it is: on the thread that made it.
    pub home: Home,
    /// The version of the protocol that both speak.
    pub version: u16,
    /// Since when it is open.
    pub since: SystemTime,
    /// Where the peer is counted.
    pub record: Arc<PeerRecord>,
    limits: (usize, usize),
    start: Instant,
    /// Milliseconds after the start: when something came, when the kernel last took something, and
    /// since when a write waits for it (0: none does).
    heard: AtomicU64,
    sent: AtomicU64,
    writing: AtomicU64,
    /// When a probe by it was found to be unanswered; 0: none was.
    left: AtomicU64,
    state: Mutex<LinkState>,
}

impl LiveLink {
    /// A link whose HELLOs were exchanged, on the thread that will read and write it.
    pub fn new(
        (peer, life): (MemberId, Incarnation),
        link: Link,
        record: Arc<PeerRecord>,
        tuning: &Tuning,
    ) -> Self {
        let version = link.version().unwrap_or_default();
        let state = LinkState {
            link,
            lanes: Lanes::default(),
            credit: None,
            alive: false,
            stage: LinkStage::Open,
            writer: None,
        };
        Self {
            peer,
            life,
            home: Home::here(),
            version,
            since: SystemTime::now(),
            record,
            limits: (tuning.queue_messages, tuning.queue_bytes),
            start: Instant::now(),
            heard: AtomicU64::new(0),
            sent: AtomicU64::new(0),
            writing: AtomicU64::new(0),
            left: AtomicU64::new(0),
            state: Mutex::new(state),
        }
    }

    /// Queues a message.
    ///
    /// # Errors
    /// Gives it back, with the reason why it is not taken.
    pub fn offer(&self, message: Waiting) -> Result<(), (LinkDrop, Waiting)> {
        let mut state = self.state.lock();
        if !matches!(state.stage, LinkStage::Open) {
            return Err((LinkDrop::NoLink, message));
        }
        let (most, room) = self.limits;
        if state.lanes.len_of(message.kind) >= most || !self.record.room.enter(&message, room) {
            return Err((LinkDrop::QueueFull, message));
        }
        let (kind, length) = (message.kind, message.bytes.len() as u64);
        if kind == MessageKind::Request && !state.link.ask(length) {
            self.record.room.leave_one(&message);
            return Err((LinkDrop::Credit, message));
        }
        state.lanes.put(message);
        wake(state.writer.take());
        Ok(())
    }

    /// HELLO or CREDIT has come.
    ///
    /// # Errors
    /// It may not be there.
    pub fn receive(&self, frame: &Frame) -> Result<(), LinkFault> {
        self.state.lock().link.receive(frame).map_err(LinkFault::Rules)
    }

    /// A request of so many bytes has come.
    ///
    /// # Errors
    /// There was no credit left for it.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<OpenRequest, LinkFault> {
        self.state.lock().link.take(bytes as u64).map_err(LinkFault::Rules)?;
        Ok(OpenRequest::new(self.clone(), bytes))
    }

    /// Has a sign of life sent.
    pub fn say_alive(&self) {
        let mut state = self.state.lock();
        state.alive = true;
        wake(state.writer.take());
    }

    /// Takes no more messages, writes what waits, and ends then.
    pub fn finish(&self, why: LinkFault) {
        let mut state = self.state.lock();
        if matches!(state.stage, LinkStage::Open) {
            state.stage = LinkStage::Finishing(why);
            wake(state.writer.take());
        }
    }

    /// Ends at once.
    pub fn end(&self, why: LinkFault) {
        let mut state = self.state.lock();
        if !matches!(state.stage, LinkStage::Over(_)) {
            state.stage = LinkStage::Over(why);
            wake(state.writer.take());
        }
    }

    /// Drops what waits: how many messages. Nobody is woken: the writer has ended.
    pub fn clear(&self, why: LinkFault) -> usize {
        let mut state = self.state.lock();
        (state.stage, state.writer) = (LinkStage::Over(why), None);
        let lanes = std::mem::take(&mut state.lanes);
        // What they answer may have come on this link.
        drop(state);
        self.record.room.leave(lanes.cost());
        lanes.len()
    }

    /// Waits for something to write.
    ///
    /// # Errors
    /// Why nothing is to be written any more.
    pub fn poll_batch(
        &self,
        context: &Context<'_>,
        batch: &mut Batch,
    ) -> Poll<Result<(), LinkFault>> {
        let mut state = self.state.lock();
        let state = &mut *state;
        if let LinkStage::Over(why) = &state.stage {
            return Poll::Ready(Err(why.clone()));
        }
        batch.credit = state.credit.take();
        let alive = std::mem::take(&mut state.alive);
        let messages = batch.messages.len();
        self.record.room.leave(state.lanes.take(&mut batch.messages));
        if batch.messages.len() > messages || batch.credit.is_some() || alive {
            return Poll::Ready(Ok(()));
        }
        if let LinkStage::Finishing(why) = &state.stage {
            return Poll::Ready(Err(why.clone()));
        }
        state.writer = Some(context.waker().clone());
        Poll::Pending
    }

    fn now(&self) -> u64 {
        // Never 0, which says that nothing is being written.
        self.start.elapsed().as_millis() as u64 + 1
    }

    fn since(&self, when: &AtomicU64) -> Duration {
        Duration::from_millis(self.now().saturating_sub(when.load(Ordering::Relaxed)))
    }

    /// Something has come.
    pub fn heard(&self) {
        self.heard.store(self.now(), Ordering::Relaxed);
    }

    /// For how long nothing has come.
    pub fn silence(&self) -> Duration {
        self.since(&self.heard)
    }

    /// A probe by it was not answered in time, and the next one takes another link.
    pub fn leave(&self) {
        self.left.store(self.now(), Ordering::Relaxed);
    }

    /// Whether a probe has left it, and nothing has come by it since.
    pub fn is_left(&self) -> bool {
        self.left.load(Ordering::Relaxed) > self.heard.load(Ordering::Relaxed)
    }

    /// Bytes are given to the kernel, or it has taken some and gets the rest.
    pub fn writes(&self) {
        self.writing.store(self.now(), Ordering::Relaxed);
    }

    /// The kernel has taken all of them.
    pub fn has_written(&self) {
        self.writing.store(0, Ordering::Relaxed);
        self.sent.store(self.now(), Ordering::Relaxed);
    }

    /// For how long the kernel has taken nothing of what it was given.
    pub fn stands_still(&self) -> Duration {
        match self.writing.load(Ordering::Relaxed) {
            0 => Duration::ZERO,
            _ => self.since(&self.writing),
        }
    }

    /// For how long nothing has been sent.
    pub fn idle(&self) -> Duration {
        self.since(&self.sent)
    }
}

impl Creditor for LiveLink {
    fn answered(&self, bytes: usize) {
        let mut state = self.state.lock();
        if let Some(credit) = state.link.answered(bytes as u64) {
            state.credit = Some(credit);
            wake(state.writer.take());
        }
    }
}

/// Wakes the writer, from any thread. Destructors send messages too.
fn wake(writer: Option<Waker>) {
    if let Some(writer) = writer {
        wake_in_drop(|| writer.wake());
    }
}
