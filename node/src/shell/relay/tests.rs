//! What an opening turns into.

use prost::Message;
use umbel_contracts::proto::node::{Header, InferenceOpen};

mod taking;

use super::open::{self, Asked};
use crate::shell::{
    engine_http::{Place, Pool},
    engines::HttpRoute,
};

fn header(name: &str, value: &[u8]) -> Header {
    Header { name: name.into(), value: value.to_vec() }
}

fn opening() -> InferenceOpen {
    InferenceOpen {
        method: "POST".into(),
        path: "/v1/chat/completions".into(),
        body_bytes: 2,
        request_id: "r-1".into(),
        ..InferenceOpen::default()
    }
}

fn head(open: &InferenceOpen) -> String {
    let pool = Pool::new(Place::Named("engine:1".into()));
    let http = HttpRoute {
        pool,
        base: String::new(),
        key: Some("own".into()),
        gone: None,
        ports: Default::default(),
        traffic: Default::default(),
    };
    let message = open.encode_to_vec();
    let (route, opening) = open::parse(&message).unwrap();
    String::from_utf8(Asked::new(route, &opening).head(&http)).unwrap()
}

/// Row 35: the caller's credentials and hop-by-hop headers stay here; the engine gets its own key.
#[test]
fn row_35_only_known_headers_reach_an_engine() {
    let mut open = opening();
    for (name, value) in [
        ("authorization", "Bearer client"),
        ("cookie", "a=b"),
        ("x-api-key", "client"),
        ("proxy-authorization", "client"),
        ("connection", "x-foo"),
        ("x-foo", "client"),
        ("te", "trailers"),
        ("content-length", "9"),
        ("host", "client"),
        ("origin", "http://client"),
        ("via", "1.1 client"),
        ("forwarded", "for=192.0.2.1"),
        ("x-forwarded-for", "192.0.2.1"),
        ("x-real-ip", "192.0.2.1"),
        ("content-type", "application/json"),
        ("accept", "x\r\nauthorization: client"),
    ] {
        open.headers.push(header(name, value.as_bytes()));
    }
    assert_eq!(
        head(&open),
        "POST /v1/chat/completions HTTP/1.1\r\nhost: engine:1\r\ncontent-type: application/json\r\nx-request-id: r-1\r\n\
         authorization: Bearer own\r\ncontent-length: 2\r\n\r\n"
    );
}

#[test]
fn only_known_routes_are_relayed() {
    assert!(open::parse(&opening().encode_to_vec()).is_ok());
    for (method, path) in [
        ("GET", "/v1/chat/completions"),
        ("POST", "/slots/0?action=save"),
        ("POST", "/v1/completions HTTP/1.1\r\nx: y"),
        ("POST", "/v1/../metrics"),
    ] {
        let open = InferenceOpen { method: method.into(), path: path.into(), ..opening() };
        let refused = open::parse(&open.encode_to_vec()).unwrap_err();
        assert!(refused.not_processed);
    }
    assert!(open::parse(&[0xff, 0xff]).is_err());
}
