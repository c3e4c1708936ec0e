//! Versions, what nodes are sent of them, and what is told of their answers.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]

use quickcheck::quickcheck;
use serde_json::json;
use umbel_contracts::operations::SettingsChange;
use umbel_wire::NodeId;

use super::*;

fn author() -> Author {
    Author { name: "ann".to_owned(), reason: "because".to_owned(), at_unix_ms: 1 }
}

fn change(path: &str, value: Value) -> SettingsSetArgs {
    let changes = vec![SettingsChange { path: path.to_owned(), value }];
    SettingsSetArgs { changes, ..SettingsSetArgs::default() }
}

struct Site {
    row: DocumentRow,
    history: Vec<VersionRow>,
    node: NodeId,
}

impl Site {
    fn new() -> Self {
        Self { row: DocumentRow::default(), history: Vec::new(), node: NodeId::random() }
    }

    fn set(&mut self, args: &SettingsSetArgs) -> Result<u64, Error> {
        let id = self.node.to_string();
        let find = |name: &str| (name == "gpu-1" || name == id).then(|| id.clone());
        let document = wanted(&self.row, args, &find)?;
        let proposal = propose(&self.row, document, None, author())?;
        if !proposal.is_empty() {
            self.history.push(proposal.version.clone());
        }
        self.row = proposal.row;
        Ok(self.row.version)
    }

    fn desired(&self) -> Desired {
        Targets::new(&self.row).of(&self.node)
    }
}

