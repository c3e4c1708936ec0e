//! `umbel control-plane doctor`: checks the state directory, the authority, the store, operators and ports, and says
//! for each what to do. It changes nothing, and does not mind whether the control plane runs.

use std::net::SocketAddr;

use umbel_contracts::daemon::{Check, answers};
use umbel_store::{OpenError, Store};
use umbel_wire::clock::Wall;
use umbel_wire::files;

use crate::Config;
use crate::core::operators::{OPERATORS, OperatorRow, Operators};
use crate::init::{STORE_FILE, STORE_OWNER};
use crate::shell::authority::{Keys, ca_dir};

/// Checks what can be checked on this host, whether or not the control plane runs. Blocks for a few seconds at
/// most and changes nothing.
#[must_use]
pub fn doctor(config: &Config) -> Vec<Check> {
    let mut checks = vec![state(config)];
    if !ca_dir(config).exists() {
        checks.push(Check::failed(
            "authority",
            "there is none",
            "run `umbel control-plane init` with the same --config",
        ));
        return checks;
    }
    checks.push(authority(config));
    match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime.block_on(async { checks.extend(live(config).await) }),
        Err(error) => checks.push(Check::failed(
            "running",
            format!("no runtime: {error}"),
            "look at this host's limits",
        )),
    }
    checks
}

fn state(config: &Config) -> Check {
    let state = config.state_dir.as_path();
    if !state.exists() {
        return Check::failed(
            "state",
            format!("{} does not exist", state.display()),
            "run `umbel control-plane init`",
        );
    }
    match files::private_dir(state) {
        Ok(()) => Check::passed("state", format!("{} is private", state.display())),
        Err(error) => Check::failed(
            "state",
            format!("{}: {error}", state.display()),
            "correct its owner and mode (0700)",
        ),
    }
}

fn authority(config: &Config) -> Check {
    match Keys::open(config, Wall::now()) {
        Ok(keys) => {
            let digest = data_encoding::HEXLOWER.encode(&keys.authority.digest());
            Check::passed("authority", format!("CA {digest}; certificates can be made"))
        }
        Err(error) => Check::failed("authority", error.to_string(), "do as the message says"),
    }
}

async fn live(config: &Config) -> Vec<Check> {
    if answers(&config.socket) {
        let message = format!("a control plane answers at {}", config.socket.display());
        let hint = "its store and ports are in use by it and were not looked at";
        return vec![Check::passed("running", format!("{message}; {hint}"))];
    }
    let mut checks = vec![Check::passed("running", "no control plane runs with this state directory")];
    checks.extend(store(config).await);
    checks.extend(ports(config).await);
    checks
}

async fn store(config: &Config) -> Vec<Check> {
    let path = config.state_dir.join(STORE_FILE);
    let store = match Store::open_existing(&path, STORE_OWNER) {
        Ok(store) => store,
        Err(error @ OpenError::InUse { .. }) => {
            return vec![Check::failed("store", error.to_string(), "end the process that holds it")];
        }
        Err(error) => return vec![Check::failed("store", error.to_string(), "do as the message says")],
    };
    let rows = store.load(OPERATORS).await;
    let mut checks = vec![Check::passed("store", format!("{} can be read", path.display()))];
    let mut operators = Operators::default();
    for row in rows.unwrap_or_default() {
        if let Ok(operator) = row.json::<OperatorRow>() {
            operators.apply(operator, row.position);
        }
    }
    let active = operators.active();
    checks.push(if active > 0 {
        Check::passed("operators", format!("operator tokens that open the API: {active}"))
    } else {
        let step =
            format!("start it and run `umbel ctl --socket {} operator create`", config.socket.display());
        Check::failed("operators", "no operator token is configured: the API refuses everybody", step)
    });
    store.close().await;
    checks
}

async fn ports(config: &Config) -> Vec<Check> {
    let listens = [
        ("listen.edges", Some(config.edges)),
        ("listen.api", config.api),
        ("listen.metrics", config.metrics),
    ];
    let mut checks = Vec::new();
    for (key, address) in listens {
        if let Some(address) = address {
            checks.push(port(key, address).await);
        }
    }
    checks
}

async fn port(key: &str, address: SocketAddr) -> Check {
    match tokio::net::TcpListener::bind(address).await {
        Ok(_) => Check::passed("ports", format!("{key} {address} is free")),
        Err(error) => Check::failed(
            "ports",
            format!("{key} {address}: {error}"),
            format!("end what listens there, or change {key}"),
        ),
    }
}
