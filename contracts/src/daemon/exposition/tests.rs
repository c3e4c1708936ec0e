//! What all daemons say of themselves reads back, in both formats; what must not be is refused.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use super::*;

#[derive(Debug)]
struct Everything;

impl Collector for Everything {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let odd = Peer { name: "a \"b\\c\nd".to_owned(), up: true, heard: Some(Wall(1_500)) };
        let silent = Peer { name: "silent".to_owned(), up: false, heard: None };
        peers(&mut encoder, "edge", &[odd, silent])?;
        certificates(&mut encoder, [("link", Wall(2_000))])?;
        let reloads = |scope, applied| Reloads { scope, applied, refused: 4 };
        settings(&mut encoder, 7, &[reloads("site", 1), reloads("file", 2)])?;
        store(&mut encoder, std::path::Path::new("/nowhere"), &[0.1, 1.0], &[1, 2, 3], 4.5)
    }
}

fn text(format: TextFormat) -> String {
    let mut registry = Registry::default();
    registry.register_collector(Box::new(Vitals::new("node")));
    registry.register_collector(Box::new(Everything));
    let mut text = String::new();
    encode_to(&registry, format, &mut text).unwrap();
    text
}

#[test]
fn both_formats_say_the_same() {
    let (open, kinds) = read(&text(TextFormat::OpenMetrics)).unwrap();
    let (plain, plain_kinds) = read(&text(TextFormat::Plain)).unwrap();
    assert_eq!(kinds, plain_kinds);
    let named = |samples: &[Sample]| -> Vec<(String, Vec<(String, String)>)> {
        samples.iter().map(|one| (one.name.clone(), one.labels.clone())).collect()
    };
    assert_eq!(named(&open), named(&plain));
    let value = |name: &str, labels: &[(&str, &str)]| {
        open.iter().find(|one| one.name == name && one.has(labels)).map(|one| one.value)
    };
    assert_eq!(value("umbel_build_info", &[("role", "node")]), Some(1.0));
    assert_eq!(value("umbel_peer_up", &[("peer", "edge"), ("name", "a \"b\\c\nd")]), Some(1.0));
    let contact = "umbel_peer_last_contact_timestamp_seconds";
    assert_eq!(value(contact, &[("name", "a \"b\\c\nd")]), Some(1.5));
    assert_eq!(value(contact, &[("name", "silent")]), None);
    let reloads = |scope, result| value("umbel_config_reload_total", &[("scope", scope), ("result", result)]);
    assert_eq!((reloads("site", "ok"), reloads("file", "rejected")), (Some(1.0), Some(4.0)));
    assert_eq!(value("umbel_store_commit_seconds_bucket", &[("le", "+Inf")]), Some(6.0));
    assert_eq!(kinds["umbel_config_reload_total"], "counter");
}

#[test]
fn what_prometheus_would_not_take_is_an_error() {
    let head = "# HELP a_total Things.\n# TYPE a_total counter\n";
    assert!(read(&format!("{head}a_total{{x=\"1\"}} 1\n")).is_ok());
    for wrong in [
        "a_total 1\na_total 1\n",
        "a_total{x=\"1\",x=\"2\"} 1\n",
        "a_total{x=\"1} 1\n",
        "a_total{x=\"\\q\"} 1\n",
        "a_total one\n",
        "b 1\n",
        "a_total_bucket 1\n",
        "# TYPE a_total counter\n",
        "# TYPE c gauge\n",
        "# HELP c Things.\n# TYPE c_total gauge\n",
    ] {
        assert!(read(&format!("{head}{wrong}")).is_err(), "{wrong}");
    }
}
