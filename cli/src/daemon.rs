//! The daemons and their set-up commands: files are loaded, logging starts, and the tier takes over.
//!
//! Owns exit codes and printing; leaves everything else to the tiers' crates. Invariant: this process never
//! outlives a parent that asked for it with `--parent-pipe`.

mod hardware;
mod report;
mod store;

use std::{
    io::{Read as _, Write as _},
    path::{Path, PathBuf},
};

use rustix::process::{Signal, getpid, kill_process};
use umbel_contracts::daemon::StartError;

use crate::{
    args::{
        ControlPlaneArgs, ControlPlaneVerb, DaemonFlags, EdgeArgs, EdgeDaemonVerb, NodeArgs, NodeDaemonVerb,
    },
    exit::{Exit, Failure, Outcome},
    logging,
    output::{put, say},
    secrets,
};

use report::{checks, print_object};

/// The file of a tier when no other is named.
pub(crate) fn default_file(tier: &str) -> PathBuf {
    Path::new("/etc/umbel").join(format!("{tier}.toml"))
}

fn file_of(flags: &DaemonFlags, tier: &str) -> PathBuf {
    flags.config.clone().unwrap_or_else(|| default_file(tier))
}

/// A tier's error as an ending.
fn ending(error: StartError) -> Failure {
    let exit = match &error {
        StartError::Config(_) => Exit::BadConfig,
        StartError::Usage(_) => Exit::Usage,
        StartError::Preflight { .. } => Exit::Condition,
        StartError::Unreachable(_) => Exit::Unreachable,
        StartError::Rejected { code, .. } => Exit::of(*code),
        StartError::State(_) | StartError::Refused(_) | StartError::Failed(_) => Exit::Failed,
    };
    Failure::new(exit, error.to_string())
}

/// `umbel control-plane ...`
pub(crate) fn control_plane(args: ControlPlaneArgs) -> Outcome {
    use umbel_control_plane as tier;
    let file = file_of(&args.flags, "control-plane");
    let config = tier::Config::load(&file).map_err(ending)?;
    match args.verb {
        None => {
            logging::start(&config.log_level, config.log_format)?;
            watch_parent(&args.flags)?;
            tier::run(config).map_err(ending)
        }
        Some(ControlPlaneVerb::Init(flags)) => {
            let made = tier::init(&config).map_err(ending)?;
            if flags.output.is_object() {
                let object = serde_json::json!({
                    "ca_file": made.ca_file,
                    "ca_sha256": made.ca_sha256,
                    "token_file": made.token_file,
                });
                return print_object(&object, flags.output);
            }
            say(&format!(
                "The control plane {} is set up.\n  CA      {}\n          sha256:{}\n  token   {} (admin; mode 0600)\n\
                 Next: umbel control-plane --config {}\n      umbel ctl --socket {} edge token create SITE",
                config.name,
                made.ca_file.display(),
                made.ca_sha256,
                made.token_file.display(),
                file.display(),
                config.socket.display(),
            ));
            Ok(())
        }
        Some(ControlPlaneVerb::Doctor(flags)) => checks(&flags, &tier::doctor(&config)),
        Some(ControlPlaneVerb::Backup(flags)) => store::backup(&flags, &config.socket, |to| {
            let made = tier::backup(&config, to).map_err(ending)?;
            Ok(store::Copied { file: made.file, bytes: made.bytes, sha256: made.sha256 })
        }),
        Some(ControlPlaneVerb::Restore(flags)) => store::restore(&flags, &file, "control-plane", |from| {
            let done = tier::restore(&config, from).map_err(ending)?;
            Ok(store::Replaced {
                incarnation: done.incarnation,
                made_at: done.made_at,
                voided: done.voided,
                kept: done.kept,
            })
        }),
    }
}

