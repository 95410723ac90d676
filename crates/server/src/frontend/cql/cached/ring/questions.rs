//! Questions to other instances that are not answered yet, and their answers.

use std::collections::HashMap;

use afterglow_ring::{Answer, MemberId};
use futures_channel::oneshot;

/// Questions to other instances that are not answered yet.
#[derive(Default)]
pub struct Gets {
    next: u64,
    waiting: HashMap<u64, (MemberId, oneshot::Sender<PeerAnswer>)>,
}

/// What another instance says to a question.
pub enum PeerAnswer {
    /// The owner's answer to GET.
    Found(Answer),
    /// The old owner's answer to PULL: under which epoch it has cached the row, and the row.
    Pulled(Option<(u64, Option<Vec<u8>>)>),
}

impl Gets {
    /// Somebody waits for an answer of that instance, to the question of that number.
    pub fn ask(&mut self, whom: MemberId) -> (u64, oneshot::Receiver<PeerAnswer>) {
        let (answer, answered) = oneshot::channel();
        self.next += 1;
        self.waiting.insert(self.next, (whom, answer));
        (self.next, answered)
    }

    /// That instance has answered: who waits for it, if anybody does and for this one.
    pub fn answered(&mut self, by: MemberId, number: u64) -> Option<oneshot::Sender<PeerAnswer>> {
        self.waiting.get(&number).filter(|(asked, _)| *asked == by)?;
        self.waiting.remove(&number).map(|(_, waiting)| waiting)
    }

    /// Nobody waits any more.
    pub fn forget(&mut self, number: u64) {
        self.waiting.remove(&number);
    }
}
