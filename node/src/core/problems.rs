//! What is wrong with this node, a sentence a code, each since when.
//!
//! Owns that a problem that goes on keeps its beginning. Leaves what is a problem to whoever says so. Invariant: at most
//! one a code; codes are the agent's own, so there are few.

use std::collections::BTreeMap;

use umbel_contracts::proto::node::NodeProblem;
use umbel_wire::clock::Wall;

/// Names that one problem lists; more are counted.
const LISTED: usize = 4;

/// Names in a sentence, of which there may be many: `a, b and 3 more`.
pub(crate) fn listed<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<&str> = names.collect();
    let shown = names.iter().take(LISTED).copied().collect::<Vec<_>>().join(", ");
    match names.len().saturating_sub(LISTED) {
        0 => shown,
        more => format!("{shown} and {more} more"),
    }
}

/// Problems by code.
#[derive(Debug, Default)]
pub(crate) struct Problems(BTreeMap<&'static str, NodeProblem>);

impl Problems {
    /// Says what is wrong under a code, or that it is right again.
    pub(crate) fn set(&mut self, code: &'static str, message: Option<String>, now: Wall) {
        match message {
            None => drop(self.0.remove(code)),
            Some(message) => {
                let new = || NodeProblem {
                    code: code.to_owned(),
                    message: String::new(),
                    since_unix_ms: now.unix_ms(),
                };
                self.0.entry(code).or_insert_with(new).message = message;
            }
        }
    }

    /// All of them, by code.
    pub(crate) fn all(&self) -> impl Iterator<Item = &NodeProblem> {
        self.0.values()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_names_stay_short() {
        assert_eq!(listed(["a", "b"].into_iter()), "a, b");
        assert_eq!(listed(["a", "b", "c", "d", "e", "f"].into_iter()), "a, b, c, d and 2 more");
    }

    #[test]
    fn one_that_goes_on_keeps_its_beginning() {
        let mut problems = Problems::default();
        problems.set("A", Some("first".into()), Wall(1));
        problems.set("A", Some("second".into()), Wall(2));
        let said: Vec<_> = problems.all().map(|one| (one.message.as_str(), one.since_unix_ms)).collect();
        assert_eq!(said, [("second", 1)]);

        problems.set("A", None, Wall(3));
        assert_eq!(problems.all().count(), 0);
        problems.set("A", Some("again".into()), Wall(4));
        assert_eq!(problems.all().map(|one| one.since_unix_ms).collect::<Vec<_>>(), [4]);
    }
}
