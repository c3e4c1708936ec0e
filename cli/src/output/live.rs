//! Lines that change while something is followed: drawn over each other on a terminal, told one after the other elsewhere.
//!
//! Owns how they look and how often they are told. Leaves what they say to whoever follows. Invariants: they go to standard
//! error; on a terminal what was drawn last stays, no line wraps and none leaves the screen, whatever size it has by now;
//! elsewhere another state or phase is told at once, and mere figures seldom.

use std::collections::BTreeMap;
use std::io::{IsTerminal as _, Write as _};
use std::time::{Duration, Instant};

use super::{ColorChoice, Style, clock, printable, say, state_tone};

/// Between two lines of one thing of which only figures are different, where lines stay.
const SELDOM: Duration = Duration::from_secs(10);
/// Characters of the longest bar, and of the shortest that says something.
const BAR: usize = 20;
const BAR_LEAST: usize = 8;
/// Characters of a state's word, so that what follows stands in a column.
const WORD: usize = 9;
/// With less than this beside the names, a bar and its figures are all there is room for.
const NARROW: usize = 40;

/// One thing that is followed, as it is now.
#[derive(Debug, Clone, Default)]
pub(crate) struct Step {
    /// What: `qwen3.r1`, `gpu-1`.
    pub(crate) of: String,
    /// The word of its state.
    pub(crate) state: String,
    /// Within that state; not printed.
    pub(crate) phase: String,
    /// What it is about: `on gpu-1`.
    pub(crate) about: String,
    /// How it is, in one sentence.
    pub(crate) how: String,
    /// What a bar is drawn of.
    pub(crate) gauge: Option<Gauge>,
}

/// So much of how much, and the same in words.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gauge {
    /// Stands in the place of the state.
    pub(crate) phase: String,
    pub(crate) done: u64,
    pub(crate) total: u64,
    /// `1.0 MiB of 4.0 MiB, 3s left: 1.2 MiB/s`.
    pub(crate) figures: String,
}

impl Step {
    /// What is different is told at once.
    fn mark(&self) -> String {
        let text = if self.gauge.is_some() { String::new() } else { self.text() };
        format!("{}\n{}\n{text}", self.state, self.phase)
    }

    /// What stands beside the state.
    fn text(&self) -> String {
        match (self.about.is_empty(), self.how.is_empty()) {
            (_, true) => self.about.clone(),
            (true, _) => self.how.clone(),
            (false, false) => format!("{}: {}", self.about, self.how),
        }
    }
}

/// A terminal, in characters.
#[derive(Debug, Clone, Copy)]
struct Size {
    columns: usize,
    rows: usize,
}

/// The lines of what is followed.
#[derive(Debug)]
pub(crate) struct Live {
    style: Style,
    on_terminal: bool,
    /// Lines above the cursor that may be drawn over.
    drawn: usize,
    told: BTreeMap<String, (String, String, Instant)>,
}

impl Live {
    /// With nothing told yet.
    pub(crate) fn new(color: ColorChoice) -> Self {
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let on_terminal = std::io::stderr().is_terminal() && !dumb;
        Self { style: Style::stderr(color), on_terminal, drawn: 0, told: BTreeMap::new() }
    }

    /// Tells how everything is now.
    pub(crate) fn tell(&mut self, steps: &[Step]) {
        if self.on_terminal {
            let text = self.frame(steps, size());
            write(&text);
            return;
        }
        let now = Instant::now();
        let news: Vec<&Step> = steps.iter().filter(|step| self.is_news(step, now)).collect();
        for step in news {
            say(&format!("{}  {}", clock(jiff::Timestamp::now()), line(step, self.style, None)));
        }
    }

    /// Says something of the following itself, below the lines; the next of these stand in its place.
    pub(crate) fn note(&mut self, text: &str) {
        let text = printable(text);
        if self.on_terminal {
            self.drawn += 1;
            write(&format!("\r\u{1b}[K{}\n", super::table::cut(&text, size().columns.saturating_sub(1))));
        } else {
            say(&format!("{}  {text}", clock(jiff::Timestamp::now())));
        }
    }

