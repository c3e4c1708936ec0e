//! Operators who mint tokens and change nodes, and applications that ask for models.
//!
//! An operator who hears nothing sends the same command again, with the same id. An application asks once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use umbel_edge::simulation::{Answered, Operation, Outcome, RequestId, Wanted, token_names};
use umbel_node::simulation::{NodeDisk, Token};

use super::turns::LONG;
use super::world::World;

/// An operator asks again after this.
const PATIENCE: Duration = Duration::from_secs(7);
/// A host whose token came to nothing gets another after this.
const TOKEN_AGAIN: Duration = Duration::from_secs(90);

#[derive(Clone, Debug)]
struct Asked {
    operation: Operation,
    again: Duration,
    host: Option<usize>,
    attempts: u32,
    /// It may have reached the edge.
    sent: bool,
    /// It is done, and asked for again all the same.
    repeated: bool,
}

/// Who wants what.
pub(crate) struct People {
    commands: BTreeMap<String, Asked>,
    numbers: u64,
    joins: Vec<Duration>,
    /// By host: the node whose place it is to take.
    replaced: Vec<Option<String>>,
    tokens: BTreeMap<String, (usize, [u8; 32])>,
    next_command: Duration,
    next_request: Duration,
    over: bool,
    /// Commands that were told to be done, and what they were.
    pub(crate) done: Vec<(String, Operation)>,
    /// The control plane said that it was not sent, and nobody asked for it again.
    pub(crate) never: BTreeSet<String>,
    /// Told so in answer to the last attempt.
    unavailable: Option<String>,
    /// A token that nobody has used.
    pub(crate) spare: Option<(String, [u8; 32])>,
    /// Keys of hosts that people let in again.
    pub(crate) approved: BTreeSet<String>,
    /// Done, and then not.
    pub(crate) contradicted: Vec<String>,
    /// Sent to an edge that was not connected.
    pub(crate) into_nothing: Vec<String>,
    /// Requests that got no slot although one was free and no control plane there.
    pub(crate) held_up: Vec<RequestId>,
    refused: Option<RequestId>,
    /// Requests without an answer.
    pub(crate) requests: BTreeSet<RequestId>,
    /// Their applications went away.
    left: BTreeSet<RequestId>,
    /// Answered twice, or without having been asked.
    pub(crate) strange: Vec<RequestId>,
    pub(crate) complete: u64,
    ever: u64,
}

impl People {
    pub(crate) fn new(hosts: usize) -> Self {
        Self {
            commands: BTreeMap::new(),
            numbers: 0,
            joins: (0..hosts).map(|number| Duration::from_millis(1 + 700 * number as u64)).collect(),
            replaced: vec![None; hosts],
            tokens: BTreeMap::new(),
            next_command: Duration::from_secs(20),
            next_request: Duration::from_secs(5),
            over: false,
            done: Vec::new(),
            never: BTreeSet::new(),
            unavailable: None,
            spare: None,
            approved: BTreeSet::new(),
            contradicted: Vec::new(),
            into_nothing: Vec::new(),
            held_up: Vec::new(),
            refused: None,
            requests: BTreeSet::new(),
            left: BTreeSet::new(),
            strange: Vec::new(),
            complete: 0,
            ever: 0,
        }
    }

    pub(crate) fn next(&self) -> Duration {
        let again = self.commands.values().map(|asked| asked.again).min();
        let join = self.joins.iter().min().copied();
        let own = if self.over { Duration::MAX } else { self.next_command.min(self.next_request) };
        again.into_iter().chain(join).fold(own, Duration::min)
    }

    /// Nobody wants anything new.
    pub(crate) fn rest(&mut self) {
        self.over = true;
    }

    /// Nothing is asked for that has not been answered.
    pub(crate) fn is_idle(&self) -> bool {
        self.commands.is_empty() && self.requests.is_empty()
    }

    pub(crate) fn edge_died(&mut self) {
        // Applications see their connections end; operators ask again.
        self.requests.clear();
        self.left.clear();
    }

    pub(crate) fn answered(&mut self, request: RequestId, answered: Answered) {
        // What nobody waits for any more may still come to its end, once.
        if !self.requests.remove(&request) && !self.left.remove(&request) {
            self.strange.push(request);
        }
        if answered == Answered::Refused {
            self.refused = Some(request);
        }
        self.complete += u64::from(answered == Answered::Complete);
    }

