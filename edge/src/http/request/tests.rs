//! What is read, what is changed in place, and what is refused.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "a test stops at the first surprise")]

use bytes::Bytes;
use quickcheck::quickcheck;
use serde_json::{Value, json};

use super::*;

#[test]
fn it_reads_its_fields_and_nothing_else() {
    let body =
        br#" {"seed":12345678901234567890,"x":{"model":"no"},"temperature":1e-05,"model":"m","stream":true}"#;
    let asked = read(body).unwrap();
    assert_eq!((asked.model.as_str(), asked.stream, asked.prompt_bytes), ("m", true, 0));
    let asked = read(br#"{"model":"a\/b\u0041","stream":null}"#).unwrap();
    assert_eq!((asked.model.as_str(), asked.stream), ("a/bA", false));
    for (prompt, bytes) in [
        (r#""messages":[{"role":"user","content":"x"}]"#, 31),
        (r#""prompt": "abc""#, 5),
        (r#""input":["a","b"]"#, 9),
        (r#""query":"q","documents":["d"]"#, 8),
        (r#""prompt":null"#, 0),
    ] {
        let asked = read(format!("{{\"model\":\"m\",{prompt}}}").as_bytes()).unwrap();
        assert_eq!(asked.prompt_bytes, bytes, "{prompt}");
    }
    for (limit, tokens) in [
        (r#""max_tokens":5"#, Some(5)),
        (r#""max_completion_tokens":6,"max_tokens":5"#, Some(6)),
        (r#""max_output_tokens":7"#, Some(7)),
        (r#""max_tokens":"many""#, None),
        (r#""max_tokens":null"#, None),
    ] {
        let asked = read(format!("{{\"model\":\"m\",{limit}}}").as_bytes()).unwrap();
        assert_eq!(asked.answer_tokens, tokens, "{limit}");
    }
}

#[test]
fn behaviour_9_only_the_models_value_changes_for_an_alias() {
    let body = Bytes::from_static(
        r#"{"a":1.0e5 ,"model" : "ali\u0061s", "é":[1, 2],"seed":9007199254740993}"#.as_bytes(),
    );
    let asked = read(&body).unwrap();
    assert_eq!(asked.model, "alias");
    assert_eq!(asked.body_for(&body, "alias", false), body);
    let expected = r#"{"a":1.0e5 ,"model" : "real \"m\"", "é":[1, 2],"seed":9007199254740993}"#;
    assert_eq!(asked.body_for(&body, "real \"m\"", false), expected.as_bytes());
}

#[test]
fn behaviour_6_the_usage_is_asked_for_in_place_and_only_where_it_was_not() {
    for (options, put) in [
        ("", r#""stream_options":{"include_usage":true},"#),
        (r#""stream_options":null,"#, r#""stream_options":{"include_usage":true},"#),
        (r#""stream_options" : { },"#, r#""stream_options" : {"include_usage":true},"#),
        (r#""stream_options":{"x":1},"#, r#""stream_options":{"include_usage":true,"x":1},"#),
        (r#""stream_options":{"include_usage": false},"#, r#""stream_options":{"include_usage": true},"#),
        (
            r#""stream_options":{"x":1,"include_usage":null},"#,
            r#""stream_options":{"x":1,"include_usage":true},"#,
        ),
    ] {
        let body =
            |options: &str| Bytes::from(format!(r#" {{{options}"stream":true,"model":"a" ,"n":1e-05}}"#));
        let asked = read(&body(options)).unwrap();
        assert!(asked.can_take_usage(), "{options}");
        assert_eq!(asked.body_for(&body(options), "a", false), body(options));
        let changed = asked.body_for(&body(options), "bb", true);
        let expected = String::from_utf8(body(put).to_vec()).unwrap().replace("\"a\"", "\"bb\"");
        assert_eq!(changed, expected.as_bytes());
        assert!(!read(&changed).unwrap().can_take_usage(), "{options}");
    }
    for options in [r#"{"include_usage":true}"#, "7", r#"{"include_usage":"yes"}"#, "[]"] {
        let body = Bytes::from(format!(r#"{{"stream":true,"model":"a","stream_options":{options}}}"#));
        assert!(!read(&body).unwrap().can_take_usage(), "{options}");
        assert_eq!(read(&body).unwrap().body_for(&body, "a", true), body, "{options}");
    }
    let plain = Bytes::from_static(br#"{"model":"a"}"#);
    assert_eq!(read(&plain).unwrap().body_for(&plain, "a", true), plain, "only a stream has it");
}

#[test]
fn bad_bodies_are_told_apart_and_never_quoted() {
    for (body, bad) in [
        (&b"{}"[..], BadRequest::NoModel),
        (br#"{"model":null}"#, BadRequest::NoModel),
        (br#"{"model":""}"#, BadRequest::NoModel),
        (br#"{"model":7}"#, BadRequest::BadModel),
        (br#"{"model":"m","stream":"yes"}"#, BadRequest::BadStream),
    ] {
        assert_eq!(read(body).unwrap_err(), bad);
    }
    for body in
        [&b""[..], b"[\"secret\"]", b"secret", br#"{"model":"m","p":"secret"#, b"{\"model\":\"\xff\"}"]
    {
        let BadRequest::NotJson(text) = read(body).unwrap_err() else { unreachable!("{body:?}") };
        assert!(!text.contains("secret"), "{text}");
    }
    for twice in [r#"{"model":"a","model":"b"}"#, r#"{"model":"a","messages":[],"messages":[]}"#] {
        assert!(
            matches!(read(twice.as_bytes()), Err(BadRequest::NotJson(text)) if text.contains("twice")),
            "{twice}"
        );
    }
}

#[test]
fn deep_nesting_is_no_stack_overflow() {
    for field in ["x", "messages", "stream_options"] {
        let mut body = format!("{{\"model\":\"m\",\"{field}\":").into_bytes();
        body.extend(std::iter::repeat_n(b'[', 200_000));
        body.extend(std::iter::repeat_n(b']', 200_000));
        body.push(b'}');
        assert_eq!(read(&body).unwrap().model, "m");
    }
}

fn form_of(parts: &[(&str, &str)]) -> (String, Bytes) {
    let mut body = Vec::new();
    for (head, value) in parts {
        body.extend_from_slice(format!("--b0undary\r\n{head}\r\n\r\n{value}\r\n").as_bytes());
    }
    body.extend_from_slice(b"--b0undary--\r\n");
    ("multipart/form-data; boundary=b0undary".to_owned(), Bytes::from(body))
}

#[test]
fn a_form_names_its_model_wherever_it_stands() {
    let file = (
        "Content-Disposition: form-data; filename=\"a; name=\\\"x.wav\"; name=\"file\"\r\nContent-Type: audio/wav",
        "\r\n--b0undar\0\u{1}name=\"model\"\r\n\r\nnot-this",
    );
    let model = ("content-disposition: form-data; name=\"model\"", "whisper/large");
    let stream = ("Content-Disposition: form-data; name=stream", "true");
    for parts in [vec![file, model], vec![model, file, stream], vec![stream, model]] {
        let (content_type, body) = form_of(&parts);
        let asked = form::read(content_type.as_bytes(), &body).unwrap();
        assert_eq!(
            (asked.model.as_str(), asked.stream),
            ("whisper/large", parts.len() != 2 || parts[0] == stream)
        );
        assert_eq!(asked.body_for(&body, "whisper/large", true), body);
        let changed = asked.body_for(&body, "w \"x\"", false);
        let expected = String::from_utf8(body.to_vec()).unwrap().replace("whisper/large", "w \"x\"");
        assert_eq!(changed, expected.as_bytes());
    }
    let (_, body) = form_of(&[model]);
    assert!(form::read(b"Multipart/Form-Data; charset=utf-8; boundary=\"b0undary\"", &body).is_ok());
}

#[test]
fn bad_forms_are_told_apart() {
    let model = ("Content-Disposition: form-data; name=\"model\"", "m");
    let (kind, body) = form_of(&[model]);
    for content_type in ["", "application/json", "multipart/form-data", "multipart/form-data; boundary="] {
        assert!(
            matches!(form::read(content_type.as_bytes(), &body), Err(BadRequest::NotAForm(_))),
            "{content_type}"
        );
    }
    let cut = body.slice(..body.len() - 20);
    let headless = form_of(&[("", "x")]).1;
    let many = form_of(&vec![("Content-Disposition: form-data; name=\"x\"", "m"); 65]).1;
    for bad in
        [&Bytes::new(), &cut, &form_of(&[model, model]).1, &many, &Bytes::from_static(b"{\"model\":\"m\"}")]
    {
        assert!(matches!(form::read(kind.as_bytes(), bad), Err(BadRequest::NotAForm(_))), "{bad:?}");
    }
    assert_eq!(form::read(kind.as_bytes(), &headless).unwrap_err(), BadRequest::NoModel);
    // An engine may read another name there than this edge does.
    for head in [
        "Content-Disposition: form-data; name=\"file\"\r\nContent-Disposition: form-data; name=\"model\"",
        "Content-Disposition: form-data; name=\"file\"; name=\"model\"",
        "Content-Disposition: form-data; filename=\"x\"; name=file; NAME = model",
        "Content-Disposition: form-data; name=\"file\"; name*=utf-8''model",
        "Content-Disposition: form-data;\r\n name=\"model\"",
        "X: y\nContent-Disposition: form-data; name=\"model\"",
        "X: y\rContent-Disposition: form-data; name=\"model\"",
    ] {
        let (_, body) = form_of(&[model, (head, "other")]);
        assert!(matches!(form::read(kind.as_bytes(), &body), Err(BadRequest::NotAForm(_))), "{head:?}");
    }
    let (_, body) =
        form_of(&[("Content-Disposition: form-data; name=\"file\"", "x\r\n--b0undaryX\r\ny"), model]);
    assert!(matches!(form::read(kind.as_bytes(), &body), Err(BadRequest::NotAForm(_))));
    let (_, body) = form_of(&[model]);
    assert!(form::read(b"multipart/form-data; boundary=x; boundary=b0undary", &body).is_err());
    let (_, other) = form_of(&[("Content-Disposition: form-data; name=\"file\"", "m")]);
    assert_eq!(form::read(kind.as_bytes(), &other).unwrap_err(), BadRequest::NoModel);
    let (_, bad) = form_of(&[model, ("Content-Disposition: form-data; name=\"stream\"", "maybe")]);
    assert_eq!(form::read(kind.as_bytes(), &bad).unwrap_err(), BadRequest::BadStream);
}

quickcheck! {
    /// Whatever comes, reading says something and nothing panics.
    fn any_bytes_are_answered(bytes: Vec<u8>, cut: usize) -> bool {
        let _ = read(&bytes);
        let (kind, body) = form_of(&[("Content-Disposition: form-data; name=\"model\"", "m")]);
        let mut body = body.to_vec();
        let at = cut % body.len();
        body.splice(at..at, bytes.iter().copied());
        let _ = form::read(kind.as_bytes(), &body);
        let _ = form::read(&bytes, &body);
        true
    }

    /// A changed body means the same to a parser, but for the two fields.
    fn changes_touch_nothing_else(text: String, number: i64, model_first: bool) -> bool {
        let (text, name) = (Value::from(text), "other \\ name");
        let body = if model_first {
            format!("{{\"model\":\"a\",\"messages\":[{text}],\"n\":{number},\"stream\":true}}")
        } else {
            format!("{{\"stream\":true, \"messages\":[{text}],\"n\":{number} ,\"model\":\"a\"}}")
        };
        let body = Bytes::from(body);
        let changed = read(&body).unwrap().body_for(&body, name, true);
        let mut expected: Value = serde_json::from_slice(&body).unwrap();
        expected["model"] = name.into();
        expected["stream_options"] = json!({"include_usage": true});
        serde_json::from_slice::<Value>(&changed).unwrap() == expected
    }
}
