//! Lines that change while something is followed: drawn over each other on a terminal, told one after the other elsewhere.
//!
//! Owns how often they are told. Leaves what they say to whoever follows. Invariants: they go to standard error; on a terminal
//! what was drawn last stays, and no line wraps; elsewhere another state or phase is told at once, and mere figures seldom.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use super::{ColorChoice, Style, clock, printable, say, state_tone};

/// Between two lines of one thing of which only figures are different, where lines stay.
const SELDOM: Duration = Duration::from_secs(10);
/// Characters of a bar.
const BAR: usize = 20;

/// One thing that is followed, as it is now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Step {
    /// What: `qwen3.r1`, `gpu-1`.
    pub(crate) of: String,
    /// The word of its state.
    pub(crate) state: String,
    /// Within that state; not printed.
    pub(crate) phase: String,
    /// So much of how much, where that is known.
    pub(crate) progress: Option<(u64, u64)>,
    /// One sentence.
    pub(crate) text: String,
}

impl Step {
    /// What is different is told at once.
    fn mark(&self) -> String {
        let text = if self.progress.is_some() { "" } else { &self.text };
        format!("{}\n{}\n{text}", self.state, self.phase)
    }
}

/// The lines of what is followed.
#[derive(Debug)]
pub(crate) struct Live {
    style: Style,
    /// Columns of the terminal; `None`: it is none.
    terminal: Option<usize>,
    /// Lines above the cursor that may be drawn over.
    drawn: usize,
    told: BTreeMap<String, (String, String, Instant)>,
}

impl Live {
    /// With nothing told yet.
    pub(crate) fn new(color: ColorChoice) -> Self {
        Self { style: Style::stderr(color), terminal: columns(), drawn: 0, told: BTreeMap::new() }
    }

    /// Tells how everything is now.
    pub(crate) fn tell(&mut self, steps: &[Step]) {
        let now = Instant::now();
        let Some(columns) = self.terminal else {
            let news: Vec<&Step> = steps.iter().filter(|step| self.is_news(step, now)).collect();
            news.into_iter().for_each(|step| {
                say(&format!("{}  {}", clock(jiff::Timestamp::now()), line(step, self.style, None)))
            });
            return;
        };
        let mut text = String::new();
        if self.drawn > 0 {
            text.push_str(&format!("\u{1b}[{}A", self.drawn));
        }
        for step in steps {
            text.push_str(&format!("\r\u{1b}[K{}\n", line(step, self.style, Some(columns))));
        }
        // What there is less of than before.
        text.push_str("\u{1b}[J");
        self.drawn = steps.len();
        let mut err = std::io::stderr().lock();
        // Nobody is left to tell when standard error is gone.
        let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
    }

    fn is_news(&mut self, step: &Step, now: Instant) -> bool {
        let mark = step.mark();
        let news = self.told.get(&step.of).is_none_or(|(told, text, at)| {
            *told != mark || *text != step.text && now.saturating_duration_since(*at) >= SELDOM
        });
        if news {
            self.told.insert(step.of.clone(), (mark, step.text.clone(), now));
        }
        news
    }
}

fn columns() -> Option<usize> {
    let err = std::io::stderr();
    if !err.is_terminal() || std::env::var_os("TERM").is_some_and(|term| term == "dumb") {
        return None;
    }
    let size = rustix::termios::tcgetwinsize(&err).ok().filter(|size| size.ws_col > 0);
    Some(size.map_or(80, |size| usize::from(size.ws_col)))
}

/// `qwen3.r1  loading    ████░░░░  on gpu-1: fetching ...`; the bar and the cut only where there are columns.
fn line(step: &Step, style: Style, columns: Option<usize>) -> String {
    let (of, state) = (printable(&step.of), printable(&step.state));
    let mut rest = String::new();
    if let Some((done, total)) = step.progress.filter(|_| columns.is_some()) {
        rest.push_str(&format!("{}  ", bar(done, total)));
    }
    rest.push_str(&printable(&step.text));
    let word = format!("{state:<9}");
    if let Some(columns) = columns {
        let before = of.chars().count() + word.chars().count() + 4;
        rest = super::table::cut(&rest, columns.saturating_sub(before + 1));
    }
    format!("{of}  {}  {rest}", style.paint(state_tone(&step.state), &word))
}

/// So much of how much, as a bar.
pub(crate) fn bar(done: u64, total: u64) -> String {
    let part = u128::from(done.min(total)) * (BAR as u128) / u128::from(total.max(1));
    let filled = usize::try_from(part).unwrap_or(0).min(BAR);
    format!("{}{}", "█".repeat(filled), "░".repeat(BAR - filled))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(state: &str, phase: &str, text: &str) -> Step {
        let (of, state, phase) = ("a.r1".to_owned(), state.to_owned(), phase.to_owned());
        Step { of, state, phase, progress: Some((1, 4)), text: text.to_owned() }
    }

    #[test]
    fn a_line_has_its_bar_and_never_wraps() {
        let one = step("loading", "fetching", "on gpu-1: fetching 1 of 4 bytes");
        let whole = line(&one, Style::plain(), Some(200));
        assert_eq!(whole, "a.r1  loading    █████░░░░░░░░░░░░░░░  on gpu-1: fetching 1 of 4 bytes");
        assert!(!line(&one, Style::plain(), None).contains('█'));
        for columns in 1..80 {
            let cut = line(&one, Style::plain(), Some(columns));
            assert!(cut.chars().count() <= columns.max(18), "{columns}: {cut}");
        }
        assert_eq!((bar(9, 4), bar(0, 0)), ("█".repeat(20), "░".repeat(20)));
    }

    #[test]
    fn another_phase_is_told_at_once_and_figures_seldom() {
        let mut live = Live { style: Style::plain(), terminal: None, drawn: 0, told: BTreeMap::new() };
        let start = Instant::now();
        assert!(live.is_news(&step("running", "fetching", "1"), start));
        assert!(!live.is_news(&step("running", "fetching", "2"), start + Duration::from_secs(1)));
        assert!(live.is_news(&step("running", "verifying", "2"), start + Duration::from_secs(1)));
        assert!(live.is_news(&step("running", "verifying", "3"), start + SELDOM + Duration::from_secs(1)));
        assert!(!live.is_news(&step("running", "verifying", "3"), start + SELDOM * 9));
        let other = Step { of: "b.r1".to_owned(), ..step("running", "fetching", "1") };
        assert!(live.is_news(&other, start));
    }
}
