//! A client that speaks raw HTTP/1.1 and tells how an answer ended.

use std::net::SocketAddr;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;

use super::rig::soon;

pub(super) trait Socket: AsyncRead + AsyncWrite + Unpin {}
impl<T: AsyncRead + AsyncWrite + Unpin> Socket for T {}

/// The head of an answer.
#[derive(Debug)]
pub(super) struct Head {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
}

impl Head {
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(own, _)| own == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.get(name).is_some()
    }
}

/// How a body ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// As announced.
    Clean,
    /// The connection ended or broke before.
    Broken,
}

#[derive(Debug)]
pub(super) struct Reply {
    pub(super) head: Head,
    pub(super) body: Vec<u8>,
    pub(super) ended: Ended,
}

impl Reply {
    pub(super) fn text(&self) -> &str {
        std::str::from_utf8(&self.body).unwrap()
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("no JSON: {}", self.text()))
    }

    /// `error.code`, and that the body has OpenAI's shape.
    pub(super) fn error_code(&self) -> String {
        assert_eq!(self.head.get("content-type"), Some("application/json"));
        let json = self.json();
        let error = json["error"].as_object().unwrap();
        for key in ["message", "type", "param", "code"] {
            assert!(error.contains_key(key), "no {key} in {json}");
        }
        assert!(error["message"].is_string() && error["type"].is_string(), "{json}");
        assert!(self.head.has("x-request-id"), "no request id");
        error["code"].as_str().unwrap_or_default().to_owned()
    }
}

/// A connection.
pub(super) struct Client<S = TcpStream> {
    pub(super) socket: S,
    buffer: Vec<u8>,
    chunked: bool,
    left: Option<usize>,
}

impl Client {
    pub(super) async fn connect(address: SocketAddr) -> Self {
        Self::over(TcpStream::connect(address).await.unwrap())
    }

    /// One request on a connection of its own.
    pub(super) async fn ask(address: SocketAddr, request: impl AsRef<[u8]>) -> Reply {
        let mut client = Self::connect(address).await;
        client.send(request).await;
        client.reply().await
    }
}

impl<S: Socket> Client<S> {
    pub(super) fn over(socket: S) -> Self {
        Self { socket, buffer: Vec::new(), chunked: false, left: None }
    }

    pub(super) async fn send(&mut self, request: impl AsRef<[u8]>) {
        self.socket.write_all(request.as_ref()).await.unwrap();
        self.socket.flush().await.unwrap();
    }

    /// Reads more; false at the end, clean or not.
    async fn more(&mut self) -> bool {
        let mut space = vec![0; 16 * 1024];
        match soon("bytes from the edge", self.socket.read(&mut space)).await {
            Ok(0) | Err(_) => false,
            Ok(read) => {
                self.buffer.extend_from_slice(&space[..read]);
                true
            }
        }
    }

    pub(super) async fn head(&mut self) -> Head {
        loop {
            if let Some(end) = self.buffer.windows(4).position(|part| part == b"\r\n\r\n") {
                let text = String::from_utf8(self.buffer.drain(..end + 4).collect()).unwrap();
                let mut lines = text.trim_end().split("\r\n");
                let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
                let headers: Vec<(String, String)> = lines
                    .map(|line| line.split_once(": ").unwrap())
                    .map(|(name, value)| (name.to_owned(), value.to_owned()))
                    .collect();
                let head = Head { status, headers };
                self.chunked = head.get("transfer-encoding") == Some("chunked");
                self.left = head.get("content-length").map(|length| length.parse().unwrap());
                return head;
            }
            assert!(self.more().await, "no head: {:?}", String::from_utf8_lossy(&self.buffer));
        }
    }

    /// The next part of the body; `Err` says how it ended.
    pub(super) async fn part(&mut self) -> Result<Vec<u8>, Ended> {
        loop {
            if self.chunked {
                if let Some(part) = self.chunk() {
                    return if part.is_empty() { Err(Ended::Clean) } else { Ok(part) };
                }
            } else if let Some(left) = &mut self.left {
                if *left == 0 {
                    return Err(Ended::Clean);
                }
                let take = (*left).min(self.buffer.len());
                if take > 0 {
                    *left -= take;
                    return Ok(self.buffer.drain(..take).collect());
                }
            } else if !self.buffer.is_empty() {
                return Ok(std::mem::take(&mut self.buffer));
            }
            let mut space = vec![0; 16 * 1024];
            match soon("bytes from the edge", self.socket.read(&mut space)).await {
                // Without a length the end of the connection is the end of the body.
                Ok(0) if !self.chunked && self.left.is_none() => return Err(Ended::Clean),
                Ok(0) | Err(_) => return Err(Ended::Broken),
                Ok(read) => self.buffer.extend_from_slice(&space[..read]),
            }
        }
    }

    fn chunk(&mut self) -> Option<Vec<u8>> {
        let line = self.buffer.windows(2).position(|part| part == b"\r\n")?;
        let size = usize::from_str_radix(std::str::from_utf8(&self.buffer[..line]).unwrap(), 16).unwrap();
        if self.buffer.len() < line + 2 + size + 2 {
            return None;
        }
        let part = self.buffer[line + 2..line + 2 + size].to_vec();
        self.buffer.drain(..line + 2 + size + 2);
        Some(part)
    }

    /// Reads until the body holds this text.
    pub(super) async fn until(&mut self, text: &str) -> String {
        let mut all = Vec::new();
        while !String::from_utf8_lossy(&all).contains(text) {
            match self.part().await {
                Ok(part) => all.extend_from_slice(&part),
                Err(ended) => panic!("{ended:?} before {text:?}: {}", String::from_utf8_lossy(&all)),
            }
        }
        String::from_utf8(all).unwrap()
    }

    pub(super) async fn rest(&mut self) -> (Vec<u8>, Ended) {
        let mut all = Vec::new();
        loop {
            match self.part().await {
                Ok(part) => all.extend_from_slice(&part),
                Err(ended) => return (all, ended),
            }
        }
    }

    pub(super) async fn reply(&mut self) -> Reply {
        let head = self.head().await;
        let (body, ended) = self.rest().await;
        Reply { head, body, ended }
    }
}

/// A chat request for `m`.
pub(super) fn chat(stream: bool) -> String {
    post("/v1/chat/completions", "", &format!("{{\"model\":\"m\",\"stream\":{stream},\"messages\":[]}}"))
}

pub(super) fn post(path: &str, headers: &str, body: &str) -> String {
    format!(
        "POST {path} HTTP/1.1\r\nhost: edge\r\ncontent-type: application/json\r\n{headers}content-length: {}\r\n\r\n{body}",
        body.len()
    )
}

pub(super) fn get(path: &str, headers: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nhost: edge\r\n{headers}\r\n")
}
