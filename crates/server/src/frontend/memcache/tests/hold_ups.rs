//! What could hold up a whole reactor, or the end of a front end.

use super::answers::Answers;
use super::*;

/// As many as the runtime has threads for what blocks, and more.
const MANY: usize = 300;

/// A disk that does not answer holds up who waits for it, and nobody else.
#[test]
fn flushes_and_limits_that_wait_for_the_disk_hold_up_nobody_else() {
    let opened = Opened::new(0);
    let front_end = opened.front_end.front_end.clone();
    let (tell, told) = mpsc::channel();
    let held = opened.front_end.front_end.store.schedule().hold();
    opened.reactors.spawn_on(0, move || async move {
        let reactor_state = MemcacheReactorState::of(&front_end);
        let ask = |n: usize| {
            let answers = Answers::new(reactor_state.budget.share(), 0);
            let mut session = MemcacheSession::new(reactor_state.clone(), answers);
            let quiet = false;
            let request = match n % 2 {
                0 => Request::Flush { delay: Some(1000), reply: Reply::Text { quiet } },
                _ => Request::MemoryLimit { megabytes: 32, quiet },
            };
            assert!(matches!(session.perform(request), Performed::Done));
            session.answers
        };
        let asked: Vec<Rc<Answers>> = (0..2 * MANY).map(ask).collect();
        for answers in &asked {
            while !answers.is_complete() {
                answers.changed().await;
            }
            let mut out = Outgoing::default();
            assert!(answers.take(&mut out));
            assert_eq!(out.into_text(), b"OK\r\n");
        }
        tell.send(reactor_state.blocking.waiting()).unwrap();
    });
    let mut other = connect(&opened.front_end);
    other.0.get_ref().set_read_timeout(Some(TIMEOUT / 4)).unwrap();
    for _ in 0..100 {
        other.send("mn\r\n");
        assert_eq!(other.line(), "MN");
    }
    assert_eq!(told.try_recv(), Err(mpsc::TryRecvError::Empty), "the disk has not answered");
    drop(held);
    assert_eq!(told.recv_timeout(TIMEOUT), Ok(0));
}

/// It was accepted before, on another reactor, and comes to its own only now.
#[test]
fn a_connection_that_comes_while_the_front_end_drains_is_not_served() {
    let opened = Opened::new(0);
    let (mut client, server) = UnixStream::pair().unwrap();
    client.set_read_timeout(Some(TIMEOUT / 4)).unwrap();
    let front_end = opened.front_end.front_end.clone();
    front_end.closing.store(true, Ordering::Release);
    opened.reactors.spawn_on(0, move || async move {
        let stream = compio::net::UnixStream::from_std(server).unwrap();
        let ends = Ends { peer: String::new(), from: None, listener: "unix".into(), tls: false };
        connection::serve(front_end, stream, ends, ()).await;
    });
    assert_eq!(client.read(&mut [0]).expect("it ends"), 0);
}
