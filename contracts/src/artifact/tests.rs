//! Names, lists and digests of artifacts.

use super::*;

fn file(path: &str) -> ArtifactFile {
    ArtifactFile { path: path.into(), bytes: 1, sha256: "ab".repeat(32) }
}

/// Row 94: nothing that leads out of its folder is a name, nor what only looks like one.
#[test]
fn row_94_names_that_lead_elsewhere_are_refused() {
    let long = "x".repeat(256);
    let whole = vec!["x".repeat(200); 6].join("/");
    let deep = vec!["x"; 17].join("/");
    for bad in [
        "",
        "/",
        "/etc/passwd",
        "..",
        "../a",
        "a/../b",
        "a/..",
        "./a",
        "a//b",
        "a/",
        ".",
        "a\0b",
        "a\nb",
        "a\u{1b}[2J",
        "C:\\a",
        "C:/a",
        "a:b",
        "a\\b",
        "..\\a",
        "a\u{2044}b",
        "a\u{2215}b",
        "a\u{FF0F}b",
        "..\u{FF0F}a",
        "a\u{202E}b",
        "a\u{200B}b",
        "a\u{FEFF}",
        " a",
        "a ",
        "a/ b",
        ".umbel-artifact.json",
        "x/.Umbel-Artifact.JSON",
        &long,
        &whole,
        &deep,
    ] {
        let said = check_path(bad).unwrap_err();
        assert!(!said.chars().any(char::is_control), "{bad:?}: {said:?}");
    }
    for good in
        ["model.gguf", "a/b/c.safetensors", "..a", "a..b", "-x", ".gitattributes", "größe.txt", "a b.txt"]
    {
        check_path(good).unwrap();
    }
}

#[test]
fn repositories_and_revisions_are_words() {
    for good in ["qwen3", "Qwen/Qwen3-0.6B", "a/b/c"] {
        check_repository(good).unwrap();
    }
    for bad in ["", "/a", "a/", "a//b", "../a", "a/..", "a--b", "a b", "-a", ".a", "a\\b", "ä", "a..b"] {
        check_repository(bad).unwrap_err();
    }
    check_repository(&"a".repeat(201)).unwrap_err();
    check_revision("2f1c0ffee").unwrap();
    for bad in ["", "a/b", "..", "-x", "refs/pr/1", "a b"] {
        check_revision(bad).unwrap_err();
    }
}

#[test]
fn a_list_has_no_name_twice_and_no_file_that_is_a_folder() {
    check_files(&[file("a"), file("b/c"), file("b/d")]).unwrap();
    for (bad, place) in [
        (vec![file("a"), file("A")], "[1].path"),
        (vec![file("b"), file("B/c")], "[0].path"),
        (vec![file("b/c/d"), file("b/c")], "[1].path"),
        (vec![file("a"), ArtifactFile { sha256: "AB".repeat(32), ..file("b") }], "[1].sha256"),
        (vec![ArtifactFile { bytes: u64::MAX, ..file("b") }, file("c")], "[0].bytes"),
        (vec![], ""),
        (vec![file("x"); FILES_MAX + 1], ""),
    ] {
        assert_eq!(check_files(&bad).unwrap_err().place(), place);
    }
}

#[test]
fn a_digest_names_content_and_not_order() {
    let one = [file("a"), file("b/c")];
    let digest_of_one = digest(&one);
    assert_eq!(digest_of_one, digest(&[file("b/c"), file("a")]));
    assert_ne!(digest_of_one, digest(&[file("a"), file("b-c")]));
    assert_ne!(digest_of_one, digest(&[file("a"), ArtifactFile { bytes: 2, ..file("b/c") }]));
    // It is on disks and in stores: it never changes.
    assert_eq!(digest_of_one, "b304cfbe2a2290d2fdcf4895d816d456fb01be26e9a0a5e42531d32980f76948");
    assert_eq!(
        folder("Qwen/Qwen3", "2f1c", &"0123456789abcdef".repeat(4)),
        "Qwen--Qwen3/2f1c.0123456789abcdef"
    );
}

#[test]
fn a_hubs_tree_becomes_a_list() {
    let oid = "cd".repeat(32);
    let tree = format!(
        r#"[{{"type":"directory","path":"onnx","oid":"x","size":0}},
            {{"type":"file","path":"model.safetensors","size":9,"oid":"e1","xetHash":"f","lfs":{{"oid":"{oid}","size":9,"pointerSize":134}}}},
            {{"type":"file","path":"config.json","size":5,"oid":"e2"}},
            {{"type":"file","path":"../odd","size":5,"oid":"e2"}}]"#
    );
    let files = hub_tree(tree.as_bytes(), |path| !path.contains("odd")).unwrap();
    assert_eq!(
        files,
        [
            HubFile { path: "config.json".into(), bytes: 5, sha256: None },
            HubFile { path: "model.safetensors".into(), bytes: 9, sha256: Some(oid) },
        ]
    );
    assert!(hub_tree(tree.as_bytes(), |_| true).unwrap_err().contains("../odd"));
    assert!(hub_tree(b"{}", |_| true).is_err());
}
