//! `table-write-level`: the level that the database is asked for.

use afterglow::config::WriteLevels;
use afterglow_cql::frame::{Opcode, Version};
use afterglow_cql::message::{Consistency, QueryParams};
use afterglow_testkit::fake_backend::Ask;

use super::asked_levels::AskedLevels;
use super::node::Client;

const SCHEMA: [&str; 5] = [
    "CREATE KEYSPACE three WITH replication = {'class': 'SimpleStrategy', 'replication_factor': 3}",
    "CREATE TABLE three.t (k text PRIMARY KEY, v text)",
    "CREATE TABLE three.other (k text PRIMARY KEY, v text)",
    "CREATE KEYSPACE far WITH replication = {'class': 'NetworkTopologyStrategy', 'datacenter1': 3, \
     'elsewhere': 3}",
    "CREATE TABLE far.t (k text PRIMARY KEY, v text)",
];

fn house_of(rules: &[&str]) -> AskedLevels {
    let writes = |ask: &Ask| match ask.opcode() {
        Opcode::Query => ask.text.starts_with("INSERT"),
        opcode => matches!(opcode, Opcode::Execute | Opcode::Batch),
    };
    let rules = rules.iter().map(|rule| rule.parse().unwrap()).collect();
    AskedLevels::new(&SCHEMA, "*.*=exclusive", writes, |setup| {
        setup.write_levels = WriteLevels { rules };
    })
}

fn batch(client: &mut Client, tables: &[&str], level: Consistency) {
    let texts: Vec<_> = tables
        .iter()
        .map(|table| format!("INSERT INTO {table} (k, v) VALUES ('a', 'b')"))
        .collect();
    assert_eq!(client.batch(&texts, level).header.opcode, Opcode::Result);
}

#[test]
fn only_weak_writes_of_matching_tables_are_raised() {
    use Consistency::{All, LocalOne, LocalQuorum, One, Quorum};
    let house = house_of(&["three.t=LOCAL_QUORUM", "far.*=LOCAL_QUORUM", "ks.*=ALL"]);
    for version in [Version::V3, Version::V4, Version::V5] {
        let mut client = house.node.client(version);
        for (table, level, expected) in [
            ("three.t", One, LocalQuorum),
            ("three.t", LocalOne, LocalQuorum),
            ("three.t", LocalQuorum, LocalQuorum),
            ("three.t", Quorum, Quorum),
            ("three.t", All, All),
            ("three.other", One, One),
            // It asks more replicas than LOCAL_QUORUM, of which one may be here.
            ("far.t", Quorum, Quorum),
            ("far.t", One, LocalQuorum),
            // One replica: no read misses such a write.
            ("ks.t", One, One),
        ] {
            let text = format!("INSERT INTO {table} (k, v) VALUES ('a', 'b')");
            let asked = house.asked_by(&mut client, &text, level);
            assert_eq!(asked, [expected], "{table} at {level:?}, {version:?}");
        }
        let both = ["three.other", "three.t"];
        assert_eq!(house.asked(|| batch(&mut client, &both, One)), [LocalQuorum], "{version:?}");
        let other = ["three.other"];
        assert_eq!(house.asked(|| batch(&mut client, &other, One)), [One], "{version:?}");
        let prepared = client.prepare("INSERT INTO three.t (k, v) VALUES ('a', 'b')");
        let execute = || drop(client.raw().execute(&prepared, &QueryParams::new(One)).unwrap());
        assert_eq!(house.asked(execute), [LocalQuorum], "{version:?}");
    }
    assert_eq!(house.node.count(&["afterglow_raised_writes_total"]), 3 * 5);
    assert_eq!(house.node.count(&["afterglow_weak_writes_total"]), 3 * 3);
}
