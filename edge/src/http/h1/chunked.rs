//! A body that comes in chunks (RFC 9112, section 7.1).

use super::Malformed;

/// Extensions of chunks and trailer fields of one body together: nobody reads them, so they are not to be fed for ever.
const BESIDE_MAX: u32 = 16 * 1024;
/// Digits of a size. Twice as many as any size has, for those who write leading zeros.
const DIGITS_MAX: u32 = 32;

/// How far a chunked body is read.
#[derive(Debug, Default)]
pub(in crate::http) struct Chunked {
    state: State,
    /// Of the chunk: its size as far as it is said, then what is left of it.
    left: u64,
    digits: u32,
    /// Bytes that were skipped.
    beside: u32,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// A size, of which a digit must come.
    #[default]
    Size,
    /// More digits may come.
    Digits,
    /// Blanks behind a size.
    Blank,
    /// An extension, which is skipped.
    Extension,
    /// The line feed behind a size.
    SizeEnd,
    Data,
    /// Behind a chunk's data.
    DataEnd,
    DataLineFeed,
    /// A line behind the last chunk begins: a trailer field, or the end.
    Line,
    TrailerName,
    Trailer,
    TrailerEnd,
    LastLineFeed,
    Over,
}

impl Chunked {
    pub(in crate::http) fn is_over(&self) -> bool {
        self.state == State::Over
    }

    /// The next piece of data, taken off `input` with what stands before it; `None` if the body is over (what is left of the
    /// input is behind it), or if the input is.
    ///
    /// # Errors
    /// It is no chunked body.
    pub(in crate::http) fn next<'a>(&mut self, input: &mut &'a [u8]) -> Result<Option<&'a [u8]>, Malformed> {
        while self.state != State::Over {
            if self.state == State::Data {
                let here = input.len().min(usize::try_from(self.left).unwrap_or(usize::MAX));
                let (data, rest) = input.split_at_checked(here).ok_or(Malformed)?;
                *input = rest;
                self.left -= here as u64;
                if self.left == 0 {
                    self.state = State::DataEnd;
                }
                return Ok((!data.is_empty()).then_some(data));
            }
            let Some((byte, rest)) = input.split_first() else { return Ok(None) };
            *input = rest;
            self.state = self.after(*byte)?;
        }
        Ok(None)
    }

    fn after(&mut self, byte: u8) -> Result<State, Malformed> {
        Ok(match (self.state, byte) {
            (State::Size, byte) if byte.is_ascii_hexdigit() => {
                (self.left, self.digits) = (0, 0);
                self.digit(byte)?
            }
            (State::Digits, byte) if byte.is_ascii_hexdigit() => self.digit(byte)?,
            (State::Digits | State::Blank | State::Extension, b'\r') => State::SizeEnd,
            (State::Digits | State::Blank, b' ' | b'\t') => self.skipped(State::Blank)?,
            (State::Digits | State::Blank, b';') => self.skipped(State::Extension)?,
            (State::Extension, byte) if is_text(byte) => self.skipped(State::Extension)?,
            (State::SizeEnd, b'\n') if self.left == 0 => State::Line,
            (State::SizeEnd, b'\n') => State::Data,
            (State::DataEnd, b'\r') => State::DataLineFeed,
            (State::DataLineFeed, b'\n') => State::Size,
            (State::Line, b'\r') => State::LastLineFeed,
            (State::Line | State::TrailerName, byte) if is_token(byte) => self.skipped(State::TrailerName)?,
            (State::TrailerName, b':') => self.skipped(State::Trailer)?,
            (State::Trailer, byte) if is_text(byte) => self.skipped(State::Trailer)?,
            (State::Trailer, b'\r') => State::TrailerEnd,
            (State::TrailerEnd, b'\n') => State::Line,
            (State::LastLineFeed, b'\n') => State::Over,
            _ => return Err(Malformed),
        })
    }

    fn digit(&mut self, digit: u8) -> Result<State, Malformed> {
        let value = char::from(digit).to_digit(16).ok_or(Malformed)?;
        let shifted = self.left.checked_mul(16).ok_or(Malformed)?;
        self.left = shifted | u64::from(value);
        self.digits += 1;
        if self.digits > DIGITS_MAX { Err(Malformed) } else { Ok(State::Digits) }
    }

    fn skipped(&mut self, next: State) -> Result<State, Malformed> {
        self.beside += 1;
        if self.beside > BESIDE_MAX { Err(Malformed) } else { Ok(next) }
    }
}

