//! The last lines of a process's output, whatever the process writes.
//!
//! Owns splitting, capping and making it text; leaves reading and the log file to `shell/output`.
//! Invariant: at most [`LINES`] lines, [`BYTES`] bytes and [`LINE`] bytes a line are held, always valid text.

use std::{collections::VecDeque, net::IpAddr};

/// Lines kept.
pub(crate) const LINES: usize = 200;
/// Bytes kept in all.
pub(crate) const BYTES: usize = 32 * 1024;
/// Bytes kept of one line: a message fits, a tensor dump does not.
pub(crate) const LINE: usize = 1024;
/// Bytes of the tail that leave the host.
pub(crate) const REPORTED: usize = 4 * 1024;

/// Finished lines, for whoever follows the output.
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(crate) struct Followed {
    /// Oldest first.
    pub(crate) lines: Vec<String>,
    /// The number of the line after them.
    pub(crate) next: u64,
    /// Lines before them were asked for and are no longer kept.
    #[serde(default)]
    pub(crate) gap: bool,
}

/// The tail of one process's output.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    lines: VecDeque<String>,
    /// Lines that were ever closed: the number of the next one.
    closed: u64,
    bytes: usize,
    /// The line that is being written.
    open: Vec<u8>,
    /// Bytes of the open line that were not kept.
    dropped: usize,
    /// A carriage return came: what follows overwrites the line, unless it is the end of it.
    rewound: bool,
}

impl Tail {
    /// Takes output as it comes.
    pub(crate) fn write(&mut self, mut bytes: &[u8]) {
        while let Some(at) = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r')) {
            let (text, rest) = bytes.split_at(at);
            self.extend(text);
            if rest.first() == Some(&b'\n') {
                self.close();
            } else {
                self.rewound = true;
            }
            bytes = rest.get(1..).unwrap_or_default();
        }
        self.extend(bytes);
    }

    fn extend(&mut self, text: &[u8]) {
        if text.is_empty() {
            return;
        }
        if std::mem::take(&mut self.rewound) {
            self.open.clear();
            self.dropped = 0;
        }
        let room = LINE.saturating_sub(self.open.len());
        let kept = text.get(..room.min(text.len())).unwrap_or_default();
        self.open.extend_from_slice(kept);
        self.dropped += text.len() - kept.len();
    }

    fn close(&mut self) {
        let line = self.open_line();
        self.open.clear();
        self.dropped = 0;
        self.rewound = false;
        self.bytes += line.len();
        self.lines.push_back(line);
        self.closed += 1;
        while self.lines.len() > LINES || self.bytes > BYTES {
            match self.lines.pop_front() {
                Some(old) => self.bytes -= old.len(),
                None => break,
            }
        }
    }

    fn open_line(&self) -> String {
        let text = String::from_utf8_lossy(&self.open);
        // Replacement marks are longer than what they replace: capped again, at a character.
        let mut line = String::with_capacity(text.len().min(LINE) + 32);
        let mut escape = false;
        for character in text.chars() {
            if escape {
                // A terminal's control sequence ends with a letter.
                escape = !character.is_ascii_alphabetic();
            } else if character == '\u{1b}' {
                escape = true;
            } else if line.len() + character.len_utf8() <= LINE
                && (!character.is_control() || character == '\t')
            {
                line.push(character);
            }
        }
        if self.dropped > 0 {
            use std::fmt::Write;
            let _ = write!(line, " [{} bytes more]", self.dropped);
        }
        line
    }

    /// The lines, oldest first, the unfinished one last.
    pub(crate) fn lines(&self) -> impl Iterator<Item = String> + '_ {
        let open = (!self.open.is_empty()).then(|| self.open_line());
        self.lines.iter().cloned().chain(open)
    }

    /// At most `most` of the finished lines, without addresses: from number `after` on, or the last ones. A number that is
    /// not reached yet belongs to another run: then it is the last ones.
    pub(crate) fn since(&self, after: Option<u64>, most: usize) -> Followed {
        let first = self.closed - self.lines.len() as u64;
        let after = after.filter(|after| *after <= self.closed);
        let from = after.unwrap_or_else(|| self.closed.saturating_sub(most as u64)).max(first);
        let skipped = usize::try_from(from - first).unwrap_or(usize::MAX);
        let lines: Vec<String> =
            self.lines.iter().skip(skipped).take(most).map(|line| without_addresses(line)).collect();
        let next = from + lines.len() as u64;
        Followed { lines, next, gap: after.is_some_and(|after| after < first) }
    }

    /// Nobody writes any more: what stands there is the last line.
    pub(crate) fn end(&mut self) {
        if !self.open.is_empty() {
            self.close();
        }
    }

    /// The last lines that fit in [`REPORTED`] bytes, without addresses.
    pub(crate) fn report(&self) -> String {
        let lines: Vec<String> = self.lines().collect();
        let mut from = lines.len();
        let mut bytes = 0;
        for line in lines.iter().rev() {
            bytes += line.len() + 1;
            if bytes > REPORTED {
                break;
            }
            from -= 1;
        }
        without_addresses(&lines.get(from..).unwrap_or_default().join("\n"))
    }
}

