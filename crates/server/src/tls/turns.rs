//! How many messages of handshakes a reactor works on at once. Others wait for their turn, in the
//! order in which they came.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;

use futures_channel::oneshot;

/// The turns of one reactor.
pub struct HandshakeTurns {
    free: Cell<usize>,
    waiting: RefCell<VecDeque<oneshot::Sender<HandshakeTurn>>>,
}

/// A turn, until it is dropped.
pub struct HandshakeTurn(Option<Rc<HandshakeTurns>>);

impl HandshakeTurns {
    /// So many at once.
    pub fn new(at_once: usize) -> Self {
        Self { free: Cell::new(at_once), waiting: RefCell::default() }
    }

    /// Waits for a turn. Whoever stops waiting takes none.
    pub async fn take(self: &Rc<Self>) -> HandshakeTurn {
        match self.free.get().checked_sub(1) {
            Some(left) => {
                self.free.set(left);
                HandshakeTurn(Some(self.clone()))
            }
            None => {
                let (give, given) = oneshot::channel();
                self.waiting.borrow_mut().push_back(give);
                // Nobody forgets those who wait as long as they hold the turns.
                given.await.unwrap_or(HandshakeTurn(None))
            }
        }
    }

    /// Gives a turn to the next, or keeps it for whoever comes.
    fn give(self: Rc<Self>) {
        let mut turn = HandshakeTurn(Some(self.clone()));
        loop {
            let next = self.waiting.borrow_mut().pop_front();
            let Some(next) = next else {
                turn.0.take();
                return self.free.set(self.free.get() + 1);
            };
            match next.send(turn) {
                Ok(()) => return,
                // It does not wait any more.
                Err(back) => turn = back,
            }
        }
    }
}

impl Drop for HandshakeTurn {
    fn drop(&mut self) {
        if let Some(turns) = self.0.take() {
            turns.give();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    #[test]
    fn so_many_at_once_and_the_others_in_the_order_in_which_they_came() {
        let turns = Rc::new(HandshakeTurns::new(2));
        let first = turns.take().now_or_never().expect("a free turn");
        let _second = turns.take().now_or_never().expect("a free turn");
        let mut gone = Box::pin(turns.take());
        let mut third = Box::pin(turns.take());
        let mut fourth = Box::pin(turns.take());
        assert!((&mut gone).now_or_never().is_none());
        assert!((&mut third).now_or_never().is_none());
        assert!((&mut fourth).now_or_never().is_none());
        drop(gone);
        drop(first);
        assert!((&mut fourth).now_or_never().is_none(), "the third waited longer");
        let third = (&mut third).now_or_never().expect("the first one's turn");
        drop(third);
        drop((&mut fourth).now_or_never().expect("the third one's turn"));
        assert_eq!((turns.free.get(), turns.waiting.borrow().len()), (1, 0));
    }

    #[test]
    fn a_turn_that_was_given_to_who_has_gone_is_not_lost() {
        let turns = Rc::new(HandshakeTurns::new(1));
        let first = turns.take().now_or_never().expect("a free turn");
        let mut second = Box::pin(turns.take());
        assert!((&mut second).now_or_never().is_none());
        drop(first);
        // It was given the turn and never looked.
        drop(second);
        assert!(turns.take().now_or_never().is_some());
    }
}
