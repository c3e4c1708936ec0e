//! Handshakes in memory: who is let in, who is refused, in which words.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at the first surprise")]

use std::time::Duration;

use rustls::pki_types::ServerName;
use rustls::{ClientConnection, ServerConnection};

use super::*;
use crate::ca::{Authority, SERVER_VALIDITY};
use crate::clock::Wall;
use crate::ids::{EdgeId, NodeId};
use crate::peer::PeerCertificate;

struct Site {
    _dir: tempfile::TempDir,
    authority: Authority,
    server: Arc<TlsServer>,
}

fn site(name: &str) -> Site {
    site_at(name, Wall::now(), SERVER_VALIDITY)
}

fn site_at(name: &str, now: Wall, validity: Duration) -> Site {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::create(dir.path(), name, now).unwrap();
    let pair = authority.issue_server(&[format!("{name}.umbel")], now, validity).unwrap();
    let server = wire_server(pair.chain, pair.key.private_key()).unwrap();
    Site { _dir: dir, authority, server }
}

fn identity(site: &Site) -> (ClientIdentity, KeyPair) {
    let key = KeyPair::generate().unwrap();
    let edge = EdgeId::parse("ber1").unwrap();
    let request = key.signing_request().unwrap();
    let issued =
        site.authority.sign_node(&request, &edge, NodeId::random(), Wall::now(), SERVER_VALIDITY).unwrap();
    let chain = issued.chain.into_iter().map(Into::into).collect();
    (ClientIdentity::new(chain, key.private_key()), key)
}

/// Carries bytes between the two until the handshake is done on both sides or one refuses.
fn shake(
    client: Arc<rustls::ClientConfig>,
    server: Arc<rustls::ServerConfig>,
    name: &str,
) -> Result<(ClientConnection, ServerConnection), rustls::Error> {
    let name = ServerName::try_from(name.to_owned()).unwrap();
    let mut client = ClientConnection::new(client, name)?;
    let mut server = ServerConnection::new(server)?;
    for _ in 0..10 {
        let mut bytes = Vec::new();
        while client.wants_write() {
            client.write_tls(&mut bytes).unwrap();
        }
        server.read_tls(&mut bytes.as_slice()).unwrap();
        let judged = server.process_new_packets();
        let mut answer = Vec::new();
        while server.wants_write() {
            server.write_tls(&mut answer).unwrap();
        }
        client.read_tls(&mut answer.as_slice()).unwrap();
        client.process_new_packets()?;
        judged?;
        if !client.is_handshaking() && !server.is_handshaking() && !client.wants_write() {
            return Ok((client, server));
        }
    }
    panic!("the handshake does not end");
}

fn trusting(site: &Site, identity: Option<ClientIdentity>) -> Arc<rustls::ClientConfig> {
    wire_client(Trust::Ca(vec![site.authority.certificate_der().clone()]), identity).unwrap()
}

#[test]
fn both_sides_prove_themselves_and_agree_on_the_framing() {
    let site = site("ber1");
    let (identity, key) = identity(&site);
    let (client, server) =
        shake(trusting(&site, Some(identity)), site.server.config(), "ber1.umbel").unwrap();
    assert_eq!(client.protocol_version(), Some(rustls::ProtocolVersion::TLSv1_3));
    assert_eq!(check_alpn(client.alpn_protocol()), Ok(()));
    assert_eq!(check_alpn(server.alpn_protocol()), Ok(()));
    let peer = PeerCertificate::parse(server.peer_certificates().unwrap().first().unwrap()).unwrap();
    assert_eq!(peer.key_hash, key.key_hash());
    assert_eq!(check_alpn(None), Err(AlpnMismatch));
}

#[test]
fn who_enrolls_needs_no_certificate_and_trusts_by_digest() {
    let site = site("ber1");
    let by_digest = |digest| wire_client(Trust::CaDigest(digest), None).unwrap();
    let digest = site.authority.digest();
    let (_, server) = shake(by_digest(digest), site.server.config(), "ber1.umbel").unwrap();
    assert!(server.peer_certificates().is_none());
    let Err(error) = shake(by_digest([0; 32]), site.server.config(), "ber1.umbel") else {
        panic!("trusted a stranger")
    };
    assert!(explain(&error).contains("not of the CA"), "{error}");
    // The right CA does not make a wrong name right.
    let Err(error) = shake(by_digest(digest), site.server.config(), "other.umbel") else {
        panic!("wrong name")
    };
    assert!(explain(&error).contains("another name"), "{error}");
}

#[test]
fn a_sent_ca_that_did_not_sign_is_no_proof() {
    let (site, other) = (site("ber1"), site("ber1"));
    // The impostor serves its own leaf and appends the right CA's certificate, which anybody can copy.
    let pair =
        other.authority.issue_server(&["ber1.umbel".to_owned()], Wall::now(), SERVER_VALIDITY).unwrap();
    let chain = vec![pair.chain.first().unwrap().clone(), site.authority.certificate_der().clone()];
    let impostor = wire_server(chain, pair.key.private_key()).unwrap();
    let client = wire_client(Trust::CaDigest(site.authority.digest()), None).unwrap();
    assert!(shake(client, impostor.config(), "ber1.umbel").is_err());
}

