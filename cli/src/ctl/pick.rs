//! Picking by name: a whole name, the start of one if only one fits, or a glob for sites.
//!
//! Invariant: a pick is one thing, or a failure that lists what it could be.

use crate::exit::{Exit, Failure, Outcome};

/// How many candidates are listed.
const LISTED: usize = 12;

/// One of `items`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Picked<T> {
    /// What was meant.
    pub(crate) item: T,
    /// Whether it was named in full.
    pub(crate) exact: bool,
}

/// The one of `items` whose name or id is `wanted`, or begins with it. `names` gives all names of an item, the
/// first for people.
pub(crate) fn one<T>(
    items: Vec<T>,
    wanted: &str,
    what: &str,
    names: impl Fn(&T) -> Vec<String>,
    list: &str,
) -> Outcome<Picked<T>> {
    placed(items, wanted, what, names, |_| String::new(), list)
}

/// As [`one`], with where an item is, its site: shown where several fit, and never what was meant.
pub(crate) fn placed<T>(
    items: Vec<T>,
    wanted: &str,
    what: &str,
    names: impl Fn(&T) -> Vec<String>,
    place: impl Fn(&T) -> String,
    list: &str,
) -> Outcome<Picked<T>> {
    // What is echoed has a bound: a name is far shorter.
    let said: String = wanted.chars().take(80).collect();
    let is = |item: &T| names(item).iter().any(|name| name == wanted);
    let begins = |item: &T| !wanted.is_empty() && names(item).iter().any(|name| name.starts_with(wanted));
    let exact = items.iter().any(is);
    let mut fit: Vec<T> =
        items.into_iter().filter(|item| if exact { is(item) } else { begins(item) }).collect();
    if fit.len() > 1 {
        let mut candidates: Vec<String> = fit
            .iter()
            .take(LISTED)
            .map(|item| format!("{}  {}", names(item).join("  "), place(item)).trim_end().to_owned())
            .collect();
        if fit.len() > LISTED {
            candidates.push(format!("and {} more", fit.len() - LISTED));
        }
        return Err(Failure::new(Exit::NotFound, format!("`{said}` fits {} {what}s", fit.len()))
            .candidates(candidates)
            .remedy("give more of the name or id, or --site"));
    }
    match fit.pop() {
        Some(item) => Ok(Picked { item, exact }),
        None => Err(Failure::new(Exit::NotFound, format!("there is no {what} `{said}`")).remedy(list)),
    }
}

/// The sites that `wanted` means: `all`, a name, a unique start of one, or a glob with `*` and `?`.
pub(crate) fn sites(names: &[String], wanted: &str) -> Outcome<Vec<String>> {
    if wanted == "all" {
        return Ok(names.to_vec());
    }
    if wanted.contains(['*', '?']) {
        let fit: Vec<String> = names.iter().filter(|name| glob(wanted, name)).cloned().collect();
        if fit.is_empty() {
            return Err(Failure::new(Exit::NotFound, format!("no site fits `{wanted}`"))
                .candidates(names.iter().take(LISTED).cloned().collect()));
        }
        return Ok(fit);
    }
    one(names.to_vec(), wanted, "site", |name| vec![name.clone()], "umbel ctl edge")
        .map(|picked| vec![picked.item])
}

/// `*` fits any text, `?` one character. Linear: only the last `*` is ever tried again.
fn glob(pattern: &str, text: &str) -> bool {
    let (pattern, text): (Vec<char>, Vec<char>) = (pattern.chars().collect(), text.chars().collect());
    let (mut p, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        match pattern.get(p) {
            Some('*') => {
                star = Some((p, t));
                p += 1;
            }
            Some(&c) if c == '?' || Some(&c) == text.get(t) => {
                p += 1;
                t += 1;
            }
            _ => match star {
                Some((at, taken)) => {
                    star = Some((at, taken + 1));
                    (p, t) = (at + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    pattern.iter().skip(p).all(|&c| c == '*')
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::{glob, one, placed, sites};
    use crate::exit::Exit;

    fn names() -> Vec<String> {
        ["ber1", "ber2", "muc1", "muc10"].map(str::to_owned).to_vec()
    }

    fn pick(wanted: &str) -> Result<(String, bool), Exit> {
        one(names(), wanted, "site", |name| vec![name.clone()], "list")
            .map(|picked| (picked.item, picked.exact))
            .map_err(|failure| failure.exit())
    }

    #[test]
    fn a_whole_name_wins_over_a_longer_one() {
        assert_eq!(pick("muc1"), Ok(("muc1".to_owned(), true)));
        assert_eq!(pick("muc10"), Ok(("muc10".to_owned(), true)));
    }

    #[test]
    fn a_unique_start_is_enough_and_an_ambiguous_one_is_not() {
        assert_eq!(pick("ber2"), Ok(("ber2".to_owned(), true)));
        assert_eq!(pick("ber"), Err(Exit::NotFound));
        assert_eq!(pick("par"), Err(Exit::NotFound));
        assert_eq!(pick(""), Err(Exit::NotFound));
    }

    #[test]
    fn where_something_is_does_not_name_it() {
        let found = |wanted: &str| {
            let items = vec![("chat", "ber1"), ("chat", "muc1"), ("code", "ber1")];
            let names = |item: &(&str, &str)| vec![item.0.to_owned()];
            placed(items, wanted, "deployment", names, |item| item.1.to_owned(), "list")
        };
        assert_eq!(found("b").unwrap_err().to_string(), "error: there is no deployment `b`\n  try:   list");
        assert!(found("chat").unwrap_err().to_string().contains("chat  muc1"));
        assert_eq!(found("co").unwrap().item.0, "code");
    }

    #[test]
    fn sites_are_meant_by_name_glob_or_all() {
        assert_eq!(sites(&names(), "all").unwrap().len(), 4);
        assert_eq!(sites(&names(), "ber?").unwrap(), ["ber1", "ber2"]);
        assert_eq!(sites(&names(), "*1*").unwrap(), ["ber1", "muc1", "muc10"]);
        assert!(sites(&names(), "x*").is_err());
    }

    #[test]
    fn globs() {
        for (pattern, text, fits) in [
            ("*", "", true),
            ("a*b", "ab", true),
            ("a*b", "axxb", true),
            ("a*b", "axxbc", false),
            ("*a*a*", "banana", true),
            ("?", "", false),
            ("a?c", "abc", true),
        ] {
            assert_eq!(glob(pattern, text), fits, "{pattern} {text}");
        }
    }
}
