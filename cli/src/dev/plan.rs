//! The plan of a fleet on loopback: names, ports, folders, and what was done already.
//!
//! Owns the layout of the folder and its record `fleet.json`; leaves starting to others. Invariant: names,
//! ports and folders of a kept fleet never change, since certificates and stored addresses hold them.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use serde::{Deserialize, Serialize};

use super::ports::Ports;
use crate::{
    args::{DevArgs, EngineKind},
    exit::{Exit, Failure, Outcome},
};

/// The largest fleet: each process has a runtime, a store and files; a laptop carries this many.
const MOST: u16 = 64;
/// `sockaddr_un` holds 108 bytes with the zero at the end.
const LONGEST_SOCKET: usize = 107;

/// What the nodes run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub(crate) enum Engine {
    /// The built-in one.
    Sim,
    /// llama.cpp's server.
    LlamaServer {
        /// The program, absolute.
        program: PathBuf,
        /// The GGUF file, absolute.
        model_file: PathBuf,
    },
}

/// The control plane's part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ControlPlane {
    pub(crate) api_port: u16,
    pub(crate) edges_port: u16,
    /// What its set-up said, once it was done.
    pub(crate) made: Option<Made>,
}

/// What `control-plane init` made.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Made {
    pub(crate) ca_file: PathBuf,
    pub(crate) token_file: PathBuf,
}

/// A site's part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Site {
    pub(crate) name: String,
    pub(crate) api_port: u16,
    pub(crate) nodes_port: u16,
    pub(crate) made: bool,
    pub(crate) enrolled: bool,
}

/// A node's part.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Node {
    pub(crate) name: String,
    pub(crate) site: String,
    pub(crate) node_id: Option<String>,
}

/// A whole fleet in one folder.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    #[serde(skip)]
    pub(crate) dir: PathBuf,
    pub(crate) engine: Engine,
    pub(crate) model: String,
    pub(crate) control_plane: ControlPlane,
    pub(crate) sites: Vec<Site>,
    pub(crate) nodes: Vec<Node>,
}

