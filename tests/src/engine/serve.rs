//! The scripted engine's HTTP: one thread a connection, requests read by hand, every write as the script says.
//!
//! It looks for a client that left before each write and while it waits, as a real engine's event loop would.

use std::io::{self, BufRead, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, sockopt};

use super::{End, Ending, Record, Script, State, locked};

/// How finely it looks at gates and at the client while it waits.
const STEP: Duration = Duration::from_millis(5);

pub(super) fn accept(listener: &TcpListener, state: &Arc<State>) {
    for stream in listener.incoming() {
        if state.stopping.load(Ordering::SeqCst) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let state = Arc::clone(state);
        std::thread::spawn(move || {
            let number = state.connects.fetch_add(1, Ordering::SeqCst) + 1;
            state.open.fetch_add(1, Ordering::SeqCst);
            let _ = stream.set_nodelay(true);
            let _ = connection(&stream, number, &state);
            state.open.fetch_sub(1, Ordering::SeqCst);
        });
    }
}

struct Ask {
    method: String,
    path: String,
    headers: Vec<(String, String)>,
    body: Vec<u8>,
}

impl Ask {
    fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }
}

fn invalid(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

fn read_line(input: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    if input.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(line.trim_end_matches(['\r', '\n']).to_owned()))
}

fn read_ask(input: &mut impl BufRead) -> io::Result<Option<Ask>> {
    let Some(first) = read_line(input)? else { return Ok(None) };
    let mut words = first.split(' ');
    let method = words.next().unwrap_or_default().to_owned();
    let path = words.next().ok_or_else(|| invalid("no path"))?.to_owned();
    let mut headers = Vec::new();
    loop {
        let line = read_line(input)?.ok_or_else(|| invalid("end inside the head"))?;
        if line.is_empty() {
            break;
        }
        let (name, value) = line.split_once(':').ok_or_else(|| invalid("no colon in a header"))?;
        headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    let mut ask = Ask { method, path, headers, body: Vec::new() };
    if ask.header("transfer-encoding").is_some_and(|v| v.eq_ignore_ascii_case("chunked")) {
        loop {
            let line = read_line(input)?.ok_or_else(|| invalid("end inside a chunk"))?;
            let size = usize::from_str_radix(line.trim(), 16).map_err(|_| invalid("chunk size"))?;
            let mut chunk = vec![0; size];
            input.read_exact(&mut chunk)?;
            ask.body.extend_from_slice(&chunk);
            read_line(input)?;
            if size == 0 {
                break;
            }
        }
    } else if let Some(length) = ask.header("content-length") {
        let length = length.parse().map_err(|_| invalid("content-length"))?;
        ask.body = vec![0; length];
        input.read_exact(&mut ask.body)?;
    }
    Ok(Some(ask))
}

fn connection(stream: &TcpStream, number: u64, state: &State) -> io::Result<()> {
    let mut input = BufReader::new(stream);
    loop {
        let idle = state.idle_ms.load(Ordering::SeqCst);
        stream.set_read_timeout((idle > 0).then(|| Duration::from_millis(idle)))?;
        let Some(ask) = read_ask(&mut input)? else { return Ok(()) };
        if state.stopping.load(Ordering::SeqCst) {
            return Ok(());
        }
        let go_on = if let Some((status, body)) = refused(state, &ask) {
            write_plain(stream, status, &[], body.as_bytes())?;
            true
        } else if ask.method == "POST" && ask.path.starts_with("/v1/") {
            completion(stream, number, state, &ask)?
        } else {
            let (status, body) = side(state, &ask);
            write_plain(stream, status, &[], body.as_bytes())?;
            true
        };
        if !go_on {
            return Ok(());
        }
    }
}

/// What a real engine answers before it looks at the request: a wrong key, a model that it does not have.
fn refused(state: &State, ask: &Ask) -> Option<(u16, String)> {
    let error = |message: &str| {
        format!("{{\"error\":{{\"message\":\"{message}\",\"type\":\"invalid_request_error\"}}}}")
    };
    if !ask.path.starts_with("/v1/") {
        return None;
    }
    let shown = ask.header("authorization").and_then(|value| value.strip_prefix("Bearer "));
    if locked(&state.key).as_deref().is_some_and(|key| shown != Some(key)) {
        return Some((401, error("Unauthorized")));
    }
    if ask.method != "POST" {
        return None;
    }
    if state.broken.load(Ordering::SeqCst) {
        return Some((500, error("the engine core is dead")));
    }
    let body: serde_json::Value = serde_json::from_slice(&ask.body).unwrap_or_default();
    let model = body.get("model").and_then(|model| model.as_str()).unwrap_or_default();
    let strict = state.strict.load(Ordering::SeqCst);
    (strict && !state.models.iter().any(|one| one == model)).then(|| (404, error("the model does not exist")))
}

/// Everything but completions: health, models, and the rig's own routes.
fn side(state: &State, ask: &Ask) -> (u16, String) {
    match (ask.method.as_str(), ask.path.as_str()) {
        ("GET", "/_log") => (200, serde_json::to_string(&*locked(&state.records)).unwrap_or_default()),
        ("POST", path) if path.starts_with("/_gate/") => {
            locked(&state.gates).insert(path.trim_start_matches("/_gate/").to_owned());
            (200, "{}".to_owned())
        }
        ("GET", "/metrics") => {
            (200, format!("num_requests_running {}\n", state.running.load(Ordering::SeqCst)))
        }
        ("GET", "/health" | "/v1/health") => (200, "{\"status\":\"ok\"}".to_owned()),
        ("GET", "/v1/models") => {
            let data: Vec<_> = state
                .models
                .iter()
                .map(|m| serde_json::json!({"id": m, "object": "model", "created": 1_700_000_000, "owned_by": "scripted"}))
                .collect();
            (200, serde_json::json!({"object": "list", "data": data}).to_string())
        }
        _ => {
            (404, "{\"error\":{\"message\":\"no such route\",\"type\":\"invalid_request_error\"}}".to_owned())
        }
    }
}

/// A connection with `how` to wait and write; `false` from a method: the client is gone.
struct Writing<'a> {
    stream: &'a TcpStream,
    state: &'a State,
    script: &'a Script,
}

