//! The CQL front end: drivers talk to it as if it were the database.
//!
//! 1. A [session](client::session) reads a client's envelopes.
//! 2. [dispatch](client::dispatch) finds out what each asks for and gives it to the [`Router`].
//! 3. The [`Router`] answers from the cache or [passes it on](Request::pass), over a
//!    [pool](cluster::pool) of connections that all clients of a reactor share.
//! 4. The database's answer goes back unchanged, except for the stream number.
//!
//! The [control](cluster::control) connection keeps the schema up to date. With a ring of several
//! instances drivers see [each as a node](ring_view).

mod bound;
pub mod cached;
mod client;
mod cluster;
mod front_end;
mod hex;
mod keyed_turns;
mod reactor_state;
mod refusals;
mod ring_view;
mod router;
mod shared;
mod statements;
mod streams;

pub use self::client::request::{Operation, Request};
pub use self::client::state::{Client, Responder};
pub use self::cluster::answer::{error_code, parsed, result_kind};
pub use self::cluster::backend::{Backend, KeptBackend};
pub use self::cluster::error::{CallError, ConnectError};
pub use self::cluster::events::{Cluster, ControlState};
pub use self::cluster::first::LeftNodes;
pub use self::cluster::login::{Login, User};
pub use self::cluster::nodes::NodeId;
pub use self::cluster::permissions::{May, PermissionCache};
pub use self::cluster::rows::{Fetched, FetchedRow, refusal};
pub use self::cluster::schema_store::{ChangeNumber, SchemaStore, SeenVersion};
pub use self::cluster::trial::{read_schema_of, try_database};
pub use self::front_end::{CqlFrontEnd, CqlFrontEndConfig, USER_IDLE};
pub use self::reactor_state::CqlReactorState;
pub use self::ring_view::shown::RingSettings;
pub use self::ring_view::view::{RingNode, RingView};
pub use self::router::{Later, PassThrough, Router, pass_path};
pub use self::shared::{CqlSettings, CqlShared, EventSink};
pub use self::statements::prepared::{
    Answer as PreparedAnswer, PrepareResult, Prepared, PreparedStore,
};
