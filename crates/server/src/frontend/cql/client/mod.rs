//! Clients: their connections and requests, and the way of a request to its answer.

pub(crate) mod asked_first;
pub(crate) mod budget;
pub(crate) mod dispatch;
pub(crate) mod habits;
pub(crate) mod outbox;
pub(crate) mod preparing;
pub(crate) mod relay;
pub(crate) mod request;
pub(crate) mod route;
pub(crate) mod session;
pub(crate) mod state;
