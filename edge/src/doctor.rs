//! `umbel edge doctor`: checks the file, the state directory, the certificates, the ports and the control planes.
//!
//! Owns the checks and their next steps. Invariant: it changes nothing, and it works beside a running edge.

use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::path::Path;
use std::time::Duration;

use umbel_contracts::daemon::{Check, answers};
use umbel_store::{OpenError, Store};
use umbel_wire::clock::Wall;

use crate::Config;
use crate::app::{CONTROL_PLANES, STORE_FILE, STORE_OWNER};
use crate::core::credentials::CLOCK_FLOOR;
use crate::shell::authority::{Authorities, ca_dir};
use crate::shell::control::membership::{self, Membership, REJECTION};

/// For each address of a control plane.
const CONNECT: Duration = Duration::from_secs(2);

/// Checks what can be checked on this host, whether or not the edge runs. Blocks for a few seconds at most and
/// changes nothing.
#[must_use]
pub fn doctor(config: &Config) -> Vec<Check> {
    let runs = answers(&config.listen.socket);
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
        Err(error) => {
            Check::failed("state", format!("{}: {error}", path.display()), "Run `umbel edge init`.")
        }
        Ok(about) if about.mode() & 0o077 != 0 => Check::failed(
            "state",
            format!("{} is open to other users", path.display()),
            format!("Run: chmod 700 {}", path.display()),
        ),
        Ok(_) => Check::passed("state", format!("{} is private", path.display())),
    }
}

fn authority(config: &Config) -> Check {
    match Authorities::open(&ca_dir(config), config.site.as_str()) {
        Ok(authorities) => {
            Check::passed("authority", format!("certificate SHA-256 {}", authorities.held().sha256()))
        }
        Err(error) => Check::failed(
            "authority",
            error.to_string(),
            "Run `umbel edge init` if the site is new; else restore the directory `ca` from a backup.",
        ),
    }
}

fn store(config: &Config, runs: bool) -> Check {
    let path = config.state_dir.join(STORE_FILE);
    match Store::open_existing(&path, STORE_OWNER) {
        Ok(store) => {
            store.close_blocking();
            Check::passed("store", "opens, its pages verify")
        }
        Err(OpenError::InUse { .. }) if runs => Check::passed("store", "in use by the running edge"),
        Err(error) => Check::failed("store", error.to_string(), "Do what the message says."),
    }
}

fn clock() -> Check {
    if Wall::now() < CLOCK_FLOOR {
        let next = "Set the clock, and let it follow a time server: certificates cannot be judged before.";
        return Check::failed("clock", "the clock is years behind", next);
    }
    Check::passed("clock", "plausible")
}

fn advertise(config: &Config) -> Check {
    if config.advertise.is_empty() {
        let next = "Set edge.advertise to where nodes reach this host: [\"HOST:7451\"].";
        return Check::failed("advertise", "no address: enrollment tokens cannot be minted", next);
    }
    Check::passed("advertise", config.advertise.join(", "))
}

fn port(key: &str, address: SocketAddr, runs: bool) -> Check {
    let name = format!("port {key}");
    match TcpListener::bind(address) {
        Ok(_) if runs => Check::failed(
            name,
            format!("{address} is free although the edge runs"),
            "Restart the edge: it was started with another file.",
        ),
        Ok(_) => Check::passed(name, format!("{address} can be bound")),
        Err(error) if runs && error.kind() == std::io::ErrorKind::AddrInUse => {
            Check::passed(name, format!("{address} is in use, by the running edge as it seems"))
        }
        Err(error) => Check::failed(name, format!("{address}: {error}"), format!("Choose another in {key}.")),
    }
}

fn control_plane(config: &Config, id: &str, found: Result<Membership, String>) -> Check {
    let name = format!("control-plane {id}");
    let membership = match found {
        Ok(membership) => membership,
        Err(error) => {
            let next = "Remove its directory and join again with `umbel edge enroll`.";
            return Check::failed(name, error, next);
        }
    };
    if membership.edge_id != config.site.as_str() {
        let message = format!("it knows this host as {}, the file says {}", membership.edge_id, config.site);
        return Check::failed(name, message, "Correct edge.site, or join with a state_dir of its own.");
    }
    if Wall::now() > membership.not_after {
        return Check::failed(name, "the certificate has ended", "Remove its directory and join again.");
    }
    if let Ok(said) = std::fs::read_to_string(membership.directory.join(REJECTION)) {
        return Check::failed(
            name,
            format!("its last answer was: {}", said.trim()),
            "Do what the message says.",
        );
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
            Ok(()) => return Check::passed(name, format!("{address} answers")),
            Err(error) => causes.push(format!("{address}: {error}")),
        }
    }
    let next = "Check name, route and firewall towards it. The site serves without it meanwhile.";
    Check::failed(name, causes.join("; "), next)
}
