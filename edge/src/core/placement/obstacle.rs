//! What stands against a node, with its numbers.
//!
//! Owns every reason why a replica cannot run on a node, where it counts in the funnel, and its sentence. Invariant: no sentence
//! holds an address; each has the wanted and the found value.

use umbel_contracts::objects::PlacementReason;
use umbel_contracts::release::Release;
use umbel_contracts::selector::Term;
use umbel_contracts::settings::ENGINES_MAX;

use super::candidate::{Condition, Gpu, Room, Standing};
use super::remedy::words::{bytes, list, time};

/// Most GPUs told of in one sentence: the object has all.
const TOLD: usize = 8;

/// One reason against a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// It cannot be given work now.
    Away(Standing),
    SettingsRefused {
        version: u64,
        why: String,
    },
    Draining,
    /// Whoever asks wants it left alone for a while.
    Avoided {
        why: String,
    },
    /// What of the selector it does not meet.
    NotSelected {
        terms: Vec<Term>,
    },
    /// Its agent does not know how to load, or how to bring files.
    AgentTooOld {
        loads: bool,
    },
    EngineMissing {
        wanted: String,
        installed: Vec<String>,
    },
    EngineTooOld {
        kind: String,
        wanted: Release,
        found: String,
    },
    FabricMissing {
        label: String,
    },
    /// It has never said what hardware it has.
    NoInventory,
    Driver {
        wanted: Release,
        found: Option<Release>,
    },
    Gpus(Shortage),
    /// It has as many engines as a node may have.
    Full {
        engines: usize,
    },
    /// The files are larger than what they may fill.
    Space {
        bytes: u64,
        room: Room,
    },
    /// It would do, and too few of those with its fabric would.
    FabricTooSmall {
        label: String,
        value: String,
        fitting: u32,
        wanted: u32,
    },
}

/// Too few GPUs of a node will do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    pub(crate) wanted: u32,
    pub(crate) usable: u32,
    /// Asked of each GPU; 0: the whole of it.
    pub(crate) memory_bytes: u64,
    pub(crate) capability: Option<Release>,
    /// The question after which too few were left; `None`: it has too few of any kind.
    pub(crate) at: Option<GpuReason>,
    /// Every GPU of the node.
    pub(crate) judged: Vec<Judged>,
}

/// One GPU and what is against it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Judged {
    pub(crate) gpu: Gpu,
    pub(crate) against: Option<GpuReason>,
}

/// Why a GPU will not do, in the order in which it is asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum GpuReason {
    Name,
    Capability,
    /// Lost or missing.
    Gone,
    Mig,
    /// Too small even when nothing is on it.
    Size,
    /// Foreign processes hold too much of it.
    Foreign,
    /// An engine or a replica has it.
    Held,
}

impl GpuReason {
    pub(crate) const ALL: [Self; 7] =
        [Self::Name, Self::Capability, Self::Gone, Self::Mig, Self::Size, Self::Foreign, Self::Held];

    /// Where it counts.
    pub(crate) const fn reason(self) -> PlacementReason {
        match self {
            Self::Name => PlacementReason::GpuName,
            Self::Capability => PlacementReason::GpuCapability,
            Self::Gone => PlacementReason::GpuGone,
            Self::Mig => PlacementReason::GpuMig,
            Self::Size => PlacementReason::GpuSize,
            Self::Foreign => PlacementReason::GpuForeign,
            Self::Held => PlacementReason::GpuHeld,
        }
    }
}

impl Obstacle {
    /// Where it counts.
    pub(crate) fn reason(&self) -> PlacementReason {
        match self {
            Self::Away(Standing::Disabled) => PlacementReason::Disabled,
            Self::Away(Standing::NoCredential(_)) => PlacementReason::NoCredential,
            Self::Away(_) => PlacementReason::NotOnline,
            Self::SettingsRefused { .. } => PlacementReason::SettingsRefused,
            Self::Draining => PlacementReason::Draining,
            Self::Avoided { .. } => PlacementReason::Avoided,
            Self::NotSelected { .. } => PlacementReason::NotSelected,
            Self::AgentTooOld { .. } => PlacementReason::AgentTooOld,
            Self::EngineMissing { .. } => PlacementReason::EngineMissing,
            Self::EngineTooOld { .. } => PlacementReason::EngineTooOld,
            Self::FabricMissing { .. } => PlacementReason::FabricMissing,
            Self::NoInventory => PlacementReason::NoInventory,
            Self::Driver { .. } => PlacementReason::DriverTooOld,
            Self::Gpus(shortage) => shortage.at.map_or(PlacementReason::GpuCount, GpuReason::reason),
            Self::Full { .. } => PlacementReason::EngineCount,
            Self::Space { .. } => PlacementReason::Space,
            Self::FabricTooSmall { .. } => PlacementReason::FabricTooSmall,
        }
    }

