//! Whether the host has the accelerators that its file asks for.
//!
//! Owns the codes and remedies; leaves looking to `shell/gpu`. Invariant: it never enrolls, connects or starts
//! anything, and ends within 10 s.

use std::time::Instant;

use umbel_contracts::proto::node::GpuTelemetry;

use crate::{
    Accelerator, Config, StartError,
    core::gpus::Sweep,
    shell::gpu::{Fault, Gpus, LIMIT},
};

/// What the preflight found.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Preflight {
    /// `auto`, `nvidia` or `cpu`, as the file has it.
    pub accelerator: String,
    /// The GPUs that answer, by index.
    pub gpus: Vec<PreflightGpu>,
    /// One sentence for each GPU that does not.
    pub unreadable: Vec<String>,
    /// The driver's version, where one is.
    pub driver_version: Option<String>,
    /// The newest CUDA that the driver runs.
    pub cuda_version: Option<String>,
}

/// A GPU that answers.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct PreflightGpu {
    /// The driver's name for this very device.
    pub uuid: String,
    /// The model.
    pub name: String,
    /// The driver's number for it; changes with a boot.
    pub index: u32,
    /// Its own memory; nothing where it shares the host's.
    pub memory_bytes: Option<u64>,
    /// UUIDs of its MIG instances.
    pub mig_instances: Vec<String>,
    /// Figures that it gives: `memory`, `temperature`, `power`, `utilization`.
    pub figures: Vec<&'static str>,
}

/// Checks the accelerators; never enrolls or connects. Ends within about 10 s.
///
/// # Errors
/// [`StartError::Preflight`] with the code and the remedy.
pub fn preflight(config: &Config) -> Result<Preflight, StartError> {
    let gpus = Gpus::start(config.accelerator, config.nvml_library.as_deref());
    let runtime = crate::app::runtime()?;
    let found = runtime.block_on(check(config.accelerator, &gpus));
    // A call that hangs is not waited for.
    runtime.shutdown_background();
    let (_, found) = found?;
    let version = |text: String| (!text.is_empty()).then_some(text);
    Ok(Preflight {
        accelerator: config.accelerator.name().to_owned(),
        gpus: found
            .seen
            .into_iter()
            .map(|seen| PreflightGpu {
                figures: figures(&seen.figures),
                uuid: seen.facts.uuid,
                name: seen.facts.name,
                index: seen.facts.index,
                memory_bytes: (!seen.facts.memory_is_host).then_some(seen.facts.memory_bytes),
                mig_instances: seen.facts.mig_instances.into_iter().map(|instance| instance.uuid).collect(),
            })
            .collect(),
        unreadable: found.unreadable,
        driver_version: version(found.driver_version),
        cuda_version: version(found.cuda_version),
    })
}

/// The same within a runtime: what was found, and when.
pub(crate) async fn check(mode: Accelerator, gpus: &Gpus) -> Result<(Instant, Sweep), StartError> {
    let (at, swept) = gpus.sweep(Vec::new(), LIMIT).await;
    match swept.and_then(|sweep| if gpus.are_wanted() { gives_figures(sweep) } else { Ok(sweep) }) {
        Ok(sweep) => Ok((at, sweep)),
        Err(fault) => Err(failed(mode, &fault)),
    }
}

/// A GPU that can be watched gives a figure. One that is lost does not keep the others from working.
fn gives_figures(sweep: Sweep) -> Result<Sweep, Fault> {
    if sweep.seen.iter().any(|seen| !figures(&seen.figures).is_empty()) {
        return Ok(sweep);
    }
    Err(Fault::NoTelemetry(match sweep.unreadable.first() {
        Some(why) => why.clone(),
        None => "memory, temperature, power and utilization are all not supported".into(),
    }))
}

fn figures(figures: &GpuTelemetry) -> Vec<&'static str> {
    let given = [
        ("memory", figures.memory_used_bytes.is_some()),
        ("temperature", figures.temperature_celsius.is_some()),
        ("power", figures.power_milliwatts.is_some()),
        ("utilization", figures.utilization_percent.is_some()),
    ];
    given.into_iter().filter_map(|(name, given)| given.then_some(name)).collect()
}

fn failed(mode: Accelerator, fault: &Fault) -> StartError {
    let otherwise = match mode {
        Accelerator::Nvidia => {
            "or set node.accelerator = \"auto\" or \"cpu\" in the node's file if it has no NVIDIA GPU"
        }
        _ => "or set node.accelerator = \"cpu\" in the node's file to use none",
    };
    let (code, message) = match fault {
        Fault::Unavailable(why) => (
            "NVIDIA_NVML_UNAVAILABLE",
            format!(
                "the NVIDIA management library cannot be used: {why}. Install the NVIDIA driver and check that `nvidia-smi` works here, {otherwise}."
            ),
        ),
        Fault::NoDevice => (
            "NVIDIA_DEVICE_NOT_FOUND",
            format!(
                "the NVIDIA driver shows no GPU. Check `nvidia-smi -L`, and NVIDIA_VISIBLE_DEVICES where this runs in a container, {otherwise}."
            ),
        ),
        Fault::NoTelemetry(why) => (
            "NVIDIA_TELEMETRY_UNAVAILABLE",
            format!(
                "no GPU gives memory, temperature, power or utilization: {why}. Check `nvidia-smi -q` and the permissions of this user, {otherwise}."
            ),
        ),
    };
    StartError::Preflight { code, message }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn cpu_asks_for_nothing() {
        let (_, found) = check(Accelerator::Cpu, &Gpus::start(Accelerator::Cpu, None)).await.unwrap();
        assert_eq!(found, Sweep::default());
    }

    #[test]
    fn faults_have_codes_and_remedies() {
        for (fault, code) in [
            (Fault::Unavailable("x".into()), "NVIDIA_NVML_UNAVAILABLE"),
            (Fault::NoDevice, "NVIDIA_DEVICE_NOT_FOUND"),
            (Fault::NoTelemetry("x".into()), "NVIDIA_TELEMETRY_UNAVAILABLE"),
        ] {
            let error = failed(Accelerator::Nvidia, &fault);
            assert_eq!(error.exit_code(), 3);
            assert!(error.to_string().starts_with(code) && error.to_string().contains("nvidia-smi"));
        }
    }
}
