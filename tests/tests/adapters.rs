//! Each adapter starts its engine by its own command line, and the engine streams through the edge: stand-ins that take
//! the options of the named versions as strictly as the real ones (rows 33 and 95).

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use umbel_tests::engine::Script;
use umbel_tests::fleet::{EdgeOptions, EngineDeclaration, Fleet, NodeOptions, SOON};
use umbel_tests::nvml_stub::NvmlStub;
use umbel_tests::wait;

/// A link to the stand-in that is called as the engine is.
pub(crate) fn program(fleet: &Fleet, name: &str) -> PathBuf {
    let link = fleet.dir().join(name);
    if !link.exists() {
        std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_engine-stand-in"), &link).unwrap();
    }
    link
}

/// A folder with a model's files.
pub(crate) fn model(fleet: &Fleet, name: &str, config: &Value) -> PathBuf {
    let folder = fleet.dir().join(name);
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("config.json"), config.to_string()).unwrap();
    std::fs::write(folder.join("model.safetensors"), [0; 64]).unwrap();
    std::fs::write(folder.join("m.gguf"), b"GGUF\x03\0\0\0").unwrap();
    folder
}

fn declared(kind: &str, folder: &Path) -> EngineDeclaration {
    let (files, profile) = match kind {
        "vllm" => (
            format!("model_folder = {folder:?}"),
            "{ max_model_len = 4096, gpu_memory_utilization = 0.5, enable_prefix_caching = false, kv_cache_memory_bytes = \"1GiB\", limit_mm_per_prompt = { image = 2 } }",
        ),
        "sglang" => (
            format!("model_folder = {folder:?}"),
            "{ context_length = 4096, mem_fraction_static = 0.8, enable_mixed_chunk = true, schedule_policy = \"lpm\" }",
        ),
        _ => (
            format!("model_file = {:?}", folder.join("m.gguf")),
            "{ ctx_size = 4096, flash_attn = \"auto\", jinja = false }",
        ),
    };
    EngineDeclaration {
        toml: format!(
            "[[engine]]\nname = \"{kind}\"\nkind = \"{kind}\"\nmodel = \"org/{kind}\"\naliases = [\"alias-{kind}\"]\n{files}\nprofile = {profile}\n"
        ),
    }
}

#[test]
fn rows_33_and_95_each_engine_is_started_by_its_real_options_and_streams() {
    let fleet = Fleet::new();
    let edge = fleet.edge("berlin", None, &EdgeOptions::default());
    let folder = model(&fleet, "model", &json!({ "max_position_embeddings": 8192 }));
    let kinds = ["vllm", "sglang", "llama-server"];
    let programs: Vec<_> = kinds
        .iter()
        .map(|kind| format!("{} = {:?}\n", kind.replace('-', "_"), program(&fleet, kind)))
        .collect();
    let options = NodeOptions {
        engines: kinds.iter().map(|kind| declared(kind, &folder)).collect(),
        more: format!("[programs]\n{}\n", programs.concat()),
    };
    let node = fleet.node(&edge, "gpu-1", &options);
    for kind in kinds {
        for name in [format!("org/{kind}"), format!("alias-{kind}")] {
            let got = edge.chat(&name, "streams", true, &json!({})).whole(&edge.target()).unwrap();
            let text = got.text();
            // Whichever of its names a request has: the engine takes it, and its bytes come through.
            let as_engine =
                |name: &str| text == String::from_utf8_lossy(&Script::default().stream_bytes(name));
            assert!(as_engine(&name) || as_engine(&format!("org/{kind}")), "{kind} {name}: {text}");
        }
        let record = std::fs::read(node.state.join(format!("engines/{kind}.json"))).unwrap();
        let record: Value = serde_json::from_slice(&record).unwrap();
        let line = std::fs::read(format!("/proc/{}/cmdline", record["pid"])).unwrap();
        let line = String::from_utf8_lossy(&line).replace('\0', " ");
        assert!(line.contains("--host 127.0.0.1") && line.contains("4096"), "{line}");
        assert!(!line.contains("api-key"), "{line}");
        if let Some(key) = record["key"].as_str().filter(|key| !key.is_empty()) {
            assert!(!line.contains(key), "the key is in {line}");
        }
    }
}

fn script(fleet: &Fleet, name: &str, text: &str) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = fleet.dir().join(name);
    std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o700)).unwrap();
    path
}

