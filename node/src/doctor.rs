//! `umbel node doctor`: checks the file and the connection step by step.
//!
//! Owns the steps and their remedies; leaves each look to the part that also works with it. Invariant: it changes
//! nothing, takes no lock, and never enrolls; while an agent runs it does not disturb its connection.

use umbel_contracts::daemon::Check;
use umbel_wire::DialStep;

use crate::{
    Config, StartError,
    config::EngineSource,
    core::identity::Identity,
    engines::{
        adapter::{self, HostFacts},
        ready,
    },
    preflight,
    shell::{
        edge::standing,
        engine_http::{Place, Pool},
        gpu::Gpus,
        places,
        state::State,
    },
};

/// Names that stand in examples and lead nowhere (RFC 2606).
const PLACEHOLDERS: [&str; 5] = [".example", "example.com", "example.org", "example.net", ".invalid"];

/// Checks state directory, accelerators, engines and the way to the edge; steps after a failed one that need it
/// are left out. Builds its own runtime; blocks for at most about a minute.
#[must_use]
pub fn doctor(config: &Config) -> Vec<Check> {
    let runtime = match crate::app::runtime() {
        Ok(runtime) => runtime,
        Err(error) => {
            return vec![Check::failed("runtime", error.to_string(), "free memory or file descriptors")];
        }
    };
    let checks = runtime.block_on(examine(config));
    runtime.shutdown_background();
    checks
}

async fn examine(config: &Config) -> Vec<Check> {
    let mut checks = vec![state_dir(config), artifacts(config), accelerators(config).await];
    let facts = HostFacts { programs: config.programs.clone(), accelerator: config.accelerator };
    for engine in &config.engines {
        let name = format!("engine {}", engine.name);
        let examined = match &engine.source {
            EngineSource::Sim { .. } => Ok("built in".to_owned()),
            EngineSource::External { authority, base_path } if is_placeholder(authority) => Err((
                format!("its url names {authority}{base_path}, a placeholder that was not replaced"),
                "put the server's real name there",
            )),
            EngineSource::External { authority, base_path } => {
                let pool = Pool::new(Place::Named(authority.clone()));
                match ready::probe(&pool, base_path, &engine.model, None, false).await {
                    Ok(()) => Ok("ready".to_owned()),
                    Err(why) => Err((why, "start that server, or correct url and model")),
                }
            }
            EngineSource::Cli { .. } | EngineSource::Process(_) | EngineSource::Missing { .. } => {
                let mut engine = engine.clone();
                if let EngineSource::Process(process) = &mut engine.source {
                    // A running agent's own engine holds it.
                    process.port = 0;
                }
                adapter::validate(&engine, &facts)
                    .map(|()| "program and model are there".to_owned())
                    .map_err(|refusal| (refusal.message, "correct the file or the host"))
            }
        };
        checks.push(match examined {
            Ok(message) => Check::passed(name, message),
            Err((message, next_step)) => Check::failed(name, message, next_step),
        });
    }
    match identity(config) {
        Ok((state, identity)) => {
            checks.push(Check::passed(
                "identity",
                format!("node {} of edge {}", identity.node_id, identity.edge_id),
            ));
            connection(&state, &identity, &mut checks).await;
        }
        Err(error) => {
            checks.push(Check::failed("identity", error.to_string(), "run `umbel node enroll` with a token"))
        }
    }
    checks
}

fn artifacts(config: &Config) -> Check {
    match places::artifacts(config) {
        Ok(()) => Check::passed("artifacts", format!("{} roots", config.artifacts.roots.len())),
        Err(wrong) => Check::failed("artifacts", wrong.says, wrong.remedy),
    }
}

fn state_dir(config: &Config) -> Check {
    let name = "state";
    let folder = config.state_dir.as_path();
    let shown = folder.display();
    match std::fs::metadata(folder) {
        Err(error) => {
            Check::failed(name, format!("{shown}: {error}"), "enrolling makes it; or correct node.state_dir")
        }
        Ok(facts) if !facts.is_dir() => {
            Check::failed(name, format!("{shown} is no directory"), "correct node.state_dir")
        }
        Ok(_)
            if rustix::fs::access(folder, rustix::fs::Access::READ_OK | rustix::fs::Access::WRITE_OK)
                .is_err() =>
        {
            Check::failed(
                name,
                format!("{shown} is not writable for this user"),
                "run as its owner, or chown it",
            )
        }
        Ok(_) => match places::state(config) {
            Err(wrong) => Check::failed(name, wrong.says, wrong.remedy),
            Ok(Some(why)) => Check::passed(name, format!("{shown}: {why}")),
            Ok(None) => Check::passed(name, shown.to_string()),
        },
    }
}

