//! The catalogue of faults: every row that concerns this program has a test that names its number, or a line in a contract
//! document that says why it has none.
//!
//! Owns the list of numbers. Leaves what a row says to the tests that carry its number. Invariant: a test that is taken
//! away, or loses its number, is missed here.

use std::collections::BTreeSet;

use crate::tidy::files;

/// The rows, by their numbers in the catalogue; it has gaps.
const ROWS: [u32; 83] = [
    1, 3, 4, 5, 6, 7, 8, 9, 10, 11, 15, 16, 17, 19, 20, 21, 22, 24, 25, 27, 29, 30, 31, 32, 33, 35, 36, 37,
    38, 39, 40, 42, 43, 44, 46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 57, 58, 61, 63, 64, 65, 67, 68, 69, 70,
    71, 72, 73, 75, 76, 77, 78, 80, 81, 82, 83, 86, 87, 89, 92, 93, 95, 96, 97, 98, 99, 101, 102, 103, 104,
    105, 106, 107, 108,
];

/// What of a file counts: tests as a whole, sources from their test module on, of a contract the lines that are about rows.
fn counts(path: &str, text: &str) -> String {
    if path.ends_with(".md") {
        let rows = text.lines().filter(|line| line.starts_with("- row"));
        // What stands behind the colon names other rows, which have tests.
        let named = rows.map(|line| line.split(':').next().unwrap_or(line));
        return named.collect::<Vec<_>>().join("\n");
    }
    if path.contains("/tests/") || path.ends_with("tests.rs") {
        return text.to_owned();
    }
    text.split_once("#[cfg(test)]\nmod tests {").map(|(_, tests)| tests.to_owned()).unwrap_or_default()
}

/// The numbers after `row` or `rows`, in words (`rows 8, 29 and 31`) or in a name (`row_97_the_driver`).
fn numbers(text: &str) -> BTreeSet<u32> {
    let mut found = BTreeSet::new();
    let text = text.replace('_', " ");
    let mut words = text.split_whitespace().filter(|word| !matches!(*word, "//" | "///" | "//!")).peekable();
    while let Some(word) = words.next() {
        if !matches!(word.trim_start_matches('(').to_ascii_lowercase().as_str(), "row" | "rows") {
            continue;
        }
        while let Some(next) = words.peek() {
            let digits: String = next.chars().take_while(char::is_ascii_digit).collect();
            match digits.parse() {
                Ok(number) => drop(found.insert(number)),
                Err(_) if *next == "and" => {}
                Err(_) => break,
            }
            words.next();
        }
    }
    found
}

#[test]
fn every_fault_has_a_test_or_a_reason() {
    let files = files(|name| {
        let ours = !name.contains("/src/proto/") && name != "tests/tests/faults.rs";
        ours && (name.ends_with(".rs") || (name.starts_with("contracts/") && name.ends_with(".md")))
    });
    let named: BTreeSet<u32> =
        files.iter().flat_map(|file| numbers(&counts(&file.path, &file.text))).collect();
    let missing: Vec<_> = ROWS.iter().filter(|row| !named.contains(row)).collect();
    assert!(missing.is_empty(), "no test names these rows, and no contract says why: {missing:?}");
}

#[test]
fn numbers_are_found_however_they_are_written() {
    let text =
        "/// Row 9: a\n//! rows 8, 29\n/// and 31: b (row 7) fn row_97_the_driver() rows of a table, row 1a";
    assert_eq!(numbers(text), BTreeSet::from([1, 7, 8, 9, 29, 31, 97]));
}