    pub(crate) fn outcome(&mut self, id: &str, outcome: Outcome) {
        let Some(asked) = self.commands.remove(id) else { return };
        if asked.repeated {
            if outcome != Outcome::Done {
                self.contradicted.push(format!("{id}: {outcome:?}"));
            }
            return;
        }
        if outcome != Outcome::Done {
            return;
        }
        self.done.push((id.to_owned(), asked.operation.clone()));
        // An answer of an earlier attempt may still be on its way, unless there was one only.
        if asked.attempts == 1 && self.done.len().is_multiple_of(3) && !self.over {
            let again = asked.again;
            self.commands.insert(id.to_owned(), Asked { again, repeated: true, ..asked });
        }
    }

    /// The edge's store is an older one: what was done since is not, and may be done again.
    pub(crate) fn restored(&mut self, commands: &BTreeSet<String>) {
        self.done.retain(|(id, _)| commands.contains(id));
        self.commands.retain(|_, asked| !asked.repeated);
    }

    /// The control plane did not send it.
    pub(crate) fn unavailable(&mut self, id: &str) {
        self.unavailable = Some(id.to_owned());
    }
}

impl World {
    pub(crate) fn people_act(&mut self) {
        let now = self.time;
        let joining: Vec<usize> =
            (0..self.people.joins.len()).filter(|number| self.people.joins[*number] <= now).collect();
        for number in joining {
            self.invite(number);
        }
        let again: Vec<String> = self
            .people
            .commands
            .iter()
            .filter(|(_, one)| one.again <= now)
            .map(|(id, _)| id.clone())
            .collect();
        for id in again {
            self.send(&id);
        }
        if !self.people.over && self.people.next_command <= now {
            self.people.next_command = now + Duration::from_millis(self.luck.between(500, 20_000));
            self.command();
        }
        if !self.people.over && self.people.next_request <= now {
            self.people.next_request = now + Duration::from_millis(self.luck.between(20, 4_000));
            self.request();
        }
    }

    // A host that is nobody yet, or that its edge does not let in any more, gets what the refusal says it needs.
    fn invite(&mut self, number: usize) {
        self.people.joins[number] = self.time + TOKEN_AGAIN;
        let Some(node) = &self.hosts[number].process else { return };
        let reason = node.last_rejection().map(|error| error.reason.to_string()).unwrap_or_default();
        let identity = node.identity();
        let distrusts = node.distrusts();
        let replaces = match (reason.as_str(), &identity) {
            ("KEY_IN_USE", None) => {
                // A key that the edge knows although its answer was lost for good: a new token needs a new key.
                self.with_node(number, |node, _, _| node.forget_key());
                self.people.replaced[number].clone()
            }
            ("NODE_DECOMMISSIONED", None) => {
                // Its answer was lost, and the node it became was retired meanwhile.
                self.with_node(number, |node, _, _| node.forget_key());
                None
            }
            (_, None) => self.people.replaced[number].clone(),
            ("NODE_DECOMMISSIONED" | "CREDENTIAL_REPLACED", Some(_)) => {
                self.wipe(number);
                None
            }
            ("CREDENTIAL_REVOKED" | "CREDENTIAL_RETIRED" | "CERTIFICATE_EXPIRED", Some(id)) => {
                self.wipe(number);
                Some(id.clone())
            }
            // Whoever was left behind is enrolled anew.
            (_, Some(id)) if distrusts => {
                let id = id.clone();
                self.wipe(number);
                Some(id)
            }
            ("CREDENTIAL_HELD", Some(_)) => return self.approve(number),
            ("CERTIFICATE_UNKNOWN", Some(_)) if self.hosts[number].unknown => {
                self.wipe(number);
                None
            }
            ("NODE_DISABLED", Some(id)) if self.people.over => {
                return self.ask(Operation::Disable(id.clone(), false), None);
            }
            _ => return,
        };
        let gone = replaces.as_ref().is_some_and(|id| {
            self.people.done.iter().any(|(_, done)| matches!(done, Operation::Decommission(one) if one == id))
        });
        let replaces = replaces.filter(|_| !gone);
        self.people.replaced[number].clone_from(&replaces);
        let mut secret = [0; 32];
        for part in secret.chunks_mut(8) {
            part.copy_from_slice(&self.luck.next().to_be_bytes());
        }
        self.people.numbers += 1;
        let token_id = format!("token-{:06}", self.people.numbers);
        self.people.tokens.insert(token_id.clone(), (number, secret));
        let life = self.luck.between(60, 900);
        let operation = Operation::Mint { token_id, secret, name: format!("n{number}"), life, replaces };
        self.ask(operation, Some(number));
    }

    // Somebody looks at the site's problems, and knows the host.
    fn approve(&mut self, number: usize) {
        let keys = self.hosts[number].process.as_ref().map(|node| node.keys()).unwrap_or_default();
        if keys.is_empty() {
            return;
        }
        let key = self.luck.pick(&keys).clone();
        self.people.approved.insert(key.clone());
        self.ask(Operation::Approve(key), None);
    }

