//! The database of a test, which does what the test says.

use std::sync::Arc;

use afterglow_cql::frame::{Opcode, Version};
use afterglow_testkit::fake_backend::{Ask, FakeBackend};

/// One that speaks up to `highest`, is shown to `script` and answers what that does not.
pub fn scripted(
    highest: Version,
    script: impl Fn(&Arc<Ask>) -> bool + Send + Sync + 'static,
) -> FakeBackend {
    FakeBackend::scripted(highest, script).unwrap()
}

/// Echoes the text of queries of tables of users.
pub fn echo(ask: &Arc<Ask>) -> bool {
    let echoes = ask.opcode() == Opcode::Query && ask.text.contains("FROM ks.");
    if echoes {
        ask.text_row(&ask.text);
    }
    echoes
}

/// Prepares anything; the text is the id.
pub fn prepares(ask: &Ask, markers: &[&str]) -> bool {
    let prepares = ask.opcode() == Opcode::Prepare;
    if prepares {
        ask.prepared(ask.text.as_bytes(), markers, &["v"]);
    }
    prepares
}

/// The statement that makes a keyspace.
pub fn a_keyspace(name: &str) -> String {
    format!(
        "CREATE KEYSPACE {name} WITH replication = {{'class': 'SimpleStrategy', 'replication_factor': 1}}"
    )
}
