//! How messages leave for other instances: which lane of a link each takes, and what becomes of a
//! row for which there is no room.

use afterglow_ring::{Answer, Envelope, Incarnation, MemberId, Message};
use futures_channel::oneshot;

use super::core::Ring;
use super::questions::PeerAnswer;
use crate::ring_link::{MessageKind, OpenRequest};

/// What a message is to the links. What a lease, a write or a change of the map waits for goes
/// before rows. A snapshot of shards does not: it may be long, and may come at any time.
fn kind_of(message: &Message) -> MessageKind {
    match message {
        Message::Ping { .. } => MessageKind::Probe,
        Message::Get { .. } | Message::Pull { .. } => MessageKind::Request,
        Message::Found { answer: Answer::Row(_), .. } | Message::Pulled { cached: Some(_), .. } => {
            MessageKind::Row
        }
        Message::Found { .. } | Message::Pulled { .. } | Message::Handover { .. } => {
            MessageKind::Bulk
        }
        Message::Pong { .. }
        | Message::MapWanted
        | Message::MapIs(_)
        | Message::Begin { .. }
        | Message::Grant { .. }
        | Message::Drop { .. }
        | Message::Dropped { .. }
        | Message::Refused { .. }
        | Message::End { .. }
        | Message::EndWanted { .. }
        | Message::Ended { .. }
        | Message::HandoverWanted { .. } => MessageKind::Control,
    }
}

/// Says an answer. If it has a row for which there is no room, the row is passed: the asker would
/// wait for it in vain.
fn say_or_pass<R>(message: Message, request: R, mut say: impl FnMut(Message, R) -> Result<(), R>) {
    let shorter = without_row(&message);
    if let (Err(request), Some(shorter)) = (say(message, request), shorter) {
        // Where there is no room for that either, the asker gives up after a while.
        let _ = say(shorter, request);
    }
}

/// The answer in place of a row: the asker asks the database.
fn without_row(message: &Message) -> Option<Message> {
    match *message {
        Message::Found { to, number, answer: Answer::Row(_) } => {
            Some(Message::Found { to, number, answer: Answer::Pass })
        }
        Message::Pulled { to, number, cached: Some(_) } => {
            Some(Message::Pulled { to, number, cached: None })
        }
        _ => None,
    }
}

impl Ring {
    /// Sends a message. What is lost is asked again, or was an answer to what is asked again.
    pub(super) fn send(&self, to: MemberId, envelope: &Envelope) {
        // What waits behind no request is not given back.
        let _ = self.hand(to, envelope, None);
    }

    /// Gives a message to the links.
    ///
    /// # Errors
    /// None takes it. The request that it answers is not answered yet.
    fn hand(
        &self,
        to: MemberId,
        envelope: &Envelope,
        request: Option<OpenRequest>,
    ) -> Result<(), Option<OpenRequest>> {
        #[cfg(test)]
        if let Some(network) = self.network.get() {
            return network.unbounded_send((to, envelope.encode())).map_err(|_| request);
        }
        let Some(transport) = self.transport() else { return Err(request) };
        let (kind, bytes) = (kind_of(&envelope.message), envelope.encode());
        let Some(request) = request else {
            return transport.send(to, kind, bytes).then_some(()).ok_or(None);
        };
        transport.answer(to, kind, bytes, Some(request))
    }

    /// Asks another instance for a row: `question` makes the message of a number. The answer comes
    /// through the receiver; `None` where the question could not be sent. A question whose guard is
    /// dropped waits for no answer any more.
    pub fn question(
        &self,
        to: MemberId,
        question: impl FnOnce(u64) -> Message,
    ) -> Option<(OpenQuestion<'_>, oneshot::Receiver<PeerAnswer>)> {
        let (number, answered) = self.gets.lock().ask(to);
        let open = OpenQuestion { ring: self, number };
        let envelope = self.envelope(question(number));
        self.hand(to, &envelope, None).is_ok().then_some((open, answered))
    }

    /// Another instance has answered the question of that number of that process.
    pub(super) fn heard(
        &self,
        from: MemberId,
        (to, number): (Incarnation, u64),
        heard: PeerAnswer,
    ) {
        if to != self.life() {
            return; // a number of an earlier process
        }
        let waiting = self.gets.lock().answered(from, number);
        if let Some(waiting) = waiting {
            // The read has given up if this fails.
            let _ = waiting.send(heard);
        }
    }

    /// Answers a question of another instance. The credit of its request comes back to it once the
    /// answer has left.
    pub fn answer(&self, to: MemberId, message: Message, request: Option<OpenRequest>) {
        say_or_pass(message, request, |message, request| {
            self.hand(to, &self.envelope(message), request)
        });
    }
}

/// A question that is not answered yet.
pub struct OpenQuestion<'a> {
    ring: &'a Ring,
    number: u64,
}

impl Drop for OpenQuestion<'_> {
    fn drop(&mut self) {
        self.ring.gets.lock().forget(self.number);
    }
}

#[cfg(test)]
mod tests {
    use afterglow_ring::SchemaVersion;

    use super::*;

    const TO: Incarnation = Incarnation(7);

    fn found(answer: Answer) -> Message {
        Message::Found { to: TO, number: 3, answer }
    }

    fn pulled(cached: Option<(u64, Option<Vec<u8>>)>) -> Message {
        Message::Pulled { to: TO, number: 3, cached }
    }

    #[test]
    fn what_a_lease_or_a_write_waits_for_does_not_wait_for_rows() {
        let (number, attempt) = (3, 1);
        let (hash, sent, clock, blind) = (0, 0, 0, 0);
        let first = [
            Message::Pong { hash, sent, to: TO, promise: true, clock, blind },
            Message::Grant { to: TO, number, attempt, duration: 9 },
            Message::Refused { to: TO, number, attempt },
            Message::Dropped { to: TO, number, attempt },
            Message::End { number, outcome: afterglow_ring::Outcome::Settled },
            Message::MapWanted,
        ];
        assert!(first.iter().all(|message| kind_of(message) == MessageKind::Control));
        assert_eq!(kind_of(&Message::Ping { hash, sent }), MessageKind::Probe);
        let (version, schema, states) = (3, SchemaVersion::default(), Vec::new());
        let handover = Message::Handover { to: TO, version, schema, states };
        for (message, kind) in [
            (Message::Get { wanted: Vec::new() }, MessageKind::Request),
            (found(Answer::Row(None)), MessageKind::Row),
            (pulled(Some((1, None))), MessageKind::Row),
            (found(Answer::NotOwner), MessageKind::Bulk),
            (handover, MessageKind::Bulk),
        ] {
            assert_eq!(kind_of(&message), kind, "{message:?}");
        }
    }

    #[test]
    fn a_row_for_which_there_is_no_room_is_passed() {
        let said = |message| {
            let mut said = Vec::new();
            say_or_pass(message, (), |message, ()| {
                let fits = kind_of(&message) != MessageKind::Row;
                said.push(message);
                fits.then_some(()).ok_or(())
            });
            said
        };
        let row = found(Answer::Row(Some(vec![1])));
        assert_eq!(said(row.clone()), [row, found(Answer::Pass)]);
        let row = pulled(Some((1, Some(vec![1]))));
        assert_eq!(said(row.clone()), [row, pulled(None)]);
        assert_eq!(said(found(Answer::NotOwner)), [found(Answer::NotOwner)], "once");
    }
}