    /// For people: without the node's name, which stands beside it.
    pub(crate) fn sentence(&self) -> String {
        match self {
            Self::Away(standing) => away(*standing),
            Self::SettingsRefused { version, why } => format!("refused settings version {version}: {why}"),
            Self::Draining => "draining: it takes no new work".to_owned(),
            Self::Avoided { why } => format!("left alone for now: {why}"),
            Self::NotSelected { terms } => {
                let terms: Vec<String> = terms.iter().map(ToString::to_string).collect();
                format!("the selector asks for {}", terms.join(" and "))
            }
            Self::AgentTooOld { loads: true } => "its agent cannot bring files: too old".to_owned(),
            Self::AgentTooOld { loads: false } => "its agent cannot load deployments: too old".to_owned(),
            Self::EngineMissing { wanted, installed } if installed.is_empty() => {
                format!("{wanted} is not installed, nor any other engine")
            }
            Self::EngineMissing { wanted, installed } => {
                format!("{wanted} is not installed; it has {}", list(installed, TOLD))
            }
            Self::EngineTooOld { kind, wanted, found } if found.is_empty() => {
                format!("{kind} {wanted} wanted; the installed one does not say its version")
            }
            Self::EngineTooOld { kind, wanted, found } => {
                format!("{kind} {wanted} wanted, {found} installed")
            }
            Self::FabricMissing { label } => {
                format!("no fabric label `{label}`: shards find each other only within one fabric")
            }
            Self::NoInventory => "it has never said which GPUs it has".to_owned(),
            Self::Driver { wanted, found } => match found {
                Some(found) => format!("GPU driver {wanted} wanted, {found} there"),
                None => format!("GPU driver {wanted} wanted, and it says of none"),
            },
            Self::Gpus(shortage) => shortage.sentence(),
            Self::Full { engines } => {
                format!("has {engines} engines, and a node has at most {ENGINES_MAX}")
            }
            Self::Space { bytes: files, room } => {
                let (files, free) = (bytes(*files), bytes(room.free_bytes));
                format!("{files} of files and {} to stay free wanted, {free} free", bytes(room.reserve_bytes))
            }
            Self::FabricTooSmall { label, value, fitting, wanted } => {
                format!("{fitting} of {wanted} nodes with `{label}={value}` fit")
            }
        }
    }
}

fn away(standing: Standing) -> String {
    match standing {
        Standing::Here => String::new(),
        Standing::Disabled => "disabled: it may not connect".to_owned(),
        Standing::NoCredential("credential_expired") => "its certificate has expired".to_owned(),
        Standing::NoCredential(_) => "its credential is revoked".to_owned(),
        Standing::Silent("never", _) => "it has enrolled and never connected".to_owned(),
        Standing::Silent("unknown", _) => "not heard since this edge started".to_owned(),
        Standing::Silent(state, Some(since)) => format!("{state}, last heard {} ago", time(since)),
        Standing::Silent(state, None) => state.to_owned(),
        Standing::NotComplete => "its connection is not complete".to_owned(),
    }
}

impl Shortage {
    fn sentence(&self) -> String {
        let all = self.judged.len();
        let head = format!("{} of {all} GPUs fit, {} wanted", self.usable, self.wanted);
        let against: Vec<String> = self
            .judged
            .iter()
            .filter_map(|one| Some(format!("GPU {} {}", one.gpu.index, self.why(&one.gpu, one.against?))))
            .collect();
        match against.len() {
            0 => head,
            _ => format!("{head}: {}", list(&against, TOLD)),
        }
    }

    /// What is against one GPU, in words that follow its number.
    pub(crate) fn why(&self, gpu: &Gpu, against: GpuReason) -> String {
        let wanted = self.memory_bytes;
        match against {
            GpuReason::Name => format!("is a {}", gpu.name),
            GpuReason::Capability => {
                let wanted = self.capability.map_or_else(String::new, |wanted| wanted.to_string());
                match gpu.capability {
                    Some(found) => format!("has capability {found} < {wanted}"),
                    None => format!("does not say its capability, {wanted} wanted"),
                }
            }
            GpuReason::Gone if gpu.condition == Condition::Missing => "is gone from the host".to_owned(),
            GpuReason::Gone => "does not answer".to_owned(),
            GpuReason::Mig => "is divided (MIG)".to_owned(),
            GpuReason::Size => format!("has {} < {}", bytes(gpu.memory_bytes), bytes(wanted)),
            GpuReason::Foreign if wanted == 0 => {
                format!("has {} held by foreign processes", bytes(gpu.foreign_bytes))
            }
            GpuReason::Foreign => format!(
                "has {} free < {}: foreign processes hold {}",
                bytes(gpu.available_bytes()),
                bytes(wanted),
                bytes(gpu.foreign_bytes)
            ),
            GpuReason::Held => format!("is held by {}", gpu.holder.as_deref().unwrap_or("an engine")),
        }
    }

    /// By how much a GPU falls short of the memory asked for; 0 where it does not.
    pub(crate) fn short_bytes(&self, gpu: &Gpu) -> u64 {
        self.memory_bytes.saturating_sub(gpu.available_bytes())
    }
}
