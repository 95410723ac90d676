//! The thread that asks the server. So keys are read while an answer is awaited.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use super::super::admin_client::AdminClient;
use super::view::{Look, View};

/// A server that is being watched. Dropping it ends the thread after its question.
pub(super) struct Watch {
    answers: Receiver<Result<Look, String>>,
    /// Has the thread ask at once.
    hurry: Sender<()>,
    /// Index into [`View::ALL`].
    view: Arc<AtomicUsize>,
}

impl Watch {
    /// Asks from now on, with a pause of `interval` between two questions.
    pub(super) fn start(admin: AdminClient, view: View, interval: Duration) -> io::Result<Self> {
        let (send, answers) = mpsc::channel();
        let (hurry, hurried) = mpsc::channel();
        let shown = Arc::new(AtomicUsize::new(view as usize));
        let view = shown.clone();
        thread::Builder::new().name("watch".into()).spawn(move || {
            while !matches!(hurried.recv_timeout(interval), Err(RecvTimeoutError::Disconnected)) {
                let view = View::ALL[shown.load(Ordering::Relaxed)];
                if send.send(ask(&admin, view)).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { answers, hurry, view })
    }

    /// The next answer, if it has come.
    pub(super) fn answer(&self) -> Option<Result<Look, String>> {
        self.answers.try_recv().ok()
    }

    /// Asks for what that view shows, at once.
    pub(super) fn look_at(&self, view: View) {
        if self.view.swap(view as usize, Ordering::Relaxed) != view as usize {
            // The thread ends only with its receiver of answers, which is here.
            let _ = self.hurry.send(());
        }
    }
}

/// Asks for what a view shows.
///
/// # Errors
/// One line that says why there is no answer.
pub(super) fn ask(admin: &AdminClient, view: View) -> Result<Look, String> {
    Ok(Look {
        overview: admin.get("/api/v1/overview")?,
        segments: match view {
            View::Segments => Some(admin.get("/api/v1/segments")?),
            _ => None,
        },
        hot_keys: match view {
            View::HotKeys => Some(admin.get("/api/v1/hotkeys")?),
            _ => None,
        },
    })
}