impl Writing<'_> {
    fn gone(&self) -> bool {
        let mut one = [0_u8; 1];
        match rustix::net::recv(self.stream, &mut one, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
            Ok((_, 0)) => true,
            Ok(_) => false,
            Err(e) => e != rustix::io::Errno::AGAIN && e != rustix::io::Errno::INTR,
        }
    }

    fn wait(&self, done: impl Fn() -> bool) -> bool {
        while !done() {
            if self.gone() || self.state.stopping.load(Ordering::SeqCst) {
                return false;
            }
            std::thread::sleep(STEP);
        }
        !self.gone()
    }

    fn wait_ms(&self, ms: u64) -> bool {
        let until = Instant::now() + Duration::from_millis(ms);
        self.wait(|| Instant::now() >= until)
    }

    fn wait_gate(&self, gate: Option<&String>) -> bool {
        gate.is_none_or(|name| self.wait(|| self.state.gate_is_open(name)))
    }

    fn chunks(&self, bytes: &[u8]) -> bool {
        let piece = if self.script.piece == 0 { bytes.len().max(1) } else { self.script.piece };
        bytes.chunks(piece).all(|part| {
            let mut out = format!("{:x}\r\n", part.len()).into_bytes();
            out.extend_from_slice(part);
            out.extend_from_slice(b"\r\n");
            (&*self.stream).write_all(&out).is_ok()
        })
    }

    fn reset(&self) {
        let _ = sockopt::set_socket_linger(self.stream, Some(Duration::ZERO));
    }
}

