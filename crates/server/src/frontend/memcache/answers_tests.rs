//! Tests of [`super`].

use afterglow_memcache::Sink;
use futures_util::FutureExt;

use super::super::budget::{BufferBudget, FREE};
use super::super::outgoing::SharingSink;
use super::*;

fn answers() -> Rc<Answers> {
    Answers::new(BufferBudget::new(1 << 30, 1 << 30).share(), 0)
}

fn give(slot: Slot, text: &str) {
    slot.answer(|out| out.extend_from_slice(text.as_bytes()));
}

fn taken(answers: &Answers) -> String {
    let mut out = Outgoing::default();
    answers.take(&mut out);
    answers.sent(out.held());
    String::from_utf8(out.into_text()).unwrap()
}

fn push(answers: &Answers, text: &str) {
    answers.push(|out| out.extend_from_slice(text.as_bytes()));
}

#[test]
fn answers_leave_in_the_order_of_their_requests() {
    let answers = answers();
    push(&answers, "a");
    let b = answers.reserve(b"b", false, 9);
    push(&answers, "c");
    push(&answers, "d");
    let e = answers.reserve(b"e", false, 9);
    assert_eq!(taken(&answers), "a");
    give(e, "e");
    assert_eq!(taken(&answers), "");
    give(b, "b");
    push(&answers, "f");
    assert_eq!(taken(&answers), "bcdef");
    assert!(answers.is_complete() && answers.state.borrow().bytes == 0);
}

/// All the memory there is, held by another connection than that of the answers.
fn short() -> (Rc<BufferBudget>, BufferShare, Rc<Answers>) {
    let budget = BufferBudget::new(10 * FREE, 1 << 30);
    let (other, answers) = (budget.share(), Answers::new(budget.share(), 0));
    other.set(11 * FREE, 0);
    (budget, other, answers)
}

#[test]
fn a_piece_in_line_goes_on_once_its_own_connection_holds_what_others_wait_for() {
    let (budget, _other, answers) = short();
    let slot = answers.reserve(b"k", false, 0);
    let mut room = std::pin::pin!(slot.room_for_piece(5 * FREE));
    assert!(room.as_mut().now_or_never().is_none() && budget.is_short());
    let _later = answers.reserve(b"l", false, 2 * FREE);
    assert!(room.as_mut().now_or_never().is_some_and(|room| room.is_some()));
    assert!(!budget.is_short());
}

#[test]
fn pieces_whose_connections_hold_more_go_on_without_room_one_at_a_time() {
    let budget = BufferBudget::new(8 * FREE, 1 << 30);
    let many: Vec<_> = (0..40).map(|_| Answers::new(budget.share(), 0)).collect();
    let slots: Vec<_> = many.iter().map(|answers| answers.reserve(b"k", false, 0)).collect();
    // What stands behind the piece cannot be sent before it.
    let behind: Vec<_> =
        many.iter().map(|answers| answers.reserve(b"l", false, FREE + FREE / 20)).collect();
    let mut waiting: Vec<_> =
        slots.iter().map(|slot| Box::pin(slot.room_for_piece(4 * FREE))).collect();
    let mut granted = Vec::new();
    while !waiting.is_empty() {
        let before = waiting.len();
        waiting.retain_mut(|room| match room.as_mut().now_or_never() {
            Some(room) => {
                granted.push(room.expect("the connection is there"));
                false
            }
            None => true,
        });
        assert!(budget.used() <= (8 + 4) * FREE, "{} bytes", budget.used());
        assert!(waiting.len() < before, "one can always go on");
        granted.remove(0);
    }
    drop((granted, behind));
}

#[test]
fn room_for_a_piece_that_is_not_sent_is_given_back() {
    let (_, other, answers) = short();
    other.set(0, 0);
    let slot = answers.reserve(b"k", false, 0);
    let room = slot.room_for_piece(5 * FREE).now_or_never().flatten().unwrap();
    assert_eq!(answers.state.borrow().bytes, 5 * FREE);
    drop(room);
    assert_eq!(answers.state.borrow().bytes, 0);
}

#[test]
fn who_may_read_holds_up_nobody_in_line() {
    let (budget, _other, answers) = short();
    assert!(!answers.may_read(2 * FREE) && budget.is_short());
    // An answer was sent meanwhile: what it wants is free.
    assert!(answers.may_read(1) && !budget.is_short());
}

#[test]
fn reads_go_side_by_side_and_changes_wait() {
    let answers = answers();
    let read = answers.reserve(b"r", false, 0);
    let change = answers.reserve(b"w", true, 0);
    assert!(!answers.conflicts(b"r", false) && answers.conflicts(b"r", true));
    assert!(answers.conflicts(b"w", false) && !answers.conflicts(b"x", true));
    give(read, "");
    give(change, "");
    assert!(!answers.conflicts(b"r", true) && !answers.conflicts(b"w", false));
}

#[test]
fn a_long_value_is_held_with_what_it_was_read_into_until_it_is_sent() {
    let answers = answers();
    let value = bytes::Bytes::from(vec![b'v'; 2 * SHARED_FROM]);
    let capacity = value.len() + 5000;
    let first = answers.reserve(b"a", false, 10);
    let slots = [b"b", b"c"].map(|key| answers.reserve(key, false, capacity));
    for slot in slots {
        slot.answer_sharing(|out| SharingSink::new(out, &value).value(&value));
    }
    let bytes = || answers.state.borrow().bytes;
    assert_eq!(bytes(), 10 + 2 * capacity);
    give(first, "first");
    assert_eq!(bytes(), 5 + 2 * capacity);
    // One from memory holds no more than itself.
    answers.push_sharing(|out| SharingSink::new(out, &value).value(&value));
    let mut out = Outgoing::default();
    assert!(answers.take(&mut out) && out.shared() == 3);
    assert_eq!((out.held(), bytes()), (5 + 2 * capacity + value.len(), out.held()));
    answers.sent(out.held());
    assert_eq!((bytes(), out.into_text().len()), (0, 5 + 3 * value.len()));
}

#[test]
fn whoever_waits_for_room_is_noted_once() {
    let answers = answers();
    let signal = Rc::<Signal>::default();
    (0..100).for_each(|_| answers.wake_with_pieces(&signal));
    assert_eq!(answers.pieces.borrow().len(), 1);
    answers.wake_pieces();
    assert!(answers.pieces.borrow().is_empty());
}

#[test]
fn what_is_not_read_holds_up_the_next_request() {
    let answers = answers();
    assert!(answers.has_room(2 * MAX_BYTES), "a single answer may be as large as it is");
    let slot = answers.reserve(b"k", false, MAX_BYTES);
    assert!(!answers.has_room(1));
    give(slot, "0123456789");
    assert!(answers.has_room(1) && !answers.has_room(MAX_BYTES));
    let slots: Vec<_> = (0..MAX_WAITING).map(|_| answers.reserve(b"k", false, 0)).collect();
    assert!(!answers.has_room(1));
    drop(slots);
    assert!(answers.is_broken(), "nobody will ever give those answers");
}
