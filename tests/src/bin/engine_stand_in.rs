//! Stands in for vLLM, SGLang or llama-server: takes their command lines as strictly as they do, and answers by script.
//!
//! Which one it is, its own file name says (`vllm`, `sglang`, `llama-server`: a link). An option that the named version does
//! not have, or a wrong number of values, ends it with code 2; so does a key that it cannot find where the real one would
//! look. Answers are those of the scripted engine. `x_stand_in` in the model's `config.json` makes it fail on purpose:
//! `out_of_memory`, `never_ready`, `broken_inference`.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use umbel_tests::engine::Engine;

const VLLM: &str = include_str!("../../../node/src/engines/options/vllm-0.33.0.txt");
const SGLANG: &str = include_str!("../../../node/src/engines/options/sglang-0.5.23.txt");
const LLAMA: &str = include_str!("../../../node/src/engines/options/llama-server-b10434.txt");

/// Options with their values, and the words that belong to none.
struct Line {
    options: BTreeMap<String, Vec<String>>,
    words: Vec<String>,
}

impl Line {
    fn one(&self, name: &str) -> Result<&str, String> {
        let values = self.options.get(name).ok_or_else(|| format!("{name} is missing"))?;
        values.first().map(String::as_str).ok_or_else(|| format!("{name} has no value"))
    }
}

fn parse(table: &str, arguments: &[String]) -> Result<Line, String> {
    let takes: BTreeMap<&str, &str> =
        table.lines().filter(|line| !line.starts_with('#')).filter_map(|line| line.split_once(' ')).collect();
    let mut line = Line { options: BTreeMap::new(), words: Vec::new() };
    let mut rest = arguments.iter().peekable();
    while let Some(word) = rest.next() {
        if !word.starts_with("--") {
            line.words.push(word.clone());
            continue;
        }
        let takes = takes.get(word.as_str()).ok_or_else(|| format!("unrecognized arguments: {word}"))?;
        let most = match *takes {
            "none" => 0,
            "one" | "optional" => 1,
            _ => usize::MAX,
        };
        let mut values = Vec::new();
        while values.len() < most
            && let Some(value) = rest.next_if(|value| !value.starts_with("--"))
        {
            values.push(value.clone());
        }
        if values.is_empty() && matches!(*takes, "one" | "many") {
            return Err(format!("argument {word}: expected a value"));
        }
        line.options.insert(word.clone(), values);
    }
    Ok(line)
}

/// Its key, where the real one looks for it.
fn key(kind: &str, line: &Line) -> Result<String, String> {
    if line.options.contains_key("--api-key") {
        return Err("the key stands in the arguments, where everybody reads it".to_owned());
    }
    let variable = |name: &str| std::env::var(name).map_err(|_| format!("{name} is not set"));
    match kind {
        "vllm" => variable("VLLM_API_KEY"),
        "llama-server" => variable("LLAMA_API_KEY"),
        _ => {
            let file = line.one("--config")?;
            let facts = std::fs::metadata(file).map_err(|error| format!("{file}: {error}"))?;
            if facts.permissions().mode() & 0o077 != 0 {
                return Err(format!("{file} can be read by others"));
            }
            let text = std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?;
            let key = text.lines().find_map(|line| line.strip_prefix("api-key: "));
            key.map(|key| key.trim_matches('"').to_owned()).ok_or_else(|| format!("{file} has no api-key"))
        }
    }
}

fn serve(kind: &str, arguments: &[String]) -> Result<Engine, String> {
    let table = match kind {
        "vllm" => VLLM,
        "sglang" => SGLANG,
        "llama-server" => LLAMA,
        other => return Err(format!("is called {other}, which is no engine")),
    };
    let line = parse(table, arguments)?;
    let key = key(kind, &line)?;
    let (model, names): (String, Vec<String>) = match (kind, line.words.as_slice()) {
        ("vllm", [serve, model]) if serve == "serve" => {
            (model.clone(), line.options.get("--served-model-name").cloned().unwrap_or_default())
        }
        ("sglang", [serve]) if serve == "serve" => {
            (line.one("--model-path")?.to_owned(), vec![line.one("--served-model-name")?.to_owned()])
        }
        ("llama-server", []) => (line.one("--model")?.to_owned(), vec![line.one("--alias")?.to_owned()]),
        (_, words) => return Err(format!("unexpected words: {words:?}")),
    };
    let (host, port) = (line.one("--host")?, line.one("--port")?);
    if host != "127.0.0.1" {
        return Err(format!("binds to {host}"));
    }
    let asked = fault(Path::new(&model));
    match asked.as_str() {
        "out_of_memory" => {
            let _ = writeln!(
                std::io::stdout(),
                "loading weights\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.14 GiB."
            );
            std::process::exit(1);
        }
        "never_ready" => loop {
            std::thread::park();
        },
        _ => {}
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let engine = Engine::listen(&format!("{host}:{port}"), &names).map_err(|error| error.to_string())?;
    engine.require_key(&key);
    if kind == "vllm" {
        engine.refuse_other_models();
    }
    if asked == "broken_inference" {
        engine.break_inference();
    }
    Ok(engine)
}

/// What its model asks it to do wrong.
fn fault(model: &Path) -> String {
    let folder = if model.is_dir() { model } else { model.parent().unwrap_or(model) };
    let text = std::fs::read(folder.join("config.json")).unwrap_or_default();
    let config: serde_json::Value = serde_json::from_slice(&text).unwrap_or_default();
    config.get("x_stand_in").and_then(serde_json::Value::as_str).unwrap_or_default().to_owned()
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let (program, arguments) = words.split_first().map_or(("", [].as_slice()), |(first, rest)| (first, rest));
    let kind =
        Path::new(program).file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let version = match (kind.as_str(), arguments.first().map(String::as_str)) {
        ("vllm", Some("--version")) => Some("0.33.0"),
        ("sglang", Some("version")) => Some("sglang version: 0.5.23\ngit revision: 0000000"),
        ("llama-server", Some("--version")) => {
            Some("version: 10434 (0000000)\nbuilt with a compiler for a machine")
        }
        _ => None,
    };
    if let Some(version) = version {
        let _ = writeln!(std::io::stdout(), "{version}");
        return;
    }
    match serve(&kind, arguments) {
        Ok(engine) => {
            let gpus = std::env::var("CUDA_VISIBLE_DEVICES").unwrap_or_else(|_| "not said".to_owned());
            let _ = writeln!(std::io::stdout(), "{kind} listens on {}, GPUs: {gpus}", engine.address());
            loop {
                std::thread::park();
            }
        }
        Err(why) => {
            let _ = writeln!(std::io::stderr(), "usage: {kind} [options]\n{kind}: error: {why}");
            std::process::exit(2);
        }
    }
}
