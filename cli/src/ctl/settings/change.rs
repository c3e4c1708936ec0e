//! `ctl settings set|unset|edit|rollback`: what would be different is known before it is done.
//!
//! Invariant: replacing the whole document is asked for with the difference; one site's failure hides no other's
//! success.

use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};

use serde_json::Value;
use umbel_contracts::operations::{
    SettingsChange, SettingsChangedResult, SettingsGetArgs, SettingsRollbackArgs, SettingsSetArgs,
};

use super::{
    difference,
    document::{document_of, read},
    get,
};
use crate::{
    args::SettingsVerb,
    calls::{Call, new_command_id},
    ctl::Ctl,
    exit::{Exit, Failure, Outcome},
    output::{count, say},
};

/// How long a site may take to store a version.
const WAIT: std::time::Duration = std::time::Duration::from_secs(10);

pub(super) async fn run(ctl: &Ctl, verb: &SettingsVerb) -> Outcome {
    match verb {
        SettingsVerb::Set { changes, file: None, base } => {
            let changes = changes.iter().map(|word| change_of(word)).collect::<Outcome<Vec<_>>>()?;
            set(ctl, SettingsSetArgs { changes, document: None, base_version: *base }).await
        }
        SettingsVerb::Set { file: Some(file), base, .. } => {
            let document = document_of(&read(file)?)?;
            set(ctl, SettingsSetArgs { changes: Vec::new(), document: Some(document), base_version: *base })
                .await
        }
        SettingsVerb::Unset { paths, base } => {
            let away = |path: &String| SettingsChange { path: path.clone(), value: Value::Null };
            let changes = paths.iter().map(away).collect();
            set(ctl, SettingsSetArgs { changes, document: None, base_version: *base }).await
        }
        SettingsVerb::Edit => edit(ctl).await,
        SettingsVerb::Rollback { version } => rollback(ctl, *version).await,
        _ => Err(Failure::usage("this changes nothing")),
    }
}

/// `PATH=VALUE`: JSON where it is JSON, else a text.
fn change_of(word: &str) -> Outcome<SettingsChange> {
    let pair = word.split_once('=').filter(|(path, _)| !path.is_empty());
    let Some((path, value)) = pair else {
        return Err(Failure::usage(format!("{word}: write it as PATH=VALUE"))
            .remedy("umbel ctl settings keys lists the paths"));
    };
    let value = serde_json::from_str(value).unwrap_or_else(|_| Value::String(value.to_owned()));
    Ok(SettingsChange { path: path.to_owned(), value })
}

/// Sends a change to each selected site.
async fn set(ctl: &Ctl, args: SettingsSetArgs) -> Outcome {
    let sites: Vec<String> = match &ctl.global.site {
        Some(_) => ctl.sites().await?.into_iter().map(|edge| edge.edge_id).collect(),
        None => vec![ctl.one_site().await?],
    };
    if args.document.is_some() && !ctl.global.dry_run {
        for site in &sites {
            let (changed, _) = send(ctl, site, "settings.set", &args, true).await?;
            // Whoever is not asked reads it once, when it is done.
            if changed.changed && !ctl.global.yes {
                say(&format!("Would change at {site}:\n{}", difference(&changed.diff).trim_end()));
            }
        }
        ctl.confirm("Replace the whole settings with this?")?;
    }
    let many = sites.len() > 1;
    let mut failed: Option<Failure> = None;
    for site in &sites {
        match send(ctl, site, "settings.set", &args, ctl.global.dry_run).await {
            Ok((changed, raw)) => tell(ctl, site, &changed, &raw),
            Err(failure) if many => {
                say(&failure.to_string());
                failed = failed.or(Some(failure.during(site)));
            }
            Err(failure) => return Err(failure),
        }
    }
    failed.map_or(Ok(()), Err)
}

async fn send<T: serde::Serialize>(
    ctl: &Ctl,
    site: &str,
    operation: &'static str,
    args: &T,
    dry_run: bool,
) -> Outcome<(SettingsChangedResult, String)> {
    let call = Call::new(operation).args(args)?.reason(ctl.global.reason.as_deref()).dry_run(dry_run);
    let id = match ctl.global.command_id {
        // What is only asked must not use up the id of what is then done.
        Some(id) if dry_run == ctl.global.dry_run => id.to_string(),
        _ => new_command_id(),
    };
    let told = ctl.client.command(site, &id, &call, WAIT).await?;
    told.check()?;
    if !told.command.phase.is_end() {
        return Err(Failure::new(Exit::TimedOut, format!("{site} has not stored it yet"))
            .remedy(format!("umbel ctl command watch {id} --site {site}")));
    }
    Ok((told.result()?, told.result_raw()?))
}

