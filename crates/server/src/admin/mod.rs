//! Metrics, health and the dashboard over HTTP, for the operator's machines only. There is no
//! password and no TLS, and no request changes anything.
//!
//! `/metrics`, `/healthz` and `/readyz` answer under every host name, because scrapers and probes
//! use names of their own. Their answers name no key, table or address. The dashboard and its JSON
//! answer only under the names in [`Hosts`].

mod health;
mod hosts;
mod limited;
pub mod overview;
mod page;
mod places;
pub mod segments;
mod shown;

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use axum::{
    Router,
    extract::State,
    http::{
        HeaderMap, StatusCode,
        header::{ACCEPT, CONTENT_TYPE},
    },
    middleware,
    response::{IntoResponse, Response},
    routing::get,
};

pub use health::{Health, Readiness, Stage};
pub use hosts::Hosts;
pub use shown::Shown;

use serde::Serialize;

use self::limited::Limits;
use self::segments::SegmentMap;
use crate::metrics::TextFormat;

/// Connections at once: some scrapers and probes, and no more memory and descriptors than that. A
/// connection that has not taken a page for so long is closed: longer than Prometheus waits between
/// two scrapes, a minute unless told. An answer takes milliseconds, so that who has waited a second
/// for none gives way.
const LIMITS: Limits =
    Limits { connections: 64, timeout: Duration::from_secs(75), grace: Duration::from_secs(1) };

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
    serve_within(LIMITS, listener, shown, stop).await
}

async fn serve_within(
    limits: Limits,
    listener: std::net::TcpListener,
    shown: Shown,
    stop: impl Future<Output = ()> + Send + 'static,
) -> std::io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let listener = limited::Limited::new(listener, limits);
    axum::serve(listener, router(shown)).with_graceful_shutdown(stop).await
}

fn router(shown: Shown) -> Router {
    let guarded = page::routes()
        .route("/api/v1/overview", get(overview))
        .route("/api/v1/segments", get(segments))
        .route("/api/v1/hotkeys", get(hot_keys))
        .route_layer(middleware::from_fn_with_state(shown.clone(), page::guard));
    Router::new()
        .route("/metrics", get(metrics))
        .route("/healthz", get(alive))
        .route("/readyz", get(ready))
        .merge(guarded)
        .fallback(async || {
            (StatusCode::NOT_FOUND, "not found: try /, /metrics, /healthz or /readyz\n")
        })
        .with_state(shown)
}

async fn overview(State(shown): State<Shown>) -> Response {
    json(&overview::overview(&shown.metrics, &shown.health, shown.cache().as_ref()))
}

async fn segments(State(shown): State<Shown>) -> Response {
    let map =
        shown.cache().map(|cache| SegmentMap::new(&cache.segments(), cache.stats().segment_size));
    json(&map.unwrap_or_default())
}

async fn hot_keys(State(shown): State<Shown>) -> Response {
    json(&shown.metrics.hot_keys(shown.keys_shown))
}

fn json(answer: &impl Serialize) -> Response {
    match serde_json::to_string(answer) {
        Ok(text) => ([(CONTENT_TYPE, "application/json")], text).into_response(),
        Err(error) => {
            (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot be written as JSON: {error}\n"))
                .into_response()
        }
    }
}

async fn metrics(State(shown): State<Shown>, headers: HeaderMap) -> Response {
    let accept = headers.get(ACCEPT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let format = TextFormat::accepted(accept);
    ([(CONTENT_TYPE, format.content_type())], shown.metrics.render(format)).into_response()
}

async fn alive(State(shown): State<Shown>) -> (StatusCode, String) {
    match shown.health.is_alive() {
        true => (StatusCode::OK, "alive\n".into()),
        false => (StatusCode::SERVICE_UNAVAILABLE, format!("{}\n", health::REACTOR_ENDED)),
    }
}

async fn ready(State(shown): State<Shown>) -> (StatusCode, String) {
    match shown.health.readiness(shown.metrics.is_database_reached(), shown.metrics.ring_entry()) {
        Readiness::Ready => (StatusCode::OK, "ready\n".into()),
        Readiness::Degraded(why) => (StatusCode::OK, format!("ready, but {why}\n")),
        Readiness::Not(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("not ready: {why}\n")),
    }
}

#[cfg(test)]
mod tests;
