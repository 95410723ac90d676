//! A request of the other side, from when it comes until its answer has left.

use std::sync::Arc;

/// Who is owed credit back.
pub trait Creditor: Send + Sync {
    /// A request of so many bytes has been answered, or never will be.
    fn answered(&self, bytes: usize);
}

/// A request of the other side that is not answered. Its credit goes back when this is dropped:
/// with the answer, once that has left the queue, or without one.
pub struct OpenRequest {
    link: Arc<dyn Creditor>,
    bytes: usize,
}

impl OpenRequest {
    /// It has come on that link, with so many bytes.
    pub fn new(link: Arc<dyn Creditor>, bytes: usize) -> Self {
        Self { link, bytes }
    }
}

impl Drop for OpenRequest {
    fn drop(&mut self) {
        self.link.answered(self.bytes);
    }
}
