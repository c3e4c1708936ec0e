//! One pass over NVIDIA's management library: what each GPU is and does.
//!
//! Owns the calls and what their errors mean; leaves the thread to `gpu` and the meaning of an absent GPU to
//! `core/gpus`. Invariant: what the driver does not give is absent; only a GPU that does not answer at all, or has no
//! UUID, is unreadable.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use nvml_wrapper::{
    Device, EventSet, Nvml,
    bitmasks::{device::ThrottleReasons, event::EventTypes},
    enum_wrappers::device::{Clock, EccCounter, MemoryError, TemperatureSensor},
    enums::{device::UsedGpuMemory, event::XidError},
    error::NvmlError,
};
use umbel_contracts::proto::node::{Gpu, GpuTelemetry, MigInstance};

use super::{Fault, fabric};
use crate::core::gpus::{Holder, PROCESSES, Seen, Sweep};

/// NVLinks of one GPU, at most.
const LINKS: u32 = 18;
/// MIG instances of one GPU, at most.
const INSTANCES: u32 = 8;
/// Errors of one GPU that are taken in one pass.
const XIDS: usize = 64;
/// What the driver says when it cannot tell which error it was.
const UNKNOWN_XID: u32 = 999;

/// Where the driver lays down the errors it raises, by GPU.
#[derive(Default)]
pub(super) struct Xids<'nvml> {
    /// Nothing for a GPU that has no such events.
    sets: BTreeMap<String, Option<EventSet<'nvml>>>,
}

impl<'nvml> Xids<'nvml> {
    fn watch(&mut self, device: &Device<'nvml>, uuid: &str) {
        if self.sets.contains_key(uuid) {
            return;
        }
        let set = device.nvml().create_event_set().ok();
        let set = set.and_then(|set| device.register_events(EventTypes::CRITICAL_XID_ERROR, set).ok());
        self.sets.insert(uuid.to_owned(), set);
    }

    fn raised(&self) -> Vec<(String, u32)> {
        let mut raised = Vec::new();
        for (uuid, set) in &self.sets {
            let Some(set) = set else { continue };
            for _ in 0..XIDS {
                // Does not wait. Any error is as good as nothing there.
                let Ok(event) = set.wait(0) else { break };
                let number = match event.event_data {
                    Some(XidError::Value(number)) => u32::try_from(number).unwrap_or(UNKNOWN_XID),
                    _ => UNKNOWN_XID,
                };
                raised.push((uuid.clone(), number));
            }
        }
        raised
    }
}

/// Looks at all GPUs once.
pub(super) fn sweep<'nvml>(
    nvml: &'nvml Nvml,
    xids: &mut Xids<'nvml>,
    known: &[String],
) -> Result<Sweep, Fault> {
    let count = nvml.device_count().map_err(|error| said(&error))?;
    if count == 0 {
        return Err(Fault::NoDevice);
    }
    let mut found = Sweep {
        driver_version: nvml.sys_driver_version().unwrap_or_default(),
        cuda_version: nvml
            .sys_cuda_driver_version()
            .map(|version| format!("{}.{}", version / 1000, version % 1000 / 10))
            .unwrap_or_default(),
        ..Sweep::default()
    };
    for index in 0..count {
        match nvml.device_by_index(index).and_then(|device| Ok((seen(&device, index)?, device))) {
            Ok((seen, device)) => {
                xids.watch(&device, &seen.facts.uuid);
                found.seen.push(seen);
            }
            Err(error) => found.unreadable.push(format!("GPU {index} of {count} cannot be read: {error}")),
        }
    }
    if !found.unreadable.is_empty() {
        found.silent = silent(nvml, known, &found.seen);
    }
    found.xids = xids.raised();
    Ok(found)
}

/// Known GPUs that were not seen and that the driver still knows by name.
fn silent(nvml: &Nvml, known: &[String], seen: &[Seen]) -> BTreeSet<String> {
    let absent = known.iter().filter(|uuid| !seen.iter().any(|seen| seen.facts.uuid == **uuid));
    let is_silent = |uuid: &&String| match nvml.device_by_uuid(uuid.as_str()) {
        Err(NvmlError::NotFound | NvmlError::InvalidArg) => false,
        Ok(_) | Err(_) => true,
    };
    absent.filter(is_silent).cloned().collect()
}

/// A value that the driver may not have: absent, unless the GPU as a whole does not answer.
fn optional<T>(value: Result<T, NvmlError>) -> Result<Option<T>, NvmlError> {
    match value {
        Ok(value) => Ok(Some(value)),
        Err(
            error @ (NvmlError::GpuLost
            | NvmlError::ResetRequired
            | NvmlError::Uninitialized
            | NvmlError::DriverNotLoaded),
        ) => Err(error),
        Err(_) => Ok(None),
    }
}

