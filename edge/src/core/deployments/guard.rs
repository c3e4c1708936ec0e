//! The guard against replacing half a site: many nodes lost together are a network or a power cut, not many broken hosts.
//!
//! Invariant: it holds from the moment in which more than a third of the nodes, and at least two, were lost within five
//! minutes, until no more than a third are lost; nodes that people take away are not counted.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use umbel_wire::NodeId;

use super::facts::{Facts, Standing};

/// Nodes lost within this time are lost together.
const WINDOW: Duration = Duration::from_secs(300);
/// One lost node is no mass loss, however small the site.
const LEAST: usize = 2;

/// What holds replacements up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) lost: usize,
    pub(crate) of: usize,
    pub(crate) since_unix_ms: i64,
}

impl Held {
    /// For people.
    pub(crate) fn sentence(&self) -> String {
        format!(
            "{} of {} nodes were lost together, which looks like a network or power cut: nothing is replaced until some are \
             back; disable the nodes that will not come back",
            self.lost, self.of
        )
    }
}

#[derive(Clone, Debug, Default)]
pub(super) struct Guard {
    held: Option<Held>,
    /// People were told that it holds.
    told: bool,
}

impl Guard {
    pub(super) fn held(&self) -> Option<&Held> {
        self.held.as_ref()
    }

    /// What it saw in a round that was not stored: whether it holds, but not that people were told.
    pub(super) fn saw(&mut self, held: Option<Held>) {
        self.held = held;
    }

    /// Looks at what is lost now; whether people are to be told that it began or ended to hold.
    pub(super) fn look(&mut self, lost: &BTreeMap<NodeId, Instant>, facts: &Facts) -> bool {
        let of = facts.nodes.values().filter(|node| node.standing != Standing::Gone).count();
        let many = |count: usize| count >= LEAST && count * 3 > of;
        let together =
            lost.values().filter(|since| facts.now.saturating_duration_since(**since) < WINDOW).count();
        match &mut self.held {
            Some(held) if many(lost.len()) => (held.lost, held.of) = (lost.len(), of),
            Some(_) => self.held = None,
            None if many(together) => {
                self.held = Some(Held { lost: lost.len(), of, since_unix_ms: facts.wall });
            }
            None => {}
        }
        std::mem::replace(&mut self.told, self.held.is_some()) != self.held.is_some()
    }
}