/// `text` with every IP address, `host:port` and port replaced: none of them leaves the host.
pub(crate) fn without_addresses(text: &str) -> String {
    const MARK: &str = "[address]";
    let belongs = |character: char| {
        character.is_ascii_alphanumeric() || matches!(character, '.' | ':' | '-' | '[' | ']' | '_')
    };
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    let mut after_port = false;
    while !rest.is_empty() {
        let end = rest.find(|character| !belongs(character)).unwrap_or(rest.len());
        let (word, tail) = rest.split_at(end);
        if !word.is_empty() {
            let number = word.trim_end_matches(['.', ':']);
            if is_address(word)
                || (after_port && !number.is_empty() && number.bytes().all(|byte| byte.is_ascii_digit()))
            {
                out.push_str(MARK);
            } else {
                out.push_str(word);
            }
            let last = word.trim_end_matches(':').rsplit(['-', '_', '.']).next().unwrap_or_default();
            after_port = last.eq_ignore_ascii_case("port");
        }
        let gap = tail.find(belongs).unwrap_or(tail.len());
        let (between, next) = tail.split_at(gap);
        out.push_str(between);
        after_port &= between.chars().all(|character| matches!(character, ' ' | '=' | '\'' | '"'));
        rest = next;
    }
    out
}

/// An IP address, or anything with a port behind it.
fn is_address(word: &str) -> bool {
    let word = word.trim_matches(|character| matches!(character, '.' | '-' | '_')).trim_end_matches(':');
    // Of `http:` only what follows the slashes comes here; a scheme has no digits behind its colon.
    if let Some((host, port)) = word.rsplit_once(':') {
        let is_port = !port.is_empty() && port.len() <= 5 && port.bytes().all(|byte| byte.is_ascii_digit());
        // `file.cpp:120` and `12:30` are not addresses; a known host or address before the colon is one.
        let host = host.trim_start_matches('[').trim_end_matches(']');
        if is_port && (host == "localhost" || host.is_empty() || host.parse::<IpAddr>().is_ok()) {
            return true;
        }
    }
    let bare = word.trim_start_matches('[').trim_end_matches(']');
    // `::` alone is how C++ and Rust name things.
    bare.parse::<IpAddr>().is_ok() && bare != "::"
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tail(chunks: &[&[u8]]) -> Tail {
        let mut tail = Tail::default();
        for chunk in chunks {
            tail.write(chunk);
        }
        tail
    }

    fn lines(chunks: &[&[u8]]) -> Vec<String> {
        tail(chunks).lines().collect()
    }

    #[test]
    fn splits_lines_over_chunks() {
        assert_eq!(lines(&[b"on", b"e\ntwo\r", b"\nthr"]), ["one", "two", "thr"]);
    }

    /// Row 86: progress bars, invalid UTF-8, no newline for ever.
    #[test]
    fn row_86_whatever_is_written() {
        assert_eq!(lines(&[b"10 %\r20 %\r30 %", b"\rdone\n"]), ["done"]);
        assert_eq!(lines(&[b"a\xff\xfeb\n"]), ["a\u{fffd}\u{fffd}b"]);
        assert_eq!(lines(&[b"\x1b[31mred\x1b[0m\x07\n"]), ["red"]);
        let mut endless = Tail::default();
        for _ in 0..1000 {
            endless.write(&[0xff; 64 * 1024]);
        }
        let line = endless.lines().next().unwrap();
        assert!(line.len() <= LINE + 32, "{}", line.len());
        assert!(line.contains("bytes more"));
    }

    /// Who follows gets each line once, and what was dropped meanwhile is passed over.
    #[test]
    fn is_followed_by_number() {
        let mut tail = tail(&[b"a\nb at 127.0.0.1:80\nc"]);
        let since = |tail: &Tail, after: u64, most| {
            let told = tail.since(Some(after), most);
            (told.lines.join(" "), told.next, told.gap)
        };
        assert_eq!(since(&tail, 0, 9), ("a b at [address]".into(), 2, false));
        assert_eq!(since(&tail, 0, 1), ("a".into(), 1, false));
        assert_eq!(since(&tail, 2, 9), (String::new(), 2, false));
        tail.end();
        tail.end();
        assert_eq!(since(&tail, 2, 9), ("c".into(), 3, false));
        assert_eq!(tail.since(None, 2).lines, ["b at [address]", "c"], "the last ones");
        for number in 0..1000 {
            tail.write(format!("{number}\n").as_bytes());
        }
        assert_eq!(since(&tail, 3, 1), ("800".into(), 804, true));
        assert_eq!(since(&tail, 5000, 1), ("999".into(), 1003, false), "another run's number");
    }

    #[test]
    fn stays_within_its_bounds() {
        let mut many = Tail::default();
        for number in 0..100_000 {
            many.write(format!("line {number}\n").as_bytes());
        }
        let kept: Vec<_> = many.lines().collect();
        assert_eq!(kept.len(), LINES);
        assert_eq!(kept.last().unwrap(), "line 99999");
        let mut long = Tail::default();
        for _ in 0..1000 {
            long.write(&[b'x'; 5000]);
            long.write(b"\n");
        }
        assert!(long.lines().map(|line| line.len()).sum::<usize>() <= BYTES);
        assert!(long.report().len() <= REPORTED);
    }

    /// Row 87: the last line is in the report, finished or not.
    #[test]
    fn row_87_the_last_line_is_there() {
        let mut tail = Tail::default();
        for number in 0..200 {
            tail.write(format!("  File \"x.py\", line {number}\n").as_bytes());
        }
        tail.write(b"ValueError: no such model");
        assert!(tail.report().ends_with("ValueError: no such model"));
    }

    #[test]
    fn addresses_stay_on_the_host() {
        let said = "listening on http://127.0.0.1:8080, also [::1]:9 and localhost:77; bind 10.1.2.3 port 8080 port=99 fe80::1";
        let told = without_addresses(said);
        assert_eq!(
            told,
            "listening on http://[address], also [address] and [address]; bind [address] port [address] port=[address] [address]"
        );
        let plain = "at file.cpp:120, std::vector, 12:30:45, version 1.2.3, 3.5 GB; import 5";
        assert_eq!(without_addresses(plain), plain);
    }
}
