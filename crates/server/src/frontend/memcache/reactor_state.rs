//! The state of the front end on each reactor.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;
use std::sync::{Arc, Weak};

use afterglow_engine::device::{AlignedBuf, DeviceId};
use afterglow_memcache::CloseReason;

use super::answers::Answers;
use super::blocking_turns::BlockingTurns;
use super::budget::BufferBudget;
use super::dump_turn::Turn;
use super::shared::MemcacheShared;
use super::watchers::Watchers;
use crate::frontend::client_handshakes::{ClientHandshakes, TlsOptions};
use crate::metrics::{FrontEndMetrics, MemcacheMetrics};
use crate::reactor::{FlashFile, read_flash};

/// Answers that all connections of a front end may wait for, without the first of each. It is half
/// of the operations that may wait for a disk at once.
const MAX_AWAITED: usize = 1 << 15;

/// A connection that stands still for so long, in seconds, is cut when others wait for what it
/// holds.
pub(super) const STALL: u64 = 10;
/// It has that time for each so many bytes.
const STRETCH: usize = 1 << 20;

/// What the settings of its TLS are called.
const TLS_OPTIONS: TlsOptions = TlsOptions { certificates: "--memcache-tls-cert", client_ca: None };

/// One reactor's part of the front end.
pub struct MemcacheReactorState {
    /// What all reactors share.
    pub front_end: Arc<MemcacheShared>,
    /// This reactor's counters, as every front end has them.
    pub metrics: Arc<FrontEndMetrics>,
    /// This reactor's counters, as memcached has them.
    pub counts: Arc<MemcacheMetrics>,
    /// TLS handshakes with clients.
    pub(super) handshakes: ClientHandshakes,
    /// Turns to do what blocks.
    pub(super) blocking: Rc<BlockingTurns>,
    /// What connections may hold.
    pub budget: Rc<BufferBudget>,
    /// Seconds for which a client may stand still while others wait for what it holds.
    pub patience: Cell<u64>,
    /// Where objects are put together for a store: one for all connections, for none needs it for
    /// longer than a store takes.
    pub scratch: Cell<Vec<u8>>,
    /// The devices.
    flash: Vec<Option<FlashFile>>,
    connections: RefCell<HashMap<u64, Rc<Info>>>,
    next: Cell<u64>,
}

/// What is known of a connection from outside.
pub struct Info {
    /// Its number on its reactor.
    pub id: u64,
    /// Where it comes from.
    pub peer: String,
    /// Where it came to.
    pub listener: Arc<str>,
    /// When its last request came: seconds of [`MemcacheShared::seconds`], as all that follow.
    pub last_request: Cell<u64>,
    /// Since when a write has been under way, or the latest MiB of it.
    pub writing_since: Cell<Option<u64>>,
    /// Bytes written since then.
    pub written: Cell<usize>,
    /// When a byte last came from its client or was taken by it.
    pub moved: Cell<u64>,
    /// Since when it holds a part of a large request, or the latest MiB of it.
    pub holding_since: Cell<Option<u64>>,
    /// Bytes that have come since then.
    pub received: Cell<usize>,
    /// There while it is being answered with a dump and nobody else can be.
    pub(super) dump: RefCell<Weak<Turn>>,
    /// It watches, and asks for nothing any more.
    pub watching: Cell<bool>,
    /// It is to end whatever it waits for, and why.
    pub cut: Cell<Option<CloseReason>>,
    /// Its answers.
    pub answers: Rc<Answers>,
    /// Shuts the socket down: reading only, or both ways.
    pub shut: Box<dyn Fn(rustix::net::Shutdown)>,
}

impl Info {
    /// Ends the connection, also one that waits for something other than its client.
    pub fn cut(&self, reason: CloseReason) {
        self.cut.set(Some(reason));
        (self.shut)(rustix::net::Shutdown::Both);
        self.answers.nudge();
    }

    /// A write begins.
    pub fn begins_to_write(&self, now: u64) {
        self.writing_since.set(Some(now));
        self.written.set(0);
    }

