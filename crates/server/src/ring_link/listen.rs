//! Links that others dial.

use std::net::SocketAddr;
use std::sync::Arc;

use compio::net::TcpStream;

use super::registry::Registry;
use super::session::{self, Call};
use crate::reactor::ConnectionGuard;

/// Serves a connection that was accepted.
pub async fn serve(
    registry: Arc<Registry>,
    stream: TcpStream,
    peer: SocketAddr,
    guard: ConnectionGuard,
) {
    let _guard = guard;
    let place = peer.ip().to_string();
    let Some(unproven) = registry.admit(&place) else { return };
    let call = Call { place, wanted: None, unproven: Some(unproven) };
    session::run(&registry, stream, call).await;
}
