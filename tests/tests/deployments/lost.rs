//! Nodes that are lost: many together, one for good, and back again (rows 5, 72 and 83).

use super::*;

/// Two of three nodes lost together hold every replacement up and say so; one is back, and what it ran goes on as it was while
/// what the other had is replaced; that one comes back at last, and its engine, which nobody wants now, ends.
#[test]
fn nodes_lost_together_are_waited_for_and_one_that_stays_away_is_replaced() {
    let mut s = site(&["gpu-1", "gpu-2"]);
    s.apply("replicas = 2\nreplace_delay = \"1s\"\n");
    let third = s.start("gpu-3");
    s.nodes.push(third);
    let replicas = s.shown()["replicas"].clone();
    let engine_of = |node: &str| {
        let of = replicas.as_array().unwrap().iter().find(|one| one["node"] == node);
        of.unwrap()["engine"].as_str().unwrap().to_owned()
    };
    let kept = s.runs_as("gpu-2", &engine_of("gpu-2"));
    for node in &mut s.nodes[..2] {
        node.daemon.kill();
    }
    let held = "2 of 3 nodes were lost together";
    s.wait("replacements to be held", |one| one["message"].as_str().is_some_and(|text| text.contains(held)));
    let shown = s.shown();
    let lost = |one: &Value| one["state"] == "lost";
    assert!(shown["replicas"].as_array().unwrap().iter().all(lost), "{shown}");
    let listed = s.edge.ctl(&["model"]).ok();
    assert!(format!("{}{}", listed.out, listed.err).contains("lost together"), "{listed:?}");
    let why = s.edge.ctl(&["model", "why", "tiny"]);
    assert!(why.out.contains("gpu-1") && why.out.contains("offline"), "{}", why.out);

    s.nodes[1].daemon.start();
    let on = |shown: &Value, node: &str| {
        shown["replicas"].as_array().unwrap().iter().any(|one| one["node"] == node && one["state"] == "ready")
    };
    s.wait("the other two to serve", |one| one["state"] == "ready" && on(one, "gpu-2") && on(one, "gpu-3"));
    assert_eq!(s.runs_as("gpu-2", &engine_of("gpu-2")), kept, "what came back in time went on");
    s.answers("org/tiny");

    s.nodes[0].daemon.start();
    let gone = s.nodes[0].state.join(format!("engines/{}.json", engine_of("gpu-1")));
    wait::until("the engine that nobody wants any more to be gone", SOON, || !gone.exists());
    let shown = s.shown();
    assert!(shown["ready"] == 2 && !on(&shown, "gpu-1"), "{shown}");
}

/// A deployment that is deleted while its node is away, and applied anew as another model under its name; the edge is killed in
/// between. What comes back meets nothing of the other, and the old engine ends.
#[test]
fn row_72_a_name_goes_over_while_its_node_is_away() {
    let mut s = site(&["gpu-1"]);
    s.apply("");
    let (node, engine) = s.replica();
    let old = s.runs_as(&node, &engine);
    s.nodes[0].daemon.kill();
    s.edge.wait_node("gpu-1", "offline", SOON, |node| node["state"] == "offline");
    let told = s.edge.ctl(&["model", "delete", "tiny", "-m", "over", "--confirm", "tiny"]).ok().err;
    assert!(told.contains("tiny is gone"), "{told}");
    let document = s.document("");
    let text =
        std::fs::read_to_string(&document).unwrap().replace("model = \"org/tiny\"", "model = \"org/other\"");
    std::fs::write(&document, text).unwrap();
    let _ = s.edge.ctl(&["model", "apply", &document.to_string_lossy(), "--detach"]).ok();
    s.edge.daemon.kill();
    s.edge.start();
    s.nodes[0].daemon.start();
    let shown = s.wait("the new one to be ready", |one| one["state"] == "ready");
    assert_eq!(
        (&shown["model"], shown["replicas"][0]["failures"].as_u64()),
        (&json!("org/other"), None),
        "{shown}"
    );
    wait::until("only the new one to be left", SOON, || {
        s.engines().len() == 1 && !PathBuf::from(format!("/proc/{old}")).exists()
    });
    let got = s.edge.chat("org/other", "answers", true, &json!({})).whole(&s.edge.target()).unwrap();
    assert!(got.text().contains("[DONE]"), "{}", got.text());
}
