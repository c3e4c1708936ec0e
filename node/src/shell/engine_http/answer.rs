//! Reads one HTTP/1.1 answer from bytes as they come; no socket here.
//!
//! Owns head, length and chunk framing; leaves the connection to its parent. Invariant: `is_complete` is true only
//! when the framing said so (or the engine closed an answer that has no length), for every cut of the input.

use std::mem::MaybeUninit;

use umbel_contracts::headers::TO_CLIENT;

/// The head: status line and headers, with the interim answers before it.
pub(crate) const HEAD_MAX: usize = 16 * 1024;
/// Headers of one answer.
const HEADERS_MAX: usize = 100;
/// A chunk's extension, and all trailers together: nobody uses them.
const IGNORED_MAX: usize = 4 * 1024;
/// Of the body.
const LENGTH: &str = "content-length";
/// Why an answer cannot be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Bad {
    /// It is not HTTP/1, or its headers contradict each other.
    #[error("its answer is not HTTP/1.1")]
    NotHttp,
    /// The head is larger than allowed.
    #[error("its answer's headers are larger than 16 KiB")]
    HeadTooLarge,
    /// A chunk's framing is broken.
    #[error("its answer's chunks are malformed")]
    Chunk,
    /// The connection ended within the answer.
    #[error("it closed the connection before its answer was complete")]
    Short,
}

