//! The chain of an audit: checked by the server, exported, and checked again from the exported file alone.
//!
//! Owns the arithmetic of an exported file, so that it needs no trust in the server that wrote it. Invariant: a file is
//! whole only if each hash is that of its entry behind the one before it, no number is left out, and no entry in it
//! tells of others that a rescue lost.

use std::{
    fs::{File, OpenOptions},
    io::{BufRead as _, BufReader, BufWriter, Write as _},
    os::unix::fs::OpenOptionsExt as _,
    path::Path,
};

use data_encoding::HEXLOWER;
use sha2::{Digest as _, Sha256};
use umbel_contracts::operations::{AuditExportArgs, AuditExportResult, AuditLine, AuditVerifyResult};

use crate::{
    calls::Call,
    client::parse,
    ctl::Ctl,
    exit::{Exit, Failure, Outcome},
    output::{Format, line, members, put, say},
};

/// Lines on one page.
const PAGE: u32 = 1000;

/// Asks for the check of the whole chain.
pub(super) async fn verify(ctl: &Ctl) -> Outcome {
    let (raw, whose) = match &ctl.global.site {
        Some(_) => {
            let site = ctl.one_site().await?;
            let told = ctl.client.ask(&site, &Call::new("audit.verify")).await?;
            (told.result_raw()?, format!("the audit of {site}"))
        }
        None => {
            let answer = ctl.client.get("/api/v1/audit/verify").await?;
            (answer.raw()?.to_owned(), "the server's audit".to_owned())
        }
    };
    tell(ctl, &raw, &parse(&raw)?, &whose)
}

fn tell(ctl: &Ctl, raw: &str, found: &AuditVerifyResult, whose: &str) -> Outcome {
    if !ctl.put_object(raw) {
        put(&format!(
            "{} entries, numbers {} to {}: {}\nhead sha256:{}\n",
            found.entries, found.first_sequence, found.last_sequence, found.message, found.last_hash
        ));
    }
    if found.whole {
        return Ok(());
    }
    let at = found.broken_at.map_or_else(String::new, |at| format!(" at number {at}"));
    Err(Failure::new(Exit::Condition, format!("{whose} is not whole{at}"))
        .remedy("compare with an earlier export: umbel ctl audit verify --file FILE"))
}

/// Writes the chain page by page.
pub(super) async fn export(ctl: &Ctl, after: Option<u64>, out: Option<&Path>) -> Outcome {
    if !matches!(ctl.global.output, Format::Table | Format::Jsonl) {
        return Err(Failure::usage("an export is one JSON object a line and nothing else: leave out -o"));
    }
    let site = match &ctl.global.site {
        Some(_) => Some(ctl.one_site().await?),
        None => None,
    };
    let mut file = match out {
        None => None,
        Some(path) => {
            let made = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
            let made =
                made.map_err(|error| Failure::usage(format!("cannot make {}: {error}", path.display())))?;
            Some((BufWriter::new(made), path))
        }
    };
    let (mut after, mut lines) = (after, 0_u64);
    loop {
        let raw = page(ctl, site.as_deref(), after).await?;
        let result: AuditExportResult = parse(&raw)?;
        for entry in members(&raw, "lines") {
            lines += 1;
            match &mut file {
                Some((file, _)) => file.write_all(line(entry.get()).as_bytes())?,
                None => put(&line(entry.get())),
            }
        }
        if result.next_after.is_none() || result.next_after == after {
            break;
        }
        after = result.next_after;
    }
    if let Some((mut file, path)) = file {
        file.flush()?;
        file.get_ref().sync_all()?;
        say(&format!(
            "{lines} records are in {}. Check it any time: umbel ctl audit verify --file {0}",
            path.display()
        ));
    }
    Ok(())
}

async fn page(ctl: &Ctl, site: Option<&str>, after: Option<u64>) -> Outcome<String> {
    match site {
        Some(site) => {
            let args = AuditExportArgs { after, limit: Some(PAGE) };
            let told = ctl.client.ask(site, &Call::new("audit.export").args(&args)?).await?;
            told.result_raw()
        }
        None => {
            let after = after.map_or_else(String::new, |after| format!("&after={after}"));
            let answer = ctl.client.get(&format!("/api/v1/audit/export?limit={PAGE}{after}")).await?;
            Ok(answer.raw()?.to_owned())
        }
    }
}

