//! The operator API over a local socket or over TLS: one request a connection, every step with a deadline.
//!
//! Owns transport and the reading of problem documents; leaves paths and objects to the commands. Invariant:
//! the server's certificate is always checked, and a token is sent over TLS only.

mod sse;
mod target;

use std::{io::IsTerminal as _, time::Duration};

use bytes::Bytes;
use http_body_util::{BodyExt as _, Full, Limited};
use hyper::{
    Method, Request, Response, StatusCode,
    body::Incoming,
    client::conn::http1,
    header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HOST, HeaderValue},
};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use tokio::{
    net::{TcpStream, UnixStream},
    time::{Instant, timeout, timeout_at},
};
use umbel_wire::{Code, tls};

pub(crate) use sse::{Event, Events};
pub(crate) use target::{Server, find_server};

use crate::exit::{Exit, Failure, Outcome};

/// Looking up a name, connecting, the TLS handshake: each may take this long.
const STEP: Duration = Duration::from_secs(5);
/// The largest answer that is read: the status of a fleet of some 10,000 nodes has about 20 MB.
const MAX_ANSWER: usize = 256 * 1024 * 1024;

/// An answer whose status was 2xx.
#[derive(Debug)]
pub(crate) struct Answer {
    body: Bytes,
}

impl Answer {
    /// The body as text: one JSON value.
    pub(crate) fn raw(&self) -> Outcome<&str> {
        std::str::from_utf8(&self.body).map_err(|_| Failure::failed("the server's answer is not text"))
    }

    /// The body as an object that this version knows.
    pub(crate) fn parse<T: DeserializeOwned>(&self) -> Outcome<T> {
        parse(self.raw()?)
    }
}

/// Reads an object out of JSON that a server gave.
pub(crate) fn parse<T: DeserializeOwned>(raw: &str) -> Outcome<T> {
    serde_json::from_str(raw).map_err(|error| {
        Failure::failed(format!("the server's answer is not what this version expects: {error}"))
            .remedy("compare `umbel version` here and there; -o json prints the answer as it is")
    })
}

/// A client of one server.
#[derive(Debug)]
pub(crate) struct Client {
    server: Server,
    limit: Duration,
}

impl Client {
    /// A client whose answers may take `limit` each.
    pub(crate) fn new(server: Server, limit: Duration) -> Self {
        Client { server, limit }
    }

    /// Reads `path`.
    pub(crate) async fn get(&self, path: &str) -> Outcome<Answer> {
        self.call(Method::GET, path, &[], Bytes::new(), self.limit).await
    }

    /// Deletes what `path` names; `body` says why.
    pub(crate) async fn delete<T: Serialize>(&self, path: &str, body: &T) -> Outcome<Answer> {
        self.call(Method::DELETE, path, &[], json(body)?, self.limit).await
    }

    /// Posts `body` as JSON. `extra` is added to the deadline: a call may be asked to wait on the server.
    pub(crate) async fn post<T: Serialize>(
        &self,
        path: &str,
        headers: &[(&'static str, String)],
        body: &T,
        extra: Duration,
    ) -> Outcome<Answer> {
        self.call(Method::POST, path, headers, json(body)?, self.limit.saturating_add(extra)).await
    }

    /// Opens a stream of events.
    pub(crate) async fn events(&self, path: &str, last: Option<&str>) -> Outcome<Events> {
        let mut headers = vec![("accept", "text/event-stream".to_owned())];
        headers.extend(last.map(|id| ("last-event-id", id.to_owned())));
        let deadline = Instant::now() + self.limit;
        let response = self.send(Method::GET, path, &headers, Bytes::new(), deadline).await?;
        if !response.status().is_success() {
            return Err(self.refusal(response, deadline).await);
        }
        Ok(Events::new(response.into_body()))
    }

    async fn call(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, String)],
        body: Bytes,
        limit: Duration,
    ) -> Outcome<Answer> {
        let deadline = Instant::now() + limit;
        let response = self.send(method, path, headers, body, deadline).await?;
        if !response.status().is_success() {
            return Err(self.refusal(response, deadline).await);
        }
        let body = self.collect(response, deadline).await?;
        Ok(Answer { body })
    }

