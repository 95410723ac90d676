//! Connecting to the database: the start of the protocol, the login, and the keyspace to be in.

use std::rc::Rc;
use std::sync::Arc;

use afterglow_cql::error::ErrorCode;
use afterglow_cql::frame::{Envelope, Flags, Opcode};
use afterglow_cql::message::{AuthResponse, Consistency, Query, QueryParams, Startup};
use afterglow_cql::name::quoted;
use afterglow_cql::response::{self, ErrorBody, Response};

use crate::config::HostPort;
use crate::frontend::cql::cluster::answer::parsed;
use crate::frontend::cql::cluster::backend::{Backend, Dial};
use crate::frontend::cql::cluster::error::{CONNECT_TIMEOUT, ConnectError};
use crate::frontend::cql::cluster::login::Login;
use crate::frontend::cql::cluster::secure;
use crate::metrics::BackendMetrics;

/// A connection in the making. It is closed unless it is made, also where nobody waits any more.
struct Attempt {
    metrics: Arc<BackendMetrics>,
    opened: Option<Rc<Backend>>,
}

impl Attempt {
    fn new(metrics: &Arc<BackendMetrics>) -> Attempt {
        metrics.connecting.inc();
        Attempt { metrics: metrics.clone(), opened: None }
    }

    async fn make(mut self, target: &HostPort, dial: Dial) -> Result<Rc<Backend>, ConnectError> {
        let backend = Backend::open(target, &dial).await?;
        self.opened = Some(backend.clone());
        compio::time::timeout(CONNECT_TIMEOUT, backend.handshake(dial.login))
            .await
            .unwrap_or_else(|_| Err(ConnectError::Timeout(backend.address.clone())))?;
        backend.set_ready();
        self.opened = None;
        Ok(backend)
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        self.metrics.connecting.dec();
        if let Some(backend) = self.opened.take() {
            backend.close();
        }
    }
}

impl Backend {
    /// Connects and makes the handshake.
    ///
    /// # Errors
    /// What went wrong; [`ConnectError::Refused`] has the server's words.
    pub async fn connect(target: &HostPort, dial: Dial) -> Result<Rc<Self>, ConnectError> {
        let metrics = dial.metrics.clone();
        let result = Attempt::new(&metrics).make(target, dial).await;
        if let Err(error) = &result {
            metrics.failures.inc(error.label());
        }
        result
    }

    async fn handshake(&self, login: Option<Login>) -> Result<(), ConnectError> {
        let mut startup = Vec::new();
        let options = [
            ("CQL_VERSION", "3.0.0"),
            ("DRIVER_NAME", "Afterglow"),
            ("DRIVER_VERSION", env!("CARGO_PKG_VERSION")),
        ];
        Startup::encode(&options, &mut startup);
        let answer = self.call_or_unreachable(Opcode::Startup, startup).await?;
        match answer.header.opcode {
            Opcode::Ready => {}
            Opcode::Authenticate => self.authenticate(&answer, login).await?,
            _ => return Err(self.refusal(answer)),
        }
        let Some(keyspace) = self.keyspace() else { return Ok(()) };
        let mut body = Vec::new();
        let text = format!("USE {}", quoted(keyspace));
        Query { text: &text, params: QueryParams::new(Consistency::One) }
            .encode(self.version(), &mut body);
        let answer = self.call_or_unreachable(Opcode::Query, body).await?;
        match answer.header.opcode {
            Opcode::Result => Ok(()),
            _ => Err(self.refusal(answer)),
        }
    }

    async fn authenticate(
        &self,
        asked: &Envelope,
        login: Option<Login>,
    ) -> Result<(), ConnectError> {
        let class = match parsed(asked) {
            Some(Response::Authenticate(class)) => Rc::from(class),
            _ => return Err(self.refusal(asked.clone())),
        };
        let Some(login) = login else { return Err(ConnectError::Authentication(class)) };
        let mut body = Vec::new();
        AuthResponse { token: Some(&login.token) }.encode(&mut body);
        let answer = self.call_or_unreachable(Opcode::AuthResponse, body).await?;
        self.authenticator.replace(Some(class));
        match answer.header.opcode {
            Opcode::AuthSuccess => Ok(()),
            _ => Err(self.refusal(answer)),
        }
    }

    async fn call_or_unreachable(
        &self,
        opcode: Opcode,
        body: Vec<u8>,
    ) -> Result<Envelope, ConnectError> {
        self.call(opcode, Flags::NONE, body.into()).await.map_err(|error| {
            // With TLS 1.3 a server refuses our certificate only after the handshake.
            let session = self.tls.as_ref();
            let fault = session.and_then(|tls| secure::ended(&tls.borrow(), self.target()));
            fault.unwrap_or_else(|| ConnectError::Unreachable {
                address: self.address.clone(),
                reason: error.to_string().into(),
            })
        })
    }

    fn refusal(&self, answer: Envelope) -> ConnectError {
        let error = response::split(&answer.header, &answer.body)
            .and_then(|(_, message)| ErrorBody::parse(answer.header.version, message))
            .map(|error| (error.code, Rc::<str>::from(error.message)));
        match error {
            Ok((ErrorCode::Protocol, text)) if text.contains("version") => {
                ConnectError::Version(self.version())
            }
            Ok((_, message)) => ConnectError::Refused { message, answer },
            Err(_) => ConnectError::Refused { message: answer.header.opcode.name().into(), answer },
        }
    }
}