    /// What draws these over those that were drawn before.
    fn frame(&mut self, steps: &[Step], size: Size) -> String {
        // The cursor goes up no further than to the first row: lines that are above it could not be drawn over.
        let room = size.rows.saturating_sub(1).max(2);
        let mut shown: Vec<&Step> = steps.iter().collect();
        let mut more = None;
        if shown.len() > room {
            shown.sort_by_key(|step| {
                (step.gauge.is_none(), step.state == "ready" || step.state == "succeeded")
            });
            let left = shown.split_off(room - 1);
            more = Some(format!("and {} more", left.len()));
        }
        let mut text = String::new();
        if self.drawn > 0 {
            text.push_str(&format!("\u{1b}[{}A", self.drawn.min(room)));
        }
        let lines = shown.iter().map(|step| line(step, self.style, Some(size.columns))).chain(more);
        self.drawn = 0;
        for line in lines {
            text.push_str(&format!("\r\u{1b}[K{line}\n"));
            self.drawn += 1;
        }
        // What there is less of than before.
        text.push_str("\u{1b}[J");
        text
    }

    fn is_news(&mut self, step: &Step, now: Instant) -> bool {
        let (mark, text) = (step.mark(), format!("{}\n{}", step.state, step.text()));
        let news = self.told.get(&step.of).is_none_or(|(told, before, at)| {
            *before != text && (*told != mark || now.saturating_duration_since(*at) >= SELDOM)
        });
        if news {
            self.told.insert(step.of.clone(), (mark, text, now));
        }
        news
    }
}

fn write(text: &str) {
    let mut err = std::io::stderr().lock();
    // Nobody is left to tell when standard error is gone.
    let _ = err.write_all(text.as_bytes()).and_then(|()| err.flush());
}

/// Of standard error, each time anew: windows change.
fn size() -> Size {
    let some = |size: u16, otherwise| if size > 0 { usize::from(size) } else { otherwise };
    match rustix::termios::tcgetwinsize(std::io::stderr()) {
        Ok(size) => Size { columns: some(size.ws_col, 80), rows: some(size.ws_row, 24) },
        Err(_) => Size { columns: 80, rows: 24 },
    }
}

/// `qwen3.r1  loading    on gpu-1: its engine starts`; where there are columns, what has a gauge with its bar:
/// `qwen3.r1  fetching   ████░░░░  1.0 MiB of 4.0 MiB  on gpu-1`.
fn line(step: &Step, style: Style, columns: Option<usize>) -> String {
    let of = printable(&step.of);
    let painted = |word: &str| style.paint(state_tone(&step.state), &format!("{:<WORD$}", printable(word)));
    let Some(columns) = columns else {
        return format!("{of}  {}  {}", painted(&step.state), printable(&step.text()));
    };
    // The last column stays free: some terminals wrap when it is written.
    let room = columns.saturating_sub(1).saturating_sub(of.chars().count() + 2);
    let beside = room.saturating_sub(WORD + 2);
    match &step.gauge {
        _ if room < BAR_LEAST + 2 => super::table::cut(&of, columns.saturating_sub(1)),
        Some(gauge) if beside < NARROW => {
            let text = format!("{}  {}", bar_of(gauge, BAR_LEAST), printable(&gauge.figures));
            format!("{of}  {}", super::table::cut(&text, room))
        }
        Some(gauge) => {
            let bar = bar_of(gauge, (beside / 5).clamp(BAR_LEAST, BAR));
            let text = format!("{bar}  {}  {}", gauge.figures, step.about);
            let phase: String = gauge.phase.chars().take(WORD).collect();
            format!("{of}  {}  {}", painted(&phase), super::table::cut(&printable(&text), beside))
        }
        None if beside < BAR_LEAST => format!("{of}  {}", super::table::cut(&printable(&step.state), room)),
        None => {
            let state: String = step.state.chars().take(WORD).collect();
            format!("{of}  {}  {}", painted(&state), super::table::cut(&printable(&step.text()), beside))
        }
    }
}

fn bar_of(gauge: &Gauge, characters: usize) -> String {
    let part =
        u128::from(gauge.done.min(gauge.total)) * (characters as u128) / u128::from(gauge.total.max(1));
    let filled = usize::try_from(part).unwrap_or(0).min(characters);
    format!("{}{}", "█".repeat(filled), "░".repeat(characters - filled))
}

