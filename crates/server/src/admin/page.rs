//! The dashboard: files of the folder `dashboard`, part of the binary. Their content security
//! policy allows nothing from other hosts.

use axum::Router;
use axum::extract::{Request, State};
use axum::http::HeaderValue;
use axum::http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, REFERRER_POLICY,
    X_CONTENT_TYPE_OPTIONS,
};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use super::shown::Shown;

const HTML: &str = "text/html; charset=utf-8";
const CSS: &str = "text/css; charset=utf-8";
const SCRIPT: &str = "text/javascript; charset=utf-8";
const SVG: &str = "image/svg+xml";

macro_rules! file {
    ($name:literal) => {
        include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../dashboard/", $name))
    };
}

/// Path, type and content of every file.
const FILES: &[(&str, &str, &str)] = &[
    ("/", HTML, file!("index.html")),
    ("/dashboard/style.css", CSS, file!("style.css")),
    ("/dashboard/icon.svg", SVG, file!("icon.svg")),
    ("/dashboard/app.js", SCRIPT, file!("app.js")),
    ("/dashboard/charts.js", SCRIPT, file!("charts.js")),
    ("/dashboard/chart.js", SCRIPT, file!("chart.js")),
    ("/dashboard/client.js", SCRIPT, file!("client.js")),
    ("/dashboard/figures.js", SCRIPT, file!("figures.js")),
    ("/dashboard/history.js", SCRIPT, file!("history.js")),
    ("/dashboard/hotkeys.js", SCRIPT, file!("hotkeys.js")),
    ("/dashboard/segments.js", SCRIPT, file!("segments.js")),
    ("/dashboard/tables.js", SCRIPT, file!("tables.js")),
    ("/dashboard/units.js", SCRIPT, file!("units.js")),
];

/// What the page may do: load its own files and ask its own server.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// The routes of all files.
pub(super) fn routes() -> Router<Shown> {
    FILES.iter().fold(Router::new(), |router, &(path, kind, content)| {
        router.route(path, get(async move || ([(CONTENT_TYPE, kind)], content).into_response()))
    })
}

/// Refuses a request under a foreign name, and adds to an answer what keeps other sites from using
/// it.
pub(super) async fn guard(State(shown): State<Shown>, request: Request, next: Next) -> Response {
    let mut answer = match shown.hosts.refusal(&request) {
        Some(refusal) => refusal,
        None => next.run(request).await,
    };
    let headers: [(HeaderName, &'static str); 6] = [
        (CONTENT_SECURITY_POLICY, POLICY),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (REFERRER_POLICY, "no-referrer"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        // Another version of Afterglow has another page.
        (CACHE_CONTROL, "no-store"),
    ];
    for (name, value) in headers {
        answer.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    answer
}
