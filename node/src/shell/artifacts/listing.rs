//! The list of an artifact's files, resolved at a source: exact revision, names, sizes, digests.
//!
//! For whoever writes a deployment's document; an agent never asks for it. Owns a hub's two questions (which commit a name
//! is, and which files it has), fetching what a hub gives no digest of, and hashing a directory. Invariant: a list is whole, or
//! an error.

use std::{fs, path::Path, time::Duration};

use data_encoding::HEXLOWER;
use http_body_util::{BodyExt as _, Limited};
use hyper::{
    StatusCode,
    body::{Bytes, Incoming},
    header,
};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use umbel_contracts::artifact::{
    ArtifactFile, HubFile, check_files, check_repository, check_revision, hub_tree,
};

use super::{
    http::{Client, Trouble},
    sink::block,
};
use crate::{config::Remote, core::artifacts::Patience};

/// Bytes of one page of a hub's list, and pages: a thousand files each.
const PAGE_MAX: usize = 4 * 1024 * 1024;
const PAGES_MAX: usize = 20;
/// A file that a hub gives no digest of is a text; one above that is refused rather than fetched.
const FETCHED_MAX: u64 = 64 * 1024 * 1024;
/// The time that a page has once its head has come; a file has more, by its size.
const PAGE_TIME: Duration = Duration::from_secs(60);
/// A hub that sends less of a file in a second is not waited for.
const SLOWEST: u64 = 64 * 1024;

/// What a list was resolved to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Resolved {
    /// The commit that the revision stands for now.
    pub revision: String,
    /// Its files, those that were wanted.
    pub files: Vec<ArtifactFile>,
}

#[derive(Deserialize)]
struct Commit {
    sha: String,
}

/// Resolves a repository at a hub. `told` hears of each file that has to be fetched to know its digest.
///
/// # Errors
/// One sentence.
pub async fn resolve_at_hub(
    remote: &Remote,
    repository: &str,
    revision: &str,
    wanted: impl Fn(&str) -> bool,
    mut told: impl FnMut(&HubFile),
) -> Result<Resolved, String> {
    check_repository(repository)?;
    check_revision(revision)?;
    let patience = Patience::default();
    let mut client = Client::new("hub", remote, &patience).map_err(|failure| failure.says)?;
    let revision = commit(&mut client, repository, revision).await?;
    let listed = tree(&mut client, repository, &revision, wanted).await?;
    if listed.is_empty() {
        return Err(format!(
            "{repository}@{revision} has no file that is wanted: see --include and --exclude"
        ));
    }
    let mut files = Vec::with_capacity(listed.len());
    for file in listed {
        let sha256 = match &file.sha256 {
            Some(sha256) => sha256.clone(),
            None => {
                told(&file);
                hashed(&mut client, repository, &revision, &file).await?
            }
        };
        files.push(ArtifactFile { path: file.path, bytes: file.bytes, sha256 });
    }
    check_files(&files).map_err(|fault| fault.to_string())?;
    Ok(Resolved { revision, files })
}

/// Lists a folder of this host: every plain file below it, hashed.
///
/// # Errors
/// One sentence, with the path.
pub fn resolve_in_folder(folder: &Path, wanted: impl Fn(&str) -> bool) -> Result<Vec<ArtifactFile>, String> {
    let mut files = Vec::new();
    let mut waiting = vec![(folder.to_owned(), String::new())];
    while let Some((at, within)) = waiting.pop() {
        let said = |error: std::io::Error| format!("{}: {error}", at.display());
        for entry in fs::read_dir(&at).map_err(said)? {
            let entry = entry.map_err(said)?;
            let name =
                entry.file_name().into_string().map_err(|name| format!("{}: no UTF-8", name.display()))?;
            let (path, place) = (format!("{within}{name}"), entry.path());
            let facts = fs::metadata(&place).map_err(|error| format!("{}: {error}", place.display()))?;
            if facts.is_dir() {
                // Links to folders are not walked: they may lead round.
                if entry.file_type().map_err(said)?.is_dir() {
                    waiting.push((place, format!("{path}/")));
                }
            } else if facts.is_file() && wanted(&path) {
                files.push(of_disk(&place, path)?);
            }
        }
    }
    files.sort_unstable_by(|a, b| a.path.cmp(&b.path));
    check_files(&files).map_err(|fault| fault.to_string())?;
    Ok(files)
}

pub(super) fn of_disk(place: &Path, path: String) -> Result<ArtifactFile, String> {
    let said = |error: std::io::Error| format!("{}: {error}", place.display());
    let mut file = fs::File::open(place).map_err(said)?;
    let (mut hash, mut bytes) = (Sha256::new(), 0);
    loop {
        let piece = block(&mut file, u64::MAX).map_err(said)?;
        if piece.is_empty() {
            return Ok(ArtifactFile { path, bytes, sha256: HEXLOWER.encode(&hash.finalize()) });
        }
        hash.update(&piece);
        bytes += piece.len() as u64;
    }
}

fn sentence(trouble: Trouble) -> String {
    match trouble {
        Trouble::Later { says, .. } => says,
        Trouble::Never(failure) => failure.says,
    }
}

