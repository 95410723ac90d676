//! What is remembered to choose a node of the database.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;

use afterglow_cql::ring::Replicas;

use crate::frontend::cql::cluster::nodes::{NodeId, Topology};

/// What a reactor remembers to choose nodes.
#[derive(Default)]
pub struct Routes {
    pub(crate) topology: RefCell<Arc<Topology>>,
    pub(crate) replicas: RefCell<Known>,
    /// Has requests that any of several nodes can take go round.
    pub(crate) turn: Cell<usize>,
}

/// Replicas of keyspaces, of one generation of the topology and one of the schema.
#[derive(Default)]
pub(crate) struct Known {
    pub(crate) generations: (u64, u64),
    pub(crate) by_keyspace: HashMap<Box<str>, Rc<Replicas>>,
}

/// Nodes to try in turn.
pub struct Candidates {
    /// All of them.
    pub nodes: Vec<NodeId>,
    /// So many of the first are worth a connection even if another one is there already.
    pub preferred: usize,
}

impl Routes {
    /// Begins with what is known.
    pub fn new(topology: Arc<Topology>) -> Self {
        Self { topology: RefCell::new(topology), ..Self::default() }
    }
}
