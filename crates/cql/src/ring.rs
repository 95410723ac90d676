//! The ring of a cluster: which nodes hold the rows of a token.
//!
//! Source: `NetworkTopologyStrategy` and `SimpleStrategy` of Cassandra, which walk the ring from
//! the token on. If racks are fewer than replicas a rack gets several, in the order of the walk.

use std::collections::{BTreeMap, BTreeSet};

/// Where a node is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Data centre.
    pub data_center: String,
    /// Rack.
    pub rack: String,
    /// Where the ranges begin that end at this node; see [`Ring::new`].
    pub tokens: Vec<i64>,
}

/// Nodes by their tokens. A node is its index in what the ring was made from.
#[derive(Debug, Clone, Default)]
pub struct Ring {
    tokens: Vec<(i64, usize)>,
    places: Vec<Place>,
}

/// Replicas of every range of a ring, for one replication setting and one data centre.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Replicas {
    /// Last tokens of the ranges, ascending.
    ends: Vec<i64>,
    nodes: Vec<Box<[usize]>>,
}

impl Ring {
    /// The ring of these nodes. A token belongs to the first node at or after it, round the ring.
    pub fn new(places: Vec<Place>) -> Self {
        let of = |(node, place): (usize, &Place)| {
            place.tokens.iter().map(move |token| (*token, node)).collect::<Vec<_>>()
        };
        let mut tokens: Vec<_> = places.iter().enumerate().flat_map(of).collect();
        tokens.sort_unstable();
        Self { tokens, places }
    }

    /// The replicas in `data_center` of every range, by a keyspace's `replication` as
    /// `system_schema.keyspaces` has it. A strategy that is not known has none: any node will do.
    pub fn replicas(&self, replication: &BTreeMap<String, String>, data_center: &str) -> Replicas {
        let class =
            replication.get("class").map_or("", |class| class.rsplit('.').next().unwrap_or(class));
        let count = |key: &str| replication.get(key).map_or(0, |text| factor(text));
        let nodes = |start: usize| match class {
            "NetworkTopologyStrategy" => self.by_rack(start, count(data_center), data_center),
            "SimpleStrategy" => {
                let mut nodes = self.in_order(start, count("replication_factor"));
                // Those nearby first; the sort is stable.
                nodes.sort_by_key(|node| self.places[*node].data_center != data_center);
                nodes
            }
            _ => Vec::new(),
        };
        Replicas {
            ends: self.tokens.iter().map(|(token, _)| *token).collect(),
            nodes: (0..self.tokens.len()).map(|start| nodes(start).into()).collect(),
        }
    }

    fn walk(&self, start: usize) -> impl Iterator<Item = usize> + '_ {
        self.tokens[start..].iter().chain(&self.tokens[..start]).map(|(_, node)| *node)
    }

    fn in_order(&self, start: usize, count: usize) -> Vec<usize> {
        let mut nodes = Vec::new();
        for node in self.walk(start) {
            if nodes.len() >= count {
                break;
            }
            if !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        nodes
    }

    fn by_rack(&self, start: usize, count: usize, data_center: &str) -> Vec<usize> {
        let here = |node: &usize| self.places[*node].data_center == data_center;
        let rack = |node: usize| self.places[node].rack.as_str();
        let racks: BTreeSet<&str> = (0..self.places.len()).filter(here).map(rack).collect();
        // So many replicas may share a rack with another one.
        let mut repeats = count.saturating_sub(racks.len());
        let (mut nodes, mut seen, mut skipped) = (Vec::new(), BTreeSet::new(), Vec::new());
        for node in self.walk(start).filter(here) {
            if nodes.len() >= count {
                break;
            }
            if nodes.contains(&node) || skipped.contains(&node) {
                continue;
            }
            if seen.insert(rack(node)) {
                nodes.push(node);
            } else if repeats > 0 {
                repeats -= 1;
                nodes.push(node);
            } else {
                skipped.push(node);
            }
        }
        nodes
    }
}

/// `3`, or `3/1` where one of the three is transient.
fn factor(text: &str) -> usize {
    text.split('/').next().and_then(|number| number.parse().ok()).unwrap_or(0)
}

impl Replicas {
    /// The nodes that hold the rows of `token`; empty when nothing is known.
    pub fn of(&self, token: i64) -> &[usize] {
        let at = self.ends.partition_point(|end| *end < token);
        self.nodes.get(at).or(self.nodes.first()).map_or(&[], |nodes| nodes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(nodes: &[(&str, &str, &[i64])]) -> Ring {
        let place = |(data_center, rack, tokens): &(&str, &str, &[i64])| Place {
            data_center: (*data_center).into(),
            rack: (*rack).into(),
            tokens: tokens.to_vec(),
        };
        Ring::new(nodes.iter().map(place).collect())
    }

    fn replication(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect()
    }

    #[test]
    fn a_token_belongs_to_the_first_node_at_or_after_it_round_the_ring() {
        let ring = ring(&[("dc", "r", &[0]), ("dc", "r", &[100]), ("dc", "r", &[-100])]);
        let simple = |factor| {
            replication(&[
                ("class", "org.apache.cassandra.locator.SimpleStrategy"),
                ("replication_factor", factor),
            ])
        };
        let one = ring.replicas(&simple("1"), "dc");
        let owners =
            [-101, -100, -99, 0, 1, 100, 101, i64::MIN, i64::MAX].map(|token| one.of(token)[0]);
        assert_eq!(owners, [2, 2, 0, 0, 1, 1, 2, 2, 2]);
        let two = ring.replicas(&simple("2"), "dc");
        assert_eq!([two.of(1), two.of(101), two.of(-50)], [&[1, 2][..], &[2, 0], &[0, 1]]);
        assert_eq!(ring.replicas(&simple("9"), "dc").of(1), [1, 2, 0], "no more than there are");
    }

    #[test]
    fn racks_get_one_replica_each_before_any_gets_two() {
        // Round the ring: a1 a1 a2 a1, and one of another data centre in between.
        let ring = ring(&[
            ("a", "1", &[0]),
            ("a", "1", &[10]),
            ("b", "1", &[15]),
            ("a", "2", &[20]),
            ("a", "1", &[30]),
        ]);
        let of = |factor, token| {
            let settings =
                replication(&[("class", "NetworkTopologyStrategy"), ("a", factor), ("b", "1")]);
            ring.replicas(&settings, "a").of(token).to_vec()
        };
        assert_eq!(of("2", 0), [0, 3]);
        assert_eq!(of("3", 0), [0, 1, 3]);
        assert_eq!(of("3/1", 11), [3, 4, 0]);
        assert_eq!(of("0", 11), [0; 0]);
    }

    #[test]
    fn of_an_unknown_strategy_nothing_is_said() {
        let ring = ring(&[("dc", "r", &[0])]);
        assert!(
            ring.replicas(&replication(&[("class", "EverywhereStrategy")]), "dc").of(1).is_empty()
        );
        assert!(Ring::default().replicas(&replication(&[]), "dc").of(1).is_empty());
    }
}
