//! The CA: what it signs, what it refuses, and its files.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::tls::{Trust, wire_client, wire_server};

const NOW: Wall = Wall(1_800_000_000_000);
const DAY: Duration = Duration::from_secs(24 * 3600);

fn authority() -> (tempfile::TempDir, Authority) {
    let dir = tempfile::tempdir().unwrap();
    let authority = Authority::create(&dir.path().join("ca"), "ber1", NOW).unwrap();
    (dir, authority)
}

fn edge() -> EdgeId {
    EdgeId::parse("ber1").unwrap()
}

#[test]
fn it_survives_a_restart_and_is_never_overwritten() {
    let (dir, made) = authority();
    let path = dir.path().join("ca");
    let opened = Authority::open(&path).unwrap();
    assert_eq!(opened.digest(), made.digest());
    assert!(matches!(Authority::create(&path, "ber1", NOW), Err(AuthorityError::Exists(_))));
    assert_eq!(std::fs::metadata(path.join(KEY_FILE)).unwrap().mode() & 0o777, 0o600);
    assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
}

#[test]
fn of_a_request_only_the_key_is_taken() {
    let (_dir, authority) = authority();
    let key = KeyPair::generate().unwrap();
    // A request that asks for another name, for CA rights and for another usage.
    let mut greedy = CertificateParams::new(vec!["control-plane.umbel".to_owned()]).unwrap();
    greedy.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    greedy.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let request = greedy.serialize_request(&key).unwrap();
    let node = NodeId::random();
    let issued = authority.sign_node(request.der(), &edge(), node, NOW, DAY).unwrap();
    let leaf = issued.chain.first().unwrap();
    let peer = PeerCertificate::parse(leaf).unwrap();
    assert_eq!(peer.name, Some(PeerName::Node(edge(), node)));
    assert_eq!(peer.key_hash, key.key_hash());
    assert_eq!(issued.key_hash, request_key_hash(request.der()).unwrap());
    assert_eq!((peer.serial.len(), peer.serial == issued.serial), (32, true));
    assert_eq!(peer.not_after, NOW + DAY);
    assert!(peer.not_before < NOW && peer.valid_at(NOW) && !peer.valid_at(NOW + DAY * 2));
    let (_, x509) = x509_parser::parse_x509_certificate(leaf).unwrap();
    let usage = x509.extended_key_usage().unwrap().unwrap().value;
    assert!(!x509.is_ca() && usage.client_auth && !usage.server_auth);
    assert_eq!(issued.chain.last().unwrap().as_slice(), authority.certificate_der().as_ref());
}

#[test]
fn a_bad_request_is_the_peers_fault() {
    let (_dir, authority) = authority();
    let sign = |request: &[u8]| authority.sign_edge(request, &edge(), NOW, DAY);
    let mut forged = KeyPair::generate().unwrap().signing_request().unwrap();
    *forged.last_mut().unwrap() ^= 1;
    for bad in [&b""[..], b"not a request", &forged, &[0x30; LARGEST_REQUEST + 1]] {
        assert!(matches!(sign(bad), Err(AuthorityError::Request(_))));
    }
    let large = rcgen::KeyPair::generate_for(&rcgen::PKCS_ECDSA_P384_SHA384).unwrap();
    let request = CertificateParams::default().serialize_request(&large).unwrap();
    assert!(matches!(sign(request.der()), Err(AuthorityError::Request(_))));
    let small = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
    let request = CertificateParams::default().serialize_request(&small).unwrap();
    assert!(sign(request.der()).is_ok());
}

#[test]
fn an_imported_ca_must_be_one_and_have_its_key() {
    let (dir, made) = authority();
    let read = |name: &str| std::fs::read(dir.path().join("ca").join(name)).unwrap();
    let (certificate, key) = (read(CERTIFICATE_FILE), read(KEY_FILE));
    let imported = Authority::import(&dir.path().join("imported"), &certificate, &key).unwrap();
    assert_eq!(imported.digest(), made.digest());
    let other = KeyPair::generate().unwrap();
    let refused = Authority::import(&dir.path().join("x"), &certificate, other.to_pem().as_bytes());
    assert!(refused.unwrap_err().to_string().contains("do not belong together"));
    let server = made.issue_server(&["ber1.umbel".to_owned()], NOW, DAY).unwrap();
    let leaf = to_pem(server.chain.get(..1).unwrap());
    let refused = Authority::import(&dir.path().join("x"), leaf.as_bytes(), server.key.to_pem().as_bytes());
    assert!(refused.unwrap_err().to_string().contains("not a CA"));
}

