//! What ends engines on a node, on real processes: the node's own end, an operator's wish, what an end waits for, and
//! what it does not need.

use std::net::TcpStream;
use std::time::Duration;

use serde_json::{Value, json};
use umbel_tests::fleet::{SOON, run};
use umbel_tests::nvml_stub::NvmlStub;
use umbel_tests::wait;

use crate::deployments::{Site, site};
use crate::disk::Volume;
use crate::sites::skipped;

impl Site {
    fn pid(&self, node: &str, engine: &str) -> Option<u64> {
        let record = std::fs::read(self.node(node).state.join(format!("engines/{engine}.json"))).ok()?;
        serde_json::from_slice::<Value>(&record).ok()?["pid"].as_u64().filter(|pid| *pid > 0)
    }

    /// An engine of a node's own file beside those of deployments; its process.
    fn with_own(&self, node: &str) -> u64 {
        let model = self.fleet.dir().join("source/org/tiny/r1/model.gguf");
        let config = &self.node(node).config;
        let text = std::fs::read_to_string(config).unwrap();
        let own = format!(
            "[[engine]]\nname = \"own\"\nkind = \"llama-server\"\nmodel = \"org/own\"\nmodel_file = {model:?}\n"
        );
        std::fs::write(config, format!("{text}\n{own}")).unwrap();
        self.edge.wait_node(node, "with an engine of its own", SOON, |node| {
            let all = node["providers"].as_array().cloned().unwrap_or_default();
            all.iter().any(|one| {
                one["provider_id"].as_str().is_some_and(|id| id.ends_with("/own"))
                    && one["status"] == "available"
            })
        });
        self.pid(node, "own").unwrap()
    }
}

fn lives(pid: u64) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}

/// The preview names the replicas; they are unloaded before the node is gone, and replaced elsewhere. An agent that did not
/// run then ends its own when it hears that it is gone. Engines of the node's own file are nobody's but the node's.
#[test]
fn a_decommissioned_node_keeps_no_engine_of_a_deployment() {
    let mut s = site(&["gpu-1", "gpu-2"]);
    s.apply("");
    let (from, engine) = s.replica();
    let at = s.engine_at(&from, &engine);
    let own = s.with_own(&from);
    let preview = s.edge.ctl(&["node", "decommission", &from, "--preview"]).ok().out;
    assert!(preview.contains("tiny loses tiny.r1"), "{preview}");
    let retire = |s: &Site, name: &str| {
        s.edge.ctl(&["node", "decommission", name, "-m", "sold", "--confirm", name, "-o", "json"]).ok().json()
    };
    let retired = retire(&s, &from);
    assert_eq!(retired["result"]["decommissioned"], true, "{retired}");
    assert!(TcpStream::connect(at).is_err(), "it was unloaded first");
    assert_eq!(s.pid(&from, &engine), None);
    wait::until("the other node serves", SOON, || {
        let shown = s.shown();
        shown["state"] == "ready" && shown["replicas"][0]["node"] != from.as_str()
    });
    s.answers("org/tiny");
    let config = s.node(&from).config.to_string_lossy().into_owned();
    wait::until("the node knows what it is", SOON, || {
        let status = run(&["node", "status", "--config", &config, "-o", "json"]);
        status.out.contains("\"decommissioned\"") && status.out.contains("stop-engines")
    });
    assert!(lives(own) && s.pid(&from, "own") == Some(own), "an engine of its own file goes on");

    // The other one is retired while its agent is away.
    let (last, engine) = s.replica();
    let at = s.engine_at(&last, &engine);
    let index = s.nodes.iter().position(|node| node.name == last).unwrap();
    s.nodes[index].daemon.kill();
    s.edge.wait_node(&last, "away", SOON, |node| node["connected"] == false);
    assert_eq!(retire(&s, &last)["result"]["decommissioned"], true);
    assert!(TcpStream::connect(at).is_ok(), "nobody could be asked to end it");
    s.nodes[index].daemon.start();
    wait::until("the node ends it by itself", SOON, || {
        TcpStream::connect(at).is_err() && s.pid(&last, &engine).is_none()
    });
    // Nor is it started again with the agent.
    s.nodes[index].daemon.kill();
    s.nodes[index].daemon.start();
    let log = s.nodes[index].daemon.log();
    assert!(log.contains("umbel node stop-engines"), "{log}");
    let kept = std::fs::read_to_string(s.nodes[index].state.join("deployments.json")).unwrap();
    assert_eq!(kept.trim(), "[]");
    wait::until("its replica is gone with it", SOON, || s.shown()["replicas"] == json!([]));
}

