//! `system_schema.keyspaces`, as drivers read it that see a ring: a row has one replica, its owner.
//!
//! Drivers that know of three replicas send a request to any of them, and two of three instances
//! forward it. The database's own answer is changed, and only on a connection on which a driver
//! learns the cluster: applications read what the database says.
//!
//! The one is written with zeros before it, a number of them that follows from the map's version
//! when the connection was made. The Java driver compares these texts. It takes new tokens of nodes
//! that stay into its routing only where it finds another replication.

use afterglow_cql::frame::Envelope;
use afterglow_cql::frame::notation::{Put, Value};
use afterglow_cql::plan::{PassReason, Plan};
use afterglow_cql::response::{ColumnSpec, Response, ResultBody};

use crate::frontend::cql::client::request::Request;
use crate::frontend::cql::cluster::answer::parsed;
use crate::frontend::cql::cluster::rows::text_map;
use crate::metrics::Path;

/// `map<text, text>`
const TEXT_MAP: &[u8] = &[0, 0x21, 0, 0x0d, 0, 0x0d];

/// Whether this request asks how many replicas there are, for a driver that is to see one.
pub fn asked(plan: &Plan, request: &Request) -> bool {
    matches!(plan, Plan::Read(PassReason::Keyspaces, _)) && {
        let client = request.client();
        let front_end = &client.reactor_state.front_end;
        client.learns_cluster() && !front_end.config.ring.show_replicas && front_end.ring.is_set()
    }
}

/// Answers with the database's rows, changed.
pub async fn answer(mut request: Request) {
    request.ask_for_columns();
    let answer = match request.call().await {
        Ok(answer) => answer,
        Err(error) => return request.fail(&error),
    };
    let client = request.client();
    let one = one(client.ring.version);
    let front_end = &client.reactor_state.front_end;
    let data_center = front_end.system.read().as_ref().and_then(|tables| tables.data_center());
    let changed = data_center.and_then(|data_center| with_one_replica(&answer, &data_center, &one));
    request.relay_plain(changed.as_ref().unwrap_or(&answer), Path::Pass);
}

/// A one that tells versions near each other apart.
fn one(version: u64) -> String {
    /// More than there are changes between two connections of a driver.
    const TOLD_APART: u64 = 32;
    format!("{:0>width$}", 1, width = 1 + (version % TOLD_APART) as usize)
}

/// The answer with one replica for each keyspace that has replicas, in that data centre. `None`
/// for an answer without replication.
fn with_one_replica(answer: &Envelope, data_center: &str, one: &str) -> Option<Envelope> {
    let Some(Response::Result(ResultBody::Rows(rows))) = parsed(answer) else { return None };
    rows.check().ok()?;
    let at = rows.metadata.columns.iter().position(|column| is_replication(&column))?;
    let mut body = answer.body[..answer.body.len() - rows.raw.len()].to_vec();
    for row in rows.iter() {
        for (column, cell) in row.ok()?.cells().enumerate() {
            match cell {
                Some(cell) if column == at => {
                    let changed = one_replica(cell, data_center, one);
                    body.put_value(Value::Bytes(changed.as_deref().unwrap_or(cell)));
                }
                cell => body.put_value(cell.map_or(Value::Null, Value::Bytes)),
            }
        }
    }
    Some(Envelope { header: answer.header, body: body.into() })
}

fn is_replication(column: &ColumnSpec<'_>) -> bool {
    column.name == "replication" && column.type_bytes == TEXT_MAP
}

/// The replication of a keyspace with one replica. `None` where each node has all rows or only its
/// own.
fn one_replica(replication: &[u8], data_center: &str, one: &str) -> Option<Vec<u8>> {
    let class = text_map(replication).remove("class")?;
    let place = match class.rsplit('.').next() {
        Some("SimpleStrategy") => "replication_factor",
        Some("NetworkTopologyStrategy") => data_center,
        _ => return None,
    };
    let mut pairs = [("class", class.as_str()), (place, one)];
    pairs.sort_unstable();
    let mut out = Vec::new();
    out.put_int_len(pairs.len());
    for text in pairs.iter().flat_map(|(key, value)| [key, value]) {
        out.put_value(Value::Bytes(text.as_bytes()));
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&str, &str)]) -> Vec<u8> {
        let mut out = (pairs.len() as i32).to_be_bytes().to_vec();
        for text in pairs.iter().flat_map(|(key, value)| [key, value]) {
            out.put_value(Value::Bytes(text.as_bytes()));
        }
        out
    }

    #[test]
    fn versions_near_each_other_are_told_apart_and_all_mean_one() {
        let ones: Vec<_> = (1_000..1_032).map(one).collect();
        assert!(ones.iter().all(|one| one.parse() == Ok(1)));
        assert_eq!(ones.iter().collect::<std::collections::HashSet<_>>().len(), 32);
        assert_eq!(one(0), "1");
    }

    #[test]
    fn a_keyspace_has_one_replica_in_our_data_centre_and_a_local_one_stays() {
        let prefix = "org.apache.cassandra.locator.";
        let shown = |class: &str, options: &[(&str, &str)]| {
            let class = format!("{prefix}{class}");
            let all = [&[("class", class.as_str())], options].concat();
            one_replica(&map(&all), "DC 1", "1").map(|changed| {
                let mut changed = text_map(&changed);
                assert_eq!(changed.remove("class"), Some(class));
                changed.into_iter().collect::<Vec<_>>()
            })
        };
        let pair = |key: &str| Some(vec![(key.to_owned(), "1".to_owned())]);
        assert_eq!(
            shown("SimpleStrategy", &[("replication_factor", "3")]),
            pair("replication_factor")
        );
        let two = [("DC 1", "3/1"), ("b", "2")];
        assert_eq!(shown("NetworkTopologyStrategy", &two), pair("DC 1"));
        assert_eq!(shown("NetworkTopologyStrategy", &[("b", "2")]), pair("DC 1"));
        assert_eq!(shown("LocalStrategy", &[]), None);
        assert_eq!(shown("EverywhereStrategy", &[]), None);
        assert_eq!(one_replica(&map(&[]), "a", "1"), None);
        assert_eq!(one_replica(b"damaged", "a", "1"), None);
        let sorted = one_replica(&map(&[("class", "NetworkTopologyStrategy")]), "a", "1");
        assert_eq!(sorted, Some(map(&[("a", "1"), ("class", "NetworkTopologyStrategy")])));
    }
}
