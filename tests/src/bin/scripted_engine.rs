//! The scripted engine as a process: prints its address and runs until ended.
//!
//! It takes llama-server's options, so that a node can supervise it as one. An alias `never-ready` makes it load for ever,
//! `loads-until-told` until a file `go` is where it works, `ends-at-once` makes it print a few lines and end with code 3, as an
//! engine that refuses its profile.

use std::io::Write;

fn main() -> std::io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let option = |name: &str| {
        let at = words.iter().position(|w| w == name)?;
        words.get(at + 1).cloned()
    };
    if words.iter().any(|w| w == "--help" || w == "-h") {
        return writeln!(std::io::stdout(), "usage: scripted-engine [--host H] [--port P] [--alias MODEL]");
    }
    let alias = option("--alias").unwrap_or_else(|| "scripted".to_owned());
    let mut out = std::io::stdout();
    if alias == "never-ready" {
        // It loads for ever: nobody listens.
        loop {
            std::thread::park();
        }
    }
    while alias == "loads-until-told" && !std::path::Path::new("go").exists() {
        std::thread::park_timeout(std::time::Duration::from_millis(20));
    }
    if alias == "ends-at-once" {
        for line in
            ["loading the model", "error: the model needs more than this host has", "the last line of all"]
        {
            writeln!(out, "{line}")?;
        }
        std::process::exit(3);
    }
    let host = option("--host").unwrap_or_else(|| "127.0.0.1".to_owned());
    let port = option("--port").unwrap_or_else(|| "0".to_owned());
    let engine = umbel_tests::engine::Engine::listen(&format!("{host}:{port}"), &[&alias])?;
    writeln!(out, "{}", engine.address())?;
    loop {
        std::thread::park();
    }
}
