//! An Afterglow before a database that notes at which levels it is asked.

use std::sync::{Arc, Mutex};

use afterglow_cql::frame::{Flags, Opcode, Version};
use afterglow_cql::message::{Consistency, Query, QueryParams};
use afterglow_testkit::fake_backend::{Ask, FakeBackend};
use tempfile::TempDir;

use crate::node::{Client, Node, Setup, direct, furnished};

/// Both of them.
pub struct AskedLevels {
    pub node: Node,
    asked: Arc<Mutex<Vec<Consistency>>>,
    _database: FakeBackend,
    _directory: TempDir,
}

impl AskedLevels {
    /// `is_noted`: whether the level of a request is. The `schema` is made before Afterglow starts.
    pub fn new(
        schema: &[&str],
        policy: &'static str,
        is_noted: impl Fn(&Ask) -> bool + Send + Sync + 'static,
        change: impl FnOnce(&mut Setup),
    ) -> AskedLevels {
        let asked = Arc::<Mutex<Vec<Consistency>>>::default();
        let seen = asked.clone();
        let script = move |ask: &Arc<Ask>| {
            if is_noted(ask) {
                seen.lock().unwrap().extend(ask.consistency());
            }
            false
        };
        let database = furnished(FakeBackend::scripted(Version::MAX, script).unwrap());
        schema.iter().for_each(|text| direct(&database, text));
        let directory = TempDir::new().unwrap();
        let mut setup = Setup::new(directory.path(), &database, policy);
        change(&mut setup);
        AskedLevels { node: setup.start(), asked, _database: database, _directory: directory }
    }

    /// The levels that the database was asked for by this.
    pub fn asked(&self, act: impl FnOnce()) -> Vec<Consistency> {
        self.asked.lock().unwrap().clear();
        act();
        std::mem::take(&mut *self.asked.lock().unwrap())
    }

    /// Those of one statement at `level`.
    pub fn asked_by(
        &self,
        client: &mut Client,
        text: &str,
        level: Consistency,
    ) -> Vec<Consistency> {
        self.asked(|| run(client, text, level))
    }
}

/// Runs a statement at a level.
pub fn run(client: &mut Client, text: &str, level: Consistency) {
    let version = client.raw().version();
    let encode =
        |out: &mut Vec<u8>| Query { text, params: QueryParams::new(level) }.encode(version, out);
    let answer = client.raw().call(Flags::NONE, Opcode::Query, encode).unwrap();
    let said = String::from_utf8_lossy(&answer.body).into_owned();
    assert_eq!(answer.header.opcode, Opcode::Result, "{text} at {level:?}: {said}");
}
