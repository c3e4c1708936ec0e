//! `ctl artifact`: files of models on nodes.
//!
//! Owns listing, bringing and removing them. Leaves the list of a model's files to `resolve`, following to `ctl job`, and who
//! needs what to the edge. Invariant: what is removed is one artifact, named by repository and, where several are there, revision.

mod resolve;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;

use serde_json::{Map, Value};
use umbel_contracts::config::ConfigFile;
use umbel_contracts::deployment::ArtifactSpec;
use umbel_contracts::operations::{ArtifactAcquireArgs, ArtifactObject, ArtifactRemoveArgs};

use super::{
    Ctl,
    gather::{Gathered, gather_with},
    job, nodes, pick,
};
use crate::{
    args::{ArtifactFilter, ArtifactVerb},
    calls::Call,
    client::parse,
    exit::{Failure, Outcome},
    output::{Column, Format, Table, bytes, count, say, short},
};

pub(super) use resolve::resolve;

/// Bytes of a document on standard input: as of a file.
const LARGEST: u64 = 1 << 20;

pub(super) async fn run(ctl: &Ctl, filter: &ArtifactFilter, verb: Option<&ArtifactVerb>) -> Outcome {
    match verb {
        None => list(ctl, filter).await,
        Some(ArtifactVerb::List { filter }) => list(ctl, filter).await,
        Some(ArtifactVerb::Acquire { file, node, root, reserve }) => {
            let artifact = read(file)?;
            let reserve_bytes = reserve.map(|size| size.0);
            acquire(ctl, node, ArtifactAcquireArgs { artifact, root: root.clone(), reserve_bytes }).await
        }
        Some(ArtifactVerb::Remove { artifact, node }) => remove(ctl, artifact, node.as_deref()).await,
        Some(ArtifactVerb::Resolve(asked)) => resolve(&ctl.global, asked).await,
    }
}

async fn gathered(ctl: &Ctl, repository: Option<&str>, node: Option<&str>) -> Outcome<Gathered> {
    let mut args = Map::new();
    args.extend(repository.map(|repository| ("repository".to_owned(), Value::from(repository))));
    gather_with(ctl, "artifact.list", "artifacts", &nodes(node.unwrap_or_default()), &args).await
}

async fn list(ctl: &Ctl, filter: &ArtifactFilter) -> Outcome {
    let gathered = gathered(ctl, filter.repository.as_deref(), filter.node.as_deref()).await?;
    if ctl.put_list(&gathered.raws()?) {
        return gathered.complete("artifacts");
    }
    let mut all: Vec<(String, ArtifactObject)> = Vec::new();
    for (site, raw) in &gathered.items {
        all.push((site.clone(), parse(raw.get())?));
    }
    all.sort_by(|(a_site, a), (b_site, b)| {
        (&a.repository, &a.revision, a_site, &a.node).cmp(&(&b.repository, &b.revision, b_site, &b.node))
    });
    let mut table = Table::new(vec![
        Column::left("REPOSITORY"),
        Column::left("REVISION"),
        Column::left("SITE"),
        Column::left("NODE"),
        Column::number("SIZE"),
        Column::number("FILES"),
        Column::left("DIGEST"),
        Column::left("ROOT").wide(),
        Column::left("FOLDER").wide(),
        Column::text("USED BY"),
    ]);
    for (site, one) in &all {
        table.row(vec![
            one.repository.clone(),
            short(&one.revision),
            site.clone(),
            one.node.clone(),
            bytes(one.bytes),
            one.files.to_string(),
            short(&one.digest),
            one.root.clone(),
            one.folder.clone(),
            one.used_by.join(", "),
        ]);
    }
    if ctl.global.output == Format::Name {
        let names: Vec<String> = all.iter().map(|(_, one)| name(one)).collect();
        ctl.put_names(names.iter().map(String::as_str));
    } else {
        ctl.put_table(
            &table,
            "No artifact. Deployments bring theirs; ahead of time: umbel ctl artifact acquire",
        );
    }
    gathered.complete("artifacts")
}

fn name(one: &ArtifactObject) -> String {
    format!("{}@{}", one.repository, one.revision)
}

