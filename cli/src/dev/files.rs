//! The configuration files of a fleet on loopback, and the record `dev.json` for programs.
//!
//! Owns their texts; leaves places and ports to the plan. Invariant: files that hold or name secrets are 0600,
//! and each file is replaced whole.

use std::{fs, io::Write as _, os::unix::fs::OpenOptionsExt as _, path::Path};

use serde::Serialize;

use super::plan::{Engine, Node, Plan, Site};
use crate::exit::{Failure, Outcome};

/// How long a tier may drain when the fleet ends: nobody waits for streams of a trial.
const DRAIN: &str = "2s";

/// `dev.json`: where everything is, for scripts and tests.
#[derive(Debug, Serialize)]
pub(crate) struct Record<'a> {
    pub(crate) control_plane: ControlPlaneRecord,
    pub(crate) edges: Vec<EdgeRecord>,
    pub(crate) nodes: Vec<NodeRecord>,
    pub(crate) model: &'a str,
}

#[derive(Debug, Serialize)]
pub(crate) struct ControlPlaneRecord {
    pub(crate) pid: u32,
    pub(crate) api_url: String,
    pub(crate) ca_file: String,
    pub(crate) token_file: String,
    pub(crate) socket: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct EdgeRecord {
    pub(crate) edge_id: String,
    pub(crate) pid: u32,
    pub(crate) api_url: String,
    pub(crate) socket: String,
    pub(crate) key_file: String,
}

#[derive(Debug, Serialize)]
pub(crate) struct NodeRecord {
    pub(crate) name: String,
    pub(crate) node_id: String,
    pub(crate) edge_id: String,
    pub(crate) pid: u32,
    pub(crate) state_dir: String,
    pub(crate) socket: String,
}

/// Writes `control-plane.toml`.
pub(crate) fn control_plane(plan: &Plan) -> Outcome {
    let dir = plan.control_plane_dir();
    let (api, edges) = (plan.control_plane.api_port, plan.control_plane.edges_port);
    let text = format!(
        r#"[control_plane]
name = "dev"
fleet_name = "dev"
state_dir = {state}
advertise = ["127.0.0.1:{edges}"]

[listen]
api = "127.0.0.1:{api}"
edges = "127.0.0.1:{edges}"
metrics = ""

[log]
level = "info"
format = "text"

[shutdown]
drain = "{DRAIN}"
"#,
        state = quoted(&dir.join("state")),
    );
    write_private(&dir.join("control-plane.toml"), text.as_bytes())
}

/// Writes a site's `edge.toml`.
pub(crate) fn edge(plan: &Plan, site: &Site) -> Outcome {
    let dir = plan.site_dir(site);
    let text = format!(
        r#"[edge]
site = "{name}"
name = "{name}"
state_dir = {state}
advertise = ["127.0.0.1:{nodes}"]

[listen]
api = "127.0.0.1:{api}"
nodes = "127.0.0.1:{nodes}"
metrics = ""

[log]
level = "info"
format = "text"

[shutdown]
drain = "{DRAIN}"
"#,
        name = site.name,
        state = quoted(&dir.join("state")),
        nodes = site.nodes_port,
        api = site.api_port,
    );
    write_private(&dir.join("edge.toml"), text.as_bytes())
}

/// Writes a node's `node.toml`.
pub(crate) fn node(plan: &Plan, node: &Node) -> Outcome {
    let dir = plan.node_dir(node);
    let model = toml::Value::String(plan.model.clone());
    let (programs, engine) = match &plan.engine {
        // Slow enough to see the stream, fast enough not to wait for it.
        Engine::Sim => (
            String::new(),
            "kind = \"sim\"\ncapacity = 4\nfirst_token_delay = \"50ms\"\ntoken_delay = \"20ms\"\ntokens = 24"
                .to_owned(),
        ),
        Engine::LlamaServer { program, model_file } => (
            format!("[programs]\nllama_server = {}\n", quoted(program)),
            format!(
                "kind = \"llama-server\"\ncapacity = 2\nmodel_file = {}\nstart_timeout = \"120s\"",
                quoted(model_file)
            ),
        ),
    };
    let text = format!(
        r#"[node]
name = "{name}"
state_dir = {state}
accelerator = "cpu"
allow_sim = {allow_sim}
# A site for trying things out may lie in memory or in a container.
allow_volatile_state = true

{programs}
[log]
level = "info"
format = "text"

[shutdown]
drain = "{DRAIN}"
# Nothing of a trial runs on.
engines = "stop"

[[engine]]
name = "main"
model = {model}
{engine}
"#,
        name = node.name,
        state = quoted(&dir.join("state")),
        allow_sim = plan.engine == Engine::Sim,
    );
    write_private(&dir.join("node.toml"), text.as_bytes())
}

/// A path as a TOML string.
fn quoted(path: &Path) -> toml::Value {
    toml::Value::String(path.display().to_string())
}

/// Makes a folder that only its owner can enter, with those above it.
pub(crate) fn make_dir(path: &Path) -> Outcome {
    use std::os::unix::fs::DirBuilderExt as _;
    let made = fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| Failure::failed(format!("cannot make {}: {error}", path.display())))
}

/// Replaces a file in one step; only its owner can read it.
pub(crate) fn write_private(path: &Path, bytes: &[u8]) -> Outcome {
    let write = || {
        let fresh = path.with_extension("new");
        let mut file =
            fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&fresh)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&fresh, path)
    };
    write().map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))
}
