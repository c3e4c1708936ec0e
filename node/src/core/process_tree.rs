//! Which processes belong to an engine.
//!
//! Owns the rule; leaves reading `/proc` and signals to `shell/process`. Invariant: a process is only ever called a
//! member for a reason that an unrelated process cannot have: it descends from the engine, shares its process group
//! or session, or carries its nonce.

use std::collections::{BTreeMap, BTreeSet};

/// A process id of this host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub(crate) struct ProcessId(pub(crate) i32);

/// When a process started, in clock ticks since boot: with its id (and the boot) it names one process for ever.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub(crate) struct StartTime(pub(crate) u64);

/// What `/proc/PID/stat` says of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessFacts {
    pub(crate) id: ProcessId,
    pub(crate) parent: ProcessId,
    pub(crate) group: ProcessId,
    pub(crate) session: ProcessId,
    pub(crate) start: StartTime,
    /// It has ended and waits to be reaped.
    pub(crate) zombie: bool,
}

/// Reads one `/proc/PID/stat`. The name in the second field may hold anything, spaces and parentheses included.
pub(crate) fn parse_stat(text: &str) -> Option<ProcessFacts> {
    let (id, rest) = text.split_once(' ')?;
    let (_, rest) = rest.rsplit_once(") ")?;
    let mut fields = rest.split_ascii_whitespace();
    let state = fields.next()?;
    let parent = fields.next()?.parse().ok()?;
    let group = fields.next()?.parse().ok()?;
    let session = fields.next()?.parse().ok()?;
    // Fields are counted from 1 and the state is the third; the start time is the 22nd.
    let start = fields.nth(15)?.parse().ok()?;
    Some(ProcessFacts {
        id: ProcessId(id.parse().ok()?),
        parent: ProcessId(parent),
        group: ProcessId(group),
        session: ProcessId(session),
        start: StartTime(start),
        zombie: matches!(state, "Z" | "X" | "x"),
    })
}

/// One process for ever, within one start of the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Born {
    pub(crate) pid: ProcessId,
    pub(crate) start_time: StartTime,
}

impl Born {
    /// Nobody yet.
    pub(crate) const NOBODY: Self = Self { pid: ProcessId(0), start_time: StartTime(0) };

    /// Whether these facts are about that very process.
    pub(crate) fn is(self, facts: &ProcessFacts) -> bool {
        self.pid.0 > 0 && facts.id == self.pid && facts.start == self.start_time
    }
}

impl Default for Born {
    fn default() -> Self {
        Self::NOBODY
    }
}

/// One engine's processes over time.
#[derive(Debug)]
pub(crate) struct Family {
    /// Those whose group or session was made for the engine: its holder and its first process.
    roots: Vec<Born>,
    /// Everything that was ever seen to belong, so that it still does when its parents are gone.
    known: BTreeMap<ProcessId, StartTime>,
}

impl Family {
    /// The family of these; nobody among them is left out.
    pub(crate) fn new(roots: &[Born]) -> Self {
        let roots: Vec<Born> = roots.iter().copied().filter(|root| root.pid.0 > 0).collect();
        let known = roots.iter().map(|root| (root.pid, root.start_time)).collect();
        Self { roots, known }
    }

    /// The living members among `all`, `agent` never. `marked` says of a process whether it carries the nonce; it is
    /// asked only where nothing else decides.
    pub(crate) fn members(
        &mut self,
        all: &[ProcessFacts],
        agent: ProcessId,
        mut marked: impl FnMut(ProcessId) -> bool,
    ) -> Vec<ProcessFacts> {
        let mut found: BTreeSet<ProcessId> = BTreeSet::new();
        let oldest = self.roots.iter().map(|root| root.start_time).min().unwrap_or(StartTime(0));
        // A group or session id that is reused belongs to a process younger than the root as well, but the kernel gives
        // out no pid that is still somebody's group or session.
        let led = |facts: &ProcessFacts| {
            self.roots.iter().any(|root| {
                (facts.group == root.pid || facts.session == root.pid) && facts.start >= root.start_time
            })
        };
        for facts in all {
            let known = self.known.get(&facts.id) == Some(&facts.start);
            if facts.id != agent && (known || led(facts) || (facts.start >= oldest && marked(facts.id))) {
                found.insert(facts.id);
            }
        }
        // Descendants, until nothing is added: a listing of `/proc` is not ordered by birth once pids wrap.
        loop {
            let before = found.len();
            for facts in all {
                if found.contains(&facts.parent) && facts.id != agent {
                    found.insert(facts.id);
                }
            }
            if found.len() == before {
                break;
            }
        }
        let members: Vec<ProcessFacts> =
            all.iter().filter(|facts| found.contains(&facts.id)).copied().collect();
        self.known = members.iter().map(|facts| (facts.id, facts.start)).collect();
        members.into_iter().filter(|facts| !facts.zombie).collect()
    }
}

/// Longest way up that is followed from a process to an engine.
const ANCESTORS: usize = 64;

/// An engine's first process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Leader {
    /// The engine's name.
    pub(crate) engine: String,
    pub(crate) id: ProcessId,
    pub(crate) start: StartTime,
    /// Stands in the environment of all that it starts.
    pub(crate) nonce: String,
}

