//! What of a rotation cannot be used is not shown for ever.
#![allow(clippy::unwrap_used, reason = "tests")]

use umbel_wire::ca::{Authority, CLIENT_VALIDITY};

use super::*;
use crate::core::identity::FORMAT;
use crate::shell::state::KEY;

/// A pending certificate that cannot be used is none: the next step is not to show it again and again.
#[test]
fn a_pending_certificate_that_cannot_be_used_is_none() {
    let folder = tempfile::tempdir().unwrap();
    let state = Arc::new(State::open(&folder.path().join("state")).unwrap());
    let now = Wall::now();
    let authority = Authority::create(&folder.path().join("ca"), "ber1", now).unwrap();
    let (edge, id) = (EdgeId::parse("ber1").unwrap(), NodeId::random());
    let request = state.key(KEY, true).unwrap().signing_request().unwrap();
    let issued = authority.sign_node(&request, &edge, id, now, CLIENT_VALIDITY).unwrap();
    let identity = Identity {
        format: FORMAT,
        node_id: id.0,
        edge_id: edge.to_string(),
        name: "n".into(),
        addresses: vec!["edge.example:7451".into()],
        certificate_chain: issued.chain.iter().map(|der| BASE64.encode(der)).collect(),
        ca_certificate: BASE64.encode(authority.certificate_der()),
        ca_certificates: Vec::new(),
        key_file: KEY.to_owned(),
        not_after_unix_ms: issued.not_after.unix_ms(),
    };
    state.set_identity(&identity).unwrap();
    let spare = identity.spare_key_file();
    let request = state.key(spare, true).unwrap().signing_request().unwrap();
    let issued = authority.sign_node(&request, &edge, id, now, CLIENT_VALIDITY).unwrap();
    let pending = |chain: Vec<String>| PendingCredential {
        certificate_chain: chain,
        key_file: spare.to_owned(),
        not_after_unix_ms: issued.not_after.unix_ms(),
    };
    let good = pending(issued.chain.iter().map(|der| BASE64.encode(der)).collect());
    state.set_pending(Some(&good)).unwrap();
    let credentials = Credentials::open(&state, identity.clone()).unwrap();
    assert_eq!(credentials.next(false), Some(Step::Show));

    // Found so at the start.
    state.set_pending(Some(&pending(vec!["no certificate".to_owned()]))).unwrap();
    let credentials = Credentials::open(&state, identity.clone()).unwrap();
    assert_eq!(credentials.next(false), None);
    assert_eq!(credentials.next(true), Some(Step::Ask), "for the key that is there");

    // Found so when the trust changes: it goes from the disk, too.
    state.set_pending(Some(&good)).unwrap();
    let credentials = Credentials::open(&state, identity.clone()).unwrap();
    if let Some((pending, _)) = &mut credentials.lock().pending {
        pending.certificate_chain = vec!["no certificate".to_owned()];
    }
    credentials.adopt(identity).unwrap();
    assert!(state.pending().is_none());
    assert_eq!(credentials.next(false), None);
}
