//! What a deployment's document may say beyond its types.
//!
//! Invariant: each fault names the field's path, what stands there and what is legal; a document is judged whole, so that
//! an operator mends it once.

use std::collections::BTreeSet;

use super::read::canonical;
use super::shape::FAULTS_MAX;
use super::{
    ArtifactSpec, DELAY_MAX, DOCUMENT_BYTES_MAX, DeploymentSpec, EngineKind, Faults, GPU_NAMES_MAX, GPUS_MAX,
    GpuSpec, NAME_BYTES_MAX, NODES_PER_REPLICA_MAX, Profile, REPLICAS_MAX,
};
use crate::artifact;
use crate::names;
use crate::selector::Selector;
use crate::settings::{CAPACITY_MAX, Fault};

/// Other names of a model.
const ALIASES_MAX: usize = 16;
/// Names that mean another revision tomorrow.
const MOVING: [&str; 6] = ["main", "master", "latest", "head", "trunk", "dev"];

struct Judge(Vec<Fault>);

impl Judge {
    fn unless(&mut self, holds: bool, path: &str, value: impl std::fmt::Display, legal: &str) {
        if !holds {
            self.fault(path, format!("{value} is not legal: {legal}"));
        }
    }

    /// One fault a field: what is wrong with it first.
    fn fault(&mut self, path: &str, says: String) {
        let known = |fault: &Fault| is_within(path, &fault.path);
        if self.0.len() < FAULTS_MAX && !self.0.iter().any(known) {
            self.0.push(Fault::new(path, says));
        }
    }

    /// Nothing is wrong with these fields, nor with what they are in or have in them: what follows from another fault is none.
    fn stand(&self, paths: &[&str]) -> bool {
        let wrong = |path: &str| {
            self.0.iter().any(|fault| is_within(path, &fault.path) || is_within(&fault.path, path))
        };
        !paths.iter().any(|path| wrong(path))
    }

    fn range(&mut self, path: &str, value: Option<u32>, least: u32, most: u32) {
        let Some(value) = value else { return };
        if !(least..=most).contains(&value) {
            self.fault(path, format!("must be a whole number from {least} to {most}, not {value}"));
        }
    }
}

/// Whether a field is another one, or in it: `artifact.files[0].path` is in `artifact.files`.
fn is_within(path: &str, whole: &str) -> bool {
    whole.is_empty()
        || path.strip_prefix(whole).is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

impl DeploymentSpec {
    /// Checks all that can be judged without knowing the site.
    ///
    /// # Errors
    /// All that is wrong, at most 32 of them.
    pub fn check(&self) -> Result<(), Faults> {
        self.judge(Vec::new())
    }

    /// Adds what breaks a rule to what is known to be wrong; neither it nor what follows from it is told again.
    pub(super) fn judge(&self, known: Vec<Fault>) -> Result<(), Faults> {
        let mut judge = Judge(known);
        names(self, &mut judge);
        figures(self, &mut judge);
        gpus(&self.gpus, &mut judge);
        nodes(self, &mut judge);
        if let Some(artifact) = &self.artifact {
            judge_artifact(artifact, &mut judge);
        }
        engine(self, &mut judge);
        size(self, &mut judge);
        if judge.0.is_empty() { Ok(()) } else { Err(Faults(judge.0)) }
    }
}

impl ArtifactSpec {
    /// Checks an artifact that stands for itself; paths of faults begin with its own fields.
    ///
    /// # Errors
    /// All that is wrong.
    pub fn check(&self) -> Result<(), Faults> {
        self.judge(Vec::new())
    }

    /// Adds what breaks a rule to what is known to be wrong, whose paths are those of a document.
    pub(super) fn judge(&self, known: Vec<Fault>) -> Result<(), Faults> {
        let mut judge = Judge(known);
        judge_artifact(self, &mut judge);
        let whole = canonical(self).len();
        if whole > DOCUMENT_BYTES_MAX {
            too_large("artifact.files", canonical(&self.files).len(), whole, &mut judge);
        }
        for fault in &mut judge.0 {
            let path = fault.path.strip_prefix("artifact").unwrap_or(&fault.path);
            fault.path = path.trim_start_matches('.').to_owned();
        }
        if judge.0.is_empty() { Ok(()) } else { Err(Faults(judge.0)) }
    }
}

/// A dotted version as numbers: `550.54.15`; `None` if it is none.
#[must_use]
pub fn parse_version(text: &str) -> Option<Vec<u32>> {
    let numbers: Option<Vec<u32>> = text.split('.').map(|part| part.parse().ok()).collect();
    numbers.filter(|numbers| numbers.len() <= 4)
}

fn quoted(text: &str) -> String {
    let shown: String = text.chars().take(64).collect();
    if shown.len() == text.len() { format!("{shown:?}") } else { format!("{shown:?}...") }
}

fn label(name: &str, most: usize) -> bool {
    let legal = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=most).contains(&name.len())
        && name.chars().all(legal)
        && !name.starts_with('-')
        && !name.ends_with('-')
}

