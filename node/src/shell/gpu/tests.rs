//! The thread and the driver's calls against the stub library. Rows are those of the fault catalogue.

use super::*;

#[allow(unreachable_pub, reason = "the end-to-end tests have it as a public module")]
#[path = "../../../../tests/src/nvml_stub.rs"]
mod nvml_stub;
#[allow(unreachable_pub, reason = "the end-to-end tests have it as a public module")]
#[path = "../../../../tests/src/stub_library.rs"]
mod stub_library;

use nvml_stub::NvmlStub;

const H200: &str = "name=NVIDIA_H200 memory=1000:400 pci=00000000:1B:00.0 cc=9.0 util=55 temp=61 power=333000 sm=1980 mem=3201 throttle=0x0 ecc=3:1 procs=7:300";

struct Rig {
    stub: NvmlStub,
    gpus: Gpus,
    _folder: tempfile::TempDir,
}

impl Rig {
    fn new(lines: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let stub = NvmlStub::new(folder.path(), lines);
        let gpus = Gpus::start(Accelerator::Nvidia, Some(stub.library()));
        Self { stub, gpus, _folder: folder }
    }

    async fn sweep(&self, known: &[&str]) -> Result<Sweep, Fault> {
        self.gpus.sweep(known.iter().map(|uuid| (*uuid).to_owned()).collect(), LIMIT).await.1
    }
}

#[test]
fn auto_wants_gpus_where_there_are_signs_of_them() {
    let auto = |visible, devices| calls_for_gpus(Accelerator::Auto, visible, devices);
    assert!(auto("", true) && auto("all", false) && auto("GPU-a", true));
    assert!(!auto("", false) && !auto("void", true) && !auto("none", true));
    assert!(
        calls_for_gpus(Accelerator::Nvidia, "void", false) && !calls_for_gpus(Accelerator::Cpu, "all", true)
    );
}

#[tokio::test]
async fn everything_that_a_gpu_says() {
    let rig = Rig::new(&[
        "driver=570.86.15 cuda=12080",
        &format!("gpu=GPU-a {H200} fabric=00112233445566778899aabbccddeeff:5"),
        &format!("gpu=GPU-b {H200} mig=MIG-x/1g.18gb/180,MIG-y/2g.35gb/350")
            .replace("throttle=0x0", "throttle=33"),
    ]);
    let swept = rig.sweep(&[]).await.unwrap();
    assert_eq!((swept.driver_version.as_str(), swept.cuda_version.as_str()), ("570.86.15", "12.8"));
    assert!(swept.unreadable.is_empty());
    let [a, b] = swept.seen.as_slice() else { panic!("{swept:?}") };
    assert_eq!((a.facts.uuid.as_str(), a.facts.name.as_str(), a.facts.index), ("GPU-a", "NVIDIA H200", 0));
    assert_eq!((a.facts.memory_bytes, a.facts.pci_address.as_str()), (1000, "00000000:1b:00.0"));
    assert_eq!((a.facts.compute_capability.as_str(), a.facts.mig_enabled), ("9.0", None));
    assert_eq!(a.facts.fabric_cluster, "00112233-4455-6677-8899-aabbccddeeff");
    assert_eq!(a.facts.fabric_clique, Some(5));
    let figures = &a.figures;
    assert_eq!((figures.utilization_percent, figures.temperature_celsius), (Some(55), Some(61)));
    assert_eq!((figures.memory_used_bytes, figures.memory_total_bytes), (Some(400), Some(1000)));
    assert_eq!((figures.sm_clock_mhz, figures.memory_clock_mhz), (Some(1980), Some(3201)));
    assert_eq!((figures.ecc_corrected, figures.ecc_uncorrected), (Some(3), Some(1)));
    assert_eq!(figures.power_milliwatts, Some(333_000));
    assert_eq!(a.processes, [crate::core::gpus::Holder { pid: 7, bytes: Some(300) }]);
    // Idle is no reason to hold clocks down.
    assert_eq!(b.figures.throttle_reasons, ["sw_thermal_slowdown"]);
    assert_eq!(b.facts.mig_enabled, Some(true));
    let migs: Vec<_> = b
        .facts
        .mig_instances
        .iter()
        .map(|mig| (mig.uuid.as_str(), mig.profile.as_str(), mig.memory_bytes))
        .collect();
    assert_eq!(migs, [("MIG-x", "1g.18gb", 180), ("MIG-y", "2g.35gb", 350)]);
}

