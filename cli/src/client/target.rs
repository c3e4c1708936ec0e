//! Which server `ctl` talks to, and what it must show to be trusted.
//!
//! Owns the order: flags and environment first, then the local sockets of a packaged control plane or edge.
//! Invariant: an address needs a CA file and a token file; neither check can be switched off.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use rustls::pki_types::{CertificateDer, ServerName, pem::PemObject as _};
use umbel_wire::{
    secret::SecretText,
    tls,
    token::{BearerKind, parse_bearer},
};

use crate::{
    args::Global,
    exit::{Exit, Failure, Outcome},
    secrets,
};

/// Where a packaged daemon's socket stands, in the order in which they are tried.
const LOCAL_SOCKETS: [&str; 2] =
    ["/var/lib/umbel/control-plane/control-plane.sock", "/var/lib/umbel/edge/edge.sock"];
/// The control plane's operator API.
const DEFAULT_PORT: u16 = 7440;

/// A server of the operator API.
#[derive(Clone)]
pub(crate) enum Server {
    /// A local socket: who may open it is an admin.
    Socket(PathBuf),
    /// HTTPS with the control plane's CA and an operator token.
    Tls {
        /// The host to connect to.
        host: String,
        /// The port to connect to.
        port: u16,
        /// The name that its certificate must hold.
        name: ServerName<'static>,
        /// How to check it.
        config: Arc<rustls::ClientConfig>,
        /// The operator token.
        token: SecretText,
    },
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Server({self})")
    }
}

impl fmt::Display for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Server::Socket(path) => write!(f, "{}", path.display()),
            Server::Tls { host, port, .. } if host.contains(':') => write!(f, "https://[{host}]:{port}"),
            Server::Tls { host, port, .. } => write!(f, "https://{host}:{port}"),
        }
    }
}

impl Server {
    /// The value of the request's Host header.
    pub(crate) fn host(&self) -> String {
        match self {
            Server::Socket(_) => "localhost".to_owned(),
            Server::Tls { host, port, .. } if host.contains(':') => format!("[{host}]:{port}"),
            Server::Tls { host, port, .. } => format!("{host}:{port}"),
        }
    }

    /// The token to show; a local socket needs none.
    pub(crate) fn token(&self) -> Option<&SecretText> {
        match self {
            Server::Socket(_) => None,
            Server::Tls { token, .. } => Some(token),
        }
    }
}

/// Finds the server that flags, environment or this host name.
pub(crate) fn find_server(global: &Global) -> Outcome<Server> {
    secrets::refuse_in_argv(global.token.is_some())?;
    // A flag wins over any variable, so that a shell with UMBEL_SOCKET set can still ask another server.
    let flag = global.socket.is_some() || global.addr.is_some();
    let variable = |name: &str| std::env::var_os(name).filter(|value| !flag && !value.is_empty());
    if let Some(path) = global.socket.clone().or_else(|| variable("UMBEL_SOCKET").map(PathBuf::from)) {
        return Ok(Server::Socket(path));
    }
    let addr = variable("UMBEL_ADDR").map(|addr| addr.to_string_lossy().into_owned());
    if let Some(addr) = global.addr.clone().or(addr) {
        let token_file = global.token_file.clone().ok_or_else(|| {
            Failure::usage("--addr needs an operator token").remedy("--token-file FILE, or UMBEL_TOKEN_FILE")
        })?;
        let ca_file = global.ca_file.clone().ok_or_else(|| {
            Failure::usage("--addr needs the control plane's CA").remedy(
                "--ca-file FILE, or UMBEL_CA_FILE; copy ca/ca.pem from the control plane's state directory",
            )
        })?;
        return over_tls(&addr, &ca_file, &token_file);
    }
    let local = LOCAL_SOCKETS.iter().map(Path::new).find(|path| path.exists());
    local.map(|path| Server::Socket(path.to_owned())).ok_or_else(|| {
        Failure::new(Exit::Unreachable, "no server was named and none runs on this host")
            .remedy("--socket FILE for a local control plane or edge (`umbel dev` prints its own)")
            .remedy("--addr https://HOST:7440 --token-file FILE --ca-file FILE for a control plane elsewhere")
    })
}

fn over_tls(addr: &str, ca_file: &Path, token_file: &Path) -> Outcome<Server> {
    let wrong =
        |why: &str| Failure::usage(format!("--addr {addr}: {why}")).remedy("write it as https://HOST:PORT");
    let authority = addr.strip_prefix("https://").unwrap_or(addr).trim_end_matches('/');
    if authority.contains("://") {
        return Err(wrong("only https is spoken"));
    }
    let (host, port) = split(authority).ok_or_else(|| wrong("this is no HOST:PORT"))?;
    let name =
        ServerName::try_from(host.clone()).map_err(|_| wrong("this is neither a name nor an address"))?;
    let text = fs::read(ca_file)
        .map_err(|error| Failure::usage(format!("cannot read the CA from {}: {error}", ca_file.display())))?;
    let certificates: Vec<CertificateDer<'static>> = CertificateDer::pem_slice_iter(&text)
        .collect::<Result<_, _>>()
        .map_err(|error| Failure::usage(format!("{}: not a PEM file: {error}", ca_file.display())))?;
    if certificates.is_empty() {
        return Err(Failure::usage(format!("{} holds no certificate", ca_file.display())));
    }
    let config = tls::api_client(&certificates)
        .map_err(|error| Failure::usage(format!("{}: {error}", ca_file.display())))?;
    Ok(Server::Tls { host, port, name, config, token: operator_token(token_file)? })
}

/// Reads the token and finds out here what the server could only refuse.
fn operator_token(file: &Path) -> Outcome<SecretText> {
    let text = secrets::read_file(file, "operator token")?;
    parse_bearer(&text, BearerKind::OperatorToken)
        .map_err(|error| Failure::usage(format!("{}: {error}", file.display())))?;
    Ok(SecretText::new(text.as_str().to_owned()))
}

fn split(authority: &str) -> Option<(String, u16)> {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, rest) = rest.split_once(']')?;
        let port = rest.strip_prefix(':').map_or(Some(DEFAULT_PORT), |port| port.parse().ok())?;
        return Some((host.to_owned(), port));
    }
    match authority.rsplit_once(':') {
        None if authority.is_empty() => None,
        None => Some((authority.to_owned(), DEFAULT_PORT)),
        Some(("", _)) => None,
        Some((host, _)) if host.contains(':') => Some((authority.to_owned(), DEFAULT_PORT)),
        Some((host, port)) => Some((host.to_owned(), port.parse().ok()?)),
    }
}

#[cfg(test)]
mod tests {
    use super::split;

    #[test]
    fn addresses_are_read() {
        let cases = [
            ("cp.example:7000", Some(("cp.example", 7000))),
            ("cp.example", Some(("cp.example", 7440))),
            ("[::1]:9", Some(("::1", 9))),
            ("::1", Some(("::1", 7440))),
            ("", None),
            (":80", None),
            ("host:port", None),
        ];
        for (text, wanted) in cases {
            assert_eq!(split(text), wanted.map(|(host, port)| (host.to_owned(), port)), "{text}");
        }
    }
}