#[test]
fn the_acceptor_takes_any_certificate_whose_key_is_held_and_no_other() {
    let (site, foreign) = (site("ber1"), site("mun1"));
    let (stranger, _) = identity(&foreign);
    // Judged at hello, not here: the stranger gets through and can be told why it is refused.
    assert!(shake(trusting(&site, Some(stranger.clone())), site.server.config(), "ber1.umbel").is_ok());
    // A certificate shown with another key is refused by TLS itself.
    let chain = stranger.chain().to_vec();
    let stolen = ClientIdentity::new(chain, KeyPair::generate().unwrap().private_key());
    let refused = wire_client(Trust::Ca(vec![site.authority.certificate_der().clone()]), Some(stolen));
    assert!(matches!(refused, Err(TlsError::Mismatch)));
}

#[test]
fn time_is_checked_and_the_clock_is_named() {
    let now = Wall::now();
    let day = 24 * 3600 * 1000;
    let future = site_at("ber1", Wall(now.0 + 30 * day), SERVER_VALIDITY);
    let Err(error) = shake(trusting(&future, None), future.server.config(), "ber1.umbel") else {
        panic!("not yet valid")
    };
    assert!(explain(&error).contains("clock of this host is behind"), "{}", explain(&error));
    let past = site_at("ber1", Wall(now.0 - 30 * day), Duration::from_secs(3600));
    let Err(error) = shake(trusting(&past, None), past.server.config(), "ber1.umbel") else {
        panic!("expired")
    };
    assert!(explain(&error).contains("expired"), "{}", explain(&error));
}

#[test]
fn no_session_is_ever_resumed_on_the_wire() {
    let site = site("ber1");
    let client = trusting(&site, Some(identity(&site).0));
    for _ in 0..3 {
        let (client, server) = shake(client.clone(), site.server.config(), "ber1.umbel").unwrap();
        assert_eq!(client.handshake_kind(), Some(rustls::HandshakeKind::Full));
        assert!(server.peer_certificates().is_some());
    }
}

#[test]
fn a_front_resumes_and_speaks_http() {
    let site = site("ber1");
    let pair = site.authority.issue_server(&["localhost".to_owned()], Wall::now(), SERVER_VALIDITY).unwrap();
    let front = front_server(pair.chain, pair.key.private_key()).unwrap();
    let client = api_client(&[site.authority.certificate_der().clone()]).unwrap();
    let (first, _) = shake(client.clone(), front.config(), "localhost").unwrap();
    assert_eq!(first.alpn_protocol(), Some(&b"http/1.1"[..]));
    let (second, _) = shake(client, front.config(), "localhost").unwrap();
    assert_eq!(second.handshake_kind(), Some(rustls::HandshakeKind::Resumed));
    // The wire's client is not served by an HTTPS front, and the other way round.
    assert!(shake(trusting(&site, None), front.config(), "localhost").is_err());
}

#[test]
fn a_certificate_is_replaced_while_serving_and_a_half_written_pair_is_not_taken() {
    let site = site("ber1");
    let old = site.server.not_after();
    let later =
        site.authority.issue_server(&["ber1.umbel".to_owned()], Wall::now(), SERVER_VALIDITY * 2).unwrap();
    // Row 31: the certificate file is new, the key file still the old one.
    let stale = KeyPair::generate().unwrap();
    assert!(matches!(site.server.reload(later.chain.clone(), stale.private_key()), Err(TlsError::Mismatch)));
    assert_eq!(site.server.not_after(), old);
    assert!(shake(trusting(&site, None), site.server.config(), "ber1.umbel").is_ok());
    site.server.reload(later.chain.clone(), later.key.private_key()).unwrap();
    assert!(site.server.not_after() > old);
    let (client, _) = shake(trusting(&site, None), site.server.config(), "ber1.umbel").unwrap();
    assert_eq!(client.peer_certificates().unwrap().first(), later.chain.first());
}

#[test]
fn pem_goes_both_ways_and_keys_stay_private() {
    let site = site("ber1");
    let pair = site.authority.issue_server(
        &["ber1.umbel".to_owned(), "127.0.0.1".to_owned()],
        Wall::now(),
        SERVER_VALIDITY,
    );
    let pair = pair.unwrap();
    assert_eq!(parse_chain(to_pem(&pair.chain).as_bytes()).unwrap(), pair.chain);
    let again = KeyPair::from_pem(pair.key.to_pem().as_bytes()).unwrap();
    assert_eq!(again.key_hash(), pair.key.key_hash());
    let printed = format!("{:?} {:?} {:?}", pair.key, pair.key.to_pem(), identity(&site).0);
    assert!(!printed.contains("PRIVATE KEY"), "{printed}");
    let dir = tempfile::tempdir().unwrap();
    let (certificate, key) = (dir.path().join("c.pem"), dir.path().join("k.pem"));
    crate::files::write_public(&certificate, to_pem(&pair.chain).as_bytes()).unwrap();
    crate::files::write_private(&key, pair.key.to_pem().as_bytes()).unwrap();
    let (chain, private) = read_pair(&certificate, &key).unwrap();
    assert!(front_server(chain, private).is_ok());
    assert!(parse_chain(b"nothing here").is_err());
}

#[test]
fn what_is_not_tls_is_called_so() {
    let site = site("ber1");
    let mut client =
        ClientConnection::new(trusting(&site, None), ServerName::try_from("ber1.umbel").unwrap()).unwrap();
    client.read_tls(&mut &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..]).unwrap();
    let error = client.process_new_packets().unwrap_err();
    assert!(explain(&error).contains("does not speak TLS"), "{error:?}");
}
