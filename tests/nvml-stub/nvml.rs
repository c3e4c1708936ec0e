//! A libnvidia-ml that says what a file tells it to: the GPUs of hosts that have none.
//!
//! Owns the part of NVIDIA's C interface that the agent calls. Built by the tests with plain rustc as a cdylib, outside
//! the workspace: every function here is called from C and takes pointers, so unsafe code cannot be helped.
//! Invariant: the file beside the library (its path and `.gpus`) is read at each call, so a fault comes and goes while
//! the library is loaded.
//!
//! Lines of the file, of `key=value` words; an underscore in a value is a space:
//!
//!     init=ok|hang|driver|mismatch  driver=580.95.05  cuda=13000  hang=CALL
//!     gpu=UUID name= memory=TOTAL:USED pci= cc=9.0 util= temp= power= sm= mem= throttle= ecc=CORRECTED:UNCORRECTED
//!         mig=UUID/PROFILE/BYTES,.. procs=PID:BYTES,.. fabric=HEX32:CLIQUE peers=PCI,.. xid=NUMBER:COUNT lost fail=CALL
//!
//! GPUs have the order of their lines. A key that is not there is NOT_SUPPORTED. `hang` names a call without its `nvml`
//! and lasts as long as it stands there. `lost` is GPU_IS_LOST for each call. A higher COUNT raises that many Xids.

use std::{
    collections::HashMap,
    ffi::{CStr, c_char, c_int, c_uint, c_ulonglong, c_void},
    path::PathBuf,
    sync::{Mutex, OnceLock},
    time::Duration,
};

type Status = c_uint;
type Device = *mut c_void;

const SUCCESS: Status = 0;
const INVALID_ARGUMENT: Status = 2;
const NOT_SUPPORTED: Status = 3;
const NOT_FOUND: Status = 6;
const INSUFFICIENT_SIZE: Status = 7;
const DRIVER_NOT_LOADED: Status = 9;
const TIMEOUT: Status = 10;
const GPU_IS_LOST: Status = 15;
const MISMATCH: Status = 18;
const UNKNOWN: Status = 999;

#[repr(C)]
pub struct DlInfo {
    name: *const c_char,
    base: *mut c_void,
    symbol: *const c_char,
    address: *mut c_void,
}

unsafe extern "C" {
    fn dladdr(address: *const c_void, info: *mut DlInfo) -> c_int;
}

/// The file beside the library.
fn file() -> &'static PathBuf {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let mut info = DlInfo {
            name: std::ptr::null(),
            base: std::ptr::null_mut(),
            symbol: std::ptr::null(),
            address: std::ptr::null_mut(),
        };
        let own = unsafe {
            dladdr(nvmlShutdown as *const c_void, &mut info);
            CStr::from_ptr(info.name)
        };
        PathBuf::from(format!("{}.gpus", own.to_string_lossy()))
    })
}

type Words = HashMap<String, String>;

struct World {
    host: Words,
    gpus: Vec<Words>,
}

fn world() -> World {
    let text = std::fs::read_to_string(file()).unwrap_or_default();
    let mut world = World { host: Words::new(), gpus: Vec::new() };
    for line in text.lines() {
        let words: Words = line
            .split_whitespace()
            .map(|word| word.split_once('=').unwrap_or((word, "")))
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .collect();
        if words.contains_key("gpu") {
            world.gpus.push(words);
        } else {
            world.host.extend(words);
        }
    }
    world
}