    /// The client has taken so many bytes.
    pub fn wrote(&self, bytes: usize, now: u64) {
        self.moved.set(now);
        renew(&self.writing_since, &self.written, bytes, now);
    }

    /// It holds a part of a large request.
    pub fn holds(&self, now: u64) {
        if self.holding_since.get().is_none() {
            self.holding_since.set(Some(now));
            self.received.set(0);
        }
    }

    /// So many bytes have come from the client.
    pub fn came(&self, bytes: usize, now: u64) {
        self.moved.set(now);
        renew(&self.holding_since, &self.received, bytes, now);
    }

    /// An error once it is to end.
    pub fn check(&self) -> io::Result<()> {
        if self.cut.get().is_some() { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }
}

/// Has what goes on since `since` count from now on, once a MiB has moved.
fn renew(since: &Cell<Option<u64>>, moved: &Cell<usize>, bytes: usize, now: u64) {
    let all = moved.get() + bytes;
    moved.set(if all < STRETCH { all } else { 0 });
    if all >= STRETCH && since.get().is_some() {
        since.set(Some(now));
    }
}

thread_local! {
    /// The parts of all front ends on this reactor (there may be several front ends in tests).
    static PARTS: RefCell<HashMap<u64, Rc<MemcacheReactorState>>> = RefCell::default();
}

impl MemcacheReactorState {
    /// The part of `front_end` on the reactor that this is called on; made when it is first asked
    /// for.
    pub fn of(front_end: &Arc<MemcacheShared>) -> Rc<Self> {
        PARTS.with_borrow_mut(|parts| {
            parts.entry(front_end.id).or_insert_with(|| Rc::new(Self::new(front_end))).clone()
        })
    }

    fn new(front_end: &Arc<MemcacheShared>) -> Self {
        let devices = &front_end.devices;
        let (count, reactors) = (devices.infos().len(), front_end.reactors.count());
        let buffers = front_end.config.buffers;
        let buffers = buffers - Watchers::share(buffers);
        let flash = (0..count).map(|n| FlashFile::new(devices.clone(), DeviceId(n as u16)));
        Self {
            metrics: front_end.config.metrics.front_end("memcache"),
            counts: front_end.config.metrics.memcache(),
            handshakes: ClientHandshakes::new(TLS_OPTIONS),
            blocking: Rc::default(),
            budget: BufferBudget::new(buffers / reactors, MAX_AWAITED / reactors),
            patience: STALL.into(),
            scratch: Cell::default(),
            flash: flash.collect(),
            connections: RefCell::default(),
            next: Cell::default(),
            front_end: front_end.clone(),
        }
    }

    /// Forgets this reactor's part: the front end is closed.
    pub fn forget(front_end: &MemcacheShared) {
        PARTS.with_borrow_mut(|parts| parts.remove(&front_end.id));
    }

    /// Numbers the next connection.
    pub fn next_id(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    /// A connection is here now.
    pub fn add(&self, info: &Rc<Info>) {
        self.connections.borrow_mut().insert(info.id, info.clone());
    }

    /// A connection is gone.
    pub fn remove(&self, id: u64) {
        self.connections.borrow_mut().remove(&id);
    }

    /// All connections, as they are now.
    pub fn connections(&self) -> Vec<Rc<Info>> {
        self.connections.borrow().values().cloned().collect()
    }

    /// Fills `buf` from a device, on this reactor's ring.
    pub async fn read(
        &self,
        device: DeviceId,
        offset: u64,
        buf: AlignedBuf,
    ) -> io::Result<AlignedBuf> {
        let Some(file) = self.flash.get(usize::from(device.0)).and_then(Option::as_ref) else {
            return Err(io::ErrorKind::NotFound.into());
        };
        self.counts.flash_reads.inc();
        let _under_way = self.metrics.flash_reads.one_more();
        let bytes = read_flash(file, offset, buf).await;
        self.counts.flash_reads_done.inc();
        self.counts.flash_bytes.add(bytes.as_ref().map_or(0, |bytes| bytes.len() as u64));
        bytes
    }
}
