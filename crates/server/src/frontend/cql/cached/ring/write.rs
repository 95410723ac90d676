//! A client's write in a ring.
//!
//! 1. [`RingWrite::begin`] asks every owner of what it touches; for what this instance owns that is
//!    a call.
//! 2. [`RingWrite::permitted`] waits for all of them. Then the write is sent to the database.
//! 3. [`RingWrite::finish`] takes the answer. The client is acknowledged only if the verdict says
//!    so: the answer came within every permit, or the present owners have dropped the rows.
//!
//! A write that is dropped before it heard of its permits was not sent. One that is dropped later
//! counts as one of unknown outcome.

use std::sync::Arc;
use std::time::Duration;

use afterglow_ring::{Member, Scope, WriteResult};
use afterglow_rowcache::write_scope::WriteScope;
use futures_channel::mpsc;
use futures_util::StreamExt;

use super::core::{Ring, WriteEvent};
use super::rows::detail;
use crate::ring_link::MAX_PAYLOAD;

/// A write on its way.
pub struct RingWrite {
    ring: Arc<Ring>,
    client: u64,
    events: mpsc::UnboundedReceiver<WriteEvent>,
    /// Its number, once it may be sent and until its answer has been given to the member.
    number: Option<u64>,
}

/// What to tell the client of a write that the database has answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// The database's answer.
    Acknowledged,
    /// That its outcome is unknown.
    Unknown,
}

impl RingWrite {
    /// Asks the owners. `dead_after`: see
    /// [`Nature`](afterglow_rowcache::intents::words::Nature).
    pub fn begin(ring: &Arc<Ring>, scope: &WriteScope, dead_after: u32) -> RingWrite {
        let scopes = match scope.tokens() {
            Some(tokens) => tokens.iter().map(|token| Scope::Token(*token)).collect(),
            None => vec![Scope::All],
        };
        let detail = detail(scope, dead_after);
        debug_assert!(detail.len() < MAX_PAYLOAD, "owners would never hear of it");
        let (client, events) = ring.begin_write(scopes, detail);
        RingWrite { ring: ring.clone(), client, events, number: None }
    }

    /// What the member says next. It gives up itself after [`Config::write`], but only while time
    /// passes for it: its keeper may hang, in a call of the system perhaps. Then it is made to.
    ///
    /// [`Config::write`]: afterglow_ring::Config::write
    async fn event(&mut self) -> Option<WriteEvent> {
        if let Ok(event) = self.events.try_recv() {
            return Some(event);
        }
        let config = self.ring.config();
        let longest = Duration::from_micros(config.write + config.lease);
        match compio::time::timeout(longest, self.events.next()).await {
            Ok(event) => event,
            Err(_) => {
                self.ring.refuse_waiting(config.write);
                None
            }
        }
    }

    /// Waits until it may be sent. False: it cannot be for now, and nothing was sent.
    pub async fn permitted(&mut self) -> bool {
        match self.event().await {
            Some(WriteEvent::Permitted(number)) => {
                self.number = Some(number);
                true
            }
            _ => false,
        }
    }

    /// Takes the database's answer.
    pub async fn finish(mut self, result: WriteResult) -> Verdict {
        self.written(result);
        match self.event().await {
            Some(WriteEvent::Acknowledged) => Verdict::Acknowledged,
            // The database has said itself what failed.
            _ if matches!(
                result,
                WriteResult::Refused | WriteResult::Unknown | WriteResult::Decided
            ) =>
            {
                Verdict::Acknowledged
            }
            _ => Verdict::Unknown,
        }
    }

    fn written(&mut self, result: WriteResult) {
        if let Some(number) = self.number.take() {
            self.ring.with(|member: &mut Member, io| member.written(number, result, io));
        }
    }
}

impl Drop for RingWrite {
    fn drop(&mut self) {
        self.written(WriteResult::Unknown);
        // From here on a permit finds nobody, and is given back by whoever brings it.
        self.ring.forget_write(self.client);
        if let Ok(WriteEvent::Permitted(number)) = self.events.try_recv() {
            self.number = Some(number);
            self.written(WriteResult::Refused);
        }
    }
}