/// What the head says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) status: u16,
    /// Those of [`TO_CLIENT`], in lower case.
    pub(crate) headers: Vec<(&'static str, Vec<u8>)>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Head,
    Sized(u64),
    Chunked(Chunk),
    UntilClose,
    Complete,
    /// The framing is broken from here on.
    Broken,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Chunk {
    /// Hexadecimal digits of the size.
    Size {
        size: u64,
        digits: u8,
    },
    /// `;name=value` behind the size.
    Extension {
        size: u64,
    },
    /// The line feed behind the size.
    SizeEnd {
        size: u64,
    },
    /// So many bytes are left.
    Data(u64),
    /// The line end behind the data.
    DataCr,
    DataLf,
    /// After the last chunk: start of a line, within a line, before the last line feed.
    TrailerStart,
    Trailer,
    TrailerEnd,
}

/// The reader of one answer.
#[derive(Debug)]
pub(crate) struct Answer {
    phase: Phase,
    /// The head so far.
    head: Vec<u8>,
    /// Bytes of interim heads (1xx) before it: an engine could send them for ever.
    interim: usize,
    ignored: usize,
    keep: bool,
    /// Bytes came behind the answer's end.
    excess: bool,
}

impl Answer {
    pub(crate) fn new() -> Self {
        Self { phase: Phase::Head, head: Vec::new(), interim: 0, ignored: 0, keep: false, excess: false }
    }

    /// All of it was read.
    pub(crate) fn is_complete(&self) -> bool {
        self.phase == Phase::Complete
    }

    /// The connection can carry another request.
    pub(crate) fn is_reusable(&self) -> bool {
        self.is_complete() && self.keep && !self.excess
    }

    /// Takes bytes of the head. When it is whole: the head, and where in these bytes the body begins.
    ///
    /// # Errors
    /// If it is no answer.
    pub(crate) fn head(&mut self, bytes: &[u8]) -> Result<Option<(Head, usize)>, Bad> {
        // Nearly every head comes in one piece, and is read where it is.
        let mut kept = std::mem::take(&mut self.head);
        if !kept.is_empty() {
            kept.extend_from_slice(bytes);
        }
        let mut input = if kept.is_empty() { bytes } else { &kept };
        loop {
            let mut headers = [const { MaybeUninit::uninit() }; HEADERS_MAX];
            let mut parsed = httparse::Response::new(&mut []);
            let config = httparse::ParserConfig::default();
            let length = match config.parse_response_with_uninit_headers(&mut parsed, input, &mut headers) {
                Ok(httparse::Status::Complete(length)) => length,
                Ok(httparse::Status::Partial) if input.len() > HEAD_MAX => return Err(Bad::HeadTooLarge),
                Ok(httparse::Status::Partial) => {
                    self.head = input.to_vec();
                    return Ok(None);
                }
                Err(httparse::Error::TooManyHeaders) => return Err(Bad::HeadTooLarge),
                Err(_) => return Err(Bad::NotHttp),
            };
            if length > HEAD_MAX {
                return Err(Bad::HeadTooLarge);
            }
            let behind = input.get(length..).unwrap_or_default();
            let status = parsed.code.unwrap_or_default();
            if (100..200).contains(&status) {
                // Switching protocols was not asked for; other interim answers say nothing.
                if status == 101 {
                    return Err(Bad::NotHttp);
                }
                self.interim += length;
                if self.interim > HEAD_MAX {
                    return Err(Bad::HeadTooLarge);
                }
                input = behind;
                continue;
            }
            let (phase, keep) = framing(status, parsed.version.unwrap_or_default(), parsed.headers)?;
            let head = Head { status, headers: passed(parsed.headers, phase) };
            (self.phase, self.keep) = (phase, keep);
            self.excess = self.is_complete() && !behind.is_empty();
            return Ok(Some((head, bytes.len().saturating_sub(behind.len()))));
        }
    }

    /// The chunks turned out to be malformed; what came before was good.
    ///
    /// # Errors
    /// [`Bad::Chunk`] if so.
    pub(crate) fn check(&self) -> Result<(), Bad> {
        if self.phase == Phase::Broken { Err(Bad::Chunk) } else { Ok(()) }
    }

    /// Takes bytes of the body and moves the payload in them to the front; how long it is. [`Answer::check`] says
    /// whether it can go on.
    pub(crate) fn body(&mut self, bytes: &mut [u8]) -> usize {
        match self.phase {
            Phase::UntilClose => bytes.len(),
            Phase::Sized(left) => {
                let taken = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len());
                self.excess = taken < bytes.len();
                let left = left - taken as u64;
                self.phase = if left == 0 { Phase::Complete } else { Phase::Sized(left) };
                taken
            }
            Phase::Chunked(chunk) => self.chunks(chunk, bytes),
            Phase::Complete | Phase::Head | Phase::Broken => {
                self.excess |= !bytes.is_empty();
                0
            }
        }
    }

    fn chunks(&mut self, mut chunk: Chunk, bytes: &mut [u8]) -> usize {
        let (mut at, mut kept) = (0, 0);
        while let Some(&byte) = bytes.get(at) {
            if let Chunk::Data(left) = chunk {
                let count = usize::try_from(left).unwrap_or(usize::MAX).min(bytes.len() - at);
                if kept != at {
                    bytes.copy_within(at..at + count, kept);
                }
                at += count;
                kept += count;
                let left = left - count as u64;
                chunk = if left == 0 { Chunk::DataCr } else { Chunk::Data(left) };
                continue;
            }
            at += 1;
            match self.line(chunk, byte) {
                Ok(Some(next)) => chunk = next,
                Ok(None) => {
                    self.phase = Phase::Complete;
                    self.excess = at < bytes.len();
                    return kept;
                }
                Err(_) => {
                    self.phase = Phase::Broken;
                    return kept;
                }
            }
        }
        self.phase = Phase::Chunked(chunk);
        kept
    }

    /// One byte outside of a chunk's data; nothing when it was the answer's last.
    fn line(&mut self, chunk: Chunk, byte: u8) -> Result<Option<Chunk>, Bad> {
        Ok(Some(match (chunk, byte) {
            (Chunk::Size { size, digits }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') if digits < 15 => {
                let digit = char::from(byte).to_digit(16).unwrap_or_default();
                Chunk::Size { size: size * 16 + u64::from(digit), digits: digits + 1 }
            }
            (Chunk::Size { size, digits: 1.. }, b'\r') | (Chunk::Extension { size }, b'\r') => {
                Chunk::SizeEnd { size }
            }
            (Chunk::Size { size, digits: 1.. }, b';' | b' ' | b'\t') => Chunk::Extension { size },
            (Chunk::Extension { size }, byte) if byte != b'\n' => {
                self.ignore()?;
                Chunk::Extension { size }
            }
            (Chunk::SizeEnd { size: 0 }, b'\n') => Chunk::TrailerStart,
            (Chunk::SizeEnd { size }, b'\n') => Chunk::Data(size),
            (Chunk::DataCr, b'\r') => Chunk::DataLf,
            (Chunk::DataLf, b'\n') => Chunk::Size { size: 0, digits: 0 },
            (Chunk::TrailerStart, b'\r') => Chunk::TrailerEnd,
            (Chunk::TrailerEnd, b'\n') => return Ok(None),
            (Chunk::Trailer, b'\n') => Chunk::TrailerStart,
            (Chunk::TrailerStart | Chunk::Trailer, byte) if byte != b'\n' => {
                self.ignore()?;
                Chunk::Trailer
            }
            _ => return Err(Bad::Chunk),
        }))
    }

    fn ignore(&mut self) -> Result<(), Bad> {
        self.ignored += 1;
        if self.ignored > IGNORED_MAX { Err(Bad::Chunk) } else { Ok(()) }
    }

    /// The connection ended.
    ///
    /// # Errors
    /// [`Bad::Short`] if the answer was not complete.
    pub(crate) fn end(&mut self) -> Result<(), Bad> {
        match self.phase {
            Phase::UntilClose | Phase::Complete => {
                self.phase = Phase::Complete;
                self.keep = false;
                Ok(())
            }
            Phase::Head | Phase::Sized(_) | Phase::Chunked(_) | Phase::Broken => Err(Bad::Short),
        }
    }
}