    // The state directory is removed, as the refusal says, and the agent starts with an empty one.
    pub(crate) fn wipe(&mut self, number: usize) {
        self.tell(format!("node {number}'s state directory is removed"));
        // Whoever does that ends its engines first.
        self.kill_node(number, false);
        if let Some(machine) = &mut self.hosts[number].machine {
            machine.loses_power();
        }
        self.hosts[number].disk = Some(NodeDisk::default());
        self.start_node(number);
    }

    pub(crate) fn ask(&mut self, operation: Operation, host: Option<usize>) {
        self.people.numbers += 1;
        let id = format!("command-{:06}", self.people.numbers);
        let asked = Asked { operation, again: self.time, host, attempts: 0, sent: false, repeated: false };
        self.people.commands.insert(id.clone(), asked);
        self.send(&id);
    }

    fn send(&mut self, id: &str) {
        let Some(asked) = self.people.commands.get_mut(id) else { return };
        asked.again = self.time + PATIENCE;
        asked.attempts += 1;
        let (operation, host) = (asked.operation.clone(), asked.host);
        self.tell(format!("{id}: {}", said(&operation)));
        self.leaves_behind(&operation);
        if !matches!(operation, Operation::Authority(..)) && self.plane.is_chosen() {
            return self.send_through(id, &operation);
        }
        if self.edge.paused {
            return;
        }
        if let Some(asked) = self.people.commands.get_mut(id) {
            asked.sent = true;
        }
        // The token is at hand before the edge has said that it is good: who is too early is refused.
        if let (Operation::Mint { token_id, secret, .. }, Some(number)) = (&operation, host) {
            let early = self.luck.one_in(3);
            let known = self.people.done.iter().any(|(done, _)| done == id);
            if early || known {
                let token = self.token(token_id, *secret);
                self.with_node(number, |node, now, _| node.join(&token, now));
            }
        }
        self.with_edge(|edge, now, wall| edge.operate(id, &operation, now, wall));
    }

    // By way of the control plane; if the edge is not there, that is the answer, and some leave it at that.
    fn send_through(&mut self, id: &str, operation: &Operation) {
        let connected = self.plane_shows().is_some_and(|shown| shown.owners.0.is_some());
        self.people.unavailable = None;
        if !self.relay(id, operation) {
            return;
        }
        let unavailable = self.people.unavailable.take().is_some();
        if !unavailable && !connected {
            self.people.into_nothing.push(id.to_owned());
        }
        let leaves = unavailable && !self.people.over && self.plane.fancies();
        let Some(asked) = self.people.commands.get_mut(id) else { return };
        asked.sent |= !unavailable;
        if leaves && !asked.sent {
            self.people.commands.remove(id);
            self.people.never.insert(id.to_owned());
        }
    }

    /// A token's text: the authority that signs when it is made, which it names.
    pub(crate) fn token(&mut self, token_id: &str, secret: [u8; 32]) -> Token {
        let named = token_names(&mut self.edge.disk, token_id);
        let signing = || self.edge.process.as_ref().map(|edge| edge.authority().signing);
        let ca_sha256 = named.or_else(signing).unwrap_or_default();
        Token { token_id: token_id.to_owned(), secret, ca_sha256 }
    }

    /// Hosts whose tokens are good try them.
    pub(crate) fn hand_out_tokens(&mut self) {
        let done = std::mem::take(&mut self.people.tokens);
        let (ready, left): (BTreeMap<_, _>, BTreeMap<_, _>) = done.into_iter().partition(|(token, _)| {
            self.people
                .done
                .iter()
                .any(|(_, done)| matches!(done, Operation::Mint { token_id, .. } if token_id == token))
        });
        self.people.tokens = left;
        for (token, (number, secret)) in ready {
            // Sometimes two hosts are given the same one.
            let token = self.token(&token, secret);
            self.with_node(number, |node, now, _| node.join(&token, now));
            if self.luck.one_in(4) {
                let other = self.luck.between(0, self.hosts.len() as u64) as usize;
                self.with_node(other, |node, now, _| node.join(&token, now));
            }
        }
    }

