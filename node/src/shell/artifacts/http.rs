//! Asking one source over HTTP/1.1: connections, TLS, redirects, credentials.
//!
//! Owns what is sent and to whom; leaves what an answer is worth to `fetch`. Invariant: the source's token goes to the
//! source's own host and scheme and to nobody else, and what leaves here as a sentence names no host.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http_body_util::Empty;
use hyper::{
    Request, Response, StatusCode, Uri,
    body::Incoming,
    client::conn::http1::{self, SendRequest},
    header::{self, HeaderMap, HeaderValue},
};
use hyper_util::rt::TokioIo;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
    time::timeout,
};
use umbel_wire::files;

use crate::{
    config::Remote,
    core::artifacts::{Failure, Patience, Reason},
};

mod trust;

/// Hops after the first answer: a hub has one or two.
const REDIRECTS_MAX: usize = 5;
/// Connections kept: the source's own and those that it sends us on to.
const KEPT_MAX: usize = 4;
/// A token is a line.
const TOKEN_MAX: usize = 4096;

/// Why a try brought nothing, or not all.
#[derive(Debug)]
pub(super) enum Trouble {
    /// Another try may go better.
    Later {
        /// What happened, without a host.
        says: String,
        /// How long the server asks to be left alone.
        after: Option<Duration>,
    },
    /// It will not.
    Never(Failure),
}

impl Trouble {
    pub(super) fn later(says: impl Into<String>) -> Self {
        Self::Later { says: says.into(), after: None }
    }

    pub(super) fn never(reason: Reason, says: impl Into<String>) -> Self {
        Self::Never(Failure::new(reason, says))
    }
}

impl From<Failure> for Trouble {
    fn from(failure: Failure) -> Self {
        Self::Never(failure)
    }
}

/// Whom a connection is to.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Origin {
    secure: bool,
    /// `host:port`, lower case.
    authority: String,
}

/// A part of a file to ask for.
#[derive(Debug, Clone)]
pub(super) struct Start {
    pub(super) byte: u64,
    /// The version that the first bytes are of.
    pub(super) etag: Option<String>,
}

type Sender = SendRequest<Empty<Bytes>>;

/// One source, asked by one download.
pub(super) struct Client {
    /// Its name in the node's file: all that is told of it.
    name: String,
    origin: Origin,
    base_path: String,
    bearer: Option<HeaderValue>,
    tls: Option<Arc<ClientConfig>>,
    ca_file: Option<std::path::PathBuf>,
    step: Duration,
    kept: Vec<(Origin, Sender)>,
}

impl Client {
    /// Reads the token and, for TLS, whom to trust.
    ///
    /// # Errors
    /// [`Reason::SourceRefused`]: a file that is not as it has to be; which one stands in the log.
    pub(super) fn new(name: &str, remote: &Remote, patience: &Patience) -> Result<Self, Failure> {
        let wrong = |what: &str, why: &dyn std::fmt::Display| {
            tracing::warn!(source = name, "{what}: {why}");
            Failure::new(
                Reason::SourceRefused,
                format!("the {what} of source {name} cannot be used (the node's log says why)"),
            )
        };
        let bearer = match &remote.token_file {
            None => None,
            Some(path) => {
                let token = files::read_private(path).map_err(|error| wrong("token_file", &error))?;
                Some(bearer(&token).ok_or_else(|| wrong("token_file", &"it holds no token"))?)
            }
        };
        let mut client = Self {
            name: name.to_owned(),
            origin: Origin { secure: remote.secure, authority: remote.authority.to_ascii_lowercase() },
            base_path: remote.base_path.clone(),
            bearer,
            tls: None,
            ca_file: remote.ca_file.clone(),
            step: patience.step,
            kept: Vec::new(),
        };
        if remote.secure {
            client.trust().map_err(|why| wrong("trust", &why))?;
        }
        Ok(client)
    }

    /// Asks for a file below the source's base path, and follows where the answer points.
    pub(super) async fn get(
        &mut self,
        path: &str,
        from: Option<&Start>,
    ) -> Result<Response<Incoming>, Trouble> {
        let target = format!("{}/{}", self.base_path, escaped(path));
        self.follow(target, from).await
    }

    /// The same with a query, which is sent as it is.
    pub(super) async fn ask_for(&mut self, path: &str, query: &str) -> Result<Response<Incoming>, Trouble> {
        let mark = if query.is_empty() { "" } else { "?" };
        self.follow(format!("{}/{}{mark}{query}", self.base_path, escaped(path)), None).await
    }

    async fn follow(
        &mut self,
        mut target: String,
        from: Option<&Start>,
    ) -> Result<Response<Incoming>, Trouble> {
        let mut origin = self.origin.clone();
        for _ in 0..=REDIRECTS_MAX {
            let response = self.ask(&origin, &target, from).await?;
            if !is_redirect(response.status()) {
                return Ok(response);
            }
            (origin, target) = self.next(&origin, &target, response.headers())?;
        }
        Err(self.refused(format!("redirects more than {REDIRECTS_MAX} times")))
    }