async fn accelerators(config: &Config) -> Check {
    let gpus = Gpus::start(config.accelerator, config.nvml_library.as_deref());
    match preflight::check(config.accelerator, &gpus).await {
        Ok(_) if !gpus.are_wanted() => Check::passed("preflight", "no GPU is required, and none is in use"),
        Ok((_, found)) if found.unreadable.is_empty() => {
            Check::passed("preflight", format!("{} GPUs", found.seen.len()))
        }
        Ok((_, found)) => Check::failed(
            "preflight",
            found.unreadable.join("; "),
            "check `nvidia-smi` and `dmesg`; the other GPUs work",
        ),
        Err(StartError::Preflight { code, message }) => Check::failed("preflight", code, message),
        Err(error) => Check::failed("preflight", error.to_string(), "see the message"),
    }
}

fn identity(config: &Config) -> Result<(State, Identity), StartError> {
    let state = State::look(&config.state_dir)?;
    let identity =
        state.identity()?.ok_or_else(|| StartError::Refused("the node has not joined an edge yet".into()))?;
    Ok((state, identity))
}

fn is_placeholder(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    PLACEHOLDERS.iter().any(|name| host.ends_with(name))
}

/// Name, TCP, TLS with the node's trust, and what the edge says of this node.
async fn connection(state: &State, identity: &Identity, checks: &mut Vec<Check>) {
    if let Some(address) = identity.addresses.iter().find(|address| is_placeholder(address)) {
        let message = format!("{address} is a placeholder that was not replaced");
        checks.push(Check::failed(
            "addresses",
            message,
            "correct `advertise` in the edge's file and enroll again",
        ));
        return;
    }
    let failed = match standing::ask(state, identity).await {
        Ok(answer) => answer.err(),
        Err(error) => {
            return checks.push(Check::failed("tls", error.to_string(), "restore the state directory"));
        }
    };
    let steps = [
        (DialStep::Lookup, "lookup", "check the host's DNS, or the edge's `advertise` names"),
        (
            DialStep::Connect,
            "connect",
            "check that the edge runs, and firewalls on the way (outbound TCP only)",
        ),
        (
            DialStep::Tls,
            "tls",
            "check the clocks, and whether something on the way answers in the edge's place",
        ),
        (DialStep::Hello, "hello", "follow the edge's words; without any, what answers there is not an edge"),
    ];
    for (step, name, remedy) in steps {
        match &failed {
            Some(error) if error.step == step => {
                let said = error.rejection.as_ref().map(|said| said.error.to_string());
                checks.push(Check::failed(name, said.unwrap_or_else(|| error.message.clone()), remedy));
                return;
            }
            _ => checks.push(Check::passed(name, "fine")),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn config(text: &str, folder: &Path) -> Config {
        Config::parse(text, &folder.join("node.toml")).unwrap()
    }

    #[test]
    fn says_what_is_missing() {
        let folder = tempfile::tempdir().unwrap();
        let text = "[node]\nstate_dir = \"state\"\naccelerator = \"cpu\"\n\
            [[engine]]\nname = \"far\"\nkind = \"external\"\nmodel = \"m\"\nurl = \"http://gpu.example:8000\"\n\
            [[engine]]\nname = \"own\"\nkind = \"llama-server\"\nmodel = \"m\"\nmodel_file = \"m.gguf\"\n";
        let checks = doctor(&config(text, folder.path()));
        let failed: Vec<&str> =
            checks.iter().filter(|check| !check.passed).map(|check| check.name.as_str()).collect();
        assert_eq!(failed, ["state", "engine far", "engine own", "identity"]);
        assert!(checks.iter().all(|check| check.passed == check.next_step.is_empty()));
        assert!(checks.iter().any(|check| check.message.contains("placeholder")));
        assert!(!folder.path().join("state").exists(), "the doctor makes nothing");
    }
}