/// What is said of an engine that an operator stops is what is: it is draining, then stopped, and stays so with another agent
/// until it is restarted.
#[test]
fn an_engine_is_stopped_when_it_is_and_stays_so() {
    let mut s = site(&["gpu-1"]);
    s.apply("");
    let (node, engine) = s.replica();
    let before = s.pid(&node, &engine).unwrap();
    let script = json!({"events": 6, "gate": "never", "gate_at": 3});
    let mut stream = s.edge.chat("org/tiny", "runs", true, &script).ask(&s.edge.target()).unwrap();
    stream.read_to("tok0").unwrap();
    let state =
        |s: &Site| s.engines().first().map_or(String::new(), |one| one["state"].as_str().unwrap().to_owned());
    let told = s.edge.ctl(&["engine", "stop", &engine, "-m", "hot", "--deadline", "5m", "--detach"]).ok();
    assert!(told.err.contains("is stopping") && !told.err.contains("is stopped"), "{told:?}");
    wait::until("it finishes what runs", SOON, || state(&s) == "draining");
    wait::until("its replica is not ready any more", SOON, || s.shown()["replicas"][0]["state"] != "ready");
    assert!(lives(before), "its stream runs");
    drop(stream);
    wait::until("it is stopped", SOON, || state(&s) == "stopped");
    assert!(!lives(before) && s.pid(&node, &engine).is_none());
    s.nodes[0].daemon.kill();
    s.edge.wait_node(&node, "away", SOON, |node| node["connected"] == false);
    s.nodes[0].daemon.start();
    wait::until("it is stopped still", SOON, || state(&s) == "stopped");
    assert!(s.pid(&node, &engine).is_none(), "{}", s.nodes[0].daemon.log());
    let told = s.edge.ctl(&["engine", "restart", &engine]).ok().err;
    assert!(told.contains("is ready"), "{told}");
    wait::until("its replica is ready", SOON, || s.shown()["state"] == "ready");
    s.answers("org/tiny");
    let told = s.edge.ctl(&["engine", "stop", &engine, "-m", "hot"]).ok().err;
    assert!(told.contains("is stopped until it is restarted"), "{told}");
    assert!(s.pid(&node, &engine).is_none());
}

/// Row 101: unloading ends when the driver has given the memory back. If it does not, that is said by name, nothing else gets
/// the GPU, and it ends by itself when the driver lets go.
#[test]
fn row_101_an_unload_waits_for_the_gpus_memory() {
    const SAYS: &str = "gpu=GPU-a name=NVIDIA_H200 memory=1000000:1000 temp=40 util=5 cc=9.0 ecc=0:0";
    let mut s = site(&["gpu-1"]);
    let folder = s.fleet.dir().join("nvml");
    std::fs::create_dir_all(&folder).unwrap();
    let stub = NvmlStub::new(&folder, &[SAYS]);
    s.nodes[0].daemon.kill();
    let more = format!("accelerator = \"nvidia\"\nnvml_library = {:?}", stub.library());
    let config = &s.nodes[0].config;
    let text = std::fs::read_to_string(config).unwrap().replace("accelerator = \"cpu\"", &more);
    std::fs::write(config, text).unwrap();
    s.nodes[0].daemon.start();
    s.edge.wait_node("gpu-1", "with its GPU", SOON, |node| {
        node["connected"] == true && node["inventory"]["gpus"][0]["uuid"] == "GPU-a"
    });
    s.apply("[gpus]\ncount = 1\n");
    let pid = s.pid("gpu-1", "tiny.r1").unwrap();
    stub.set(&[&format!("{SAYS} procs={pid}:700")]);
    let _ = s.edge.ctl(&["model", "unload", "tiny", "-m", "enough", "--detach"]).ok();
    wait::until("its process is gone", SOON, || !lives(pid));
    let unload = || {
        let jobs = s.edge.ctl(&["job", "-o", "json"]).ok().json();
        let all = jobs.as_array().cloned().unwrap_or_default();
        all.into_iter().find(|job| job["kind"] == "deployment.unload").unwrap_or_default()
    };
    assert_ne!(unload()["state"], "succeeded", "the memory is held");
    wait::until_some("it is said what holds it", Duration::from_secs(60), || {
        let id = unload()["job_id"].as_str().unwrap_or_default().to_owned();
        let job = s.edge.ctl(&["job", "show", &id, "-o", "json"]).ok().json();
        let says = job["failure"].to_string();
        if says.contains("GPU_MEMORY_HELD") && says.contains(&pid.to_string()) {
            Ok(())
        } else {
            Err(job.to_string())
        }
    });
    stub.set(&[SAYS]);
    wait::until("it is over", Duration::from_secs(60), || s.shown()["replicas"] == json!([]));
    let _ = s.edge.ctl(&["model", "load", "tiny"]).ok();
    s.answers("org/tiny");
}