#[test]
fn a_nodes_version_moves_only_with_what_it_is_told() {
    let mut site = Site::new();
    assert_eq!(site.desired(), Desired::default());
    assert_eq!(site.set(&change("edge.queue.max_wait", json!("5s"))).unwrap(), 1);
    assert_eq!(site.desired().version, 0);
    assert_eq!(site.set(&change("agents.default.log.level", json!("debug"))).unwrap(), 2);
    assert_eq!(site.desired().version, 2);
    let before = site.desired();
    assert_eq!(site.set(&change("agents.nodes.gpu-1.labels.rack", json!("r1"))).unwrap(), 3);
    assert_eq!(site.desired().version, 3);
    assert_ne!(site.desired().digest, before.digest);
    assert_eq!(site.set(&change("edge.queue.max_wait", json!("6s"))).unwrap(), 4);
    assert_eq!(site.desired().version, 3);
    let (sent, json) = site.row.sent_to(&site.node);
    assert_eq!(sent, site.desired());
    assert_eq!(json, br#"{"labels":{"rack":"r1"},"log":{"level":"debug"}}"#);
    // Taken away again: the digest is that of the default, under a newer version.
    assert_eq!(site.set(&change("agents.nodes.gpu-1", Value::Null)).unwrap(), 5);
    assert_eq!(site.desired(), Desired { version: 5, digest: before.digest });
    // Nothing changes: no version.
    assert_eq!(site.set(&change("agents.default.log.level", json!("debug"))).unwrap(), 5);
    assert_eq!(document_of(&site.row, &site.history, 0).unwrap(), json!({}));
    assert_eq!(
        document_of(&site.row, &site.history, 1).unwrap(),
        json!({ "edge": { "queue": { "max_wait": "5s" } } })
    );
    assert_eq!(document_of(&site.row, &[], 4).unwrap_err().code, Code::NotFound);
}

/// Row 81: bad values never become a version.
#[test]
fn row_81_what_is_wrong_makes_no_version() {
    let mut site = Site::new();
    for (path, value) in [
        ("edge.queue.max_wait", json!("0s")),
        ("agents.default.engines.chat.capacity", json!(-1)),
        ("agents.default.engines.chat.capacity", json!(1_000_000_000)),
        ("agents.default.engines.chat.aliases", json!(["a", "a"])),
        ("agents.default.programs.llama_server", json!("/bin/sh")),
    ] {
        let error = site.set(&change(path, value)).unwrap_err();
        assert_eq!(error.code, Code::InvalidArgument);
        assert!(error.message.starts_with(path.trim_end_matches(".llama_server")), "{}", error.message);
    }
    let unknown = site.set(&change("agents.nodes.gpu-9.log.level", json!("info"))).unwrap_err();
    assert_eq!(unknown.code, Code::NotFound);
    let stale = SettingsSetArgs { base_version: Some(3), ..change("edge.log.level", json!("info")) };
    assert_eq!(site.set(&stale).unwrap_err().reason, "SETTINGS_CHANGED");
    assert_eq!(site.row, DocumentRow::default());
}

/// Row 78: one that was refused is not sent again until its version changes.
#[test]
fn row_78_refused_settings_are_not_sent_again() {
    let mut node = NodeSettings::default();
    assert_eq!(node.to_send(), None);
    node.desired = Desired { version: 2, digest: [2; 32] };
    assert_eq!((node.to_send(), node.rollout(false)), (None, Rollout::Pending));
    assert_eq!(node.rollout(true), Rollout::Unsupported);
    assert!(node.config(true).refusal.contains("too old"));
    node.take(Reported::default());
    assert_eq!(node.to_send(), Some(node.desired));
    let refused = Reported { refused: 2, refusal: "no".to_owned(), ..Reported::default() };
    assert_eq!(node.take(refused.clone()).unwrap().kind, "settings_refused");
    assert_eq!(node.take(refused), None);
    assert_eq!((node.to_send(), node.rollout(true)), (None, Rollout::Refused));
    node.desired.version = 3;
    assert_eq!((node.to_send(), node.rollout(true)), (Some(node.desired), Rollout::Pending));
    let trial = Reported { applied: 3, digest: [2; 32], confirming: true, refused: 2, ..Reported::default() };
    assert_eq!(node.take(trial.clone()), None);
    assert_eq!(node.rollout(true), Rollout::Confirming);
    let back =
        Reported { applied: 0, refused: 3, refusal: "engine chat failed".to_owned(), ..Reported::default() };
    assert_eq!(node.clone().take(back).unwrap().kind, "settings_rolled_back");
    let good = Reported { confirming: false, ..trial };
    assert_eq!(node.take(good).unwrap().kind, "settings_applied");
    assert_eq!(node.rollout(true), Rollout::Applied);
    // The same number with another content, as after a restored backup, is sent.
    node.desired.digest = [9; 32];
    assert!(node.to_send().is_some());
}

#[test]
fn a_whole_document_may_name_nodes_and_stores_their_ids() {
    let mut site = Site::new();
    let document = json!({ "agents": { "nodes": { "gpu-1": { "log": { "level": "warn" } } } } });
    let args = SettingsSetArgs { document: Some(document), ..SettingsSetArgs::default() };
    site.set(&args).unwrap();
    assert!(settings::nodes_of(&site.row.document).any(|(id, _)| *id == site.node.to_string()));
}

quickcheck! {
    // Versions only grow, and every one of them can be had again.
    fn the_history_leads_back_to_each_version(steps: Vec<(u8, u8)>) -> bool {
        let mut site = Site::new();
        let mut documents = vec![json!({})];
        for (which, value) in steps.into_iter().take(40) {
            let path = ["edge.queue.max_requests", "agents.default.engines.a.capacity", "agents.nodes.gpu-1.engines.b.tokens"]
                [usize::from(which % 3)];
            let value = if value % 5 == 0 { Value::Null } else { json!(value % 5) };
            let before = site.row.version;
            let now = site.set(&change(path, value)).unwrap();
            if now > before {
                documents.push(site.row.document.clone());
            }
        }
        documents.iter().enumerate().all(|(version, document)| {
            document_of(&site.row, &site.history, version as u64).unwrap() == *document
        }) && site.row.version + 1 == documents.len() as u64
    }
}