/// The engine that a process belongs to. `facts` says what is known of a process, `marked` whether it carries a nonce;
/// that is asked only where nothing else decides.
pub(crate) fn owner(
    id: ProcessId,
    leaders: &[Leader],
    facts: impl Fn(ProcessId) -> Option<ProcessFacts>,
    marked: impl Fn(ProcessId, &str) -> bool,
) -> Option<&str> {
    let mut at = id;
    for _ in 0..ANCESTORS {
        let Some(now) = facts(at) else { break };
        let is_of = |leader: &&Leader| {
            let itself = now.id == leader.id && now.start == leader.start;
            let group = now.group == leader.id || now.session == leader.id;
            itself || (group && now.start >= leader.start)
        };
        if let Some(leader) = leaders.iter().find(is_of) {
            return Some(&leader.engine);
        }
        if now.parent.0 <= 1 {
            break;
        }
        at = now.parent;
    }
    leaders.iter().find(|leader| marked(id, &leader.nonce)).map(|leader| leader.engine.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_owner_is_found_up_the_tree_by_group_or_by_nonce() {
        let all =
            [process(1, 0, 1, 0), process(20, 10, 20, 50), process(21, 20, 20, 51), process(22, 21, 22, 52)];
        let stray = [process(30, 1, 30, 60), process(31, 1, 20, 40), process(32, 1, 20, 70)];
        let facts = |id| all.iter().chain(&stray).find(|facts| facts.id == id).copied();
        let leader =
            Leader { engine: "chat".into(), id: ProcessId(20), start: StartTime(50), nonce: "n".into() };
        let leaders = [leader];
        let owner_of = |id| owner(ProcessId(id), &leaders, facts, |id, nonce| id.0 == 30 && nonce == "n");
        assert_eq!([20, 21, 22].map(owner_of), [Some("chat"); 3]);
        assert_eq!(owner_of(30), Some("chat"), "by its nonce");
        assert_eq!(owner_of(32), Some("chat"), "by its group");
        assert_eq!((owner_of(31), owner_of(1), owner_of(99)), (None, None, None));
    }

    fn born(pid: i32, start: u64) -> Born {
        Born { pid: ProcessId(pid), start_time: StartTime(start) }
    }

    fn process(id: i32, parent: i32, group: i32, start: u64) -> ProcessFacts {
        ProcessFacts {
            id: ProcessId(id),
            parent: ProcessId(parent),
            group: ProcessId(group),
            session: ProcessId(1),
            start: StartTime(start),
            zombie: false,
        }
    }

    fn ids(members: &[ProcessFacts]) -> Vec<i32> {
        members.iter().map(|facts| facts.id.0).collect()
    }

    #[test]
    fn reads_a_stat_line_with_an_evil_name() {
        let line =
            "42 (a) S (b)) R 7 42 40 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 98765 1000 2 18446744073709551615";
        let facts = parse_stat(line).unwrap();
        assert_eq!((facts.id, facts.parent, facts.group), (ProcessId(42), ProcessId(7), ProcessId(42)));
        assert_eq!((facts.session, facts.start, facts.zombie), (ProcessId(40), StartTime(98765), false));
        assert_eq!(parse_stat("42 (x) R 1"), None);
        assert_eq!(parse_stat(""), None);
    }

    /// Row 82: children, one that left the group, and one whose parents are gone.
    #[test]
    fn row_82_children_that_left_the_group_belong() {
        let agent = process(10, 1, 10, 1);
        let mut family = Family::new(&[born(20, 50)]);
        let first = [
            agent,
            process(20, 10, 20, 50),
            process(21, 20, 20, 51),
            process(22, 21, 22, 52),
            process(30, 10, 30, 60),
        ];
        assert_eq!(ids(&family.members(&first, agent.id, |_| false)), [20, 21, 22]);
        // The leader and the middle one died; the stray one is now a child of the agent and still known.
        let second = [agent, process(22, 10, 22, 52), process(23, 22, 23, 70), process(30, 10, 30, 60)];
        assert_eq!(ids(&family.members(&second, agent.id, |_| false)), [22, 23]);
        // Its id was given to another process since.
        let third = [agent, process(22, 10, 22, 99)];
        assert!(family.members(&third, agent.id, |_| false).is_empty());
    }

    #[test]
    fn a_nonce_names_a_member_that_was_never_seen() {
        let agent = process(10, 1, 10, 1);
        let mut family = Family::new(&[born(20, 50)]);
        let all = [agent, process(40, 1, 40, 60), process(41, 1, 41, 61), process(42, 1, 42, 3)];
        assert_eq!(ids(&family.members(&all, agent.id, |id| id.0 != 41)), [40]);
    }

    /// Row 82: what an engine starts stays in its holder's session, whatever group it goes to.
    #[test]
    fn row_82_the_holders_session_is_the_engines() {
        let agent = process(10, 1, 10, 1);
        let mut family = Family::new(&[born(19, 49), born(20, 50), Born::NOBODY]);
        let of_the_session =
            |id, group, start| ProcessFacts { session: ProcessId(19), ..process(id, 1, group, start) };
        let mut all = vec![agent, of_the_session(19, 19, 49), of_the_session(20, 20, 50)];
        all.extend([of_the_session(33, 33, 60), process(34, 1, 34, 60)]);
        assert_eq!(ids(&family.members(&all, agent.id, |_| false)), [19, 20, 33]);
        assert!(Family::new(&[]).members(&all, agent.id, |_| false).is_empty());
    }

    #[test]
    fn a_reused_group_id_older_than_the_leader_is_not_ours() {
        let agent = process(10, 1, 10, 1);
        let mut family = Family::new(&[born(20, 50)]);
        assert!(family.members(&[agent, process(60, 1, 20, 40)], agent.id, |_| false).is_empty());
    }
}