/// The `[artifact]` of a document, or one that stands for itself.
fn read(file: &Path) -> Outcome<ArtifactSpec> {
    let file = if file == Path::new("-") {
        let mut text = String::new();
        std::io::stdin().lock().take(LARGEST).read_to_string(&mut text)?;
        ConfigFile::from_text(Path::new("standard input"), text)
    } else {
        ConfigFile::read(file).map_err(|error| Failure::usage(error.to_string()))?
    };
    let at = file.path().display();
    let said = |what: String| Failure::usage(format!("{at}: {what}"));
    let mut value: Value = if file.text().trim_start().starts_with('{') {
        serde_json::from_str(file.text()).map_err(|error| said(format!("is no JSON: {error}")))?
    } else {
        file.parse().map_err(|error| Failure::usage(error.to_string()))?
    };
    if let Some(artifact) = value.get_mut("artifact") {
        value = artifact.take();
    } else if value.get("engine").is_some() {
        return Err(said("has no [artifact]: its engine needs no files".to_owned()));
    }
    ArtifactSpec::from_value(value).map_err(|faults| said(format!("[artifact] {faults}")))
}

async fn acquire(ctl: &Ctl, node: &str, args: ArtifactAcquireArgs) -> Outcome {
    let site = ctl.one_site().await?;
    if !ctl.global.output.is_object() {
        let artifact = &args.artifact;
        let size = bytes(artifact.bytes());
        let files = count(artifact.files.len(), "file");
        say(&format!("{}@{}: {files}, {size}", artifact.repository, artifact.revision));
    }
    let call = Call { selector: nodes(node), ..Call::new("artifact.acquire") }.args(&args)?;
    job::begin(ctl, &site, call).await.map(drop)
}

async fn remove(ctl: &Ctl, wanted: &str, node: Option<&str>) -> Outcome {
    ctl.reason_for("removing files")?;
    let (repository, _) = wanted.split_once('@').unwrap_or((wanted, ""));
    let gathered = gathered(ctl, Some(repository), node).await?;
    // The same files on several nodes are one artifact.
    let mut there: BTreeMap<(String, String), Vec<ArtifactObject>> = BTreeMap::new();
    for (site, raw) in &gathered.items {
        let one: ArtifactObject = parse(raw.get())?;
        let key = format!("{} {}", name(&one), one.digest);
        there.entry((site.clone(), key)).or_default().push(one);
    }
    let names = |(_, copies): &((String, String), Vec<ArtifactObject>)| {
        let Some(one) = copies.first() else { return Vec::new() };
        // In full, and as the list has it.
        let listed = format!("{}@{}", one.repository, short(&one.revision));
        let mut names = vec![name(one), listed, one.digest.clone()];
        // The repository alone will do where only one of its artifacts is there.
        names.extend((wanted == repository).then(|| repository.to_owned()));
        names
    };
    let all: Vec<_> = there.into_iter().collect();
    let place = |((site, _), _): &((String, String), Vec<ArtifactObject>)| site.clone();
    let found = pick::placed(all, wanted, "artifact", names, place, "umbel ctl artifact");
    let found = found.map_err(|failure| gathered.or_silent(failure, wanted, "artifact"))?;
    let ((site, _), copies) = found.item;
    let Some(one) = copies.first() else { return Err(Failure::failed("nothing is there")) };
    if !found.exact {
        ctl.confirm_half(&format!("Remove {}?", name(one)))?;
    }
    if node.is_none() && copies.len() > 1 {
        let on: Vec<&str> = copies.iter().map(|one| one.node.as_str()).collect();
        ctl.confirm(&format!("Remove {} ({}) from {}?", name(one), bytes(one.bytes), on.join(", ")))?;
    }
    let args = ArtifactRemoveArgs {
        repository: one.repository.clone(),
        revision: one.revision.clone(),
        digest: one.digest.clone(),
        root: None,
    };
    let call = Call { selector: nodes(node.unwrap_or("all")), ..Call::new("artifact.remove") }.args(&args)?;
    job::begin(ctl, &site, call).await.map(drop)
}