/// Checks an exported file by itself.
pub(super) fn verify_file(ctl: &Ctl, path: &Path) -> Outcome {
    let file = File::open(path)
        .map_err(|error| Failure::usage(format!("cannot read {}: {error}", path.display())))?;
    let found = check(BufReader::new(file).lines())?;
    let raw = serde_json::to_string(&found).map_err(|error| Failure::failed(error.to_string()))?;
    tell(ctl, &raw, &found, &path.display().to_string())
}

/// A line of an export, and nothing beside it: a key more would be read by people, and no hash covers it.
#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    sequence: u64,
    previous: String,
    entry: String,
    hash: String,
}

/// A line as text, or that it is no text; an error is one of reading.
type Read = std::io::Result<String>;

fn check(lines: impl Iterator<Item = Read>) -> Outcome<AuditVerifyResult> {
    let mut found = AuditVerifyResult {
        whole: true,
        entries: 0,
        first_sequence: 0,
        last_sequence: 0,
        last_hash: String::new(),
        broken_at: None,
        message: "the chain is whole".to_owned(),
    };
    let mut lost = None;
    for (number, text) in lines.enumerate() {
        let line = match text {
            Ok(text) if text.trim().is_empty() => continue,
            Ok(text) => serde_json::from_str::<Line>(&text).map_err(|error| error.to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::InvalidData => Err(error.to_string()),
            Err(error) => return Err(error.into()),
        };
        let line = match line {
            Ok(Line { sequence, previous, entry, hash }) => AuditLine { sequence, previous, entry, hash },
            Err(error) => {
                (found.whole, found.message) = (false, format!("line {} is no record: {error}", number + 1));
                return Ok(found);
            }
        };
        let wrong = wrong(&found, &line);
        if found.entries == 0 {
            found.first_sequence = line.sequence;
        }
        found.entries += 1;
        if let Some(message) = wrong {
            (found.whole, found.broken_at, found.message) = (false, Some(line.sequence), message);
            return Ok(found);
        }
        (found.last_sequence, found.last_hash) = (line.sequence, line.hash);
        lost = rescued(&line.entry).or(lost);
    }
    if let Some(lost) = lost {
        // As the server that exported it says of its own.
        let what = format!(
            "the entries follow from each other, but a rescue from a damaged file cut the chain: {lost}"
        );
        (found.whole, found.message) = (false, what);
    }
    if found.entries == 0 {
        (found.whole, found.message) = (false, "no record is in it".to_owned());
    }
    Ok(found)
}

/// What is wrong with a line behind those that were found good.
fn wrong(found: &AuditVerifyResult, line: &AuditLine) -> Option<String> {
    if found.entries > 0 && found.last_sequence.checked_add(1) != Some(line.sequence) {
        Some(format!("after number {} comes {}", found.last_sequence, line.sequence))
    } else if found.entries > 0 && line.previous != found.last_hash {
        Some(format!("number {} does not follow the one before it", line.sequence))
    } else if hash(line).as_ref() != Some(&line.hash) {
        Some(format!("number {} is not what was hashed", line.sequence))
    } else if let Some(own) = own_number(&line.entry).filter(|own| *own != line.sequence) {
        Some(format!("the entry of number {} is that of number {own}", line.sequence))
    } else if own_number(&line.entry).is_none() {
        Some(format!("number {} has an entry without a number", line.sequence))
    } else {
        None
    }
}

/// What an entry says of itself, as far as the check needs it.
#[derive(serde::Deserialize)]
struct Said {
    sequence: u64,
    #[serde(default)]
    action: String,
    #[serde(default)]
    detail: String,
}

fn own_number(entry: &str) -> Option<u64> {
    serde_json::from_str::<Said>(entry).ok().map(|said| said.sequence)
}

/// The entries that a rescue lost, in the words of its own entry.
fn rescued(entry: &str) -> Option<String> {
    let said = serde_json::from_str::<Said>(entry).ok().filter(|said| said.action == "store.rescued")?;
    said.detail.rsplit_once("; ").map(|(_, lost)| lost.to_owned()).filter(|lost| lost.contains("are lost"))
}

/// SHA-256 over the previous hash and the entry's text, as the operation says.
fn hash(line: &AuditLine) -> Option<String> {
    let previous = HEXLOWER.decode(line.previous.as_bytes()).ok()?;
    let digest = Sha256::new().chain_update(previous).chain_update(line.entry.as_bytes()).finalize();
    Some(HEXLOWER.encode(&digest))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::{AuditLine, check, hash};

    fn chain() -> Vec<AuditLine> {
        let mut previous = "0".repeat(64);
        (5..9)
            .map(|sequence| {
                let entry = format!("{{\"sequence\":{sequence}}}");
                let mut line = AuditLine { sequence, previous: previous.clone(), entry, hash: String::new() };
                line.hash = hash(&line).unwrap();
                previous.clone_from(&line.hash);
                line
            })
            .collect()
    }

    fn checked(lines: &[AuditLine]) -> (bool, Option<u64>) {
        let texts = lines.iter().map(|line| Ok(serde_json::to_string(line).unwrap()));
        let found = check(texts).unwrap();
        (found.whole, found.broken_at)
    }

    #[test]
    fn a_whole_file_is_whole_and_each_change_is_found() {
        assert_eq!(checked(&chain()), (true, None));
        let mut changed = chain();
        changed.get_mut(1).unwrap().entry.push(' ');
        assert_eq!(checked(&changed), (false, Some(6)));
        let mut cut = chain();
        cut.remove(2);
        assert_eq!(checked(&cut), (false, Some(8)));
        let mut rehashed = chain();
        let line = rehashed.get_mut(1).unwrap();
        line.entry.push(' ');
        line.hash = hash(line).unwrap();
        assert_eq!(checked(&rehashed), (false, Some(7)));
    }

    fn of(sequence: u64, entry: &str) -> AuditLine {
        let mut line =
            AuditLine { sequence, previous: "0".repeat(64), entry: entry.to_owned(), hash: String::new() };
        line.hash = hash(&line).unwrap();
        line
    }

    /// The number of a line is outside of its hash: it has to be the entry's own.
    #[test]
    fn a_line_that_lies_about_its_number_is_found() {
        assert_eq!(checked(&[of(7, r#"{"sequence":7}"#)]), (true, None));
        assert_eq!(checked(&[of(8, r#"{"sequence":7}"#)]), (false, Some(8)));
        assert_eq!(checked(&[of(8, r#"{"action":"x"}"#)]), (false, Some(8)));
    }

    /// A rescue's own entry says which entries it lost: without them the chain is not whole, wherever it is checked.
    #[test]
    fn an_export_after_a_rescue_is_not_whole() {
        let entry = |detail: &str| {
            of(
                13,
                &serde_json::json!({ "sequence": 13, "action": "store.rescued", "detail": detail })
                    .to_string(),
            )
        };
        let kept =
            "read out of a damaged file, which was moved aside: 52 records were kept, 0 could not be used";
        assert_eq!(checked(&[entry(kept)]), (true, None));
        let lost = entry(&format!("{kept}; 12 audit entries are lost, numbers 1 to 12"));
        let found = check(std::iter::once(Ok(serde_json::to_string(&lost).unwrap()))).unwrap();
        assert!(
            !found.whole && found.message.ends_with("12 audit entries are lost, numbers 1 to 12"),
            "{found:?}"
        );
    }

    #[test]
    fn what_is_no_record_is_not_whole_either() {
        let broken = |texts: Vec<std::io::Result<String>>| {
            let found = check(texts.into_iter()).unwrap();
            assert!(!found.whole, "{found:?}");
            found.message
        };
        assert_eq!(broken(Vec::new()), "no record is in it");
        let good: Vec<String> = chain().iter().map(|line| serde_json::to_string(line).unwrap()).collect();
        let mut cut = good.clone();
        let last = cut.last_mut().unwrap();
        last.truncate(last.len() - 9);
        assert!(broken(cut.into_iter().map(Ok).collect()).starts_with("line 4 is no record"));
        let mut more = good.clone();
        *more.get_mut(1).unwrap() = good.get(1).unwrap().replacen('{', "{\"actor\":\"evil\",", 1);
        assert!(broken(more.into_iter().map(Ok).collect()).contains("unknown field `actor`"));
        let no_text = std::io::Error::new(std::io::ErrorKind::InvalidData, "no UTF-8");
        assert!(broken(vec![Err(no_text)]).starts_with("line 1 is no record"));
        let failing = std::io::Error::other("the disk");
        assert!(check(std::iter::once(Err(failing))).is_err());
    }
}
