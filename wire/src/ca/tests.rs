//! The CA: what it signs, what it refuses, and its files.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::os::unix::fs::MetadataExt;

use super::*;

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
