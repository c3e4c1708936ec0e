//! `[artifacts]` and `[[source]]` of `node.toml`: where models are kept, and where their files may come from.
//!
//! Owns their keys, defaults and bounds; leaves whether the places can be used to `shell/places`. Invariant: a secret is
//! named by its file, and never sent where others can read it.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::Deserialize;
use umbel_contracts::config::{ByteSize, ConfigError, ConfigFile};

use super::{Artifacts, Remote, Source as Checked};

/// Artifact roots: with the two below, a report has at most 32.
const ROOTS_MAX: usize = 30;
/// Names of roots that are reported beside them.
const RESERVED_ROOTS: [&str; 2] = ["state", "quarantine"];
/// Sources: a list that a person writes.
const SOURCES_MAX: usize = 32;
/// What is left free unless the file says otherwise: logs and state of a host go on when a download fills its disk.
const RESERVE: ByteSize = ByteSize::mebibytes(4 * 1024);

#[derive(Deserialize, Default)]
#[serde(deny_unknown_fields)]
pub(super) struct Table {
    quarantine: Option<PathBuf>,
    reserve: Option<ByteSize>,
    #[serde(default)]
    roots: BTreeMap<String, PathBuf>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Source {
    name: String,
    kind: Kind,
    url: Option<String>,
    path: Option<PathBuf>,
    token_file: Option<PathBuf>,
    ca_file: Option<PathBuf>,
}

#[derive(Deserialize, Clone, Copy, PartialEq, Eq)]
#[serde(rename_all = "lowercase")]
enum Kind {
    Hub,
    Mirror,
    Directory,
}

pub(super) fn check(
    source: &ConfigFile,
    table: Table,
    sources: Vec<Source>,
    path: &impl Fn(&Path) -> PathBuf,
) -> Result<Artifacts, ConfigError> {
    if table.roots.len() > ROOTS_MAX {
        return Err(source.error("artifacts.roots", format!("there are more than {ROOTS_MAX}")));
    }
    for name in table.roots.keys() {
        if !is_name(name) || RESERVED_ROOTS.contains(&name.as_str()) {
            let says = "a root's name has 1 to 63 lower-case letters, digits and '-', and is not state or quarantine";
            return Err(source.error(&format!("artifacts.roots.{name}"), says));
        }
    }
    if table.quarantine.is_none() && !table.roots.is_empty() {
        return Err(source.error(
            "artifacts.roots",
            "needs artifacts.quarantine: what is fetched waits there until it is checked",
        ));
    }
    if sources.len() > SOURCES_MAX {
        return Err(source.error("source", format!("there are more than {SOURCES_MAX}")));
    }
    let mut by_name = BTreeMap::new();
    for (index, entry) in sources.into_iter().enumerate() {
        let wrong = |key: &str, says: &str| source.error(&format!("source[{index}].{key}"), says);
        if !is_name(&entry.name) {
            return Err(wrong("name", "a source's name has 1 to 63 lower-case letters, digits and '-'"));
        }
        let name = entry.name.clone();
        let checked = entry.check(path).map_err(|(key, says)| wrong(key, says))?;
        if by_name.insert(name, checked).is_some() {
            return Err(wrong("name", "another source has that name already"));
        }
    }
    Ok(Artifacts {
        quarantine: table.quarantine.as_deref().map(path),
        roots: table.roots.iter().map(|(name, root)| (name.clone(), path(root))).collect(),
        reserve: table.reserve.unwrap_or(RESERVE).0,
        sources: by_name,
    })
}

impl Remote {
    /// A server by its URL, for whoever asks it without a node's file. A token in clear is refused unless the server is on
    /// this host.
    ///
    /// # Errors
    /// What is wrong with the URL, or with the files beside it.
    pub fn parse(
        url: &str,
        token_file: Option<PathBuf>,
        ca_file: Option<PathBuf>,
    ) -> Result<Self, &'static str> {
        let (secure, authority, base_path) = parse_url(url)?;
        if token_file.is_some() && !secure && !is_here(&authority) {
            return Err("the token would be sent in clear: use https://");
        }
        if ca_file.is_some() && !secure {
            return Err("a CA is only for https://");
        }
        Ok(Self { secure, authority, base_path, token_file, ca_file })
    }
}

fn is_name(name: &str) -> bool {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    (1..=63).contains(&name.len()) && name.chars().all(fits)
}

impl Source {
    /// The key that is wrong, and why.
    fn check(self, path: &impl Fn(&Path) -> PathBuf) -> Result<Checked, (&'static str, &'static str)> {
        if self.kind == Kind::Directory {
            for (key, there) in [
                ("url", self.url.is_some()),
                ("token_file", self.token_file.is_some()),
                ("ca_file", self.ca_file.is_some()),
            ] {
                if there {
                    return Err((key, "is only for sources of kind \"hub\" and \"mirror\""));
                }
            }
            let folder = self.path.filter(|path| !path.as_os_str().is_empty());
            let folder = folder.ok_or(("path", "is missing: the directory that holds the repositories"))?;
            return Ok(Checked::Directory(path(&folder)));
        }
        if self.path.is_some() {
            return Err(("path", "is only for sources of kind \"directory\""));
        }
        let url = self.url.as_deref().ok_or(("url", "is missing: https://HOST of the server"))?;
        let (secure, authority, base_path) = parse_url(url).map_err(|why| ("url", why))?;
        if self.token_file.is_some() && !secure && !is_here(&authority) {
            return Err(("token_file", "would be sent in clear: use https://, or a source without a token"));
        }
        if self.ca_file.is_some() && !secure {
            return Err(("ca_file", "is only for https://"));
        }
        let remote = Remote {
            secure,
            authority,
            base_path,
            token_file: self.token_file.as_deref().map(path),
            ca_file: self.ca_file.as_deref().map(path),
        };
        Ok(if self.kind == Kind::Hub { Checked::Hub(remote) } else { Checked::Mirror(remote) })
    }
}

