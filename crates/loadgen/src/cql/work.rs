//! What a driver is to do, and how it ended.

use super::answer::Answer;
use super::connection::Connection;
use super::error::{CqlError, ServerError};

/// One operation in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// The record.
    pub number: u64,
    /// Whether it changes something.
    pub write: bool,
    /// How often it was tried before.
    pub attempt: u32,
    /// When it was due, on the driver's clock; its latency counts from then. The driver sets it,
    /// unless the operation is the second step of another and has that one's.
    pub since: Option<u64>,
    /// What the work wants to know of it once it is answered; others do not look at it.
    pub note: [u64; 2],
}

impl Op {
    /// A first attempt on record `number`.
    pub fn new(number: u64, write: bool) -> Self {
        Self { number, write, attempt: 0, since: None, note: [0; 2] }
    }
}

/// How an operation ended.
#[derive(Debug, PartialEq, Eq)]
pub enum Done {
    /// As it should.
    Fine,
    /// A read found no row.
    NotFound,
    /// A read returned something that was never written there.
    Wrong,
    /// The server refused.
    Refused(ServerError),
    /// It will be tried again, or was the first step of two: not counted yet.
    Again,
}

/// What the driver is to do: hands out operations and judges answers.
pub trait Work {
    /// Makes ready to use a new connection: prepares statements. Called for each of them.
    fn prepare(&mut self, connection: &mut Connection) -> Result<(), CqlError>;
    /// The next operation, its envelope appended to `out`. `None`: nothing to do now; asked again
    /// after each answer, and within 10 ms.
    fn start(&mut self, stream: u16, out: &mut Vec<u8>, now: u64) -> Option<Op>;
    /// Judges the answer to `op`.
    fn finish(&mut self, op: Op, answer: &Answer<'_>, now: u64) -> Result<Done, CqlError>;
    /// The connection of `op` broke before its answer came.
    fn lost(&mut self, op: Op);
    /// Whether the next operation is a second step: it is due at once, whatever the rate.
    fn continues(&self) -> bool {
        false
    }
    /// Recording begins: the operations to come are the ones that count.
    fn measure(&mut self) {}
    /// Nothing will come any more from [`start`](Self::start).
    fn exhausted(&self) -> bool;
}
