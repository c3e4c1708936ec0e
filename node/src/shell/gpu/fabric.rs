//! A GPU's place in an NVLink fabric.
//!
//! Owns the one call for which `nvml-wrapper` has no safe form. Invariant: the driver writes into memory of the type
//! that its own header gives it, and nothing else of it is believed.

use nvml_wrapper::Device;

/// The driver's word for a fabric that is set up.
const COMPLETED: u8 = 3;

/// The fabric's UUID, nothing for one of this host only, and the part of it in which GPUs reach each other.
#[allow(unsafe_code, reason = "nvml-wrapper binds the call and does not wrap it")]
pub(super) fn info(device: &Device<'_>) -> Option<(Option<String>, u32)> {
    // An older driver has no such function.
    let call = device.nvml().lib().nvmlDeviceGetGpuFabricInfo.as_ref().ok()?;
    // SAFETY: the handle is the device's own, which the borrow keeps; the pointer is to a value of the type that the
    // bindings give the call, and all its fields are numbers for which zeros are valid.
    let info = unsafe {
        let mut info = std::mem::zeroed();
        if call(device.handle(), &raw mut info) != 0 {
            return None;
        }
        info
    };
    if info.state != COMPLETED || info.status != 0 {
        return None;
    }
    let cluster = uuid::Uuid::from_bytes(info.clusterUuid);
    Some(((!cluster.is_nil()).then(|| cluster.to_string()), info.cliqueId))
}
