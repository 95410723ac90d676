//! The keyspace `afterglow`, which holds the lease's row and the maps of rings: it is made where it
//! is missing, and looked at for too few replicas.
//!
//! Whoever comes first makes it, with replicas in its own data centre alone and for the nodes that
//! are there. Other data centres get a ring, and clusters grow. Afterglow does not change the
//! keyspace then: new replicas need a repair, which is the operator's to run. It says what to do.

use std::collections::BTreeMap;

use afterglow_cql::message::Consistency;
use afterglow_cql::plan::SchemaView;
use afterglow_rowcache::lease::create_keyspace;

use super::super::{Backend, CqlShared, FetchedRow};
use super::own_query::{NoResult, execute, query};

/// Its name.
const NAME: &str = "afterglow";
/// Its replicas in a data centre, where there are as many nodes.
const REPLICAS: usize = 3;
/// How `SimpleStrategy` calls its number of replicas.
const FACTOR: &str = "replication_factor";

/// A data centre in which the keyspace has fewer replicas than it should.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Lack {
    data_center: String,
    /// Replicas there.
    replicas: usize,
    /// Nodes there.
    nodes: usize,
    /// Replicas in all data centres.
    in_all: usize,
    /// The statement that mends it.
    mend: String,
}

impl Lack {
    /// The keyspace has no replica there. Transactions at LOCAL_SERIAL fail.
    pub(super) fn is_total(&self) -> bool {
        self.replicas == 0
    }

    /// A transaction at SERIAL needs a majority of replicas in all data centres, and these are too
    /// few.
    pub(super) fn is_everywhere(&self) -> bool {
        self.in_all < REPLICAS
    }

    /// What it is, what that leads to, and what mends it.
    pub(super) fn text(&self, leads_to: &str) -> String {
        let Lack { data_center, replicas, nodes, mend, .. } = self;
        let repair = format!("`nodetool repair --full {NAME}` on each node of {data_center}");
        if self.is_total() {
            return format!(
                "the keyspace `{NAME}` has no replicas in data centre {data_center}, so {leads_to}: run {mend}, then {repair}"
            );
        }
        format!(
            "the keyspace `{NAME}` has replicas on {replicas} of {nodes} nodes of data centre {data_center}: without a majority of them {leads_to}. Run {mend}, then {repair}; start no instance before that has ended"
        )
    }
}

/// What the keyspace lacks in a data centre, as far as the schema and the nodes are known.
pub(super) fn lack(front_end: &CqlShared, data_center: &str) -> Option<Lack> {
    let schema = front_end.schema.current();
    lack_of(schema.replication(NAME)?, data_center, front_end.nodes_in(data_center))
}

/// Makes the keyspace, in the node's data centre, and these tables where the schema lacks one of
/// them. Where it has them all, the database is not asked.
///
/// # Errors
/// Why the database has not made them.
pub(super) async fn make(
    front_end: &CqlShared,
    backend: &Backend,
    tables: &[(&str, &str)],
) -> Result<(), NoResult> {
    let schema = front_end.schema.current();
    if tables.iter().all(|(name, _)| schema.table(NAME, name).is_some()) {
        return Ok(());
    }
    let local = query(backend, "SELECT data_center FROM system.local", Consistency::One).await?;
    let here = local.rows().next().and_then(|row| row.text("data_center"));
    let here = here.ok_or("system.local does not name the node's data centre")?;
    let peers = query(backend, "SELECT data_center FROM system.peers", Consistency::One).await?;
    let near = |row: &FetchedRow<'_>| row.text("data_center").as_ref() == Some(&here);
    let nodes = peers.rows().filter(near).count() + 1;
    let keyspace = create_keyspace(&here, REPLICAS.min(nodes));
    execute(backend, &keyspace, Consistency::One).await?;
    for (_, table) in tables {
        execute(backend, table, Consistency::One).await?;
    }
    Ok(())
}

/// `None` too where the number of replicas cannot be told.
fn lack_of(
    replication: &BTreeMap<String, String>,
    data_center: &str,
    nodes: usize,
) -> Option<Lack> {
    let replicas = replicas_in(replication, data_center)?;
    if replicas > 0 && replicas >= REPLICAS.min(nodes) {
        return None;
    }
    let more = if replicas == 0 { REPLICAS.min(nodes).max(1) } else { replicas + 1 };
    Some(Lack {
        data_center: data_center.to_owned(),
        replicas,
        nodes,
        in_all: in_all(replication),
        mend: with_replicas(replication, data_center, more),
    })
}