/// An entry of the list of deployments that cannot be read costs nothing but itself: the others are what they were, and its own
/// engine runs on as it was started.
#[test]
fn row_80_a_damaged_entry_costs_only_itself() {
    let mut s = site(&["gpu-1"]);
    s.apply("replicas = 2\n");
    let pids = |s: &Site| [s.pid("gpu-1", "tiny.r1"), s.pid("gpu-1", "tiny.r2")];
    let before = pids(&s);
    assert!(before.iter().all(Option::is_some), "{before:?}");
    s.nodes[0].daemon.kill();
    let file = s.nodes[0].state.join("deployments.json");
    let text = std::fs::read_to_string(&file).unwrap();
    std::fs::write(&file, text.replacen("\"profile\"", "\"prefile\"", 1)).unwrap();
    s.nodes[0].daemon.start();
    let seen = s.edge.wait_node("gpu-1", "with the problem", SOON, |node| {
        node["problems"].to_string().contains("DEPLOYMENTS_LOST")
    });
    let problems = seen["problems"].to_string();
    assert!(problems.contains("tiny.r1 go on") || problems.contains("tiny.r2 go on"), "{problems}");
    assert!(!(problems.contains("tiny.r1 go on") && problems.contains("tiny.r2")), "{problems}");
    s.answers("org/tiny");
    assert_eq!(pids(&s), before, "both went on");
}

/// The node's state directory is full: unloading ends the engine all the same, the node says what is wrong, and a load is refused
/// for that; with room again all of it is over, and nothing of the unloaded engine comes back with the next agent.
#[test]
fn an_unload_needs_no_disk() {
    let mut s = site(&["gpu-1"]);
    s.apply("");
    let volume = match Volume::mount(s.fleet.dir()) {
        Ok(volume) => volume,
        Err(why) => return skipped("an_unload_needs_no_disk", &format!("no small volume here: {why}")),
    };
    // The node's state moves to the small volume, the engine with it.
    let _ = s.edge.ctl(&["model", "unload", "tiny", "-m", "moves"]).ok();
    s.nodes[0].daemon.kill();
    let (before, state) = (s.nodes[0].state.clone(), volume.at.join("node"));
    std::fs::rename(&before, before.with_extension("old")).unwrap();
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([before.with_extension("old"), state.clone()])
        .status();
    assert!(copied.unwrap().success());
    let config = &s.nodes[0].config;
    let text =
        std::fs::read_to_string(config).unwrap().replace(&format!("{before:?}"), &format!("{state:?}"));
    std::fs::write(config, text).unwrap();
    s.nodes[0].state = state;
    s.nodes[0].daemon.start();
    let _ = s.edge.ctl(&["model", "load", "tiny"]).ok();
    s.answers("org/tiny");
    let (node, engine) = s.replica();
    let pid = s.pid(&node, &engine).unwrap();

    let mut fillers = vec![volume.fill()];
    let told = s.edge.ctl(&["model", "unload", "tiny", "-m", "full"]).ok().err;
    assert!(told.contains("tiny is unloaded") && !lives(pid), "{told}");
    // The engine's own files have left a little room.
    fillers.push(volume.fill_as("again"));
    let problem = |node: &Value| node["problems"].to_string().contains("STATE_NOT_WRITABLE");
    let _ = s.edge.ctl(&["model", "load", "tiny", "--detach"]).ok();
    wait::until("the load to be refused for that", SOON, || {
        s.shown().to_string().contains("cannot be kept in the state directory")
    });
    s.edge.wait_node("gpu-1", "saying that its disk is full", SOON, problem);
    assert_eq!(s.engines(), Vec::<Value>::new());

    for filler in fillers {
        std::fs::remove_file(filler).unwrap();
    }
    s.edge.wait_node("gpu-1", "whole again", Duration::from_secs(60), |node| !problem(node));
    let _ = s.edge.ctl(&["model", "load", "tiny"]).ok();
    s.answers("org/tiny");
    let _ = s.edge.ctl(&["model", "unload", "tiny", "-m", "over"]).ok();
    s.nodes[0].daemon.stop(SOON);
}