/// So much of how much, as a bar.
pub(crate) fn bar(done: u64, total: u64) -> String {
    bar_of(&Gauge { done, total, ..Gauge::default() }, BAR)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(state: &str, phase: &str, figures: &str) -> Step {
        let gauge = Gauge { phase: phase.to_owned(), done: 1, total: 4, figures: figures.to_owned() };
        Step {
            of: "a.r1".to_owned(),
            state: state.to_owned(),
            phase: phase.to_owned(),
            about: "on gpu-1".to_owned(),
            how: format!("{phase} {figures}"),
            gauge: Some(gauge),
        }
    }

    fn live(on_terminal: bool) -> Live {
        Live { style: Style::plain(), on_terminal, drawn: 0, told: BTreeMap::new() }
    }

    #[test]
    fn a_line_has_its_bar_and_never_wraps() {
        let one = step("acquiring", "fetching", "1.0 MiB of 4.0 MiB, 3s left: 1.2 MiB/s, 0 of 2 files");
        let whole = line(&one, Style::plain(), Some(200));
        assert_eq!(
            whole,
            "a.r1  fetching   █████░░░░░░░░░░░░░░░  1.0 MiB of 4.0 MiB, 3s left: 1.2 MiB/s, 0 of 2 files  on gpu-1"
        );
        // Bytes, time left and rate are what the width of an old terminal has room for.
        let usual = line(&one, Style::plain(), Some(80));
        assert!(usual.contains("1.0 MiB of 4.0 MiB, 3s left: 1.2 MiB/s"), "{usual}");
        let narrow = line(&one, Style::plain(), Some(40));
        assert_eq!(narrow, "a.r1  ██░░░░░░  1.0 MiB of 4.0 MiB, 3s…");
        let plain = line(&one, Style::plain(), None);
        assert!(plain.starts_with("a.r1  acquiring  on gpu-1: fetching 1.0 MiB") && !plain.contains('█'));
        let state = Step { gauge: None, state: "unrecognizable".to_owned(), ..one.clone() };
        for columns in 0..120 {
            for step in [&one, &state] {
                let cut = line(step, Style::plain(), Some(columns));
                assert!(cut.chars().count() <= columns.saturating_sub(1).max(1), "{columns}: {cut}");
            }
        }
        assert_eq!((bar(9, 4), bar(0, 0)), ("█".repeat(20), "░".repeat(20)));
    }

    #[test]
    fn lines_are_drawn_over_each_other_and_none_leaves_the_screen() {
        let mut live = live(true);
        let steps: Vec<Step> = (0..9).map(|_| step("ready", "", "")).collect();
        let size = Size { columns: 80, rows: 24 };
        assert!(!live.frame(&steps, size).contains('A'), "nothing is above yet");
        assert!(live.frame(&steps[..1], size).starts_with("\u{1b}[9A\r"));
        assert!(live.frame(&steps, size).starts_with("\u{1b}[1A\r"));
        // The window has become smaller: as much as it shows.
        let small = live.frame(&steps, Size { columns: 80, rows: 5 });
        assert!(small.starts_with("\u{1b}[4A\r") && small.contains("and 6 more"), "{small:?}");
        assert_eq!(small.matches('\n').count(), 4);
    }

    #[test]
    fn another_phase_is_told_at_once_and_figures_seldom() {
        let mut live = live(false);
        let start = Instant::now();
        assert!(live.is_news(&step("running", "fetching", "1"), start));
        assert!(!live.is_news(&step("running", "fetching", "2"), start + Duration::from_secs(1)));
        assert!(live.is_news(&step("running", "verifying", "2"), start + Duration::from_secs(1)));
        assert!(live.is_news(&step("running", "verifying", "3"), start + SELDOM + Duration::from_secs(1)));
        assert!(!live.is_news(&step("running", "verifying", "3"), start + SELDOM * 9));
        let other = Step { of: "b.r1".to_owned(), ..step("running", "fetching", "1") };
        assert!(live.is_news(&other, start));
        // Another job of which nothing is printed is no news.
        let quiet = |job: &str| Step { phase: job.to_owned(), gauge: None, ..step("ready", "", "") };
        assert!(live.is_news(&quiet("1 "), start) && !live.is_news(&quiet("2 "), start));
    }
}
