//! Single rows that are served from the unit of their partition.

use afterglow_cql::frame::{Flags, Version};
use afterglow_cql::message::{Consistency, QueryParams};

use crate::node::House;
use crate::slices::{five, put, values};

#[test]
fn a_row_within_the_unit_of_its_partition_is_a_hit_and_so_is_its_absence() {
    for policy in ["ks.*=exclusive", "ks.*=max-staleness=60s"] {
        let house = House::new(policy);
        for &version in Version::ALL {
            let mut client = house.node.client(version);
            five(&mut client);
            // The metadata of a text's answer is asked for once.
            client.wide("other", 1);
            values(&mut client, "");
            let hits = house.node.hits();
            for c in 0..8 {
                let expected = (1..6).contains(&c).then(|| c.to_string());
                assert_eq!(house.reads(|| client.wide("a", c)), (0, expected), "{c}");
            }
            assert_eq!(house.node.hits() - hits, 8, "{version:?}");
            // The unit is gone.
            put(&mut client, 3, "new");
            assert_eq!(client.wide("a", 4).as_deref(), Some("4"));
            assert_eq!(client.wide("a", 3).as_deref(), Some("new"));
        }
    }
}

#[test]
fn a_row_of_a_unit_is_byte_for_byte_what_the_database_answers() {
    let house = House::new("ks.*=exclusive");
    for &version in Version::ALL {
        let mut client = house.node.client(version);
        five(&mut client);
        client.wide("other", 1);
        values(&mut client, "");
        for (columns, c) in [("*", 3), ("v", 3), ("c, k, v, v", 5), ("*", 9)] {
            let text = format!("SELECT {columns} FROM ks.wide WHERE k = 'a' AND c = {c}");
            for skip_metadata in [false, true] {
                let params =
                    QueryParams { skip_metadata, ..QueryParams::new(Consistency::LocalQuorum) };
                let mut ask = |params| client.query_with(Flags::NONE, &text, params, &[]).body;
                // ALL is never served from the cache.
                let database = ask(QueryParams { consistency: Consistency::All, ..params });
                let (reads, cached) = house.reads(|| ask(params));
                assert_eq!((reads, &cached), (0, &database), "{text}, {version:?}");
            }
        }
    }
}

#[test]
fn a_row_beyond_the_unit_is_filled_and_leaves_the_unit() {
    let house = House::new("ks.*=exclusive");
    let mut client = house.node.client(Version::V5);
    (0..100).for_each(|c| put(&mut client, c, &c.to_string()));
    assert_eq!(values(&mut client, "LIMIT 10").len(), 10);
    assert_eq!(house.reads(|| client.wide("a", 15)).0, 0, "as many as 16 are read");
    assert_eq!(house.reads(|| client.wide("a", 16)).0, 1);
    assert_eq!(house.reads(|| client.wide("a", 16)).0, 0);
    assert_eq!(house.reads(|| values(&mut client, "LIMIT 10")).0, 0, "it is still there");
}