fn names(spec: &DeploymentSpec, judge: &mut Judge) {
    let legal = "1 to 40 of a-z, 0-9 and '-', neither first nor last a '-'";
    judge.unless(label(&spec.name, NAME_BYTES_MAX), "name", quoted(&spec.name), legal);
    let legal = format!("a model's name {}", names::MODEL_IS);
    if let Some(model) = &spec.model {
        judge.unless(names::is_model(model), "model", quoted(model), &legal);
    }
    refused_name(spec, spec.model(), if spec.model.is_some() { "model" } else { "name" }, judge);
    let count = spec.aliases.len();
    judge.unless(count <= ALIASES_MAX, "aliases", format!("a list of {count}"), "at most 16 are allowed");
    let mut seen = BTreeSet::from([spec.model()]);
    for (index, alias) in spec.aliases.iter().enumerate() {
        let at = format!("aliases[{index}]");
        let legal = format!("an alias {}", names::MODEL_IS);
        judge.unless(names::is_model(alias), &at, quoted(alias), &legal);
        refused_name(spec, alias, &at, judge);
        let legal = "an alias is there once, and is not the model's own name";
        judge.unless(seen.insert(alias), &at, quoted(alias), legal);
    }
}

/// A name that its engine would take for something else.
fn refused_name(spec: &DeploymentSpec, name: &str, at: &str, judge: &mut Judge) {
    let kind = spec.engine.kind;
    let why = kind.refuses_name(name, at.starts_with("aliases"));
    if let Some(why) = why.filter(|_| judge.stand(&["engine.kind"])) {
        judge.unless(false, at, quoted(name), &format!("of an engine of kind {kind} {why}"));
    }
}

fn figures(spec: &DeploymentSpec, judge: &mut Judge) {
    judge.range("replicas", Some(spec.replicas), 0, REPLICAS_MAX);
    judge.range("capacity", spec.capacity, 1, CAPACITY_MAX);
    judge.range("max_context_tokens", spec.max_context_tokens, 1, u32::MAX);
    judge.range("long_context_threshold_tokens", spec.long_context_threshold_tokens, 1, u32::MAX);
    let most = if judge.stand(&["capacity"]) { spec.capacity() } else { CAPACITY_MAX };
    judge.range("long_context_capacity", spec.long_context_capacity, 1, most);
    long_context(spec, judge);
    for (path, delay) in [("drain_deadline", spec.drain_deadline), ("replace_delay", spec.replace_delay)] {
        judge.unless(delay <= DELAY_MAX, path, delay, "it is at most 1d");
    }
    category(spec, judge);
}

fn long_context(spec: &DeploymentSpec, judge: &mut Judge) {
    if !judge.stand(&["max_context_tokens", "long_context_threshold_tokens", "long_context_capacity"]) {
        return;
    }
    let (threshold, long) = (spec.long_context_threshold_tokens, spec.long_context_capacity);
    if let (Some(threshold), Some(max)) = (threshold, spec.max_context_tokens) {
        let legal = format!("it is below max_context_tokens ({max})");
        judge.unless(threshold < max, "long_context_threshold_tokens", threshold, &legal);
    }
    if let (Some(threshold), None) = (threshold, long) {
        let legal = "it needs long_context_capacity: without it no long request could ever run";
        judge.unless(false, "long_context_threshold_tokens", threshold, legal);
    }
    if let (None, Some(long)) = (threshold, long) {
        judge.unless(false, "long_context_capacity", long, "it needs long_context_threshold_tokens");
    }
}

fn category(spec: &DeploymentSpec, judge: &mut Judge) {
    if !judge.stand(&["engine.kind"]) {
        return;
    }
    let legal = match spec.engine.kind {
        EngineKind::External => ["api", "local_inference"].as_slice(),
        EngineKind::Cli => &["cli"],
        _ => &["local_inference"],
    };
    let sentence = format!("of an engine of kind {} it is {}", spec.engine.kind.as_str(), legal.join(" or "));
    judge.unless(legal.contains(&spec.category()), "category", quoted(spec.category()), &sentence);
}