/// What a line may hold that is only skipped.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

/// What a field's name may hold (RFC 9110, section 5.6.2).
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test stops at the first surprise")]
    use quickcheck::{Gen, QuickCheck};

    use super::*;

    /// A body's data, and what is behind it; `None` while it is not over.
    type Decoded = Option<(Vec<u8>, Vec<u8>)>;

    fn decoded(pieces: &[&[u8]]) -> Result<Decoded, Malformed> {
        let (mut chunked, mut data, mut behind) = (Chunked::default(), Vec::new(), Vec::new());
        for piece in pieces {
            let mut input = *piece;
            while let Some(part) = chunked.next(&mut input)? {
                data.extend_from_slice(part);
            }
            assert!(input.is_empty() || chunked.is_over());
            behind.extend_from_slice(input);
        }
        Ok(chunked.is_over().then_some((data, behind)))
    }

    #[test]
    fn a_body_is_its_chunks_data_however_it_is_cut() {
        fn holds(chunks: Vec<Vec<u8>>, cuts: Vec<u16>) -> bool {
            let mut text = Vec::new();
            for chunk in chunks.iter().filter(|chunk| !chunk.is_empty()) {
                text.extend_from_slice(format!("{:X} \t;a=\"b\"\r\n", chunk.len()).as_bytes());
                text.extend_from_slice(chunk);
                text.extend_from_slice(b"\r\n");
            }
            text.extend_from_slice(b"00\r\nx: y\r\n\r\nGET");
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| usize::from(*cut) % text.len()).collect();
            cuts.sort_unstable();
            let mut pieces = Vec::new();
            let mut from = 0;
            for cut in cuts.into_iter().chain([text.len()]) {
                pieces.push(&text[from..cut]);
                from = cut;
            }
            decoded(&pieces) == Ok(Some((chunks.concat(), b"GET".to_vec())))
        }
        QuickCheck::new()
            .rng(Gen::new(60))
            .tests(300)
            .quickcheck(holds as fn(Vec<Vec<u8>>, Vec<u16>) -> bool);
    }

    #[test]
    fn what_breaks_the_rules_is_refused() {
        for text in [
            "\r\n",
            "x\r\n",
            "-1\r\n",
            "0x1\r\n",
            " 1\r\n",
            "1\n",
            "1\r\r\n",
            "1\r\nab",
            "1\r\na\n",
            "1\r\na\r\r",
            "1;a\nb\r\n",
            "1;\u{0}\r\n",
            "10000000000000000\r\n",
            "0\r\n\n",
            "0\r\na: b\n",
            "0\r\n\u{1}\r\n",
            "0\r\n\r\r",
            "0\r\nGET / HTTP/1.1\r\n\r\n",
            "0\r\n: y\r\n\r\n",
            "0\r\n x: y\r\n\r\n",
            "1 1\r\n",
            "1\t;\n",
        ] {
            assert_eq!(decoded(&[text.as_bytes()]), Err(Malformed), "{text:?}");
        }
    }

    #[test]
    fn what_nobody_reads_has_its_bound() {
        let long = "x".repeat(BESIDE_MAX as usize + 1);
        for text in [
            format!("1;{long}"),
            format!("0\r\nx: {long}"),
            format!("1{}", " ".repeat(long.len())),
            "0".repeat(DIGITS_MAX as usize + 1),
        ] {
            assert_eq!(decoded(&[text.as_bytes()]), Err(Malformed));
        }
        let many = "00000001\r\na\r\n".repeat(100_000);
        let text = format!("{many}0\r\n\r\n");
        assert_eq!(
            decoded(&[text.as_bytes()]).unwrap().unwrap().0.len(),
            100_000,
            "chunks are no such thing"
        );
    }
}
