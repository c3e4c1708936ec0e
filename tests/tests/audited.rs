//! What people do to models, engines, files and jobs leaves an entry in the site's audit: who, what, to what, what it was before
//! and is now, and why; also what was refused.

use serde_json::Value;
use umbel_tests::fleet::{EdgeOptions, SOON};
use umbel_tests::hub::Fault;
use umbel_tests::wait;

use crate::artifacts::{MIB, Site, site};
use crate::records::lines;

impl Site {
    /// The entries of an action, oldest first.
    fn entries(&self, action: &str) -> Vec<Value> {
        lines(&self.edge.ctl(&["audit", "--action", action, "-n", "200", "-o", "jsonl"]).ok().out)
    }

    /// The last entry of an action, with what it is about and why.
    #[track_caller]
    fn last(&self, action: &str, about: &str, reason: &str) {
        let entries = self.entries(action);
        let last = entries.last().unwrap_or_else(|| panic!("no entry of {action}"));
        assert_eq!((&last["actor"], &last["outcome"]), (&"local".into(), &"succeeded".into()), "{last}");
        assert!(last["subject"].as_str().unwrap().contains(about), "{about}: {last}");
        assert_eq!(last["reason"], reason, "{last}");
        assert!(last["command_id"].is_string() && last["at"].is_string(), "{last}");
    }

    #[track_caller]
    fn does(&self, words: &[&str]) {
        let _ = self.edge.ctl(words).ok();
    }
}

#[test]
fn whatever_people_do_to_models_is_in_the_audit() {
    let s = site(&["gpu-1"], &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    let document = s.model("tiny", MIB, "");
    s.hub.fault("model.gguf", Fault::Hold(1 << 19), 1);
    let id = s.begun(&document);
    s.last("artifact.acquire", &id, "artifact.acquire org/tiny@r1 on gpu-1");
    s.wait_bytes(&id, MIB / 2);
    s.does(&["job", "cancel", &id, "-m", "wrong revision"]);
    s.last("job.cancel", &id, "artifact.acquire org/tiny@r1 on gpu-1 was running: wrong revision");
    wait::until("the job has ended", SOON, || s.job(&id)["state"] == "cancelled");
    s.hub.let_go();
    let ended = s.entries("job.ended").pop().unwrap();
    assert_eq!((&ended["actor"], &ended["outcome"]), (&"edge".into(), &"cancelled".into()), "{ended}");
    assert!(
        ended["reason"].as_str().unwrap().starts_with("artifact.acquire org/tiny@r1 on gpu-1"),
        "{ended}"
    );

    s.does(&["model", "apply", &document, "-m", "for the webshop"]);
    s.last("deployment.apply", "tiny", "new: 1 replicas of tiny: for the webshop");
    let begun = s.entries("job.submit");
    let load = begun.iter().find(|entry| entry["reason"].as_str().unwrap().starts_with("deployment.load"));
    assert_eq!(load.unwrap()["reason"], "deployment.load tiny.r1 on gpu-1, for tiny");
    let changed = s.model("tiny", MIB, "capacity = 3\n");
    s.does(&["model", "apply", &changed, "-m", "more at once"]);
    s.last("deployment.apply", "tiny", "capacity not set -> 3: more at once");
    let refused = s.edge.ctl(&["artifact", "remove", "org/tiny", "-m", "old"]);
    assert_eq!(refused.code, 7, "{refused:?}");
    let entry = s.entries("artifact.remove").pop().unwrap();
    assert_eq!(
        (&entry["outcome"], &entry["actor"]),
        (&"refused: CONFLICT".into(), &"local".into()),
        "{entry}"
    );
    assert_eq!(entry["subject"], "all org/tiny", "{entry}");
    assert!(entry["reason"].as_str().unwrap().ends_with("(asked for: old)"), "{entry}");

    s.does(&["engine", "stop", "tiny.r1", "--deadline", "5s", "-m", "bad GPU"]);
    let what = "tiny.r1 on gpu-1 was ready, is stopped, its requests may take 5 s: bad GPU";
    s.last("engine.stop", "/tiny.r1", what);
    s.does(&["engine", "restart", "tiny.r1", "-m", "GPU is well"]);
    s.last("engine.restart", "/tiny.r1", "tiny.r1 on gpu-1 was stopped, is restarted: GPU is well");

    s.does(&["model", "drain", "tiny", "--deadline", "30s", "-m", "new hardware", "--detach"]);
    let gone = "its 1 replicas are not wanted until it is loaded; their requests may take 30 s: new hardware";
    s.last("deployment.drain", "tiny", gone);
    s.does(&["model", "load", "tiny", "-m", "it is here", "--detach"]);
    s.last("deployment.load", "tiny", "its replicas were not wanted, and are: it is here");
    s.does(&["model", "restart", "tiny", "-m", "a new driver", "--detach"]);
    let restarted = s.entries("deployment.restart").pop().unwrap();
    assert!(
        restarted["reason"].as_str().unwrap().ends_with("one after the other: a new driver"),
        "{restarted}"
    );
    s.does(&["model", "unload", "tiny", "-m", "at once"]);
    assert!(
        s.entries("deployment.unload")[0]["reason"].as_str().unwrap().ends_with("are broken off: at once")
    );
    s.does(&["model", "delete", "tiny", "-m", "over", "--confirm", "tiny"]);
    s.last("deployment.delete", "tiny", "its 0 replicas go, and then it goes: over");
    s.does(&["artifact", "remove", "org/tiny", "-m", "out of use"]);
    s.last("artifact.remove", "", "artifact.remove org/tiny@r1 on gpu-1: out of use");
    let whole = s.edge.ctl(&["audit", "verify", "-o", "json"]).ok().json();
    assert_eq!(whole["whole"], true, "{whole}");
    assert_eq!((s.nodes.len(), s.fleet.dir().is_dir()), (1, true));
}
