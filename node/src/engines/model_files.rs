//! What a model's files say of themselves: whether they are there, how large, how long a context.
//!
//! Owns reading a GGUF file's head and a Hugging Face `config.json`; leaves their digests to the artifacts. Invariant: of
//! a file no more than [`HEAD`] is read, whatever it says of its own lengths.

use std::{
    fs::File,
    io::{BufReader, ErrorKind, Read},
    path::Path,
};

use umbel_contracts::{causes::Cause, deployment::Profile};

use crate::{config::ProcessSource, core::deployments::Refusal};

/// Of a GGUF file: what describes the model comes before its vocabulary.
const HEAD: u64 = 256 * 1024;
/// Of a `config.json`.
const CONFIG_MAX: u64 = 4 * 1024 * 1024;
/// Files of one folder that are looked at.
const FILES_MAX: usize = 4096;
/// Names of files that hold weights.
const WEIGHTS: [&str; 4] = ["safetensors", "gguf", "bin", "pt"];

/// A GGUF file has to be there.
pub(super) fn check_file(file: &Path) -> Result<(), Refusal> {
    // Where it lies on the host is nobody else's to know.
    let shown = file.file_name().unwrap_or_default().to_string_lossy();
    let refusal = |says: String| {
        Refusal::new(Cause::ArtifactMissing, "artifact", format!("the model's file {shown} {says}"))
    };
    let mut magic = [0; 4];
    let read = File::open(file).and_then(|mut file| file.read_exact(&mut magic));
    match read {
        Ok(()) if &magic == b"GGUF" => Ok(()),
        Ok(()) => Err(refusal("is not a GGUF file".to_owned())),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
            Err(refusal("is too short for a GGUF file".to_owned()))
        }
        Err(error) => Err(refusal(format!("cannot be read: {}", error.kind()))),
    }
}

/// A folder has to be there, with one of the files that it needs.
pub(super) fn check_folder(folder: &Path, needs: &[&str]) -> Result<(), Refusal> {
    let refusal =
        |says: String| Refusal::new(Cause::ArtifactMissing, "artifact", format!("the model's folder {says}"));
    let facts =
        std::fs::metadata(folder).map_err(|error| refusal(format!("cannot be read: {}", error.kind())))?;
    if !facts.is_dir() {
        return Err(refusal("is no folder".to_owned()));
    }
    if needs.iter().any(|file| folder.join(file).is_file()) {
        return Ok(());
    }
    Err(refusal(format!("has no {}", needs.join(" or "))))
}

/// Bytes of the weights: what an engine needs in memory at least.
pub(crate) fn weights(process: &ProcessSource) -> u64 {
    if process.model.is_file() {
        return std::fs::metadata(&process.model).map_or(0, |facts| facts.len());
    }
    let Ok(entries) = std::fs::read_dir(&process.model) else { return 0 };
    let all: Vec<_> = entries.flatten().take(FILES_MAX).map(|entry| entry.path()).collect();
    let of = |kind: &str| -> u64 {
        let is = |path: &&std::path::PathBuf| path.extension().is_some_and(|end| end == kind);
        all.iter().filter(is).filter_map(|path| Some(std::fs::metadata(path).ok()?.len())).sum()
    };
    // Some folders hold the same weights in several forms: one is read.
    WEIGHTS.iter().map(|kind| of(kind)).find(|bytes| *bytes > 0).unwrap_or(0)
}

/// Longest context of the model, where its files say so and the profile does not stretch it.
pub(super) fn context_tokens(process: &ProcessSource) -> Option<u32> {
    match &process.profile {
        Profile::LlamaServer(profile)
            if profile.rope_scaling.is_some()
                || profile.rope_scale.is_some()
                || profile.context_shift == Some(true) =>
        {
            None
        }
        Profile::LlamaServer(_) => gguf_context(&process.model),
        _ => config_context(&process.model.join("config.json")),
    }
}

fn config_context(file: &Path) -> Option<u32> {
    let mut content = Vec::new();
    File::open(file).ok()?.take(CONFIG_MAX).read_to_end(&mut content).ok()?;
    let config: serde_json::Value = serde_json::from_slice(&content).ok()?;
    // Models with several senses keep it with their text's part.
    let parts = [&config, config.get("text_config").unwrap_or(&config)];
    let said = parts.iter().find_map(|part| part.get("max_position_embeddings")?.as_u64())?;
    let factor =
        parts.iter().find_map(|part| part.get("rope_scaling")?.get("factor")?.as_f64()).unwrap_or(1.0);
    // Whether positions are stretched at once or on demand differs by model: the longest counts.
    let longest = said as f64 * factor.max(1.0);
    (longest >= 1.0 && longest < f64::from(u32::MAX)).then_some(longest as u32)
}

fn gguf_context(file: &Path) -> Option<u32> {
    let mut head = Head(BufReader::new(File::open(file).ok()?.take(HEAD)));
    let magic: [u8; 4] = head.bytes()?;
    if &magic != b"GGUF" {
        return None;
    }
    let version = head.u32()?;
    // Version 1 has lengths of 32 bits; nobody has such files any more.
    if !(2..=3).contains(&version) {
        return None;
    }
    let (_tensors, entries) = (head.u64()?, head.u64()?);
    for _ in 0..entries.min(4096) {
        let key = head.text()?;
        let kind = head.u32()?;
        if key.ends_with(".context_length") {
            return match kind {
                4 | 5 => head.u32(),
                10 | 11 => u32::try_from(head.u64()?).ok(),
                _ => None,
            };
        }
        head.skip(kind)?;
    }
    None
}

