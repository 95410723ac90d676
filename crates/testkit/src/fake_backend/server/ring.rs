//! A node's place among the nodes of its database: what the system tables say of it.

use std::net::SocketAddr;

use afterglow_cql::{response::CqlType, token::murmur3};

use super::{FakeBackend, lock::lock};
use crate::fake_backend::identity::{Identity, SeenType};

impl FakeBackend {
    /// Its token.
    pub fn token(&self) -> i64 {
        self.shared.identity(&lock(&self.shared.database.store)).token
    }

    /// Gives it another token.
    pub fn set_token(&self, token: i64) {
        self.change(|node| node.token = token);
    }

    /// Puts it into another data centre.
    pub fn set_data_center(&self, name: &str) {
        self.change(|node| name.clone_into(&mut node.data_center));
    }

    /// Keeps showing the present version of the schema, whatever changes; or shows the true one
    /// again.
    pub fn keep_schema_version(&self, keeps: bool) {
        let version = lock(&self.shared.database.store).schema_version;
        self.change(|node| node.shows_schema = keeps.then_some(version));
    }

    /// Shows a schema without the table `keyspace.name`, as if it had not heard of it yet, until it
    /// lacks another one or none. Requests to the table are answered.
    pub fn lack_table(&self, table: Option<&str>) {
        let pair = |table: &str| {
            let (keyspace, name) = table.split_once('.').expect("a keyspace and a name");
            (keyspace.to_owned(), name.to_owned())
        };
        self.change(|node| node.lacks = table.map(pair));
    }

    /// Takes a column of the table `keyspace.name` for one of this type (its name, and itself), as
    /// if it had not heard of a change or were the first to; until it takes another for such, or
    /// none. Whoever executes has to prepare again.
    pub fn see_type(&self, table: &str, column: &str, seen: Option<(&str, CqlType)>) {
        let (keyspace, table) = table.split_once('.').expect("a keyspace and a name");
        let seen = seen.map(|(type_name, cql)| SeenType {
            keyspace: keyspace.to_owned(),
            table: table.to_owned(),
            column: column.to_owned(),
            type_name: type_name.to_owned(),
            cql,
        });
        self.change(|node| node.sees = seen);
        let address = self.address();
        lock(&self.shared.database.prepared).retain(|(node, _), _| *node != address);
    }

    /// Leaves the ring. It serves on, but no other node names it.
    pub fn leave(&self) {
        let address = self.address();
        lock(&self.shared.database.store).nodes.retain(|node| node.address != address);
    }

    /// Stands for another node from now on, as if that had come back at this one's address.
    pub fn stand_for(&self, gone: &FakeBackend) {
        self.leave();
        let address = self.address();
        gone.change(|node| node.address = address);
    }

    /// The address of the node that has the token of a partition key.
    ///
    /// # Panics
    /// All nodes have left.
    pub fn owner(&self, key: &[u8]) -> SocketAddr {
        let (token, store) = (murmur3(key), lock(&self.shared.database.store));
        let first = store.nodes.iter().min_by_key(|node| node.token);
        let owners = store.nodes.iter().filter(|node| node.token >= token);
        owners.min_by_key(|node| node.token).or(first).expect("a database has nodes").address
    }

    fn change(&self, change: impl FnOnce(&mut Identity)) {
        let address = self.address();
        let nodes = &mut lock(&self.shared.database.store).nodes;
        if let Some(node) = nodes.iter_mut().find(|node| node.address == address) {
            change(node);
        }
    }
}
