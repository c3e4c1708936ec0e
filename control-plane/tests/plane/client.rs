//! An operator: HTTP/1.1 over the local socket or over TLS, one connection a request.

use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_rustls::TlsConnector;

use crate::rig::within;

/// One request and where it goes.
pub(crate) struct Ask<'a> {
    pub(crate) method: Method,
    pub(crate) path: &'a str,
    pub(crate) token: Option<&'a str>,
    pub(crate) headers: Vec<(&'static str, String)>,
    pub(crate) body: Value,
}

impl<'a> Ask<'a> {
    pub(crate) fn get(path: &'a str) -> Self {
        Self { method: Method::GET, path, token: None, headers: Vec::new(), body: Value::Null }
    }

    pub(crate) fn post(path: &'a str, body: Value) -> Self {
        Self { method: Method::POST, body, ..Self::get(path) }
    }

    pub(crate) fn delete(path: &'a str) -> Self {
        Self { method: Method::DELETE, ..Self::get(path) }
    }

    pub(crate) fn token(self, token: &'a str) -> Self {
        Self { token: Some(token), ..self }
    }

    pub(crate) fn header(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    fn request(self) -> Request<Full<Bytes>> {
        let body =
            if self.body.is_null() { Bytes::new() } else { serde_json::to_vec(&self.body).unwrap().into() };
        let mut builder = Request::builder().method(self.method).uri(self.path).header("host", "localhost");
        if let Some(token) = self.token {
            builder = builder.header("authorization", format!("Bearer {token}"));
        }
        for (name, value) in self.headers {
            builder = builder.header(name, value);
        }
        builder.body(Full::new(body)).unwrap()
    }
}

/// What came back.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) body: Value,
}

impl Answer {
    #[track_caller]
    pub(crate) fn ok(self) -> Value {
        assert!(self.status.is_success(), "{self:?}");
        self.body
    }

    /// Status and machine reason of a refusal.
    pub(crate) fn refusal(&self) -> (u16, &str) {
        (self.status.as_u16(), self.body["reason"].as_str().unwrap_or_default())
    }
}

async fn exchange<S>(stream: S, ask: Ask<'_>) -> hyper::Response<Incoming>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.unwrap();
    tokio::spawn(connection);
    sender.send_request(ask.request()).await.unwrap()
}

async fn whole(response: hyper::Response<Incoming>) -> Answer {
    let status = response.status();
    let bytes = response.into_body().collect().await.unwrap().to_bytes();
    let text = || Value::String(String::from_utf8_lossy(&bytes).into_owned());
    Answer { status, body: serde_json::from_slice(&bytes).unwrap_or_else(|_| text()) }
}

/// Asks over the local socket.
pub(crate) async fn local(socket: &Path, ask: Ask<'_>) -> Answer {
    within(async { whole(exchange(UnixStream::connect(socket).await.unwrap(), ask).await).await }).await
}

/// Asks over TLS.
pub(crate) async fn tls(
    address: std::net::SocketAddr,
    config: Arc<rustls::ClientConfig>,
    ask: Ask<'_>,
) -> Answer {
    within(async {
        let tcp = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(config).connect(name, tcp).await.unwrap();
        whole(exchange(stream, ask).await).await
    })
    .await
}

/// Opens an event stream over TLS.
pub(crate) async fn stream_tls(
    address: std::net::SocketAddr,
    config: Arc<rustls::ClientConfig>,
    ask: Ask<'_>,
) -> Events {
    let response = within(async {
        let tcp = TcpStream::connect(address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        exchange(TlsConnector::from(config).connect(name, tcp).await.unwrap(), ask).await
    })
    .await;
    assert_eq!(response.status(), StatusCode::OK);
    Events { body: response.into_body(), text: String::new() }
}

/// Opens an event stream over the local socket.
pub(crate) async fn stream(socket: &Path, ask: Ask<'_>) -> Events {
    let response = within(async { exchange(UnixStream::connect(socket).await.unwrap(), ask).await }).await;
    assert_eq!(response.status(), StatusCode::OK);
    Events { body: response.into_body(), text: String::new() }
}

/// Server-sent events as they come.
pub(crate) struct Events {
    body: Incoming,
    text: String,
}

impl Events {
    /// The next event's name, id and data; `None` at the end.
    pub(crate) async fn next(&mut self) -> Option<(String, String, Value)> {
        within(async {
            loop {
                if let Some((block, rest)) = self.text.split_once("\n\n") {
                    let field = |name: &str| {
                        let line = block.lines().find_map(|line| line.strip_prefix(name));
                        line.map(|value| value.trim_start().to_owned()).unwrap_or_default()
                    };
                    let event = (field("event:"), field("id:"), field("data:"));
                    self.text = rest.to_owned();
                    if event.0.is_empty() {
                        continue;
                    }
                    return Some((event.0, event.1, serde_json::from_str(&event.2).unwrap()));
                }
                let frame = self.body.frame().await?.unwrap();
                if let Some(data) = frame.data_ref() {
                    self.text.push_str(std::str::from_utf8(data).unwrap());
                }
            }
        })
        .await
    }
}
