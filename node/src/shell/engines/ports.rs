//! An engine that listens to other hosts, although it was started with a loopback address.
//!
//! Owns when it is looked and what is said; leaves finding ports to `process::sockets`, and ending the engine to its supervisor.
//! Invariants: one that has not served yet is never made ready with its own port open to others; one that serves is told and
//! goes on, since an agent that comes new ends no engine; no port is in what is said.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::task::spawn_blocking;

use super::{Engine, Engines, Route};
use crate::{
    core::{problems::listed, process_tree::ProcessId},
    shell::process::sockets,
};

/// Between two looks: an engine opens its ports when it starts.
const AGAIN: Duration = Duration::from_secs(30);

/// What of an engine other hosts may reach.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum Exposed {
    /// Nothing.
    #[default]
    Nothing,
    /// Ports that it has for itself, as workers that talk to each other open them.
    Beside,
    /// The port at which it serves.
    Itself,
}

#[derive(Debug, Default)]
struct Seen {
    at: Option<Instant>,
    exposed: Exposed,
}

/// The ports of one run of an engine.
#[derive(Debug, Default)]
pub(crate) struct Ports(Mutex<Seen>);

impl Ports {
    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A look is due by time.
    fn is_due(&self, now: Instant) -> bool {
        self.lock().at.is_none_or(|at| now.saturating_duration_since(at) >= AGAIN)
    }

    /// Looks at what these processes of an engine listen at that serves at `port`. Blocks on `/proc`.
    fn look(&self, engine: &str, processes: &[ProcessId], port: u16) -> Exposed {
        let open = sockets::open_ports(processes);
        let exposed = match open.as_slice() {
            [] => Exposed::Nothing,
            open if open.contains(&port) => Exposed::Itself,
            _ => Exposed::Beside,
        };
        let mut seen = self.lock();
        seen.at = Some(Instant::now());
        if std::mem::replace(&mut seen.exposed, exposed) != exposed && exposed != Exposed::Nothing {
            tracing::warn!(engine, ports = ?open, "other hosts may reach these ports of an engine");
        }
        exposed
    }

    /// As it was seen last.
    pub(crate) fn exposed(&self) -> Exposed {
        self.lock().exposed
    }
}

/// A look at a run's ports.
pub(super) struct PortLook {
    pub(super) engine: String,
    /// Its processes, its own first.
    pub(super) living: Vec<ProcessId>,
    /// Where it serves.
    pub(super) port: u16,
    pub(super) ports: Arc<Ports>,
    /// It was ready before.
    pub(super) served: bool,
}

impl PortLook {
    /// Looks, if that is due by time or must be `now`; whether the engine may not become ready.
    pub(super) async fn refuses(self, now: bool) -> bool {
        let Self { engine, living, port, ports, served } = self;
        if !now && !ports.is_due(Instant::now()) {
            return false;
        }
        let looked = spawn_blocking(move || ports.look(&engine, &living, port)).await;
        looked.is_ok_and(|exposed| exposed == Exposed::Itself) && !served
    }
}

/// Why one is not made ready.
pub(super) fn refusal() -> String {
    "ENGINE_EXPOSED: it was told to listen on this host only and listens to other hosts, past the edge: it is ended. Mend the program that [programs] of the node's file names, so that it takes its --host as given, and restart the engine"
        .into()
}

impl Engine {
    /// What of it other hosts may reach, while it runs.
    fn exposed(&self) -> Exposed {
        match self.way().as_deref() {
            Some(Route::Http(http)) if self.leader().is_some() => http.ports.exposed(),
            _ => Exposed::Nothing,
        }
    }
}

impl Engines {
    /// What is wrong where engines serve other hosts past the edge, and what to do.
    pub(crate) fn exposed(&self) -> Option<String> {
        let list = self.list();
        let exposed: Vec<&str> = list
            .iter()
            .filter(|engine| engine.exposed() == Exposed::Itself)
            .map(|engine| engine.name.as_str())
            .collect();
        if exposed.is_empty() {
            return None;
        }
        let named = listed(exposed.into_iter());
        Some(format!(
            "{named}: told to listen on this host only, and other hosts reach it past the edge. It goes on until its next start, and is refused then: close its port in the host's firewall now, and mend the program that [programs] of the node's file names, so that it takes its --host as given"
        ))
    }
}
