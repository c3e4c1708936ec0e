//! Replicas that do not come up: what is said, and that nobody else suffers (rows 87 and 89).

use super::*;

/// The engine's own last words are told from its first crash on, while its load still runs; it is tried once on each node, given
/// up with its cause, and its output can be read although no node has it any more.
#[test]
fn rows_87_and_89_a_crash_loop_is_told_at_once_and_given_up_by_name() {
    let s = site(&["gpu-1"]);
    let document = s.document("");
    let text = std::fs::read_to_string(&document)
        .unwrap()
        .replace("model = \"org/tiny\"", "model = \"ends-at-once\"");
    std::fs::write(&document, text).unwrap();
    let _ = s.edge.ctl(&["model", "apply", &document.to_string_lossy(), "--detach"]).ok();
    let words = "exited with code 3: \"the last line of all\"";
    let says = |text: &Value| text.as_str().is_some_and(|text| text.contains(words));
    let shown =
        s.wait("the cause to be told", |one| says(&one["message"]) && says(&one["replicas"][0]["cause"]));
    assert_eq!((&shown["state"], &shown["replicas"][0]["job"]["kind"]), (&json!("loading"), &json!("load")));
    let listed = s.edge.ctl(&["model"]).ok().out;
    assert!(listed.contains("the last line of all"), "{listed}");

    let shown = s.wait("it to be given up", |one| one["state"] == "failed");
    let message = shown["message"].as_str().unwrap();
    for part in ["tiny.r1: CRASH_LOOP", words, "umbel ctl model load tiny"] {
        assert!(message.contains(part), "{message}");
    }
    // What the message says to type works.
    let job = message.split("umbel ctl job show ").nth(1).unwrap().split(' ').next().unwrap();
    let job = s.edge.ctl(&["job", "show", job]).ok().out;
    assert!(job.contains("error: the model needs more than this host has"), "{job}");
    let logs = s.edge.ctl(&["engine", "logs", "tiny.r1"]).ok().out;
    assert!(logs.contains("loading the model") && logs.contains("the last line of all"), "{logs}");
    let refused = s.edge.chat("ends-at-once", "x", false, &json!({})).whole(&s.edge.target()).unwrap();
    assert_eq!(refused.status, 503, "known, and nothing serves it: {}", refused.text());
    assert!(refused.text().contains("model_unavailable"), "{}", refused.text());
}

/// A change whose new replica never gets ready takes no old one down; paused, nothing happens; taken back, the new one goes and
/// the old one is the process that it was.
#[test]
fn a_change_that_never_gets_ready_leaves_the_old_one_serving() {
    let s = site(&["gpu-1", "gpu-2"]);
    s.apply("");
    let (node, engine) = s.replica();
    let pid = s.runs_as(&node, &engine);
    let document = s.document("");
    let good = std::fs::read_to_string(&document).unwrap();
    std::fs::write(&document, good.replace("model = \"org/tiny\"", "model = \"never-ready\"")).unwrap();
    let _ = s.edge.ctl(&["model", "apply", &document.to_string_lossy(), "--detach"]).ok();
    let shown = s.wait("the new one to load", |one| {
        one["replicas"]
            .as_array()
            .is_some_and(|all| all.len() == 2 && all[1]["state"] == "loading" && all[1]["cause"] != "")
    });
    assert_eq!((&shown["state"], &shown["replicas"][0]["state"]), (&json!("changing"), &json!("ready")));
    assert!(shown["message"].as_str().unwrap().starts_with("tiny.r2 is loading: "), "{shown}");
    s.answers("org/tiny");

    let _ = s.edge.ctl(&["model", "pause", "tiny"]).ok();
    std::fs::write(&document, &good).unwrap();
    let _ = s.edge.ctl(&["model", "apply", &document.to_string_lossy(), "--detach"]).ok();
    let shown = s.shown();
    assert_eq!((&shown["paused"], shown["replicas"].as_array().unwrap().len()), (&json!(true), 2));
    s.answers("org/tiny");
    let _ = s.edge.ctl(&["model", "pause", "tiny", "--off"]).ok();
    s.wait("only the old one to be left", |one| {
        one["state"] == "ready" && one["replicas"].as_array().is_some_and(|all| all.len() == 1)
    });
    assert_eq!((s.replica(), s.runs_as(&node, &engine)), ((node.clone(), engine.clone()), pid));
    s.answers("org/tiny");

    // One replica by its number: it goes, and another one comes.
    let told = s.edge.ctl(&["model", "unload", "tiny", "--replica", "1", "-m", "moved"]).ok().err;
    assert!(told.contains("tiny is ready"), "{told}");
    let shown = s.wait("another one in its place", |one| {
        one["replicas"].as_array().is_some_and(|all| all.len() == 1 && all[0]["engine"] != engine.as_str())
    });
    assert_eq!(shown["unloaded"], Value::Null);
    s.answers("org/tiny");
}

/// A node that is not eligible is given files and engines, and no requests until somebody says so.
#[test]
fn a_node_that_is_not_eligible_loads_and_gets_no_requests() {
    let s = site(&["gpu-1"]);
    let _ = s.edge.ctl(&["node", "eligible", "gpu-1", "no"]).ok();
    let document = s.document("");
    let told = s.edge.ctl(&["model", "apply", &document.to_string_lossy()]);
    assert!(told.code != 0 && told.err.contains("umbel ctl node eligible gpu-1"), "{told:?}");
    let shown = s.shown();
    assert_eq!((&shown["ready"], &shown["replicas"][0]["state"]), (&json!(0), &json!("ready")), "{shown}");
    let refused = s.edge.chat("org/tiny", "none", false, &json!({})).whole(&s.edge.target()).unwrap();
    assert_eq!(refused.status, 503, "{}", refused.text());
    let _ = s.edge.ctl(&["node", "eligible", "gpu-1"]).ok();
    s.answers("org/tiny");
    s.wait("it to count", |one| one["state"] == "ready" && one["ready"] == 1);
}
