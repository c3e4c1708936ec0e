//! GPUs, load and disks of a running agent, over the stub NVML library. Rows are those of the fault catalogue.

use std::path::Path;

use rustix::process::Signal;
use umbel_contracts::proto::node::{EngineState, GpuTelemetry, NodeInventory, NodeTelemetry};

use crate::{
    agent::{Agent, Folder},
    edge::Edge,
    engine::program,
    joining,
    nvml_stub::NvmlStub,
    until,
};

/// What a GPU of these tests says of itself.
const SAYS: &str =
    "name=NVIDIA_H200 memory=1000:400 util=55 temp=61 power=333000 sm=1980 mem=3201 ecc=3:1 procs=1:9";

fn gpu(uuid: &str, more: &str) -> String {
    format!("gpu={uuid} {SAYS} {more}")
}

struct Rig {
    edge: Edge,
    folder: Folder,
    stub: NvmlStub,
}

impl Rig {
    /// A joined node with these GPUs.
    async fn new(engines: &str, lines: &[String]) -> Self {
        let rig = Self::not_joined(engines, lines).await;
        rig.folder.enroll(rig.edge.token()).await.unwrap();
        rig
    }

    async fn not_joined(engines: &str, lines: &[String]) -> Self {
        let folder = Folder::new(engines);
        let stub = NvmlStub::new(&folder.path(""), &lines.iter().map(String::as_str).collect::<Vec<_>>());
        let more = format!("accelerator = \"nvidia\"\nnvml_library = {:?}", stub.library());
        folder.edit("accelerator = \"cpu\"", &more);
        Self { edge: Edge::start().await, folder, stub }
    }

    fn set(&self, lines: &[String]) {
        self.stub.set(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    }

    /// The first telemetry report from now on that `fits`.
    async fn telemetry(&self, what: &str, fits: impl Fn(&NodeTelemetry) -> bool) -> NodeTelemetry {
        let before = self.edge.heard(|heard| heard.telemetries.len());
        until(what, async || {
            self.edge.heard(|heard| heard.telemetries.get(before..)?.iter().find(|told| fits(told)).cloned())
        })
        .await
    }

    async fn inventory(&self, what: &str, fits: impl Fn(&NodeInventory) -> bool) -> NodeInventory {
        until(what, async || {
            self.edge.heard(|heard| {
                let hello = heard.hellos.last().and_then(|hello| hello.inventory.as_ref());
                heard.inventories.last().or(hello).filter(|told| fits(told)).cloned()
            })
        })
        .await
    }

    async fn lost(&self, uuids: &[&str]) {
        until(&format!("{uuids:?} lost in a heartbeat"), async || {
            self.edge
                .heard(|heard| (heard.heartbeats > 0 && heard.heartbeat.lost_gpus == uuids).then_some(()))
        })
        .await;
    }
}

fn of<'a>(told: &'a NodeTelemetry, uuid: &str) -> &'a GpuTelemetry {
    told.gpus.iter().find(|gpu| gpu.uuid == uuid).unwrap()
}

fn nvml_threads(agent: &Agent) -> usize {
    std::fs::read_dir(format!("/proc/{}/task", agent.pid()))
        .unwrap()
        .flatten()
        .filter(|task| {
            std::fs::read_to_string(task.path().join("comm")).is_ok_and(|name| name.trim() == "nvml")
        })
        .count()
}

#[tokio::test]
async fn the_host_is_told_and_shown() {
    let rig =
        Rig::new(joining::SIM, &[gpu("GPU-a", "pci=0:1 cc=9.0"), gpu("GPU-b", "mig=MIG-x/1g.18gb/180")])
            .await;
    let _agent = rig.folder.start();
    let told = rig.telemetry("a report", |told| told.gpus.len() == 2).await;
    assert!(told.sequence > 0 && told.observed_at_unix_ms > 0 && told.memory_used_bytes > 0);
    assert_eq!(told.storage[0].name, "state");
    let a = of(&told, "GPU-a");
    assert_eq!((a.utilization_percent, a.memory_used_bytes, a.lost), (Some(55), Some(400), false));
    assert_eq!((a.xid_count, a.xid_last), (Some(0), None));
    let hello = rig.edge.heard(|heard| heard.hellos[0].clone());
    assert!(hello.capabilities.iter().any(|name| name == "hardware.telemetry"));
    let inventory = hello.inventory.unwrap();
    assert!(inventory.complete && inventory.accelerator_mode == "nvidia");
    assert_eq!(inventory.gpus[1].mig_instances[0].profile, "1g.18gb");
    let next = rig.telemetry("another", |_| true).await;
    assert!(next.sequence > told.sequence);
    let status = rig.folder.status().await;
    let shown = &status["gpus"][0];
    assert_eq!((shown["uuid"].as_str(), shown["utilization_percent"].as_u64()), (Some("GPU-a"), Some(55)));
    assert!(shown["age_ms"].as_u64().is_some() && shown["seen_at"].is_string());
    assert!(status["host"]["memory_used_bytes"].as_u64() > Some(0));
    assert!(status["host"]["storage"][0]["free_bytes"].as_u64() > Some(0));
    assert_eq!(status["driver_version"].as_str(), Some("580.95.05"));
}