/// A URL into whether it is over TLS, `HOST:PORT` and the path.
fn parse_url(url: &str) -> Result<(bool, String, String), &'static str> {
    let (secure, rest) = match (url.strip_prefix("https://"), url.strip_prefix("http://")) {
        (Some(rest), _) => (true, rest),
        (_, Some(rest)) => (false, rest),
        _ => return Err("must begin with https:// or http://"),
    };
    let (authority, path) = rest.split_once('/').map_or((rest, ""), |(authority, path)| (authority, path));
    if authority.contains('@') {
        return Err("must not hold a user or password: name a token_file");
    }
    let authority = if authority.rsplit_once(':').is_some_and(|(_, port)| !port.contains(']')) {
        authority.to_owned()
    } else {
        format!("{authority}:{}", if secure { 443 } else { 80 })
    };
    if !umbel_wire::token::is_address(&authority) {
        return Err("must be https://HOST or https://HOST:PORT, and a path if the server needs one");
    }
    let path = path.trim_end_matches('/');
    if !path.chars().all(|c| c.is_ascii_alphanumeric() || "-_./~".contains(c))
        || path.split('/').any(|part| part == "..")
    {
        return Err("its path may have letters, digits and -_.~/ only, no query");
    }
    Ok((secure, authority, if path.is_empty() { String::new() } else { format!("/{path}") }))
}

/// The server is on this host: what is sent there passes no other one.
fn is_here(authority: &str) -> bool {
    let host = authority.rsplit_once(':').map_or(authority, |(host, _)| host).trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn parse(more: &str) -> Result<Artifacts, String> {
        let text = format!("[node]\nstate_dir = \"s\"\n{more}");
        let config = Config::parse(&text, Path::new("/etc/umbel/node.toml"));
        config.map(|config| config.artifacts).map_err(|error| error.to_string())
    }

    #[test]
    fn sources_are_read() {
        let artifacts = parse(
            "[artifacts]\nquarantine = \"q\"\nreserve = \"1GiB\"\n[artifacts.roots]\nmodels = \"m\"\n\
             [[source]]\nname = \"hub\"\nkind = \"hub\"\nurl = \"https://hub.internal\"\ntoken_file = \"t\"\nca_file = \"c.pem\"\n\
             [[source]]\nname = \"mirror\"\nkind = \"mirror\"\nurl = \"http://[::1]:8080/models/\"\n\
             [[source]]\nname = \"disk\"\nkind = \"directory\"\npath = \"/srv/models\"\n",
        )
        .unwrap();
        assert_eq!(artifacts.reserve, 1 << 30);
        let remote = Remote {
            secure: true,
            authority: "hub.internal:443".into(),
            base_path: String::new(),
            token_file: Some("/etc/umbel/t".into()),
            ca_file: Some("/etc/umbel/c.pem".into()),
        };
        assert_eq!(artifacts.sources["hub"], Checked::Hub(remote));
        let Checked::Mirror(mirror) = &artifacts.sources["mirror"] else { panic!("a mirror") };
        assert_eq!((mirror.authority.as_str(), mirror.base_path.as_str()), ("[::1]:8080", "/models"));
        assert_eq!(artifacts.sources["disk"], Checked::Directory("/srv/models".into()));
        assert_eq!(parse("").unwrap().reserve, RESERVE.0);
    }

    #[test]
    fn what_cannot_be_a_source_is_refused_by_its_key() {
        for (lines, wanted) in [
            ("name = \"A\"\nkind = \"hub\"\nurl = \"https://h\"", "source[0].name"),
            ("name = \"a\"\nkind = \"ftp\"", "source[0].kind: must be one of"),
            ("name = \"a\"\nkind = \"hub\"", "source[0].url"),
            ("name = \"a\"\nkind = \"hub\"\nurl = \"ftp://h\"", "source[0].url"),
            ("name = \"a\"\nkind = \"hub\"\nurl = \"https://u:p@h\"", "source[0].url"),
            ("name = \"a\"\nkind = \"hub\"\nurl = \"https://h/../x\"", "source[0].url"),
            ("name = \"a\"\nkind = \"hub\"\nurl = \"https://h\"\npath = \"/x\"", "source[0].path"),
            (
                "name = \"a\"\nkind = \"mirror\"\nurl = \"http://h\"\ntoken_file = \"t\"",
                "source[0].token_file",
            ),
            ("name = \"a\"\nkind = \"mirror\"\nurl = \"http://h\"\nca_file = \"t\"", "source[0].ca_file"),
            ("name = \"a\"\nkind = \"directory\"\npath = \"/x\"\nurl = \"http://h\"", "source[0].url"),
            ("name = \"a\"\nkind = \"directory\"", "source[0].path"),
            ("name = \"a\"\nkind = \"directory\"\npath = \"/x\"\nargs = \"x\"", "unknown key"),
        ] {
            let said = parse(&format!("[[source]]\n{lines}\n")).unwrap_err();
            assert!(said.contains(wanted), "{lines}: {said}");
        }
        let one = "[[source]]\nname = \"a\"\nkind = \"directory\"\npath = \"/x\"\n";
        assert!(parse(&one.repeat(2)).unwrap_err().contains("source[1].name"));
    }
}