/// One small answer, and the query of the page after it.
async fn page(client: &mut Client, path: &str, query: &str) -> Result<(Vec<u8>, Option<String>), String> {
    let response = client.ask_for(path, query).await.map_err(sentence)?;
    match response.status() {
        StatusCode::OK => {}
        StatusCode::NOT_FOUND => return Err("the hub has no such repository or revision".into()),
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
            return Err(
                "the hub refuses: the repository may not exist, or needs a token that may read it".into()
            );
        }
        other => return Err(format!("the hub answers {}", other.as_u16())),
    }
    let next = response.headers().get(header::LINK).and_then(|link| next_query(link.to_str().ok()?));
    let body = whole(response.into_body(), PAGE_MAX, PAGE_TIME).await;
    let body = body.map_err(|why| format!("the hub's answer {why}"))?;
    Ok((body.to_vec(), next))
}

/// A body of at most so many bytes, all of it within a time; else what was wrong with it.
async fn whole(body: Incoming, most: usize, time: Duration) -> Result<Bytes, String> {
    match tokio::time::timeout(time, Limited::new(body, most).collect()).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(_)) => Err("broke off, or is longer than it may be".to_owned()),
        Err(_) => Err(format!("was not whole within {} s", time.as_secs())),
    }
}

/// The query in `<URL>; rel="next"`.
fn next_query(link: &str) -> Option<String> {
    let next = link.split(',').find(|part| part.contains("rel=\"next\""))?;
    let url = next.split_once('<')?.1.split_once('>')?.0;
    url.split_once('?').map(|(_, query)| query.to_owned())
}

/// The commit that a branch or tag stands for; what is a commit stays one.
async fn commit(client: &mut Client, repository: &str, revision: &str) -> Result<String, String> {
    if revision.len() == 40 && revision.bytes().all(|byte| byte.is_ascii_hexdigit()) {
        return Ok(revision.to_owned());
    }
    let (body, _) = page(client, &format!("api/models/{repository}/revision/{revision}"), "").await?;
    let commit: Commit = serde_json::from_slice(&body)
        .map_err(|error| format!("the hub does not say which commit it is: {error}"))?;
    check_revision(&commit.sha)?;
    Ok(commit.sha)
}

async fn tree(
    client: &mut Client,
    repository: &str,
    revision: &str,
    wanted: impl Fn(&str) -> bool,
) -> Result<Vec<HubFile>, String> {
    let path = format!("api/models/{repository}/tree/{revision}");
    let (mut query, mut files) = ("recursive=true".to_owned(), Vec::new());
    for _ in 0..PAGES_MAX {
        let (body, next) = page(client, &path, &query).await?;
        files.extend(hub_tree(&body, &wanted)?);
        let Some(next) = next else { return Ok(files) };
        query = next;
    }
    Err("the hub's list has too many pages".into())
}

/// The digest of a small file that the hub gives none of.
async fn hashed(
    client: &mut Client,
    repository: &str,
    revision: &str,
    file: &HubFile,
) -> Result<String, String> {
    let HubFile { path, bytes, .. } = file;
    if *bytes > FETCHED_MAX {
        return Err(format!("the hub gives no SHA-256 of {path:?}, and it is too large to fetch for that"));
    }
    let response =
        client.get(&format!("{repository}/resolve/{revision}/{path}"), None).await.map_err(sentence)?;
    if response.status() != StatusCode::OK {
        return Err(format!("the hub answers {} for {path:?}", response.status().as_u16()));
    }
    let most = usize::try_from(*bytes).unwrap_or(usize::MAX);
    let time = PAGE_TIME + Duration::from_secs(bytes / SLOWEST);
    let body = whole(response.into_body(), most, time).await.map_err(|why| format!("{path:?} {why}"))?;
    if body.len() != most {
        return Err(format!("{path:?} is smaller than the hub says"));
    }
    Ok(HEXLOWER.encode(&Sha256::digest(&body)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_page_is_found() {
        let link = r#"<https://hub/api/models/a/b/tree/r?recursive=true&cursor=x%3D>; rel="next""#;
        assert_eq!(next_query(link).as_deref(), Some("recursive=true&cursor=x%3D"));
        assert_eq!(next_query(r#"<https://hub/x?y>; rel="prev""#), None);
    }

    #[test]
    fn a_folder_is_listed_and_hashed() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("sub")).unwrap();
        fs::write(folder.path().join("sub/b"), b"b").unwrap();
        fs::write(folder.path().join("a"), b"model").unwrap();
        fs::write(folder.path().join("c.md"), b"x").unwrap();
        std::os::unix::fs::symlink("..", folder.path().join("round")).unwrap();
        let files = resolve_in_folder(folder.path(), |path| !path.ends_with(".md")).unwrap();
        let seen: Vec<_> = files.iter().map(|file| (file.path.as_str(), file.bytes)).collect();
        assert_eq!(seen, [("a", 5), ("sub/b", 1)]);
        assert_eq!(files[0].sha256, HEXLOWER.encode(&Sha256::digest(b"model")));
        assert!(resolve_in_folder(folder.path(), |_| false).is_err());
    }
}
