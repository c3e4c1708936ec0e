//! Selectors: grammar, positions, matching, and arbitrary text.
#![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]

use quickcheck::{Arbitrary, Gen, quickcheck};

use super::*;

fn matches(selector: &str) -> bool {
    let labels = BTreeMap::from([("rack".to_owned(), "r7".to_owned()), ("empty".to_owned(), String::new())]);
    let candidate = Candidate {
        node_id: "7b1c",
        name: "gpu-04",
        labels: &labels,
        models: &["qwen3-32b", "org/model:tag"],
        gpus: &["NVIDIA H200", "NVIDIA A100-SXM4-80GB"],
    };
    Selector::parse(selector).unwrap().matches(&candidate)
}

#[test]
fn every_term_must_hold() {
    for yes in [
        "all",
        "node:gpu-04",
        "node:7b1c",
        "label:rack=r7",
        "label:empty=",
        "model:org/model:tag",
        "gpu:*h200",
        "gpu:nvidia ?100*",
        " all , node:gpu-04,label:rack=r7",
    ] {
        assert!(matches(yes), "{yes}");
    }
    for no in
        ["node:gpu", "node:GPU-04", "label:rack=r8", "model:qwen3", "gpu:h200", "gpu:?", "all,node:other"]
    {
        assert!(!matches(no), "{no}");
    }
}

#[test]
fn an_error_says_where_and_what() {
    for (text, position, words) in [
        ("", 1, "a term is missing"),
        ("all,", 5, "a term is missing"),
        ("gpu-04", 1, "node:gpu-04"),
        ("all,  nod:x", 7, "none of node"),
        ("all,node:", 5, "nothing follows"),
        ("ä:x", 1, "none of node"),
        ("node:ä,label:x", 8, "label:KEY=VALUE"),
    ] {
        let error = Selector::parse(text).unwrap_err();
        assert_eq!(error.position, position, "{text}: {error}");
        assert!(error.problem.contains(words), "{text}: {error}");
    }
    assert!(Selector::parse(&"x".repeat(LONGEST + 1)).is_err());
    assert!(Selector::parse(&vec!["all"; MOST_TERMS + 1].join(",")).is_err());
}

impl Arbitrary for Selector {
    fn arbitrary(g: &mut Gen) -> Self {
        let word = |g: &mut Gen| -> String {
            let letters = ['a', 'Z', '7', '-', '/', ':', '*', '?', '.', 'é'];
            (0..=u8::arbitrary(g) % 6).map(|_| *g.choose(&letters).unwrap()).collect()
        };
        let count = u8::arbitrary(g) % 4 + 1;
        let terms = (0..count).map(|_| match u8::arbitrary(g) % 5 {
            0 => Term::All,
            1 => Term::Node(word(g)),
            2 => Term::Label { key: word(g), value: word(g) },
            3 => Term::Model(word(g)),
            _ => Term::Gpu(word(g)),
        });
        Self { terms: terms.collect() }
    }
}

quickcheck! {
    fn what_is_printed_parses_to_the_same(selector: Selector) -> bool {
        Selector::parse(&selector.to_string()) == Ok(selector)
    }

    fn arbitrary_text_never_panics(text: String) -> bool {
        Selector::parse(&text).map_or(true, |selector| Selector::parse(&selector.to_string()) == Ok(selector))
    }

    fn a_glob_agrees_with_its_definition(pattern: Vec<u8>, name: Vec<u8>) -> bool {
        let draw = |bytes: Vec<u8>, from: &[char]| -> Vec<char> {
            bytes.into_iter().take(8).map(|byte| from[usize::from(byte) % from.len()]).collect()
        };
        let (pattern, name) = (draw(pattern, &['a', 'b', '*', '?']), draw(name, &['a', 'b']));
        glob(&pattern.iter().collect::<String>(), &name.iter().collect::<String>()) == by_definition(&pattern, &name)
    }
}

fn by_definition(pattern: &[char], name: &[char]) -> bool {
    match (pattern.split_first(), name.split_first()) {
        (None, None) => true,
        (Some(('*', rest)), None) => by_definition(rest, name),
        (Some(('*', rest)), Some((_, fewer))) => by_definition(rest, name) || by_definition(pattern, fewer),
        (Some((wanted, rest)), Some((found, fewer))) => {
            (*wanted == '?' || wanted == found) && by_definition(rest, fewer)
        }
        _ => false,
    }
}
