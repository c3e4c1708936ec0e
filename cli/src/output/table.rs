//! Tables for people: columns are dropped from the right until the row fits, the last one is cut, nothing wraps.
//!
//! Owns widths and alignment. Invariant: a rendered line is never wider than the width that was given.

use std::{borrow::Cow, io::IsTerminal as _};

use super::printable;
use super::style::{Style, Tone, state_tone};

/// Shortest useful width of a cut last column, in characters.
const LEAST_TEXT: usize = 12;
const GAP: usize = 2;

/// One column of a table.
#[derive(Clone, Debug)]
pub(crate) struct Column {
    title: Cow<'static, str>,
    right: bool,
    wide: bool,
    state: bool,
    text: bool,
    kept: bool,
}

impl Column {
    /// A left-aligned column.
    pub(crate) fn left(title: impl Into<Cow<'static, str>>) -> Self {
        Column { title: title.into(), right: false, wide: false, state: false, text: false, kept: false }
    }

    /// A column of numbers.
    pub(crate) fn number(title: impl Into<Cow<'static, str>>) -> Self {
        Column { title: title.into(), right: true, wide: false, state: false, text: false, kept: false }
    }

    /// A column whose words are states: coloured by what they mean.
    pub(crate) fn state(title: impl Into<Cow<'static, str>>) -> Self {
        Column { title: title.into(), right: false, wide: false, state: true, text: false, kept: false }
    }

    /// A column of sentences: cut to the width that is left. Only the last column may be one.
    pub(crate) fn text(title: impl Into<Cow<'static, str>>) -> Self {
        Column { title: title.into(), right: false, wide: false, state: false, text: true, kept: false }
    }

    /// Dropped last of all, whatever stands left of it: what the table is read for.
    pub(crate) fn kept(mut self) -> Self {
        self.kept = true;
        self
    }

    /// Shown with `-o wide` only.
    pub(crate) fn wide(mut self) -> Self {
        self.wide = true;
        self
    }
}

/// Rows under columns. A cell that is empty is printed as `-`.
#[derive(Debug)]
pub(crate) struct Table {
    columns: Vec<Column>,
    rows: Vec<Vec<String>>,
}

impl Table {
    /// An empty table.
    pub(crate) fn new(columns: Vec<Column>) -> Self {
        Table { columns, rows: Vec::new() }
    }

    /// Adds a row: one cell a column.
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        debug_assert_eq!(cells.len(), self.columns.len(), "a row has one cell a column");
        let clean =
            |cell: String| if cell.is_empty() { "-".to_owned() } else { printable(&cell).into_owned() };
        self.rows.push(cells.into_iter().map(clean).collect());
    }

    /// Whether it has no rows.
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The table as text, at most `width` characters a line when one is given.
    pub(crate) fn render(&self, wide: bool, width: Option<usize>, style: Style) -> String {
        let mut shown: Vec<usize> = (0..self.columns.len())
            .filter(|&i| self.columns.get(i).is_some_and(|c| wide || !c.wide))
            .collect();
        let widths: Vec<usize> = (0..self.columns.len()).map(|i| self.natural_width(i)).collect();
        if let Some(limit) = width.filter(|_| !wide) {
            while shown.len() > 1 && self.least_width(&shown, &widths) > limit {
                let kept = |&i: &usize| self.columns.get(i).is_some_and(|c| c.kept);
                let last = shown.iter().rposition(|i| !kept(i)).unwrap_or(shown.len() - 1);
                shown.remove(last);
            }
        }
        let mut out = String::new();
        let titles: Vec<String> = self.columns.iter().map(|c| c.title.clone().into_owned()).collect();
        self.line(&mut out, &titles, &shown, &widths, width, |_, text| style.paint(Tone::Dim, text));
        for row in &self.rows {
            self.line(&mut out, row, &shown, &widths, width, |column, text| {
                if column.state { style.paint(state_tone(text.trim()), text) } else { text.to_owned() }
            });
        }
        out
    }

    fn natural_width(&self, index: usize) -> usize {
        let cells = self.rows.iter().filter_map(|row| row.get(index)).map(|cell| cell.chars().count());
        let title = self.columns.get(index).map_or(0, |c| c.title.chars().count());
        cells.max().unwrap_or(0).max(title)
    }

    fn least_width(&self, shown: &[usize], widths: &[usize]) -> usize {
        let last = shown.last().copied();
        let cells = shown.iter().map(|&i| {
            let natural = widths.get(i).copied().unwrap_or(0);
            let text = self.columns.get(i).is_some_and(|c| c.text);
            if text && Some(i) == last { natural.min(LEAST_TEXT) } else { natural }
        });
        cells.sum::<usize>() + GAP * shown.len().saturating_sub(1)
    }

    fn line(
        &self,
        out: &mut String,
        cells: &[String],
        shown: &[usize],
        widths: &[usize],
        limit: Option<usize>,
        paint: impl Fn(&Column, &str) -> String,
    ) {
        let mut used = 0;
        let last = shown.last().copied();
        for &i in shown {
            let (Some(column), Some(cell), Some(&width)) = (self.columns.get(i), cells.get(i), widths.get(i))
            else {
                continue;
            };
            let mut text = cell.clone();
            if Some(i) == last {
                if let Some(limit) = limit {
                    text = cut(&text, limit.saturating_sub(used));
                }
                if column.right {
                    text = format!("{text:>width$}");
                }
            } else if column.right {
                text = format!("{text:>width$}");
            } else {
                text = format!("{text:<width$}");
            }
            out.push_str(&paint(column, &text));
            if Some(i) != last {
                out.push_str("  ");
            }
            used += width + GAP;
        }
        out.push('\n');
    }
}

/// Lines of `Key  value`, aligned. Values may hold colour, so they are cleaned by whoever made them.
pub(crate) fn details(lines: &[(&str, String)]) -> String {
    let width = lines.iter().map(|(key, _)| key.chars().count()).max().unwrap_or(0);
    let mut text = String::new();
    for (key, value) in lines {
        let value = if value.is_empty() { "-" } else { value };
        let value =
            if value.starts_with('\u{1b}') { value.to_owned() } else { printable(value).into_owned() };
        text.push_str(&format!("{key:<width$}  {value}\n"));
    }
    text
}

/// The width of the terminal; none when standard output is no terminal.
pub(crate) fn width() -> Option<usize> {
    let stdout = std::io::stdout();
    if !stdout.is_terminal() {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&stdout).ok()?;
    (size.ws_col > 0).then_some(usize::from(size.ws_col))
}

/// `text` in at most `width` characters, with `…` where something is missing.
pub(super) fn cut(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.to_owned();
    }
    let kept: String = text.chars().take(width.saturating_sub(1)).collect();
    format!("{}…", kept.trim_end())
}
