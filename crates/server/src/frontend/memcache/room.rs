//! Whether there is room for what a read that changes its object will answer.
//!
//! How large that is, is known only once the object is found, which is when the change is decided
//! on. So the decision asks. It asks only while the request is begun, for then it can still wait;
//! what has been read from flash since has its room already.

use std::cell::Cell;
use std::rc::Rc;

use super::answers::Answers;

/// The room of one connection.
pub struct Room {
    answers: Rc<Answers>,
    asking: Cell<bool>,
    granted: Cell<usize>,
}

impl Room {
    /// Of the connection with these answers.
    pub fn new(answers: Rc<Answers>) -> Rc<Self> {
        Rc::new(Room { answers, asking: Cell::default(), granted: Cell::default() })
    }

    /// Carries out `begin`. Returns with it how many bytes it was granted.
    pub fn while_asked<T>(&self, begin: impl FnOnce() -> T) -> (T, usize) {
        self.granted.set(0);
        self.asking.set(true);
        let begun = begin();
        self.asking.set(false);
        (begun, self.granted.get())
    }

    /// Whether there is room for a value of so many bytes. If not, the connection is woken when
    /// there may be.
    pub fn grants(&self, bytes: usize) -> bool {
        if !self.asking.get() {
            return true;
        }
        let granted = self.answers.has_room(bytes);
        self.granted.set(if granted { bytes } else { 0 });
        granted
    }
}
