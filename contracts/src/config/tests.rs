//! Strict configuration: places, suggestions, units.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use std::time::Duration;

use serde::Deserialize;

use super::*;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "only parsed")]
struct Edge {
    site: String,
    #[serde(default)]
    queue: Queue,
    #[serde(default)]
    engine: Vec<Engine>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "only parsed")]
struct Queue {
    max_requests: Option<u32>,
    max_wait: Option<HumanDuration>,
    held_max: Option<ByteSize>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
#[allow(dead_code, reason = "only parsed")]
struct Engine {
    model: String,
}

fn error(text: &str) -> String {
    ConfigFile::from_text(Path::new("edge.toml"), text).parse::<Edge>().unwrap_err().to_string()
}

#[test]
fn an_unknown_key_is_named_with_its_place_and_the_likely_one() {
    assert_eq!(
        error("site = \"a\"\n[queue]\n  max_reqests = 5\n"),
        "edge.toml:3:3: unknown key \"max_reqests\", did you mean \"max_requests\"?"
    );
    assert_eq!(
        error("site = \"a\"\ncolour = 1\n"),
        "edge.toml:2:1: unknown key \"colour\"; known here: site, queue, engine"
    );
}

#[test]
fn other_mistakes_have_a_place_too() {
    assert!(
        error("site = \"a\"\n[queue]\nmax_wait = \"30\"\n")
            .starts_with("edge.toml:3:12: queue.max_wait: write \"30s\"")
    );
    assert_eq!(
        error("site = \"a\"\n[queue]\nmax_wait = 30\n"),
        "edge.toml:3:12: queue.max_wait: must be a duration in quotes, such as \"30s\", not 30"
    );
    assert_eq!(
        error("site = \"a\"\n[queue]\nmax_requests = \"secret\"\n"),
        "edge.toml:3:16: queue.max_requests: must be a whole number from 0 to 4294967295, not a text"
    );
    assert_eq!(error("site = 5\n"), "edge.toml:1:8: site: must be a text, in quotes, not 5");
    assert!(error("site = \"a\"\n[[engine]]\n").contains("engine[0].model: is missing"));
    assert!(error("site = \n").starts_with("edge.toml:1:8: "));
    assert!(error("").contains("site: is missing"));
}

#[test]
fn a_rule_between_keys_can_point_at_one() {
    let text =
        "site = \"a\"\n[queue]\nmax_requests = 0\n[[engine]]\nmodel = \"m\"\n[[engine]]\nmodel = \"m\"\n";
    let file = ConfigFile::from_text(Path::new("edge.toml"), text);
    let at = |key: &str| file.error(key, "is wrong").place;
    assert_eq!(
        file.error("queue.max_requests", "is wrong").to_string(),
        "edge.toml:3:1: queue.max_requests: is wrong"
    );
    assert_eq!(at("engine[1].model"), Some((7, 1)));
    assert_eq!(at("queue.absent"), Some((2, 2)));
    assert_eq!(at("absent.key"), None);
}

#[test]
fn a_file_that_is_none_is_told_so() {
    let error = load::<Edge>(Path::new("/nowhere/edge.toml")).unwrap_err();
    assert!(error.to_string().starts_with("/nowhere/edge.toml: cannot be read"), "{error}");
}

#[test]
fn units_are_written_out() {
    for (text, milliseconds) in
        [("250ms", 250), ("30s", 30_000), ("15m", 900_000), ("2d", 172_800_000), ("0", 0)]
    {
        assert_eq!(text.parse(), Ok(HumanDuration(Duration::from_millis(milliseconds))), "{text}");
    }
    for bad in ["", "30", "s", "1.5s", "-1s", " 1s", "1 s", "99999999999999999999s", "9999999999999999999d"] {
        assert!(bad.parse::<HumanDuration>().is_err(), "{bad}");
    }
    assert_eq!("64MiB".parse(), Ok(ByteSize(64 << 20)));
    assert!("64MB".parse::<ByteSize>().is_err());
}

quickcheck::quickcheck! {
    fn durations_and_sizes_survive_their_text(value: u64) -> bool {
        let duration = HumanDuration(Duration::from_millis(value));
        duration.to_string().parse() == Ok(duration) && ByteSize(value).to_string().parse() == Ok(ByteSize(value))
    }

    fn arbitrary_text_never_panics(text: String) -> bool {
        let file = ConfigFile::from_text(Path::new("x.toml"), text.clone());
        let _ = file.parse::<Edge>();
        let _ = file.error(&text, "x");
        true
    }
}
