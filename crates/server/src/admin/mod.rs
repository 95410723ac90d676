//! Metrics and health over HTTP, for the operator's machines only: no password, no TLS, nothing
//! that changes anything.

mod health;
mod limited;

use std::{future::Future, net::SocketAddr, sync::Arc, time::Duration};

use axum::{
    Router,
    extract::State,
    http::{
        HeaderMap, StatusCode,
        header::{ACCEPT, CONTENT_TYPE},
    },
    response::{IntoResponse, Response},
    routing::get,
};

pub use health::{Health, Readiness, Stage};

use crate::{
    metrics::{Metrics, TextFormat},
    version,
};

/// Connections at once: some scrapers and probes, and no more memory and descriptors than that.
const CONNECTIONS: usize = 64;
/// A connection that has not taken a page for so long is closed. Longer than Prometheus waits
/// between two scrapes, a minute unless told.
const TIMEOUT: Duration = Duration::from_secs(75);

/// What the pages are made from.
#[derive(Clone)]
pub struct Shown {
    /// For `/metrics`.
    pub metrics: Arc<Metrics>,
    /// For `/readyz`.
    pub health: Arc<Health>,
}

/// The admin address could not be had.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on admin address {address}: {source}. {hint}")]
pub struct BindError {
    /// What was asked for.
    pub address: SocketAddr,
    /// What the system said.
    pub source: std::io::Error,
    hint: &'static str,
}

/// Takes the address; port 0 lets the system choose one.
///
/// # Errors
/// The address is taken, not of this machine, or not allowed.
pub fn bind(address: SocketAddr) -> Result<std::net::TcpListener, BindError> {
    let failed = |source: std::io::Error| {
        let hint = match source.kind() {
            std::io::ErrorKind::AddrInUse => {
                "Another process listens there: choose another with --admin, or --admin off"
            }
            std::io::ErrorKind::AddrNotAvailable => {
                "This machine has no such address: see `ip address`"
            }
            std::io::ErrorKind::PermissionDenied => {
                "Ports below 1024 need a privilege: choose a higher one"
            }
            _ => "Choose another with --admin, or --admin off",
        };
        BindError { address, source, hint }
    };
    let listener = std::net::TcpListener::bind(address).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    Ok(listener)
}

/// Answers until `stop` is done.
///
/// # Errors
/// The listener cannot be used by the runtime.
pub async fn serve(
    listener: std::net::TcpListener,
    shown: Shown,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    serve_within(CONNECTIONS, TIMEOUT, listener, shown, stop).await
}

async fn serve_within(
    connections: usize,
    timeout: Duration,
    listener: std::net::TcpListener,
    shown: Shown,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let listener = limited::Limited::new(listener, connections, timeout);
    axum::serve(listener, router(shown)).with_graceful_shutdown(stop).await
}

fn router(shown: Shown) -> Router {
    Router::new()
        .route("/", get(index))
        .route("/metrics", get(metrics))
        .route("/healthz", get(async || "alive\n"))
        .route("/readyz", get(ready))
        .fallback(async || {
            (StatusCode::NOT_FOUND, "not found: try /metrics, /healthz or /readyz\n")
        })
        .with_state(shown)
}

async fn index() -> String {
    format!(
        "afterglow {}\n\n/metrics  for Prometheus\n/healthz  200 while the process lives\n/readyz   200 while it takes clients\n",
        version::LONG
    )
}

async fn metrics(State(shown): State<Shown>, headers: HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let format = TextFormat::accepted(accept);
    ([(CONTENT_TYPE, format.content_type())], shown.metrics.render(format)).into_response()
}

async fn ready(State(shown): State<Shown>) -> (StatusCode, String) {
    // Where clients must show their own credentials, there are connections to the database only
    // while there are clients.
    let reached =
        shown.metrics.backend_connections_ready() > 0 || shown.metrics.authentication.get() > 0;
    match shown.health.readiness(reached) {
        Readiness::Ready => (StatusCode::OK, "ready\n".into()),
        Readiness::Degraded(why) => (StatusCode::OK, format!("ready, but {why}\n")),
        Readiness::Not(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")),
    }
}

#[cfg(test)]
mod tests;