fn gpus(gpus: &GpuSpec, judge: &mut Judge) {
    judge.range("gpus.count", Some(gpus.count), 0, GPUS_MAX);
    let counted = judge.stand(&["gpus.count"]);
    let asked = [
        ("gpus.memory_bytes", gpus.memory_bytes.is_some()),
        ("gpus.names", !gpus.names.is_empty()),
        ("gpus.capability", gpus.capability.is_some()),
        ("gpus.driver", gpus.driver.is_some()),
    ];
    for (path, _) in asked.into_iter().filter(|(_, asked)| *asked && gpus.count == 0 && counted) {
        judge.unless(false, path, "a condition on no GPU", "gpus.count is at least 1 where one is set");
    }
    let count = gpus.names.len();
    judge.unless(
        count <= GPU_NAMES_MAX,
        "gpus.names",
        format!("a list of {count}"),
        "at most 16 are allowed",
    );
    for (index, name) in gpus.names.iter().enumerate() {
        let legal = (1..=128).contains(&name.len()) && names::is_plain(name);
        judge.unless(
            legal,
            &format!("gpus.names[{index}]"),
            quoted(name),
            "a glob of 1 to 128 bytes: \"*H200*\"",
        );
    }
    if let Some(capability) = &gpus.capability {
        let legal = parse_version(capability).is_some_and(|numbers| numbers.len() == 2);
        judge.unless(legal, "gpus.capability", quoted(capability), "two numbers and a dot: \"8.9\"");
    }
    if let Some(driver) = &gpus.driver {
        let legal = "one to four numbers and dots: \"550.54\"";
        judge.unless(parse_version(driver).is_some(), "gpus.driver", quoted(driver), legal);
    }
}

fn nodes(spec: &DeploymentSpec, judge: &mut Judge) {
    judge.range("nodes_per_replica", Some(spec.nodes_per_replica), 1, NODES_PER_REPLICA_MAX);
    if let Some(key) = &spec.fabric_label {
        let legal = (1..=63).contains(&key.len()) && key.chars().all(|c| c.is_ascii_graphic() && c != '=');
        judge.unless(legal, "fabric_label", quoted(key), "the key of a fabric label, 1 to 63 characters");
    } else if judge.stand(&["fabric_label"]) {
        let legal = "more than one node needs fabric_label, which says what they share";
        judge.unless(spec.nodes_per_replica <= 1, "nodes_per_replica", spec.nodes_per_replica, legal);
    }
    if let Some(Err(error)) = spec.selector.as_deref().map(Selector::parse) {
        judge.unless(
            false,
            "selector",
            quoted(spec.selector.as_deref().unwrap_or_default()),
            &error.to_string(),
        );
    }
}

fn judge_artifact(artifact: &ArtifactSpec, judge: &mut Judge) {
    let ArtifactSpec { repository, revision, source, files, main_file } = artifact;
    if let Err(says) = artifact::check_repository(repository) {
        judge.fault("artifact.repository", says);
    }
    if let Err(says) = artifact::check_revision(revision) {
        judge.fault("artifact.revision", says);
    }
    let moving = MOVING.contains(&revision.to_ascii_lowercase().as_str());
    let legal = "a branch means other files tomorrow; name the exact revision, such as a commit";
    judge.unless(!moving, "artifact.revision", quoted(revision), legal);
    let legal = "the name of a node's source: 1 to 63 of a-z, 0-9 and '-'";
    judge.unless(label(source, 63), "artifact.source", quoted(source), legal);
    if let Err(fault) = artifact::check_files(files) {
        judge.fault(&format!("artifact.files{}", fault.place()), fault.says);
    }
    // A wrong name in the list is one fault, not two.
    if let Some(main) = main_file.as_ref().filter(|_| judge.stand(&["artifact.files"])) {
        let known = files.iter().any(|file| &file.path == main);
        judge.unless(known, "artifact.main_file", quoted(main), "it is the path of one of artifact.files");
    }
}

