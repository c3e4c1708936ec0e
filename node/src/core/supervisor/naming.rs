//! What a crash is called, and which of the engine's own words stand in its cause.
//!
//! Owns reading the last lines of an engine's output; leaves what is made of a name to whoever judges by it. Invariants: a
//! name comes from this agent's own cause or from the run that ended, never from an earlier one; the words are one line of the
//! tail, which has no addresses, and at most [`WORDS`] bytes.

use umbel_contracts::causes::Cause::{self, CudaError, NotReachable, OutOfMemory, PortTaken, Stalled};
use umbel_wire::text::shorten;

/// Bytes of an engine's own words in a cause: a sentence fits, a dump does not.
const WORDS: usize = 200;
/// Lines at the end of the tail that may tell a name: what was said long before the end was survived.
const NEAR: usize = 40;

/// Words of engines, of their libraries and of this agent, in small letters; the first that is found counts.
const MARKS: [(Cause, &[&str]); 3] = [
    (
        OutOfMemory,
        &[
            "out of memory",
            "outofmemory",
            "memory runs out",
            "cannot allocate memory",
            "unable to allocate",
            "no available memory for the cache blocks",
        ],
    ),
    (
        CudaError,
        &[
            "cuda error",
            "cudaerror",
            "no cuda-capable device",
            "cuda-capable device(s) is/are busy",
            "driver/library version mismatch",
            "gpu is lost",
        ],
    ),
    (PortTaken, &["address already in use", "couldn't bind"]),
];

/// The name of a cause in this agent's words: the one that stands in front, whichever it is, else by what it says.
pub(crate) fn name(cause: &str) -> Option<Cause> {
    let in_front = cause.split_once(':').and_then(|(word, _)| Cause::named(word));
    in_front
        .or_else(|| {
            let begins = [("stalled", Stalled), ("not reachable", NotReachable)];
            begins.into_iter().find(|(words, _)| cause.starts_with(words)).map(|(_, name)| name)
        })
        .or_else(|| marked(cause))
}

fn marked(line: &str) -> Option<Cause> {
    let lower = line.to_ascii_lowercase();
    let has = |words: &&[&str]| words.iter().any(|word| lower.contains(word));
    MARKS.iter().find(|(_, words)| has(words)).map(|(name, _)| *name)
}

/// What a process ended for: the cause with the line that tells most, and its name.
pub(crate) fn crash(cause: &str, tail: &str) -> (String, Option<Cause>) {
    let of_cause = name(cause);
    let lines = || tail.lines().rev().map(str::trim).filter(|line| !line.is_empty());
    let telling = lines().take(NEAR).find_map(|line| marked(line).map(|name| (name, line)));
    let named = of_cause.or(telling.map(|(name, _)| name));
    let line =
        telling.filter(|(name, _)| Some(*name) == named).map(|(_, line)| line).or_else(|| lines().next());
    let Some(line) = line else { return (cause.to_owned(), named) };
    let mut words = line.replace('"', "'");
    shorten(&mut words, WORDS);
    (format!("{cause}: \"{words}\""), named)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_stands_in_the_cause() {
        assert_eq!(
            crash("exited with code 1", "a traceback\nFINAL: \"because\"\n\n"),
            ("exited with code 1: \"FINAL: 'because'\"".to_owned(), None)
        );
        assert_eq!(crash("exited", " \n"), ("exited".to_owned(), None));
        let (cause, _) = crash("exited", &"ä".repeat(2_000));
        assert!(cause.len() <= WORDS + 16, "{}", cause.len());
    }

    #[test]
    fn a_line_that_tells_more_than_the_last_is_taken() {
        let tail = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB\nRuntimeError: see root cause above";
        let (cause, name) = crash("exited with code 1", tail);
        assert!(cause.contains("Tried to allocate 2 GiB") && name == Some(OutOfMemory), "{cause} {name:?}");
        for (tail, named) in [
            ("CUDA error: unspecified launch failure\nbye", Some(CudaError)),
            ("CUDA error: out of memory", Some(OutOfMemory)),
            (
                "[Errno 98] error while attempting to bind on [address]: address already in use",
                Some(PortTaken),
            ),
            ("ValueError: no such model", None),
        ] {
            assert_eq!(crash("exited with code 1", tail).1, named, "{tail}");
        }
        let long_before = format!("CUDA error: x\n{}", "fine\n".repeat(NEAR));
        assert_eq!(crash("exited with code 1", &long_before).1, None);
    }

    #[test]
    fn own_causes_have_names_of_their_own() {
        for cause in Cause::ALL {
            assert_eq!(name(&format!("{cause}: out of memory")), Some(*cause));
        }
        for (cause, named) in [
            ("OF_TOMORROW: it does not answer", None),
            ("stalled: requests wait", Some(Stalled)),
            ("was ended by signal 9 (killed; the kernel does so when memory runs out)", Some(OutOfMemory)),
            ("restarted by an operator", None),
        ] {
            assert_eq!(name(cause), named, "{cause}");
        }
    }
}
