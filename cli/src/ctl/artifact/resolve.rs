//! `ctl artifact resolve`: the exact list of a model's files.
//!
//! Owns what is printed of a list; leaves resolving it to `umbel_node`, which fetches by the same rules. Invariant: what is
//! printed is what a deployment's document takes.

use umbel_contracts::{
    artifact::{ArtifactFile, check_repository, check_revision},
    deployment::ArtifactSpec,
    selector::glob,
};
use umbel_node::{Remote, resolve_at_hub, resolve_in_folder};

use crate::{
    args::{ArtifactResolve, Global},
    exit::{Failure, Outcome},
    output::{bytes, count, put, say},
};

/// Prints the `[artifact]` of a deployment. Asks no server of Umbel.
pub(in crate::ctl) async fn resolve(global: &Global, args: &ArtifactResolve) -> Outcome {
    check_repository(&args.repository).map_err(Failure::usage)?;
    check_revision(&args.revision).map_err(Failure::usage)?;
    let wanted = wanted(args);
    let (revision, files) = match &args.directory {
        Some(folder) => {
            let folder = folder.clone();
            let listed = tokio::task::spawn_blocking(move || resolve_in_folder(&folder, wanted));
            let files = listed.await.unwrap_or_else(|_| Err("hashing broke off".into()));
            (args.revision.clone(), files.map_err(Failure::failed)?)
        }
        None => {
            let token = args.hub_token_file.clone();
            let hub = Remote::parse(&args.hub, token, args.hub_ca_file.clone())
                .map_err(|why| Failure::usage(format!("--hub {}: {why}", args.hub)))?;
            let fetched = |file: &umbel_contracts::artifact::HubFile| {
                say(&format!("hashing {} ({})", file.path, bytes(file.bytes)));
            };
            let found = resolve_at_hub(&hub, &args.repository, &args.revision, wanted, fetched).await;
            let found = found.map_err(Failure::failed)?;
            (found.revision, found.files)
        }
    };
    let spec = ArtifactSpec {
        repository: args.repository.clone(),
        revision,
        source: args.source.clone(),
        main_file: main_file(&files),
        files,
    };
    // Nobody gets a list that no document takes.
    spec.check().map_err(|faults| Failure::failed(faults.to_string()))?;
    print(global, &spec)
}

/// Whether a file is to be in the list.
fn wanted(args: &ArtifactResolve) -> impl Fn(&str) -> bool + Send + use<> {
    let (include, exclude) = (args.include.clone(), args.exclude.clone());
    move |path| {
        let matches = |patterns: &[String]| patterns.iter().any(|pattern| glob(pattern, path));
        (include.is_empty() || matches(&include)) && !matches(&exclude)
    }
}

/// The one GGUF among them: an engine that takes a file takes that.
fn main_file(files: &[ArtifactFile]) -> Option<String> {
    let mut models = files.iter().filter(|file| file.path.to_lowercase().ends_with(".gguf"));
    let model = models.next()?;
    models.next().is_none().then(|| model.path.clone())
}

fn print(global: &Global, spec: &ArtifactSpec) -> Outcome {
    let raw = serde_json::to_string(spec).map_err(|error| Failure::failed(error.to_string()))?;
    if let Some(text) = global.output.object(&raw) {
        put(&text);
        return Ok(());
    }
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    put("[artifact]");
    put(&format!("repository = {}", quoted(&spec.repository)));
    put(&format!("revision = {}", quoted(&spec.revision)));
    put(&format!("source = {}", quoted(&spec.source)));
    if let Some(main_file) = &spec.main_file {
        put(&format!("main_file = {}", quoted(main_file)));
    }
    put("files = [");
    for file in &spec.files {
        let (path, sha256) = (quoted(&file.path), quoted(&file.sha256));
        put(&format!("  {{ path = {path}, bytes = {}, sha256 = {sha256} }},", file.bytes));
    }
    put("]");
    say(&format!("{}, {}, digest {}", count(spec.files.len(), "file"), bytes(spec.bytes()), spec.digest()));
    Ok(())
}
