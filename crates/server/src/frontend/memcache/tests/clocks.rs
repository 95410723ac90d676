//! Wall clocks that are set back or forward.

use super::super::watch;
use super::large::Large;
use super::*;

#[test]
fn a_wall_clock_that_is_set_forward_ends_no_connection() {
    let mut large = Large::unopened(Durability::WriteBack);
    large.idle = Some(Duration::from_secs(600));
    large.start();
    let mut client = large.connect();
    client.send("mn\r\nset k 0 0 9000\r\nhalf of it");
    assert_eq!(client.line(), "MN");
    let (_, front_end, reactors) = large.open.as_ref().unwrap();
    let front_end = front_end.front_end.clone();
    let looked = reactors.block_on(0, move || async move {
        let state = MemcacheReactorState::of(&front_end);
        front_end.store.stepped.store(3600, Ordering::Relaxed);
        watch::look(&state, front_end.seconds());
        let connections = state.connections();
        connections.iter().map(|info| info.cut.get().is_some()).collect::<Vec<bool>>()
    });
    assert_eq!(looked.expect("the reactor runs"), [false]);
}
