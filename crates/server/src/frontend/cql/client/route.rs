//! Which node a request is best sent to.

use std::rc::Rc;
use std::sync::Arc;

use afterglow_cql::message::{Request as Message, Values};
use afterglow_cql::plan::{NamedKeys, Plan, Target, WriteKind};
use afterglow_cql::ring::Replicas;
use afterglow_cql::token::{murmur3, partition_key};

use crate::frontend::cql::bound::bound;
use crate::frontend::cql::client::request::{Operation, Request};
use crate::frontend::cql::cluster::backend::Backend;
use crate::frontend::cql::cluster::nodes::{NodeId, Topology};
use crate::frontend::cql::cluster::routes::{Candidates, Known};
use crate::frontend::cql::reactor_state::CqlReactorState;
use crate::frontend::cql::statements::prepared::Answer;

impl CqlReactorState {
    /// The newest topology.
    pub fn topology(&self) -> Arc<Topology> {
        let mut topology = self.routes.topology.borrow_mut();
        if topology.generation != self.front_end.topology.generation() {
            *topology = self.front_end.topology.current();
        }
        topology.clone()
    }

    /// The node that the control connection talks to, then all others.
    pub fn control_first(&self) -> Candidates {
        let topology = self.topology();
        let nodes = topology.nodes.iter().map(|node| node.id);
        let mut nodes: Vec<_> = nodes.collect();
        add_contacts(&topology, &mut nodes);
        Candidates { nodes, preferred: 1 }
    }

    /// Where a request for the partition of that token goes: to its replicas, then to nodes of the
    /// same data centre, then to any.
    pub fn candidates(&self, partition: Option<(&str, i64)>) -> Candidates {
        let topology = self.topology();
        if topology.nodes.len() < 2 {
            return self.control_first();
        }
        let turn = self.routes.turn.replace(self.routes.turn.get().wrapping_add(1));
        let mut nodes = Vec::with_capacity(topology.nodes.len() + topology.contacts.len());
        if let Some((keyspace, token)) = partition {
            let replicas = self.replicas(&topology, keyspace);
            let replicas = replicas.of(token);
            nodes.extend(
                (0..replicas.len())
                    .map(|i| topology.nodes[replicas[(i + turn) % replicas.len()]].id),
            );
        }
        let preferred = nodes.len().max(1);
        let our_data_center = &topology.nodes[0].place.data_center;
        for near in [true, false] {
            let nearby = |at: usize| {
                let node = &topology.nodes[at % topology.nodes.len()];
                ((node.place.data_center == *our_data_center) == near && !nodes.contains(&node.id))
                    .then_some(node.id)
            };
            let more: Vec<_> = (turn..turn + topology.nodes.len()).filter_map(nearby).collect();
            nodes.extend(more);
        }
        add_contacts(&topology, &mut nodes);
        Candidates { nodes, preferred }
    }

    /// Whether a connection goes to our data centre; see [`Topology::is_near`].
    pub fn is_near(&self, backend: &Backend) -> bool {
        let topology = self.topology();
        !topology.spread || topology.is_near(self.front_end.addresses.id(backend.target()))
    }

    fn replicas(&self, topology: &Topology, keyspace: &str) -> Rc<Replicas> {
        let schema = self.schema();
        let mut known = self.routes.replicas.borrow_mut();
        let generations = (topology.generation, schema.generation);
        if known.generations != generations {
            *known = Known { generations, ..Known::default() };
        }
        if let Some(replicas) = known.by_keyspace.get(keyspace) {
            return replicas.clone();
        }
        let our_data_center = &topology.nodes[0].place.data_center;
        let replicas = schema
            .replication(keyspace)
            .map(|settings| topology.ring.replicas(settings, our_data_center));
        let replicas = Rc::new(replicas.unwrap_or_default());
        known.by_keyspace.insert(keyspace.into(), replicas.clone());
        replicas
    }
}

fn add_contacts(topology: &Topology, nodes: &mut Vec<NodeId>) {
    // Once nodes are known, contact points are among them, perhaps under other names; a node must
    // not be connected to twice.
    if nodes.is_empty() {
        nodes.extend(&topology.contacts);
    }
}