fn tell(ctl: &Ctl, site: &str, changed: &SettingsChangedResult, raw: &str) {
    if ctl.put_object(raw) {
        return;
    }
    let lines = difference(&changed.diff);
    let lines = lines.trim_end();
    let nodes = count(usize::try_from(changed.nodes).unwrap_or(usize::MAX), "node");
    let text = match (changed.changed, ctl.global.dry_run) {
        (false, _) => format!("Nothing is different at {site}; version {} stays.", changed.version),
        (true, true) => format!("Would be version {} at {site}, for {nodes}:\n{lines}", changed.version),
        (true, false) => format!(
            "{lines}\nVersion {} at {site}, for {nodes}. How far it is: umbel ctl settings status --site {site}\n\
             Undo: umbel ctl settings rollback {} -m 'why' --site {site}",
            changed.version,
            changed.version.saturating_sub(1),
        ),
    };
    say(&text);
}

async fn rollback(ctl: &Ctl, version: u64) -> Outcome {
    ctl.reason_for("rolling settings back")?;
    let site = ctl.one_site().await?;
    let args = SettingsRollbackArgs { version };
    let (changed, raw) = send(ctl, &site, "settings.rollback", &args, ctl.global.dry_run).await?;
    tell(ctl, &site, &changed, &raw);
    Ok(())
}

/// The document in an editor; what comes back replaces it, if nobody else changed it meanwhile.
async fn edit(ctl: &Ctl) -> Outcome {
    let site = ctl.one_site().await?;
    let (got, _) = get(ctl, &site, &SettingsGetArgs::default()).await?;
    let before =
        serde_json::to_string_pretty(&got.document).map_err(|error| Failure::failed(error.to_string()))?;
    let after = document_of(&edited(&site, &before)?)?;
    if after == got.document {
        say("Nothing is different.");
        return Ok(());
    }
    let args =
        SettingsSetArgs { changes: Vec::new(), document: Some(after), base_version: Some(got.version) };
    let (changed, raw) = send(ctl, &site, "settings.set", &args, ctl.global.dry_run).await?;
    tell(ctl, &site, &changed, &raw);
    Ok(())
}

fn edited(site: &str, text: &str) -> Outcome<String> {
    let name = |key: &str| std::env::var(key).ok().filter(|value| !value.trim().is_empty());
    let editor = name("VISUAL").or_else(|| name("EDITOR")).unwrap_or_else(|| "vi".to_owned());
    let path = std::env::temp_dir().join(format!("umbel-settings-{site}-{}.json", std::process::id()));
    let made = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
    let written = made.and_then(|mut file| writeln!(file, "{text}"));
    written.map_err(|error| Failure::failed(format!("cannot write {}: {error}", path.display())))?;
    // An editor may come with its own flags, as `code --wait`.
    let mut words = editor.split_whitespace();
    let program = words.next().unwrap_or("vi");
    let status = std::process::Command::new(program).args(words).arg(&path).status();
    let back = std::fs::read_to_string(&path);
    let _ = std::fs::remove_file(&path);
    match status {
        Ok(status) if status.success() => Ok(back?),
        Ok(status) => Err(Failure::failed(format!("the editor ended with {status}; nothing was changed"))),
        Err(error) => Err(Failure::usage(format!("cannot start the editor {program}: {error}"))
            .remedy("set EDITOR, or: umbel ctl settings set PATH=VALUE")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use serde_json::json;

    use super::change_of;

    #[test]
    fn a_value_is_json_or_a_text() {
        for (word, path, value) in [
            ("a.b=8", "a.b", json!(8)),
            ("a.b=true", "a.b", json!(true)),
            ("a.b=30s", "a.b", json!("30s")),
            ("a.b=\"8\"", "a.b", json!("8")),
            ("a.b=[\"x\"]", "a.b", json!(["x"])),
            ("a.b=null", "a.b", json!(null)),
            ("a.b=", "a.b", json!("")),
            ("a.b=x=y", "a.b", json!("x=y")),
        ] {
            let change = change_of(word).unwrap();
            assert_eq!((change.path.as_str(), change.value), (path, value), "{word}");
        }
        assert!(change_of("a.b").is_err() && change_of("=1").is_err());
    }
}
