//! Whether the host has the accelerators that its file asks for.
//!
//! Owns the codes and remedies; leaves looking to `shell/gpu`. Invariant: it never enrolls, connects or starts
//! anything, and ends within 10 s.

use crate::{
    Accelerator, Config, StartError,
    core::inventory::GpuFacts,
    shell::gpu::{Fault, Gpus},
};

/// What the preflight found.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize)]
pub struct Preflight {
    /// `auto`, `nvidia` or `cpu`, as the file has it.
    pub accelerator: String,
    /// Names of the GPUs found.
    pub gpus: Vec<String>,
    /// The driver's version, where one is.
    pub driver_version: Option<String>,
}

/// Checks the accelerators; never enrolls or connects. Ends within about 10 s.
///
/// # Errors
/// [`StartError::Preflight`] with the code and the remedy.
pub fn preflight(config: &Config) -> Result<Preflight, StartError> {
    let gpus = Gpus::start(config.accelerator);
    let found = crate::app::runtime()?.block_on(check(config.accelerator, &gpus))?;
    Ok(Preflight {
        accelerator: config.accelerator.name().to_owned(),
        gpus: found.gpus.into_iter().map(|gpu| gpu.name).collect(),
        driver_version: (!found.driver_version.is_empty()).then_some(found.driver_version),
    })
}

/// The same within a runtime, with what was found.
pub(crate) async fn check(mode: Accelerator, gpus: &Gpus) -> Result<GpuFacts, StartError> {
    gpus.look().await.map_err(|fault| failed(mode, &fault))
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
                "a GPU gives no memory, temperature or power: {why}. Check `nvidia-smi -q` and the permissions of this user, {otherwise}."
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
        assert_eq!(check(Accelerator::Cpu, &Gpus::start(Accelerator::Cpu)).await, Ok(GpuFacts::default()));
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