    fn command(&mut self) {
        let known: Vec<String> = self
            .hosts
            .iter()
            .filter_map(|host| host.process.as_ref().and_then(|node| node.identity()))
            .collect();
        if known.is_empty() {
            return;
        }
        let node = self.luck.pick(&known).clone();
        let on = self.luck.one_in(2);
        let operation = match self.luck.between(0, 17) {
            16 => {
                self.people.numbers += 1;
                let (token_id, mut secret) = (format!("token-{:06}", self.people.numbers), [0; 32]);
                secret[..8].copy_from_slice(&self.luck.next().to_be_bytes());
                self.people.spare = Some((token_id.clone(), secret));
                Operation::Mint { token_id, secret, name: "spare".to_owned(), life: 3_600, replaces: None }
            }
            0 | 1 => Operation::Eligible(node, on),
            2 | 3 => Operation::Drain(node, on),
            4..=6 => Operation::Rotate(node),
            7 => Operation::Disable(node, true),
            8..=10 => Operation::Disable(node, false),
            11 => Operation::Revoke(node),
            12 if self.luck.one_in(3) => Operation::Decommission(node),
            13 if self.luck.one_in(2) => {
                let (path, low, high) = *self.luck.pick(&[
                    ("edge.liveness.stale", 10, 60),
                    ("edge.liveness.offline", 15, 200),
                    ("edge.clock.allowed_skew", 1, 600),
                ]);
                Operation::Settings(path.to_owned(), format!("{}s", self.luck.between(low, high)))
            }
            13 | 14 => {
                let value = format!("{}s", self.luck.between(0, 40));
                let whose = if on { format!("nodes.{node}") } else { "default".to_owned() };
                Operation::Settings(format!("agents.{whose}.shutdown.drain"), value)
            }
            _ => {
                let token = format!("token-{:06}", self.luck.between(1, self.people.numbers + 1));
                Operation::RevokeToken(token)
            }
        };
        self.ask(operation, None);
    }

    fn request(&mut self) {
        if self.edge.process.is_none() || self.edge.paused {
            return;
        }
        // Somebody floods now and then.
        let (key, count) = if self.luck.one_in(20) { (1, 9) } else { (self.luck.between(0, 4) as u32, 1) };
        let model = format!("m{}", self.luck.between(0, 2));
        for _ in 0..count {
            let prompt_bytes = if self.luck.one_in(5) { LONG } else { self.luck.between(40, 2_000) };
            // One key goes before the others.
            let class = if key == 3 { 64 } else { 128 };
            self.request_one(&Wanted { model: model.clone(), key, class, prompt_bytes });
        }
        if self.luck.one_in(6) {
            let open: Vec<_> = self.people.requests.iter().copied().collect();
            if !open.is_empty() {
                let leaves = *self.luck.pick(&open);
                self.people.requests.remove(&leaves);
                self.people.left.insert(leaves);
                self.with_edge(|edge, now, _| edge.leave(leaves, now));
            }
        }
    }

    pub(crate) fn request_one(&mut self, wanted: &Wanted) {
        self.people.ever += 1;
        let request = self.people.ever;
        self.people.requests.insert(request);
        self.turns.asks(request, wanted);
        let free = wanted.prompt_bytes < LONG && self.has_free(&wanted.model);
        self.with_edge(|edge, now, _| edge.ask(request, wanted, now));
        if free && (self.people.refused == Some(request) || self.edge_queues()) {
            self.people.held_up.push(request);
        }
    }

    // A slot is free for the model, nobody waits, and there is no control plane to ask.
    fn has_free(&self, model: &str) -> bool {
        let edge = self.edge.process.as_ref().filter(|edge| edge.plane_generation().is_none());
        let Some(view) = edge.map(|edge| edge.view(self.now(self.edge.clocks))) else { return false };
        view.waiting.is_empty()
            && view.nodes.iter().any(|node| {
                node.dispatchable.iter().any(|one| {
                    let told = node.snapshot.providers.iter().find(|told| told.provider_id == one.id);
                    let free = one.open && !one.ejected && one.slots.1 < one.slots.0;
                    told.is_some_and(|told| told.model == model) && free
                })
            })
    }

    fn edge_queues(&self) -> bool {
        let now = self.now(self.edge.clocks);
        self.edge.process.as_ref().is_some_and(|edge| !edge.view(now).waiting.is_empty())
    }

    /// Everybody may serve again.
    pub(crate) fn allow_all(&mut self) {
        let known: BTreeSet<String> =
            self.hosts.iter().filter_map(|host| host.process.as_ref()?.identity()).collect();
        for node in known {
            self.ask(Operation::Eligible(node.clone(), true), None);
            self.ask(Operation::Drain(node, false), None);
        }
    }
}

fn said(operation: &Operation) -> String {
    match operation {
        Operation::Mint { token_id, name, life, .. } => format!("mint {token_id} for {name}, {life} s"),
        other => format!("{other:?}"),
    }
}
