//! Target selectors: which nodes an operation is about.
//!
//! Owns: the grammar and what matches. Leaves to others: resolving it against a registry, and what no match means.
//! Invariant: parsing never panics, is bounded, and printing a selector gives one that parses to the same.
//!
//! Terms joined with `,`, all of which must hold: `node:NAME-OR-ID`, `label:KEY=VALUE`, `model:NAME`,
//! `gpu:NAME-GLOB` (`*` and `?`, in any case), `all`.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// Longest selector, in bytes.
pub const LONGEST: usize = 1024;
/// Most terms of one selector.
pub const MOST_TERMS: usize = 16;

/// Which nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Selector {
    terms: Vec<Term>,
}

/// One condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Term {
    /// Every node.
    All,
    /// The node of this id or name.
    Node(String),
    /// Nodes with this label.
    Label {
        /// Its key.
        key: String,
        /// Its value.
        value: String,
    },
    /// Nodes that serve this model or alias.
    Model(String),
    /// Nodes with a GPU whose name matches.
    Gpu(String),
}

/// Why a text is not a selector, and where.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("at character {position} of the selector: {problem}")]
pub struct SelectorError {
    /// Counted from 1, in characters.
    pub position: usize,
    /// What is wrong there.
    pub problem: String,
}

/// What a selector is matched against.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The node's id.
    pub node_id: &'a str,
    /// The node's name.
    pub name: &'a str,
    /// Its labels.
    pub labels: &'a BTreeMap<String, String>,
    /// Models that it serves, and their aliases.
    pub models: &'a [&'a str],
    /// Names of its GPUs.
    pub gpus: &'a [&'a str],
}

impl Selector {
    /// Reads a selector.
    ///
    /// # Errors
    /// Where and why it is malformed. An empty one is malformed: "all" is to be said.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        if text.len() > LONGEST {
            return Err(SelectorError { position: 1, problem: format!("it is longer than {LONGEST} bytes") });
        }
        let mut terms = Vec::new();
        let mut position = 1;
        for part in text.split(',') {
            let blank = part.chars().take_while(|character| character.is_whitespace()).count();
            let at = |problem: String| SelectorError { position: position + blank, problem };
            if terms.len() == MOST_TERMS {
                return Err(at(format!("it has more than {MOST_TERMS} terms")));
            }
            terms.push(Term::parse(part.trim()).map_err(at)?);
            position += part.chars().count() + 1;
        }
        Ok(Self { terms })
    }

    /// Every node.
    #[must_use]
    pub fn all() -> Self {
        Self { terms: vec![Term::All] }
    }

    /// Exactly these conditions; `None` where there are none, or too many.
    #[must_use]
    pub fn of(terms: Vec<Term>) -> Option<Self> {
        (1..=MOST_TERMS).contains(&terms.len()).then_some(Self { terms })
    }

    /// Its conditions; at least one.
    #[must_use]
    pub fn terms(&self) -> &[Term] {
        &self.terms
    }

    /// Whether every condition holds.
    #[must_use]
    pub fn matches(&self, candidate: &Candidate<'_>) -> bool {
        self.terms.iter().all(|term| term.matches(candidate))
    }
}

/// A word as an error shows it: it may be anything.
fn shown(text: &str) -> String {
    let mut shown: String = text.chars().take(64).flat_map(char::escape_debug).collect();
    if text.chars().nth(64).is_some() {
        shown.push_str("...");
    }
    shown
}

impl Term {
    fn parse(text: &str) -> Result<Self, String> {
        if text == "all" {
            return Ok(Self::All);
        }
        let (kind, value) = match text.split_once(':') {
            Some((kind, value)) if !value.is_empty() => (kind, value),
            Some((kind, _)) => return Err(format!("nothing follows \"{}:\"", shown(kind))),
            None if text.is_empty() => {
                return Err("a term is missing; write \"all\" for every node".to_owned());
            }
            None => {
                let text = shown(text);
                return Err(format!("\"{text}\" is no term; a node is selected with node:{text}"));
            }
        };
        let owned = value.to_owned();
        match kind {
            "node" => Ok(Self::Node(owned)),
            "model" => Ok(Self::Model(owned)),
            "gpu" => Ok(Self::Gpu(owned)),
            "label" => match value.split_once('=') {
                Some((key, value)) if !key.is_empty() => {
                    Ok(Self::Label { key: key.to_owned(), value: value.to_owned() })
                }
                _ => Err("a label is written label:KEY=VALUE".to_owned()),
            },
            kind => Err(format!("\"{}\" is none of node, label, model, gpu, all", shown(kind))),
        }
    }

    /// Whether it holds.
    #[must_use]
    pub fn matches(&self, candidate: &Candidate<'_>) -> bool {
        match self {
            Self::All => true,
            Self::Node(node) => candidate.node_id == node || candidate.name == node,
            Self::Label { key, value } => candidate.labels.get(key) == Some(value),
            Self::Model(model) => candidate.models.contains(&model.as_str()),
            Self::Gpu(pattern) => candidate.gpus.iter().any(|name| glob(pattern, name)),
        }
    }
}

impl fmt::Display for Term {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::Node(node) => write!(f, "node:{node}"),
            Self::Label { key, value } => write!(f, "label:{key}={value}"),
            Self::Model(model) => write!(f, "model:{model}"),
            Self::Gpu(pattern) => write!(f, "gpu:{pattern}"),
        }
    }
}

impl fmt::Display for Selector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, term) in self.terms.iter().enumerate() {
            if index > 0 {
                f.write_str(",")?;
            }
            term.fmt(f)?;
        }
        Ok(())
    }
}

impl FromStr for Selector {
    type Err = SelectorError;

    fn from_str(text: &str) -> Result<Self, SelectorError> {
        Self::parse(text)
    }
}

/// Whether `name` matches `pattern` (`*` and `?`), in any case. Takes at most the product of both lengths, whatever they
/// hold.
#[must_use]
pub fn glob(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut at, mut seen) = (0, 0);
    // Where to go on if the last `*` has to take one character more.
    let mut retry = None;
    while seen < name.len() {
        match (pattern.get(at), name.get(seen)) {
            (Some('*'), _) => {
                retry = Some((at, seen));
                at += 1;
            }
            (Some(wanted), Some(found)) if *wanted == '?' || wanted.eq_ignore_ascii_case(found) => {
                at += 1;
                seen += 1;
            }
            _ => match retry {
                Some((star, taken)) => {
                    at = star + 1;
                    seen = taken + 1;
                    retry = Some((star, taken + 1));
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(at).all(|rest| *rest == '*')
}

#[cfg(test)]
mod tests;
