//! Changes and figures in words.
//!
//! Owns the sentence of each change and what to type for it. Invariant: a command is one that `umbel ctl` has, or it says on
//! which host and in which file to work.

use umbel_contracts::config::ByteSize;
use umbel_contracts::deployment::of_engine;

use super::{Change, Freed, Named, Stocks, Takes};

/// Most things told of in one sentence.
const TOLD: usize = 8;

impl Change {
    /// In one word, for programs.
    pub(crate) const fn word(&self) -> &'static str {
        match self {
            Self::Enable => "enable",
            Self::Readmit => "new_credential",
            Self::BringOnline { .. } => "bring_online",
            Self::CorrectSettings { .. } => "correct_settings",
            Self::Undrain => "undrain",
            Self::StopAvoiding => "try_again",
            Self::AddLabel { .. } => "add_label",
            Self::WidenSelector { .. } => "widen_selector",
            Self::UpdateAgent => "update_agent",
            Self::Install { .. } => "install_engine",
            Self::AddFabricLabel { .. } => "add_fabric_label",
            Self::UpdateDriver { .. } => "update_driver",
            Self::FreeGpus(_) => "free_gpus",
            Self::Undivide(_) => "turn_mig_off",
            Self::Repair(_) => "repair_gpus",
            Self::FreeSpace { .. } => "free_space",
            Self::EndEngines { .. } => "end_engines",
            Self::LowerGpuCount { .. } => "lower_gpu_count",
            Self::RaiseGpuCount { .. } => "raise_gpu_count",
            Self::LowerGpuMemory { .. } => "lower_gpu_memory",
            Self::AllowGpuNames { .. } => "allow_gpu_names",
            Self::LowerCapability { .. } => "lower_capability",
            Self::LowerNodes { .. } => "lower_nodes_per_replica",
        }
    }

    /// For people, on a node of this name.
    pub(crate) fn sentence(&self, node: &str) -> String {
        match self {
            Self::Enable => format!("enable {node}"),
            Self::Readmit => format!("give {node} a new credential"),
            Self::BringOnline { state: "unknown" } => format!("wait until {node} is heard"),
            Self::BringOnline { state: "online" } => format!("wait until {node} is complete"),
            Self::BringOnline { state } => format!("bring {node} back online (it is {state})"),
            Self::CorrectSettings { version } => {
                format!("correct version {version} of the settings, which {node} refused")
            }
            Self::Undrain => format!("take the drain of {node} back"),
            Self::StopAvoiding => format!("try {node} again, once what failed there is mended"),
            Self::AddLabel { key, value } => format!("label {node} {key}={value}"),
            Self::WidenSelector { terms } => {
                let terms: Vec<String> = terms.iter().map(ToString::to_string).collect();
                format!("take {} out of the selector", terms.join(" and "))
            }
            Self::UpdateAgent => format!("bring the agent of {node} up to date"),
            Self::Install { kind, version } => {
                let newer = version.map_or_else(String::new, |version| format!(" {version} or newer"));
                format!("install {kind}{newer} on {node}, and {}", permit(kind))
            }
            Self::AddFabricLabel { label, value } => {
                let value = value.as_deref().unwrap_or("NAME");
                format!("give {node} the fabric label {label}={value}, if it is wired to that fabric")
            }
            Self::UpdateDriver { to } => format!("update the GPU driver of {node} to {to} or newer"),
            Self::FreeGpus(freed) => free(freed, node),
            Self::Undivide(gpus) => format!("turn MIG off on {} of {node}", named(gpus)),
            Self::Repair(gpus) => format!("bring {} of {node} back", named(gpus)),
            Self::EndEngines { count: 1 } => format!("end one engine of {node}"),
            Self::EndEngines { count } => format!("end {count} engines of {node}"),
            Self::FreeSpace { bytes: short } => {
                format!("free {} where {node} keeps models", bytes_up(*short))
            }
            _ => self.of_document(),
        }
    }

    fn of_document(&self) -> String {
        match self {
            Self::LowerGpuCount { from, to } => format!("gpus.count = {to} instead of {from}"),
            Self::RaiseGpuCount { from, to, memory_from, memory_to } => format!(
                "gpus.count = {to} instead of {from}, and gpus.memory_bytes = {memory_to} ({} instead of {}): the same memory in \
                 more GPUs",
                bytes_up(*memory_to),
                bytes(*memory_from)
            ),
            Self::LowerGpuMemory { from: 0, to } => {
                format!("gpus.memory_bytes = {to} ({}) instead of whole GPUs", bytes(*to))
            }
            Self::LowerGpuMemory { from, to } => {
                format!("gpus.memory_bytes = {to} ({} instead of {})", bytes(*to), bytes(*from))
            }
            Self::AllowGpuNames { names } => format!("allow {} in gpus.names", list(names, TOLD)),
            Self::LowerCapability { from, to } => format!("gpus.capability = \"{to}\" instead of {from}"),
            Self::LowerNodes { from, to } => format!("nodes_per_replica = {to} instead of {from}"),
            _ => String::new(),
        }
    }

    /// What to type, where that is known. `stocks`: what other deployments have.
    pub(crate) fn commands(&self, node: &str, deployment: &str, stocks: &Stocks) -> Vec<String> {
        let one = |command: String| vec![command];
        match self {
            Self::Enable => one(format!("umbel ctl node enable {node}")),
            Self::Readmit => one(format!("umbel ctl token create --replace {node}")),
            Self::BringOnline { state: "unknown" | "online" } => one(format!("umbel ctl node why {node}")),
            Self::BringOnline { .. } => one("umbel node doctor   # on its host".to_owned()),
            Self::CorrectSettings { .. } => one(format!("umbel ctl settings show --node {node}")),
            Self::Undrain => one(format!("umbel ctl node undrain {node}")),
            Self::StopAvoiding => one(format!("umbel ctl model load {deployment}")),
            Self::AddLabel { key, value } => one(format!("umbel ctl node label {node} {key}={value}")),
            Self::FreeGpus(freed) => ending(freed, node, &self.takes(stocks)),
            Self::EndEngines { .. } => one("umbel ctl engine".to_owned()),
            Self::FreeSpace { .. } => one(format!("umbel ctl node show {node}")),
            Self::Install { .. } => one("umbel config check   # on its host, after the change".to_owned()),
            _ => Vec::new(),
        }
    }
}