#[test]
fn a_key_that_others_can_read_is_refused() {
    use std::os::unix::fs::PermissionsExt;
    let (dir, _made) = authority();
    let path = dir.path().join("ca");
    std::fs::set_permissions(path.join(KEY_FILE), std::fs::Permissions::from_mode(0o640)).unwrap();
    assert!(Authority::open(&path).unwrap_err().to_string().contains("chmod 600"));
}

quickcheck::quickcheck! {
    fn arbitrary_requests_never_panic(bytes: Vec<u8>) -> bool {
        request_key_hash(&bytes).is_err()
    }

    fn a_truncated_request_is_refused(at: usize) -> bool {
        let request = KeyPair::generate().unwrap().signing_request().unwrap();
        request_key_hash(request.get(..at % request.len()).unwrap()).is_err()
    }
}

/// Row 32: what the chain of a changed CA is to hosts that know the old one, the new one, both, or another.
#[test]
fn row_32_a_bridge_leads_from_the_old_ca_to_the_new_one() {
    // The handshake looks at this host's clock.
    let now = Wall::now();
    let dir = tempfile::tempdir().unwrap();
    let made = |path: &str, name: &str| Authority::create(&dir.path().join(path), name, now).unwrap();
    let (old, new, other) = (made("ca", "ber1"), made("next", "ber1 2"), made("other", "ber1"));
    let mut server = new.issue_server(&["ber1.umbel".to_owned()], now, DAY).unwrap();
    server.chain.push(old.bridge(new.certificate_der(), now).unwrap());
    server.chain.push(old.certificate_der().clone());
    let dial = |trust: Trust, chain: &[CertificateDer<'static>]| {
        let client = wire_client(trust, None).unwrap();
        let mut client =
            rustls::ClientConnection::new(client, "ber1.umbel".to_owned().try_into().unwrap()).unwrap();
        let config = wire_server(chain.to_vec(), server.key.private_key()).unwrap().config();
        let mut server = rustls::ServerConnection::new(config).unwrap();
        let mut bytes = Vec::new();
        let mut answer = Vec::new();
        while client.is_handshaking() {
            bytes.clear();
            client.write_tls(&mut bytes).unwrap();
            server.read_tls(&mut bytes.as_slice()).unwrap();
            server.process_new_packets().unwrap();
            answer.clear();
            server.write_tls(&mut answer).unwrap();
            client.read_tls(&mut answer.as_slice()).unwrap();
            client.process_new_packets().map_err(|error| crate::tls::explain(&error))?;
        }
        Ok::<_, String>(())
    };
    let ca = |authority: &Authority| Trust::Ca(vec![authority.certificate_der().clone()]);
    for trust in [
        ca(&old),
        ca(&new),
        Trust::Ca(vec![new.certificate_der().clone(), old.certificate_der().clone()]),
        Trust::CaDigest(old.digest()),
        Trust::CaDigest(new.digest()),
    ] {
        dial(trust, &server.chain).unwrap();
    }
    let settled = server.chain.get(..2).unwrap();
    dial(ca(&new), settled).unwrap();
    for (trust, chain) in
        [(ca(&old), settled), (Trust::CaDigest(old.digest()), settled), (ca(&other), server.chain.as_slice())]
    {
        let error = dial(trust, chain).unwrap_err();
        assert!(error.contains("CA \"Umbel CA ber1 2\""), "{error}");
        assert!(
            error.contains("not of the CA that this host trusts") && error.contains("enroll this host"),
            "{error}"
        );
    }
}

#[test]
fn a_ca_knows_what_it_has_signed_at_any_time() {
    let (_dir, ours) = authority();
    let (_dir, other) = authority();
    let key = KeyPair::generate().unwrap();
    let request = key.signing_request().unwrap();
    let issued = ours.sign_node(&request, &edge(), NodeId::random(), Wall(1_600_000_000_000), DAY).unwrap();
    let leaf = CertificateDer::from(issued.chain.first().unwrap().clone());
    assert_eq!(issued.issuer, ours.digest());
    assert!(ours.has_signed(&leaf) && !other.has_signed(&leaf));
}