/// How many replicas a keyspace of this replication has in a data centre. `SimpleStrategy` does not
/// look at data centres. `None` where it cannot be told.
fn replicas_in(replication: &BTreeMap<String, String>, data_center: &str) -> Option<usize> {
    let class = replication.get("class")?;
    if class.ends_with("SimpleStrategy") {
        return replication.get(FACTOR)?.parse().ok();
    }
    let by_center = class.ends_with("NetworkTopologyStrategy");
    by_center.then(|| replication.get(data_center).map_or(Some(0), |n| n.parse().ok()))?
}

/// How many replicas it has in all data centres.
fn in_all(replication: &BTreeMap<String, String>) -> usize {
    let numbers = replication.iter().filter(|(name, _)| *name != "class");
    numbers.filter_map(|(_, replicas)| replicas.parse::<usize>().ok()).sum()
}

/// The statement that gives the keyspace so many replicas in that data centre.
fn with_replicas(
    replication: &BTreeMap<String, String>,
    data_center: &str,
    replicas: usize,
) -> String {
    let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
    let mut centers: Vec<_> = replication
        .iter()
        .filter(|(name, _)| !["class", FACTOR, data_center].contains(&name.as_str()))
        .map(|(name, replicas)| format!("{}: {replicas}", quoted(name)))
        .collect();
    centers.push(format!("{}: {replicas}", quoted(data_center)));
    centers.sort();
    format!(
        "ALTER KEYSPACE {NAME} WITH replication = {{'class': 'NetworkTopologyStrategy', {}}}",
        centers.join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings of a keyspace.
    fn of(settings: &[(&str, &str)]) -> BTreeMap<String, String> {
        settings.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn fewer_replicas_than_there_are_nodes_for_are_found() {
        let class = ("class", "org.apache.cassandra.locator.NetworkTopologyStrategy");
        let here = |replicas| of(&[class, ("here", replicas)]);
        let few = |replication: &BTreeMap<String, String>, nodes| {
            lack_of(replication, "here", nodes).map(|lack| lack.replicas)
        };
        assert_eq!(few(&here("1"), 1), None);
        assert_eq!(few(&here("1"), 2), Some(1));
        assert_eq!(few(&here("2"), 2), None);
        assert_eq!(few(&here("2"), 9), Some(2));
        assert_eq!(few(&here("3"), 9), None);
        assert_eq!(few(&here("3/1"), 9), None);
        assert_eq!(few(&here("1"), 0), None, "nodes are not known yet");
        let simple = of(&[("class", "SimpleStrategy"), (FACTOR, "1")]);
        let lack = lack_of(&simple, "here", 3).unwrap();
        assert_eq!(
            lack.text("the lease ends"),
            "the keyspace `afterglow` has replicas on 1 of 3 nodes of data centre here: without a \
             majority of them the lease ends. Run ALTER KEYSPACE afterglow WITH replication = \
             {'class': 'NetworkTopologyStrategy', 'here': 2}, then `nodetool repair --full \
             afterglow` on each node of here; start no instance before that has ended"
        );
        let also_there = of(&[class, ("here", "1"), ("there", "2")]);
        let lacks = [&simple, &also_there].map(|known| lack_of(known, "here", 3).unwrap());
        assert_eq!(lacks.each_ref().map(Lack::is_everywhere), [true, false]);
        assert!(lacks.iter().all(|lack| !lack.is_total()));
    }

    #[test]
    fn a_data_center_without_replicas_is_found_and_the_statement_gives_it_some() {
        let class = ("class", "org.apache.cassandra.locator.NetworkTopologyStrategy");
        let known = of(&[class, ("here", "3"), ("gone", "0")]);
        let lack_in = |data_center| lack_of(&known, data_center, 5);
        assert_eq!(lack_in("here"), None);
        assert!(["there", "gone"].iter().all(|center| lack_in(center).unwrap().is_total()));
        assert_eq!(lack_of(&of(&[("class", "SimpleStrategy")]), "there", 1), None);
        let text = lack_of(&of(&[class, ("here", "3")]), "it's there", 2).unwrap().text("none");
        let mend = "ALTER KEYSPACE afterglow WITH replication = {'class': \
                    'NetworkTopologyStrategy', 'here': 3, 'it''s there': 2}";
        assert!(text.contains(mend), "{text}");
    }
}
