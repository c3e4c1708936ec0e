//! What is followed, as people see it: on a terminal lines with bars that are drawn over each other, whatever its width; into a
//! pipe plain lines; a server that is away is named.

use std::fs::File;
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, sync_channel};

use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use umbel_tests::fleet::{EdgeOptions, SOON, binary};
use umbel_tests::hub::Fault;
use umbel_tests::wait;

use crate::artifacts::{MIB, site};

/// `umbel ctl` whose standard error is a terminal.
struct Screen {
    child: Child,
    terminal: File,
    pieces: Receiver<Vec<u8>>,
    shown: String,
}

impl Screen {
    fn of(socket: &Path, columns: u16, color: &str, words: &[&str]) -> Self {
        let pty = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC).unwrap();
        grantpt(&pty).unwrap();
        unlockpt(&pty).unwrap();
        let name = ptsname(&pty, Vec::new()).unwrap().into_string().unwrap();
        let err = File::options().read(true).write(true).open(name).unwrap();
        let terminal = File::from(pty);
        resize(&terminal, columns);
        let mut command = Command::new(binary());
        command.args(["ctl", "--color", color, "--socket"]).arg(socket).args(words);
        if color == "auto" {
            command.env("NO_COLOR", "1");
        }
        command.env("TERM", "xterm").stdin(Stdio::null()).stdout(Stdio::piped()).stderr(err);
        let child = command.spawn().unwrap();
        // The writer's end is closed here with `command`: reading ends when the child does.
        drop(command);
        let (sender, pieces) = sync_channel(1024);
        let mut reader = terminal.try_clone().unwrap();
        std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(count @ 1..) = reader.read(&mut buffer) {
                if sender.send(buffer[..count].to_vec()).is_err() {
                    return;
                }
            }
        });
        Self { child, terminal, pieces, shown: String::new() }
    }

    /// What came since the last time, once it fits.
    #[track_caller]
    fn until(&mut self, what: &str, fits: impl Fn(&str) -> bool) -> String {
        let from = self.shown.len();
        wait::until_some(what, SOON, || {
            while let Ok(piece) = self.pieces.try_recv() {
                self.shown.push_str(&String::from_utf8_lossy(&piece));
            }
            let come = &self.shown[from..];
            if fits(come) { Ok(come.to_owned()) } else { Err(format!("{come:?}")) }
        })
    }

    /// Its exit code and everything that came.
    fn end(mut self) -> (Option<i32>, String) {
        while let Ok(piece) = self.pieces.recv() {
            self.shown.push_str(&String::from_utf8_lossy(&piece));
        }
        (self.child.wait().unwrap().code(), self.shown)
    }
}

fn resize(terminal: &File, columns: u16) {
    tcsetwinsize(terminal, Winsize { ws_row: 24, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 }).unwrap();
}

/// The characters of each line, without what moves the cursor or colours.
fn widths(shown: &str) -> Vec<usize> {
    let mut widths = vec![0];
    let mut chars = shown.chars();
    while let Some(c) = chars.next() {
        match c {
            '\u{1b}' => while chars.next().is_some_and(|c| !c.is_ascii_alphabetic()) {},
            '\n' | '\r' => widths.push(0),
            _ => *widths.last_mut().unwrap() += 1,
        }
    }
    widths
}

/// A download with bytes and rate, followed by `model apply` in colour, by `job watch` on a narrow terminal that becomes wider, and
/// into a pipe.
#[test]
fn a_bar_is_drawn_over_itself_and_never_wraps() {
    let s = site(&["gpu-1"], &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    let document = s.model("tiny", 4 * MIB, "");
    s.hub.fault("model.gguf", Fault::Hold(2 << 20), 1);
    let mut apply = Screen::of(&s.edge.socket, 100, "always", &["model", "apply", &document]);
    let drawn = "tiny.r1  fetching   ██████";
    let wide = apply.until("a bar is drawn again", |come| {
        come.matches(drawn).count() > 1 && come.contains("2.0 MiB of 4.0 MiB") && come.contains(" MiB/s")
    });
    assert!(wide.contains("\u{1b}[1A\r\u{1b}[Ktiny.r1"), "{wide:?}");
    let id = s.edge.ctl(&["job", "--kind", "artifact.acquire", "--model", "tiny", "-o", "name"]).ok().out;
    let id = id.trim();

    let mut screen = Screen::of(&s.edge.socket, 40, "auto", &["job", "watch", id]);
    let again = "\u{1b}[1A\r\u{1b}[Kgpu-1  ████░░░░  2.0 MiB of 4.0 MiB";
    let narrow = screen.until("a bar is drawn again", |come| come.matches(again).count() > 1);
    assert!(widths(&narrow).into_iter().all(|width| width < 40), "{narrow:?}");
    resize(&screen.terminal, 100);
    screen.until("the wider terminal is used", |come| come.contains("gpu-1  fetching   ██████"));

    s.hub.let_go();
    let (code, shown) = screen.end();
    assert_eq!(code, Some(0), "{shown:?}");
    assert!(shown.contains("succeeded") && !shown.contains("\u{1b}[3"), "NO_COLOR: {shown:?}");
    assert!(widths(&shown).into_iter().all(|width| width < 100), "{shown:?}");
    let (code, shown) = apply.end();
    assert_eq!(code, Some(0), "{shown:?}");
    assert!(shown.contains("\u{1b}[32mready") && shown.contains("tiny is ready"), "{shown:?}");
    assert!(widths(&shown).into_iter().all(|width| width < 100), "{shown:?}");

    let plain = s.edge.ctl(&["job", "watch", id]).ok();
    assert!(!plain.err.contains('\u{1b}') && !plain.err.contains('█'), "{plain:?}");
    assert!(plain.err.contains("gpu-1  succeeded  artifact.acquire org/tiny@r1"), "{plain:?}");
}

/// Whoever follows is told that nobody answers, once, and goes on when somebody does.
#[test]
fn a_server_that_is_away_is_named_by_whoever_follows() {
    let mut s = site(&["gpu-1"], &EdgeOptions { no_key: true, ..EdgeOptions::default() });
    let document = s.model("tiny", 2 * MIB, "");
    s.hub.fault("model.gguf", Fault::Hold(1 << 20), 1);
    let id = s.begun(&document);
    s.wait_bytes(&id, MIB);
    let mut screen = Screen::of(&s.edge.socket, 120, "auto", &["job", "watch", &id]);
    screen.until("it follows", |come| come.contains("1.0 MiB of 2.0 MiB"));
    s.edge.daemon.kill();
    screen.until("it is said", |come| come.contains("-- no answer, trying again: "));
    s.edge.start();
    s.hub.let_go();
    let (code, shown) = screen.end();
    assert!(code == Some(0) && shown.contains("succeeded"), "{code:?} {shown:?}");
    assert_eq!(shown.matches("-- no answer").count(), 1, "{shown:?}");
}
