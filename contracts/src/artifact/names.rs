//! Names that come over the wire and become paths.
//!
//! Owns what is legal; a name that is not is refused, never mended. Invariant: a legal name stays below the folder it is
//! put into, and looks to a person as what it is.

use crate::names::is_unseen;

/// Bytes of a file's whole name, as the boundary bears it, and of one part of it, as file systems do.
const PATH_MAX: usize = 512;
const PART_MAX: usize = 255;
/// Folders deep: no hub has more, and each is opened for its own sync.
const DEPTH_MAX: usize = 16;
/// Bytes of a repository's name and of a revision: each becomes one folder's name.
const REPOSITORY_MAX: usize = 200;
const REVISION_MAX: usize = 128;

/// Checks a file's name within an artifact.
///
/// # Errors
/// A sentence with the name and what is wrong with it.
pub fn check_path(path: &str) -> Result<(), String> {
    let refused = |why: &str| Err(format!("{} {why}", shown(path)));
    if path.is_empty() {
        return Err("a file's name is empty".into());
    }
    if path.len() > PATH_MAX {
        return Err(format!("{} is longer than {PATH_MAX} bytes", shown(path)));
    }
    if path.starts_with('/') {
        return refused("is absolute: a file's name starts within its artifact");
    }
    if let Some(odd) = path.chars().find(|c| is_odd(*c)) {
        return Err(format!(
            "{} has a character that no file's name may have ({})",
            shown(path),
            odd.escape_unicode()
        ));
    }
    let mut depth = 0;
    for part in path.split('/') {
        depth += 1;
        match part {
            "" => return refused("has an empty part"),
            "." | ".." => return refused("has a part \".\" or \"..\": it could lead out of its artifact"),
            _ if part.len() > PART_MAX => {
                return Err(format!("{} has a part of more than {PART_MAX} bytes", shown(path)));
            }
            _ if part.trim() != part => return refused("has a part that begins or ends with a blank"),
            _ if part.to_lowercase().starts_with(".umbel-") => {
                return refused("has a part that begins with \".umbel-\": such names are the node's own");
            }
            _ => {}
        }
    }
    if depth > DEPTH_MAX { refused("has more than 16 parts") } else { Ok(()) }
}

/// Checks a repository's name: `NAME` or `ORG/NAME`, as hubs have it.
///
/// # Errors
/// A sentence with the name and what is wrong with it.
pub fn check_repository(repository: &str) -> Result<(), String> {
    // "--" stands for the slash in the folder's name: with it in a part, two repositories would share a folder.
    let legal = |part: &str| is_word(part) && !part.contains("--");
    if repository.len() > REPOSITORY_MAX || !repository.split('/').all(legal) {
        return Err(format!(
            "{} is no repository: letters, digits, '-', '_' and '.' with '/' between parts, each beginning with a letter or \
             digit, without \"--\" or \"..\", at most {REPOSITORY_MAX} bytes",
            shown(repository)
        ));
    }
    Ok(())
}

/// Checks the form of a revision: a commit or a tag, one word.
///
/// # Errors
/// A sentence with the revision and what is wrong with it.
pub fn check_revision(revision: &str) -> Result<(), String> {
    if revision.len() > REVISION_MAX || !is_word(revision) {
        return Err(format!(
            "{} is no revision: 1 to {REVISION_MAX} letters, digits, '-', '_' and '.', beginning with a letter or digit, without \"..\"",
            shown(revision)
        ));
    }
    Ok(())
}

fn is_word(part: &str) -> bool {
    part.starts_with(|c: char| c.is_ascii_alphanumeric())
        && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        && !part.contains("..")
}

/// What moves out of a folder, names a drive or a stream, hides, or looks like a slash.
fn is_odd(c: char) -> bool {
    is_unseen(c)
        || matches!(
            c,
            '\\' | ':'
                // Fraction, division and big slashes, their reverses, and the wide forms of both.
                | '\u{2044}' | '\u{2215}' | '\u{2216}' | '\u{27CB}' | '\u{27CD}' | '\u{29F5}'
                ..='\u{29F9}' | '\u{FE68}' | '\u{FF0F}' | '\u{FF3C}'
        )
}

/// A name for an error: short, and with nothing in it that a terminal or a log would obey.
fn shown(name: &str) -> String {
    let mut short: String = name.chars().take(80).flat_map(char::escape_default).collect();
    if name.chars().nth(80).is_some() {
        short.push_str("...");
    }
    format!("\"{short}\"")
}