/// How the body ends, and whether the connection stays (RFC 9112, 6.3 and 9.3).
fn framing(status: u16, version: u8, headers: &[httparse::Header<'_>]) -> Result<(Phase, bool), Bad> {
    let mut keep = version == 1;
    let (mut length, mut chunked, mut coded) = (None, false, false);
    for header in headers {
        let value = header.value.trim_ascii();
        if header.name.eq_ignore_ascii_case("content-length") {
            // Twice the same is one; anything but digits is none.
            for one in value.split(|byte| *byte == b',') {
                let one = decimal(one.trim_ascii()).ok_or(Bad::NotHttp)?;
                if length.is_some_and(|before| before != one) {
                    return Err(Bad::NotHttp);
                }
                length = Some(one);
            }
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            coded = true;
            chunked = value
                .rsplit(|byte| *byte == b',')
                .next()
                .is_some_and(|last| last.trim_ascii().eq_ignore_ascii_case(b"chunked"));
            // A body that is also compressed on the way would have to be unpacked here.
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err(Bad::NotHttp);
            }
        } else if header.name.eq_ignore_ascii_case("connection") {
            for word in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
                if word.eq_ignore_ascii_case(b"close") {
                    keep = false;
                } else if word.eq_ignore_ascii_case(b"keep-alive") && version == 0 {
                    keep = true;
                }
            }
        }
    }
    if matches!(status, 204 | 304) {
        return Ok((Phase::Complete, keep));
    }
    Ok(match (coded, chunked, length) {
        // Both: the chunks count, and the connection is not trusted any further.
        (true, true, both) => (Phase::Chunked(Chunk::Size { size: 0, digits: 0 }), keep && both.is_none()),
        (true, false, _) => return Err(Bad::NotHttp),
        (false, _, Some(0)) => (Phase::Complete, keep),
        (false, _, Some(length)) => (Phase::Sized(length), keep),
        (false, _, None) => (Phase::UntilClose, false),
    })
}

fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 18 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    std::str::from_utf8(digits).ok()?.parse().ok()
}

/// The length is told as it was taken: where chunks count, or it was given twice, the engine's own words would cut the
/// answer at the client, or break it.
fn passed(headers: &[httparse::Header<'_>], phase: Phase) -> Vec<(&'static str, Vec<u8>)> {
    let mut out = Vec::with_capacity(TO_CLIENT.len());
    for header in headers {
        if let Some(name) = TO_CLIENT.iter().find(|name| header.name.eq_ignore_ascii_case(name))
            && *name != LENGTH
        {
            out.push((*name, header.value.to_vec()));
        }
    }
    if let Phase::Sized(length) = phase {
        out.push((LENGTH, length.to_string().into_bytes()));
    }
    out
}
