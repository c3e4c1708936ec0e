//! An answer after its head: the body piece by piece, and whether it ended as its framing says.

use std::io::{self, BufRead, BufReader, Read};

use super::{Socket, leave};

pub(super) fn line(socket: &mut BufReader<Socket>) -> io::Result<String> {
    let mut bytes = Vec::new();
    if socket.read_until(b'\n', &mut bytes)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    if bytes.last() != Some(&b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(String::from_utf8_lossy(&bytes).trim_end_matches(['\r', '\n']).to_owned())
}

#[derive(Clone, Copy)]
pub(super) enum Framing {
    Chunked,
    Length(usize),
    ToEnd,
}

/// How a body ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum BodyEnd {
    /// As its framing says.
    Whole,
    /// Cut: the sentence of the failed read.
    Cut(String),
}

/// An answer whose head was read.
pub struct Answer {
    /// The status.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    pub(super) socket: BufReader<Socket>,
    pub(super) framing: Framing,
    pub(super) end: Option<BodyEnd>,
}

/// A whole answer.
#[derive(Clone, Debug)]
pub struct Whole {
    /// The status.
    pub status: u16,
    /// Headers, names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body without its framing.
    pub body: Vec<u8>,
    /// How it ended.
    pub end: BodyEnd,
}

impl Whole {
    /// The first header of this name (lower case).
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The body as text.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The body as JSON; null when it is none.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

impl Answer {
    /// The first header of this name (lower case).
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// The next bytes of the body; none at its end (see [`Answer::end`]).
    pub fn piece(&mut self) -> Option<Vec<u8>> {
        if self.end.is_some() {
            return None;
        }
        match self.read_piece() {
            Ok(Some(bytes)) => Some(bytes),
            Ok(None) => {
                self.end = Some(BodyEnd::Whole);
                None
            }
            Err(e) => {
                self.end = Some(BodyEnd::Cut(e.to_string()));
                None
            }
        }
    }

    fn read_piece(&mut self) -> io::Result<Option<Vec<u8>>> {
        match self.framing {
            Framing::Chunked => {
                let size = line(&mut self.socket)?;
                let size = usize::from_str_radix(size.trim(), 16).map_err(|_| {
                    io::Error::new(io::ErrorKind::InvalidData, format!("chunk size {size:?}"))
                })?;
                let mut bytes = vec![0; size];
                self.socket.read_exact(&mut bytes)?;
                line(&mut self.socket)?;
                Ok((size > 0).then_some(bytes))
            }
            Framing::Length(0) => Ok(None),
            Framing::Length(left) => {
                let mut bytes = vec![0; left.min(64 << 10)];
                let n = self.socket.read(&mut bytes)?;
                if n == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                bytes.truncate(n);
                self.framing = Framing::Length(left - n);
                Ok(Some(bytes))
            }
            Framing::ToEnd => {
                let mut bytes = vec![0; 64 << 10];
                let n = self.socket.read(&mut bytes)?;
                bytes.truncate(n);
                Ok((n > 0).then_some(bytes))
            }
        }
    }

    /// Reads until the body so far contains `mark`; what was read is returned.
    ///
    /// # Errors
    /// When the body ends first; what was read stands in the message.
    pub fn read_to(&mut self, mark: &str) -> io::Result<Vec<u8>> {
        let mut all = Vec::new();
        while !String::from_utf8_lossy(&all).contains(mark) {
            match self.piece() {
                Some(bytes) => all.extend_from_slice(&bytes),
                None => {
                    return Err(io::Error::other(format!(
                        "the body ended ({:?}) without {mark:?}: {}",
                        self.end,
                        String::from_utf8_lossy(&all)
                    )));
                }
            }
        }
        Ok(all)
    }

    /// How the body ended, once it has.
    #[must_use]
    pub fn end(&self) -> Option<&BodyEnd> {
        self.end.as_ref()
    }

    /// Reads the rest.
    #[must_use]
    pub fn rest(mut self) -> Whole {
        let mut body = Vec::new();
        while let Some(bytes) = self.piece() {
            body.extend_from_slice(&bytes);
        }
        let end = self.end.take().unwrap_or(BodyEnd::Whole);
        Whole { status: self.status, headers: self.headers, body, end }
    }

    /// Leaves before the end: with FIN, or with RST.
    pub fn leave(self, reset: bool) {
        leave(self.socket, reset);
    }
}
