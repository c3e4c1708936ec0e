//! `umbel edge doctor`: checks the file, the state directory, the certificates, the ports and the control planes.
//!
//! Owns the checks and their next steps. Invariant: it changes nothing, and it works beside a running edge.

use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use umbel_store::{OpenError, Store};
use umbel_wire::ca::Authority;
use umbel_wire::clock::Wall;

use crate::Config;
use crate::app::{CONTROL_PLANES, STORE_FILE, STORE_OWNER};
use crate::core::credentials::CLOCK_FLOOR;
use crate::shell::authority::ca_dir;
use crate::shell::control::membership::{self, Membership, REJECTION};

/// For each address of a control plane.
const CONNECT: Duration = Duration::from_secs(2);

/// One step of the doctor.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Check {
    /// `state`, `authority`, `store`, `clock`, `advertise`, `port ...`, `control-plane NAME`.
    pub name: String,
    /// It is as it should be.
    pub passed: bool,
    /// What was found.
    pub message: String,
    /// What to do; empty when it passed.
    pub next_step: String,
}

fn passed(name: impl Into<String>, message: impl Into<String>) -> Check {
    Check { name: name.into(), passed: true, message: message.into(), next_step: String::new() }
}

fn failed(name: impl Into<String>, message: impl Into<String>, next_step: impl Into<String>) -> Check {
    Check { name: name.into(), passed: false, message: message.into(), next_step: next_step.into() }
}

/// Checks what can be checked on this host, whether or not the edge runs. Blocks for a few seconds at most and
/// changes nothing.
#[must_use]
pub fn doctor(config: &Config) -> Vec<Check> {
    let runs = std::os::unix::net::UnixStream::connect(&config.listen.socket).is_ok();
    let mut checks =
        vec![state(&config.state_dir), authority(config), store(config, runs), clock(), advertise(config)];
    let listen = &config.listen;
    for (key, address) in [
        ("listen.nodes", Some(listen.nodes)),
        ("listen.api", listen.api),
        ("listen.api_https", listen.api_https),
        ("listen.metrics", listen.metrics),
    ] {
        if let Some(address) = address {
            checks.push(port(key, address, runs));
        }
    }
    for (name, found) in membership::all(&config.state_dir.join(CONTROL_PLANES)) {
        checks.push(control_plane(config, &name, found));
    }
    checks
}

fn state(path: &Path) -> Check {
    use std::os::unix::fs::MetadataExt;
    match std::fs::metadata(path) {
        Err(error) => failed("state", format!("{}: {error}", path.display()), "Run `umbel edge init`."),
        Ok(about) if about.mode() & 0o077 != 0 => failed(
            "state",
            format!("{} is open to other users", path.display()),
            format!("Run: chmod 700 {}", path.display()),
        ),
        Ok(_) => passed("state", format!("{} is private", path.display())),
    }
}

fn authority(config: &Config) -> Check {
    match Authority::open(&ca_dir(config)) {
        Ok(authority) => passed(
            "authority",
            format!("certificate SHA-256 {}", data_encoding::HEXLOWER.encode(&authority.digest())),
        ),
        Err(error) => failed(
            "authority",
            error.to_string(),
            "Run `umbel edge init` if the site is new; else restore the directory `ca` from a backup.",
        ),
    }
}

fn store(config: &Config, runs: bool) -> Check {
    let path = config.state_dir.join(STORE_FILE);
    if !path.exists() {
        return failed("store", format!("{} is not there", path.display()), "Run `umbel edge init`.");
    }
    match Store::open(&path, STORE_OWNER) {
        Ok(store) => {
            store.close_blocking();
            passed("store", "opens, its pages verify")
        }
        Err(OpenError::InUse { .. }) if runs => passed("store", "in use by the running edge"),
        Err(error) => failed("store", error.to_string(), "Do what the message says."),
    }
}

fn clock() -> Check {
    if Wall::now() < CLOCK_FLOOR {
        let next = "Set the clock, and let it follow a time server: certificates cannot be judged before.";
        return failed("clock", "the clock is years behind", next);
    }
    passed("clock", "plausible")
}

fn advertise(config: &Config) -> Check {
    if config.advertise.is_empty() {
        let next = "Set edge.advertise to where nodes reach this host: [\"HOST:7451\"].";
        return failed("advertise", "no address: enrollment tokens cannot be minted", next);
    }
    passed("advertise", config.advertise.join(", "))
}

fn port(key: &str, address: SocketAddr, runs: bool) -> Check {
    let name = format!("port {key}");
    match TcpListener::bind(address) {
        Ok(_) if runs => failed(
            name,
            format!("{address} is free although the edge runs"),
            "Restart the edge: it was started with another file.",
        ),
        Ok(_) => passed(name, format!("{address} can be bound")),
        Err(error) if runs && error.kind() == std::io::ErrorKind::AddrInUse => {
            passed(name, format!("{address} is in use, by the running edge as it seems"))
        }
        Err(error) => failed(name, format!("{address}: {error}"), format!("Choose another in {key}.")),
    }
}

fn control_plane(config: &Config, id: &str, found: Result<Membership, String>) -> Check {
    let name = format!("control-plane {id}");
    let membership = match found {
        Ok(membership) => membership,
        Err(error) => {
            let next = "Remove its directory and join again with `umbel edge enroll`.";
            return failed(name, error, next);
        }
    };
    if membership.edge_id != config.site.as_str() {
        let message = format!("it knows this host as {}, the file says {}", membership.edge_id, config.site);
        return failed(name, message, "Correct edge.site, or join with a state_dir of its own.");
    }
    if Wall::now() > membership.not_after {
        return failed(name, "the certificate has ended", "Remove its directory and join again.");
    }
    if let Ok(said) = std::fs::read_to_string(membership.directory.join(REJECTION)) {
        return failed(name, format!("its last answer was: {}", said.trim()), "Do what the message says.");
    }
    let mut causes = Vec::new();
    for address in &membership.addresses {
        let reached = address.to_socket_addrs().and_then(|found| {
            let mut last = std::io::Error::new(std::io::ErrorKind::NotFound, "the name has no address");
            for one in found {
                match TcpStream::connect_timeout(&one, CONNECT) {
                    Ok(_) => return Ok(()),
                    Err(error) => last = error,
                }
            }
            Err(last)
        });
        match reached {
            Ok(()) => return passed(name, format!("{address} answers")),
            Err(error) => causes.push(format!("{address}: {error}")),
        }
    }
    let next = "Check name, route and firewall towards it. The site serves without it meanwhile.";
    failed(name, causes.join("; "), next)
}