/// A program a request: its text streams, its failure is an error and never a clean end, and a client that leaves ends all
/// of it.
#[test]
fn a_program_of_the_nodes_file_is_started_once_a_request() {
    let fleet = Fleet::new();
    let edge = fleet.edge("berlin", None, &EdgeOptions::default());
    let pid = fleet.dir().join("pid");
    let programs = [
        ("echo", "cat > /dev/null; printf 'one '; printf 'tw\\303\\266'".to_owned()),
        ("fails", "printf 'begun'; exit 3".to_owned()),
        ("silent", "exit 4".to_owned()),
        ("hangs", format!("printf 'begun'; sleep 1000 & echo $! > {}; wait", pid.display())),
    ];
    let lines = |of: &dyn Fn(&str, &str) -> String| -> String {
        programs.iter().map(|(name, text)| of(name, text)).collect()
    };
    let options = NodeOptions {
        engines: programs
            .iter()
            .map(|(name, _)| EngineDeclaration {
                toml: format!(
                    "[[engine]]\nname = \"{name}\"\nkind = \"cli\"\nmodel = \"{name}\"\nprogram = \"{name}\"\ntimeout = \"60s\"\n"
                ),
            })
            .collect(),
        more: format!(
            "[programs.cli]\n{}\n",
            lines(&|name, text| format!("{name} = {:?}\n", script(&fleet, name, text)))
        ),
    };
    let _node = fleet.node(&edge, "gpu-1", &options);
    let got = edge.chat("echo", "cli", true, &json!({})).whole(&edge.target()).unwrap();
    let text = got.text();
    assert!(
        text.contains("\"content\":\"one ")
            && text.contains("tw\u{f6}")
            && text.ends_with("data: [DONE]\n\n"),
        "{text}"
    );
    let got = edge.chat("echo", "cli", false, &json!({})).whole(&edge.target()).unwrap();
    assert_eq!(got.json()["choices"][0]["message"]["content"], "one tw\u{f6}");
    let got = edge.chat("fails", "cli", true, &json!({})).whole(&edge.target()).unwrap();
    assert!(got.text().contains("begun") && !got.text().contains("[DONE]"), "{}", got.text());
    let got = edge.chat("silent", "cli", false, &json!({})).whole(&edge.target()).unwrap();
    assert!(got.status >= 500, "{}", got.status);
    let mut open = edge.chat("hangs", "cli", true, &json!({})).ask(&edge.target()).unwrap();
    open.read_to("begun").unwrap();
    let number = || std::fs::read_to_string(&pid).ok().and_then(|text| text.trim().parse::<u64>().ok());
    let number = wait::until_some("the program's own child", SOON, || number().ok_or(String::new()));
    drop(open);
    wait::until("the program's child to be gone", SOON, || !Path::new(&format!("/proc/{number}")).exists());
}

