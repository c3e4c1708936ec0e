//! Applications that hold connections and ask for nothing, and many that ask at once.

use std::io::{Read, Write};
use std::net::TcpStream;

use serde_json::json;
use umbel_tests::fleet::resident_kb;
use umbel_tests::wait;

use crate::sites::{SHORT, site};

/// What one idle connection may cost an edge, in KiB.
const IDLE_KB: u64 = 24;

/// Thousands of idle connections: some fresh, some that asked before, some that began a head; streams pass beside them.
#[test]
fn thousands_of_idle_connections_hinder_nobody() {
    let s = site(8);
    // Both ends of each are files, and the test shares its limit with others.
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current.unwrap_or(1024);
    let count = usize::try_from(files / 4).unwrap_or(256).min(3_000);
    let before = resident_kb(s.edge.daemon.pid());
    let mut held = Vec::new();
    for n in 0..count {
        let mut socket = TcpStream::connect(s.edge.api).unwrap();
        match n % 3 {
            0 => {}
            1 => {
                socket.write_all(b"GET /livez HTTP/1.1\r\nHost: e\r\n\r\n").unwrap();
                let mut answer = [0; 512];
                let got = socket.read(&mut answer).unwrap();
                assert!(answer[..got].starts_with(b"HTTP/1.1 200"), "connection {n}");
            }
            _ => socket.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nHost").unwrap(),
        }
        held.push(socket);
    }
    for n in 0..8 {
        let got =
            s.edge.chat("m", &format!("beside-{n}-"), true, &json!({})).whole(&s.edge.target()).unwrap();
        assert!(got.text().ends_with("data: [DONE]\n\n"), "{}", got.text());
    }
    let each = resident_kb(s.edge.daemon.pid()).saturating_sub(before) / u64::try_from(count).unwrap();
    assert!(each <= IDLE_KB, "{each} KiB for each of {count} idle connections");
    drop(held);
    s.edge.wait_idle(SHORT);
    let got = s.edge.chat("m", "after", true, &json!({})).whole(&s.edge.target()).unwrap();
    assert_eq!(got.status, 200);
}

/// Clients that all come at once, far more than fit: each has a whole answer or a refusal, and the engine is never above
/// its capacity.
#[test]
fn a_crowd_is_served_or_refused_and_nothing_is_lost() {
    let s = site(4);
    let asked: Vec<_> = (0..200)
        .map(|n| {
            s.edge
                .chat("m", &format!("crowd-{n}-"), n % 2 == 0, &json!({"events": 20}))
                .send(&s.edge.target())
                .unwrap()
        })
        .collect();
    wait::until("the engine is done with all", 6 * SHORT, || {
        s.engine.records().iter().filter(|record| record.end.is_some()).count() == 200
    });
    let most = s.engine.peak();
    assert!((1..=4).contains(&most), "{most} at once at an engine of 4");
    for sent in asked {
        let got = sent.head().unwrap().rest();
        assert_eq!(got.status, 200, "{}", got.text());
    }
    s.edge.wait_idle(SHORT);
}
