//! `umbel`: one binary for the daemons, a fleet on loopback and the operator's client.
//!
//! Owns dispatch and the one place where a failure becomes text and an exit code. Leaves everything else to the
//! room named after each command.

mod args;
mod calls;
mod client;
mod configuration;
mod ctl;
mod daemon;
mod dev;
mod exit;
mod logging;
mod mint;
mod output;
mod secrets;

use std::{ffi::OsString, path::Path, process::ExitCode};

use clap::{CommandFactory as _, Parser as _};

use umbel_contracts::daemon::memory;

use args::{Cli, Command};
use exit::{Exit, Failure, Outcome};
use output::{Format, put, say};

#[global_allocator]
static ALLOCATOR: memory::Allocator = memory::ALLOCATOR;

fn main() -> ExitCode {
    if std::env::args_os().skip(1).eq(HOLDER.iter().map(OsString::from)) {
        // No operator's command, and one process an engine: without the command line's machinery it stays small.
        return ExitCode::from(umbel_node::hold());
    }
    logging::guard_panics();
    let cli = match Cli::try_parse_from(words(std::env::args_os().collect())) {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to standard output and are no failure; clap knows which is which.
            let _ = error.print();
            return if error.use_stderr() { code(Exit::Usage) } else { code(Exit::Done) };
        }
    };
    match dispatch(cli.command) {
        Ok(()) => code(Exit::Done),
        Err(failure) => {
            if !failure.is_silent() {
                say(&failure.to_string());
            }
            code(failure.exit())
        }
    }
}

/// How this binary becomes the holder of an engine; the node's agent says so.
const HOLDER: &[&str] = &["node", "holder"];

fn code(exit: Exit) -> ExitCode {
    ExitCode::from(exit as u8)
}

/// A link named `umbelctl` is `umbel ctl`.
fn words(mut words: Vec<OsString>) -> Vec<OsString> {
    let name = words.first().map(|name| Path::new(name).file_name().unwrap_or_default().to_owned());
    if name.is_some_and(|name| name == "umbelctl") {
        words.insert(1, "ctl".into());
    }
    words
}

fn dispatch(command: Command) -> Outcome {
    match command {
        Command::ControlPlane(args) => daemon::control_plane(args),
        Command::Edge(args) => daemon::edge(args),
        Command::Node(args) => daemon::node(args),
        Command::Dev(args) => block_on(dev::run(args)),
        Command::Ctl(args) => block_on(ctl::run(*args)),
        Command::Config { verb } => configuration::run(&verb),
        Command::Completions { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "umbel", &mut script);
            put(&String::from_utf8_lossy(&script));
            Ok(())
        }
        Command::Version { output } => version(output),
    }
}

fn block_on(work: impl Future<Output = Outcome>) -> Outcome {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    runtime.map_err(|error| Failure::failed(format!("cannot start: {error}")))?.block_on(work)
}

fn version(output: Format) -> Outcome {
    let version = env!("CARGO_PKG_VERSION");
    let (control, node) = (umbel_contracts::CONTROL_PROTOCOL, umbel_contracts::NODE_PROTOCOL);
    if output.is_object() {
        let object = serde_json::json!({
            "version": version,
            "protocols": {
                "control": { "min": control.min, "max": control.max },
                "node": { "min": node.min, "max": node.max },
            },
        });
        output.object(&object.to_string()).iter().for_each(|text| put(text));
    } else {
        put(&format!(
            "umbel {version}\nprotocols: control {} to {}, node {} to {}\n",
            control.min, control.max, node.min, node.max
        ));
    }
    Ok(())
}