/// `umbel edge ...`
pub(crate) fn edge(args: EdgeArgs) -> Outcome {
    use umbel_edge as tier;
    if let Some(EdgeDaemonVerb::Enroll(source)) = &args.verb {
        // Before anything else: whatever else is wrong, the token must not be typed like this again.
        secrets::refuse_in_argv(source.in_argv())?;
    }
    let file = file_of(&args.flags, "edge");
    if let Some(EdgeDaemonVerb::Init { site: Some(site) }) = &args.verb {
        write_first_file(&file, site)?;
    }
    let config = tier::Config::load(&file).map_err(ending)?;
    match args.verb {
        None => {
            logging::start(&config.log.level, config.log.format)?;
            watch_parent(&args.flags)?;
            tier::run(config).map_err(ending)
        }
        Some(EdgeDaemonVerb::Init { site }) => {
            let named = site.as_deref().unwrap_or(config.site.as_str());
            if named != config.site.as_str() {
                return Err(Failure::usage(format!(
                    "--site says {named}, and {} says {}",
                    file.display(),
                    config.site
                ))
                .remedy("make them the same; a site's name stands in every certificate"));
            }
            let made = tier::init(&config).map_err(ending)?;
            say(&format!(
                "The site {} is set up.\n  CA      {}\n          sha256:{}\n\
                 Next: umbel edge --config {}\n      umbel ctl --socket {} token create NODE\n\
                 To join a control plane: umbel edge enroll --config {}",
                made.edge_id,
                made.ca_file.display(),
                made.ca_sha256,
                file.display(),
                config.listen.socket.display(),
                file.display(),
            ));
            Ok(())
        }
        Some(EdgeDaemonVerb::Enroll(source)) => {
            let token = secrets::read_enrollment_token(&source)?;
            let enrolled = tier::enroll(&config, &token).map_err(ending)?;
            if source.output.is_object() {
                let object = serde_json::json!({
                    "control_plane_id": enrolled.control_plane_id,
                    "edge_id": enrolled.edge_id,
                    "already": enrolled.already,
                });
                return print_object(&object, source.output);
            }
            let how = if enrolled.already { "was enrolled already" } else { "enrolled" };
            say(&format!(
                "{} {how} at the control plane {}. A running edge connects within seconds.",
                enrolled.edge_id, enrolled.control_plane_id
            ));
            Ok(())
        }
        Some(EdgeDaemonVerb::Doctor(flags)) => checks(&flags, &tier::doctor(&config)),
        Some(EdgeDaemonVerb::Backup(flags)) => store::backup(&flags, &config.listen.socket, |to| {
            let made = tier::backup(&config, to).map_err(ending)?;
            Ok(store::Copied { file: made.file, bytes: made.bytes, sha256: made.sha256 })
        }),
        Some(EdgeDaemonVerb::Restore(flags)) => store::restore(&flags, &file, "edge", |from| {
            let done = tier::restore(&config, from).map_err(ending)?;
            Ok(store::Replaced {
                incarnation: done.incarnation,
                made_at: done.made_at,
                voided: done.voided,
                kept: done.kept,
            })
        }),
    }
}

/// A site needs no more of a file than its name; one that is there stays.
fn write_first_file(file: &Path, site: &str) -> Outcome {
    let site =
        umbel_wire::EdgeId::parse(site).map_err(|error| Failure::usage(format!("--site {site}: {error}")))?;
    let made = std::fs::OpenOptions::new().write(true).create_new(true).open(file);
    let mut made = match made {
        Ok(made) => made,
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Ok(()),
        Err(error) => return Err(Failure::failed(format!("cannot make {}: {error}", file.display()))),
    };
    let text = format!("[edge]\nsite = \"{site}\"\n# Where nodes dial:\n# advertise = [\"HOST:7451\"]\n");
    made.write_all(text.as_bytes())?;
    say(&format!("Wrote {}", file.display()));
    Ok(())
}

/// `umbel node ...`
pub(crate) fn node(args: NodeArgs) -> Outcome {
    use umbel_node as tier;
    if let Some(NodeDaemonVerb::Enroll(source)) = &args.verb {
        // Before anything else: whatever else is wrong, the token must not be typed like this again.
        secrets::refuse_in_argv(source.in_argv())?;
    }
    let file = file_of(&args.flags, "node");
    let config = tier::Config::load(&file).map_err(ending)?;
    match args.verb {
        None if args.preflight => {
            let found = tier::preflight(&config).map_err(ending)?;
            put(&hardware::found(&found));
            Ok(())
        }
        None => {
            logging::start(&config.log_level, config.log_format)?;
            watch_parent(&args.flags)?;
            tier::run(config, crate::HOLDER).map_err(ending)
        }
        Some(NodeDaemonVerb::Enroll(source)) => {
            let token = secrets::read_enrollment_token(&source)?;
            let enrolled = tier::enroll(&config, &token).map_err(ending)?;
            if source.output.is_object() {
                return print_object(&enrolled, source.output);
            }
            let how = if enrolled.already { "Enrolled already" } else { "Enrolled" };
            say(&format!(
                "{how} at {} as {} ({}).\nNext: umbel node --config {}",
                enrolled.edge_id,
                enrolled.name,
                enrolled.node_id,
                file.display()
            ));
            Ok(())
        }
        Some(NodeDaemonVerb::StopEngines(flags)) => {
            let stopped = tier::stop_engines(&config).map_err(ending)?;
            if flags.output.is_object() {
                return print_object(&serde_json::json!({ "stopped": stopped }), flags.output);
            }
            match stopped.as_slice() {
                [] => say("No engine of this node was left running."),
                names => say(&format!("Stopped: {}", names.join(", "))),
            }
            Ok(())
        }
        Some(NodeDaemonVerb::Doctor(flags)) => checks(&flags, &tier::doctor(&config)),
        Some(NodeDaemonVerb::Status(flags)) => {
            let status = tier::status(&config.socket).map_err(ending)?;
            if flags.output.is_object() {
                return print_object(&status, flags.output);
            }
            put(&hardware::status(status));
            Ok(())
        }
    }
}

/// Ends this process in good order when the other end of standard input is gone.
fn watch_parent(flags: &DaemonFlags) -> Outcome {
    if !flags.parent_pipe {
        return Ok(());
    }
    let watch = || {
        let mut input = std::io::stdin().lock();
        let mut ignored = [0u8; 256];
        while matches!(input.read(&mut ignored), Ok(count) if count > 0) {}
        tracing::info!("the parent process is gone: ending");
        // A signal to oneself cannot fail; the daemon's own handler drains.
        let _ = kill_process(getpid(), Signal::TERM);
    };
    std::thread::Builder::new().name("parent".to_owned()).spawn(watch)?;
    Ok(())
}
