//! The router: the interface between the front end and the cache. It decides how a request is
//! answered.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use afterglow_cql::plan::Plan;
use afterglow_cql::response::SchemaChange;
use afterglow_cql::schema::Schema;

use crate::frontend::cql::client::request::{Operation, Request};
use crate::frontend::cql::cluster::events::{ClusterListener, ControlState};
use crate::frontend::cql::cluster::schema_store::{SchemaStore, SeenVersion};
use crate::metrics::Path;

/// What is left to do for a request, to be run as a task of its own.
pub type Later = Pin<Box<dyn Future<Output = ()>>>;

/// Decides how QUERY, EXECUTE and BATCH are answered. Every request has been parsed, names only
/// prepared statements that are known, and is no query of the tables that describe the cluster.
///
/// Not asked while the database requires a login that Afterglow itself does not have: then every
/// request is passed on.
pub trait Router: Send + Sync + 'static {
    /// Answers at once, or passes the request on, and gives `None`; or gives what is left to do.
    /// Runs on the reactor of the client; must not block.
    fn route(&self, request: Request) -> Option<Later>;

    /// Whether requests may go past this while the database requires a login that Afterglow itself
    /// does not have. Otherwise they are refused: other instances would not hear of writes.
    fn may_be_bypassed(&self) -> bool {
        true
    }

    /// Whether the cache is what it is going to be. Clients that connect at the start of the
    /// process wait for this, a moment at most.
    fn is_ready(&self) -> bool {
        true
    }

    /// The database says that its schema has changed. Called before any client is told and before
    /// plans are made for the new schema. `schema` does not know it yet. It may also be called for
    /// changes that came through us.
    fn schema_changed(&self, change: &SchemaChange<'_>, schema: &SchemaStore) {
        let _ = (change, schema);
    }

    /// The schema has been read anew, and `now` is about to be the newest snapshot after `before`.
    fn schema_read(&self, before: &Schema, now: &Schema) {
        let _ = (before, now);
    }

    /// There is a control connection again, and this is what it has read. Changes that came before
    /// were not told, perhaps. `seen`: the version of the node before that.
    fn schema_found(&self, found: &Schema, seen: SeenVersion) {
        let _ = (found, seen);
    }

    /// Whether changes of the schema are heard of. When they are no longer, everything cached is in
    /// doubt.
    fn control(&self, state: ControlState) {
        let _ = state;
    }

    /// Whether the control connection goes only to nodes of the data centre in which the first one
    /// was. Otherwise it goes to another one where no node of that is left: instances that share a
    /// cache would read in different ones.
    fn stays_in_data_center(&self) -> bool {
        false
    }
}

impl ClusterListener for Arc<dyn Router> {
    fn schema_changed(&self, change: &SchemaChange<'_>, schema: &SchemaStore) {
        Router::schema_changed(&**self, change, schema);
    }

    fn schema_read(&self, before: &Schema, now: &Schema) {
        Router::schema_read(&**self, before, now);
    }

    fn schema_found(&self, found: &Schema, seen: SeenVersion) {
        Router::schema_found(&**self, found, seen);
    }

    fn control(&self, state: ControlState) {
        Router::control(&**self, state);
    }

    fn stays_in_data_center(&self) -> bool {
        Router::stays_in_data_center(&**self)
    }
}

/// Passes everything through.
#[derive(Debug, Clone, Copy, Default)]
pub struct PassThrough;

impl Router for PassThrough {
    fn route(&self, request: Request) -> Option<Later> {
        let path = pass_path(&request.asked);
        request.pass(path);
        None
    }
}

/// What a request counts as when the cache has no part in it.
pub fn pass_path(asked: &Operation) -> Path {
    let writes = |plan: &Plan| matches!(plan, Plan::Write(_));
    match asked {
        Operation::Query(plan) | Operation::Execute(_, plan) if writes(plan) => Path::Write,
        Operation::Batch(_) => Path::Write,
        _ => Path::Pass,
    }
}
