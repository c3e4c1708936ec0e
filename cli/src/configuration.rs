//! `umbel config`: checks the tiers' files as the daemons would, and shows one.
//!
//! Owns finding out which tier a file is of; leaves what is valid to the tiers. Invariant: nothing but the files
//! is read, so a check may run anywhere.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    args::{ConfigArgs, ConfigVerb, Tier},
    daemon::default_file,
    exit::{Exit, Failure, Outcome},
    output::{count, put, say},
};

const TIERS: [(Tier, &str, &str); 3] = [
    (Tier::ControlPlane, "control-plane", "control_plane"),
    (Tier::Edge, "edge", "edge"),
    (Tier::Node, "node", "node"),
];

/// Runs `config check` or `config show`.
pub(crate) fn run(verb: &ConfigVerb) -> Outcome {
    let (args, show) = match verb {
        ConfigVerb::Check(args) => (args, false),
        ConfigVerb::Show(args) => (args, true),
    };
    let mut wrong = Vec::new();
    let files = files(args)?;
    for file in &files {
        let checked = tier_of(args.tier, file).and_then(|tier| check(tier, file));
        match checked {
            Ok(()) if show => put(&fs::read_to_string(file)?),
            Ok(()) => say(&format!("{}: valid", file.display())),
            Err(failure) => wrong.push(failure),
        }
    }
    let Some(first) = wrong.pop() else { return Ok(()) };
    // All but the last are printed here, the last by `main` with the exit code.
    wrong.iter().for_each(|failure| say(&failure.to_string()));
    if files.len() > 1 {
        say(&format!("{} of {} wrong", wrong.len() + 1, count(files.len(), "file")));
    }
    Err(first)
}

fn files(args: &ConfigArgs) -> Outcome<Vec<PathBuf>> {
    if !args.files.is_empty() {
        return Ok(args.files.clone());
    }
    let wanted = TIERS.iter().filter(|(tier, ..)| args.tier.is_none_or(|asked| asked == *tier));
    let files: Vec<PathBuf> =
        wanted.map(|(_, name, _)| default_file(name)).filter(|path| path.exists()).collect();
    if files.is_empty() {
        return Err(
            Failure::usage("there is no file in /etc/umbel").remedy("name one: umbel config check FILE")
        );
    }
    Ok(files)
}

/// By the flag, the file's name, or the tables in it.
fn tier_of(asked: Option<Tier>, file: &Path) -> Outcome<Tier> {
    if let Some(tier) = asked {
        return Ok(tier);
    }
    let stem = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    if let Some((tier, ..)) = TIERS.iter().find(|(_, name, _)| stem == *name) {
        return Ok(*tier);
    }
    let text = fs::read_to_string(file)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", file.display())))?;
    let has = |table: &str| text.lines().any(|line| line.trim() == format!("[{table}]"));
    let found = TIERS.iter().find(|(_, _, table)| has(table)).map(|(tier, ..)| *tier);
    found.ok_or_else(|| {
        Failure::new(Exit::Usage, format!("{}: cannot tell which tier's file this is", file.display()))
            .remedy("--tier control-plane, edge or node")
    })
}

fn check(tier: Tier, file: &Path) -> Outcome {
    let checked = match tier {
        Tier::ControlPlane => {
            umbel_control_plane::Config::load(file).map(drop).map_err(|error| error.to_string())
        }
        Tier::Edge => umbel_edge::Config::load(file).map(drop).map_err(|error| error.to_string()),
        Tier::Node => umbel_node::Config::load(file).map(drop).map_err(|error| error.to_string()),
    };
    checked.map_err(|what| Failure::new(Exit::BadConfig, what))
}
