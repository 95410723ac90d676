//! A connection to whichever of several nodes is the first to let us in.
//!
//! Nodes are tried in order, the next one as soon as the one before has failed. A node that has
//! not answered within [`HESITATION`] may have stopped: the next one is tried beside it. So nodes
//! that hang cost so long each, and a slow one is still taken if no other answers.

use std::cell::RefCell;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use crate::frontend::cql::cluster::error::{ConnectError, HESITATION};
use crate::frontend::cql::cluster::nodes::NodeId;

/// Connects to one of these nodes; with the node. An error that `ends` it is told at once.
///
/// # Errors
/// What a node said about it, else what happened last.
pub async fn first<T, F>(
    nodes: Vec<NodeId>,
    connect: impl Fn(NodeId) -> F,
    ends: impl Fn(&ConnectError) -> bool,
) -> Result<(T, NodeId), ConnectError>
where
    F: Future<Output = Result<T, ConnectError>>,
{
    let mut error = ConnectError::Unreachable {
        address: "-".into(),
        reason: "no node of the database is known".into(),
    };
    let (mut nodes, mut under_way) = (nodes.into_iter(), FuturesUnordered::new());
    loop {
        let next = nodes.next().map(|node| {
            let connecting = connect(node);
            async move { (node, connecting.await) }
        });
        let is_last = next.is_none();
        under_way.extend(next);
        let answer = match is_last {
            true => under_way.next().await,
            false => match compio::time::timeout(HESITATION, under_way.next()).await {
                Ok(answer) => answer,
                Err(_) => continue,
            },
        };
        match answer {
            None => return Err(error),
            Some((node, Ok(connected))) => return Ok((connected, node)),
            Some((_, Err(failed))) if ends(&failed) => return Err(failed),
            Some((_, Err(failed))) if error.is_silence() || !failed.is_silence() => error = failed,
            Some(_) => {}
        }
    }
}

/// Nodes that let us in and then did not answer: they are tried after all others, until one does.
#[derive(Default)]
pub struct LeftNodes(RefCell<Vec<NodeId>>);

impl LeftNodes {
    /// This one does not answer.
    pub fn leave(&self, node: NodeId) {
        let mut left = self.0.borrow_mut();
        left.retain(|other| *other != node);
        left.push(node);
    }

    /// A node answers: all have another chance.
    pub fn forget(&self) {
        self.0.borrow_mut().clear();
    }

    /// The order in which to try these.
    pub fn order(&self, mut nodes: Vec<NodeId>) -> Vec<NodeId> {
        let left = self.0.borrow();
        nodes.sort_by_key(|node| left.iter().position(|other| other == node));
        nodes
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::future::pending;

    use super::*;
    use crate::config::HostPort;
    use crate::frontend::cql::cluster::nodes::Addresses;

    fn nodes(count: u16) -> Vec<NodeId> {
        let addresses = Addresses::default();
        (0..count).map(|port| addresses.id(&HostPort { host: "db".into(), port })).collect()
    }

    fn refused() -> ConnectError {
        ConnectError::Credentials("no".into())
    }

    fn unreachable() -> ConnectError {
        ConnectError::Unreachable { address: "db".into(), reason: "gone".into() }
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        compio::runtime::Runtime::new().unwrap().block_on(work)
    }

    /// Neither ends the search: one that hangs, and one that refuses.
    #[test]
    fn the_first_node_that_lets_us_in_is_taken() {
        let all = nodes(4);
        let (tried, ones) = (Cell::new(0), all.clone());
        let connect = |node: NodeId| {
            tried.set(tried.get() + 1);
            let at = ones.iter().position(|other| *other == node).unwrap();
            async move {
                match at {
                    0 => pending().await,
                    1 => Err(refused()),
                    _ => Ok(at),
                }
            }
        };
        let (connected, node) = run(first(all.clone(), connect, |_| false)).unwrap();
        assert_eq!((connected, node, tried.get()), (2, all[2], 3));
    }

    #[test]
    fn what_a_node_said_is_told_rather_than_that_another_was_not_there() {
        let all = nodes(3);
        let said = all[1];
        let connect = move |node: NodeId| {
            let error = if node == said { refused() } else { unreachable() };
            async move { Err::<(), _>(error) }
        };
        for ends in [false, true] {
            let told = run(first(all.clone(), connect, |_| ends));
            let is_said = matches!(told, Err(ConnectError::Credentials(_)));
            assert_eq!(is_said, !ends, "{told:?}");
        }
        assert!(run(first(Vec::new(), connect, |_| false)).is_err());
    }

    #[test]
    fn nodes_that_were_left_are_tried_last_in_the_order_in_which_they_were() {
        let (all, left) = (nodes(4), LeftNodes::default());
        let [a, b, c, d] = all[..] else { unreachable!() };
        left.leave(a);
        left.leave(c);
        assert_eq!(left.order(all.clone()), [b, d, a, c]);
        left.leave(a);
        assert_eq!(left.order(all.clone()), [b, d, c, a]);
        left.forget();
        assert_eq!(left.order(all.clone()), all);
    }
}