/// Answers one completion; false: the connection must not be used again.
fn completion(stream: &TcpStream, number: u64, state: &State, ask: &Ask) -> io::Result<bool> {
    let text = String::from_utf8_lossy(&ask.body).into_owned();
    let json: serde_json::Value =
        serde_json::from_slice(&ask.body).unwrap_or_else(|_| super::form::fields(&ask.body));
    let id = state.begin(|id| Record {
        id,
        connection: number,
        method: ask.method.clone(),
        path: ask.path.clone(),
        headers: ask.headers.clone(),
        body: text,
        events_sent: 0,
        end: None,
        started_ms: state.now_ms(),
        ended_ms: None,
    });
    let script: Script = match json.get("x_script").cloned().map(serde_json::from_value).transpose() {
        Ok(script) => script.unwrap_or_default(),
        Err(e) => {
            state.finish(id, End::Complete);
            write_plain(
                stream,
                400,
                &[],
                format!("{{\"error\":{{\"message\":\"x_script: {e}\"}}}}").as_bytes(),
            )?;
            return Ok(true);
        }
    };
    let model = json.get("model").and_then(|m| m.as_str()).unwrap_or("scripted").to_owned();
    let streaming = json.get("stream").and_then(serde_json::Value::as_bool).unwrap_or(false);
    let asks_usage = json.pointer("/stream_options/include_usage") == Some(&serde_json::Value::Bool(true));
    let mut script = script;
    if script.fails_first > 0 {
        let same =
            locked(&state.records).iter().filter(|r| r.id < id && r.body.as_bytes() == ask.body).count();
        if same < script.fails_first {
            script.status = 503;
        }
    }
    let script = script.for_route(&ask.path, &model, streaming, asks_usage);
    let end = answer(&Writing { stream, state, script: &script }, id, &model, streaming);
    state.finish(id, end);
    // Dropping the one handle closes the connection: with FIN, or with RST where the script set it so.
    let Some(ms) = script.closes_after_ms else { return Ok(end == End::Complete) };
    std::thread::sleep(Duration::from_millis(ms));
    Ok(false)
}

fn answer(to: &Writing<'_>, id: usize, model: &str, streaming: bool) -> End {
    let script = to.script;
    if !to.wait_ms(script.before_head_ms) || !to.wait_gate(script.head_gate.as_ref()) {
        return End::ClientGone;
    }
    if script.no_head {
        return end_by(to);
    }
    if !streaming || script.status != 200 {
        let body = script.plain_body(model);
        let kind = script.content_type.as_deref().unwrap_or("application/json");
        return match write_typed(to.stream, script.status, kind, &script.headers, &body) {
            Ok(()) => End::Complete,
            Err(_) => End::ClientGone,
        };
    }
    let mut head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\nServer: scripted\r\n".to_owned();
    for (name, value) in &script.headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str("\r\n");
    if (&*to.stream).write_all(head.as_bytes()).is_err() {
        return End::ClientGone;
    }
    let mut events = script.events(model);
    if script.ending == Ending::Joined
        && let Some(last) = events.last_mut()
    {
        last.extend_from_slice(script.last());
    }
    for (n, event) in events.iter().enumerate() {
        let paced = n == 0 || to.wait_ms(script.delay_ms);
        let open = n != script.gate_at || to.wait_gate(script.gate.as_ref());
        if !paced || !open || to.gone() || !to.chunks(event) {
            return End::ClientGone;
        }
        to.state.change(id, |r| r.events_sent = n + 1);
    }
    if script.ending != Ending::Joined && !script.last().is_empty() && !to.chunks(script.last()) {
        return End::ClientGone;
    }
    end_by(to)
}

/// The script's ending after the last byte.
fn end_by(to: &Writing<'_>) -> End {
    match to.script.ending {
        Ending::Done | Ending::NoDone | Ending::NoNewline | Ending::OneNewline | Ending::Joined => {
            if (&*to.stream).write_all(b"0\r\n\r\n").is_ok() { End::Complete } else { End::ClientGone }
        }
        Ending::Rst | Ending::MidEvent => {
            to.reset();
            End::Died
        }
        Ending::Close => End::Died,
        Ending::Hang => {
            to.wait(|| false);
            End::ClientGone
        }
    }
}

fn write_plain(stream: &TcpStream, status: u16, headers: &[(String, String)], body: &[u8]) -> io::Result<()> {
    write_typed(stream, status, "application/json", headers, body)
}

fn write_typed(
    mut stream: &TcpStream,
    status: u16,
    kind: &str,
    headers: &[(String, String)],
    body: &[u8],
) -> io::Result<()> {
    let mut out = format!(
        "HTTP/1.1 {status} Scripted\r\nContent-Type: {kind}\r\nServer: scripted\r\nContent-Length: {}\r\n",
        body.len()
    );
    for (name, value) in headers {
        out.push_str(&format!("{name}: {value}\r\n"));
    }
    out.push_str("\r\n");
    let mut all = out.into_bytes();
    all.extend_from_slice(body);
    stream.write_all(&all)
}
