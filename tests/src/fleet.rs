//! Real processes of the one binary `umbel`: control plane, edges and nodes on loopback, each in its own directory.
//!
//! The harness writes their files, enrolls them with the command line as an operator would, and ends each process that
//! it started by its pid when it is dropped, also when a test panics; then it prints the ends of their logs.

mod asking;
mod commands;
mod control_plane;
mod daemon;
mod edge;
mod node;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

pub use asking::scraped;
pub use commands::{Ran, run};
pub use control_plane::ControlPlane;
pub use daemon::{Daemon, Signal, cpu_seconds, reserved_kb, resident_kb};
pub use edge::{Edge, EdgeOptions};
pub use node::{EngineDeclaration, Node, NodeOptions};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, getsockname, socket_with, sockopt};

use crate::engine::locked;

/// How long a process may take until it answers. Generous: two cores, debug build, other tests beside it.
pub const START: Duration = Duration::from_secs(30);
/// How long a state of the fleet may take to come true.
pub const SOON: Duration = Duration::from_secs(30);

/// The binary under test: `UMBEL_BIN`, or the one of this build's profile, built first when it is run by cargo.
///
/// # Panics
/// When there is none.
#[must_use]
#[allow(clippy::panic, clippy::expect_used, reason = "no test can run without it")]
pub fn binary() -> PathBuf {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY
        .get_or_init(|| {
            if let Some(path) = std::env::var_os("UMBEL_BIN") {
                return PathBuf::from(path);
            }
            let test = std::env::current_exe().expect("the test's own path");
            let profile = test.parent().and_then(Path::parent).expect("target/PROFILE/deps").to_path_buf();
            if let Some(cargo) = std::env::var_os("CARGO") {
                let mut build = Command::new(cargo);
                build.args(["build", "--quiet", "--package", "umbel"]);
                match profile.file_name().and_then(|n| n.to_str()) {
                    Some("debug") | None => {}
                    Some(name) => {
                        build.args(["--profile", name]);
                    }
                }
                let built = build.status().expect("cargo");
                assert!(built.success(), "cargo build --package umbel failed");
            }
            let path = profile.join("umbel");
            assert!(path.exists(), "no {}: cargo build --package umbel", path.display());
            path
        })
        .clone()
}

/// A loopback address for a daemon, whose port nobody else is given as long as this process lives.
///
/// A port that was only looked up could be taken before its daemon binds it. So each is held by a socket that is bound
/// and never listens: with SO_REUSEADDR on both, the daemon may still listen there.
///
/// # Panics
/// When the kernel has no port left.
#[must_use]
#[allow(clippy::expect_used, reason = "no test can run without ports")]
pub fn free_address() -> SocketAddr {
    static HELD: Mutex<Vec<OwnedFd>> = Mutex::new(Vec::new());
    let any = SocketAddr::from(([127, 0, 0, 1], 0));
    let socket =
        socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None).expect("a socket");
    sockopt::set_socket_reuseaddr(&socket, true).expect("SO_REUSEADDR");
    bind(&socket, &any).expect("a free port");
    let address = getsockname(&socket).ok().and_then(|a| SocketAddr::try_from(a).ok()).expect("its address");
    locked(&HELD).push(socket);
    address
}

/// The directory of one test's fleet.
pub struct Fleet {
    dir: tempfile::TempDir,
}

impl Fleet {
    /// An empty one.
    ///
    /// # Panics
    /// When no temporary directory can be made.
    #[must_use]
    #[allow(clippy::expect_used, reason = "no test can run without it")]
    pub fn new() -> Self {
        // A short path: a Unix socket's has at most 107 bytes.
        let dir = tempfile::Builder::new().prefix("um").tempdir_in("/tmp").expect("a temporary directory");
        Self { dir }
    }

    /// Where it is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }
}

impl Default for Fleet {
    fn default() -> Self {
        Self::new()
    }
}
