//! What `umbel dev` prints once the fleet serves: URLs, keys, and three things to try.

use std::{fmt::Write as _, fs, time::Duration};

use super::{
    files::Record,
    plan::{Engine, Plan},
};
use crate::{
    exit::{Failure, Outcome},
    output::{count, duration_ms},
};

/// The whole text.
pub(crate) fn text(plan: &Plan, record: &Record<'_>, kept: bool, took: Duration) -> Outcome<String> {
    write(plan, record, kept, took)
        .map_err(|error: std::fmt::Error| Failure::failed(error.to_string()))?
        .ok_or_else(|| Failure::failed("a fleet without sites"))
}

fn write(
    plan: &Plan,
    record: &Record<'_>,
    kept: bool,
    took: Duration,
) -> Result<Option<String>, std::fmt::Error> {
    let mut out = String::new();
    let took = duration_ms(u64::try_from(took.as_millis()).unwrap_or(0));
    let (sites, nodes) = (count(plan.sites.len(), "site"), count(plan.nodes.len(), "node"));
    let version = env!("CARGO_PKG_VERSION");
    writeln!(out, "umbel dev {version}: a control plane, {sites} and {nodes}, serving after {took}\n")?;
    writeln!(out, "  Control plane  {}", record.control_plane.api_url)?;
    writeln!(out, "                 token in {}", record.control_plane.token_file)?;
    writeln!(out, "                 CA in    {}", record.control_plane.ca_file)?;
    for edge in &record.edges {
        let key = fs::read_to_string(&edge.key_file).unwrap_or_default();
        writeln!(out, "  {:<13}  {}/v1", edge.edge_id, edge.api_url)?;
        writeln!(out, "                 key {key}")?;
    }
    let engine = match plan.engine {
        Engine::Sim => "built in; no model needed",
        Engine::LlamaServer { .. } => "llama-server",
    };
    writeln!(out, "  Model          {} ({engine})", record.model)?;
    let fate = if kept { "kept" } else { "removed at the end; --keep DIR keeps it" };
    writeln!(out, "  Folder         {} ({fate})", plan.dir.display())?;
    writeln!(out, "                 logs in logs/, everything for scripts in dev.json\n")?;
    let Some(edge) = record.edges.first() else { return Ok(None) };
    let umbel = word(&std::env::args().next().unwrap_or_else(|| "umbel".to_owned()));
    writeln!(out, "Try\n  export UMBEL_SOCKET={}", word(&record.control_plane.socket))?;
    writeln!(out, "  1. {umbel} ctl status")?;
    writeln!(out, "  2. curl -sSN {}/v1/chat/completions \\", edge.api_url)?;
    writeln!(
        out,
        "       -H \"authorization: Bearer $(cat {})\" -H 'content-type: application/json' \\",
        word(&edge.key_file)
    )?;
    let body = serde_json::json!({
        "model": record.model, "stream": true, "messages": [{"role": "user", "content": "Hello"}],
    });
    writeln!(out, "       -d '{body}'")?;
    if let Some(node) = record.nodes.first() {
        writeln!(out, "  3. {umbel} ctl node drain {} -m 'trying it out'", node.name)?;
    } else {
        writeln!(out, "  3. {umbel} ctl token create my-node --eligible --site {}", edge.edge_id)?;
    }
    writeln!(out, "\nCtrl-C ends it.")?;
    Ok(Some(out))
}

/// A text as one word of a shell.
fn word(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:=@%+,".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::word;

    #[test]
    fn what_is_printed_can_be_pasted() {
        assert_eq!(word("/tmp/d5/api.key"), "/tmp/d5/api.key");
        assert_eq!(word("/tmp/d 5/$x"), "'/tmp/d 5/$x'");
        assert_eq!(word("it's"), r"'it'\''s'");
    }
}
