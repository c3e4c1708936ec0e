//! The host's GPUs through NVIDIA's management library, loaded at run time.
//!
//! Owns the library and the thread that alone may call it (its calls can hang in the driver); leaves what a mode
//! asks for to `preflight`. Invariant: what cannot be read is a fault or absent, never a zero or an empty success.

use std::{
    path::Path,
    sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    time::Duration,
};

use nvml_wrapper::{Device, Nvml, enum_wrappers::device::TemperatureSensor, error::NvmlError};
use tokio::sync::oneshot;
use umbel_contracts::proto::node::Gpu;

use crate::{config::Accelerator, core::inventory::GpuFacts};

/// A look that takes longer hangs.
pub(crate) const LIMIT: Duration = Duration::from_secs(10);

/// Why the GPUs cannot be told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fault {
    /// No library, no driver, or a call that hangs.
    Unavailable(String),
    /// The library sees no GPU.
    NoDevice,
    /// A GPU gives no figures.
    NoTelemetry(String),
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unavailable(why) => write!(f, "NVIDIA_NVML_UNAVAILABLE: {why}"),
            Self::NoDevice => f.write_str("NVIDIA_DEVICE_NOT_FOUND"),
            Self::NoTelemetry(why) => write!(f, "NVIDIA_TELEMETRY_UNAVAILABLE: {why}"),
        }
    }
}

type Answer = oneshot::Sender<Result<GpuFacts, Fault>>;

/// Asks the thread that owns the library.
#[derive(Debug, Clone)]
pub(crate) struct Gpus {
    /// Nothing: this host needs none.
    asks: Option<SyncSender<Answer>>,
}

impl Gpus {
    /// Starts the thread where the mode and the host call for it.
    pub(crate) fn start(mode: Accelerator) -> Self {
        if !is_wanted(mode) {
            return Self { asks: None };
        }
        let (asks, asked) = sync_channel(1);
        let started = std::thread::Builder::new().name("nvml".into()).spawn(move || serve(&asked));
        if let Err(error) = started {
            tracing::error!(%error, "the thread for GPUs cannot be started");
        }
        // Without the thread the other end is gone, and every question says so.
        Self { asks: Some(asks) }
    }

    /// GPUs are looked for on this host.
    pub(crate) fn are_wanted(&self) -> bool {
        self.asks.is_some()
    }

    /// One look at all GPUs; ends within [`LIMIT`].
    pub(crate) async fn look(&self) -> Result<GpuFacts, Fault> {
        let Some(asks) = &self.asks else { return Ok(GpuFacts::default()) };
        let hangs = || Fault::Unavailable("a call of the driver's library does not return".into());
        let (answer, told) = oneshot::channel();
        match asks.try_send(answer) {
            Ok(()) => {}
            // The question before this one is still out.
            Err(TrySendError::Full(_)) => return Err(hangs()),
            Err(TrySendError::Disconnected(_)) => {
                return Err(Fault::Unavailable("its thread has ended".into()));
            }
        }
        match tokio::time::timeout(LIMIT, told).await {
            Ok(Ok(facts)) => facts,
            Ok(Err(_)) => Err(Fault::Unavailable("its thread has ended".into())),
            Err(_) => Err(hangs()),
        }
    }
}

/// Whether the mode asks for GPUs on this host.
fn is_wanted(mode: Accelerator) -> bool {
    match mode {
        Accelerator::Cpu => false,
        Accelerator::Nvidia => true,
        Accelerator::Auto => {
            let visible = std::env::var("NVIDIA_VISIBLE_DEVICES").unwrap_or_default();
            if matches!(visible.as_str(), "void" | "none") {
                return false;
            }
            !visible.is_empty()
                || Path::new("/dev/nvidiactl").exists()
                || Path::new("/proc/driver/nvidia/gpus").exists()
        }
    }
}

fn serve(asked: &Receiver<Answer>) {
    // Loaded once: repeated loading has hung on real drivers.
    let mut library = None;
    while let Ok(answer) = asked.recv() {
        let facts = match &library {
            Some(nvml) => facts(nvml),
            None => match Nvml::init() {
                Ok(nvml) => facts(library.insert(nvml)),
                Err(error) => Err(unavailable(&error)),
            },
        };
        // Who asked may have given up.
        let _ = answer.send(facts);
    }
}

fn unavailable(error: &NvmlError) -> Fault {
    Fault::Unavailable(match error {
        NvmlError::LibloadingError(_) | NvmlError::LibraryNotFound => {
            "libnvidia-ml.so.1 cannot be loaded".into()
        }
        NvmlError::DriverNotLoaded => "the driver is not loaded".into(),
        NvmlError::LibRmVersionMismatch => {
            "the driver was updated while it was loaded: reboot the host".into()
        }
        other => other.to_string(),
    })
}

fn facts(nvml: &Nvml) -> Result<GpuFacts, Fault> {
    let count = nvml.device_count().map_err(|error| unavailable(&error))?;
    if count == 0
        || std::env::var("NVIDIA_VISIBLE_DEVICES")
            .is_ok_and(|visible| matches!(visible.as_str(), "void" | "none"))
    {
        return Err(Fault::NoDevice);
    }
    let mut found = GpuFacts {
        driver_version: nvml.sys_driver_version().unwrap_or_default(),
        cuda_version: nvml
            .sys_cuda_driver_version()
            .map(|version| format!("{}.{}", version / 1000, version % 1000 / 10))
            .unwrap_or_default(),
        ..GpuFacts::default()
    };
    for index in 0..count {
        let seen = nvml.device_by_index(index).and_then(|device| gpu(&device, index));
        match seen {
            Ok(gpu) => found.gpus.push(gpu),
            Err(error) => found.incomplete = Some(format!("GPU {index} of {count} cannot be read: {error}")),
        }
    }
    let first = nvml.device_by_index(0).map_err(|error| Fault::NoTelemetry(error.to_string()))?;
    gives_figures(&first)?;
    Ok(found)
}

fn gpu(device: &Device<'_>, index: u32) -> Result<Gpu, NvmlError> {
    Ok(Gpu {
        uuid: device.uuid()?,
        name: device.name()?,
        memory_bytes: device.memory_info()?.total,
        pci_address: device.pci_info()?.bus_id,
        index,
        // Most GPUs have no such mode; then it is absent.
        mig_enabled: device.mig_mode().ok().map(|mode| mode.current == 1),
        ..Gpu::default()
    })
}

/// A GPU that can be watched gives its memory and its temperature or power.
fn gives_figures(device: &Device<'_>) -> Result<(), Fault> {
    let memory = device.memory_info().map(|_| ());
    let warmth =
        device.temperature(TemperatureSensor::Gpu).map(|_| ()).or_else(|_| device.power_usage().map(|_| ()));
    memory.and(warmth).map_err(|error| Fault::NoTelemetry(error.to_string()))
}
