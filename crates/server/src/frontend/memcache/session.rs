//! The state that the requests of one connection share, and how far one of them got.

use std::rc::Rc;
use std::time::Instant;

use afterglow_engine::Backpressure;

use super::answers::Answers;
use super::arriving::Receiving;
use super::dump::Running;
use super::metering::AtOnce;
use super::reactor_state::MemcacheReactorState;
use super::room::Room;
use super::store::Store;
use super::watchers::Watching;

/// How far a request got.
#[derive(Debug)]
pub enum Performed {
    /// It is answered, or will be.
    Done,
    /// It has to wait for others of its connection, or for room.
    Blocked,
    /// It has to wait until the cache has room for what it changes.
    Full(Backpressure),
    /// Flash does not take it at this moment: it is to come again.
    Refused,
    /// Done, and the client is who it says it is.
    Authenticated,
    /// Done, and the connection watches from now on.
    Watch(Watching),
    /// Done, and the connection ends.
    Close,
}

/// What requests of one connection need.
pub struct MemcacheSession {
    pub reactor_state: Rc<MemcacheReactorState>,
    pub answers: Rc<Answers>,
    /// Their room.
    pub(super) room: Rc<Room>,
    /// Bytes of the keys of a retrieval that are done with already.
    pub(super) resume: usize,
    /// Bytes of those that memory has been asked for.
    pub(super) announced: usize,
    /// Requests of one key that come next and that memory has been asked for, the one that was
    /// carried out last included. It is kept while the connection waits, so that none is asked for
    /// again at each wake.
    pub(super) ahead: usize,
    /// The get that is blocked has found its object in memory, which was counted.
    pub(super) counted: bool,
    /// A value that comes in parts.
    pub(super) receiving: Option<Receiving>,
    /// A dump under way.
    pub(super) dump: Option<Running>,
    /// When what is being carried out was received.
    pub received: Instant,
    /// What was answered at once and is not timed yet.
    pub at_once: AtOnce,
}

impl MemcacheSession {
    /// For a connection on this reactor.
    pub fn new(reactor_state: Rc<MemcacheReactorState>, answers: Rc<Answers>) -> Self {
        MemcacheSession {
            reactor_state,
            room: Room::new(answers.clone()),
            answers,
            resume: 0,
            announced: 0,
            ahead: 0,
            counted: false,
            receiving: None,
            dump: None,
            received: Instant::now(),
            at_once: AtOnce::default(),
        }
    }

    pub(super) fn store(&self) -> &Store {
        &self.reactor_state.front_end.store
    }
}