/// Row 96: one of four falls off the bus; it is told at once by name, over a restart too, and comes back.
#[tokio::test]
async fn row_96_a_gpu_falls_off_the_bus() {
    let all = |broken: &str| {
        ["GPU-a", "GPU-b", "GPU-c", "GPU-d"].map(|uuid| gpu(uuid, if uuid == broken { "lost" } else { "" }))
    };
    let rig = Rig::new(joining::SIM, &all("")).await;
    let mut agent = rig.folder.start();
    rig.telemetry("a report", |told| told.gpus.len() == 4).await;
    rig.set(&all("GPU-b"));
    rig.lost(&["GPU-b"]).await;
    let told = rig.telemetry("a lost one", |told| told.gpus.iter().any(|gpu| gpu.lost)).await;
    let lost = of(&told, "GPU-b");
    assert!(
        lost.utilization_percent.is_none()
            && lost.memory_used_bytes.is_none()
            && lost.temperature_celsius.is_none()
    );
    assert_eq!(told.gpus.iter().filter(|gpu| gpu.utilization_percent == Some(55) && !gpu.lost).count(), 3);
    let inventory = rig.inventory("the lost one", |told| told.gpus.iter().any(|gpu| gpu.lost)).await;
    assert!(inventory.complete && inventory.gpus.len() == 4);
    let status = rig.folder.status().await;
    assert_eq!(
        (status["gpus"][1]["state"].as_str(), &status["gpus"][1]["utilization_percent"]),
        (Some("lost"), &serde_json::Value::Null)
    );
    assert!(status["gpus"][1]["lost_since"].is_string());
    agent.signal(Signal::KILL);
    agent.ended().await;
    let before = rig.edge.heard(|heard| heard.hellos.len());
    let _agent = rig.folder.start();
    let hello = until("a hello", async || rig.edge.heard(|heard| heard.hellos.get(before).cloned())).await;
    let inventory = hello.inventory.unwrap();
    assert!(
        inventory.complete && inventory.gpus.iter().any(|gpu| gpu.uuid == "GPU-b" && gpu.lost),
        "{inventory:?}"
    );
    rig.lost(&["GPU-b"]).await;
    rig.set(&all(""));
    rig.lost(&[]).await;
    rig.telemetry("it back", |told| of(told, "GPU-b").utilization_percent == Some(55)).await;
}

/// Rows 97 and 98: a driver call hangs. Heartbeats go on, figures get their age and go away, one thread hangs, the agent
/// still ends; and when the driver answers again so do the figures.
#[tokio::test]
async fn rows_97_98_the_driver_hangs_and_comes_back() {
    let rig = Rig::new(joining::SIM, &[gpu("GPU-a", "")]).await;
    let mut agent = rig.folder.start();
    rig.telemetry("a report", |told| of(told, "GPU-a").utilization_percent.is_some()).await;
    let hang = |call: &str| rig.set(&[format!("hang={call}"), gpu("GPU-a", "")]);
    hang("DeviceGetTemperature");
    let old = rig.telemetry("old figures", |told| of(told, "GPU-a").age_ms > 1000).await;
    assert_eq!(of(&old, "GPU-a").utilization_percent, Some(55));
    let gone = rig.telemetry("no figures", |told| of(told, "GPU-a").utilization_percent.is_none()).await;
    assert!(of(&gone, "GPU-a").age_ms > 3000 && !of(&gone, "GPU-a").lost && gone.memory_used_bytes > 0);
    let beats = rig.edge.heard(|heard| heard.heartbeats);
    until("heartbeats", async || rig.edge.heard(|heard| (heard.heartbeats > beats + 5).then_some(()))).await;
    let heartbeat = rig.edge.heard(|heard| heard.heartbeat.clone());
    assert_eq!(heartbeat.problems[0].code, "GPU_UNAVAILABLE");
    assert!(heartbeat.lost_gpus.is_empty());
    let inventory = rig.inventory("one that is not whole", |told| !told.complete).await;
    assert!(inventory.gpus.len() == 1 && inventory.incomplete_reason.contains("does not return"));
    assert_eq!(nvml_threads(&agent), 1);
    rig.set(&[gpu("GPU-a", "")]);
    rig.telemetry("figures again", |told| of(told, "GPU-a").utilization_percent == Some(55)).await;
    until("no problem", async || rig.edge.heard(|heard| heard.heartbeat.problems.is_empty().then_some(())))
        .await;
    rig.inventory("a whole one", |told| told.complete).await;
    hang("DeviceGetCount");
    until("a problem", async || rig.edge.heard(|heard| heard.heartbeat.problems.first().cloned())).await;
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().await, Some(0));
}

