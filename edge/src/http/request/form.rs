//! What the edge reads of a form (`multipart/form-data`, RFC 7578): the parts `model` and `stream`.
//!
//! Owns finding them among parts of any size, of which nothing is parsed or copied. Invariants: the number of parts
//! looked at is bounded; the bytes go on as they came, and only the value of `model` can be replaced, in place.

use std::ops::Range;

use memchr::memmem;

use super::{Asked, BadRequest, sound_model};

/// Parts of one form; a transcription has a dozen at most.
const PARTS_MAX: usize = 64;
/// Headers of one part.
const PART_HEAD_MAX: usize = 4 * 1024;
/// RFC 2046: a boundary has 1 to 70 characters.
const BOUNDARY_MAX: usize = 70;

/// Reads a form whose `Content-Type` is given.
pub(in crate::http) fn read(content_type: &[u8], body: &[u8]) -> Result<Asked, BadRequest> {
    let boundary = boundary(content_type)
        .ok_or(BadRequest::NotAForm("its Content-Type is not multipart/form-data with a boundary"))?;
    let delimiter = [b"--", boundary].concat();
    let inner = [b"\r\n", delimiter.as_slice()].concat();
    let finder = memmem::Finder::new(&inner);
    let (mut model_at, mut stream) = (None, false);
    let mut at = if body.starts_with(&delimiter) {
        delimiter.len()
    } else {
        // Words before the first part are allowed, and nobody sends any.
        finder.find(body).map(|at| at + inner.len()).ok_or(BadRequest::NotAForm("it has no part"))?
    };
    let mut parts = 0;
    loop {
        let rest = body.get(at..).unwrap_or_default();
        if rest.starts_with(b"--") {
            break;
        }
        // Anything else behind it is no boundary to a strict reader.
        if !line_ends(rest) {
            return Err(BadRequest::NotAForm("a line begins like its boundary and is none"));
        }
        parts += 1;
        if parts > PARTS_MAX {
            return Err(BadRequest::NotAForm("it has more than 64 parts"));
        }
        let length = finder.find(rest).ok_or(BadRequest::NotAForm("it has no end"))?;
        let part = rest.get(..length).unwrap_or_default();
        let head = part.get(..part.len().min(PART_HEAD_MAX)).unwrap_or_default();
        let head_length = memmem::find(head, b"\r\n\r\n")
            .ok_or(BadRequest::NotAForm("a part has no headers, or more than 4 KiB of them"))?;
        let value = at + head_length + 4..at + length;
        match name(part.get(..head_length).unwrap_or_default())? {
            Some(b"model") if model_at.is_some() => {
                return Err(BadRequest::NotAForm("`model` stands in it twice"));
            }
            Some(b"model") => model_at = Some(value),
            Some(b"stream") => stream = is_true(body.get(value).unwrap_or_default())?,
            _ => {}
        }
        at += length + inner.len();
    }
    asked(body, model_at.ok_or(BadRequest::NoModel)?, stream)
}

fn asked(body: &[u8], model_at: Range<usize>, stream: bool) -> Result<Asked, BadRequest> {
    let model = std::str::from_utf8(body.get(model_at.clone()).unwrap_or_default());
    Ok(Asked {
        model: sound_model(model.map_err(|_| BadRequest::BadModel)?)?,
        stream,
        // What a minute of speech is in tokens, its bytes do not tell.
        prompt_bytes: 0,
        prompt_at: 0..0,
        answer_tokens: None,
        model_at,
        quoted: false,
        usage_put: None,
    })
}

fn is_true(value: &[u8]) -> Result<bool, BadRequest> {
    match value.trim_ascii().to_ascii_lowercase().as_slice() {
        b"true" | b"1" => Ok(true),
        b"false" | b"0" | b"" => Ok(false),
        _ => Err(BadRequest::BadStream),
    }
}

