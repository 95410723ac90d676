//! News of the database, and who is told of changes.

use afterglow_cql::frame::Version;
use afterglow_cql::response::SchemaChange;
use afterglow_cql::schema::Schema;

use crate::frontend::cql::cluster::schema_store::{SchemaStore, SeenVersion};

/// What is known of the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cluster {
    /// It has not been reached yet.
    Unknown,
    /// It has been reached.
    Known {
        /// The highest protocol version that it and we speak.
        version: Version,
        /// It wants to know who a client is.
        authentication: bool,
        /// And who we are, of which we can say nothing: its schema is not known, and nothing is
        /// cached.
        guarded: bool,
    },
}

impl Cluster {
    /// Whether its schema cannot be read, because it asks Afterglow itself for a login.
    pub fn is_guarded(self) -> bool {
        matches!(self, Cluster::Known { guarded: true, .. })
    }

    /// Whether it wants to know who a client is.
    pub fn asks_who(self) -> bool {
        matches!(self, Cluster::Known { authentication: true, .. })
    }
}

/// What the control connection is up to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ControlState {
    /// There is a connection again, to a node of this data centre. Its nodes are about to be known,
    /// and what is asked from then on goes there.
    Found {
        /// The node's data centre.
        data_center: Option<String>,
    },
    /// Events come in; the schema is about to be published.
    Connected {
        /// The cluster's name.
        cluster: String,
        /// `release_version` of the node.
        release: String,
        /// The node's data centre.
        data_center: Option<String>,
    },
    /// Every change of the schema up to this version has been told.
    Current {
        /// The version of the node.
        seen: SeenVersion,
    },
    /// The database requires authentication. From now on clients talk to it on connections of their
    /// own, and the router is not asked about their requests, writes included. Called before the
    /// first of them.
    Guarded,
    /// Lost, or never there.
    Lost,
}

/// Hears what the control connection learns.
pub trait ClusterListener: Send + Sync + 'static {
    /// The database says that its schema has changed. Called before any client is told and before
    /// plans are made for the new schema. `schema` does not know it yet. It may also be called for
    /// changes that came through us.
    fn schema_changed(&self, change: &SchemaChange<'_>, schema: &SchemaStore);

    /// The schema has been read anew, and `now` is about to be the newest snapshot after `before`.
    fn schema_read(&self, before: &Schema, now: &Schema);

    /// There is a control connection again, and this is what it has read. Changes that came before
    /// were not told, perhaps. `seen`: the version of the node before that.
    fn schema_found(&self, found: &Schema, seen: SeenVersion);

    /// Whether changes of the schema are heard of. When they are no longer, everything cached is in
    /// doubt.
    fn control(&self, state: ControlState);

    /// See [`Router::stays_in_data_center`](crate::frontend::cql::Router::stays_in_data_center).
    fn stays_in_data_center(&self) -> bool;
}