/// Waits as long as the file says that this call hangs.
fn enter(call: &str) -> World {
    loop {
        let world = world();
        if world.host.get("hang").is_none_or(|hanging| hanging != call) {
            return world;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Handles are places in this list, from 1: a GPU keeps its own whatever the order of the lines.
static HANDLES: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn handle(name: &str) -> Device {
    let mut handles = HANDLES.lock().unwrap();
    let place = handles.iter().position(|known| known == name).unwrap_or_else(|| {
        handles.push(name.to_owned());
        handles.len() - 1
    });
    (place + 1) as Device
}

fn name_of(device: Device) -> Option<String> {
    HANDLES.lock().unwrap().get((device as usize).wrapping_sub(1)).cloned()
}

/// The GPU behind a handle, and the MIG instance on it if it is one's (UUID, profile, bytes).
fn find(device: Device, call: &str) -> Result<(Words, Option<[String; 3]>), Status> {
    let world = enter(call);
    let name = name_of(device).ok_or(INVALID_ARGUMENT)?;
    for gpu in world.gpus {
        let instance = migs(&gpu).into_iter().find(|mig| mig[0] == name);
        if gpu["gpu"] != name && instance.is_none() {
            continue;
        }
        if gpu.contains_key("lost") {
            return Err(GPU_IS_LOST);
        }
        if gpu.get("fail").is_some_and(|failing| failing == call) {
            return Err(UNKNOWN);
        }
        return Ok((gpu, instance));
    }
    Err(GPU_IS_LOST)
}

fn migs(gpu: &Words) -> Vec<[String; 3]> {
    let list = gpu.get("mig").map(String::as_str).unwrap_or_default();
    list.split(',')
        .filter_map(|mig| {
            let mut parts = mig.split('/').map(str::to_owned);
            Some([parts.next()?, parts.next()?, parts.next()?])
        })
        .collect()
}

fn number<T: std::str::FromStr>(gpu: &Words, key: &str, part: usize) -> Result<T, Status> {
    let value = gpu.get(key).ok_or(NOT_SUPPORTED)?;
    value.split(':').nth(part).and_then(|text| text.parse().ok()).ok_or(NOT_SUPPORTED)
}

unsafe fn text(value: &str, to: *mut c_char, length: c_uint) -> Status {
    let value = value.replace('_', " ");
    if value.len() + 1 > length as usize {
        return INSUFFICIENT_SIZE;
    }
    unsafe {
        std::ptr::copy_nonoverlapping(value.as_ptr().cast(), to, value.len());
        *to.add(value.len()) = 0;
    }
    SUCCESS
}

unsafe fn put<T>(value: Result<T, Status>, to: *mut T) -> Status {
    match value {
        Ok(value) => {
            unsafe { to.write(value) };
            SUCCESS
        }
        Err(status) => status,
    }
}

/// A number of a GPU.
unsafe fn figure<T: std::str::FromStr>(device: Device, call: &str, key: &str, to: *mut T) -> Status {
    unsafe { put(find(device, call).and_then(|(gpu, _)| number(&gpu, key, 0)), to) }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlInit_v2() -> Status {
    loop {
        match world().host.get("init").map(String::as_str) {
            Some("hang") => std::thread::sleep(Duration::from_millis(10)),
            Some("driver") => return DRIVER_NOT_LOADED,
            Some("mismatch") => return MISMATCH,
            _ => return SUCCESS,
        }
    }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlShutdown() -> Status {
    SUCCESS
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetDriverVersion(to: *mut c_char, length: c_uint) -> Status {
    let world = enter("SystemGetDriverVersion");
    unsafe { text(world.host.get("driver").map_or("580.95.05", String::as_str), to, length) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlSystemGetCudaDriverVersion_v2(to: *mut c_int) -> Status {
    let world = enter("SystemGetCudaDriverVersion");
    unsafe { put(Ok(world.host.get("cuda").and_then(|text| text.parse().ok()).unwrap_or(13000)), to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCount_v2(to: *mut c_uint) -> Status {
    unsafe { put(Ok(enter("DeviceGetCount").gpus.len() as c_uint), to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByIndex_v2(index: c_uint, to: *mut Device) -> Status {
    let world = enter("DeviceGetHandleByIndex");
    let found = world.gpus.get(index as usize).ok_or(INVALID_ARGUMENT);
    let found = found
        .and_then(|gpu| if gpu.contains_key("lost") { Err(GPU_IS_LOST) } else { Ok(handle(&gpu["gpu"])) });
    unsafe { put(found, to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetHandleByUUID(uuid: *const c_char, to: *mut Device) -> Status {
    let world = enter("DeviceGetHandleByUUID");
    let uuid = unsafe { CStr::from_ptr(uuid) }.to_string_lossy();
    let found = world.gpus.iter().find(|gpu| gpu["gpu"] == uuid).ok_or(NOT_FOUND);
    let found = found
        .and_then(|gpu| if gpu.contains_key("lost") { Err(GPU_IS_LOST) } else { Ok(handle(&gpu["gpu"])) });
    unsafe { put(found, to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUUID(device: Device, to: *mut c_char, length: c_uint) -> Status {
    match find(device, "DeviceGetUUID") {
        Ok((gpu, mig)) => unsafe { text(&mig.map_or(gpu["gpu"].clone(), |[uuid, ..]| uuid), to, length) },
        Err(status) => status,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetName(device: Device, to: *mut c_char, length: c_uint) -> Status {
    match find(device, "DeviceGetName") {
        Ok((gpu, mig)) => {
            let name = gpu.get("name").map_or("NVIDIA_H200", String::as_str).to_owned();
            let name = mig.map_or(name.clone(), |[_, profile, _]| format!("{name}_MIG_{profile}"));
            unsafe { text(&name, to, length) }
        }
        Err(status) => status,
    }
}

#[repr(C)]
pub struct Memory {
    version: c_uint,
    total: c_ulonglong,
    reserved: c_ulonglong,
    free: c_ulonglong,
    used: c_ulonglong,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMemoryInfo_v2(device: Device, to: *mut Memory) -> Status {
    let found = find(device, "DeviceGetMemoryInfo").and_then(|(gpu, mig)| {
        let (total, used) = match mig {
            Some([_, _, bytes]) => (bytes.parse().unwrap_or(0), 0),
            None => (number(&gpu, "memory", 0)?, number(&gpu, "memory", 1)?),
        };
        Ok(Memory { version: 0, total, reserved: 0, free: total - used, used })
    });
    unsafe { put(found, to) }
}

#[repr(C)]
pub struct Pci {
    legacy: [c_char; 16],
    domain: c_uint,
    bus: c_uint,
    device: c_uint,
    id: c_uint,
    sub_id: c_uint,
    bus_id: [c_char; 32],
}

fn pci(address: &str) -> Pci {
    let mut bus_id = [0; 32];
    for (place, byte) in bus_id.iter_mut().zip(address.bytes().take(31)) {
        *place = byte as c_char;
    }
    Pci { legacy: [0; 16], domain: 0, bus: 0, device: 0, id: 1, sub_id: 1, bus_id }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPciInfo_v3(device: Device, to: *mut Pci) -> Status {
    let found = find(device, "DeviceGetPciInfo");
    unsafe {
        put(found.and_then(|(gpu, _)| gpu.get("pci").map(|address| pci(address)).ok_or(NOT_SUPPORTED)), to)
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkState(device: Device, link: c_uint, to: *mut c_uint) -> Status {
    unsafe { put(find(device, "DeviceGetNvLinkState").and_then(|(gpu, _)| peer(&gpu, link).map(|_| 1)), to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetNvLinkRemotePciInfo_v2(
    device: Device,
    link: c_uint,
    to: *mut Pci,
) -> Status {
    let found = find(device, "DeviceGetNvLinkRemotePciInfo");
    unsafe { put(found.and_then(|(gpu, _)| peer(&gpu, link).map(|address| pci(&address))), to) }
}

fn peer(gpu: &Words, link: c_uint) -> Result<String, Status> {
    let peers = gpu.get("peers").ok_or(NOT_SUPPORTED)?;
    peers.split(',').nth(link as usize).map(str::to_owned).ok_or(INVALID_ARGUMENT)
}

#[repr(C)]
pub struct Fabric {
    cluster: [u8; 16],
    status: Status,
    clique: c_uint,
    state: u8,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetGpuFabricInfo(device: Device, to: *mut Fabric) -> Status {
    let found = find(device, "DeviceGetGpuFabricInfo").and_then(|(gpu, _)| {
        let hex = gpu.get("fabric").ok_or(NOT_SUPPORTED)?.split(':').next().unwrap_or_default();
        let mut cluster = [0; 16];
        for (index, place) in cluster.iter_mut().enumerate() {
            *place = u8::from_str_radix(hex.get(2 * index..2 * index + 2).unwrap_or("0"), 16).unwrap_or(0);
        }
        Ok(Fabric { cluster, status: SUCCESS, clique: number(&gpu, "fabric", 1)?, state: 3 })
    });
    unsafe { put(found, to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCudaComputeCapability(
    device: Device,
    major: *mut c_int,
    minor: *mut c_int,
) -> Status {
    let found = find(device, "DeviceGetCudaComputeCapability").and_then(|(gpu, _)| {
        let (a, b) = gpu.get("cc").and_then(|text| text.split_once('.')).ok_or(NOT_SUPPORTED)?;
        Ok((a.parse().map_err(|_| UNKNOWN)?, b.parse().map_err(|_| UNKNOWN)?))
    });
    match found {
        Ok((a, b)) => unsafe { put(Ok(a), major) | put(Ok(b), minor) },
        Err(status) => status,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigMode(
    device: Device,
    current: *mut c_uint,
    pending: *mut c_uint,
) -> Status {
    match find(device, "DeviceGetMigMode").and_then(|(gpu, _)| gpu.get("mig").cloned().ok_or(NOT_SUPPORTED)) {
        Ok(_) => unsafe { put(Ok(1), current) | put(Ok(1), pending) },
        Err(status) => status,
    }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMaxMigDeviceCount(device: Device, to: *mut c_uint) -> Status {
    // As the real one: how many there could be.
    unsafe { put(find(device, "DeviceGetMaxMigDeviceCount").map(|_| 7), to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetMigDeviceHandleByIndex(
    device: Device,
    index: c_uint,
    to: *mut Device,
) -> Status {
    let found = find(device, "DeviceGetMigDeviceHandleByIndex")
        .and_then(|(gpu, _)| migs(&gpu).get(index as usize).map(|mig| handle(&mig[0])).ok_or(NOT_FOUND));
    unsafe { put(found, to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTemperature(
    device: Device,
    _sensor: c_uint,
    to: *mut c_uint,
) -> Status {
    unsafe { figure(device, "DeviceGetTemperature", "temp", to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetPowerUsage(device: Device, to: *mut c_uint) -> Status {
    unsafe { figure(device, "DeviceGetPowerUsage", "power", to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetClockInfo(device: Device, kind: c_uint, to: *mut c_uint) -> Status {
    // Numbers of nvmlClockType_t: 1 is SM, 2 is memory.
    unsafe { figure(device, "DeviceGetClockInfo", if kind == 2 { "mem" } else { "sm" }, to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetCurrentClocksThrottleReasons(
    device: Device,
    to: *mut c_ulonglong,
) -> Status {
    unsafe { figure(device, "DeviceGetCurrentClocksThrottleReasons", "throttle", to) }
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetTotalEccErrors(
    device: Device,
    kind: c_uint,
    _counter: c_uint,
    to: *mut c_ulonglong,
) -> Status {
    let found =
        find(device, "DeviceGetTotalEccErrors").and_then(|(gpu, _)| number(&gpu, "ecc", kind as usize));
    unsafe { put(found, to) }
}

#[repr(C)]
pub struct Utilization {
    gpu: c_uint,
    memory: c_uint,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetUtilizationRates(device: Device, to: *mut Utilization) -> Status {
    let found = find(device, "DeviceGetUtilizationRates");
    unsafe {
        put(found.and_then(|(gpu, _)| Ok(Utilization { gpu: number(&gpu, "util", 0)?, memory: 0 })), to)
    }
}

#[repr(C)]
pub struct Process {
    pid: c_uint,
    memory: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlDeviceGetComputeRunningProcesses_v3(
    device: Device,
    count: *mut c_uint,
    to: *mut Process,
) -> Status {
    let (gpu, _) = match find(device, "DeviceGetComputeRunningProcesses") {
        Ok(found) => found,
        Err(status) => return status,
    };
    let Some(list) = gpu.get("procs") else { return NOT_SUPPORTED };
    let list: Vec<(u32, u64)> = list
        .split(',')
        .filter_map(|process| process.split_once(':'))
        .filter_map(|(pid, bytes)| Some((pid.parse().ok()?, bytes.parse().ok()?)))
        .collect();
    unsafe {
        let room = *count as usize;
        *count = list.len() as c_uint;
        if room < list.len() {
            return INSUFFICIENT_SIZE;
        }
        for (place, (pid, memory)) in list.into_iter().enumerate() {
            to.add(place).write(Process { pid, memory, gpu_instance: u32::MAX, compute_instance: u32::MAX });
        }
    }
    SUCCESS
}

/// Event sets: which GPUs each is for, and how many Xids of each it has given.
static SETS: Mutex<Vec<HashMap<String, u64>>> = Mutex::new(Vec::new());

fn raised(gpu: &Words) -> u64 {
    number(gpu, "xid", 1).unwrap_or(0)
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetCreate(to: *mut *mut c_void) -> Status {
    let mut sets = SETS.lock().unwrap();
    sets.push(HashMap::new());
    unsafe { put(Ok(sets.len() as *mut c_void), to) }
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlDeviceRegisterEvents(device: Device, _kinds: c_ulonglong, set: *mut c_void) -> Status {
    match find(device, "DeviceRegisterEvents") {
        Ok((gpu, _)) => {
            let mut sets = SETS.lock().unwrap();
            let Some(set) = sets.get_mut((set as usize).wrapping_sub(1)) else { return INVALID_ARGUMENT };
            set.insert(gpu["gpu"].clone(), raised(&gpu));
            SUCCESS
        }
        Err(status) => status,
    }
}

#[repr(C)]
pub struct Event {
    device: Device,
    kind: c_ulonglong,
    data: c_ulonglong,
    gpu_instance: c_uint,
    compute_instance: c_uint,
}

#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvmlEventSetWait_v2(set: *mut c_void, to: *mut Event, _timeout: c_uint) -> Status {
    let world = enter("EventSetWait");
    let mut sets = SETS.lock().unwrap();
    let Some(set) = sets.get_mut((set as usize).wrapping_sub(1)) else { return INVALID_ARGUMENT };
    for (uuid, given) in set {
        let Some(gpu) = world.gpus.iter().find(|gpu| gpu["gpu"] == *uuid) else { continue };
        if raised(gpu) > *given {
            *given += 1;
            let data = number(gpu, "xid", 0).unwrap_or(999);
            // 8 is nvmlEventTypeXidCriticalError.
            let event = Event { device: handle(uuid), kind: 8, data, gpu_instance: 0, compute_instance: 0 };
            return unsafe { put(Ok(event), to) };
        }
    }
    TIMEOUT
}

#[unsafe(no_mangle)]
pub extern "C" fn nvmlEventSetFree(_set: *mut c_void) -> Status {
    SUCCESS
}