/// The boundary that a `Content-Type` names.
fn boundary(content_type: &[u8]) -> Option<&[u8]> {
    let kind = b"multipart/form-data";
    if !content_type.get(..kind.len())?.eq_ignore_ascii_case(kind) {
        return None;
    }
    only(content_type.get(kind.len()..)?, b"boundary")
        .ok()
        .flatten()
        .filter(|it| (1..=BOUNDARY_MAX).contains(&it.len()))
}

/// Nothing but blanks stand before the line's end.
fn line_ends(rest: &[u8]) -> bool {
    let blanks = rest.iter().take_while(|byte| matches!(byte, b' ' | b'\t')).count();
    rest.get(blanks..).is_some_and(|rest| rest.starts_with(b"\r\n"))
}

/// The name of a part, from its headers. An engine may take the first of two or the last, or read on in a folded line:
/// where it might see another name than this edge did, the form is refused.
fn name(head: &[u8]) -> Result<Option<&[u8]>, BadRequest> {
    let wanted = b"content-disposition:";
    let mut found = None;
    let mut lines = head.split(|byte| *byte == b'\n').peekable();
    while let Some(line) = lines.next() {
        let line = match line.strip_suffix(b"\r") {
            Some(line) => line,
            None if lines.peek().is_none() => line,
            None => return Err(BadRequest::NotAForm("a part's headers do not end with CR LF")),
        };
        if line.contains(&b'\r') || line.first().is_some_and(|byte| matches!(byte, b' ' | b'\t')) {
            return Err(BadRequest::NotAForm("a part's header is folded"));
        }
        if line.get(..wanted.len()).is_some_and(|start| start.eq_ignore_ascii_case(wanted))
            && found.replace(line).is_some()
        {
            return Err(BadRequest::NotAForm("a part has Content-Disposition twice"));
        }
    }
    let Some(line) = found else { return Ok(None) };
    if parameter(line, b"name*").is_some() {
        return Err(BadRequest::NotAForm("a part's name is encoded"));
    }
    only(line, b"name").map_err(|Twice| BadRequest::NotAForm("a part has two names"))
}

/// A parameter stands there twice.
struct Twice;

/// A parameter that stands there at most once.
fn only<'a>(of: &'a [u8], name: &[u8]) -> Result<Option<&'a [u8]>, Twice> {
    let Some((value, behind)) = parameter(of, name) else { return Ok(None) };
    if parameter(behind, name).is_some() { Err(Twice) } else { Ok(Some(value)) }
}

/// `; name=value` or `; name="value"`: the value, and what stands behind it.
fn parameter<'a>(of: &'a [u8], name: &[u8]) -> Option<(&'a [u8], &'a [u8])> {
    let mut rest = of;
    loop {
        let at = rest.iter().position(|byte| *byte == b';')?;
        rest = rest.get(at + 1..)?.trim_ascii_start();
        let Some(value) = rest
            .get(..name.len())
            .filter(|start| start.eq_ignore_ascii_case(name))
            .and_then(|_| rest.get(name.len()..))
            .and_then(|after| after.trim_ascii_start().strip_prefix(b"="))
        else {
            // A semicolon inside a quoted value is none between parameters.
            let semicolon = rest.iter().position(|byte| *byte == b';').unwrap_or(rest.len());
            if let Some(quote) = rest.iter().position(|byte| *byte == b'"').filter(|quote| *quote < semicolon)
            {
                let closing = closing(rest.get(quote + 1..)?)?;
                rest = rest.get(quote + closing + 2..)?;
            }
            continue;
        };
        let value = value.trim_ascii_start();
        return match value.strip_prefix(b"\"") {
            Some(quoted) => quoted.split_at_checked(closing(quoted)?),
            None => {
                let end = value.iter().position(|byte| matches!(byte, b';' | b' ' | b'\t' | b'\r'));
                value.split_at_checked(end.unwrap_or(value.len()))
            }
        };
    }
}

/// Where a quoted value ends; a quote behind a backslash belongs to it.
fn closing(quoted: &[u8]) -> Option<usize> {
    let mut escaped = false;
    quoted.iter().position(|byte| {
        let ends = *byte == b'"' && !escaped;
        escaped = *byte == b'\\' && !escaped;
        ends
    })
}