    fn refused(&self, why: impl std::fmt::Display) -> Trouble {
        Trouble::never(Reason::SourceRefused, format!("source {} {why}", self.name))
    }

    fn later(&self, why: impl std::fmt::Display) -> Trouble {
        Trouble::later(format!("source {}: {why}", self.name))
    }

    async fn ask(
        &mut self,
        origin: &Origin,
        target: &str,
        from: Option<&Start>,
    ) -> Result<Response<Incoming>, Trouble> {
        // A kept connection may have been closed by now; a new one tells whether the server is well.
        if let Some(sender) = self.take(origin)
            && let Ok(response) = self.send(sender, origin, target, from).await
        {
            return Ok(response);
        }
        let sender = self.connect(origin).await?;
        self.send(sender, origin, target, from).await
    }

    async fn send(
        &mut self,
        mut sender: Sender,
        origin: &Origin,
        target: &str,
        from: Option<&Start>,
    ) -> Result<Response<Incoming>, Trouble> {
        let request =
            self.request(origin, target, from).map_err(|()| self.refused("points to what is no address"))?;
        let sending = async {
            sender.ready().await?;
            sender.send_request(request).await
        };
        let response = match timeout(self.step, sending).await {
            Err(_) => return Err(self.later("no answer in time")),
            Ok(Err(error)) => {
                tracing::debug!(source = self.name, %error, "asking failed");
                return Err(self.later("the connection broke before an answer"));
            }
            Ok(Ok(response)) => response,
        };
        if self.kept.len() < KEPT_MAX {
            self.kept.push((origin.clone(), sender));
        }
        Ok(response)
    }

    fn request(
        &self,
        origin: &Origin,
        target: &str,
        from: Option<&Start>,
    ) -> Result<Request<Empty<Bytes>>, ()> {
        let mut request = Request::get(target)
            .header(header::HOST, host_header(origin))
            .header(header::USER_AGENT, concat!("umbel/", env!("CARGO_PKG_VERSION")))
            .header(header::ACCEPT, "*/*")
            // What is hashed is the file, not a packing of it.
            .header(header::ACCEPT_ENCODING, "identity");
        if let Some(bearer) = self.bearer.as_ref().filter(|_| *origin == self.origin) {
            request = request.header(header::AUTHORIZATION, bearer);
        }
        if let Some(from) = from {
            request = request.header(header::RANGE, format!("bytes={}-", from.byte));
            if let Some(etag) = &from.etag {
                request = request.header(header::IF_RANGE, etag);
            }
        }
        request.body(Empty::new()).map_err(drop)
    }

    /// A kept connection that can take a request.
    fn take(&mut self, origin: &Origin) -> Option<Sender> {
        self.kept.retain(|(_, sender)| !sender.is_closed());
        let at = self.kept.iter().position(|(of, sender)| of == origin && sender.is_ready())?;
        Some(self.kept.swap_remove(at).1)
    }

    async fn connect(&mut self, origin: &Origin) -> Result<Sender, Trouble> {
        // The oldest makes room: a signed address is mostly asked once.
        if self.kept.len() == KEPT_MAX {
            self.kept.remove(0);
        }
        let tcp = match timeout(self.step, TcpStream::connect(&origin.authority)).await {
            Err(_) => return Err(self.later("no connection in time")),
            Ok(Err(error)) => {
                tracing::debug!(source = self.name, %error, "no connection");
                return Err(self.later(format!("no connection: {}", words(&error))));
            }
            Ok(Ok(tcp)) => tcp,
        };
        let _ = tcp.set_nodelay(true);
        if !origin.secure {
            return self.speak(tcp).await;
        }
        let config = self.trust().map_err(|why| {
            tracing::warn!(source = self.name, "{why}");
            self.refused("wants TLS, and no authority is trusted here (ca_file, or the system's)")
        })?;
        let host = host_of(&origin.authority).to_owned();
        let name = ServerName::try_from(host).map_err(|_| self.refused("points to what is no host"))?;
        let handshake = tokio_rustls::TlsConnector::from(config).connect(name, tcp);
        match timeout(self.step, handshake).await {
            Err(_) => Err(self.later("no TLS handshake in time")),
            Ok(Err(error)) => {
                tracing::warn!(source = self.name, %error, "the TLS handshake failed");
                Err(self.untrusted(&error, *origin == self.origin))
            }
            Ok(Ok(stream)) => self.speak(stream).await,
        }
    }