/// Row 98: an error of the hardware is a problem and a count.
#[tokio::test]
async fn row_98_an_xid_is_raised() {
    let rig = Rig::new(joining::SIM, &[gpu("GPU-a", "")]).await;
    let _agent = rig.folder.start();
    rig.telemetry("a report", |told| of(told, "GPU-a").xid_count == Some(0)).await;
    rig.set(&[gpu("GPU-a", "xid=94:1")]);
    let told = rig.telemetry("the error", |told| of(told, "GPU-a").xid_count == Some(1)).await;
    assert_eq!(of(&told, "GPU-a").xid_last, Some(94));
    until("a problem", async || {
        rig.edge.heard(|heard| {
            heard.heartbeat.problems.iter().any(|problem| problem.code == "GPU_XID").then_some(())
        })
    })
    .await;
}

/// Row 99: what is not supported is null, not zero; memory that is the host's is marked so.
#[tokio::test]
async fn row_99_unified_memory() {
    let rig = Rig::new(joining::SIM, &["gpu=GPU-a name=NVIDIA_GB10 temp=40".into()]).await;
    let _agent = rig.folder.start();
    let told = rig.telemetry("a report", |told| !told.gpus.is_empty()).await;
    let figures = of(&told, "GPU-a");
    assert_eq!(
        (figures.temperature_celsius, figures.memory_used_bytes, figures.power_milliwatts),
        (Some(40), None, None)
    );
    let inventory = rig.inventory("it", |_| true).await;
    assert!(inventory.gpus[0].memory_is_host && inventory.gpus[0].memory_bytes == inventory.memory_bytes);
    assert!(inventory.complete);
    let shown = rig.folder.status().await["gpus"][0].clone();
    assert!(shown["memory_used_bytes"].is_null() && shown["memory_is_host"] == true);
}

/// A GPU that the driver does not list any more is left out of a whole inventory; another order is no loss.
#[tokio::test]
async fn order_and_absence_are_told_apart() {
    let rig = Rig::new(joining::SIM, &[gpu("GPU-a", ""), gpu("GPU-b", "")]).await;
    let _agent = rig.folder.start();
    rig.telemetry("a report", |told| told.gpus.len() == 2).await;
    rig.set(&[gpu("GPU-b", ""), gpu("GPU-a", "")]);
    let turned = rig.inventory("another order", |told| told.gpus[0].uuid == "GPU-b").await;
    assert!(turned.complete && turned.gpus.len() == 2 && turned.gpus.iter().all(|gpu| !gpu.lost));
    rig.set(&[gpu("GPU-b", "")]);
    let less = rig.inventory("one less", |told| told.gpus.len() == 1).await;
    assert!(less.complete && less.gpus[0].uuid == "GPU-b" && less.sequence > turned.sequence);
    assert!(rig.edge.heard(|heard| heard.heartbeat.lost_gpus.is_empty()));
}

/// Memory on a GPU is told by engine, children of the engine included.
#[tokio::test]
async fn memory_is_told_by_engine() {
    let rig = Rig::new("", &[gpu("GPU-a", "")]).await;
    rig.folder.append(&program(&rig.folder.path(""), "plain"));
    let _agent = rig.folder.start();
    rig.edge.engine("own", EngineState::Ready).await;
    let record = std::fs::read_to_string(rig.folder.path("state/engines/own.json")).unwrap();
    let record: serde_json::Value = serde_json::from_str(&record).unwrap();
    rig.set(&[gpu("GPU-a", "").replace("procs=1:9", &format!("procs=1:9,{}:500", record["pid"]))]);
    let told = rig.telemetry("its memory", |told| !of(told, "GPU-a").engines.is_empty()).await;
    let engines = &of(&told, "GPU-a").engines;
    assert_eq!((engines.len(), engines[0].engine.as_str(), engines[0].bytes), (1, "own", 500));
}