/// Row 99: what is not supported is absent, not zero, and the device is kept.
#[tokio::test]
async fn row_99_what_is_not_supported_is_absent() {
    let rig = Rig::new(&["gpu=GPU-a name=NVIDIA_GB10 temp=40"]);
    let swept = rig.sweep(&[]).await.unwrap();
    let gpu = &swept.seen[0];
    assert!(gpu.facts.memory_is_host && gpu.facts.pci_address.is_empty() && gpu.peers.is_empty());
    let figures = &gpu.figures;
    assert_eq!((figures.temperature_celsius, figures.power_milliwatts), (Some(40), None));
    assert_eq!((figures.memory_used_bytes, figures.memory_total_bytes), (None, None));
    assert_eq!(
        (figures.utilization_percent, figures.ecc_corrected, figures.sm_clock_mhz),
        (None, None, None)
    );
    // A call that fails is as good as one that is not supported.
    rig.stub.set(&[&format!("gpu=GPU-a {H200} fail=DeviceGetTemperature")]);
    let swept = rig.sweep(&[]).await.unwrap();
    assert_eq!(swept.seen[0].figures.temperature_celsius, None);
    assert_eq!(swept.seen[0].figures.power_milliwatts, Some(333_000));
}

/// Row 96: the driver's list has a hole, and the rest of it is read.
#[tokio::test]
async fn row_96_a_lost_gpu_leaves_the_others() {
    let lines = |lost: &str| -> Vec<String> {
        let line = |name: &&str| format!("gpu={name} {H200} {}", if *name == lost { "lost" } else { "" });
        ["GPU-a", "GPU-b", "GPU-c"].iter().map(line).collect()
    };
    let texts = lines("GPU-b");
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    let rig = Rig::new(&texts);
    let swept = rig.sweep(&["GPU-a", "GPU-b", "GPU-gone"]).await.unwrap();
    let seen: Vec<_> = swept.seen.iter().map(|seen| (seen.facts.uuid.as_str(), seen.facts.index)).collect();
    assert_eq!(seen, [("GPU-a", 0), ("GPU-c", 2)]);
    assert!(swept.unreadable[0].starts_with("GPU 1 of 3 cannot be read"), "{:?}", swept.unreadable);
    assert_eq!(swept.silent.iter().collect::<Vec<_>>(), ["GPU-b"]);
    let texts = lines("");
    let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
    rig.stub.set(&texts);
    assert_eq!(rig.sweep(&[]).await.unwrap().seen.len(), 3);
}

/// Row 97: a call that never returns costs one thread; the question after it gets its answer when it comes.
#[tokio::test]
async fn row_97_a_hanging_call_is_not_waited_for() {
    let gpu = format!("gpu=GPU-a {H200}");
    let rig = Rig::new(&[&gpu]);
    rig.sweep(&[]).await.unwrap();
    rig.stub.set(&["hang=DeviceGetTemperature", &gpu]);
    for _ in 0..5 {
        let (_, swept) = rig.gpus.sweep(Vec::new(), Duration::from_millis(20)).await;
        assert!(matches!(swept, Err(Fault::Unavailable(why)) if why.contains("does not return")));
    }
    rig.stub.set(&[&gpu]);
    assert_eq!(rig.sweep(&[]).await.unwrap().seen.len(), 1);
}

#[tokio::test]
async fn each_way_to_have_no_gpu_has_its_name() {
    let rig = Rig::new(&["init=driver"]);
    assert_eq!(rig.sweep(&[]).await, Err(Fault::Unavailable("the driver is not loaded".into())));
    rig.stub.set(&["init=mismatch"]);
    assert!(matches!(rig.sweep(&[]).await, Err(Fault::Unavailable(why)) if why.contains("reboot")));
    // It may come while the agent runs.
    rig.stub.set(&["init=ok"]);
    assert_eq!(rig.sweep(&[]).await, Err(Fault::NoDevice));
    rig.stub.set(&[&format!("gpu=GPU-a {H200}")]);
    assert_eq!(rig.sweep(&[]).await.unwrap().seen.len(), 1);
    let nowhere = Gpus::start(Accelerator::Nvidia, Some(Path::new("/nowhere/libnvidia-ml.so.1")));
    let (_, swept) = nowhere.sweep(Vec::new(), LIMIT).await;
    assert_eq!(swept, Err(Fault::Unavailable("/nowhere/libnvidia-ml.so.1 cannot be loaded".into())));
}

/// Row 98: each error that the driver raises is told once.
#[tokio::test]
async fn row_98_xids_are_told_once() {
    let gpu = |xid: &str| format!("gpu=GPU-a {H200} {xid}");
    let rig = Rig::new(&[&gpu("")]);
    assert!(rig.sweep(&[]).await.unwrap().xids.is_empty());
    rig.stub.set(&[&gpu("xid=94:2")]);
    let twice = ("GPU-a".to_owned(), 94);
    assert_eq!(rig.sweep(&[]).await.unwrap().xids, [twice.clone(), twice]);
    assert!(rig.sweep(&[]).await.unwrap().xids.is_empty());
}

#[tokio::test]
async fn nvlinks_name_their_other_ends() {
    let rig = Rig::new(&[&format!("gpu=GPU-a {H200} peers=00000000:2A:00.0,00000000:2B:00.0")]);
    let swept = rig.sweep(&[]).await.unwrap();
    assert_eq!(swept.seen[0].peers.iter().collect::<Vec<_>>(), ["00000000:2a:00.0", "00000000:2b:00.0"]);
}
