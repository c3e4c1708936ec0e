//! Log lines of the daemons: text on a terminal, JSON otherwise, level from the file.
//!
//! Owns the process's one subscriber and its panic hook. Invariant: a panic's formatted message is never
//! written, since it may hold what a request or a file held.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;
use umbel_contracts::config::LogFormat;
use umbel_contracts::daemon::on_log_level;

use crate::exit::{Exit, Failure, Outcome};

/// Starts logging to standard error. `level` is a `tracing` filter: `info`, `info,umbel_edge=debug`.
pub(crate) fn start(level: &str, format: LogFormat) -> Outcome {
    let filter = EnvFilter::try_new(level).map_err(|error| {
        Failure::new(Exit::BadConfig, format!("log.level: `{level}` is not a filter: {error}"))
            .remedy("use error, warn, info, debug or trace, or `info,umbel_edge=debug`")
    })?;
    let terminal = std::io::stderr().is_terminal();
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let text = format == LogFormat::Text || (format == LogFormat::Auto && terminal);
    let started = if text {
        let colours = terminal && std::env::var_os("NO_COLOR").is_none();
        let builder = builder.with_ansi(colours).with_target(false).with_filter_reloading();
        change_by(builder.reload_handle());
        builder.try_init()
    } else {
        let builder = builder.json().flatten_event(true).with_filter_reloading();
        change_by(builder.reload_handle());
        builder.try_init()
    };
    started.map_err(|error| Failure::failed(format!("cannot start logging: {error}")))?;
    std::panic::set_hook(Box::new(|panic| {
        tracing::error!(place = place(panic), "{}", said(panic));
    }));
    Ok(())
}

/// Lets settings change the filter while the daemon runs.
fn change_by<S: 'static>(handle: tracing_subscriber::reload::Handle<EnvFilter, S>) {
    on_log_level(move |level| {
        let filter =
            EnvFilter::try_new(level).map_err(|error| format!("`{level}` is not a filter: {error}"))?;
        handle.reload(filter).map_err(|error| error.to_string())
    });
}

/// For commands that keep no log: the same rule, on standard error.
pub(crate) fn guard_panics() {
    std::panic::set_hook(Box::new(|panic| {
        crate::output::say(&format!("bug: {} at {}; please report it", said(panic), place(panic)));
    }));
}

fn place(panic: &std::panic::PanicHookInfo<'_>) -> String {
    panic.location().map_or_else(|| "an unknown place".to_owned(), ToString::to_string)
}

/// The message when it is a literal of the source; a formatted one may hold a secret.
fn said(panic: &std::panic::PanicHookInfo<'_>) -> String {
    match panic.payload().downcast_ref::<&'static str>() {
        Some(text) => format!("panicked: {text}"),
        None => "panicked (message withheld: it may hold private data)".to_owned(),
    }
}
