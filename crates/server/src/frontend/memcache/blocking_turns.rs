//! Turns to do what blocks on a thread of its own: one at a time on each reactor. The runtime has
//! so many threads for that, and a reactor that finds none free serves nobody until one is. So
//! those who wait for their turn, on a slow disk perhaps, hold no thread.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use crate::reactor::Wake;

/// Who has the turn on a reactor, and behind it who waits for it, in the order in which they came.
#[derive(Default)]
pub struct BlockingTurns(RefCell<VecDeque<Rc<Wake>>>);

/// A place among them. The next has its turn when this is dropped.
pub struct BlockingTurn {
    turns: Rc<BlockingTurns>,
    wake: Rc<Wake>,
}

impl BlockingTurns {
    /// Waits for the turn.
    pub async fn take(self: &Rc<Self>) -> BlockingTurn {
        let turn = BlockingTurn { turns: self.clone(), wake: Rc::default() };
        self.0.borrow_mut().push_back(turn.wake.clone());
        turn.wake.until(|| turn.is_first().then_some(())).await;
        turn
    }

    /// How many wait, or have the turn.
    #[cfg(test)]
    pub fn waiting(&self) -> usize {
        self.0.borrow().len()
    }
}

impl BlockingTurn {
    fn is_first(&self) -> bool {
        self.turns.0.borrow().front().is_some_and(|first| Rc::ptr_eq(first, &self.wake))
    }
}

impl Drop for BlockingTurn {
    fn drop(&mut self) {
        let mut turns = self.turns.0.borrow_mut();
        turns.retain(|other| !Rc::ptr_eq(other, &self.wake));
        let first = turns.front().cloned();
        drop(turns);
        if let Some(first) = first {
            first.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn one_has_the_turn_and_the_others_come_in_their_order() {
        let turns = Rc::<BlockingTurns>::default();
        let mut context = Context::from_waker(Waker::noop());
        let mut waiting: Vec<_> = (0..4).map(|_| Box::pin(turns.take())).collect();
        let polled = waiting.iter_mut().map(|turn| turn.as_mut().poll(&mut context));
        let mut polled: Vec<_> = polled.collect();
        assert!(polled[1..].iter().all(Poll::is_pending));
        let first = polled.swap_remove(0);
        assert!(first.is_ready());
        // One that gives up has had no turn.
        drop(waiting.remove(1));
        assert!(waiting[1].as_mut().poll(&mut context).is_pending());
        drop(first);
        assert!(waiting[2].as_mut().poll(&mut context).is_pending());
        assert!(waiting[1].as_mut().poll(&mut context).is_ready());
        assert!(waiting[2].as_mut().poll(&mut context).is_ready());
        assert_eq!(turns.waiting(), 0);
    }
}