/// The head of a GGUF file, read from its beginning; nothing once it is over.
struct Head<R>(R);

impl<R: Read> Head<R> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let mut bytes = [0; N];
        self.0.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes()?))
    }

    fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes()?))
    }

    fn pass(&mut self, bytes: u64) -> Option<()> {
        let passed = std::io::copy(&mut (&mut self.0).take(bytes), &mut std::io::sink()).ok()?;
        (passed == bytes).then_some(())
    }

    fn text(&mut self) -> Option<String> {
        let length = self.u64()?;
        let mut text = Vec::new();
        (&mut self.0).take(length.min(1024)).read_to_end(&mut text).ok()?;
        self.pass(length.saturating_sub(1024))?;
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    /// Passes over a value.
    fn skip(&mut self, kind: u32) -> Option<()> {
        match kind {
            8 => self.text().map(drop),
            9 => {
                let (of, length) = (self.u32()?, self.u64()?);
                match width(of) {
                    Some(width) => self.pass(width.checked_mul(length)?),
                    // Each text ends the head at the latest.
                    None if of == 8 => (0..length).try_for_each(|_| self.text().map(drop)),
                    None => None,
                }
            }
            kind => self.pass(width(kind)?),
        }
    }
}

/// Bytes of a value of fixed length.
fn width(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use umbel_contracts::deployment::EngineKind;

    use super::*;

    fn process(kind: EngineKind, profile: serde_json::Value, model: &Path) -> ProcessSource {
        let serde_json::Value::Object(table) = profile else { panic!() };
        ProcessSource {
            profile: Profile::read(kind, &table, "profile").unwrap(),
            model: model.to_owned(),
            port: 0,
            gpus: Vec::new(),
            stall_timeout: std::time::Duration::ZERO,
        }
    }

    /// A GGUF file's head with these entries: text, an array of texts, and the context's length.
    fn gguf(context: u32) -> Vec<u8> {
        let mut out = b"GGUF".to_vec();
        let text = |out: &mut Vec<u8>, text: &str| {
            out.extend((text.len() as u64).to_le_bytes());
            out.extend(text.as_bytes());
        };
        out.extend(3u32.to_le_bytes());
        out.extend(7u64.to_le_bytes());
        out.extend(4u64.to_le_bytes());
        text(&mut out, "general.architecture");
        out.extend(8u32.to_le_bytes());
        text(&mut out, "llama");
        text(&mut out, "general.tags");
        out.extend(9u32.to_le_bytes());
        out.extend(8u32.to_le_bytes());
        out.extend(2u64.to_le_bytes());
        text(&mut out, "a");
        text(&mut out, "b");
        text(&mut out, "general.weights");
        out.extend(9u32.to_le_bytes());
        out.extend(6u32.to_le_bytes());
        out.extend(3u64.to_le_bytes());
        out.extend([0; 12]);
        text(&mut out, "llama.context_length");
        out.extend(4u32.to_le_bytes());
        out.extend(context.to_le_bytes());
        out
    }

    #[test]
    fn a_gguf_file_says_its_context() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("m.gguf");
        let head = gguf(2048);
        std::fs::write(&file, &head).unwrap();
        let of = |profile| context_tokens(&process(EngineKind::LlamaServer, profile, &file));
        assert_eq!(of(json!({})), Some(2048));
        assert_eq!(of(json!({ "rope_scaling": "yarn" })), None);
        assert_eq!(weights(&process(EngineKind::LlamaServer, json!({}), &file)), head.len() as u64);
        // Cut anywhere, or with a length that lies, it says nothing and is done at once.
        for end in 0..head.len() {
            std::fs::write(&file, &head[..end]).unwrap();
            assert_eq!(of(json!({})), None, "{end}");
        }
        let mut lies = head;
        lies[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
        std::fs::write(&file, &lies).unwrap();
        assert_eq!(of(json!({})), None);
    }

    #[test]
    fn a_configuration_says_its_context() {
        let dir = tempfile::tempdir().unwrap();
        let of = |config: serde_json::Value| {
            std::fs::write(dir.path().join("config.json"), config.to_string()).unwrap();
            context_tokens(&process(EngineKind::Vllm, json!({}), dir.path()))
        };
        assert_eq!(of(json!({ "max_position_embeddings": 4096 })), Some(4096));
        assert_eq!(of(json!({ "text_config": { "max_position_embeddings": 8192 } })), Some(8192));
        assert_eq!(
            of(json!({ "max_position_embeddings": 4096, "rope_scaling": { "factor": 4.0 } })),
            Some(16384)
        );
        assert_eq!(of(json!({ "max_position_embeddings": 4096, "rope_scaling": null })), Some(4096));
        assert_eq!(of(json!([])), None);
        std::fs::write(dir.path().join("a.safetensors"), [0; 10]).unwrap();
        std::fs::write(dir.path().join("b.safetensors"), [0; 5]).unwrap();
        std::fs::write(dir.path().join("a.bin"), [0; 99]).unwrap();
        assert_eq!(weights(&process(EngineKind::Vllm, json!({}), dir.path())), 15);
    }
}