/// What a node's file says where it can run an engine of this kind.
fn permit(kind: &str) -> String {
    match kind {
        "sim" => "say node.allow_sim = true in its file".to_owned(),
        "external" => "name its address in its file".to_owned(),
        kind => format!("name its program in its file (programs.{})", kind.replace('-', "_")),
    }
}

/// Engines to stop and foreign processes to end.
fn free(freed: &[Freed], node: &str) -> String {
    let mut parts = Vec::new();
    let holders = holders(freed);
    if !holders.is_empty() {
        let each: Vec<String> = holders
            .iter()
            .map(|holder| {
                let gpus: Vec<Named> = freed
                    .iter()
                    .filter(|one| one.holder.as_deref() == Some(holder))
                    .map(|one| one.gpu.clone())
                    .collect();
                format!("{holder} ({})", named(&gpus))
            })
            .collect();
        parts.push(format!("stop {}", list(&each, TOLD)));
    }
    let foreign: Vec<String> = freed
        .iter()
        .filter(|one| one.foreign_bytes > 0)
        .map(|one| format!("GPU {} ({})", one.gpu.index, bytes(one.foreign_bytes)))
        .collect();
    if !foreign.is_empty() {
        parts.push(format!("end the foreign processes on {}", list(&foreign, TOLD)));
    }
    let total: u64 = freed.iter().map(|one| one.memory_bytes).fold(0, u64::saturating_add);
    let gpus = if freed.len() == 1 { "1 GPU".to_owned() } else { format!("{} GPUs", freed.len()) };
    format!("{} on {node}: frees {gpus}, {}", parts.join(" and "), bytes(total))
}

fn holders(freed: &[Freed]) -> Vec<&str> {
    let mut holders: Vec<&str> = freed.iter().filter_map(|one| one.holder.as_deref()).collect();
    holders.sort_unstable();
    holders.dedup();
    holders
}

/// What ends holders of GPUs, the smallest there is: an engine of a deployment would be started again, so that its deployment has
/// to want fewer.
fn ending(freed: &[Freed], node: &str, takes: &[Takes]) -> Vec<String> {
    let own = holders(freed).into_iter().filter(|holder| of_engine(holder).is_none());
    let mut commands: Vec<String> =
        own.map(|holder| format!("umbel ctl engine stop {node}/{holder} -m 'why'")).collect();
    commands.extend(takes.iter().map(Takes::command));
    if freed.iter().any(|one| one.foreign_bytes > 0) {
        commands.push("nvidia-smi   # on its host: the processes that are no engines".to_owned());
    }
    commands
}

impl Takes {
    fn command(&self) -> String {
        let Self { deployment, needed, goes, of } = self;
        if goes < of {
            let left = of - goes;
            return format!(
                "umbel ctl model apply FILE -m 'why'   # {deployment} with replicas = {left} instead of {of}"
            );
        }
        let all = if goes > needed { format!("   # all its {of} replicas go") } else { String::new() };
        format!("umbel ctl model unload {deployment} -m 'why'{all}")
    }

    /// What goes beside what is needed; empty if nothing does.
    pub(crate) fn beside(&self) -> String {
        let Self { deployment, needed, goes, .. } = self;
        match goes - needed {
            0 => String::new(),
            more => {
                format!("; {more} more of {deployment} {} with it", if more == 1 { "goes" } else { "go" })
            }
        }
    }
}

fn named(gpus: &[Named]) -> String {
    let indexes: Vec<String> = gpus.iter().map(|gpu| gpu.index.to_string()).collect();
    format!("GPU {}", list(&indexes, TOLD))
}

/// `a, b and 3 more`.
pub(in super::super) fn list(items: &[String], most: usize) -> String {
    let shown = items.iter().take(most).map(String::as_str).collect::<Vec<_>>().join(", ");
    match items.len().saturating_sub(most) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// `92.4 GiB`, rounded down.
pub(in super::super) fn bytes(count: u64) -> String {
    ByteSize(count).rounded()
}

/// `92.4 GiB`, rounded up: what is needed.
fn bytes_up(count: u64) -> String {
    ByteSize(count).rounded_up()
}

/// `3m 12s`.
pub(in super::super) fn time(milliseconds: u64) -> String {
    match milliseconds / 1_000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}