    /// What a handshake that failed means: certificates that do not fit are told apart, since other hands mend them.
    fn untrusted(&self, error: &std::io::Error, own: bool) -> Trouble {
        let tls = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
        let Some(rustls::Error::InvalidCertificate(certificate)) = tls else {
            return self.later("the TLS handshake failed (TLS 1.3 is needed; the node's log says why)");
        };
        let (reason, says) = trust::judged(certificate);
        let whose = if own { "" } else { "redirects to a host that " };
        Trouble::never(reason, format!("source {} {whose}{says}", self.name))
    }

    async fn speak<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
        &self,
        stream: S,
    ) -> Result<Sender, Trouble> {
        let (sender, connection) = http1::Builder::new()
            .max_buf_size(READ_MAX)
            .handshake(TokioIo::new(stream))
            .await
            .map_err(|_| self.later("the connection broke"))?;
        // It ends with its sender and the last body.
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection to a source ended");
            }
        });
        Ok(sender)
    }

    /// The TLS configuration, made when first needed.
    fn trust(&mut self) -> Result<Arc<ClientConfig>, String> {
        if let Some(made) = &self.tls {
            return Ok(Arc::clone(made));
        }
        let made = match &self.ca_file {
            Some(path) => trust::of_file(&path.display().to_string()),
            None => trust::of_system(),
        }?;
        self.tls = Some(Arc::clone(&made));
        Ok(made)
    }

    /// Where a redirect leads.
    fn next(&self, origin: &Origin, target: &str, headers: &HeaderMap) -> Result<(Origin, String), Trouble> {
        let unusable = || self.refused("redirects to what is no address");
        let location =
            headers.get(header::LOCATION).and_then(|value| value.to_str().ok()).ok_or_else(unusable)?;
        let scheme = if origin.secure { "https:" } else { "http:" };
        let absolute = match location {
            _ if location.contains("://") => location.to_owned(),
            _ if location.starts_with("//") => format!("{scheme}{location}"),
            _ if location.starts_with('/') => format!("{scheme}//{}{location}", origin.authority),
            _ => {
                let path = target.split('?').next().unwrap_or_default();
                let folder = path.rsplit_once('/').map_or("", |(folder, _)| folder);
                format!("{scheme}//{}{folder}/{location}", origin.authority)
            }
        };
        let uri: Uri = absolute.parse().map_err(|_| unusable())?;
        let (Some(scheme), Some(authority)) = (uri.scheme_str(), uri.authority()) else {
            return Err(unusable());
        };
        let secure = match scheme {
            "https" => true,
            "http" if origin.secure => return Err(self.refused("redirects from https to http")),
            "http" => false,
            _ => return Err(unusable()),
        };
        if authority.as_str().contains('@') {
            return Err(self.refused("redirects to an address with a password in it"));
        }
        let port = authority.port_u16().unwrap_or(if secure { 443 } else { 80 });
        let authority = format!("{}:{port}", authority.host().to_ascii_lowercase());
        let target = uri.path_and_query().map_or("/", |target| target.as_str()).to_owned();
        Ok((Origin { secure, authority }, target))
    }
}

/// What one read takes at most: written and hashed while it is still in the processor's cache.
const READ_MAX: usize = 256 * 1024;

fn is_redirect(status: StatusCode) -> bool {
    matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308)
}

fn bearer(file: &[u8]) -> Option<HeaderValue> {
    let token = std::str::from_utf8(file).ok()?.trim();
    let fits =
        !token.is_empty() && token.len() <= TOKEN_MAX && token.bytes().all(|byte| byte.is_ascii_graphic());
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).ok().filter(|_| fits)?;
    value.set_sensitive(true);
    Some(value)
}

fn host_of(authority: &str) -> &str {
    authority.rsplit_once(':').map_or(authority, |(host, _)| host).trim_matches(['[', ']'])
}

/// Without the scheme's own port: signatures of some stores are over this header.
fn host_header(origin: &Origin) -> &str {
    let own = if origin.secure { ":443" } else { ":80" };
    origin.authority.strip_suffix(own).unwrap_or(&origin.authority)
}

/// A path with everything escaped that is not plainly a path's.
fn escaped(path: &str) -> String {
    let mut out = String::with_capacity(path.len());
    for byte in path.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// An error of the network without the address that some systems put into it.
fn words(error: &std::io::Error) -> &'static str {
    use std::io::ErrorKind;
    match error.kind() {
        ErrorKind::ConnectionRefused => "connection refused",
        ErrorKind::ConnectionReset | ErrorKind::ConnectionAborted => "connection reset",
        ErrorKind::TimedOut => "timed out",
        ErrorKind::HostUnreachable | ErrorKind::NetworkUnreachable => "no route to the host",
        ErrorKind::NetworkDown => "the network is down",
        // A name that is not found has no kind of its own, and no number.
        _ if error.raw_os_error().is_none() => "the name cannot be looked up",
        _ => "failed",
    }
}