impl Request {
    /// Where to send it.
    pub(crate) fn candidates(&self) -> Candidates {
        let reactor_state = &self.client().reactor_state;
        let is_of_one_node = self.changes_schema() || self.reads_system_tables();
        if reactor_state.topology().nodes.len() < 2 || is_of_one_node {
            // Our view of the schema is read from that node, and so are the versions that drivers
            // compare.
            return reactor_state.control_first();
        }
        let mut found = None;
        self.with_partition(|keyspace, key| {
            found = Some(reactor_state.candidates(Some((keyspace, murmur3(key)))))
        });
        found.unwrap_or_else(|| reactor_state.candidates(None))
    }

    /// Those that are answered here.
    fn reads_system_tables(&self) -> bool {
        match &self.asked {
            Operation::Query(plan) | Operation::Execute(_, plan) => {
                matches!(**plan, Plan::SystemRead(_))
            }
            Operation::Batch(_) | Operation::Prepare => false,
        }
    }

    pub(super) fn changes_schema(&self) -> bool {
        let (Operation::Query(plan) | Operation::Execute(_, plan)) = &self.asked else {
            return false;
        };
        matches!(&**plan, Plan::Write(plan) if plan.kind == WriteKind::Schema)
    }

    /// Calls `found` with keyspace and key of a partition that the request touches, if it shows
    /// one.
    fn with_partition(&self, mut found: impl FnMut(&str, &[u8])) {
        let Ok((_, message)) = self.message() else { return };
        match (message, &self.asked) {
            (Message::Query(query), Operation::Query(plan)) => {
                self.of_plan(plan, &query.params.values, &mut found);
            }
            (Message::Execute(execute), Operation::Execute(prepared, plan)) => {
                let values = &execute.params.values;
                let answer = prepared.answer(self.header.version);
                let of_answer = answer.is_some_and(|answer| of_answer(answer, values, &mut found));
                if !of_answer {
                    self.of_plan(plan, values, &mut found);
                }
            }
            (Message::Batch(batch), Operation::Batch(plans)) => {
                for (statement, (_, plan)) in batch.statements().zip(plans) {
                    if self.of_plan(plan, &statement.values, &mut found) {
                        return;
                    }
                }
            }
            _ => {}
        }
    }

    fn of_plan(
        &self,
        plan: &Plan,
        values: &Values<'_>,
        found: &mut dyn FnMut(&str, &[u8]),
    ) -> bool {
        let named;
        let template = match plan {
            Plan::CachedRead(read) => read.key.partition(),
            Plan::CachedSlice(slice) => slice.read.key.partition(),
            Plan::Write(write) => match write.targets.first() {
                Some(Target::Row(key)) => key.partition(),
                Some(Target::Partition(partition) | Target::NewRow(partition)) => partition,
                Some(Target::Bound(keys)) => {
                    named = keys.resolve(&bound(values));
                    match &named {
                        NamedKeys::Rows(rows) if !rows.is_empty() => rows[0].partition(),
                        NamedKeys::Partitions(partitions) if !partitions.is_empty() => {
                            &partitions[0]
                        }
                        _ => return false,
                    }
                }
                _ => return false,
            },
            _ => return false,
        };
        let schema = self.client().reactor_state.schema();
        let Some(keyspace) = schema.keyspace_of(template.table()) else { return false };
        let mut key = Vec::new();
        let is_bound = template.partition_key(bound(values), &mut key).is_ok();
        if is_bound {
            found(keyspace, &key);
        }
        is_bound
    }
}

/// The server has said which bound values are the key.
fn of_answer(answer: &Answer, values: &Values<'_>, found: &mut dyn FnMut(&str, &[u8])) -> bool {
    let Some((keyspace, indexes)) = &answer.partition else { return false };
    if values.are_named() {
        return false;
    }
    let components: Option<Vec<&[u8]>> = indexes
        .iter()
        .map(|index| values.get((*index).into()).and_then(|value| value.bytes()))
        .collect();
    let mut key = Vec::new();
    let bound = components
        .is_some_and(|components| partition_key(components.into_iter(), &mut key).is_ok());
    if bound {
        found(keyspace, &key);
    }
    bound
}
