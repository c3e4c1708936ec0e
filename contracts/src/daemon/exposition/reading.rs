//! Reading an exposition back, strictly: for tests of every tier and of what is built on the names.
//!
//! Owns the grammar of both text formats as far as daemons use it. Invariant: what Prometheus' own tools would not take
//! (a series twice, a family twice, no help, a value that is no number) is an error with its line.

use std::collections::{BTreeMap, HashSet};

/// One line of an exposition.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// The series' name with its suffix.
    pub name: String,
    /// Its labels, in their order.
    pub labels: Vec<(String, String)>,
    /// What it says.
    pub value: f64,
}

impl Sample {
    /// The value of a label.
    #[must_use]
    pub fn label(&self, name: &str) -> Option<&str> {
        self.labels.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    /// Whether it has all of these labels.
    #[must_use]
    pub fn has(&self, labels: &[(&str, &str)]) -> bool {
        labels.iter().all(|(name, value)| self.label(name) == Some(value))
    }
}

fn is_name(text: &str) -> bool {
    let mut letters = text.bytes();
    letters.next().is_some_and(|first| first.is_ascii_alphabetic() || first == b'_')
        && letters.all(|letter| letter.is_ascii_alphanumeric() || letter == b'_' || letter == b':')
}

/// `a="b",...` with its escapes.
fn labels(text: &str) -> Option<Vec<(String, String)>> {
    let mut found: Vec<(String, String)> = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (name, after) = rest.split_once("=\"")?;
        let (mut value, mut letters) = (String::new(), after.char_indices());
        let closed = loop {
            match letters.next()? {
                (at, '"') => break at,
                (_, '\\') => match letters.next()?.1 {
                    'n' => value.push('\n'),
                    kept @ ('\\' | '"') => value.push(kept),
                    _ => return None,
                },
                (_, '\n') => return None,
                (_, other) => value.push(other),
            }
        };
        if !is_name(name) || found.iter().any(|(known, _)| known == name) {
            return None;
        }
        found.push((name.to_owned(), value));
        rest = after.get(closed + 1..)?;
        rest = rest.strip_prefix(',').unwrap_or(rest);
    }
    Some(found)
}

/// What was declared so far.
#[derive(Default)]
struct Declared {
    helped: HashSet<String>,
    kinds: BTreeMap<String, String>,
    family: String,
    is_open: bool,
}

impl Declared {
    fn line(&mut self, about: &str) -> Option<()> {
        let mut words = about.splitn(3, ' ');
        let (what, name, rest) = (words.next()?, words.next()?, words.next()?);
        if !is_name(name) {
            return None;
        }
        match what {
            "HELP" => (self.helped.insert(name.to_owned()) && rest.len() > 3).then_some(()),
            "TYPE" => {
                let known = ["counter", "gauge", "histogram"].contains(&rest);
                let suffixed = name.ends_with("_total");
                let counter = rest == "counter";
                // Only the plain format names counters with their suffix.
                let fits = if self.is_open { !suffixed } else { suffixed == counter };
                let first = self.kinds.insert(name.to_owned(), rest.to_owned()).is_none();
                self.family = name.to_owned();
                (known && fits && first && self.helped.contains(name)).then_some(())
            }
            _ => None,
        }
    }

    fn sample(&self, line: &str) -> Option<Sample> {
        let (series, value) = line.rsplit_once(' ')?;
        let (name, of) = match series.split_once('{') {
            Some((name, rest)) => (name, rest.strip_suffix('}')?),
            None => (series, ""),
        };
        let suffix = name.strip_prefix(self.family.as_str())?;
        let fits = match self.kinds.get(&self.family)?.as_str() {
            "counter" => suffix == if self.is_open { "_total" } else { "" },
            "gauge" => suffix.is_empty(),
            _ => ["_bucket", "_sum", "_count"].contains(&suffix),
        };
        let sample = Sample { name: name.to_owned(), labels: labels(of)?, value: value.parse().ok()? };
        (fits && is_name(name)).then_some(sample)
    }
}

/// Reads an exposition in either format: its samples, and the families that it declares with their kinds; counters are
/// named with `_total` whichever format it was.
///
/// # Errors
/// The first line that must not be.
pub fn read(text: &str) -> Result<(Vec<Sample>, BTreeMap<String, String>), String> {
    let open = text.strip_suffix("# EOF\n");
    let mut declared = Declared { is_open: open.is_some(), ..Declared::default() };
    let (mut samples, mut seen) = (Vec::new(), HashSet::new());
    for line in open.unwrap_or(text).lines() {
        if let Some(about) = line.strip_prefix("# ") {
            declared.line(about).ok_or_else(|| format!("not a declaration: {line}"))?;
            continue;
        }
        let sample = declared.sample(line).ok_or_else(|| format!("no sample of its family: {line}"))?;
        let series = line.rsplit_once(' ').map_or(line, |(series, _)| series);
        if !seen.insert(series.to_owned()) {
            return Err(format!("twice: {line}"));
        }
        samples.push(sample);
    }
    let total = |(name, kind): (String, String)| match kind.as_str() {
        "counter" if declared.is_open => (format!("{name}_total"), kind),
        _ => (name, kind),
    };
    Ok((samples, declared.kinds.into_iter().map(total).collect()))
}