/// vLLM by a deployment's document, on a GPU that it is given by its UUID: files fetched, started by the adapter's own
/// command line, answering through the edge. Then the agent is gone for good, and it is said why nothing can run.
#[test]
fn a_deployment_starts_vllm_on_its_gpu_and_a_lost_agent_is_explained() {
    let fleet = Fleet::new();
    let edge = fleet.edge("berlin", None, &EdgeOptions::default());
    let folder = fleet.dir().join("nvml");
    std::fs::create_dir_all(&folder).unwrap();
    let stub = NvmlStub::new(
        &folder,
        &["gpu=GPU-a name=NVIDIA_H200 memory=1000000:1000 temp=40 util=5 cc=9.0 ecc=0:0"],
    );
    let source = fleet.dir().join("source/org/tiny/r1");
    std::fs::create_dir_all(&source).unwrap();
    let files =
        [("config.json", &b"{\"max_position_embeddings\":4096}"[..]), ("model.safetensors", &[0; 64][..])];
    for (name, content) in files {
        std::fs::write(source.join(name), content).unwrap();
    }
    let dir = fleet.dir().join("gpu-1");
    for place in ["quarantine", "models"] {
        std::fs::create_dir_all(dir.join(place)).unwrap();
    }
    let more = format!(
        "[programs]\nvllm = {:?}\n[artifacts]\nquarantine = {:?}\nreserve = \"1MiB\"\n[artifacts.roots]\nmodels = {:?}\n\
         [[source]]\nname = \"disk\"\nkind = \"directory\"\npath = {:?}\n",
        program(&fleet, "vllm"),
        dir.join("quarantine"),
        dir.join("models"),
        fleet.dir().join("source"),
    );
    let mut node = fleet.node_files("gpu-1", &NodeOptions { engines: Vec::new(), more });
    let gpus = format!("accelerator = \"nvidia\"\nnvml_library = {:?}", stub.library());
    let text = std::fs::read_to_string(&node.config).unwrap().replace("accelerator = \"cpu\"", &gpus);
    std::fs::write(&node.config, text).unwrap();
    let _ = node.enroll(&edge.token("gpu-1")).ok();
    node.daemon.start();
    edge.wait_node("gpu-1", "connected", SOON, |node| node["connected"] == true);

    let listed: Vec<_> = files
        .iter()
        .map(|(name, content)| {
            let digest = umbel_contracts::deployment::digest(content);
            format!("{{ path = \"{name}\", bytes = {}, sha256 = \"{digest}\" }}", content.len())
        })
        .collect();
    let document = |profile: &str| {
        let path = fleet.dir().join("tiny.toml");
        let text = format!(
            "name = \"tiny\"\nmodel = \"org/tiny\"\naliases = [\"small\"]\n[artifact]\nrepository = \"org/tiny\"\nrevision = \"r1\"\n\
             source = \"disk\"\nfiles = [{}]\n[engine]\nkind = \"vllm\"\nprofile = {profile}\n[gpus]\ncount = 1\n",
            listed.join(", ")
        );
        std::fs::write(&path, text).unwrap();
        path.to_string_lossy().into_owned()
    };
    // Row 95, at the very beginning: before any node hears of it.
    let refused = edge.ctl(&["model", "apply", &document("{ trust_remote_code = true }")]);
    assert!(refused.code != 0 && refused.err.contains("engine.profile.trust_remote_code"), "{refused:?}");
    let told = edge.ctl(&["model", "apply", &document("{ max_model_len = 2048 }")]).ok().err;
    assert!(told.contains("tiny is ready"), "{told}");
    for name in ["org/tiny", "small"] {
        let got = edge.chat(name, "deployed", true, &json!({})).whole(&edge.target()).unwrap();
        assert!(got.status == 200 && got.text().contains("[DONE]"), "{}", got.text());
    }
    let log = std::fs::read_dir(node.state.join("engines")).unwrap().flatten();
    let said: String = log.filter_map(|entry| std::fs::read_to_string(entry.path()).ok()).collect();
    assert!(said.contains("GPUs: GPU-a"), "{said}");
    node.daemon.kill();
    // First it is not heard, then it is given up; each time it is said why nothing can run.
    for state in ["stale", "offline"] {
        edge.wait_node("gpu-1", state, SOON, |node| node["state"] == state);
        let why = edge.ctl(&["model", "why", "tiny"]);
        // Asked a moment later it may have been given up already.
        let says = |word: &str| why.out.contains(word);
        assert!(says("gpu-1") && (says(state) || says("offline")), "{why:?}");
    }
    wait::until("its replica to be lost", SOON, || {
        let shown = edge.ctl(&["model", "show", "tiny", "-o", "json"]).ok().json();
        shown["replicas"][0]["state"] == "lost" && shown["ready"] == 0
    });
    let why = edge.ctl(&["model", "why", "tiny"]);
    assert!(why.code != 0 && why.out.contains("umbel node doctor"), "{why:?}");
}

/// A program that does not know `--version`, and one that answers a request, end with their agent even where it is killed.
#[test]
fn programs_end_with_an_agent_that_is_killed() {
    let fleet = Fleet::new();
    let edge = fleet.edge("berlin", None, &EdgeOptions::default());
    let (asked, answering) = (fleet.dir().join("asked"), fleet.dir().join("answering"));
    let serves = |pid: &Path| {
        format!("sleep 1000 & echo $$ $! > {0}.next; mv {0}.next {0}; printf 'begun'; wait", pid.display())
    };
    let options = NodeOptions {
        engines: vec![EngineDeclaration {
            toml: "[[engine]]\nname = \"e\"\nkind = \"cli\"\nmodel = \"e\"\nprogram = \"e\"\n".to_owned(),
        }],
        more: format!(
            "[programs]\nllama_server = {:?}\n[programs.cli]\ne = {:?}\n",
            script(&fleet, "asked.sh", &serves(&asked)),
            script(&fleet, "answering.sh", &serves(&answering)),
        ),
    };
    let mut node = fleet.node(&edge, "gpu-1", &options);
    let mut open = edge.chat("e", "killed", true, &json!({})).ask(&edge.target()).unwrap();
    open.read_to("begun").unwrap();
    let pids = |file: &Path| -> Vec<u32> {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        text.split_ascii_whitespace().filter_map(|word| word.parse().ok()).collect()
    };
    wait::until("both programs to run", SOON, || pids(&asked).len() == 2 && pids(&answering).len() == 2);
    let all = [pids(&asked), pids(&answering)].concat();
    let lives = |pid: &u32| {
        std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
    };
    assert!(all.iter().all(lives), "{all:?}");
    node.daemon.kill();
    wait::until("nothing of them to be left", SOON, || !all.iter().any(lives));
}
