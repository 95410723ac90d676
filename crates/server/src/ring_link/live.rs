//! A link that is open, as every thread may use it: what waits to be sent, and who may ask.
//!
//! ```text
//! Open --finish--> Finishing (what waits is written) --> closed by its session
//!   \---end------------------------------------------^
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant, SystemTime};

use afterglow_ring::{Frame, Incarnation, Link, MemberId};
use parking_lot::Mutex;

use super::config::Tuning;
use super::fault::LinkFault;
use super::nearness::Home;
use super::peer::PeerRecord;
use crate::metrics::LinkDrop;
use crate::reactor::wake_in_drop;

/// What a message that waits costs besides its bytes.
const OVERHEAD: usize = 48;
/// Bytes that are taken from the queue for one write; a message that is longer goes alone.
const BATCH: usize = 256 * 1024;

/// A queue that was longer than this gives its memory back.
const KEEP_QUEUE: usize = 1024;

/// A message that waits, and whether it used credit.
pub struct Waiting {
    /// Whether it used credit.
    pub uses_credit: bool,
    /// The message.
    pub bytes: Vec<u8>,
}

/// What goes out in one write.
#[derive(Default)]
pub struct Batch {
    /// CREDIT.
    pub credit: Option<Frame>,
    /// Messages in their order.
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
    queue: VecDeque<Waiting>,
    /// What the queue costs.
    bytes: usize,
    /// CREDIT that is to be told; a newer one says all that an older one does.
    credit: Option<Frame>,
    alive: bool,
    stage: LinkStage,
    writer: Option<Waker>,
    /// Requests of the other side that are not answered, by their length.
    open: HashMap<usize, u32>,
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
            queue: VecDeque::new(),
            bytes: 0,
            credit: None,
            alive: false,
            stage: LinkStage::Open,
            writer: None,
            open: HashMap::new(),
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
            state: Mutex::new(state),
        }
    }

    /// Queues a message.
    ///
    /// # Errors
    /// Gives it back, with the reason why it is not taken.
    pub fn offer(&self, uses_credit: bool, bytes: Vec<u8>) -> Result<(), (LinkDrop, Vec<u8>)> {
        let mut state = self.state.lock();
        let cost = bytes.len() + OVERHEAD;
        if !matches!(state.stage, LinkStage::Open) {
            return Err((LinkDrop::NoLink, bytes));
        }
        if state.queue.len() >= self.limits.0 || state.bytes + cost > self.limits.1 {
            return Err((LinkDrop::QueueFull, bytes));
        }
        if uses_credit && !state.link.ask(bytes.len() as u64) {
            return Err((LinkDrop::Credit, bytes));
        }
        state.bytes += cost;
        state.queue.push_back(Waiting { uses_credit, bytes });
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

    /// A message has come that used credit.
    ///
    /// # Errors
    /// There was none left.
    pub fn take(&self, bytes: usize) -> Result<(), LinkFault> {
        let mut state = self.state.lock();
        state.link.take(bytes as u64).map_err(LinkFault::Rules)?;
        *state.open.entry(bytes).or_default() += 1;
        Ok(())
    }

    /// A request of so many bytes has been answered; false if no such one of this link is open.
    pub fn answered(&self, bytes: usize) -> bool {
        let mut state = self.state.lock();
        let Some(open) = state.open.get_mut(&bytes) else { return false };
        *open -= 1;
        if *open == 0 {
            state.open.remove(&bytes);
        }
        if let Some(credit) = state.link.answered(bytes as u64) {
            state.credit = Some(credit);
            wake(state.writer.take());
        }
        true
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
        (state.stage, state.writer, state.bytes) = (LinkStage::Over(why), None, 0);
        std::mem::take(&mut state.queue).len()
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
        let mut bytes = 0;
        while let Some(next) = state.queue.front() {
            let cost = next.bytes.len() + OVERHEAD;
            if bytes > 0 && bytes + cost > BATCH {
                break;
            }
            bytes += cost;
            batch.messages.extend(state.queue.pop_front());
        }
        state.bytes -= bytes;
        if state.queue.is_empty() {
            state.queue.shrink_to(KEEP_QUEUE);
        }
        if bytes > 0 || batch.credit.is_some() || alive {
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

/// Wakes the writer, from any thread. Destructors send messages too.
fn wake(writer: Option<Waker>) {
    if let Some(writer) = writer {
        wake_in_drop(|| writer.wake());
    }
}
