//! Requests of HTTP/1.1 off a connection, strictly: a receiver that guesses could hide a mistake of the sender.

use anyhow::{Context, Result, bail, ensure};
use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

/// More is no webhook.
const MAX_HEAD_BYTES: usize = 64 * 1024;
const MAX_BODY_BYTES: usize = 16 * 1024 * 1024;

/// One request, fully read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// `POST` and the like.
    pub method: String,
    /// Path with query, as sent.
    pub path: String,
    /// Names in lower case, in the order sent.
    pub headers: Vec<(String, String)>,
    /// The body, without transfer coding.
    pub body: Bytes,
}

impl Request {
    /// The first header of this name (give it in lower case).
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// `x-attempt`, 1 when it is missing.
    pub fn attempt(&self) -> u32 {
        self.header("x-attempt").and_then(|value| value.parse().ok()).unwrap_or(1)
    }

    /// `x-delivery-id`, empty when it is missing.
    pub fn delivery_id(&self) -> &str {
        self.header("x-delivery-id").unwrap_or_default()
    }

    pub(super) fn wants_close(&self) -> bool {
        self.header("connection").is_some_and(|value| value.eq_ignore_ascii_case("close"))
    }
}

/// Reads the next request; `None` when the peer closed between two requests. `buffer` keeps what was read beyond it.
pub(super) async fn read_request(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> Result<Option<Request>> {
    let mut searched = 0;
    let head_length = loop {
        if let Some(at) = find(&buffer[searched..], b"\r\n\r\n") {
            break searched + at + 4;
        }
        searched = buffer.len().saturating_sub(3);
        ensure!(buffer.len() < MAX_HEAD_BYTES, "the head is too long");
        if stream.read_buf(buffer).await? == 0 {
            ensure!(buffer.is_empty(), "the connection ended inside a head");
            return Ok(None);
        }
    };
    let head = buffer.split_to(head_length);
    let mut request = parse_head(&head)?;
    request.body = match (request.header("content-length"), request.header("transfer-encoding")) {
        (Some(_), Some(_)) => bail!("both content-length and transfer-encoding"),
        (Some(length), None) => {
            let length = length.parse().context("content-length is no number")?;
            take(stream, buffer, length).await?
        }
        (None, Some(coding)) => {
            ensure!(coding.eq_ignore_ascii_case("chunked"), "unknown transfer-encoding");
            read_chunks(stream, buffer).await?
        }
        (None, None) => Bytes::new(),
    };
    Ok(Some(request))
}

fn parse_head(head: &[u8]) -> Result<Request> {
    let text = std::str::from_utf8(head).context("the head is not UTF-8")?;
    let mut lines = text.split("\r\n");
    let mut words = lines.next().unwrap_or_default().split(' ');
    let (Some(method), Some(path), Some("HTTP/1.1"), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        bail!("not a request line of HTTP/1.1");
    };
    let mut headers = Vec::with_capacity(16);
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(':').context("a header line without a colon")?;
        ensure!(!name.is_empty() && !name.contains([' ', '\t']), "a malformed header name");
        headers.push((name.to_ascii_lowercase(), value.trim_matches([' ', '\t']).to_owned()));
    }
    Ok(Request { method: method.to_owned(), path: path.to_owned(), headers, body: Bytes::new() })
}

async fn take(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
    length: usize,
) -> Result<Bytes> {
    ensure!(length <= MAX_BODY_BYTES, "the body is too long");
    while buffer.len() < length {
        ensure!(stream.read_buf(buffer).await? > 0, "the connection ended inside a body");
    }
    Ok(buffer.split_to(length).freeze())
}

async fn read_chunks(
    stream: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> Result<Bytes> {
    let mut body = BytesMut::new();
    loop {
        let line = read_line(stream, buffer).await?;
        let digits = line.split(';').next().unwrap_or_default().trim();
        let length = usize::from_str_radix(digits, 16).context("a chunk length is no number")?;
        ensure!(body.len() + length <= MAX_BODY_BYTES, "the body is too long");
        if length == 0 {
            while !read_line(stream, buffer).await?.is_empty() {}
            return Ok(body.freeze());
        }
        body.extend_from_slice(&take(stream, buffer, length).await?);
        ensure!(read_line(stream, buffer).await?.is_empty(), "a chunk is not followed by CRLF");
    }
}

async fn read_line(stream: &mut (impl AsyncRead + Unpin), buffer: &mut BytesMut) -> Result<String> {
    loop {
        if let Some(at) = find(buffer, b"\r\n") {
            let line = String::from_utf8_lossy(&buffer[..at]).into_owned();
            buffer.advance(at + 2);
            return Ok(line);
        }
        ensure!(buffer.len() < MAX_HEAD_BYTES, "a line is too long");
        ensure!(stream.read_buf(buffer).await? > 0, "the connection ended inside a body");
    }
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    haystack.windows(needle.len()).position(|window| window == needle)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn all(mut input: &[u8]) -> Result<Vec<Request>> {
        let (mut buffer, mut requests) = (BytesMut::new(), Vec::new());
        while let Some(request) = read_request(&mut input, &mut buffer).await? {
            requests.push(request);
        }
        Ok(requests)
    }

    #[tokio::test]
    async fn requests_on_one_connection_are_told_apart() {
        let input = b"POST /a HTTP/1.1\r\nContent-Length: 3\r\nX-Attempt: 2\r\n\r\nabc\
            POST /b HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nde\r\n1\r\nf\r\n0\r\n\r\n\
            GET /c HTTP/1.1\r\n\r\n";
        let requests = all(input).await.unwrap();
        let seen: Vec<_> =
            requests.iter().map(|request| (request.path.as_str(), &request.body[..])).collect();
        assert_eq!(seen, [("/a", &b"abc"[..]), ("/b", b"def"), ("/c", b"")]);
        assert_eq!(requests[0].attempt(), 2);
    }

    #[tokio::test]
    async fn a_malformed_request_is_refused() {
        for input in [
            "POST /a HTTP/1.0\r\n\r\n",
            "POST  /a HTTP/1.1\r\n\r\n",
            "POST /a HTTP/1.1\r\nno colon\r\n\r\n",
            "POST /a HTTP/1.1\r\nContent-Length: 5\r\n\r\nabc",
            "POST /a HTTP/1.1\r\nContent-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\na",
            "POST /a HTTP/1.1\r\nContent-Len",
        ] {
            assert!(all(input.as_bytes()).await.is_err(), "{input:?}");
        }
    }
}