    async fn send(
        &self,
        method: Method,
        path: &str,
        headers: &[(&'static str, String)],
        body: Bytes,
        deadline: Instant,
    ) -> Outcome<Response<Incoming>> {
        let mut sender = self.connect(deadline).await?;
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, self.server.host())
            .header("user-agent", concat!("umbel-ctl/", env!("CARGO_PKG_VERSION")))
            .header("x-umbel-client", "ctl");
        if !headers.iter().any(|(name, _)| *name == "accept") {
            request = request.header(ACCEPT, "application/json");
        }
        if !body.is_empty() {
            request = request.header(CONTENT_TYPE, "application/json");
        }
        for (name, value) in headers {
            request = request.header(*name, value);
        }
        if let Some(token) = self.server.token() {
            let mut value = HeaderValue::from_str(&format!("Bearer {}", token.expose()))
                .map_err(|_| Failure::usage("the operator token has characters that no token has"))?;
            value.set_sensitive(true);
            request = request.header(AUTHORIZATION, value);
        }
        let request = request.body(Full::new(body)).map_err(|error| Failure::failed(error.to_string()))?;
        match timeout_at(deadline, sender.send_request(request)).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(error)) => Err(self.unreachable(&format!("the connection broke: {}", causes(&error)))),
            Err(_) => Err(self.slow()),
        }
    }

    async fn connect(&self, deadline: Instant) -> Outcome<http1::SendRequest<Full<Bytes>>> {
        let limit = STEP.min(deadline.saturating_duration_since(Instant::now()));
        match &self.server {
            Server::Socket(path) => {
                let stream = timeout(limit, UnixStream::connect(path)).await.map_err(|_| self.slow())?;
                handshake(stream.map_err(|error| self.unopened(&error))?).await
            }
            Server::Tls { host, port, name, config, .. } => {
                let tcp = timeout(limit, TcpStream::connect((host.as_str(), *port))).await;
                let tcp = tcp.map_err(|_| self.unreachable("no answer within 5s"))?;
                let tcp = tcp.map_err(|error| self.unopened(&error))?;
                // A request is one small write: Nagle only delays it.
                tcp.set_nodelay(true)?;
                let connector = tokio_rustls::TlsConnector::from(config.clone());
                let tls = timeout(STEP, connector.connect(name.clone(), tcp)).await;
                let tls = tls.map_err(|_| self.unreachable("the TLS handshake took longer than 5s"))?;
                handshake(tls.map_err(|error| self.untrusted(&tls::explain_io(&error)))?).await
            }
        }
    }

    async fn collect(&self, response: Response<Incoming>, deadline: Instant) -> Outcome<Bytes> {
        match timeout_at(deadline, Limited::new(response.into_body(), MAX_ANSWER).collect()).await {
            Ok(Ok(body)) => Ok(body.to_bytes()),
            Ok(Err(error)) => Err(self.unreachable(&format!("the answer broke off: {error}"))),
            Err(_) => Err(self.slow()),
        }
    }

    async fn refusal(&self, response: Response<Incoming>, deadline: Instant) -> Failure {
        let status = response.status();
        match self.collect(response, deadline).await {
            Ok(body) => problem(status, &body),
            Err(failure) => failure,
        }
    }

    /// A connection that could not be opened. On a socket the reason decides what helps.
    fn unopened(&self, error: &std::io::Error) -> Failure {
        let failure = Failure::new(Exit::Unreachable, format!("cannot reach {}: {error}", self.server));
        match (&self.server, error.kind()) {
            (Server::Socket(_), std::io::ErrorKind::PermissionDenied) => failure
                .remedy("a socket is open to its owner only: use sudo, or --addr with an operator token"),
            (Server::Socket(_), _) => {
                failure.remedy("start the daemon there, or name another server with --socket or --addr")
            }
            (Server::Tls { .. }, _) => {
                failure.remedy("check the address (--addr, UMBEL_ADDR) and that the server runs")
            }
        }
    }

    fn unreachable(&self, why: &str) -> Failure {
        Failure::new(Exit::Unreachable, format!("cannot reach {}: {why}", self.server))
    }

    fn untrusted(&self, error: &str) -> Failure {
        Failure::new(Exit::Unreachable, format!("{} is not to be trusted: {error}", self.server))
            .remedy("--ca-file must name the CA of this control plane (ca/ca.pem in its state directory)")
            .remedy("the name in --addr must be one of [tls] server_names in control-plane.toml")
    }

    fn slow(&self) -> Failure {
        let limit = crate::output::duration_ms(u64::try_from(self.limit.as_millis()).unwrap_or(u64::MAX));
        Failure::new(Exit::TimedOut, format!("{} did not answer within {limit}", self.server))
            .remedy("give it longer with --timeout")
    }
}

fn json<T: Serialize>(body: &T) -> Outcome<Bytes> {
    let body = serde_json::to_vec(body);
    body.map(Bytes::from)
        .map_err(|error| Failure::failed(format!("cannot write the request as JSON: {error}")))
}

async fn handshake<S>(stream: S) -> Outcome<http1::SendRequest<Full<Bytes>>>
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| {
        Failure::new(Exit::Unreachable, format!("the server does not speak HTTP: {error}"))
    })?;
    // The task ends with the connection, whose errors also reach the waiting request.
    tokio::spawn(connection);
    Ok(sender)
}

/// An error with what caused it.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text = format!("{text}: {cause}");
        source = cause.source();
    }
    text
}

/// What is read of an RFC 9457 document; everything may be missing when a proxy answered.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Problem {
    title: Option<String>,
    detail: Option<String>,
    code: Option<String>,
    reason: Option<String>,
    correlation_id: Option<String>,
    retry_after_ms: Option<u64>,
}

fn problem(status: StatusCode, body: &[u8]) -> Failure {
    let problem: Problem = serde_json::from_slice(body).unwrap_or_default();
    let code = problem.code.as_deref().and_then(|name| Code::from_name(&name.to_ascii_uppercase()));
    let exit = code.map_or_else(|| exit_of_status(status), Exit::of);
    let what = problem.detail.or(problem.title).unwrap_or_else(|| format!("the server answered {status}"));
    let mut failure = match problem.reason.filter(|reason| !reason.is_empty()) {
        Some(reason) => Failure::new(exit, format!("{what} ({reason})")),
        None => Failure::new(exit, what),
    };
    if status == StatusCode::UNAUTHORIZED {
        failure = failure.remedy("name a file with an operator token: --token-file or UMBEL_TOKEN_FILE");
    }
    if let Some(ms) = problem.retry_after_ms {
        failure = failure.remedy(format!("again in {}", crate::output::duration_ms(ms)));
    }
    failure.correlation(problem.correlation_id)
}

fn exit_of_status(status: StatusCode) -> Exit {
    match status.as_u16() {
        401 | 403 => Exit::NotAllowed,
        404 | 410 => Exit::NotFound,
        409 | 412 => Exit::Conflict,
        502 | 503 => Exit::Unreachable,
        504 => Exit::TimedOut,
        _ => Exit::Failed,
    }
}

/// Whether people look at standard output.
pub(crate) fn interactive() -> bool {
    std::io::stdout().is_terminal()
}
