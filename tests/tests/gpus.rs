//! GPUs that fall off the bus under an engine, and the preflight as people start it.
//!
//! The driver is the stub library; edge, node and client are the real processes.

use std::path::Path;

use serde_json::{Value, json};
use umbel_tests::fleet::{EdgeOptions, EngineDeclaration, Fleet, NodeOptions, SOON, run};
use umbel_tests::nvml_stub::NvmlStub;

const SAYS: &str = "name=NVIDIA_H200 memory=1000000:1000 temp=40 util=5 cc=9.0 ecc=0:0";

/// Row 96: the others go on, the model on the lost one is benched, no figure is made up, the agent lives.
#[test]
fn row_96_a_lost_gpu_benches_its_model() {
    let fleet = Fleet::new();
    let edge = fleet.edge("berlin", None, &EdgeOptions::default());
    let folder = fleet.dir().join("nvml");
    std::fs::create_dir_all(&folder).unwrap();
    let lines = |broken: &str, pid: u64| -> Vec<String> {
        ["GPU-a", "GPU-b", "GPU-c", "GPU-d"]
            .iter()
            .map(|uuid| match *uuid {
                uuid if uuid == broken => format!("gpu={uuid} {SAYS} lost"),
                "GPU-b" => format!("gpu=GPU-b {SAYS} procs={pid}:700"),
                uuid => format!("gpu={uuid} {SAYS}"),
            })
            .collect()
    };
    let stub = NvmlStub::new(&folder, &[]);
    let set = |broken: &str, pid: u64| {
        let lines = lines(broken, pid);
        stub.set(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    };
    set("", 1);
    let model = fleet.dir().join("model.gguf");
    std::fs::write(&model, b"GGUF\x03\0\0\0").unwrap();
    let options = NodeOptions {
        engines: vec![EngineDeclaration {
            toml: format!(
                "[[engine]]\nname = \"e\"\nkind = \"llama-server\"\nmodel = \"m\"\nmodel_file = {model:?}\ncapacity = 4\n\
                 [[engine]]\nname = \"s\"\nkind = \"sim\"\nmodel = \"other\"\n"
            ),
        }],
        more: format!("[programs]\nllama_server = {:?}\n", Path::new(env!("CARGO_BIN_EXE_scripted-engine"))),
    };
    let mut node = fleet.node_files("gpu-1", &options);
    let more = format!("accelerator = \"nvidia\"\nnvml_library = {:?}", stub.library());
    let text = std::fs::read_to_string(&node.config).unwrap().replace("accelerator = \"cpu\"", &more);
    std::fs::write(&node.config, text).unwrap();
    let _ = node.enroll(&edge.token("gpu-1")).ok();
    node.daemon.start();
    edge.wait_serving("gpu-1");

    let record = std::fs::read(node.state.join("engines/e.json")).unwrap();
    let pid = serde_json::from_slice::<Value>(&record).unwrap()["pid"].as_u64().unwrap();
    set("", pid);
    edge.wait_node("gpu-1", "seen with the engine's memory", SOON, |node| {
        node["inventory"]["gpus"][1].to_string().contains("700")
    });
    set("GPU-b", pid);
    let provider = |node: &Value, name: &str| {
        let all = node["providers"].as_array().cloned().unwrap_or_default();
        all.into_iter().find(|provider| provider["provider_id"].as_str().is_some_and(|id| id.ends_with(name)))
    };
    let seen = edge.wait_node("gpu-1", "without the model of the lost GPU", SOON, |node| {
        let lost = node["problems"].as_array().is_some_and(|all| all.iter().any(|p| p["code"] == "GPU_LOST"));
        lost && provider(node, "/e").is_some_and(|provider| provider["status"] != "available")
    });
    assert_eq!(provider(&seen, "/s").unwrap()["status"], "available", "{seen}");
    let gpus = seen["inventory"]["gpus"].as_array().unwrap();
    assert_eq!(gpus.len(), 4);
    for gpu in gpus {
        let lost = gpu["uuid"] == "GPU-b";
        assert_eq!(gpu["state"] == "lost", lost, "{gpu}");
        assert_eq!(gpu["figures"]["utilization_percent"].is_null(), lost, "{gpu}");
    }
    let got = edge.chat("other", "goes on", false, &json!({})).whole(&edge.target()).unwrap();
    assert_eq!(got.status, 200);
    set("", pid);
    edge.wait_node("gpu-1", "whole again", SOON, |node| {
        node["problems"].as_array().is_some_and(Vec::is_empty)
            && provider(node, "/e").is_some_and(|provider| provider["status"] == "available")
    });
    assert!(node.daemon.is_running(), "{}", node.daemon.log());
}

/// `umbel node --preflight` says what it found, or a code and what to do, and makes nothing.
#[test]
fn the_preflight_only_looks() {
    let fleet = Fleet::new();
    let folder = fleet.dir().join("nvml");
    std::fs::create_dir_all(&folder).unwrap();
    let stub = NvmlStub::new(&folder, &[&format!("gpu=GPU-a {SAYS}")]);
    let node = fleet.node_files("gpu-1", &NodeOptions { engines: Vec::new(), more: String::new() });
    let more = format!("accelerator = \"nvidia\"\nnvml_library = {:?}", stub.library());
    let text = std::fs::read_to_string(&node.config).unwrap().replace("accelerator = \"cpu\"", &more);
    std::fs::write(&node.config, text).unwrap();
    let file = node.config.to_string_lossy().into_owned();
    let look = || run(&["node", "--preflight", "--config", &file]);
    let found = look();
    assert!(found.code == 0 && found.out.contains("GPU-a") && found.out.contains("temperature"), "{found:?}");
    for (line, code) in [
        ("init=driver", "NVIDIA_NVML_UNAVAILABLE"),
        ("driver=1", "NVIDIA_DEVICE_NOT_FOUND"),
        ("gpu=GPU-a name=NVIDIA_H200", "NVIDIA_TELEMETRY_UNAVAILABLE"),
        ("init=hang", "NVIDIA_NVML_UNAVAILABLE"),
    ] {
        stub.set(&[line]);
        let refused = look();
        assert!(refused.code == 3 && refused.err.contains(code), "{refused:?}");
        assert!(refused.err.contains("nvidia-smi"), "{refused:?}");
    }
    assert!(!node.state.exists());
}