/// Row 101: memory of an engine that crashed is still held. Its next start waits; held for good it is told by whom, and
/// no loop of crashes comes of it.
#[tokio::test]
async fn row_101_memory_is_held_after_the_end() {
    let rig = Rig::new("", &[gpu("GPU-a", "")]).await;
    rig.folder.append(&program(&rig.folder.path(""), "plain"));
    let _agent = rig.folder.start();
    rig.edge.engine("own", EngineState::Ready).await;
    let record = std::fs::read_to_string(rig.folder.path("state/engines/own.json")).unwrap();
    let pid = serde_json::from_str::<serde_json::Value>(&record).unwrap()["pid"].as_i64().unwrap();
    rig.set(&[gpu("GPU-a", "").replace("procs=1:9", &format!("procs={pid}:500"))]);
    let pid = i32::try_from(pid).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    let failed = rig.edge.engine("own", EngineState::Failed).await;
    assert!(failed.cause.contains(&format!("gpu memory held by pid {pid}")), "{}", failed.cause);
    assert_eq!(failed.restarts, 1);
    rig.set(&[gpu("GPU-a", "")]);
    assert_eq!(rig.edge.engine("own", EngineState::Ready).await.restarts, 1);
}

/// Row 101: in a container the driver names no process. Memory of a GPU that nobody has, and that was free before the engine was
/// started, is waited for as well, over a restart of the agent too; held for good it is told, and no loop of crashes comes of it.
#[tokio::test]
async fn row_101_memory_that_nobody_has_is_held_after_the_end() {
    let says = |used: &str| {
        [gpu("GPU-a", "")
            .replace("memory=1000:400", &format!("memory=80000000000:{used}"))
            .replace("procs=1:9", "")]
    };
    let rig = Rig::new("", &says("600000000")).await;
    rig.folder.append(&format!("{}gpus = [\"GPU-a\"]\n", program(&rig.folder.path(""), "plain")));
    rig.folder.edit("engines = \"stop\"", "engines = \"keep\"");
    let mut agent = rig.folder.start();
    rig.edge.engine("own", EngineState::Ready).await;
    rig.set(&says("70000000000"));
    let before = rig.edge.heard(|heard| heard.hellos.len());
    agent.signal(Signal::KILL);
    agent.ended().await;
    let _agent = rig.folder.start();
    until("the next hello", async || rig.edge.heard(|heard| (heard.hellos.len() > before).then_some(())))
        .await;
    rig.edge.engine("own", EngineState::Ready).await;
    let record = std::fs::read_to_string(rig.folder.path("state/engines/own.json")).unwrap();
    let pid = serde_json::from_str::<serde_json::Value>(&record).unwrap()["pid"].as_i64().unwrap();
    let pid = rustix::process::Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    rustix::process::kill_process(pid, Signal::KILL).unwrap();
    let failed = rig.edge.engine("own", EngineState::Failed).await;
    assert_eq!((failed.code.as_str(), failed.restarts), ("GPU_MEMORY_HELD", 1));
    assert!(
        failed.cause.contains("64.6 GiB of GPU GPU-a") && failed.cause.contains("names no process"),
        "{failed:?}"
    );
    rig.set(&says("900000000"));
    assert_eq!(rig.edge.engine("own", EngineState::Ready).await.restarts, 1);
}

