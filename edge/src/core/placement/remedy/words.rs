//! Changes and figures in words.
//!
//! Owns the sentence of each change and what to type for it. Invariant: a command is one that `umbel ctl` has, or it says on
//! which host and in which file to work.

use super::{Change, Freed, Named};

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

    /// What to type, where that is known.
    pub(crate) fn commands(&self, node: &str, deployment: &str) -> Vec<String> {
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
            Self::FreeGpus(freed) => ending(freed, node),
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

fn ending(freed: &[Freed], node: &str) -> Vec<String> {
    let mut commands: Vec<String> = holders(freed)
        .into_iter()
        .map(|holder| match holder.rsplit_once('.') {
            // An engine of a deployment would be started again.
            Some((deployment, _)) => {
                let deployment = deployment.split('.').next().unwrap_or(deployment);
                format!("umbel ctl model unload {deployment} -m 'why'")
            }
            None => format!("umbel ctl engine stop {node}/{holder} -m 'why'"),
        })
        .collect();
    commands.dedup();
    if freed.iter().any(|one| one.foreign_bytes > 0) {
        commands.push("nvidia-smi   # on its host: the processes that are no engines".to_owned());
    }
    commands
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
    rounded(count, 0)
}

/// `92.4 GiB`, rounded up: what is needed.
fn bytes_up(count: u64) -> String {
    rounded(count, 1)
}

fn rounded(count: u64, up: u128) -> String {
    const UNITS: [(&str, u64); 4] = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    for (unit, size) in UNITS {
        if count >= size {
            let size = u128::from(size);
            let tenths = (u128::from(count) * 10 + up * (size - 1)) / size;
            return format!("{}.{} {unit}", tenths / 10, tenths % 10);
        }
    }
    format!("{count} B")
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
