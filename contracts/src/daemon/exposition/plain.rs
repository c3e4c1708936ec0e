//! The exposition for scrapers that do not take OpenMetrics: Prometheus' own text format, version 0.0.4.
//!
//! Owns the difference between the two: counters are named with `_total` there, and the text has no end mark. Invariant:
//! a line is passed on whole, and only lines that begin with `#` are changed.

use std::fmt;

/// How the exposition is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TextFormat {
    /// OpenMetrics 1.0, which Prometheus asks for first.
    OpenMetrics,
    /// Prometheus' own, for whoever does not say that it takes the other: people, `promtool`, older scrapers.
    Plain,
}

impl TextFormat {
    /// What a scraper with this `Accept` header gets.
    #[must_use]
    pub fn accepted(accept: Option<&str>) -> Self {
        let takes = accept.is_some_and(|accept| accept.contains("application/openmetrics-text"));
        if takes { Self::OpenMetrics } else { Self::Plain }
    }

    /// For `Content-Type`.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            Self::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Self::Plain => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Writes what is written to it, which is OpenMetrics text, as Prometheus text to `out`.
#[derive(Debug)]
pub(super) struct PlainText<W> {
    out: W,
    /// What is here of the present line.
    line: String,
    /// The help of a family whose type has yet to come: with that its name may change.
    help: Option<String>,
}

impl<W: fmt::Write> PlainText<W> {
    /// On top of `out`.
    pub(super) fn new(out: W) -> Self {
        Self { out, line: String::new(), help: None }
    }

    fn pass(&mut self, line: &str) -> fmt::Result {
        let Some(about) = line.strip_prefix("# ") else { return self.out.write_str(line) };
        let mut words = about.trim_end().splitn(3, ' ');
        match (words.next(), words.next(), words.next()) {
            (Some("HELP"), Some(_), help) => self.help = help.map(str::to_owned),
            (Some("TYPE"), Some(name), Some(kind)) => {
                let total = if kind == "counter" { "_total" } else { "" };
                let kind = if kind == "unknown" { "untyped" } else { kind };
                if let Some(help) = self.help.take() {
                    writeln!(self.out, "# HELP {name}{total} {help}")?;
                }
                writeln!(self.out, "# TYPE {name}{total} {kind}")?;
            }
            // Units stand in the names, and the end is that of the answer.
            _ => {}
        }
        Ok(())
    }
}

impl<W: fmt::Write> fmt::Write for PlainText<W> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for part in text.split_inclusive('\n') {
            self.line.push_str(part);
            if part.ends_with('\n') {
                let line = std::mem::take(&mut self.line);
                self.pass(&line)?;
                // Its room is used again.
                self.line = line;
                self.line.clear();
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
    use std::fmt::Write;

    use super::*;

    #[test]
    fn counters_are_named_with_their_suffix_and_the_end_mark_goes() {
        let open = "# HELP a Things done.\n# TYPE a counter\na_total{x=\"# TYPE y counter\"} 1\n\
                    # HELP b Size.\n# TYPE b gauge\nb 2\n# TYPE c counter\nc_total 3\n# EOF\n";
        let plain = "# HELP a_total Things done.\n# TYPE a_total counter\na_total{x=\"# TYPE y counter\"} 1\n\
                     # HELP b Size.\n# TYPE b gauge\nb 2\n# TYPE c_total counter\nc_total 3\n";
        for size in [1, 3, 7, open.len()] {
            let mut out = String::new();
            let mut text = PlainText::new(&mut out);
            for part in open.as_bytes().chunks(size) {
                text.write_str(std::str::from_utf8(part).unwrap()).unwrap();
            }
            assert_eq!(out, plain, "in pieces of {size}");
        }
    }
}
