//! What an edge says of its load: snapshot, metrics, lease table and records hold against each other at every moment of
//! a storm, and afterwards against what the clients counted.

use std::collections::{BTreeMap, HashSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};

use prost::Message;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::watch;
use umbel_contracts::daemon::exposition::{Sample, TextFormat, read};
use umbel_contracts::proto::node::{Header, InferenceEnd, InferenceHead, InferenceOpen, InferenceOutcome};
use umbel_wire::token::{BearerKind, mint_bearer};
use umbel_wire::{CloseReason, Code, Connection, Error, Handler, IncomingStream};

use super::rig::{Edge, FakeNode, run, until};
use crate::core::admission::LeasePhase;
use crate::shell::dispatch::LeaseCounts;
use crate::shell::requests::Filter;
use crate::shell::status;

/// What the engines do is written in the requests: `"script": "json"`.
struct Engine {
    gate: watch::Receiver<bool>,
    /// Requests whose streams wait here for ever.
    held: Arc<Mutex<HashSet<String>>>,
}

impl Handler for Engine {
    fn on_stream(&self, _connection: &Connection, stream: IncomingStream) {
        tokio::spawn(answer(stream, self.gate.clone(), Arc::clone(&self.held)));
    }
}

fn end(outcome: InferenceOutcome) -> Vec<u8> {
    let (prompt_tokens, completion_tokens) = (Some(5), Some(3));
    InferenceEnd { outcome: outcome.into(), prompt_tokens, completion_tokens, ..InferenceEnd::default() }
        .encode_to_vec()
}

fn head(stream: &IncomingStream, status: u32, content_type: &str) {
    let header = Header { name: "content-type".to_owned(), value: content_type.as_bytes().to_vec() };
    let head = InferenceHead { status, headers: vec![header] };
    // The client may have left.
    let _ = stream.send_head(head.encode_to_vec(), &[]);
}