impl Plan {
    /// The plan that stands in `dir`, or a new one. `dir` exists and is absolute.
    pub(crate) async fn find_or_make(dir: &Path, args: &DevArgs, ports: &mut Ports) -> Outcome<Self> {
        let record = dir.join("fleet.json");
        let mut plan = match fs::read(&record) {
            Ok(text) => {
                let mut plan: Plan = serde_json::from_slice(&text).map_err(|error| {
                    Failure::failed(format!("{}: {error}", record.display()))
                        .remedy("remove the folder, or name another with --keep")
                })?;
                plan.dir = dir.to_owned();
                plan.agree_with(args)?;
                for port in plan.ports() {
                    ports.again(port).await?;
                }
                plan
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Plan::make(dir, args, ports)?,
            Err(error) => return Err(Failure::failed(format!("{}: {error}", record.display()))),
        };
        plan.take_engine(args)?;
        plan.check_paths()?;
        plan.save()?;
        Ok(plan)
    }

    fn make(dir: &Path, args: &DevArgs, ports: &mut Ports) -> Outcome<Self> {
        let sites = args.sites.unwrap_or(1);
        let nodes = args.nodes.unwrap_or(sites);
        if sites == 0 || sites > MOST || nodes > MOST {
            return Err(Failure::usage(format!("a fleet has 1 to {MOST} sites and at most {MOST} nodes")));
        }
        let control_plane = ControlPlane { api_port: ports.any()?, edges_port: ports.any()?, made: None };
        let mut plan = Plan {
            dir: dir.to_owned(),
            engine: Engine::Sim,
            model: "sim".to_owned(),
            control_plane,
            sites: Vec::new(),
            nodes: Vec::new(),
        };
        for number in 1..=sites {
            plan.sites.push(Site {
                name: format!("site-{number}"),
                api_port: ports.any()?,
                nodes_port: ports.any()?,
                made: false,
                enrolled: false,
            });
        }
        for number in 1..=nodes {
            let site = format!("site-{}", (number - 1) % sites + 1);
            plan.nodes.push(Node { name: format!("node-{number}"), site, node_id: None });
        }
        Ok(plan)
    }

    /// A kept fleet keeps its size.
    fn agree_with(&self, args: &DevArgs) -> Outcome {
        let differs = |asked: Option<u16>, has: usize| asked.is_some_and(|asked| usize::from(asked) != has);
        if differs(args.sites, self.sites.len()) || differs(args.nodes, self.nodes.len()) {
            let (sites, nodes) = (self.sites.len(), self.nodes.len());
            return Err(Failure::new(
                Exit::Conflict,
                format!(
                    "{} holds a fleet of {sites} sites and {nodes} nodes, not what was asked",
                    self.dir.display()
                ),
            )
            .remedy("leave --sites and --nodes out to start it again")
            .remedy("name another folder with --keep, or remove this one"));
        }
        Ok(())
    }

    fn take_engine(&mut self, args: &DevArgs) -> Outcome {
        let kind = args.engine.or(args.model.is_some().then_some(EngineKind::LlamaServer));
        match kind {
            None => {}
            Some(EngineKind::Sim) => {
                if args.model.is_some() || args.program.is_some() {
                    return Err(Failure::usage("--model and --program go with --engine llama-server"));
                }
                (self.engine, self.model) = (Engine::Sim, "sim".to_owned());
            }
            Some(EngineKind::LlamaServer) => {
                let file = args.model.as_ref().ok_or_else(|| {
                    Failure::usage("--engine llama-server needs a model").remedy("--model FILE.gguf")
                })?;
                let model_file = fs::canonicalize(file)
                    .map_err(|error| Failure::usage(format!("--model {}: {error}", file.display())))?;
                let stem = model_file.file_stem().map(|stem| stem.to_string_lossy().into_owned());
                self.model = stem.unwrap_or_else(|| "model".to_owned());
                self.engine =
                    Engine::LlamaServer { program: find_program(args.program.as_deref())?, model_file };
            }
        }
        Ok(())
    }

    /// A socket's path has a bound, and a daemon that cannot make its socket says it less clearly.
    fn check_paths(&self) -> Outcome {
        let sockets = self.sites.iter().map(|site| self.edge_socket(site));
        let sockets = sockets.chain(self.nodes.iter().map(|node| self.node_socket(node)));
        let longest = sockets.chain([self.control_plane_socket()]).map(|path| path.as_os_str().len()).max();
        let over = longest.unwrap_or(0).saturating_sub(LONGEST_SOCKET);
        if over == 0 {
            return Ok(());
        }
        let dir = self.dir.display();
        Err(Failure::usage(format!("{dir} is {over} characters too long: local sockets stand in it"))
            .remedy("choose a shorter folder with --keep"))
    }

    /// Writes the record, whole or not at all.
    pub(crate) fn save(&self) -> Outcome {
        let text = serde_json::to_vec_pretty(self).map_err(|error| Failure::failed(error.to_string()))?;
        super::files::write_private(&self.dir.join("fleet.json"), &text)
    }

    /// Every port of the fleet.
    fn ports(&self) -> Vec<u16> {
        let sites = self.sites.iter().flat_map(|site| [site.api_port, site.nodes_port]);
        sites.chain([self.control_plane.api_port, self.control_plane.edges_port]).collect()
    }

    pub(crate) fn control_plane_dir(&self) -> PathBuf {
        self.dir.join("control-plane")
    }

    pub(crate) fn control_plane_socket(&self) -> PathBuf {
        self.control_plane_dir().join("state/control-plane.sock")
    }

    pub(crate) fn site_dir(&self, site: &Site) -> PathBuf {
        self.dir.join("sites").join(&site.name)
    }

    pub(crate) fn edge_socket(&self, site: &Site) -> PathBuf {
        self.site_dir(site).join("state/edge.sock")
    }

    pub(crate) fn key_file(&self, site: &Site) -> PathBuf {
        self.site_dir(site).join("api.key")
    }

    pub(crate) fn node_dir(&self, node: &Node) -> PathBuf {
        self.dir.join("nodes").join(&node.name)
    }

    pub(crate) fn node_socket(&self, node: &Node) -> PathBuf {
        self.node_dir(node).join("state/node.sock")
    }

    pub(crate) fn log_file(&self, process: &str) -> PathBuf {
        self.dir.join("logs").join(format!("{process}.log"))
    }
}

fn find_program(named: Option<&Path>) -> Outcome<PathBuf> {
    if let Some(path) = named {
        return fs::canonicalize(path)
            .map_err(|error| Failure::usage(format!("--program {}: {error}", path.display())));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).map(|dir| dir.join("llama-server")).find(|path| path.is_file());
    found.ok_or_else(|| {
        Failure::usage("there is no llama-server in PATH").remedy("name it with --program FILE")
    })
}