/// All of it goes in one command, whatever its lists may have by themselves.
fn size(spec: &DeploymentSpec, judge: &mut Judge) {
    let whole = canonical(spec).len();
    if whole <= DOCUMENT_BYTES_MAX {
        return;
    }
    let files = spec.artifact.as_ref().map_or(0, |artifact| canonical(&artifact.files).len());
    let profile = canonical(&spec.engine.profile).len();
    let (path, takes) =
        if files >= profile { ("artifact.files", files) } else { ("engine.profile", profile) };
    too_large(path, takes, whole, judge);
}

fn too_large(path: &str, takes: usize, whole: usize, judge: &mut Judge) {
    let says = format!(
        "takes {takes} bytes as JSON, and all of it {whole}: at most {DOCUMENT_BYTES_MAX} are allowed for the whole, so have less \
         there, or shorter names"
    );
    judge.fault(path, says);
}

fn engine(spec: &DeploymentSpec, judge: &mut Judge) {
    if !judge.stand(&["engine.kind", "engine.profile"]) {
        return;
    }
    let profile = match spec.profile() {
        Ok(profile) => profile,
        Err(fault) => return judge.fault(&fault.path, fault.message),
    };
    let kind = spec.engine.kind.as_str();
    match &spec.artifact {
        None => {
            let sentence = format!("an engine of kind {kind} needs the model's files");
            judge.unless(!profile.needs_artifact(), "artifact", "none", &sentence);
        }
        Some(artifact) if profile.needs_main_file() && judge.stand(&["artifact.main_file"]) => {
            let sentence = format!("an engine of kind {kind} is given one file: name it");
            judge.unless(artifact.main_file.is_some(), "artifact.main_file", "none", &sentence);
        }
        Some(_) => {
            let takes_none = matches!(spec.engine.kind, EngineKind::External | EngineKind::Cli);
            let sentence = format!("an engine of kind {kind} takes no files");
            judge.unless(!takes_none, "artifact", "an artifact", &sentence);
        }
    }
    if let Some(artifact) = &spec.artifact {
        fits_files(artifact, &profile, judge);
    }
    fits_profile(spec, &profile, judge);
}

/// What the engine reads is among the files: all that a node would find out only once it has fetched them.
fn fits_files(artifact: &ArtifactSpec, profile: &Profile, judge: &mut Judge) {
    if !profile.needs_artifact() || !judge.stand(&["artifact.files", "artifact.main_file"]) {
        return;
    }
    let (files, kind) = (&artifact.files, profile.kind());
    let main = artifact.main_file.as_deref().filter(|_| profile.needs_main_file()).unwrap_or_default();
    if let Some(index) = files.iter().position(|file| file.path == main && file.bytes == 0) {
        let at = format!("artifact.files[{index}].bytes");
        judge.unless(false, &at, 0, "the file is the model, which is not empty");
    }
    let needs = kind.folder_needs();
    if !needs.is_empty() && !files.iter().any(|file| needs.contains(&file.path.as_str())) {
        let says =
            format!("has no {}: an engine of kind {kind} serves the folder of a model", needs.join(" or "));
        judge.fault("artifact.files", says);
    }
    let beside = main.rsplit_once('/').map(|(folder, _)| format!("{folder}/")).unwrap_or_default();
    for (key, file) in profile.files() {
        let path = format!("{beside}{file}");
        let known = files.iter().any(|file| file.path == path);
        let sentence = format!("{} is not among artifact.files", quoted(&path));
        judge.unless(known, &format!("engine.profile.{key}"), quoted(&file), &sentence);
    }
}

/// Figures that the profile says too.
fn fits_profile(spec: &DeploymentSpec, profile: &Profile, judge: &mut Judge) {
    if !judge.stand(&["capacity", "max_context_tokens", "gpus.count", "nodes_per_replica"]) {
        return;
    }
    let capacity = spec.capacity();
    if let (Some(of_engine), Some(said)) = (profile.context_tokens(capacity), spec.max_context_tokens) {
        let sentence = format!("the engine gives one request of {capacity} at once {of_engine} tokens");
        judge.unless(said <= of_engine, "max_context_tokens", said, &sentence);
    }
    if let Some(most) = profile.max_requests() {
        let sentence = format!("the engine takes {most} requests at once by its profile");
        judge.unless(capacity <= most, "capacity", capacity, &sentence);
    }
    if let Some(gpus) = profile.gpus() {
        let said = spec.gpus.count.saturating_mul(spec.nodes_per_replica);
        let sentence =
            format!("the engine computes on {gpus} GPUs by its profile, and so many gpus.count has to give");
        judge.unless(said == gpus, "gpus.count", spec.gpus.count, &sentence);
    }
}