fn seen(device: &Device<'_>, index: u32) -> Result<Seen, NvmlError> {
    let uuid = device.uuid()?;
    let memory = match device.memory_info() {
        Ok(memory) => Some(memory),
        // Unified memory: it has none of its own.
        Err(NvmlError::NotSupported) => None,
        Err(error) => return Err(error),
    };
    let (cluster, clique, switch) = match fabric::info(device) {
        Some((Some(cluster), clique)) => (cluster, Some(clique), None),
        // A fabric of this host only: as good as one switch.
        Some((None, clique)) => (String::new(), Some(clique), Some(format!("clique {clique}"))),
        None => (String::new(), None, None),
    };
    let mig = optional(device.mig_mode())?.map(|mode| mode.current == 1);
    let facts = Gpu {
        uuid: uuid.clone(),
        name: optional(device.name())?.unwrap_or_default(),
        memory_bytes: memory.as_ref().map_or(0, |memory| memory.total),
        pci_address: optional(device.pci_info())?
            .map(|pci| pci.bus_id.to_ascii_lowercase())
            .unwrap_or_default(),
        index,
        mig_enabled: mig,
        mig_instances: if mig == Some(true) { instances(device) } else { Vec::new() },
        fabric_cluster: cluster,
        fabric_clique: clique,
        compute_capability: optional(device.cuda_compute_capability())?
            .map(|version| format!("{}.{}", version.major, version.minor))
            .unwrap_or_default(),
        memory_is_host: memory.is_none(),
        lost: false,
    };
    let processes = optional(device.running_compute_processes())?.unwrap_or_default();
    Ok(Seen {
        figures: GpuTelemetry {
            memory_used_bytes: memory.as_ref().map(|memory| memory.used),
            memory_total_bytes: memory.as_ref().map(|memory| memory.total),
            ..figures(device)?
        },
        processes: processes
            .iter()
            .take(PROCESSES)
            .filter_map(|process| {
                let bytes = match process.used_gpu_memory {
                    UsedGpuMemory::Used(bytes) => Some(bytes),
                    UsedGpuMemory::Unavailable => None,
                };
                Some(Holder { pid: i32::try_from(process.pid).ok()?, bytes })
            })
            .collect(),
        peers: peers(device).into_iter().chain(switch).collect(),
        facts,
    })
}

fn figures(device: &Device<'_>) -> Result<GpuTelemetry, NvmlError> {
    let ecc = |kind| optional(device.total_ecc_errors(kind, EccCounter::Volatile));
    Ok(GpuTelemetry {
        utilization_percent: optional(device.utilization_rates())?.map(|rates| rates.gpu),
        temperature_celsius: optional(device.temperature(TemperatureSensor::Gpu))?,
        power_milliwatts: optional(device.power_usage())?,
        sm_clock_mhz: optional(device.clock_info(Clock::SM))?,
        memory_clock_mhz: optional(device.clock_info(Clock::Memory))?,
        throttle_reasons: optional(device.current_throttle_reasons())?.map(reasons).unwrap_or_default(),
        ecc_corrected: ecc(MemoryError::Corrected)?,
        ecc_uncorrected: ecc(MemoryError::Uncorrected)?,
        ..GpuTelemetry::default()
    })
}

/// Why clocks are held down; idle is no reason to look.
fn reasons(reasons: ThrottleReasons) -> Vec<String> {
    (reasons - ThrottleReasons::GPU_IDLE).iter_names().map(|(name, _)| name.to_ascii_lowercase()).collect()
}

/// The MIG instances of a GPU. Their places have holes.
fn instances(device: &Device<'_>) -> Vec<MigInstance> {
    let places = device.mig_device_count().unwrap_or_default().min(INSTANCES);
    let instance = |place| {
        let instance = device.mig_device_by_index(place).ok()?;
        let name = instance.name().unwrap_or_default();
        Some(MigInstance {
            uuid: instance.uuid().ok()?,
            // `NVIDIA H200 MIG 1g.18gb`
            profile: name.rsplit_once("MIG ").map(|(_, profile)| profile.to_owned()).unwrap_or_default(),
            memory_bytes: instance.memory_info().map(|memory| memory.total).unwrap_or_default(),
        })
    };
    (0..places).filter_map(instance).collect()
}

/// PCI addresses at the other ends of a GPU's active NVLinks.
fn peers(device: &Device<'_>) -> BTreeSet<String> {
    let mut peers = BTreeSet::new();
    for link in 0..LINKS {
        let link = device.link_wrapper_for(link);
        match link.is_active() {
            Ok(true) => {
                peers.extend(link.remote_pci_info().ok().map(|pci| pci.bus_id.to_ascii_lowercase()));
            }
            Ok(false) => {}
            // No such link, or none at all.
            Err(_) => break,
        }
    }
    peers
}

/// The library could not be opened.
pub(super) fn unavailable(error: &NvmlError, library: &Path) -> Fault {
    match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => {
            Fault::Unavailable(format!("{} cannot be loaded", library.display()))
        }
        other => said(other),
    }
}

fn said(error: &NvmlError) -> Fault {
    Fault::Unavailable(match error {
        NvmlError::DriverNotLoaded => "the driver is not loaded".into(),
        NvmlError::LibRmVersionMismatch => {
            "the driver was updated while it was loaded: reboot the host".into()
        }
        other => other.to_string(),
    })
}
