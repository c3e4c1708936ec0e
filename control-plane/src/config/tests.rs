//! The file: defaults, strictness, and errors that say where and what instead.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, Path::new("cp.toml")).map_err(|error| {
        assert_eq!(error.exit_code(), 78);
        error.to_string()
    })
}

const LEAST: &str = "[control_plane]\nadvertise = [\"cp.example.net:7441\"]\n";

#[test]
fn the_least_file_gives_the_documented_defaults() {
    let config = parse(LEAST).unwrap();
    assert_eq!(config.api.unwrap().to_string(), "127.0.0.1:7440");
    assert_eq!(config.edges.to_string(), "0.0.0.0:7441");
    assert_eq!(config.socket, Path::new("/var/lib/umbel/control-plane/control-plane.sock"));
    assert_eq!(
        (config.heartbeat, config.silence.stale(), config.silence.offline()),
        (Duration::from_secs(10), Duration::from_secs(30), Duration::from_secs(90))
    );
    assert_eq!((config.status_deadline, config.drain), (Duration::from_secs(2), Duration::from_secs(30)));
    assert_eq!(config.fleet_name, "control-plane");
}

#[test]
fn what_is_off_is_off() {
    let config = parse(&format!("{LEAST}[listen]\nmetrics = \"\"\napi = \"\"\n")).unwrap();
    assert_eq!((config.metrics, config.api), (None, None));
}

#[test]
fn wrong_files_are_refused_with_their_place() {
    let rows = [
        ("[control_plane]\nnme = \"x\"\n", "cp.toml:2:1: unknown key \"nme\", did you mean \"name\"?"),
        ("[control_plane]\nname = \"No Such\"\n", "cp.toml:2:1: control_plane.name"),
        ("[control_plane]\n", "control_plane.advertise: needs 1 to 8"),
        ("[control_plane]\nadvertise = [\"cp\"]\n", "\"cp\" is not host:port"),
        ("[listen]\nedges = \"\"\n", "listen.edges: cannot be off"),
        ("[listen]\napi = \"7440\"\n", "\"7440\" is not an address and port"),
        ("[tls]\napi_cert_file = \"a.pem\"\n", "needs tls.api_key_file too"),
        ("[liveness]\nheartbeat = \"40s\"\n", "liveness.stale: must be longer than liveness.heartbeat"),
        ("[liveness]\noffline = \"10s\"\n", "liveness.stale"),
        ("[status]\ndeadline = \"1h\"\n", "status.deadline: must be 50ms to 30s"),
    ];
    for (text, wanted) in rows {
        let text =
            if text.starts_with("[control_plane]") { text.to_owned() } else { format!("{LEAST}{text}") };
        let error = parse(&text).unwrap_err();
        assert!(error.contains(wanted), "{text}\n{error}");
    }
}