/// Row 97: a driver that is gone while engines run keeps no agent from them: it starts, goes on with them, and says what is
/// wrong. Without one it is refused as before.
#[tokio::test]
async fn row_97_an_agent_with_running_engines_starts_without_the_driver() {
    let rig = Rig::new("", &[gpu("GPU-a", "")]).await;
    rig.folder.append(&program(&rig.folder.path(""), "plain"));
    let mut agent = rig.folder.start();
    rig.edge.engine("own", EngineState::Ready).await;
    let pid = || -> i64 {
        let record = std::fs::read_to_string(rig.folder.path("state/engines/own.json")).unwrap();
        serde_json::from_str::<serde_json::Value>(&record).unwrap()["pid"].as_i64().unwrap()
    };
    let (before, hellos) = (pid(), rig.edge.heard(|heard| heard.hellos.len()));
    agent.signal(Signal::KILL);
    agent.ended().await;
    rig.set(&["init=driver".into()]);
    let mut agent = rig.folder.start();
    until("the next hello", async || rig.edge.heard(|heard| (heard.hellos.len() > hellos).then_some(())))
        .await;
    rig.edge.engine("own", EngineState::Ready).await;
    assert_eq!(pid(), before, "the engine went on");
    let problems = rig.folder.status().await["problems"].to_string();
    assert!(problems.contains("GPU_UNAVAILABLE"), "{problems}");
    agent.signal(Signal::TERM);
    assert_eq!(agent.ended().await, Some(0));
    let mut agent = rig.folder.start();
    assert_eq!(agent.ended().await, Some(3), "nothing runs any more");
}

/// Preflight: each failure has its code, ends with 3, and comes before a key is made or an edge is asked.
#[tokio::test]
async fn the_preflight_comes_before_everything() {
    let cases = [
        (vec!["init=driver".to_owned()], "NVIDIA_NVML_UNAVAILABLE"),
        (vec![], "NVIDIA_DEVICE_NOT_FOUND"),
        (vec!["gpu=GPU-a name=NVIDIA_H200".to_owned()], "NVIDIA_TELEMETRY_UNAVAILABLE"),
        (vec![gpu("GPU-a", "lost")], "NVIDIA_TELEMETRY_UNAVAILABLE"),
    ];
    for (lines, code) in cases {
        let rig = Rig::not_joined("", &lines).await;
        let refused = rig.folder.enroll(rig.edge.token()).await.unwrap_err();
        assert_eq!(refused.exit_code(), 3, "{refused}");
        assert!(
            refused.to_string().starts_with(code) && refused.to_string().contains("nvidia-smi"),
            "{refused}"
        );
        assert_eq!(rig.edge.heard(|heard| heard.enrollments.len()), 0);
        assert!(!rig.folder.path("state/node.key").exists());
    }
    let rig = Rig::new("", &[gpu("GPU-a", "")]).await;
    let config = rig.folder.config();
    let found = tokio::task::spawn_blocking(move || umbel_node::preflight(&config)).await.unwrap().unwrap();
    assert_eq!((found.gpus[0].uuid.as_str(), found.gpus[0].memory_bytes), ("GPU-a", Some(1000)));
    assert_eq!(found.gpus[0].figures, ["memory", "temperature", "power", "utilization"]);
    // A container that was given none.
    let mut agent = rig.folder.start_in(&[("NVIDIA_VISIBLE_DEVICES", Path::new("void"))]);
    assert_eq!(agent.ended().await, Some(3));
    assert!(rig.folder.log().contains("NVIDIA_DEVICE_NOT_FOUND"), "{}", rig.folder.log());
    // An agent that has joined ends with the same code; a hang is no different, and is not waited for long.
    std::fs::remove_file(rig.stub.library()).unwrap();
    let mut agent = rig.folder.start();
    assert_eq!(agent.ended().await, Some(3));
    assert!(rig.folder.log().contains("NVIDIA_NVML_UNAVAILABLE"), "{}", rig.folder.log());
}

/// Row 97: the driver hangs already when it is opened.
#[tokio::test]
async fn row_97_the_driver_hangs_at_the_start() {
    let rig = Rig::not_joined("", &["init=hang".into()]).await;
    let refused = rig.folder.enroll(rig.edge.token()).await.unwrap_err();
    assert_eq!(refused.exit_code(), 3);
    assert!(refused.to_string().contains("does not return"), "{refused}");
}

/// A state directory in memory is refused, unless the file says that this node may be forgotten.
#[tokio::test]
async fn a_state_directory_in_memory_is_refused() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let edge = Edge::start().await;
    let folder = Folder::new("");
    folder.edit("state_dir = \"state\"", &format!("state_dir = {:?}", memory.path().join("state")));
    folder.edit("allow_volatile_state = true", "");
    let refused = folder.enroll(edge.token()).await.unwrap_err();
    assert!(
        refused.to_string().contains("tmpfs") && refused.to_string().contains("allow_volatile_state"),
        "{refused}"
    );
    assert_eq!(edge.heard(|heard| heard.enrollments.len()), 0);
}