async fn answer(stream: IncomingStream, mut gate: watch::Receiver<bool>, held: Arc<Mutex<HashSet<String>>>) {
    let open = InferenceOpen::decode(stream.message()).unwrap();
    let mut body = Vec::new();
    while let Ok(Some(part)) = stream.body().await {
        body.extend_from_slice(&part);
    }
    let body: Value = serde_json::from_slice(&body).unwrap_or_default();
    let broken = || Error::new(Code::BadGateway, "ENGINE", "the engine failed");
    match body["script"].as_str().unwrap_or_default() {
        "events" => {
            head(&stream, 200, "text/event-stream");
            let _ = stream.send(b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n").await;
            // Until the storm is over, or the client left.
            let reset = tokio::select! {
                _ = async { drop(gate.wait_for(|open| *open).await) } => None,
                reset = stream.reset() => Some(reset),
            };
            match reset {
                None => {
                    let _ = stream.send(b"data: [DONE]\n\n").await;
                    stream.finish(&end(InferenceOutcome::Complete));
                }
                Some(reset) => stream.fail(reset.error, false, &end(InferenceOutcome::Cancelled)),
            }
        }
        script @ ("hold" | "hold events") => {
            if script == "hold events" {
                head(&stream, 200, "text/event-stream");
                let _ = stream.send(b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n").await;
            }
            held.lock().unwrap().insert(open.request_id);
            let reset = stream.reset().await;
            stream.fail(reset.error, false, &end(InferenceOutcome::Cancelled));
        }
        "truncate" => {
            head(&stream, 200, "text/event-stream");
            let _ = stream.send(b"data: {\"choices\":[{\"delta\":{\"content\":\"a\"}}]}\n\n").await;
            stream.fail(broken(), false, &end(InferenceOutcome::EngineGone));
        }
        "refuse" => stream.fail(broken(), true, &end(InferenceOutcome::EngineRefused)),
        "gone" => stream.fail(broken(), false, &end(InferenceOutcome::EngineGone)),
        "silent" => stream.fail(broken(), false, &end(InferenceOutcome::TimedOut)),
        "garbage" => stream.fail(broken(), false, &end(InferenceOutcome::BadAnswer)),
        "400" => {
            head(&stream, 400, "application/json");
            let _ = stream
                .send(b"{\"error\":{\"message\":\"no\",\"type\":\"x\",\"param\":null,\"code\":null}}")
                .await;
            stream.finish(&end(InferenceOutcome::Complete));
        }
        _ => {
            head(&stream, 200, "application/json");
            let _ = stream.send(b"{\"choices\":[]}").await;
            stream.finish(&end(InferenceOutcome::Complete));
        }
    }
}

/// What the clients of one storm saw.
#[derive(Debug, Default)]
struct Seen {
    statuses: BTreeMap<u16, u64>,
    reasons: BTreeMap<String, u64>,
    left: u64,
    broken: u64,
}

struct Clients {
    address: SocketAddr,
    key: String,
    seen: Mutex<Seen>,
    held: Arc<Mutex<HashSet<String>>>,
}

impl Clients {
    /// Sends a request and notes what came; one that leaves does so once its engine holds it.
    async fn send(
        self: Arc<Self>,
        id: String,
        leaves: bool,
        method: &str,
        path: &str,
        more: &str,
        body: String,
    ) {
        let mut socket = TcpStream::connect(self.address).await.unwrap();
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\nx-request-id: {id}\r\n{more}\
             content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        );
        // A refusal may come before all of it is taken.
        let _ = socket.write_all(request.as_bytes()).await;
        let mut text = Vec::new();
        if leaves {
            let (held, mine) = (Arc::clone(&self.held), id.clone());
            tokio::select! {
                _ = socket.read_to_end(&mut text) => {}
                () = until("its engine holds it", move || held.lock().unwrap().contains(&mine)) => {
                    self.seen.lock().unwrap().left += 1;
                    return;
                }
            }
        } else {
            socket.read_to_end(&mut text).await.unwrap();
        }
        let text = String::from_utf8(text).unwrap();
        let status: u16 =
            text.get(9..12).unwrap_or_else(|| panic!("no answer to {id}: {text}")).parse().unwrap();
        let mut seen = self.seen.lock().unwrap();
        *seen.statuses.entry(status).or_default() += 1;
        let header = |name: &str| {
            let lines = text.split("\r\n\r\n").next().unwrap().lines();
            lines
                .filter_map(|line| line.split_once(": "))
                .find(|(own, _)| *own == name)
                .map(|(_, value)| value)
        };
        if let Some(reason) = header("x-umbel-reason") {
            *seen.reasons.entry(reason.to_owned()).or_default() += 1;
        }
        seen.broken += u64::from(status == 200 && text.contains("data: {\"error\""));
    }

    async fn chat(self: Arc<Self>, id: String, script: &'static str) {
        let leaves = script.starts_with("hold");
        let stream = script.contains("events") || script == "truncate";
        let body =
            json!({ "model": "llama", "stream": stream, "script": script, "messages": [] }).to_string();
        let key = self.key.clone();
        self.send(id, leaves, "POST", "/v1/chat/completions", &key, body).await;
    }
}

fn sum(samples: &[Sample], name: &str, labels: &[(&str, &str)]) -> f64 {
    samples.iter().filter(|one| one.name == name && one.has(labels)).map(|one| one.value).sum()
}

/// Everything that is said at this moment, held against everything else.
fn agree(edge: &Edge) -> LeaseCounts {
    let site = &edge.running.site;
    // One moment: nothing here awaits, and the edge has one thread.
    let reading = site.dispatch.reading();
    let queues = status::queues(site);
    let samples = read(&edge.running.front.metrics().encode(TextFormat::OpenMetrics)).unwrap().0;
    let totals = site.dispatch.totals();
    let running =
        site.dispatch.requests().list(&Filter { running: Some(true), ..Filter::default() }, 100_000);
    let (_, nodes) = site.nodes();
    let providers: Vec<_> = nodes
        .iter()
        .flat_map(|node| status::node(site, node).providers.into_iter().map(|one| (node.connected(), one)))
        .collect();

    let mut all = LeaseCounts::default();
    assert_eq!(queues.len(), reading.queues.len());
    for (queue, read) in queues.iter().zip(&reading.queues) {
        let figures = &read.figures;
        assert_eq!((queue.depth as usize, queue.in_flight), (figures.depth, figures.in_flight));
        assert_eq!(figures.depth, read.leases.waiting as usize, "the queue and those who wait in it");
        assert_eq!(figures.in_flight, read.leases.in_flight(), "the counter and the leases");
        let of_keys: u32 = read.keys.iter().map(|key| key.waiting).sum();
        assert_eq!(of_keys, read.leases.waiting, "the keys' and the queue's");
        let of_providers: u32 = read.providers.iter().map(|(_, _, figures)| figures.in_flight).sum();
        assert_eq!(of_providers, figures.in_flight, "the providers' and the model's");
        let model = [("model", &*figures.model)];
        let gauge = |name: &str, phase: &str| sum(&samples, name, &[model[0], ("phase", phase)]) as u32;
        assert_eq!(sum(&samples, "umbel_edge_queue_depth", &model) as usize, figures.depth);
        assert_eq!(gauge("umbel_edge_requests_in_flight", "queued") as usize, figures.depth);
        let phases =
            ["prefill", "streaming", "ending", "unconfirmed"].map(|phase| gauge("umbel_edge_leases", phase));
        let told =
            [queue.leases_prefill, queue.leases_streaming, queue.leases_ending, queue.leases_unconfirmed];
        assert_eq!(phases, told);
        assert_eq!(phases.iter().sum::<u32>(), figures.in_flight);
        for (reason, count) in &queue.rejections {
            let labels = [model[0], ("reason", reason.as_str())];
            assert_eq!(sum(&samples, "umbel_edge_rejections_total", &labels) as u64, *count, "{reason}");
        }
        all.waiting += read.leases.waiting;
        all.without_head += read.leases.without_head;
        all.streaming += read.leases.streaming;
        all.resetting += read.leases.resetting;
        all.unconfirmed += read.leases.unconfirmed;
    }
    assert_eq!(all, totals);
    for (connected, provider) in providers {
        let read = reading.queues.iter().flat_map(|queue| &queue.providers);
        let (_, _, figures) = read.into_iter().find(|(id, _, _)| **id == *provider.provider_id).unwrap();
        let told = (provider.capacity, provider.in_flight, provider.queued, provider.long_context_in_flight);
        let counted = (figures.capacity, figures.in_flight, figures.queued, figures.long_in_flight);
        // One that cannot be dispatched to shows zero in every number.
        assert_eq!(told, if connected { counted } else { (0, 0, 0, 0) }, "{}", provider.provider_id);
        assert!(figures.in_flight <= figures.capacity, "above its capacity: {figures:?}");
    }
    // Whoever holds a lease that is in use is recorded as running.
    let numbers: HashSet<u64> = running.iter().map(|record| record.number).collect();
    for lease in &reading.leases {
        let in_use = matches!(lease.phase, LeasePhase::Granted | LeasePhase::Streaming);
        assert!(!in_use || numbers.contains(&lease.request), "{lease:?} of nobody who runs");
    }
    all
}

async fn node(edge: &Edge, name: &str, engine: Engine) -> (FakeNode, Connection) {
    let node = edge.node(name).await;
    let connection = node.connect_by(edge, Arc::new(engine)).await;
    (node, connection)
}

/// Rows "refusal counters" and "provider figures": every number holds against every other.
#[test]
fn all_that_is_said_of_load_agrees_at_every_moment_and_with_what_clients_saw() {
    run(async {
        let edge = Edge::start_with(
            "[api]\nbody_max = \"64KiB\"\n[queue]\nmax_requests = 6\nmax_wait = \"300ms\"\n",
        )
        .await;
        let (key_id, text, hash) = mint_bearer(BearerKind::ApiKey);
        let args = json!({ "key_id": key_id, "secret_sha256": hash.to_hex(), "name": "app" });
        edge.ask("apikey.create", "", args).await.unwrap();
        let (open, gate) = watch::channel(false);
        let held: Arc<Mutex<HashSet<String>>> = Arc::default();
        let engine = || Engine { gate: gate.clone(), held: Arc::clone(&held) };
        let (lost, lost_connection) = node(&edge, "lost", engine()).await;
        let _second = node(&edge, "second", engine()).await;
        let _third = node(&edge, "third", engine()).await;
        until("all serve", || {
            edge.running.site.dispatch.queues().first().is_some_and(|queue| queue.open_providers == 3)
        })
        .await;

        let clients = Arc::new(Clients {
            address: edge.running.api_address.unwrap(),
            key: format!("authorization: Bearer {}\r\n", text.expose()),
            seen: Mutex::default(),
            held,
        });
        let mut tasks = tokio::task::JoinSet::new();
        // First more streams than there is room for, then everything else, some at a time.
        let first = std::iter::repeat_n("events", 20);
        let scripts = [
            "json",
            "events",
            "400",
            "hold",
            "json",
            "truncate",
            "events",
            "refuse",
            "json",
            "gone",
            "hold events",
            "silent",
            "json",
            "garbage",
            "events",
            "json",
        ];
        let mut scripts = first.chain(scripts.into_iter().cycle().take(160)).enumerate();
        let key = clients.key.clone();
        // Refusals that need no engine.
        let odd: [(&'static str, &'static str, String, String); 6] = [
            ("POST", "/v1/chat/completions", String::new(), "{}".to_owned()),
            ("POST", "/v1/chat/completions", key.clone(), "{".to_owned()),
            ("POST", "/v1/chat/completions", key.clone(), json!({ "model": "nobody's" }).to_string()),
            ("POST", "/v1/chat/completions", key.clone(), " ".repeat(70_000)),
            ("GET", "/v1/chat/completions", key.clone(), String::new()),
            ("POST", "/v1/nothing", key.clone(), String::new()),
        ];
        for (at, (method, path, more, body)) in odd.into_iter().enumerate() {
            let clients = Arc::clone(&clients);
            tasks.spawn(
                async move { clients.send(format!("odd{at}"), false, method, path, &more, body).await },
            );
        }
        let (mut busiest, mut moments, mut started, mut cut, mut all) = (0, 0, 0, false, false);
        while !(all && tasks.is_empty()) {
            let counts = agree(&edge);
            busiest = busiest.max(counts.waiting + counts.in_flight());
            moments += 1;
            if !cut && counts.streaming >= 12 && counts.waiting > 0 {
                // A node is lost in the middle of it, with all that it serves.
                lost_connection.close(CloseReason::Truncated);
                cut = true;
            }
            let waited = clients.seen.lock().unwrap().reasons.contains_key("queue_timeout");
            if cut && waited {
                // Whoever streams may end.
                open.send_replace(true);
            }
            while if cut { waited && tasks.len() < 24 } else { started < 20 } {
                let Some((at, script)) = scripts.next() else {
                    all = true;
                    break;
                };
                started += 1;
                tasks.spawn(Arc::clone(&clients).chat(format!("r{at}"), script));
            }
            // Each turn of the runtime is another moment.
            tokio::task::yield_now().await;
            while let Some(done) = tasks.try_join_next() {
                done.unwrap();
            }
        }
        assert!(cut && busiest >= 18 && moments > 30, "{cut} {busiest} {moments}: no storm");
        edge.running.site.dispatch.idle().await;
        until("every account is settled", || edge.running.site.dispatch.requests().counts().0 == 0).await;
        assert_eq!(agree(&edge), LeaseCounts::default());
        assert!(!edge.connected(&lost));

        let seen = std::mem::take(&mut *clients.seen.lock().unwrap());
        let samples = read(&edge.running.front.metrics().encode(TextFormat::OpenMetrics)).unwrap().0;
        let by = |name: &str, label: &str| {
            let mut sums: BTreeMap<String, u64> = BTreeMap::new();
            for one in samples.iter().filter(|one| one.name == name && one.value > 0.0) {
                *sums.entry(one.label(label).unwrap().to_owned()).or_default() += one.value as u64;
            }
            sums
        };
        assert_eq!(
            by("umbel_edge_rejections_total", "reason"),
            seen.reasons,
            "refusals that clients were told"
        );
        let mut codes = by("umbel_edge_requests_total", "code");
        assert_eq!(codes.remove("499").unwrap_or(0), seen.left, "clients that left");
        let statuses: BTreeMap<String, u64> =
            seen.statuses.iter().map(|(status, count)| (status.to_string(), *count)).collect();
        assert_eq!(codes, statuses, "answers");
        let left: u64 = by("umbel_edge_client_disconnects_total", "phase").values().sum();
        assert_eq!(left, seen.left);
        let broken: u64 = by("umbel_edge_streams_broken_total", "reason").values().sum();
        assert_eq!(broken, seen.broken, "streams with an error in them");
        for reason in
            ["queue_full", "queue_timeout", "auth", "bad_request", "not_found", "too_large", "unknown_url"]
        {
            assert!(seen.reasons.contains_key(reason), "no client was told {reason}: {seen:?}");
        }
        // The records say the same of every request whose key was good.
        let records = edge.running.site.dispatch.requests().list(&Filter::default(), 10_000);
        let of_model = |status: u16| {
            let mine = records.iter().filter(|one| one.started.model.is_some());
            mine.filter(|one| one.ended.is_some_and(|(_, end)| end.status == status)).count() as u64
        };
        assert_eq!(of_model(200), seen.statuses[&200]);
        assert_eq!(of_model(499), seen.left);
        assert_eq!(of_model(429), seen.statuses[&429]);
        edge.running.drain(super::rig::TIME).await;
    });
}
