//! A peer on the wire ports that obeys no rule: TLS by hand, any bytes, any frame, any certificate.
//!
//! It verifies nothing, since it is the attacker; the product's own dialers are tested through the product.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use prost::Message;
use rustix::net::sockopt;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{ClientConfig, ClientConnection, DigitallySignedStruct, SignatureScheme, StreamOwned};
use umbel_wire::proto::{self, Frame};

/// The framing's ALPN.
pub const ALPN: &[u8] = b"umbel/1";

#[derive(Debug)]
struct Gullible(Arc<CryptoProvider>);

impl ServerCertVerifier for Gullible {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

/// A certificate chain with its key.
pub struct Identity {
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
}

impl Identity {
    /// What a node was given at its enrollment, from its state directory.
    ///
    /// # Errors
    /// When it is not there or not understood.
    pub fn of_node(state: &Path) -> io::Result<Self> {
        let text = std::fs::read(state.join("identity.json"))?;
        let identity: serde_json::Value = serde_json::from_slice(&text)?;
        let entries =
            identity.get("certificate_chain").and_then(|c| c.as_array()).cloned().unwrap_or_default();
        let chain = entries
            .iter()
            .map(|c| {
                data_encoding::BASE64
                    .decode(c.as_str().unwrap_or_default().as_bytes())
                    .map(CertificateDer::from)
            })
            .collect::<Result<Vec<_>, _>>()
            .map_err(wrong)?;
        Ok(Self { chain, key: PrivateKeyDer::from_pem_file(state.join("node.key")).map_err(wrong)? })
    }

    /// What an edge was given by the first control plane that it joined, from its state directory.
    ///
    /// # Errors
    /// When it is not there or not understood.
    pub fn of_edge(state: &Path) -> io::Result<Self> {
        let joined =
            std::fs::read_dir(state.join("control-planes"))?.next().ok_or(io::ErrorKind::NotFound)??.path();
        let chain = CertificateDer::pem_file_iter(joined.join("certificate.pem"))
            .map_err(wrong)?
            .collect::<Result<Vec<_>, _>>()
            .map_err(wrong)?;
        Ok(Self { chain, key: PrivateKeyDer::from_pem_file(joined.join("key.pem")).map_err(wrong)? })
    }
}

/// How the peer says hello in TLS.
#[derive(Clone)]
pub struct Manner<'a> {
    /// The server name it asks for.
    pub name: &'a str,
    /// The certificate that it shows.
    pub identity: Option<&'a Identity>,
    /// Its ALPN; empty: none.
    pub alpn: &'a [u8],
}

/// A connection after TLS.
pub struct Peer {
    tls: StreamOwned<ClientConnection, TcpStream>,
}

fn wrong<E: std::fmt::Display>(e: E) -> io::Error {
    io::Error::other(e.to_string())
}

fn config(manner: &Manner<'_>) -> io::Result<ClientConfig> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ClientConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(wrong)?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Gullible(provider)));
    let mut config = match &manner.identity {
        None => builder.with_no_client_auth(),
        Some(identity) => {
            builder.with_client_auth_cert(identity.chain.clone(), identity.key.clone_key()).map_err(wrong)?
        }
    };
    if !manner.alpn.is_empty() {
        config.alpn_protocols = vec![manner.alpn.to_vec()];
    }
    Ok(config)
}

impl Peer {
    /// Connects and completes TLS.
    ///
    /// # Errors
    /// When the other side does not let it.
    pub fn connect(address: SocketAddr, manner: &Manner<'_>) -> io::Result<Self> {
        let config = config(manner)?;
        let name = ServerName::try_from(manner.name.to_owned()).map_err(wrong)?;
        let socket = TcpStream::connect_timeout(&address, Duration::from_secs(5))?;
        socket.set_nodelay(true)?;
        socket.set_read_timeout(Some(Duration::from_secs(20)))?;
        let mut tls = StreamOwned::new(ClientConnection::new(Arc::new(config), name).map_err(wrong)?, socket);
        while tls.conn.is_handshaking() {
            tls.conn.complete_io(&mut tls.sock)?;
        }
        Ok(Self { tls })
    }

    /// Writes bytes as they are.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn raw(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tls.write_all(bytes)?;
        self.tls.flush()
    }

    /// Writes a frame with its length.
    ///
    /// # Errors
    /// When the connection is gone.
    pub fn frame(&mut self, frame: &Frame) -> io::Result<()> {
        self.raw(&encoded(frame))
    }

    /// The next frame; none at a clean end.
    ///
    /// # Errors
    /// When the connection broke, was silent for 20 s, or sent what is no frame.
    pub fn read(&mut self) -> io::Result<Option<Frame>> {
        let mut length = [0_u8; 4];
        match self.tls.read(&mut length)? {
            0 => return Ok(None),
            4 => {}
            n => self.tls.read_exact(length.get_mut(n..).unwrap_or_default())?,
        }
        let mut bytes = vec![0; u32::from_be_bytes(length) as usize];
        self.tls.read_exact(&mut bytes)?;
        Frame::decode(bytes.as_slice()).map(Some).map_err(wrong)
    }

    /// The first frame that is a rejection.
    ///
    /// # Errors
    /// When something else comes first.
    pub fn rejection(&mut self) -> io::Result<proto::Reject> {
        match self.read()?.and_then(|f| f.meta) {
            Some(proto::frame::Meta::Reject(reject)) => Ok(reject),
            other => Err(io::Error::other(format!("no rejection but {other:?}"))),
        }
    }

    /// Reads and throws away until the other side closes; whether it did so within the read limit.
    pub fn is_closed_by_peer(&mut self) -> bool {
        let mut buffer = [0_u8; 4096];
        loop {
            match self.tls.read(&mut buffer) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(e) => return !matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut),
            }
        }
    }

    /// The socket under TLS and TLS itself.
    pub(crate) fn into_stream(self) -> StreamOwned<ClientConnection, TcpStream> {
        self.tls
    }

    /// Leaves without a farewell: FIN, or RST.
    pub fn leave(self, reset: bool) {
        if reset {
            let _ = sockopt::set_socket_linger(&self.tls.sock, Some(Duration::ZERO));
        }
    }
}

/// A frame with its length.
#[must_use]
pub fn encoded(frame: &Frame) -> Vec<u8> {
    let body = frame.encode_to_vec();
    let mut all = u32::try_from(body.len()).unwrap_or(u32::MAX).to_be_bytes().to_vec();
    all.extend_from_slice(&body);
    all
}

/// A HELLO with these versions and payload.
#[must_use]
pub fn hello(versions: (u32, u32), payload: Vec<u8>) -> Frame {
    Frame {
        kind: proto::Kind::Hello as u32,
        payload,
        meta: Some(proto::frame::Meta::Hello(proto::Hello {
            purpose: proto::Purpose::Hello as i32,
            protocol_min: versions.0,
            protocol_max: versions.1,
            instance_id: vec![7; 16],
            attempt: 1,
        })),
        ..Frame::default()
    }
}
